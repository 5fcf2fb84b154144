"""Ranks that are lost, freeze and join, on virtual time: whoever is lost, the others apply the same entries, and every
position of an epoch is trained exactly once."""

from __future__ import annotations

import heapq
import itertools
import random
from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from flegel.errors import FlegelError
from flegel.torch.flexible.agreement import (
    BARRIER,
    Ask,
    AwaitGeneration,
    Broken,
    Change,
    Gather,
    Log,
    Reduce,
    StateTransfer,
    Status,
    Without,
    resolve,
)
from flegel.torch.flexible.deal import Deal, NextEpoch, RankProgress
from flegel.torch.flexible.membership import (
    Generation,
    MembershipLimits,
    Observation,
    Seen,
    SignsOfLife,
    is_abandoned,
    next_generation,
    without,
)

LIMITS = MembershipLimits(ranks=2, silence=2.0, timeout=60.0)
ALIVE, FROZEN, DEAD, ENDED = "alive", "frozen", "dead", "ended"


@dataclass
class World:
    """Virtual time, the store, and messages of which some complete on a part of the ranks only."""

    draw: random.Random
    ranks: int
    epochs: int
    positions: int
    batch: int
    now: float = 0.0
    events: list[tuple[float, int, Callable[[], None]]] = field(default_factory=list)
    numbers: Any = field(default_factory=itertools.count)
    generations: list[Generation] = field(default_factory=lambda: [Generation()])
    failed: dict[int, float] = field(default_factory=dict)
    processes: dict[int, Process] = field(default_factory=dict)
    messages: dict[tuple[int, int], dict[int, Any]] = field(default_factory=dict)
    finished: dict[tuple[int, int], float] = field(default_factory=dict)
    weights: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    """By position of the log: what each rank that reached it must have."""
    trained: dict[int, list[int]] = field(default_factory=dict)

    def at(self, seconds: float, what: Callable[[], None]) -> None:
        heapq.heappush(self.events, (self.now + seconds, next(self.numbers), what))

    def run(self, until: float) -> None:
        while self.events:
            self.now, _, what = heapq.heappop(self.events)
            assert self.now < until, "no rank waits for ever"
            what()
            if all(p.state in (DEAD, ENDED) for p in self.processes.values()):
                return

    def start(self) -> None:
        process = Process(self, len(self.processes) + 1)
        self.processes[process.own] = process
        self.at(self.draw.uniform(0.0, 1.0), process.begin)

    @property
    def latest(self) -> Generation:
        return self.generations[-1]

    def propose(self, proposal: Generation | None) -> None:
        """The store keeps the first proposal of each number."""
        if proposal is not None and proposal.number == self.latest.number + 1:
            self.generations.append(proposal)


class Process:
    """One process: an agent that looks every 0.1 s, and a training loop. Implements `agreement.LogReader`."""

    def __init__(self, world: World, own: int) -> None:
        self.world, self.own, self.state, self.wants = world, own, ALIVE, "join"
        self.log = Log(self, own)
        self.members: tuple[int, ...] = ()
        self.deal: Deal | None = None
        self.next = NextEpoch()
        self.epoch, self.drawn, self.window = 0, 0, [0]
        self.weights: tuple[Any, ...] = ()
        self.last_sign, self.target, self.sequence = 0.0, 0, 0
        self.steps: Generator[Ask, Any, bool] | None = None
        self.then: Callable[[bool], None] = lambda _: None
        self.arrived = -1
        self.token = 0
        """Counts what the process waits for, so that an answer to something else is dropped."""
        self.signs = SignsOfLife(world.now)
        self.speed = world.draw.uniform(0.2, 1.0)

    # -- the agent -------------------------------------------------------------------------------------------

    def look(self) -> None:
        world = self.world
        if self.state in (DEAD, ENDED):
            return
        world.at(0.1, self.look)
        if self.state == FROZEN:
            return
        self.last_sign = world.now
        self.signs.look(world.now, LIMITS)
        if self.own not in world.latest.members and self.wants == "train":
            self.excluded()
            return
        others = world.processes.values()
        seen = {o.own: self.signs.read(o.own, o.last_sign, o.wants, o.arrived) for o in others}
        open_failures = [at for number, at in world.failed.items() if number > world.latest.broken]
        view = Observation(
            world.latest,
            seen,
            self.log.generation.number,
            world.now - min(open_failures) if open_failures else None,
            former=frozenset(member for one in world.generations for member in one.members),
        )
        limits = MembershipLimits(world.ranks, LIMITS.silence, LIMITS.timeout)
        world.propose(next_generation(self.own, view, limits))
        if is_abandoned(self.own, view, limits):
            self.state = ENDED
        if self.sending and self.target <= world.latest.broken:
            self.answer(None, Broken())

    def excluded(self) -> None:
        """Rejoins under another identity, as a new process would."""
        self.state = ENDED
        self.world.start()

    # -- the training loop -----------------------------------------------------------------------------------

    def begin(self) -> None:
        self.last_sign = self.world.now
        self.look()
        self.drive(self.log.enter(), lambda _: self.batch_begins())

    def batch_begins(self) -> None:
        """Reads a batch, trains it, and meets the others if the interval ends with it."""
        deal = self.deal
        assert deal is not None
        rank = self.members.index(self.own)
        if deal.done:
            self.epoch += 1
            if self.epoch == self.world.epochs:
                self.wants, self.state = "leave", ENDED
                return
            self.new_epoch()
            deal = self.deal
            assert deal is not None
        count = min(self.world.batch, deal.claimed(rank) - self.drawn)
        assert count > 0, "every rank has something to train until the next barrier"
        self.drawn += count
        self.window[0] += count
        self.after(self.world.draw.uniform(0.02, 0.06) / self.speed, self.batch_ends)

    def batch_ends(self) -> None:
        if self.is_last(self.world.draw.random() < 0.4):
            self.drive(self.log.barrier(), self.barrier_ends)
        else:
            self.batch_begins()

    def barrier_ends(self, committed: bool) -> None:
        grown = committed and self.world.latest.number > self.log.generation.number
        if committed and grown and self.due:
            self.due = False
            # a rank reads its next batch before it enters
            self.drive(self.log.enter(), lambda _: self.batch_begins())
        else:
            self.batch_begins()

    due = sending = False
    """`sending`: waits for a message of its generation."""

    def new_epoch(self) -> None:
        self.drawn, self.window = 0, [0]
        self.deal = self.next.begin(self.world.positions, self.world.batch, 1, 0.2 * self.world.batch, 0)

    def is_last(self, in_time: bool) -> bool:
        assert self.deal is not None
        rank = self.members.index(self.own)
        unread = self.deal.claimed(rank) - self.drawn
        return self.deal.is_last(rank, self.window[0], unread, self.world.batch, in_time)

    # -- what the agreement applies --------------------------------------------------------------------------

    def start(self) -> None:
        self.new_epoch_of_one()

    def new_epoch_of_one(self) -> None:
        """The state of a training that nobody has begun: no claims yet."""
        self.deal = Deal(self.world.positions, 0, self.world.batch)

    def status(self) -> Status:
        return Status(window=self.window[0], drawn=self.drawn) if self.members else Status()

    def apply_barrier(self, result: Any) -> None:
        reports, prepared = result
        assert self.deal is not None
        self.weights = (*self.weights, tuple(sorted(reports.items())))
        self.check()
        members = self.log.generation.members
        progress = [RankProgress(reports[m][1], 1.0, reports[m][2]) for m in members]
        self.window[0] = 0
        self.deal.advance(progress, 0.2 * self.world.batch, self.world.batch, 0)
        if self.deal.done:
            seen = [p for start, end in self.deal.trained_spans() for p in range(start, end)]
            self.world.trained.setdefault(self.epoch, seen)
            assert self.world.trained[self.epoch] == seen
            self.next.end(len(members), [1.0] * len(members))
        self.due = len(prepared) == 1 and max(prepared) > self.log.generation.number

    def apply_change(self, change: Change) -> None:
        assert self.deal is not None
        kept, drawn, windows = self.kept(change)
        self.members = change.generation.members
        self.weights = (*self.weights, self.members)
        self.check()
        regrouping = (kept, drawn, windows, [1.0] * len(kept), 0.2 * self.world.batch, 0)
        if self.deal.done:
            self.next.changes.append(regrouping)  # others may be in the next epoch already
        else:
            self.deal.regroup(*regrouping)

    def kept(self, change: Change) -> tuple[list[int | None], list[int], list[int]]:
        before = {member: rank for rank, member in enumerate(self.members)}
        kept = [before.get(member) for member in change.generation.members]
        return kept, [s.drawn for s in change.statuses], [s.window for s in change.statuses]

    def has_room(self, change: Change) -> bool:
        if self.deal is None or self.deal.done:
            return False
        deal = Deal.from_state({k: list(v) if isinstance(v, list) else v for k, v in self.deal.to_state().items()})
        deal._claims, deal._ends = [list(c) for c in deal._claims], [list(c) for c in deal._ends]
        kept, drawn, windows = self.kept(change)
        deal.regroup(kept, drawn, windows, [1.0] * len(kept), 0.2 * self.world.batch, 0)
        return all(deal.outstanding(rank) > 0 for rank in range(len(kept)))

    def is_still_last(self) -> bool:
        return self.is_last(True)

    def check(self) -> None:
        """Whoever has come to a position has the same history."""
        known = self.world.weights.setdefault(self.log.position, self.weights)
        assert known == self.weights

    # -- messages --------------------------------------------------------------------------------------------

    def after(self, seconds: float, what: Callable[[], None]) -> None:
        """Once the process has computed for so long; a frozen one goes on later."""

        def go_on() -> None:
            if self.state == FROZEN:
                self.world.at(0.05, go_on)
            elif self.state == ALIVE:
                what()

        self.world.at(seconds, go_on)

    def drive(self, steps: Generator[Ask, Any, bool], then: Callable[[bool], None]) -> None:
        self.steps, self.then = steps, then
        self.advance(None, None)

    def answer(self, value: Any, failure: Broken | None) -> None:
        """Comes later, as all messages do; the first answer counts."""
        token = self.token

        def come() -> None:
            if token == self.token:
                self.advance(value, failure)

        self.after(self.world.draw.uniform(0.0, 0.02), come)

    def advance(self, value: Any, failure: Broken | None) -> None:
        self.token += 1
        self.sending = False
        steps = self.steps
        assert steps is not None
        if failure is not None and self.target > self.world.latest.broken:
            self.world.failed.setdefault(self.target, self.world.now)
        try:
            ask = steps.throw(failure) if failure is not None else steps.send(value)
        except StopIteration as end:
            self.steps, self.arrived = None, -1
            self.wants = "train"
            self.then(bool(end.value))
            return
        self.arrived = self.log.position
        self.carry_out(ask)

    def carry_out(self, ask: Ask) -> None:
        world = self.world
        if isinstance(ask, AwaitGeneration):
            self.await_generation()
        elif isinstance(ask, Without):
            world.propose(without(ask.generation, set(ask.members)))
            self.answer(None, None)
        else:
            self.sequence, self.sending = self.sequence + 1, True
            self.collective((self.target, self.sequence), ask)

    def await_generation(self) -> None:
        world, token = self.world, self.token

        def look() -> None:
            if token != self.token:
                return
            latest = world.latest
            connected = all(world.processes[m].state == ALIVE for m in latest.members)
            if self.own in latest.members and latest.number > self.target and connected:
                self.target, self.sequence = latest.number, 0
                self.advance(latest, None)
            else:
                self.after(0.05, look)

        self.after(0.02, look)

    def collective(self, key: tuple[int, int], ask: Ask) -> None:
        """Completes only if all members have come; once one of them is lost, on some ranks and not on others."""
        world = self.world
        inputs = world.messages.setdefault(key, {})
        inputs[self.own] = self.content(ask)
        generation = world.generations[key[0]]
        token = self.token

        def look() -> None:
            if token != self.token:
                return
            if set(inputs) == set(generation.members):
                lost = any(world.processes[m].state != ALIVE for m in generation.members)
                if lost and world.draw.random() < 0.5:
                    if any(world.processes[m].state == DEAD for m in generation.members):
                        self.answer(None, Broken())
                    else:
                        self.after(0.2, look)
                else:
                    self.advance(self.result(ask, generation, inputs), None)
            elif any(world.processes[m].state == DEAD for m in generation.members) and world.draw.random() < 0.5:
                self.answer(None, Broken())
            else:
                self.after(0.01, look)

        self.after(world.draw.uniform(0.001, 0.01), look)

    def content(self, ask: Ask) -> Any:
        if isinstance(ask, Gather):
            return ask.status
        if isinstance(ask, Reduce):
            read = self.drawn - self.window[0] - (self.deal.trained[self.members.index(self.own)] if self.deal else 0)
            return (self.log.position, self.window[0], read, self.world.latest.number)
        if isinstance(ask, StateTransfer) and self.target:
            generation = self.world.generations[self.target]
            if generation.members[ask.source] == self.own:
                assert self.deal is not None
                next_epoch = self.next.to_state()
                return (self.log.position, self.members, self.weights, self.epoch, self.deal.to_state(), next_epoch)
        return None

    def result(self, ask: Ask, generation: Generation, inputs: dict[int, Any]) -> Any:
        if isinstance(ask, Gather):
            return [inputs[m] for m in generation.members]
        if isinstance(ask, Reduce):
            assert len({content[0] for content in inputs.values()}) == 1, "all are at the same barrier"
            return {m: inputs[m][:3] for m in generation.members}, {content[3] for content in inputs.values()}
        if isinstance(ask, StateTransfer) and generation.members.index(self.own) in ask.to:
            position, members, weights, epoch, deal, next_epoch = inputs[generation.members[ask.source]]
            self.next = NextEpoch(*next_epoch)
            self.log.position, self.members, self.weights, self.epoch = position, members, weights, epoch
            self.deal = Deal.from_state({k: list(v) if isinstance(v, list) else v for k, v in deal.items()})
            self.deal._claims = [list(c) for c in self.deal._claims]
            self.deal._ends = [list(c) for c in self.deal._ends]
            self.drawn, self.window = 0, [0]
        return None


def disturb(world: World, faults: int) -> None:
    """Kills, freezes and new processes at random moments; one process at least is left alone."""
    for _ in range(faults):

        def strike(kind: str) -> None:
            running = [p for p in world.processes.values() if p.state == ALIVE and p.wants == "train"]
            if kind == "join":
                world.start()
            elif len(running) > 1:
                one = world.draw.choice(running)
                one.state = DEAD if kind == "kill" else FROZEN
                if kind == "freeze":
                    world.at(world.draw.choice([0.3, 1.9, 4.0]), lambda: setattr(one, "state", ALIVE))

        kind = world.draw.choice(["kill", "kill", "freeze", "freeze", "join"])
        world.at(world.draw.uniform(1.0, 30.0), lambda kind=kind: strike(kind))


def play(seed: int) -> World:
    draw = random.Random(seed)
    world = World(draw, draw.randint(1, 4), draw.randint(1, 4), draw.choice([97, 300, 611]), draw.choice([1, 4, 8]))
    for _ in range(world.ranks):
        world.start()
    disturb(world, draw.randint(0, 8))
    world.run(until=2000.0)
    return world


@pytest.mark.parametrize("block", range(5))
def test_every_position_once_and_one_history_whoever_is_lost_or_joins(block: int) -> None:
    epochs = changes = 0
    for seed in range(40 * block, 40 * block + 40):
        world = play(seed)
        if any(p.state == ENDED and p.wants == "leave" for p in world.processes.values()):
            for epoch in range(world.epochs):
                assert sorted(world.trained[epoch]) == list(range(world.positions)), f"seed {seed}, epoch {epoch}"
            epochs, changes = epochs + world.epochs, changes + world.latest.number - 1
    assert epochs > 40 and changes > 40


def test_ranks_in_two_epochs_when_a_third_is_lost() -> None:
    """One has begun the next epoch while another has just passed the last barrier of this one."""
    world = play(3486)
    assert all(sorted(world.trained[epoch]) == list(range(world.positions)) for epoch in range(world.epochs))


@pytest.mark.slow
@pytest.mark.parametrize("block", range(10))
def test_the_same_at_length(block: int) -> None:
    for seed in range(1000 + 300 * block, 1300 + 300 * block):
        world = play(seed)
        if any(p.state == ENDED and p.wants == "leave" for p in world.processes.values()):
            for epoch in range(world.epochs):
                assert sorted(world.trained[epoch]) == list(range(world.positions)), f"seed {seed}, epoch {epoch}"


def seen(**silent: float) -> dict[int, Seen]:
    """Members by letter: a is 1, b is 2, ...; those in capitals want to join."""
    return {ord(n.lower()) - 96: Seen(s, "join" if n.isupper() else "train") for n, s in silent.items()}


THREE = Generation(4, (1, 2, 3), 2)


@pytest.mark.parametrize(
    ("view", "members", "broken"),
    [
        (Observation(THREE, seen(a=0, b=0, c=0), 4), None, 0),
        (Observation(THREE, seen(a=0, b=0, c=1.9), 4), None, 0),
        (Observation(THREE, seen(a=0, b=0, c=2.1), 4), (1, 2), 4),
        (Observation(THREE, seen(a=0, b=0, c=0.7), 4, failed=0.1), (1, 2), 4),  # a message failed, too
        (Observation(THREE, seen(a=0, b=0, c=0.1), 4, failed=0.5), None, 0),
        (Observation(THREE, seen(a=0, b=0, c=0.1), 4, failed=1.5), (1, 2, 3), 4),  # all live: they connect again
        (Observation(THREE, seen(a=0, b=0, c=0, D=0.2), 4), (1, 2, 3, 4), 2),
        (Observation(THREE, seen(a=0, b=0, c=0, D=0.2), 3), None, 0),  # the last change is not entered yet
        (Observation(THREE, seen(a=0, b=0, c=0, D=5.0), 4), None, 0),
        (Observation(THREE, seen(a=0, b=0, c=2.1, D=0.2), 4), (1, 2), 4),  # the urgent change first
        (Observation(THREE, seen(a=0, b=0, c=0), 4, waited=61.0, arrived=7), (), 4),  # nobody else arrived
        (Observation(Generation(), seen(A=0), 0), None, 0),
        (Observation(Generation(), seen(A=0, B=0), 0), (1, 2), 0),
    ],
)
def test_who_takes_part_next(view: Observation, members: tuple[int, ...] | None, broken: int) -> None:
    own = {2: Seen(0.0, "train", arrived=7)} if view.waited else {}
    view = Observation(view.latest, {**view.seen, **own}, view.entered, view.failed, view.waited, view.arrived)
    found = next_generation(1, view, LIMITS)
    if members is None:
        assert found is None
        return
    assert found is not None
    assert found.members == (members or (2,)) and found.broken == broken
    assert found.number == view.latest.number + 1 and Generation.from_text(found.to_text()) == found


@pytest.mark.parametrize(
    ("view", "members"),
    [
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(9.0, "train", compiling=True)}, 4), None),
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(9.0, "train", compiling=True)}, 4, failed=0.1), None),
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(11.0, "train", compiling=True)}, 4), (1, 2)),
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(9.0, "train")}, 4), (1, 2)),
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(0.0, "train", 6, True)}, 4, None, 61.0, 7), None),
        (Observation(THREE, {**seen(a=0, b=0), 3: Seen(0.0, "train", 6, True)}, 4, None, 1801.0, 7), (1, 2)),
    ],
    ids=["silent", "another failed", "silent for long", "not compiling", "not arrived", "not arrived for long"],
)
def test_a_rank_that_compiles_may_be_silent_and_late(view: Observation, members: tuple[int, ...] | None) -> None:
    if view.waited:
        view = replace(view, seen={**view.seen, 1: Seen(0.0, "train", 7), 2: Seen(0.0, "train", 7)})
    found = next_generation(1, view, LIMITS)
    assert (found.members if found is not None else None) == members


def test_a_process_that_was_frozen_itself_does_not_call_others_silent() -> None:
    signs = SignsOfLife(10.0)
    for now, silent in ((10.1, 0.0), (10.2, 0.1), (15.0, 0.0), (15.1, 0.1)):
        signs.look(now, LIMITS)
        assert signs.read(2, "7", "train", -1).silent == pytest.approx(silent)


def test_an_excluded_process_that_does_not_know_of_it_yet_is_not_let_in_again() -> None:
    view = Observation(THREE, seen(a=0, b=0, c=0, D=0, E=0), 4, former=frozenset((1, 2, 3, 4)))
    found = next_generation(1, view, LIMITS)
    assert found is not None and found.members == (1, 2, 3, 5)


def test_a_process_that_ended_while_it_joined_is_not_let_in_by_those_who_see_its_last_sign() -> None:
    signs = SignsOfLife(10.0)
    for now, joiners_sign, members in ((10.1, "7", None), (10.2, "7", None), (10.3, "8", (1, 2, 4)), (15.0, "8", None)):
        signs.look(now, LIMITS)
        ones = {one: signs.read(one, now, "train", -1) for one in (1, 2)}
        view = Observation(Generation(4, (1, 2), 2), {**ones, 4: signs.read(4, joiners_sign, "join", -1)}, 4)
        found = next_generation(1, view, LIMITS)
        assert (found.members if found is not None else None) == members, now


def test_a_process_that_waits_gives_up_when_all_have_left() -> None:
    waiting = seen(a=0, b=0, c=0, D=0)
    assert not is_abandoned(4, Observation(THREE, waiting, 0), LIMITS)
    left = {m: Seen(0.0, "leave") for m in (1, 2, 3)}
    assert is_abandoned(4, Observation(THREE, waiting | left, 0), LIMITS)
    assert not is_abandoned(1, Observation(THREE, waiting | left, 0), LIMITS)
    assert is_abandoned(4, Observation(THREE, waiting | seen(a=21, b=21, c=21), 0), LIMITS)


def test_where_all_ranks_of_a_site_were_lost_as_many_as_began_begin_again() -> None:
    """The other sites know its θ. Without them nobody does, and a process that comes later gives up."""
    lost = seen(a=21, b=21, c=21)
    for view, members in (
        (Observation(THREE, lost | seen(D=0, E=0), 0, can_begin_again=True), (4, 5)),
        (Observation(THREE, lost | seen(D=0), 0, can_begin_again=True), None),  # the other one is not there yet
        (Observation(THREE, seen(a=21, b=21, c=1, D=0, E=0), 0, can_begin_again=True), None),
        (Observation(THREE, lost | seen(D=0, E=0), 0), None),
    ):
        found = next_generation(4, view, LIMITS)
        assert (found.members if found is not None else None) == members
        assert found is None or (found.number, found.broken) == (THREE.number + 1, THREE.number)


def test_what_ranks_agree_on_from_what_they_hold() -> None:
    held, not_held, ahead = Status(7, 3, BARRIER), Status(7), Status(8)
    assert resolve([held, held]).commits == (True, True) and resolve([held, held]).position == 8
    assert resolve([held, not_held]).commits == (False, False), "nobody has stepped"
    assert resolve([held, ahead]).commits == (True, False)
    joiner = Status()
    assert resolve([held, held, joiner]).source == -1, "nobody has stepped with the last barrier yet"
    assert resolve([held, ahead, joiner]).source == 1
    assert resolve([joiner, joiner]) == resolve([joiner, joiner]) and resolve([joiner, joiner]).without_state == (1,)
    with pytest.raises(FlegelError, match="two phases"):
        resolve([not_held, ahead])
