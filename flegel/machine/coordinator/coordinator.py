"""The coordinator of one job: routes events to its members and parts and does what the synchronization model decides.

Life cycle:   loading → training ⇄ (workers come or go) → (what parts do after training) → (collecting) → over
Events come from workers, timers, the parameter store and the supervisor; commands go to the runtime or to the
simulator. It never reads a clock, opens a socket or starts a thread; when to synchronize is the model's business. Pure.

What no job can do without, its members:

    orders       train and stop, and what was ordered last              orders.py
    commits      reports until they are folded, rows of the trace       commits.py
    membership   loading, workers lost, joining, leaving, resting       membership.py
    liveness     who is silent, who does not progress                   liveness.py
    collection   hidden states at the end                               state_collection.py
    step back    to the best θ after divergence                         step_back.py
    state        what all of them share                                 state.py

What a job can do without, such as audits, balance or checkpoints, are parts (part.py). The coordinator knows none of
them by name: it calls the hooks that they override.

An update has two phases: the coordinator asks the parameter store for a fold, and continues when that is done, in the
same event or in a later one. Events that come in between are handled after it, in their order.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TypeVar

from flegel import messages
from flegel.algorithm import Algorithm
from flegel.configuration.active import active
from flegel.core.precision import FLOAT64_RELATIVE_ERROR
from flegel.core.pytree import Array
from flegel.errors import FlegelError, ProtocolError
from flegel.job import Criteria
from flegel.machine.coordinator import events
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.events import Command, Done, Event, FromWorker, Milestone, Note, SetTimer, Timer
from flegel.machine.coordinator.fold_queue import FoldQueue
from flegel.machine.coordinator.liveness import Liveness, OverdueCheck, failure
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.part import ENDING, CoordinatorPart, EndingStep, Handler, overriding
from flegel.machine.coordinator.state import JobReader, JobState
from flegel.machine.coordinator.state_collection import StateCollection
from flegel.machine.coordinator.step_back import StepBack
from flegel.messages import Answer, LoadShard, Report, WorkerBeat
from flegel.params.protocol import Fold, Folded, ParameterStore
from flegel.plan.termination import Termination, Verdict
from flegel.sync import policy as sync
from flegel.sync.policy import NOTHING, Policy, Reported, Updated

PartType = TypeVar("PartType", bound=CoordinatorPart)


class Coordinator(JobReader):
    """Build it, call `start`, then feed it events until `Done` comes out."""

    handle: Handler
    """What follows from one event at this time."""

    def __init__(
        self,
        algorithm: Algorithm,
        policy: Policy,
        criteria: Criteria,
        store: ParameterStore,
        loads: dict[int, LoadShard],
        *,
        parts: Sequence[CoordinatorPart] = (),
        collect: bool = False,
        timeouts: events.Timeouts | None = None,
        debug: bool = False,
        attribute: bool = False,
        shards: dict[int, tuple[Array, ...]] | None = None,
        scaling: tuple[Array, ...] = (),
        rows: int = 0,
        keys: Array | None = None,
        replace_lost_workers: bool = True,
        rounding: float = FLOAT64_RELATIVE_ERROR,
        devices: tuple[str, ...] = (),
    ) -> None:
        """`parts`: in the order in which they are asked. `collect`: fetch the points' hidden states at the end.
        `debug`: check the conservation laws at each commit. `attribute`: the store attributes progress to single
        workers. `shards`, of a resumed job: what follows each worker's load. `scaling`: shift and factor of each
        column. `rows`: points of the whole data; 0 is the sum of what workers load. `keys`: of each of them,
        where those of one key stay together. `replace_lost_workers`: start another process where a worker is lost;
        otherwise the others take its points over. `rounding`: of statistics (core/precision.py). `devices`: what
        workers that join compute on, in turn; none: the processor."""
        criteria = criteria.resolved(algorithm.learning.tolerance)
        self.state = JobState(algorithm, policy, criteria, store, timeouts or events.Timeouts(), attribute, rounding)
        self.liveness = Liveness(self.state.timeouts)
        self.orders = WorkerOrders(self.state, self.liveness)
        self.commits = Commits(self.state, self.orders, debug)
        self.membership = Membership(
            self.state,
            self.orders,
            self.liveness,
            loads,
            shards=shards,
            scaling=scaling,
            rows=rows,
            keys=keys,
            replace_lost_workers=replace_lost_workers,
            devices=devices,
        )
        self.termination = Termination(criteria, algorithm.learning.maximize, algorithm.learning.slow_gains)
        self.notes: list[str] = []
        self.step_back = StepBack()
        self.collection = StateCollection(self.state, self.liveness, collect)
        self._owed_verdict: Verdict | None = None
        """The job was to end for this reason, as soon as all points count again."""
        self._resumed_at: tuple[Updated, float, bool] | None = None
        """Of a resumed job: what the model hears first, the time at which the job stood, do parts begin anew?"""
        self._folds = FoldQueue(self.state, self.liveness, self.commits.hold_again)
        self.parts = tuple(parts)
        self._attach_parts()

    def _attach_parts(self) -> None:
        """Which part is called when: one list of bound methods for each hook, made once."""
        parts = self.parts
        for part in parts:
            part.attach(self)
        self._ready_hooks = overriding(parts, "ready")
        self._begin_hooks, self._begun_hooks = overriding(parts, "begin"), overriding(parts, "begun")
        self._busy_hooks, self._before_commit_hooks = overriding(parts, "busy"), overriding(parts, "before_commit")
        self._at_barrier_hooks, self._before_model_hooks = (
            overriding(parts, "at_barrier"),
            overriding(parts, "before_model"),
        )
        self._lost_hooks, self._end_wait_hooks = overriding(parts, "lost"), overriding(parts, "end_wait")
        self._workers_change_hooks = overriding(parts, "workers_change")
        self._workers_changed_hooks = overriding(parts, "workers_changed")
        self._deadline_checks, self._overdue = overriding(parts, "check_deadlines"), overriding(parts, "overdue")
        self._answers = {kind: part.answered for part in parts for kind in part.answers}
        self._timers = {name: part.happened for part in parts for name in part.timers}
        self._part_events = {kind: part.happened for part in parts for kind in part.events}
        own: dict[str, EndingStep] = {"settle": self._settle, "collect": self._collect}
        steps = [own, *(part.endings() for part in parts)]
        self._ending = tuple(step[name] for name in ENDING for step in steps if name in step)
        self._ended_steps = 0
        """Steps of the ending that were begun since training was over."""
        self.handle = self._handle
        for part in parts:
            self.handle = part.around(self.handle)

    def part(self, kind: type[PartType]) -> PartType | None:
        """The part of this class, where the job has it."""
        return next((part for part in self.parts if isinstance(part, kind)), None)

    @property
    def has_deadlines(self) -> bool:
        """Some part gives up what is late."""
        return bool(self._deadline_checks)

    @property
    def steady(self) -> bool:
        """The job trains, is not about to end, and its workers are not about to change."""
        return self.state.phase == "training" and self.state.verdict is None and self.membership.steady

    # -- entry points --------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        self.state.out = []
        self.membership.start(now)
        self.state.out.append(SetTimer(now + active().liveness.silence_check_seconds, Timer("watch")))
        for start in overriding(self.parts, "start"):
            start(now)
        return self.state.out

    def _handle(self, event: Event, now: float) -> list[Command]:
        """What follows from one event, if no part stands in between."""
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
        """No event is waiting: time for postponed work."""
        self.state.store.use_spare_time()

    def resume_with(self, event: Updated, now: float, fresh: bool) -> None:
        """Continue where the job stood: once all are loaded, the model hears this. `fresh`: parts begin anew."""
        self._resumed_at = event, now, fresh

    def _from_worker(self, event: FromWorker, now: float) -> None:
        """A message of a worker: a sign of life, and a report or an answer to an order. Workers that rest are not
        heard: they sent it before."""
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
        """Handle every event that is no message of a worker: timers, losses, joins, requests and answers of the
        store."""
        state = self.state
        match event:
            case Timer("policy", tag):
                if self.steady:
                    self.decide(sync.Woken(tag), now)
            case Timer("watch"):
                self._check_deadlines(now)
            case Timer("limit"):
                self.end(
                    Verdict(converged=False, reason=f"reached {state.criteria.max_seconds:g} s", outcome="limit"), now
                )
            case Timer("hire"):
                self.carry_out(self.membership.stop_waiting(now), now)
            case Timer(name) if name in self._timers:
                self._timers[name](event, now)
            case events.EndJob(why):
                stopped = Verdict(converged=False, reason=why, outcome="stopped")
                if not self._ends_wait(stopped, now) and state.verdict is None:
                    self.end(stopped, now)
            case events.WorkerDied(worker, why, fault):
                self._lost(worker, why, fault, now)
            case events.WorkerJoined(worker):
                self.membership.joined(worker, now)
            case events.ScaleTo(workers):
                self.carry_out(self.membership.scale(workers, now), now)
            case events.LeaveJob(worker):
                self.carry_out(self.membership.leave((worker,), now), now)
            case events.FoldFinished():
                self._folds.repeated(event)
            case events.PartEvent() if type(event) in self._part_events:
                self._part_events[type(event)](event, now)

    # -- folds ---------------------------------------------------------------------------------------------

    def _while_folding(self, event: Event, now: float) -> None:
        """Events wait until the fold is done."""
        error = self._folds.hear(event, now)
        if error is not None:
            self.finish(error)
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
                return self.recount(folded.lost, now)
            self.over(now) if last else self._judge(workers, event, now)

        self._folds.ask(self.commits.request(workers), updated, now)

    def _fold_without_update(self, now: float) -> None:
        """Workers change: reports that count enter the statistics, and θ stays."""
        again = self.membership.subtract_lost()

        def closed(request: Fold, folded: Folded, now: float) -> None:
            self.commits.finish_accounts(request, folded)
            if folded.lost:
                return self.recount(folded.lost, now)
            self.carry_out(self.membership.accounts_closed(again, now), now)

        self._folds.ask(self.commits.request_accounts(again), closed, now)

    def _commit(self, request: Fold, workers: tuple[int, ...], folded: Folded, now: float) -> Updated:
        for note in self._before_commit_hooks:
            note()
        return self.commits.finish(request, workers, folded, now)

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
            return self.recount(self.step_back.take(state), now)
        if state.verdict is not None:
            return self.end(state.verdict, now)
        for asked in self._at_barrier_hooks:
            if asked(workers, updated, progress, now):
                return
        self.proceed(updated, now)

    # -- answers -------------------------------------------------------------------------------------------

    def _answer(self, worker: int, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        """Handle answers of workers, all but reports and beats."""
        state = self.state
        match body:
            case messages.ShardLoaded() if state.phase == "loading":
                self.membership.has_loaded(worker, body)
                self.begin(now)
            case messages.ShardLoaded() if worker in self.membership.roster.hired:
                self.carry_out(self.membership.welcome(worker, body, now), now)
            case messages.PointsListed() | messages.PointsGivenUp() | messages.PointsAssigned() if (
                worker in state.view.workers
            ):
                self.membership.answer(worker, body, arrays)
                self._step(now)
            case messages.States() if state.phase == "collecting":
                if self.collection.took(worker, arrays):
                    self.continue_ending(now)
            case messages.WorkerFailed():
                self.finish(failure(worker, body))
            case _ if type(body) in self._answers:
                self._answers[type(body)](worker, body, arrays, now)
            case _:
                state.out.append(Note(f"worker {worker} sent {type(body).__name__} while {state.phase}; ignored"))

    def begin(self, now: float) -> None:
        """Training begins when the last worker is loaded, and every part is ready."""
        if not self.membership.all_loaded() or not all(ready() for ready in self._ready_hooks):
            return
        state = self.state
        self.membership.begin()
        needed = any(part.needs_every_report for part in self.parts)
        state.view.single_reports = state.store.single_reports and not needed
        self.step_back.begin(state)
        state.phase = "training"
        resumed, stood_at, fresh = self._resumed_at or (None, 0.0, True)
        state.began = now if resumed is None else state.began + now - stood_at  # loading is no training
        state.ended = self.commits.updated_at = state.ready_at = now
        if state.criteria.max_seconds:
            state.out.append(SetTimer(state.began + state.criteria.max_seconds, Timer("limit")))
        for begin in self._begin_hooks:
            begin(now, fresh)
        if resumed is not None and state.verdict is None and state.trace:
            state.totals.count(())
            # criteria may be others by now
            state.verdict = self.termination.judge(self.commits.progress(now), user_says_stop=False)
        state.out.append(Milestone("training"))
        if self.membership.redistribution.orphans:
            self._change_workers(now)
        elif state.verdict is not None:
            self.over(now)
        else:
            self.decide(resumed or sync.Started(), now)
        if self.membership.wanted:
            self.carry_out(self.membership.scale(self.membership.wanted, now), now)
        for begun in self._begun_hooks:
            begun(now)

    def _on_report(self, worker: int, body: Report, arrays: tuple[Array, ...], now: float) -> None:
        """Hold the change, then decide: by the synchronization model while membership is steady, else by what
        membership waits for."""
        state, membership = self.state, self.membership
        if state.view.workers[worker].phase != "training" or body.round != self.orders.round_of[worker]:
            state.out.append(Note(f"worker {worker} reported round {body.round} again; ignored"))
            return
        seen = self.commits.hold(worker, body, arrays, now)
        moving = False
        for busy in self._busy_hooks:
            moving = moving or worker in busy()
        reported = Reported(worker, body.exhausted and seen.points > 0, moving)
        if not membership.steady:
            if membership.changing:
                self._step(now)
            elif membership.catch_up(worker, reported.exhausted, now):
                self.decide(sync.Regrouped(), now)
                self._update(tuple(state.view.workers), now)
        elif state.verdict is None and not state.model_waits:
            self.decide(reported, now)
        elif state.verdict is None:
            state.policy.decide(reported, state.view, now)  # it hears everything, but something else comes first
            if not state.view.training():
                self._update(tuple(self.commits.held), now)
        elif not state.view.training():
            self._update(tuple(self.commits.held), now, last=True)

    # -- decisions -----------------------------------------------------------------------------------------

    def decide(self, event: sync.Event, now: float) -> None:
        """Ask the synchronization model about an event and carry out its actions, until one of them ends training."""
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

    def proceed(self, event: Updated, now: float) -> None:
        """An update is complete: parts that store or send something do so, then the model is asked."""
        for asked in self._before_model_hooks:
            if asked(event, now):
                return
        self.decide(event, now)

    # -- workers that come and go --------------------------------------------------------------------------

    def _lost(self, worker: int, why: str, fault: bool, now: float, silent: bool = False) -> None:
        """Every part forgets the worker; what it reported and was not handed to the store does not count. `fault`:
        as in `WorkerDied`; also of one that falls `silent` while it loads, where its own code may be the reason."""
        if not self.membership.knows(worker) or self._folds.defers(events.WorkerDied(worker, why, fault)):
            return
        for lost in self._lost_hooks:
            lost(worker)
        redone = self.commits.forget(worker)
        self.orders.forget(worker)
        self.collection.forget(worker)
        outcome = self.membership.lose(worker, why, fault, silent, redone, now)
        if isinstance(outcome, FlegelError):
            self.finish(outcome)
        elif outcome is not Next.NOTHING:  # a newcomer that has no points yet delays no round
            self.state.out.append(Milestone("worker lost"))
            self.carry_out(outcome, now)

    def carry_out(self, step: Next, now: float) -> None:
        """Do what membership wants done next.

        A change of workers takes these steps in this order: `BRING_TO_REST` (all workers commit and stop),
        `FOLD_WITHOUT_UPDATE` (their reports enter the statistics, θ stays), then points are given to their new owners,
        `TELL_CHANGED` (parts hear that the workers are others now), and `START_MODEL` where no round was trained yet.
        """
        match step:
            case Next.TRY_TO_BEGIN:
                self.begin(now)
            case Next.BRING_TO_REST:
                self._change_workers(now)
            case Next.FOLD_WITHOUT_UPDATE:
                self._fold_without_update(now)
            case Next.TELL_CHANGED:
                self.commits.restart(now)
                for changed in self._workers_changed_hooks:
                    changed(now)
                self.state.out.append(Milestone("workers changed"))
                self.carry_out(self.membership.resume(now), now)
            case Next.START_MODEL:
                self.decide(sync.Started(), now)

    def _change_workers(self, now: float) -> None:
        """Begin a change of workers: all of them commit and rest, and no points are on their way any more."""
        state = self.state
        self.membership.begin_change()
        if state.verdict is not None:
            self._owed_verdict, state.verdict = state.verdict, None
        state.phase = "training"
        self.collection.clear()
        for change in self._workers_change_hooks:
            change(now)
        self.orders.stop_all(now)
        self._step(now)

    def _step(self, now: float) -> None:
        self.carry_out(self.membership.step(now), now)

    # -- the end -------------------------------------------------------------------------------------------

    def end(self, verdict: Verdict, now: float) -> None:
        """Training has ended on all workers; reports under way are committed first."""
        state = self.state
        if self._ends_wait(verdict, now) or state.phase != "training":
            return
        if not self.membership.steady:
            self._owed_verdict = verdict
            return
        state.verdict = verdict
        self.orders.stop_all(now) if state.view.training() else self.over(now)

    def _ends_wait(self, verdict: Verdict, now: float) -> bool:
        """The job has trained and waits for a part; that wait is over."""
        return any(ends(verdict, now) for ends in self._end_wait_hooks)

    def over(self, now: float) -> None:
        """Training is over; what remains to be done is `ENDING`."""
        self.state.ended = now
        self._ended_steps = 0
        self.continue_ending(now)

    def continue_ending(self, now: float) -> None:
        """The steps of the ending that are left, up to one that waits; after the last one the job is over."""
        while self._ended_steps < len(self._ending):
            step = self._ending[self._ended_steps]
            self._ended_steps += 1
            if step(now):
                return
        self.finish()

    def _settle(self, now: float) -> bool:
        """The best θ is the result of a job that diverged."""
        self.step_back.settle(self.state)
        return False

    def _collect(self, now: float) -> bool:
        """The points' hidden states are fetched, where they are wanted."""
        if self.collection.wanted:
            self.collection.start(now)
        return self.collection.wanted

    def recount(self, why: str, now: float) -> None:
        """All points count as unvisited; one round under the present θ, and training goes on."""
        self.state.verdict = self.termination.reconsidered(self.state.verdict)
        self.membership.recount(why, now)
        self._change_workers(now)

    def finish(self, error: FlegelError | None = None) -> None:
        """The job is over, or has failed with this error."""
        self.state.phase = "over"
        self.state.out.append(Done(error))

    # -- deadlines -----------------------------------------------------------------------------------------

    def _check_deadlines(self, now: float) -> None:
        """Every wait has a deadline and names its peer. Once in `liveness.silence_check_seconds`:

        - silent (no sign of life) or late (hired, and not here): the worker is lost, and the job goes on;
        - overdue (owes an answer) or stuck (beats, and does not leave a hook): the job ends with an error, because
          another worker in its place would probably do the same.
        """
        state, start = self.state, self.state.timeouts.start
        self.liveness.look(now)
        for worker, why in self.liveness.silent(now):
            loading = state.phase == "loading"
            self._lost(worker, why, fault=loading, now=now, silent=loading)
        for worker in self.membership.roster.late(now, start):
            self._lost(worker, f"did not start within {start:.0f} s", fault=False, now=now)
        for check in self._deadline_checks:
            check(now)
        if state.phase == "over":
            return
        checks: list[OverdueCheck] = [self.membership.overdue, self.orders.overdue, self.collection.overdue]
        checks += [partial(overdue, now=now) for overdue in self._overdue]
        found = self.liveness.overdue(now, checks) or self.liveness.stuck(state.place, now)
        if found:
            worker, why = found
            state.out.append(events.EvictWorker(worker, "does not progress"))  # so that the next job gets another one
            return self.finish(ProtocolError(why))
        state.out.append(SetTimer(now + active().liveness.silence_check_seconds, Timer("watch")))
