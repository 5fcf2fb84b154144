"""What a wrapped model does while ranks come and go: carries out what the agreement asks for, applies its entries.

`agreement.py` decides, `agent.py` keeps in touch, `connection.py` sends. Runs in the training's own thread.
"""

from __future__ import annotations

import atexit
import io
import sys
import weakref
from collections.abc import Generator
from typing import Any, Protocol

import torch

from flegel.errors import FlegelError, UsageError
from flegel.runtime import clock
from flegel.torch.flexible.agent import Agent, RankExcluded, TrainingEnded, open_store
from flegel.torch.flexible.agreement import (
    STATUS_FIELDS,
    Ask,
    AwaitGeneration,
    Broken,
    Change,
    Confirm,
    Gather,
    Log,
    Reduce,
    StateTransfer,
    Status,
    Without,
)
from flegel.torch.flexible.connection import Connection, keep_until_exit
from flegel.torch.flexible.exchange import BarrierResult
from flegel.torch.flexible.joining import Meeting
from flegel.torch.flexible.membership import Generation, MembershipLimits, without
from flegel.torch.flexible.pace import BarrierPace, RankReport
from flegel.torch.flexible.rank_settings import rank_settings
from flegel.torch.flexible.sampler import FlexibleSampler


class HealedModel(Protocol):
    """The side of `FlexibleDDP` that a healer needs."""

    barrier: Any
    pace: BarrierPace
    barriers: int

    @property
    def of_site(self) -> bool:
        """Other sites know the training's state."""
        ...

    def settle(self, result: BarrierResult) -> None: ...
    def regrouped(self) -> None: ...
    def live_state(self) -> dict[str, Any]: ...
    def load_live_state(self, state: dict[str, Any]) -> None: ...
    def forget(self) -> None: ...


class Healer:
    """Lets one model survive lost ranks; implements `agreement.LogReader`."""

    def __init__(self, model: HealedModel, meeting: Meeting, timeout: float) -> None:
        self._model, self._meeting = model, meeting
        self._limits = MembershipLimits(meeting.ranks, meeting.silence, timeout)
        self._agent: Agent | None = None
        self._connection: Connection | None = None
        self._target = Generation()
        """The generation whose messages are used; entered, or being entered."""
        self.log = Log(self)
        self.sampler: FlexibleSampler | None = None
        self.members: tuple[int, ...] = ()
        """By rank, as of the last change."""
        self.changes: list[str] = []
        """Why each generation replaced the one before it, since this process joined."""
        self.seconds_lost = 0.0
        """From failures until the next generation was entered, as far as this rank waited for it."""
        self._due = False
        self._watch_compiler()
        atexit.register(self.close)

    def _watch_compiler(self) -> None:
        """Others are told while PyTorch compiles a part of the module, in the first forward pass or for another shape
        of inputs. Wrapping a module has imported the compiler already."""
        from torch._dynamo.callback import callback_handler

        this = weakref.ref(self)

        def told(begins: bool) -> None:
            healer = this()
            if healer is not None and healer._agent is not None:
                healer._agent.compiles(begins)

        callback_handler.register_start_callback(lambda *_: told(True))
        callback_handler.register_end_callback(lambda *_: told(False))

    # -- for the model ---------------------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        return self._agent is not None

    @property
    def rank(self) -> int:
        return self.members.index(self.log.own) if self.members else 0

    def begin(self, sampler: FlexibleSampler | None) -> None:
        """Joins, and takes the state of a peer if the training runs already. A process that the others excluded while
        it joined, because it was silent for too long, drops all that it has and joins again as a new member."""
        self.sampler = sampler
        while True:
            if self._agent is not None:
                self._agent.leave()
            self._connection = None
            self._model.forget()
            self.log.forget()
            self.members, self._target, self._due = (), Generation(), False
            place, run = open_store(self._meeting.address), self._meeting.run
            self._agent = Agent(place, run, self._limits, self._gpu(), self._model.of_site)
            self.log.own = self._agent.own
            try:
                self._drive(self.log.enter())
                return
            except RankExcluded:
                clock.sleep(rank_settings().rejoin_seconds)

    def _gpu(self) -> torch.device | None:
        """Whose sums go by NCCL, if ranks have met to use it."""
        device: torch.device = self._model.barrier.device
        if self._meeting.backend == "gloo":
            return None
        if device.type != "cuda":
            raise UsageError(f"backend='nccl' sums on GPUs, and the module lies on {device}: move it, or omit backend.")
        return device

    def close(self) -> None:
        """Leave the training; other processes do not wait for this one."""
        if self._agent is not None:
            self._agent.leave()
            self._connection = None
            keep_until_exit()
            self._agent = None

    def mark_ended(self) -> None:
        """The training of this site is over, also for a process that comes later."""
        if self._agent is not None:
            self._agent.mark_ended()

    def prepared(self) -> int:
        return self._agent.prepared() if self._agent is not None else 0

    def enter_if_due(self) -> None:
        """Let ranks that wait to join do so, before an iteration."""
        if self._due:
            self._due = False
            self._drive(self.log.enter())
        elif self._agent is not None:
            self._agent.check()

    def exchange(self) -> bool:
        """The barrier; False if the interval goes on."""
        return bool(self._drive(self.log.barrier()))

    # -- what the agreement applies --------------------------------------------------------------------------

    def start(self) -> None:
        if self._agent is not None and self._agent.has_begun():
            if self._model.of_site and not self._agent.has_ended():
                return  # θ is that of all sites, once this one has found it in their bucket
            if self._model.of_site or self._agent.was_left():
                raise TrainingEnded("The training has ended: its ranks have left it, and nobody has its state.")
            raise FlegelError(
                "All ranks that had the state of this training were lost: start it again from a checkpoint, under "
                "another name, join(…, run=…)."
            )

    def status(self) -> Status:
        if self.sampler is None or not self.members:
            return Status()
        return Status(window=self.sampler.taken(), drawn=self.sampler.drawn())

    def apply_barrier(self, result: Any) -> None:
        """The reports tell whether all ranks are connected to a later generation: they enter it before the next
        iteration."""
        prepared = {int(RankReport(*row).generation) for row in result.table.tolist()}
        self._model.settle(result)
        self._due = len(prepared) == 1 and prepared.pop() > self.log.generation.number

    def apply_change(self, change: Change) -> None:
        """Other members from now on: pace, barrier and sampler are told of the new ranks, and rank 0 tells the user.
        The first change that a process applies is that by which it becomes a member."""
        previous_ranks, drawn, windows = self._regrouping(change)
        if not self.members and self._agent is not None:
            self._agent.mark_begun()
        self.members = change.generation.members
        self._model.pace.regroup()
        self.changes.append(change.generation.reason)
        self._model.barrier.rank, self._model.barrier.ranks = self.rank, len(self.members)
        if self.sampler is not None:
            self.sampler.regroup(self.rank, previous_ranks, drawn, windows)
        self._model.regrouped()
        if self.rank == 0 and change.generation.number > 1:
            told = f"flegel: {change.generation.reason}; training goes on with {len(self.members)} ranks"
            print(f"{told} (generation {change.generation.number}, barrier {self._model.barriers}).", file=sys.stderr)

    def has_room(self, change: Change) -> bool:
        """Nobody joins ranks that have ended and wait for other sites."""
        if self._model.barrier.idle and self.members:
            return False
        return self.sampler is None or self.sampler.has_room(*self._regrouping(change))

    def is_still_last(self) -> bool:
        return self.sampler is None or self._model.barrier.idle or self.sampler.is_last()

    def _regrouping(self, change: Change) -> tuple[list[int | None], list[int], list[int]]:
        """What `FlexibleSampler.regroup` takes, by new rank: the rank before, None of a new member; claims of the epoch
        that its loader has read; samples of the unfinished interval that its loop has taken."""
        before = {member: rank for rank, member in enumerate(self.members)}
        previous_ranks = [before.get(member) for member in change.generation.members]
        statuses = change.statuses
        return previous_ranks, [status.drawn for status in statuses], [status.window for status in statuses]

    # -- what the agreement asks for -------------------------------------------------------------------------

    def _drive(self, steps: Generator[Ask, Any, bool]) -> bool:
        """Answers the agreement until it has a result."""
        agent = self._agent
        if agent is None:
            raise FlegelError("This process has left the training.")
        began, waited = clock.now(), False
        answer: Any = None
        failure: Broken | None = None
        try:
            while True:
                try:
                    ask = steps.throw(failure) if failure is not None else steps.send(answer)
                except StopIteration as end:
                    agent.enter(self.log.generation.number)
                    if waited:
                        self.seconds_lost += clock.now() - began
                    return bool(end.value)
                answer, failure = None, None
                try:
                    answer = self._answer(agent, ask)
                except Broken as error:
                    failure, waited = error, True
                    if not agent.is_broken(self._target.number):
                        agent.report_failure(self._target.number)
        finally:
            agent.goes_on()

    def _answer(self, agent: Agent, ask: Ask) -> Any:
        """Do what the agreement asks of the network, and return what it waits for; `Broken` where a rank is lost."""
        agent.wait_for(self.log.position)
        if isinstance(ask, AwaitGeneration):
            self._connection = None
            self._target, self._connection = agent.await_generation(self._target.number)
            return self._target
        connection = self._connection
        if connection is None:
            raise Broken("not connected")
        if isinstance(ask, Gather):
            return self._gather(connection, ask.status)
        if isinstance(ask, Confirm):
            token = torch.zeros(1)
            connection.wait([connection.sum(token)], self._check)
            return None
        if isinstance(ask, Reduce):
            return self._model.barrier.reduce_all(connection, self._check)
        if isinstance(ask, Without):
            agent.propose(without(ask.generation, set(ask.members)))
            return None
        return self._transfer(connection, ask)

    def _check(self) -> None:
        """Waiting is of no use once the generation is broken."""
        if self._agent is not None:
            self._agent.check()
            if self._agent.is_broken(self._target.number):
                raise Broken("the generation was replaced")

    def _gather(self, connection: Connection, status: Status) -> list[Status]:
        table = torch.zeros((connection.ranks, STATUS_FIELDS), dtype=torch.float64)
        table[connection.rank] = torch.tensor(status.row(), dtype=torch.float64)
        connection.wait([connection.sum(table)], self._check)
        return [Status.of_row(row) for row in table.tolist()]

    def _transfer(self, connection: Connection, ask: StateTransfer) -> None:
        """Weights and all else, from one rank to those that have nothing."""
        if connection.rank == ask.source:
            state = {"log": self.log.position, "members": self.members, "model": self._model.live_state()}
            file = io.BytesIO()
            torch.save(state, file)
            content = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
            size = torch.tensor([content.numel()], dtype=torch.int64)
            for rank in ask.to:
                connection.wait([connection.send(size, rank)], self._check)
                connection.wait([connection.send(content, rank)], self._check)
        elif connection.rank in ask.to:
            size = torch.zeros(1, dtype=torch.int64)
            connection.wait([connection.receive(size, ask.source)], self._check)
            content = torch.zeros(int(size), dtype=torch.uint8)
            connection.wait([connection.receive(content, ask.source)], self._check)
            state = torch.load(io.BytesIO(content.numpy().tobytes()), weights_only=True)
            self._model.load_live_state(state["model"])
            self.log.position, self.members = state["log"], tuple(state["members"])
