"""The coordinator of one job: routes events to its parts and does what the synchronization model decides. Pure.

Life cycle:   loading → training ⇄ (workers come or go) → (checkpointing) → (collecting) → over
Events come from workers, timers, the parameter store and the supervisor; commands go to the runtime or to the
simulator. It never reads a clock, opens a socket or starts a thread; when to synchronize is the model's business.

    orders       train and stop, and what was ordered last              orders.py
    commits      reports until they are folded, rows of the trace       commits.py
    membership   loading, workers lost, joining, leaving                membership.py
    checkpoints  when state is stored; suspending                       checkpoint_schedule.py
    balance      points that move to faster workers                     balance_control.py
    liveness     who is silent, who does not progress                   liveness.py
    state        what all of them share                                 state.py

An update has two phases: the coordinator asks the parameter store for a fold, and continues when that is done, in the
same event or in a later one. Events that come in between are handled after it, in their order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

from flegel.algorithm import Algorithm
from flegel.core.pytree import Array, Tree
from flegel.errors import AlgorithmError, FlegelError, ProtocolError, UsageError
from flegel.job import Criteria
from flegel.machine.checkpoint import snapshot
from flegel.machine.coordinator.balance_control import BalanceControl
from flegel.machine.coordinator.checkpoint_schedule import CheckpointSchedule
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.events import (
    Command,
    Done,
    Event,
    EvictWorker,
    FoldFinished,
    FromWorker,
    LeaveJob,
    Milestone,
    Note,
    SaveCheckpointPart,
    ScaleTo,
    SetTimer,
    Suspend,
    Timeouts,
    Timer,
    TraceRow,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.coordinator.liveness import Liveness
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.state import JobState
from flegel.messages import (
    Answer,
    CheckpointPart,
    FetchStates,
    LoadShard,
    MoveReady,
    MoveRefused,
    MoveSent,
    PointsAssigned,
    PointsGivenUp,
    PointsListed,
    Report,
    ShardLoaded,
    States,
    WindowArrived,
    WorkerBeat,
    WorkerFailed,
)
from flegel.params.hooks import call_hook
from flegel.params.protocol import Fold, Folded, ParameterStore
from flegel.plan.termination import Progress, Termination, Verdict
from flegel.sync import policy as sync
from flegel.sync.policy import (
    NOTHING,
    Decision,
    Policy,
    Regrouped,
    Reported,
    Started,
    StopWorkers,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
)

TICK = 1.0  # seconds between two looks at who is silent

AfterFold = Callable[[Fold, Folded, float], None]


class Coordinator:
    """Build it, call `start`, then feed it events until `Done` comes out."""

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        criteria: Criteria,
        store: ParameterStore,
        loads: dict[int, LoadShard],
        *,
        collect: bool = False,
        timeouts: Timeouts | None = None,
        debug: bool = False,
        balance: BalanceControl | None = None,
        checkpoints: CheckpointSchedule | None = None,
        attribute: bool = False,
        parts: dict[int, tuple[Array, ...]] | None = None,
        scaling: tuple[Array, ...] = (),
        rows: int = 0,
        replace: bool = True,
    ) -> None:
        """`collect`: fetch the points' hidden states at the end. `debug`: check the conservation laws at each commit.
        `attribute`: the store attributes progress to single workers. The last four are those of `Membership`."""
        self.state = JobState(algorithm, policy, criteria, store, timeouts or Timeouts(), attribute)
        self.liveness = Liveness(self.state.timeouts)
        self.orders = WorkerOrders(self.state, self.liveness)
        self.commits = Commits(self.state, self.orders, debug)
        self.membership = Membership(
            self.state, self.orders, self.liveness, loads, parts=parts, scaling=scaling, rows=rows, replace=replace
        )
        self.balance, self.checkpoints = balance, checkpoints
        self.termination = Termination(criteria, algorithm.maximize)
        self.notes: list[str] = []
        self.hidden_states: dict[int, tuple[Array, Array]] = {}
        """By worker, where they were collected: states of its points and their numbers."""
        self._collect = collect
        self._owed_verdict: Verdict | None = None
        """The job was to end for this reason, as soon as all points count again."""
        self._resumed: tuple[Updated, float, bool] | None = None
        """Of a resumed job: what the model hears first, the time at which the job stood, is its balance new?"""
        self._pending: tuple[Fold, AfterFold, float] | None = None
        """The fold under way, what comes after it, and when it was asked for."""
        self._deferred: deque[Event] = deque()
        """What happened since then."""

    # -- what others read ----------------------------------------------------------------------------------

    @property
    def view(self) -> View:
        return self.state.view

    @property
    def phase(self) -> str:
        return self.state.phase

    @property
    def trace(self) -> list[TraceRow]:
        return self.state.trace

    @property
    def iteration(self) -> int:
        return self.state.iteration

    @property
    def verdict(self) -> Verdict | None:
        return self.state.verdict

    @property
    def store(self) -> ParameterStore:
        return self.state.store

    @property
    def parameter(self) -> Tree:
        return self.state.store.parameter

    @property
    def seconds(self) -> float:
        """Of training."""
        return self.state.ended - self.state.began

    # -- entry points --------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        self.state.out = []
        self.membership.start(now)
        self.state.out.append(SetTimer(now + TICK, Timer("watch")))
        return self.state.out

    def handle(self, event: Event, now: float) -> list[Command]:
        """What follows from one event."""
        state = self.state
        state.out = []
        if state.phase == "over":
            return state.out
        if self._pending is not None:
            self._while_folding(self._pending, event, now)
        elif type(event) is FromWorker:
            self._from_worker(event, now)
        else:
            state.totals.stale = True
            self._route(event, now)
        return state.out

    def rest(self) -> None:
        """Time for work that nobody waits for."""
        self.state.store.use_spare_time()

    def resume_with(self, event: Updated, now: float, fresh_balance: bool) -> None:
        """Continue where the job stood (machine/checkpoint/resume.py): once all are loaded, the model hears this."""
        self._resumed = event, now, fresh_balance

    def _from_worker(self, event: FromWorker, now: float) -> None:
        worker, body, state = event.worker, event.body, self.state
        self.liveness.hear(worker, body, now)
        if type(body) is Report and state.phase == "training" and worker in state.view.workers:
            self._on_report(worker, body, event.arrays, now)
        elif type(body) is not WorkerBeat:
            state.totals.stale = True
            self._answer(worker, body, event.arrays, now)

    def _route(self, event: Event, now: float) -> None:
        """Everything that no worker sent."""
        state = self.state
        steady = state.phase == "training" and state.verdict is None and self.membership.steady
        match event:
            case Timer("policy", tag):
                if steady:
                    self._decide(Woken(tag), now)
            case Timer("balance"):
                if self.balance is not None and steady:
                    self._plan_moves(self.balance, now)
            case Timer("watch"):
                self._check_deadlines(now)
            case Timer("checkpoint" | "force" | "leave") | Suspend():
                self._on_checkpoint_event(event, now)
            case Timer("limit"):
                self._end(Verdict(False, f"reached {state.criteria.max_seconds:g} s"), now)
            case Timer("hire"):
                self.membership.roster.stop_waiting(now, state.timeouts.hire)
                self._step(now)
            case WorkerDied(worker, why, fault):
                self._lost(worker, why, fault, now)
            case WorkerJoined(worker):
                self.membership.joined(worker, now)
            case ScaleTo(workers):
                self._do(self.membership.scale(workers, now), now)
            case LeaveJob(worker):
                self._do(self.membership.leave((worker,), now), now)
            case FoldFinished(folded):
                state.out.append(Note(f"the parameter store answered fold {folded.number} again; ignored"))

    # -- folds ---------------------------------------------------------------------------------------------

    def _fold(self, request: Fold, then: AfterFold, now: float) -> None:
        """Phase one of an update; `then` is phase two."""
        folded = self.state.store.fold(request)
        if folded is None:
            self._pending = request, then, now
        else:
            then(request, folded, now)

    def _while_folding(self, pending: tuple[Fold, AfterFold, float], event: Event, now: float) -> None:
        """Events wait until the fold is done, except its answer and signs of life."""
        request, then, asked_at = pending
        match event:
            case FoldFinished(folded) if folded.number == request.number:
                self._pending = None
                if folded.error is not None:
                    self._finish(folded.error)
                    return
                then(request, folded, now)
                while self._deferred and self._pending is None and self.state.phase != "over":
                    again = self._deferred.popleft()
                    self.state.totals.stale = True
                    self._from_worker(again, now) if type(again) is FromWorker else self._route(again, now)
            case FoldFinished(folded):
                self.state.out.append(Note(f"the parameter store answered fold {folded.number} again; ignored"))
            case Timer("watch"):
                self.liveness.look(now)
                if now - asked_at > self.state.timeouts.report:
                    waited = f"{now - asked_at:.0f} s"
                    text = f"The parameter store did not fold the reports of {request.place} within {waited}."
                    self._finish(ProtocolError(text))
                    return
                self.state.out.append(SetTimer(now + TICK, Timer("watch")))
            case FromWorker(worker, body):
                self.liveness.hear(worker, body, now)
                if type(body) is not WorkerBeat:
                    self._deferred.append(event)
            case _:
                self._deferred.append(event)

    def _update(self, workers: tuple[int, ...], now: float) -> None:
        """A new θ from the reports of these workers, and on."""

        def updated(request: Fold, folded: Folded, now: float) -> None:
            self._judge(workers, self._commit(request, workers, folded, now), now)

        self._fold(self.commits.request(workers), updated, now)

    def _update_last(self, now: float) -> None:
        """The job ends: a last θ from all reports."""
        workers = tuple(self.commits.held)

        def updated(request: Fold, folded: Folded, now: float) -> None:
            self._commit(request, workers, folded, now)
            self._over(now)

        self._fold(self.commits.request(workers), updated, now)

    def _close_accounts(self, now: float) -> None:
        """Workers change: reports that count enter the statistics, and θ stays."""
        again = self.membership.subtract_lost()

        def closed(request: Fold, folded: Folded, now: float) -> None:
            self.commits.finish_accounts(request, folded)
            self._do(self.membership.accounts_closed(again, now), now)

        self._fold(self.commits.request_accounts(again), closed, now)

    def _commit(self, request: Fold, workers: tuple[int, ...], folded: Folded, now: float) -> Updated:
        moves = self.balance.migrations if self.balance is not None else None
        in_flight, moved = (moves.in_flight(), moves.bytes) if moves is not None else (0, 0)
        return self.commits.finish(request, workers, folded, in_flight, moved, now)

    def _judge(self, workers: tuple[int, ...], updated: Updated, now: float) -> None:
        """θ is new: has the job come to its end, and otherwise what comes next?"""
        state = self.state
        progress = self.commits.progress(now)
        check = self.termination.due(progress) and bool(
            call_hook(state.algorithm, state.place, "terminationCheck", state.store.statistics, state.iteration)
        )
        state.verdict = self.termination.judge(progress, check)
        if self._owed_verdict is not None and progress.exact:
            state.verdict = self._owed_verdict
        if state.verdict is not None:
            self._end(state.verdict, now)
            return
        if self.balance is not None:
            self._rebalance(self.balance, workers, progress, now)
            if self.balance.waits():
                self.balance.waiting = updated
                return
        self._proceed(updated, now)

    # -- answers -------------------------------------------------------------------------------------------

    def _answer(self, worker: int, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        """Everything but reports and beats."""
        state = self.state
        match body:
            case ShardLoaded() if state.phase == "loading":
                self.membership.has_loaded(worker, body)
                self._begin(now)
            case ShardLoaded() if worker in self.membership.roster.hired:
                self._do(self.membership.welcome(worker, body, now), now)
            case PointsListed() | PointsGivenUp() | PointsAssigned() if worker in state.view.workers:
                self.membership.answer(worker, body, arrays)
                self._step(now)
            case MoveReady() | MoveRefused() | WindowArrived() | MoveSent() if self.balance is not None:
                if state.phase == "training":
                    self._on_move(self.balance, worker, body, now)
            case CheckpointPart() if self.checkpoints is not None:
                state.out.append(SaveCheckpointPart(worker, body, arrays))
                took = self.checkpoints.took(worker, body)
                if took and self.checkpoints.complete and state.phase == "checkpointing":
                    self._finish() if self.checkpoints.suspended else self._collect_states(now)
            case States() if state.phase == "collecting":
                self.hidden_states[worker] = (arrays[0], arrays[1])
                if len(self.hidden_states) == len(state.view.workers):
                    self._finish()
            case WorkerFailed():
                self._finish(failure(worker, body))
            case _:
                state.out.append(Note(f"worker {worker} sent {type(body).__name__} while {state.phase}; ignored"))

    def _begin(self, now: float) -> None:
        """Training begins when the last worker is loaded."""
        if not self.membership.all_loaded():
            return
        state = self.state
        self.membership.begin()
        state.phase = "training"
        resumed, stood_at, fresh_balance = self._resumed or (None, 0.0, True)
        state.began = now if resumed is None else state.began + now - stood_at  # loading is no training
        state.ended = self.commits.updated_at = state.ready_at = now
        if state.criteria.max_seconds:
            state.out.append(SetTimer(state.began + state.criteria.max_seconds, Timer("limit")))
        if self.balance is not None:
            self.balance.start(state.view, now) if fresh_balance else self.balance.go_on(now)
        if self.checkpoints is not None:
            state.out.append(SetTimer(now + self.checkpoints.every, Timer("checkpoint")))
        if resumed is not None and state.verdict is None and state.trace:
            state.totals.count(())
            state.verdict = self.termination.judge(self.commits.progress(now), False)  # criteria may be others by now
        state.out.append(Milestone("training"))
        if self.membership.redistribution.orphans:
            self._change_workers(now)
        elif state.verdict is not None:
            self._over(now)
        else:
            self._decide(resumed or Started(), now)
        if self.membership.wanted:
            self._do(self.membership.scale(self.membership.wanted, now), now)

    def _on_report(self, worker: int, body: Report, arrays: tuple[Array, ...], now: float) -> None:
        state, membership = self.state, self.membership
        if state.view.workers[worker].phase != "training" or body.round != self.orders.round_of[worker]:
            state.out.append(Note(f"worker {worker} reported round {body.round} again; ignored"))
            return
        seen = self.commits.hold(worker, body, arrays, now)
        moving = self.balance is not None and worker in self.balance.migrations.busy()
        reported = Reported(worker, body.exhausted and seen.points > 0, moving)
        if membership.changing:
            self._step(now)
        elif membership.catching_up:
            if membership.catch_up(worker, reported.exhausted, now):
                self._decide(Regrouped(), now)
                self._update(tuple(state.view.workers), now)
        elif state.verdict is None and not (self.checkpoints is not None and self.checkpoints.forced):
            self._decide(reported, now)
        elif state.verdict is None:
            state.policy.decide(reported, state.view, now)  # it hears everything, but a checkpoint comes first
            if not state.view.training():
                self._update(tuple(self.commits.held), now)
        elif not state.view.training():
            self._update_last(now)

    # -- decisions -----------------------------------------------------------------------------------------

    def _decide(self, event: sync.Event, now: float) -> None:
        state = self.state
        decision: Decision = state.policy.decide(event, state.view, now)
        if decision is NOTHING:
            return
        if decision.reason:
            state.reason = decision.reason
        for action in decision.actions:
            if state.phase != "training" or state.verdict is not None:
                return
            if self._pending is not None:
                raise ProtocolError(f"{state.policy.name} decided {type(action).__name__} after Update; Update is last.")
            match action:
                case TrainWorkers():
                    self.orders.train(action, now)
                case StopWorkers(workers=workers):
                    self.orders.stop(workers, now)
                case Update(workers=workers):
                    self._update(workers, now)
                case Wake(at=at, tag=tag):
                    state.out.append(SetTimer(at, Timer("policy", tag)))

    def _proceed(self, event: Updated, now: float) -> None:
        """The model decides what comes next; where a checkpoint is due and nobody trains, that is stored first."""
        if self.checkpoints is not None:
            self.checkpoints.at_rest(self.state, event, now, self.snapshot)
            if self.checkpoints.suspended:
                self.state.phase = "checkpointing"
                return
        self._decide(event, now)

    # -- workers that come and go --------------------------------------------------------------------------

    def _lost(self, worker: int, why: str, fault: bool, now: float, silent: bool = False) -> None:
        """Every part forgets the worker; what it reported and was not handed to the store does not count."""
        if not self.membership.knows(worker):
            return
        if self.checkpoints is not None and worker not in self.membership.roster.hired:
            self.checkpoints.lost()
        redone = self.commits.forget(worker)
        self.orders.forget(worker)
        self.hidden_states.pop(worker, None)
        outcome = self.membership.lose(worker, why, fault, silent, redone, now)
        if isinstance(outcome, FlegelError):
            self._finish(outcome)
        elif outcome is not Next.NOTHING:  # a newcomer that has no points yet disturbs nobody
            self.state.out.append(Milestone("worker lost"))
            self._do(outcome, now)

    def _do(self, step: Next, now: float) -> None:
        """What the membership wants done next."""
        match step:
            case Next.BEGIN:
                self._begin(now)
            case Next.CHANGE:
                self._change_workers(now)
            case Next.CLOSE_ACCOUNTS:
                self._close_accounts(now)
            case Next.RESUME:
                self.commits.restart(now)
                if self.balance is not None:
                    self.balance.go_on(now)
                self.state.out.append(Milestone("workers changed"))
                self._do(self.membership.resume(now), now)
            case Next.START:
                self._decide(Started(), now)

    def _change_workers(self, now: float) -> None:
        """Everybody commits and rests; no points are on their way any more."""
        state = self.state
        self.membership.begin_change()
        if state.verdict is not None:
            self._owed_verdict, state.verdict = state.verdict, None
        state.phase = "training"
        self.hidden_states.clear()
        if self.balance is not None:
            self.balance.waiting = None
            orders = self.balance.abandon("workers come or go")
            state.send_all([(worker, order) for worker, order in orders if worker in state.view.workers])
        self.orders.stop_all(now)
        self._step(now)

    def _step(self, now: float) -> None:
        self._do(self.membership.step(now), now)

    # -- balance -------------------------------------------------------------------------------------------

    def _rebalance(self, balance: BalanceControl, workers: tuple[int, ...], progress: Progress, now: float) -> None:
        """Between commit and the next order: windows change hands. New moves begin when everybody trains again, unless
        nobody is to train while points move."""
        state = self.state
        state.send_all(balance.settle(state.view, state.store, workers, now))
        estimate, slowest = state.trace[-1].estimate, progress.slowest_pass
        balance.note(state.view, now, progress.seconds, progress.iteration, estimate, slowest)
        if balance.mode == "sync":
            self._plan_moves(balance, now)
        else:
            state.out.append(SetTimer(now, Timer("balance")))

    def _plan_moves(self, balance: BalanceControl, now: float) -> None:
        state = self.state
        state.send_all(balance.plan(state.view, now))
        if balance.reason:
            state.reason = "; ".join(filter(None, (state.reason, f"balance: {balance.reason}")))

    def _on_move(
        self, balance: BalanceControl, worker: int, body: MoveReady | MoveRefused | WindowArrived | MoveSent, now: float
    ) -> None:
        state = self.state
        state.send_all(balance.answer(worker, body, now))
        if balance.waiting is not None:
            state.send_all(balance.settle(state.view, state.store, tuple(state.view.workers), now))
            self._after_waiting(balance, now)

    def _after_waiting(self, balance: BalanceControl, now: float) -> None:
        """Everybody waited for points to move; is that over?"""
        if balance.waiting is not None and not balance.waits():
            event, balance.waiting = balance.waiting, None
            self._proceed(event, now)

    # -- checkpoints and endings ---------------------------------------------------------------------------

    def snapshot(self, event: Updated, now: float) -> dict[str, Any]:
        """The coordinator's side of a checkpoint; `event` is what the model hears next."""
        state = self.state
        parts = {"job": state, "commits": self.commits, "store": state.store}
        objects = {
            "view": state.view, "policy": state.policy, "balance": self.balance, "termination": self.termination,
        }  # fmt: skip
        return snapshot.take(parts, objects, state.algorithm, event, now)

    def _on_checkpoint_event(self, event: Timer | Suspend, now: float) -> None:
        state, checkpoints = self.state, self.checkpoints
        if checkpoints is None or state.phase not in ("loading", "training") or state.verdict is not None:
            return
        checkpoints.heard(state, event, now)
        if checkpoints.gave_up or (checkpoints.suspending and state.phase == "loading"):
            self._finish()
        elif not self.membership.steady:
            checkpoints.forced = False  # everybody comes to rest anyway
        elif checkpoints.forced:
            self.orders.stop_all(now)

    def _end(self, verdict: Verdict, now: float) -> None:
        """Nobody trains any more; what is under way is committed first."""
        state = self.state
        if state.phase != "training":
            return
        if not self.membership.steady:
            self._owed_verdict = verdict
            return
        state.verdict = verdict
        if state.view.training():
            self.orders.stop_all(now)
        else:
            self._over(now)

    def _over(self, now: float) -> None:
        """Training is over; a last checkpoint where there are any."""
        self.state.ended = now
        if self.checkpoints is None or self.commits.last is None:
            self._collect_states(now)
            return
        self.state.phase = "checkpointing"
        self.checkpoints.begin(self.state, self.commits.last, now, self.snapshot)

    def _collect_states(self, now: float) -> None:
        if not self._collect:
            self._finish()
            return
        self.state.phase = "collecting"
        self.state.out.append(Milestone("collecting"))
        for worker in self.state.view.workers:
            self.liveness.expect(worker, now)
            self.state.send(worker, FetchStates())

    def _finish(self, error: FlegelError | None = None) -> None:
        self.state.phase = "over"
        self.state.out.append(Done(error))

    # -- deadlines -----------------------------------------------------------------------------------------

    def _check_deadlines(self, now: float) -> None:
        """Every wait has a deadline and names its peer."""
        state, start = self.state, self.state.timeouts.start
        self.liveness.look(now)
        for worker, why in self.liveness.silent(now):
            loading = state.phase == "loading"
            self._lost(worker, why, loading, now, silent=loading)
        for worker in self.membership.roster.late(now, start):
            self._lost(worker, f"did not start within {start:.0f} s", False, now)
        if self.balance is not None:
            state.send_all(self.balance.migrations.late(now))
            self._after_waiting(self.balance, now)
        if state.phase == "over":
            return
        late = self._overdue(now) or self.liveness.stuck(state.place, now)
        if late:
            state.out.append(EvictWorker(late[0], "does not progress"))  # the next job should not have to wait for it
            self._finish(ProtocolError(late[1]))
            return
        state.out.append(SetTimer(now + TICK, Timer("watch")))

    def _overdue(self, now: float) -> tuple[int, str] | None:
        """The first worker that has kept the job waiting for too long, and what it did not do."""
        phase, timeout = self.state.phase, self.state.timeouts.report
        for worker, asked in self.liveness.asked_at.items():
            waited = now - asked
            text = self.membership.overdue(worker, waited) or self.orders.overdue(worker, waited)
            if phase == "checkpointing" and self.checkpoints is not None:
                text = text or self.checkpoints.overdue(worker, timeout, now)
            if phase == "collecting" and worker not in self.hidden_states and waited > timeout:
                text = text or f"Worker {worker} did not send its state within {waited:.0f} s."
            if text:
                return worker, text
        return None


def failure(worker: int, body: WorkerFailed) -> FlegelError:
    """A worker's failure as the caller should see it."""
    if body.usage:
        return UsageError(body.error)
    place = f"worker {worker}, round {body.round}" if body.round >= 0 else f"worker {worker}"
    return AlgorithmError(f"{body.where} raised {body.error} ({place})", body.trace)
