"""A whole job without clock, process or socket, whose workers may die, freeze, come back, join and leave at any step.

Coordinator, worker machines, fence, holdings, ledger and migration are the real ones. The world decides in which order
messages arrive, when kernels return and who is lost; a point's contribution to the statistics is a number that depends
on the round of its last visit, so whatever is lost, doubled or stale shows up in the total.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np

from flegel import messages
from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.shard import TILE, Shard, make_shard
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator import events
from flegel.machine.coordinator.balance_control import BalanceControl
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import EvictWorker, StartWorker, Timeouts, WorkerDied, WorkerJoined
from flegel.machine.fencing import Fence
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.migration.window_codec import put_states, take_states
from flegel.machine.worker import reassignment
from flegel.machine.worker import worker as hand
from flegel.machine.worker.point_store import PointStore
from flegel.messages import (
    AssignPoints,
    Envelope,
    GiveUpPoints,
    ListPoints,
    LoadShard,
    MoveReady,
    MoveSent,
    PointsAssigned,
    PointsGivenUp,
    PointsListed,
    ReceivePoints,
    ResetPoints,
    SendPoints,
    ShardLoaded,
    TreeLayout,
    Window,
    WindowArrived,
)
from flegel.params.local import LocalStore
from flegel.plan.balance.planner import BalancePlan, Proposal
from flegel.plan.balance.settings import BalanceSettings
from flegel.sync import make_policy

FOR_EVER = Timeouts(load=np.inf, silence=np.inf, report=np.inf, hook=np.inf, start=np.inf, hire=5.0)


class Sum(Algorithm):
    """The statistics are one number, kept, and a count of visits that is spent at each barrier."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return 1.0 + abs(float(aggregator[0]))


class Site:
    """One life of a worker: what its process would do, one step at a time."""

    def __init__(self, world: World, number: int, life: int) -> None:
        self.world, self.number, self.life = world, number, life
        self.machine = hand.Worker()
        self.inbox: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self.sequence = 0
        self.holdings: PointStore | None = None
        self.work: hand.BeginTrain | None = None
        self.flag = False
        self.change = np.zeros(1)
        self.giving: dict[int, tuple[MigrationSource, int]] = {}
        self.taking: dict[int, MigrationTarget] = {}
        self.windows: dict[tuple[int, int], Any] = {}

    # -- orders --------------------------------------------------------------------------------------------

    def obey(self) -> None:
        body, arrays = self.inbox.popleft()
        self.feed(hand.OrderReceived(body, arrays))

    def feed(self, event: Any) -> None:
        for command in self.machine.handle(event, self.world.now):
            self.do(command)

    def say(self, body: Any, arrays: tuple[Any, ...] = ()) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self.sequence, body)
        self.sequence += 1
        self.world.mail.setdefault((self.number, self.life), deque()).append((envelope, arrays))

    def do(self, command: hand.Command) -> None:
        match command:
            case hand.BeginLoad(load):
                ids = np.zeros(1, np.int64) if load.empty else self.world.parts[load.index]
                self.holdings = PointStore(self.world.share(ids), owned=not load.empty)
                self.feed(hand.ShardReady(ShardLoaded(self.holdings.agenda.owned, 1, "test", "", 0.0)))
            case hand.BeginTrain():
                self.flag = False
                self.work = command
                if not command.keep:
                    self.change = np.zeros(1)
                if command.arrays:
                    self.holdings.agenda.begin()
            case hand.RaiseFlag():
                self.flag = True
            case hand.SendReply(body, with_changes, arrays):
                self.say(body, (self.change.copy(),) if with_changes else arrays)
            case hand.ReassignPoints(order, arrays):
                self.feed(self.tend(order, arrays))
            case hand.ApplyOwnership(settle):
                self.holdings.settle(settle.given, settle.taken)
                for move in settle.closed:
                    if move in self.giving:
                        self.carry_out(self.giving.pop(move)[0].close())
                    if move in self.taking:
                        self.carry_out(self.taking.pop(move).close())
            case hand.BeginMove(order):
                self.move(order)
            case hand.SendState():
                found, ids = self.holdings.collect()
                self.say(messages.States(), (np.array(found), np.array(ids)))
            case hand.Quit():
                self.world.end(self)

    def tend(self, order: Any, arrays: tuple[Any, ...]) -> hand.PointsReassigned:
        holdings = self.holdings
        match order:
            case ListPoints(rows=rows):
                return hand.PointsReassigned(
                    PointsListed(**reassignment.summary(holdings)), (reassignment.census(holdings, rows),)
                )
            case ResetPoints():
                reassignment.reset(holdings, lambda n: np.zeros((n, 1)))
                return hand.PointsReassigned(None)
            case GiveUpPoints(points=points):
                gone = reassignment.part(holdings, points)
                return hand.PointsReassigned(PointsGivenUp(**reassignment.summary(holdings)), gone)
            case AssignPoints(visited=True):
                ids, past, halted, passes, anew = arrays
                reassignment.inherit(holdings, self.world.share(ids, past), halted, passes, anew)
            case AssignPoints(passes=passes):
                reassignment.adopt(holdings, self.world.share(arrays[0]), passes)
        return hand.PointsReassigned(PointsAssigned(**reassignment.summary(holdings)))

    # -- training ------------------------------------------------------------------------------------------

    def train(self, random: Random) -> None:
        """The kernel returns: at the end of its work, or somewhere before where the flag is up."""
        assert self.work is not None and self.holdings is not None
        order, self.work = self.work, None
        agenda = self.holdings.agenda
        asked = left = min(order.points, agenda.active)
        if self.flag:
            left = random.randint(0, left)
        visits = 0
        while left > 0 and (run := agenda.next(left)):
            share = self.holdings.shares[run.share]
            which = np.arange(run.start, run.end)
            old = take_states(share, which)[:, 0]
            new = np.full(len(which), 1.0 + order.round % 7) + share.ids[which] % 3
            put_states(share, which, new[:, None])
            self.change[0] += float((new - old).sum())
            agenda.advance(run, run.end)
            left -= run.end - run.start
            visits += run.end - run.start
        self.feed(hand.TrainerDone(visits, visits >= asked, agenda.unseen, 0, 0.1, self.world.now, self.world.now))

    # -- migration -----------------------------------------------------------------------------------------

    def move(self, order: ReceivePoints | SendPoints) -> None:
        match order:
            case ReceivePoints(move=move, points=points):
                self.holdings.prepare(move, points)
                self.taking[move] = MigrationTarget(move)
                self.say(MoveReady(move, ""))
            case SendPoints(move=move, target=target, points=points):
                self.giving[move] = (MigrationSource(move, points, window=3 * TILE, credits=2), target)
                self.carry_out(self.giving[move][0].start())

    def carry_out(self, commands: list[endpoints.Command]) -> None:
        for command in commands:
            match command:
                case endpoints.CutWindow((move, number) as transfer, points):
                    giving, target = self.giving[move]
                    window = self.holdings.cut(transfer, points, target)
                    self.windows[transfer] = window
                    self.carry_out(giving.was_cut(number, window.part.points if window else 0, self.world.now))
                case endpoints.SendWindow(transfer, full):
                    body, arrays = self.windows[transfer].frames(full)
                    frozen = tuple(np.array(a) for a in arrays)
                    self.world.network.append((self.number, self.giving[transfer[0]][1], body, frozen))
                case endpoints.ReportSent(move, windows):
                    self.say(MoveSent(move, windows))
                case endpoints.ReleaseWindows(move):
                    self.holdings.free(move)
                case endpoints.DropWindows(move):
                    self.holdings.drop(move)

    def receive(self, source: int, body: Any, arrays: tuple[Any, ...]) -> None:
        if isinstance(body, Window):
            taking = self.taking.get(body.move)
            for command in taking.came(body.number, self.holdings.usable(body)) if taking else []:
                match command:
                    case endpoints.StoreWindow():
                        self.holdings.lay_aside(body, arrays, source)
                        self.say(WindowArrived(body.move, body.number, body.points, body.passes, 0, 1))
                    case endpoints.AnswerSource((move, number), lacking):
                        self.world.network.append((self.number, source, (move, number, lacking), ()))
        else:
            move, number, lacking = body
            if move in self.giving:
                self.carry_out(self.giving[move][0].answered(number, lacking, self.world.now))


class Wish:
    """A plan of moves as the test wants them."""

    rules = BalanceSettings()

    def __init__(self) -> None:
        self.wanted: list[tuple[int, int, int]] = []

    def due(self, now: float) -> bool:
        return True

    def plan(self, loads: Any, left: Any, now: float, carriage: Any = None) -> BalancePlan:
        idle = {w.worker for w in loads if not w.busy}
        chosen = [Proposal(s, t, n, "a wish") for s, t, n in self.wanted if s in idle and t in idle and s != t]
        self.wanted = []
        return BalancePlan(tuple(chosen[:1]), "wishes")


class World:
    """Make it, `begin`, then `step` and disturb it; `finish` lets it run to its end."""

    def __init__(
        self,
        workers: int = 3,
        sync: str = "fsp",
        tiles: int = 5,
        rest: int = 5,
        layout: str = "rows",
        replace: bool = True,
        balance: bool = True,
        iterations: int = 40,
        collect: bool = False,
    ) -> None:
        self.now, self.layout = 0.0, layout
        size = tiles * TILE + rest
        self.rows = size * workers
        self.parts = {w: np.arange(w * size, (w + 1) * size) for w in range(workers)}
        self.mail: dict[tuple[int, int], deque[tuple[Envelope, tuple[Any, ...]]]] = {}
        self.network: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self.timers: list[tuple[float, events.Timer]] = []
        self.hires: list[int] = []
        self.sites: dict[int, Site] = {}
        self.zombies: list[Site] = []
        self.lives: dict[int, int] = {}
        self.wish = Wish()
        self.done: events.Done | None = None
        self.stale = self.commits = 0
        criteria = Criteria(max_iterations=iterations, tolerance=0)
        balancing = None
        if balance and sync.startswith("fsp"):
            balancing = BalanceControl("async", criteria)
            balancing._balance = self.wish  # type: ignore[assignment]
        form = TreeLayout("array", ())
        self.algorithm = Sum()
        policy = make_policy(SyncSpec(sync, interval=1.0 if sync == "fsp" else None))
        self.machine = Coordinator(
            algorithm=self.algorithm,
            policy=policy,
            criteria=criteria,
            store=LocalStore(self.algorithm, np.zeros(1), np.zeros(1)),
            loads={w: LoadShard(AlgorithmRef("x", {}), {}, w, workers, 0, form, form) for w in range(workers)},
            timeouts=FOR_EVER,
            balance=balancing,
            collect=collect,
            debug=True,
            rows=self.rows,
            replace=replace,
        )
        self.fence = Fence("job")
        for w in range(workers):
            self.employ(w)
        self.execute(self.machine.start(self.now))

    def share(self, ids: Any, past: Any = None) -> Shard:
        """Points whose one feature is their own number."""
        state = np.zeros((len(ids), 1)) if past is None else np.array(past)
        return make_shard(ids.astype(float)[:, None], ids.astype(float), state, self.layout, np.array(ids))

    # -- the crew ------------------------------------------------------------------------------------------

    def employ(self, number: int) -> None:
        life = self.lives[number] = self.lives.get(number, -1) + 1
        self.sites[number] = Site(self, number, life)
        self.fence.admit(number, life)

    def end(self, site: Site) -> None:
        if self.sites.get(site.number) is site:
            del self.sites[site.number]
        if site in self.zombies:
            self.zombies.remove(site)

    def lose(self, number: int, fault: bool = False, zombie: bool = False) -> None:
        """A process ends, or falls silent and lives on without knowing that it is out."""
        site = self.sites.pop(number, None)
        if site is None:
            return
        if zombie:
            self.zombies.append(site)
        self.tell(WorkerDied(number, "was lost", fault))

    def answer_hire(self, number: int, succeeds: bool = True) -> None:
        self.hires.remove(number)
        if succeeds:
            self.employ(number)
            self.tell(WorkerJoined(number))
        else:
            self.tell(WorkerDied(number, "could not be started"))

    # -- events --------------------------------------------------------------------------------------------

    def tell(self, event: Any) -> None:
        if self.done is not None:
            return
        before = len(self.machine.trace)
        commands = self.machine.handle(event, self.now)
        if len(self.machine.trace) > before:
            self.commits += 1
            self.check()
        self.execute(commands)

    def execute(self, commands: list[events.Command]) -> None:
        for command in list(commands):
            match command:
                case events.Send(worker, body, arrays):
                    if worker in self.sites:
                        self.sites[worker].inbox.append((body, tuple(np.array(a) for a in arrays)))
                case events.SetTimer(at, timer):
                    if timer.name != "watch":
                        self.timers.append((at, timer))
                case StartWorker(worker):
                    self.hires.append(worker)
                case EvictWorker(worker):
                    self.fence.expel(worker)
                    self.sites.pop(worker, None)
                    if worker in self.hires:
                        self.hires.remove(worker)
                case events.Done():
                    self.done = command

    def arrive(self, sender: tuple[int, int]) -> None:
        envelope, arrays = self.mail[sender].popleft()
        if not self.mail[sender]:
            del self.mail[sender]
        if self.fence.refuse(envelope) is None:
            self.tell(events.FromWorker(envelope.worker, envelope.body, arrays))
        else:
            self.stale += 1

    def possible(self, random: Random, faults: bool) -> list[Callable[[], None]]:
        """Everything that may happen next."""
        found: list[Callable[[], None]] = []
        for site in [*self.sites.values(), *self.zombies]:
            if site.inbox:
                found.append(site.obey)
            if site.work is not None and (site.flag or random.random() < 0.3 or site in self.zombies):
                found.append(lambda s=site: s.train(random))
        found += [lambda m=sender: self.arrive(m) for sender in self.mail]
        found += [lambda n=number: self.answer_hire(n, not faults or random.random() < 0.8) for number in self.hires]
        if self.network:
            at = random.randrange(len(self.network))
            found.append(lambda: self.between(at, random.choice(["arrives"] * 4 + ["twice", "lost"] * faults)))
        return found

    def between(self, at: int, fate: str) -> None:
        source, target, body, arrays = self.network[at] if fate == "twice" else self.network.pop(at)
        if fate != "lost" and target in self.sites and self.sites[target].holdings is not None:
            self.sites[target].receive(source, body, arrays)

    def step(self, random: Random, faults: bool = True) -> None:
        """One thing happens; where nothing can, or now and then, time passes."""
        if self.done is not None:
            return
        choices = self.possible(random, faults)
        if choices and random.random() < 0.97:
            random.choice(choices)()
            return
        working = [s for s in self.sites.values() if s.work is not None]
        if self.timers:
            self.timers.sort(key=lambda t: t[0])
            at, timer = self.timers.pop(0)
            self.now = max(self.now, at)
            self.tell(timer)
        elif working:
            random.choice(working).train(random)

    def finish(self, random: Random, most: int = 40_000) -> None:
        """No more faults: the job must come to its end."""
        for _ in range(most):
            if self.done is not None:
                break
            self.step(random, faults=False)
        machine, points = self.machine, self.machine.membership.redistribution
        assert self.done is not None, (
            f"the job hangs: {machine.phase}, change {points.phase!r}, hired {machine.membership.roster.hired}, "
            f"owed {points._owed}, {[(w.id, w.phase, w.stopping) for w in machine.view.workers.values()]}"
        )

    # -- laws ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """At a commit: each point has one owner, and the statistics are what a recomputation gives."""
        crew = {n: s for n, s in self.sites.items() if n in self.machine.view.workers}
        assert set(crew) == set(self.machine.view.workers), "somebody counts who is gone"
        collected = {n: s.holdings.collect() for n, s in crew.items()}
        ids = np.concatenate([c[1] for c in collected.values()])
        assert len(ids) == self.rows and len(np.unique(ids)) == self.rows, "a point is missing or doubled"
        expected = sum(float(c[0].sum()) for c in collected.values()) - self.uncommitted(crew)
        total = float(pytree.flatten(self.machine.store.statistics)[0][0])
        assert abs(total - expected) <= 1e-10 * max(abs(expected), 1.0), f"statistics are {total}, not {expected}"
        assert self.machine.store.discrepancy() <= 1e-10
        assert self.machine.state.points == self.rows, "the view is off"

    def uncommitted(self, crew: dict[int, Site]) -> float:
        """Changes that are made, and not yet part of the total: on their way, held, or kept for the next report."""
        held = sum(float(pytree.flatten(change)[0][0]) for change in self.machine.commits.held.values())
        mail = sum(
            float(arrays[0][0])
            for (number, life), letters in self.mail.items()
            for envelope, arrays in letters
            if isinstance(envelope.body, messages.Report) and number in crew and crew[number].life == life
        )
        kept = sum(float(s.change[0]) for s in crew.values() if s.machine._extra_visits)
        return held + mail + kept


__all__ = ["FOR_EVER", "Site", "World"]
