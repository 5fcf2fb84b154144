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
    collection   hidden states at the end                               state_collection.py
    audit        whether the statistics are what the points say         ../audit/audit.py
    step back    to the best θ after divergence                         step_back.py
    crew         who trains, who rests                                  ../crew_control.py
    state        what all of them share                                 state.py

An update has two phases: the coordinator asks the parameter store for a fold, and continues when that is done, in the
same event or in a later one. Events that come in between are handled after it, in their order.
"""

from __future__ import annotations

from typing import Any

from flegel import messages
from flegel.algorithm import Algorithm
from flegel.core.precision import DOUBLE
from flegel.core.pytree import Array
from flegel.errors import FlegelError, ProtocolError
from flegel.job import Criteria
from flegel.machine.audit.audit import Audit, Finding
from flegel.machine.checkpoint import snapshot
from flegel.machine.coordinator import events
from flegel.machine.coordinator.balance_control import BalanceControl
from flegel.machine.coordinator.checkpoint_schedule import CheckpointSchedule
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.events import Command, Done, Event, FromWorker, Milestone, Note, SetTimer, Timer
from flegel.machine.coordinator.fold_queue import TICK, FoldQueue
from flegel.machine.coordinator.liveness import Liveness, OverdueCheck, failure
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.state import JobReader, JobState
from flegel.machine.coordinator.state_collection import StateCollection
from flegel.machine.coordinator.step_back import StepBack
from flegel.machine.crew_control import CrewControl
from flegel.messages import Answer, LoadShard, Report, WorkerBeat
from flegel.params.protocol import Fold, Folded, ParameterStore
from flegel.plan.termination import Termination, Verdict, unsound
from flegel.sync import policy as sync
from flegel.sync.policy import NOTHING, Policy, Reported, Updated


class Coordinator(JobReader):
    """Build it, call `start`, then feed it events until `Done` comes out."""

    def __init__(
        self, algorithm: Algorithm, policy: Policy, criteria: Criteria, store: ParameterStore,
        loads: dict[int, LoadShard], *, collect: bool = False, timeouts: events.Timeouts | None = None,
        debug: bool = False, balance: BalanceControl | None = None, audit: Audit | None = None,
        checkpoints: CheckpointSchedule | None = None, attribute: bool = False,
        parts: dict[int, tuple[Array, ...]] | None = None, scaling: tuple[Array, ...] = (), rows: int = 0,
        replace: bool = True, crew: CrewControl | None = None, rounding: float = DOUBLE,
    ) -> None:  # fmt: skip
        """`collect`: fetch the points' hidden states at the end. `debug`: check the conservation laws at each commit.
        `attribute`: the store attributes progress to single workers. `parts` to `replace` are those of `Membership`.
        `rounding`: of statistics (core/precision.py)."""
        criteria = criteria.resolved(algorithm.learning.tolerance)
        self.state = JobState(algorithm, policy, criteria, store, timeouts or events.Timeouts(), attribute, rounding)
        self.liveness = Liveness(self.state.timeouts)
        self.orders = WorkerOrders(self.state, self.liveness)
        self.commits = Commits(self.state, self.orders, debug)
        self.membership = Membership(
            self.state, self.orders, self.liveness, loads, parts=parts, scaling=scaling, rows=rows, replace=replace,
            first=crew.first if crew is not None else None,
        )  # fmt: skip
        self.balance, self.checkpoints, self.audit, self.crew = balance, checkpoints, audit, crew
        self.termination = Termination(criteria, algorithm.learning.maximize, algorithm.learning.slow_gains)
        self.notes: list[str] = []
        self.step_back = StepBack()
        self.collection = StateCollection(self.state, self.liveness, collect)
        self._owed_verdict: Verdict | None = None
        """The job was to end for this reason, as soon as all points count again."""
        self._resumed: tuple[Updated, float, bool] | None = None
        """Of a resumed job: what the model hears first, the time at which the job stood, is its balance new?"""
        self._folds = FoldQueue(self.state, self.liveness, self.commits.hold_again)

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
        if self._folds.pending is not None:
            self._while_folding(event, now)
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
        if worker in state.resting:  # said before it came to rest
            return
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
                    self._decide(sync.Woken(tag), now)
            case Timer("balance"):
                if self.balance is not None and steady:
                    self.balance.plan_moves(state, now)
            case Timer("watch"):
                self._check_deadlines(now)
            case Timer("checkpoint" | "force" | "leave") | events.Suspend():
                self._on_checkpoint_event(event, now)
            case Timer("limit"):
                self._end(Verdict(False, f"reached {state.criteria.max_seconds:g} s", "limit"), now)
            case events.EndJob(why) if state.verdict is None:
                self._end(Verdict(False, why, "stopped"), now)
            case Timer("hire"):
                self._do(self.membership.stop_waiting(now), now)
            case events.WorkerDied(worker, why, fault):
                self._lost(worker, why, fault, now)
            case events.WorkerJoined(worker):
                self.membership.joined(worker, now)
            case events.ScaleTo(workers):
                self._do(self.membership.scale(workers, now), now)
            case events.LeaveJob(worker):
                self._do(self.membership.leave((worker,), now), now)
            case events.FoldFinished():
                self._folds.repeated(event)

    # -- folds ---------------------------------------------------------------------------------------------

    def _while_folding(self, event: Event, now: float) -> None:
        """Events wait until the fold is done."""
        error = self._folds.hear(event, now)
        if error is not None:
            self._finish(error)
        while (deferred := self._folds.next_deferred()) is not None and self.state.phase != "over":
            self.state.totals.stale = True
            if type(deferred) is FromWorker:
                self._from_worker(deferred, now)
            else:
                self._route(deferred, now)

    def _update(self, workers: tuple[int, ...], now: float, last: bool = False) -> None:
        """A new θ from the reports of these workers, and on; or the `last` one, and the end."""

        def updated(request: Fold, folded: Folded, now: float) -> None:
            event = self._commit(request, workers, folded, now)
            if folded.lost:
                return self._recount(folded.lost, now)
            self._over(now) if last else self._judge(workers, event, now)

        self._folds.ask(self.commits.request(workers), updated, now)

    def _close_accounts(self, now: float) -> None:
        """Workers change: reports that count enter the statistics, and θ stays."""
        again = self.membership.subtract_lost()

        def closed(request: Fold, folded: Folded, now: float) -> None:
            self.commits.finish_accounts(request, folded)
            if folded.lost:
                return self._recount(folded.lost, now)
            self._do(self.membership.accounts_closed(again, now), now)

        self._folds.ask(self.commits.request_accounts(again), closed, now)

    def _commit(self, request: Fold, workers: tuple[int, ...], folded: Folded, now: float) -> Updated:
        moves = self.balance.migrations if self.balance is not None else None
        in_flight, moved = (moves.in_flight(), moves.bytes) if moves is not None else (0, 0)
        return self.commits.finish(request, workers, folded, in_flight, moved, now)

    def _judge(self, workers: tuple[int, ...], updated: Updated, now: float) -> None:
        """θ is new: has the job come to its end, and otherwise what comes next?"""
        state = self.state
        progress = self.commits.progress(now)
        check = False
        if self.termination.due(progress):
            check, progress = self.commits.ask_for_the_end(progress)
        state.verdict = self.termination.judge(progress, check)
        if self._owed_verdict is not None and progress.exact:
            state.verdict = self._owed_verdict
        self.step_back.note(state)
        if self.step_back.possible(state):
            return self._recount(self.step_back.take(state), now)
        if state.verdict is not None:
            return self._end(state.verdict, now)
        if self.crew is not None and (step := self.crew.at_barrier(state, self.membership, updated, now)):
            return self._do(step, now)
        if self.audit is not None:
            self.audit.at_barrier(state, now)
        if self.balance is not None and self.balance.after_commit(state, updated, workers, progress, now):
            return
        self._proceed(updated, now)

    # -- answers -------------------------------------------------------------------------------------------

    def _answer(self, worker: int, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        """Everything but reports and beats."""
        state = self.state
        match body:
            case messages.ShardLoaded() if state.phase == "loading":
                self.membership.has_loaded(worker, body)
                self._begin(now)
            case messages.ShardLoaded() if worker in self.membership.roster.hired:
                self._do(self.membership.welcome(worker, body, now), now)
            case messages.PointsListed() | messages.PointsGivenUp() | messages.PointsAssigned() if (
                worker in state.view.workers
            ):
                self.membership.answer(worker, body, arrays)
                self._step(now)
            case messages.MoveReady() | messages.MoveRefused() | messages.WindowArrived() | messages.MoveSent() if (
                self.balance is not None
            ):
                if state.phase == "training" and (moved := self.balance.on_answer(state, worker, body, now)):
                    self._proceed(moved, now)
            case messages.CheckpointPart() if self.checkpoints is not None:
                state.out.append(events.SaveCheckpointPart(worker, body, arrays))
                took = self.checkpoints.took(worker, body)
                if took and self.checkpoints.complete and state.phase == "checkpointing":
                    self._finish() if self.checkpoints.suspended else self._collect(now)
            case messages.PointsAudited() if self.audit is not None:
                if (finding := self.audit.took(state, worker, body, arrays, now)) is not None:
                    self._audited(self.audit, finding, now)
            case messages.States() if state.phase == "collecting":
                if self.collection.took(worker, arrays):
                    self._finish()
            case messages.WorkerFailed():
                self._finish(failure(worker, body))
            case _:
                state.out.append(Note(f"worker {worker} sent {type(body).__name__} while {state.phase}; ignored"))

    def _begin(self, now: float) -> None:
        """Training begins when the last worker is loaded."""
        if not self.membership.all_loaded():
            return
        state = self.state
        self.membership.begin()
        self.step_back.begin(state)
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
            self._decide(resumed or sync.Started(), now)
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
        if not membership.steady:
            if membership.changing:
                self._step(now)
            elif membership.catch_up(worker, reported.exhausted, now):
                self._decide(sync.Regrouped(), now)
                self._update(tuple(state.view.workers), now)
        elif state.verdict is None and not (self.checkpoints is not None and self.checkpoints.forced):
            self._decide(reported, now)
        elif state.verdict is None:
            state.policy.decide(reported, state.view, now)  # it hears everything, but a checkpoint comes first
            if not state.view.training():
                self._update(tuple(self.commits.held), now)
        elif not state.view.training():
            self._update(tuple(self.commits.held), now, last=True)

    # -- decisions -----------------------------------------------------------------------------------------

    def _decide(self, event: sync.Event, now: float) -> None:
        state, decision = self.state, self.state.policy.decide(event, self.state.view, now)
        if decision is NOTHING:
            return
        if decision.reason:
            state.reason = decision.reason
        for action in decision.actions:
            if state.phase != "training" or state.verdict is not None:
                return
            if self._folds.pending is not None:
                raise ProtocolError(
                    f"{state.policy.name} decided {type(action).__name__} after Update; Update is last."
                )
            match action:
                case sync.TrainWorkers():
                    self.orders.train(action, now)
                case sync.StopWorkers(workers=workers):
                    self.orders.stop(workers, now)
                case sync.Update(workers=workers):
                    self._update(workers, now)
                case sync.Wake(at=at, tag=tag):
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
        if not self.membership.knows(worker) or self._folds.defers(events.WorkerDied(worker, why, fault)):
            return
        if self.checkpoints is not None and worker not in {*self.membership.roster.hired, *self.state.resting}:
            self.checkpoints.lost()
        redone = self.commits.forget(worker)
        self.orders.forget(worker)
        self.collection.forget(worker)
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
                self._decide(sync.Started(), now)

    def _change_workers(self, now: float) -> None:
        """Everybody commits and rests; no points are on their way any more."""
        state = self.state
        self.membership.begin_change()
        if state.verdict is not None:
            self._owed_verdict, state.verdict = state.verdict, None
        state.phase = "training"
        self.collection.clear()
        if self.audit is not None:
            self.audit.forget()
        if self.balance is not None:
            self.balance.abandon(state, "workers come or go")
        self.orders.stop_all(now)
        self._step(now)

    def _step(self, now: float) -> None:
        self._do(self.membership.step(now), now)

    # -- checkpoints and endings ---------------------------------------------------------------------------

    def snapshot(self, event: Updated, now: float) -> dict[str, Any]:
        """The coordinator's side of a checkpoint; `event` is what the model hears next."""
        state = self.state
        parts: dict[str, snapshot.StatefulPart] = {"job": state, "commits": self.commits, "store": state.store}
        objects = {"view": state.view, "policy": state.policy, "balance": self.balance, "termination": self.termination}
        return snapshot.take(parts, objects, state.algorithm, event, now)

    def _on_checkpoint_event(self, event: Timer | events.Suspend, now: float) -> None:
        state, checkpoints = self.state, self.checkpoints
        if checkpoints is None or state.phase not in ("loading", "training") or state.verdict is not None:
            return
        if checkpoints.heard(state, event, now, steady=self.membership.steady):
            self._finish()
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
        self.orders.stop_all(now) if state.view.training() else self._over(now)

    def _over(self, now: float) -> None:
        """Training is over; the books are checked."""
        self.state.ended = now
        self.step_back.settle(self.state)
        if self.audit is not None and self.audit.begin_final(self.state, self.commits.final_parameter(), now):
            self.state.phase = "auditing"
            for worker in self.state.view.workers:
                self.liveness.expect(worker, now)
        else:
            self._store_last(now)

    def _audited(self, audit: Audit, finding: Finding, now: float) -> None:
        """An audit is over. Wrong books are made anew by a recount under the same θ, and training goes on."""
        state = self.state
        if audit.can_repair(finding) and state.phase in ("training", "auditing"):
            self._recount(f"counted all points again: {finding.problem}", now)
        elif finding.final:
            if finding.problem and state.verdict is not None:
                state.verdict = unsound(state.verdict, finding.problem)
            self._store_last(now)

    def _recount(self, why: str, now: float) -> None:
        """All points count as unvisited; one round under the present θ, and training goes on."""
        self.state.verdict = self.termination.reconsidered(self.state.verdict)
        self.membership.recount(why, now)
        self._change_workers(now)

    def _store_last(self, now: float) -> None:
        """A last checkpoint where there are any."""
        if self.checkpoints is not None and self.commits.last is not None:
            self.state.phase = "checkpointing"
            self.checkpoints.begin(self.state, self.commits.last, now, self.snapshot)
        else:
            self._collect(now)

    def _collect(self, now: float) -> None:
        self.collection.start(now) if self.collection.wanted else self._finish()

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
        if self.balance is not None and (moved := self.balance.check_deadlines(state, now)):
            self._proceed(moved, now)
        if state.phase == "over":
            return
        checks: list[OverdueCheck] = [self.membership.overdue, self.orders.overdue, self.collection.overdue]
        if self.audit is not None and state.phase == "auditing":
            checks.append(self.audit.overdue)
        if (last := self.checkpoints) is not None and state.phase == "checkpointing":
            checks.append(lambda worker, _: last.overdue(worker, state.timeouts.report, now))
        late = self.liveness.overdue(now, checks) or self.liveness.stuck(state.place, now)
        if late:  # the next job should not have to wait for it
            state.out.append(events.EvictWorker(late[0], "does not progress"))
            return self._finish(ProtocolError(late[1]))
        state.out.append(SetTimer(now + TICK, Timer("watch")))
