"""A whole job without clock, process or socket, in which anything may happen next: messages, kernels, losses, joins.

Coordinator, executors, fence, point stores, ledger and migrations are the real ones. The world decides in which order
messages arrive, when kernels return and which worker is lost. A point's contribution to the statistics is a number that
depends on the round of its last visit, so whatever is lost, doubled or stale shows up in the total.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import numpy as np

from flegel import messages
from flegel.algorithm import Algorithm
from flegel.configuration.balance import BalanceSettings
from flegel.core import pytree
from flegel.core.shard import TILE, Shard, make_shard
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator import events
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import EvictWorker, StartWorker, Timeouts, WorkerDied, WorkerJoined
from flegel.machine.coordinator.membership import Next
from flegel.machine.fencing import Fence
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.resting.part import RestingPart
from flegel.machine.resting.resting_control import RestingControl
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import visit
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.window_codec import put_states, take_states
from flegel.messages import Envelope, LoadShard, SendPoints, ShardLoaded, TreeLayout
from flegel.params.local import LocalStore
from flegel.plan.active_workers import ActiveWorkers
from flegel.plan.balance.planner import BalancePlan, Proposal
from flegel.sim.inline_worker import InlineWorker
from flegel.sync import make_policy

FOR_EVER = Timeouts(load=np.inf, silence=np.inf, report=np.inf, hook=np.inf, start=np.inf, hire=5.0)


class Sum(Algorithm):
    """The statistics are one number, kept, and a count of visits that is spent at each barrier."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + 1.0

    def objective(self, aggregator: Any, parameter: Any) -> float:
        return 1.0 + abs(float(aggregator[0]))


class SteppedWorker(InlineWorker):
    """One incarnation of a worker; the world decides when it takes an order and when its kernel returns."""

    def __init__(self, world: World, number: int, life: int) -> None:
        super().__init__()
        self.world, self.number, self.life = world, number, life
        self.inbox: deque[tuple[Any, tuple[Any, ...]]] = deque()
        self.sequence = 0
        self.work: machine.BeginTrain | None = None
        self.flag = False
        self.change = np.zeros(1)

    @property
    def now(self) -> float:
        return self.world.now

    def take_order(self) -> None:
        body, arrays = self.inbox.popleft()
        self.executor.order(body, arrays, self.now)

    def send(self, body: Any, arrays: tuple[Any, ...], now: float) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self.sequence, body)
        self.sequence += 1
        self.world.mail.setdefault((self.number, self.life), deque()).append((envelope, arrays))

    def set_timer(self, at: float, round_: int) -> None:
        """Workers of this world have no clock; the coordinator stops them."""

    def quit(self) -> None:
        self.world.end(self)

    # -- points --------------------------------------------------------------------------------------------

    def load(self, order: LoadShard, arrays: tuple[Any, ...]) -> None:
        ids = np.zeros(1, np.int64) if order.empty else self.world.parts[order.index]
        self.hold(PointStore(self.world.shard(ids), owned=not order.empty))
        loaded = ShardLoaded(self.points.schedule.owned, 1, "test", "", 0.0)
        self.executor.handle(machine.ShardReady(loaded), self.now)

    def unvisited(self, ids: Any) -> Shard:
        return self.world.shard(ids)

    def visited(self, ids: Any, states: Any) -> Shard:
        return self.world.shard(ids, states)

    def fresh_states(self, points: int) -> Any:
        return np.zeros((points, 1))

    # -- training ------------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return False  # points are trained in one step, so nothing has to be postponed

    def train(self, order: machine.BeginTrain, now: float) -> None:
        self.flag, self.work = False, order
        if not order.keep:
            self.change = np.zeros(1)
        if order.arrays:
            self.points.schedule.begin()

    def halt(self, now: float) -> None:
        self.flag = True

    def statistics(self) -> tuple[Any, ...]:
        return (self.change.copy(),)

    def finish(self, random: Random) -> None:
        """The kernel returns: at the end of its work, or somewhere before where the flag is up."""
        assert self.work is not None
        order, self.work = self.work, None
        schedule = self.points.schedule
        asked = points = min(order.points, schedule.active)
        if self.flag:
            points = random.randint(0, points)

        def learn(shard: Shard, start: int, end: int) -> int:
            which = np.arange(start, end)
            old = take_states(shard, which)[:, 0]
            new = np.full(len(which), 1.0 + order.round % 7) + shard.ids[which] % 3
            put_states(shard, which, new[:, None])
            self.change[0] += float((new - old).sum())
            return end

        visits = visit(self.points, points, learn)
        done = machine.TrainerDone(visits, visits >= asked, schedule.unseen, 0, 0.1, self.now, self.now)
        self.executor.handle(done, self.now)

    # -- migration -----------------------------------------------------------------------------------------

    def new_source(self, order: SendPoints) -> MigrationSource:
        return MigrationSource(order.move, order.points, window=3 * TILE, credits=2)

    def address(self) -> str:
        return ""

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        body, arrays = window.frames(full)
        self.to_peer(order.target, body, tuple(np.array(a) for a in arrays))

    def to_peer(self, target: int, body: Any, arrays: tuple[Any, ...] = ()) -> None:
        self.world.network.append((self.number, target, body, arrays))

    def receive(self, source: int, body: Any, arrays: tuple[Any, ...]) -> None:
        self.from_peer(source, body, arrays, 1, partial(self.to_peer, source))


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


class WishedResting(RestingControl):
    """Workers rest and come back as the test wants it."""

    def __init__(self, first: ActiveWorkers | None = None) -> None:
        super().__init__(first=first)
        self.wanted: list[tuple[int, ...]] = []
        """Who is to rest at the next barriers; nobody: all come back."""

    def at_barrier(self, job: Any, membership: Any, updated: Any, now: float) -> Next:
        if not self.wanted:
            return Next.NOTHING
        if workers := self.wanted.pop(0):
            return membership.rest(workers, "a wish", now)
        membership.recall("a wish", now)
        return Next.NOTHING


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
        resting: tuple[int, ...] = (),
    ) -> None:
        """`resting`: these begin without points."""
        self.now, self.layout = 0.0, layout
        size = tiles * TILE + rest
        self.rows = size * (workers - len(resting))
        working = [w for w in range(workers) if w not in resting]
        self.parts = {w: np.arange(n * size, (n + 1) * size) for n, w in enumerate(working)}
        self.resting = WishedResting(
            ActiveWorkers(tuple(working), resting, 0.0, "as the test says") if resting else None
        )
        self.mail: dict[tuple[int, int], deque[tuple[Envelope, tuple[Any, ...]]]] = {}
        self.network: list[tuple[int, int, Any, tuple[Any, ...]]] = []
        self.timers: list[tuple[float, events.Timer]] = []
        self.hires: list[int] = []
        self.workers: dict[int, SteppedWorker] = {}
        self.fenced: list[SteppedWorker] = []
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
            parts=[RestingPart(self.resting), *([] if balancing is None else [BalancePart(balancing)])],
            collect=collect,
            debug=True,
            rows=self.rows,
            replace_lost_workers=replace,
        )
        self.fence = Fence("job")
        for w in range(workers):
            self.employ(w)
        self.execute(self.machine.start(self.now))

    def shard(self, ids: Any, past: Any = None) -> Shard:
        """Points whose one feature is their own number."""
        state = np.zeros((len(ids), 1)) if past is None else np.array(past)
        return make_shard(ids.astype(float)[:, None], ids.astype(float), state, self.layout, np.array(ids))

    # -- the membership ------------------------------------------------------------------------------------------

    def employ(self, number: int) -> None:
        life = self.lives[number] = self.lives.get(number, -1) + 1
        self.workers[number] = SteppedWorker(self, number, life)
        self.fence.admit(number, life)

    def end(self, site: SteppedWorker) -> None:
        if self.workers.get(site.number) is site:
            del self.workers[site.number]
        if site in self.fenced:
            self.fenced.remove(site)

    def lose(self, number: int, fault: bool = False, alive: bool = False) -> None:
        """A process ends, or falls silent and lives on without knowing that it is out."""
        site = self.workers.pop(number, None)
        if site is None:
            return
        if alive:
            self.fenced.append(site)
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
                    if worker in self.workers:
                        self.workers[worker].inbox.append((body, tuple(np.array(a) for a in arrays)))
                case events.SetTimer(at, timer):
                    if timer.name != "watch":
                        self.timers.append((at, timer))
                case StartWorker(worker):
                    self.hires.append(worker)
                case EvictWorker(worker):
                    self.fence.expel(worker)
                    self.workers.pop(worker, None)
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
        for site in [*self.workers.values(), *self.fenced]:
            if site.inbox:
                found.append(site.take_order)
            if site.work is not None and (site.flag or random.random() < 0.3 or site in self.fenced):
                found.append(lambda s=site: s.finish(random))
        found += [lambda m=sender: self.arrive(m) for sender in self.mail]
        found += [lambda n=number: self.answer_hire(n, not faults or random.random() < 0.8) for number in self.hires]
        if self.network:
            at = random.randrange(len(self.network))
            found.append(lambda: self.between(at, random.choice(["arrives"] * 4 + ["twice", "lost"] * faults)))
        return found

    def between(self, at: int, fate: str) -> None:
        source, target, body, arrays = self.network[at] if fate == "twice" else self.network.pop(at)
        if fate != "lost" and target in self.workers and self.workers[target].store is not None:
            self.workers[target].receive(source, body, arrays)

    def step(self, random: Random, faults: bool = True) -> None:
        """One thing happens; where nothing can, or now and then, time passes."""
        if self.done is not None:
            return
        choices = self.possible(random, faults)
        if choices and random.random() < 0.97:
            random.choice(choices)()
            return
        working = [s for s in self.workers.values() if s.work is not None]
        if self.timers:
            self.timers.sort(key=lambda t: t[0])
            at, timer = self.timers.pop(0)
            self.now = max(self.now, at)
            self.tell(timer)
        elif working:
            random.choice(working).finish(random)

    def finish(self, random: Random, most: int = 40_000) -> None:
        """No more faults: the job must come to its end."""
        for _ in range(most):
            if self.done is not None:
                break
            self.step(random, faults=False)
        coordinator, points = self.machine, self.machine.membership.redistribution
        assert self.done is not None, (
            f"the job hangs: {coordinator.phase}, change {points.phase!r}, "
            f"hired {coordinator.membership.roster.hired}, owed {points._owed}, "
            f"{[(w.id, w.phase, w.stopping) for w in coordinator.view.workers.values()]}"
        )

    # -- laws ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """At a commit: each point has one owner, and the statistics are what a recomputation gives."""
        members = {n: s for n, s in self.workers.items() if n in self.machine.view.workers}
        assert set(members) == set(self.machine.view.workers), "somebody counts who is gone"
        collected = {n: s.store.collect() for n, s in members.items()}
        ids = np.concatenate([c[1] for c in collected.values()])
        assert len(ids) == self.rows and len(np.unique(ids)) == self.rows, "a point is missing or doubled"
        expected = sum(float(c[0].sum()) for c in collected.values()) - self.uncommitted(members)
        total = float(pytree.flatten(self.machine.store.statistics)[0][0])
        assert abs(total - expected) <= 1e-10 * max(abs(expected), 1.0), f"statistics are {total}, not {expected}"
        assert self.machine.store.discrepancy() <= 1e-10
        assert self.machine.state.points == self.rows, "the view is off"

    def uncommitted(self, members: dict[int, SteppedWorker]) -> float:
        """Changes that are made, and not yet part of the total: on their way, held, or kept for the next report."""
        held = sum(float(pytree.flatten(change)[0][0]) for change in self.machine.commits.held.values())
        mail = sum(
            float(arrays[0][0])
            for (number, life), letters in self.mail.items()
            for envelope, arrays in letters
            if isinstance(envelope.body, messages.Report) and number in members and members[number].life == life
        )
        kept = sum(float(s.change[0]) for s in members.values() if s.executor.machine.extra_visits)
        return held + mail + kept


__all__ = ["FOR_EVER", "SteppedWorker", "World"]
