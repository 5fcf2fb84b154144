"""The coordinator of one job: owns the barrier, the statistics and θ. Decides nothing about time itself.

Life cycle:   loading → training ⇄ (the crew changes) → (keeping) → (collecting) → over
Events come from workers, timers and the supervisor; commands go to the runtime or to the simulator. It never
reads a clock, opens a socket or starts a thread; when to synchronize is the policy's business.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from flegel import tree
from flegel.algorithm import Algorithm
from flegel.errors import AlgorithmError, FlegelError, ProtocolError, UsageError
from flegel.machine.balancing import Balancing
from flegel.machine.crew import Crew
from flegel.machine.elastic import Elastic
from flegel.machine.events import Command as Command
from flegel.machine.events import Died as Died
from flegel.machine.events import Done as Done
from flegel.machine.events import Event as Happening
from flegel.machine.events import Expel as Expel
from flegel.machine.events import FromWorker as FromWorker
from flegel.machine.events import Hire as Hire
from flegel.machine.events import Joined as Joined
from flegel.machine.events import Leave as Leave
from flegel.machine.events import Note as Note
from flegel.machine.events import Patience as Patience
from flegel.machine.events import Row as Row
from flegel.machine.events import SavePart as SavePart
from flegel.machine.events import Scale as Scale
from flegel.machine.events import Send as Send
from flegel.machine.events import SetTimer as SetTimer
from flegel.machine.events import Suspend as Suspend
from flegel.machine.events import Timer as Timer
from flegel.machine.folding import SPANS_UP_TO, Folding
from flegel.machine.keeping import Keeping
from flegel.machine.ledger import Ledger, merge
from flegel.machine.suspended import Suspended
from flegel.machine.tally import Tally
from flegel.machine.watch import Watch
from flegel.messages import (
    Adopted,
    Answer,
    Arrived,
    Beat,
    Failed,
    Fetch,
    Held,
    Kept,
    Load,
    Loaded,
    Order,
    Parted,
    Ready,
    Refused,
    Report,
    Sent,
    State,
    Stop,
    Train,
)
from flegel.plan.termination import Progress, Termination, Verdict
from flegel.spec import Criteria
from flegel.sync import base as sync
from flegel.sync.base import (
    NOTHING,
    Decision,
    Policy,
    Reported,
    Started,
    StopWorkers,
    TrainWorkers,
    Update,
    Updated,
    View,
    Wake,
    Woken,
    WorkerView,
)
from flegel.tree import Array, Tree

WATCH = 1.0  # seconds between two looks at who is silent


@dataclass
class Coordinator(Folding, Elastic, Suspended):
    """Build it, call `start`, then feed it events until `Done` comes out."""

    algorithm: Algorithm
    policy: Policy
    criteria: Criteria
    parameter: Tree
    ledger: Ledger
    loads: dict[int, Load]
    collect: bool = False
    scaling: tuple[Array, ...] = ()
    """Shift and factor of each column, for jobs whose rows are scaled."""
    patience: Patience = field(default_factory=Patience)
    debug: bool = False
    balancing: Balancing | None = None
    keeping: Keeping | None = None
    parts: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    """Of a resumed job: what travels behind each worker's `Load`."""
    attribute: bool = False
    """Keep each worker's share of the progress (costs an evaluation of the objective per report)."""
    rows: int = 0
    """Points of the whole data; 0: the sum of what workers load."""
    replace: bool = True
    """Start another process where a worker is lost; otherwise the others take its points over."""

    def __post_init__(self) -> None:
        self.phase = "loading"
        self.view = View()
        self._tally = Tally(self.view)
        self.iteration = 0
        self.objective: float | None = None
        self.verdict: Verdict | None = None
        self.trace: list[Row] = []
        self.states: dict[int, tuple[Array, Array]] = {}
        self.notes: list[str] = []
        self.loaded: dict[int, Loaded] = {}
        self.began = self.ended = self.ready_at = 0.0
        self.termination = Termination(self.criteria, self.algorithm.maximize)
        self._held: dict[int, Tree] = {}
        self.staleness: dict[int, int] = {}
        """How often a report was made under a θ so many updates old."""
        self._order: dict[int, int] = {}
        self._ordered_at: dict[int, float] = {}
        self._spans: dict[int, tuple[int, float, float, int, float, float, float]] = {}
        self._estimate: float | None = None
        self._gain: float | None = None
        self._said: tuple[int, Array | None] = (0, None)
        self._diverged = ""
        self._updated_at = 0.0
        self.crew = Crew(self.rows)
        self.watch = Watch(self.patience)
        self._former: dict[int, WorkerView] = {}
        self._catching: set[int] | None = None
        """In the round after a change of the crew: who has points to visit anew."""
        self._lingering: set[int] = set()
        """Workers that go on training after they have reported."""
        self._wanted = 0
        """Workers that were asked for before training began."""
        self._owed_verdict: Verdict | None = None
        """The job was to end for this reason, as soon as all points count again."""
        self._reason = ""
        self._waiting: Updated | None = None
        self._resumed: Updated | None = None
        self._last: Updated | None = None
        self._fresh_balance, self._stood_at = True, 0.0
        self._out: list[Command] = []

    @property
    def points(self) -> int:
        return sum(w.points for w in self.view.workers.values())

    @property
    def seconds(self) -> float:
        return self.ended - self.began

    # -- entry points --------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Command]:
        self._out = []
        arrays = (*tree.flatten(self.parameter), *tree.flatten(self.ledger.total), *self.scaling)
        for worker, load in self.loads.items():
            self._out.append(Send(worker, load, arrays + self.parts.get(worker, ())))
            self.watch.expect(worker, now)
        self._out.append(SetTimer(now + WATCH, Timer("watch")))
        return self._out

    def handle(self, event: Happening, now: float) -> list[Command]:
        """What follows from one event."""
        self._out = []
        if self.phase == "over":
            return self._out
        if type(event) is FromWorker:
            worker, body = event.worker, event.body
            self.watch.hear(worker, body, now)
            if type(body) is Report and self.phase == "training" and worker in self.view.workers:
                self._on_report(worker, body, event.arrays, now)
            elif type(body) is not Beat:
                self._tally.stale = True
                self._answer(worker, body, event.arrays, now)
        else:
            self._tally.stale = True
            self._happen(event, now)
        return self._out

    def rest(self) -> None:
        """Time for what nobody waits for."""
        self.ledger.post()

    def _happen(self, event: Happening, now: float) -> None:
        match event:
            case Timer("policy", tag):
                if self.phase == "training" and self.verdict is None and self._steady():
                    self._decide(Woken(tag), now)
            case Timer("balance"):
                if self.balancing is not None and self.phase == "training" and self.verdict is None and self._steady():
                    self._plan_moves(self.balancing, now)
            case Timer("watch"):
                self._watch(now)
            case Timer("checkpoint" | "force" | "leave") | Suspend():
                self._keep_event(event, now)
            case Timer("limit"):
                limit = self.criteria.max_seconds
                self._end(Verdict(False, f"reached {limit:g} s"), now)
            case _:
                self._crew_event(event, now)

    # -- answers -------------------------------------------------------------------------------------------

    def _answer(self, worker: int, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        """Everything but reports and beats."""
        match body:
            case Loaded() if self.phase == "loading":
                self._on_loaded(worker, body, now)
            case Loaded() if worker in self.crew.hired:
                self._welcome(worker, body, now)
            case Held() | Parted() | Adopted() if worker in self.view.workers:
                self._out += self.crew.answer(worker, body, arrays, self.view, self.ledger)
                self._step(now)
            case Ready() | Refused() | Arrived() | Sent() if self.balancing is not None:
                if self.phase == "training":
                    self._on_move(worker, body, now)
            case Kept() if self.keeping is not None:
                self._out.append(SavePart(worker, body, arrays))
                if self.keeping.took(worker, body) and self.keeping.complete and self.phase == "keeping":
                    self._kept(self.keeping, now)
            case State() if self.phase == "collecting":
                self.states[worker] = (arrays[0], arrays[1])
                if len(self.states) == len(self.view.workers):
                    self._finish()
            case Failed():
                self._fail(failure(worker, body))
            case _:
                self._out.append(Note(f"worker {worker} sent {type(body).__name__} while {self.phase}; ignored"))

    def _on_loaded(self, worker: int, body: Loaded, now: float) -> None:
        self.loaded[worker] = body
        self.crew.unhire(worker)
        self._begin(now)

    def _begin(self, now: float) -> None:
        """Training begins when the last of the crew is loaded."""
        if len(self.loaded) < len(self.loads):
            return
        for each in sorted(self.loaded):
            points = self.loaded[each].points
            if each not in self.view.workers:
                self.view.workers[each] = WorkerView(each, points, unseen=points)
        self.crew.rows = self.rows = self.rows or self.points
        size = max(sum(a.size for a in tree.flatten(self.parameter)), 1)
        columns = max(each.columns for each in self.loaded.values())
        self.view.evidence = self.points * columns / size
        self.phase = "training"
        self.began = now if self._resumed is None else self.began + now - self._stood_at  # loading is no training
        self.ended = self._updated_at = self.ready_at = now
        if self.criteria.max_seconds:
            self._out.append(SetTimer(self.began + self.criteria.max_seconds, Timer("limit")))
        if self.balancing is not None:
            if self._fresh_balance:
                self.balancing.start(self.view, now)
            else:
                self.balancing.go_on(now)
        if self.keeping is not None:
            self._out.append(SetTimer(now + self.keeping.every, Timer("checkpoint")))
        if self._resumed is not None and self.verdict is None and self.trace:
            self._tally.count(())
            self.verdict = self.termination.judge(self._progress(now), False)  # criteria may be others by now
        if self.crew.orphans:
            self._change_crew(now)
        elif self.verdict is not None:
            self._over(now)
        else:
            self._decide(self._resumed or Started(), now)
        if self._wanted:
            self._scale(self._wanted, now)

    def _on_report(self, worker: int, body: Report, arrays: tuple[Array, ...], now: float) -> None:
        seen = self.view.workers[worker]
        if seen.phase != "training" or body.round != self._order[worker]:
            self._out.append(Note(f"worker {worker} reported round {body.round} again; ignored"))
            return
        change = self.ledger.bundle(arrays)
        if worker in self._held:  # it was asked for the rest, for the crew changes
            change = merge(self.algorithm, tree.copy(self._held[worker]), change)
        self._held[worker] = change
        seen.hear(body.visits, body.compute, body.respond, body.wait)
        seen.unseen, seen.halted, seen.exhausted = body.unseen, body.halted, body.exhausted
        if len(self.view.workers) <= SPANS_UP_TO:
            sent, here = self._ordered_at[worker] - self.began, now - self.began
            self._spans[worker] = (worker, sent, here, body.visits, body.compute, body.respond, body.wait)
        moving = self.balancing is not None and worker in self.balancing.moves.busy()
        reported = Reported(worker, body.exhausted and seen.points > 0, moving)
        if self.crew.phase:
            self._step(now)
        elif self._catching is not None:
            self._catch_up(worker, reported.exhausted, now)
        elif self.verdict is None and not (self.keeping is not None and self.keeping.forced):
            self._decide(reported, now)
        elif self.verdict is None:
            self.policy.decide(reported, self.view, now)  # it hears everything, but a checkpoint comes first
            if not self.view.training():
                self._update(tuple(self._held), now)
        elif not self.view.training():
            workers, seconds = tuple(self._held), now - self._updated_at
            visits, cost = self._fold(workers, now)
            self.view.round += 1
            self._last = self._updated(workers, visits, cost, seconds)
            self._over(now)

    # -- decisions -----------------------------------------------------------------------------------------

    def _decide(self, event: sync.Event, now: float) -> None:
        decision: Decision = self.policy.decide(event, self.view, now)
        if decision is NOTHING:
            return
        if decision.reason:
            self._reason = decision.reason
        for action in decision.actions:
            if self.phase != "training" or self.verdict is not None:
                return
            match action:
                case TrainWorkers():
                    self._train(action, now)
                case StopWorkers(workers=workers):
                    self._stop(workers, now)
                case Update(workers=workers):
                    self._update(workers, now)
                case Wake(at=at, tag=tag):
                    self._out.append(SetTimer(at, Timer("policy", tag)))

    def _train(self, action: TrainWorkers, now: float) -> None:
        arrays = tuple(tree.flatten(self.parameter))
        round_, points, seconds, linger = self.view.round, action.points, action.seconds, action.linger
        for worker in action.workers:
            seen = self.view.workers[worker]
            seen.phase, seen.stopping = "training", False
            visits = seen.points if points is None else points[worker]
            body = Train(round_, visits, seconds.get(worker) if seconds else None, linger)
            self._out.append(Send(worker, body, arrays))
        self._order.update(dict.fromkeys(action.workers, round_))
        self._ordered_at.update(dict.fromkeys(action.workers, now))
        (self._lingering.update if linger else self._lingering.difference_update)(action.workers)
        self.watch.expect_all(action.workers, now)

    def _stop(self, workers: tuple[int, ...], now: float) -> None:
        for worker in workers:
            self.view.workers[worker].stopping = True
            self.watch.asked_at[worker] = now
            self._out.append(Send(worker, Stop(self._order[worker])))

    def _update(self, workers: tuple[int, ...], now: float) -> None:
        seconds = now - self._updated_at
        visits, cost = self._fold(workers, now)
        self.view.round += 1
        self._last = self._updated(workers, visits, cost, seconds)
        progress = self._progress(now)
        check = False
        if self.termination.due(progress):
            check = bool(self._hook("terminationCheck", self.ledger.total, self.iteration))
            progress = replace(progress, optimality=self._hook("optimality", self.ledger.total, self.parameter))
        self.verdict = self.termination.judge(progress, check)
        if self._owed_verdict is not None and progress.exact:
            self.verdict = self._owed_verdict
        if self.verdict is not None:
            self._end(self.verdict, now)
            return
        if self.balancing is not None:
            self._rebalance(self.balancing, workers, progress, now)
            if self.balancing.waits():
                self._waiting = self._last
                return
        self._proceed(self._last, now)

    def _updated(self, workers: tuple[int, ...], visits: int, cost: float, seconds: float) -> Updated:
        """What the model hears of a commit."""
        exact, estimate = self._tally.unseen == 0, self.trace[-1].estimate
        return Updated(self.view.round, workers, estimate, exact, visits, cost, self._gain, seconds, self._worth())

    # -- balance -------------------------------------------------------------------------------------------

    def _rebalance(self, balancing: Balancing, workers: tuple[int, ...], progress: Progress, now: float) -> None:
        """Between commit and the next order: windows change hands. New moves begin when everybody trains again, unless
        nobody is to train while points move."""
        self._send_all(balancing.settle(self.view, self.ledger, workers, now))
        estimate, slowest = self.trace[-1].estimate, progress.slowest_pass
        balancing.note(self.view, now, progress.seconds, progress.iteration, estimate, slowest)
        if balancing.mode == "sync":
            self._plan_moves(balancing, now)
        else:
            self._out.append(SetTimer(now, Timer("balance")))

    def _plan_moves(self, balancing: Balancing, now: float) -> None:
        self._send_all(balancing.plan(self.view, now))
        if balancing.reason:
            self._reason = "; ".join(filter(None, (self._reason, f"balance: {balancing.reason}")))

    def _on_move(self, worker: int, body: Ready | Refused | Arrived | Sent, now: float) -> None:
        balancing = self.balancing
        assert balancing is not None
        self._send_all(balancing.answer(worker, body, now))
        if self._waiting is not None:
            self._send_all(balancing.settle(self.view, self.ledger, tuple(self.view.workers), now))
            self._go_on(balancing, now)

    def _go_on(self, balancing: Balancing, now: float) -> None:
        """Everybody waited for points to move; is that over?"""
        if self._waiting is not None and not balancing.waits():
            event, self._waiting = self._waiting, None
            self._proceed(event, now)

    def _send_all(self, orders: list[tuple[int, Order]]) -> None:
        self._out.extend(Send(worker, order) for worker, order in orders)

    # -- endings -------------------------------------------------------------------------------------------

    def _end(self, verdict: Verdict, now: float) -> None:
        """Nobody trains any more; what is under way is committed first."""
        if self.phase != "training":
            return
        if not self._steady():
            self._owed_verdict = verdict
            return
        self.verdict = verdict
        if self.view.training():
            self._stop(tuple(w for w in self.view.training() if not self.view.workers[w].stopping), now)
        else:
            self._over(now)

    def _collect(self, now: float) -> None:
        if not self.collect:
            self._finish()
            return
        self.phase = "collecting"
        for worker in self.view.workers:
            self.watch.expect(worker, now)
            self._out.append(Send(worker, Fetch()))

    def _finish(self, error: FlegelError | None = None) -> None:
        self.phase = "over"
        self._out.append(Done(error))

    def _fail(self, error: FlegelError) -> None:
        self._finish(error)

    def _watch(self, now: float) -> None:
        """Every wait has a deadline and names its peer."""
        self.watch.look(now)
        for worker, why in self.watch.silent(now):
            loading = self.phase == "loading"
            self._lost(worker, why, loading, now, silent=loading)
        for worker in self.crew.late(now, self.patience.start):
            self._lost(worker, f"did not start within {self.patience.start:.0f} s", False, now)
        if self.balancing is not None:
            self._send_all(self.balancing.moves.late(now))
            self._go_on(self.balancing, now)
        if self.phase == "over":
            return
        late = self._late(now) or self.watch.stuck(self._where(), now)
        if late:
            self._out.append(Expel(late[0], "does not get on"))  # the next job should not have to wait for it
            self._fail(ProtocolError(late[1]))
            return
        self._out.append(SetTimer(now + WATCH, Timer("watch")))

    def _late(self, now: float) -> tuple[int, str] | None:
        for worker, asked in self.watch.asked_at.items():
            waited, seen = now - asked, self.view.workers.get(worker)
            if self.phase == "loading" and worker not in self.loaded and waited > self.patience.load:
                return worker, f"Worker {worker} did not load its share within {waited:.0f} s."
            if seen is not None and seen.stopping and waited > self.patience.report:
                return worker, (
                    f"Worker {worker} did not commit within {waited:.0f} s of the barrier of round "
                    f"{self._order[worker]}; does updateDataPoint return?"
                )
            if self.phase == "keeping" and self.keeping is not None and worker in self.keeping.awaited:
                since = now - self.keeping.asked_at
                if since > self.patience.report:
                    return worker, f"Worker {worker} did not send its part of the last checkpoint within {since:.0f} s."
            if self.phase == "collecting" and worker not in self.states and waited > self.patience.report:
                return worker, f"Worker {worker} did not send its state within {waited:.0f} s."
            if seen is not None and self.crew.owes(worker) and waited > self.patience.load:
                return worker, f"Worker {worker} did not hand over or take over its points within {waited:.0f} s."
        return None

    def _where(self) -> str:
        return f"round {self.view.round}" if self.phase == "training" else f"the {self.phase} phase"


def failure(worker: int, body: Failed) -> FlegelError:
    """A worker's failure as the caller should see it."""
    if body.usage:
        return UsageError(body.error)
    place = f"worker {worker}, round {body.round}" if body.round >= 0 else f"worker {worker}"
    return AlgorithmError(f"{body.where} raised {body.error} ({place})", body.trace)
