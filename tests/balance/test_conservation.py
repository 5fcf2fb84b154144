"""The conservation laws under every order of events: windows lost, doubled, late; moves closed early; workers dying.

Point stores, schedules, executor, migrations and ledger are the real ones; only training and the network are the test's
own. A point's hidden state is the number of the round that last visited it, and its contribution to the statistics is
that number, so a point that is doubled, dropped or trained from a stale state shows up in the total.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from flegel.algorithm import Algorithm
from flegel.core.shard import TILE, Shard, Sparse, make_shard
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.migration.migrations import Migrations
from flegel.machine.worker.executor import visit
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.window_codec import put_states, take_states
from flegel.machine.worker.worker import BeginTrain
from flegel.messages import (
    LoadShard,
    ReceivePoints,
    SendPoints,
    SharedMemoryRef,
    SharedPointsRef,
    TransferOwnership,
    Window,
    WindowReceived,
)
from flegel.params.ledger import Ledger
from flegel.plan.balance.planner import Proposal
from flegel.sim.inline_worker import InlineWorker

SOMEWHERE = SharedMemoryRef(0, 0, "", 0, "<f8", ())
"""The test hands lent shards over by themselves; where they lie is the runtime's business."""


class Sum(Algorithm):
    """Statistics: one number."""


class StoringWorker(InlineWorker):
    """A worker without coordinator: the test orders moves and training directly, through the ports."""

    def __init__(self, id: int, shard: Shard, world: World) -> None:
        super().__init__()
        self.id, self.world = id, world
        self.hold(PointStore(shard))
        self.inbox: list[object] = []
        self.outbox: list[object] = []
        self.change = 0.0
        self.borrowed: dict[int, Shard] = {}

    @property
    def now(self) -> float:
        return self.world.now

    @property
    def training(self) -> bool:
        return False  # points are trained in one step

    def take_all_orders(self) -> None:
        while self.inbox:
            self.take_order(self.inbox.pop(0))

    def take_order(self, order: object) -> None:
        if isinstance(order, TransferOwnership):
            self.transfer(order)
        else:
            assert isinstance(order, ReceivePoints | SendPoints)
            self.move(order)

    def send(self, body: object, arrays: tuple[np.ndarray, ...], now: float) -> None:
        self.outbox.append(body)

    # -- migration -----------------------------------------------------------------------------------------

    def prepare(self, store: PointStore, order: ReceivePoints) -> str:
        return "no room" if self.world.refusing else super().prepare(store, order)

    def new_source(self, order: SendPoints) -> MigrationSource:
        return MigrationSource(order.move, order.points, window=2 * TILE, credits=2)

    def address(self) -> str:
        return ""

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        shared = None
        if self.world.neighbours:
            states = SOMEWHERE if self.world.states_too else None
            shared = SharedPointsRef(window.start, window.whole.points, SOMEWHERE, (SOMEWHERE,), state=states)
        body, arrays = window.frames(full, shared)
        frozen = tuple(np.array(a) for a in arrays)
        self.world.network.append((self.id, order.target, body, frozen, window.whole))

    def reply(self, source: int, received: WindowReceived) -> None:
        self.world.network.append((self.id, source, received, (), None))

    def receive(self, source: int, body: object, arrays: tuple[np.ndarray, ...], whole: Shard | None) -> None:
        assert self.moves is not None
        if isinstance(body, Window):
            shared = self.borrow(whole) if body.lent and whole and self.world.in_sight else None
            if body.lent and body.lent.state and whole:
                arrays = (whole.part(body.lent.start, body.lent.start + body.points).state, *arrays)
            visible = body.lent is None or shared is not None
            self.moves.arrived(source, body, arrays, 1, partial(self.reply, source), shared, visible)
        else:
            assert isinstance(body, WindowReceived)
            self.moves.acknowledged(body)

    def borrow(self, whole: Shard) -> Shard:
        """The same points with states of our own; one shard for each memory, whichever worker it came from."""
        at = whole.ids.ctypes.data
        if at not in self.borrowed:
            self.borrowed[at] = replace(whole, state=np.zeros_like(whole.state), halted=np.zeros_like(whole.halted))
        return self.borrowed[at]

    # -- training ------------------------------------------------------------------------------------------

    def visit(self, points: int, round_: int) -> None:
        def learn(shard: Shard, start: int, end: int) -> int:
            which = np.arange(start, end)
            self.change += float((round_ - take_states(shard, which)[:, 0]).sum())
            put_states(shard, which, np.full((len(which), 1), float(round_)))
            for number in shard.ids[which].tolist():
                self.world.passes[number] += 1
            return end

        self.points.schedule.begin()
        visit(self.points, points, learn)

    def load(self, order: LoadShard, arrays: tuple[np.ndarray, ...]) -> None:
        raise AssertionError("the shard is here from the beginning")

    def train(self, order: BeginTrain, now: float) -> None:
        raise AssertionError("the test calls `visit`")

    def halt(self, now: float) -> None:
        raise AssertionError("nothing runs")

    def statistics(self) -> tuple[np.ndarray, ...]:
        return (np.array([self.change]),)

    def set_timer(self, at: float, round_: int) -> None:
        raise AssertionError("this worker has no timer")


class World(RuleBasedStateMachine):
    @initialize(
        count=st.integers(2, 4),
        tiles=st.integers(3, 6),
        rest=st.integers(0, 5),
        kind=st.sampled_from(["rows", "tiles", "sparse"]),
        neighbours=st.booleans(),
        states_too=st.booleans(),
    )
    def begin(self, count: int, tiles: int, rest: int, kind: str, neighbours: bool, states_too: bool) -> None:
        self.kind, self.now, self.round, self.refusing = kind, 0.0, 0, False
        self.neighbours, self.states_too, self.in_sight = neighbours, states_too, True
        size = tiles * TILE + rest
        self.all = size * count
        self.passes = dict.fromkeys(range(self.all), 0)
        self.network: list[tuple[int, int, object, tuple[np.ndarray, ...], Shard | None]] = []
        self.moves = Migrations()
        self.ledger = Ledger(Sum(), np.zeros(1))
        self.workers = {
            i: StoringWorker(i, self.shard(np.arange(i * size, (i + 1) * size)), self) for i in range(count)
        }

    def shard(self, ids: np.ndarray) -> Shard:
        """Points whose one feature is their own number."""
        state = np.zeros((len(ids), 1))
        if self.kind == "sparse":
            rows = Sparse(np.arange(len(ids) + 1), np.zeros(len(ids), np.int64), ids.astype(float), 1)
            return make_shard(rows, ids.astype(float), state, "rows", ids)
        return make_shard(ids.astype(float)[:, None], ids.astype(float), state, self.kind, ids)

    def pick(self, n: int) -> StoringWorker:
        alive = sorted(self.workers)
        return self.workers[alive[n % len(alive)]]

    # -- rules ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.workers) > 1)
    @rule(a=st.integers(0, 3), b=st.integers(1, 3), points=st.integers(1, 8 * TILE))
    def a_move_begins(self, a: int, b: int, points: int) -> None:
        source = self.pick(a)
        others = [w for w in sorted(self.workers) if w != source.id]
        for number, order in self.moves.begin(Proposal(source.id, others[b % len(others)], points, ""), self.now):
            self.tell(number, order)

    def tell(self, worker: int, order: object) -> None:
        if worker in self.workers:
            self.workers[worker].inbox.append(order)

    @rule(n=st.integers(0, 3))
    def an_order_arrives(self, n: int) -> None:
        worker = self.pick(n)
        if worker.inbox:
            worker.take_order(worker.inbox.pop(0))

    @rule(n=st.integers(0, 3))
    def an_answer_arrives(self, n: int) -> None:
        worker = self.pick(n)
        if worker.outbox:
            for number, order in self.moves.answer(worker.id, worker.outbox.pop(0), self.now):  # type: ignore[arg-type]
                self.tell(number, order)

    @precondition(lambda self: self.network)
    @rule(n=st.integers(0, 30), fate=st.sampled_from(["arrives", "arrives", "arrives", "twice", "lost"]))
    def something_between_workers(self, n: int, fate: str) -> None:
        at = n % len(self.network)
        source, target, body, arrays, whole = self.network[at]
        if fate != "twice":
            del self.network[at]
        if fate != "lost" and target in self.workers:
            self.workers[target].receive(source, body, arrays, whole)

    @rule(steps=st.integers(1, 12), order=st.randoms(use_true_random=False))
    def things_take_their_course(self, steps: int, order: Random) -> None:
        """Messages arrive for a while, in any order between workers, so that moves get somewhere."""
        for _ in range(steps):
            for worker in self.workers.values():
                if worker.inbox:
                    worker.take_order(worker.inbox.pop(0))
                if worker.outbox:
                    for number, told in self.moves.answer(worker.id, worker.outbox.pop(0), self.now):  # type: ignore[arg-type]
                        self.tell(number, told)
            if self.network:
                source, target, body, arrays, whole = self.network.pop(order.randrange(len(self.network)))
                if target in self.workers:
                    self.workers[target].receive(source, body, arrays, whole)

    @rule()
    def time_passes(self) -> None:
        self.now += 100.0
        for worker in self.workers.values():
            assert worker.moves is not None
            for move in list(worker.moves.sending):
                worker.moves.tick(move)

    @rule(n=st.integers(0, 9))
    def a_move_is_called_off(self, n: int) -> None:
        if self.moves.open:
            number = sorted(self.moves.open)[n % len(self.moves.open)]
            for told, order in self.moves.cancel(number, "test"):
                self.tell(told, order)

    @rule(refusing=st.booleans())
    def memory_is_short_or_not(self, refusing: bool) -> None:
        self.refusing = refusing

    @rule(in_sight=st.booleans())
    def lent_memory_can_be_seen_or_not(self, in_sight: bool) -> None:
        self.in_sight = in_sight

    @rule(n=st.integers(0, 3), points=st.integers(1, 12 * TILE))
    def a_worker_trains(self, n: int, points: int) -> None:
        worker = self.pick(n)
        worker.take_all_orders()  # orders come in their order: what was settled is known before training goes on
        self.round += 1
        worker.visit(points, self.round)

    @rule()
    def a_barrier(self) -> None:
        for worker in self.workers.values():
            self.ledger.commit(worker.id, np.array([worker.change]))
            worker.change = 0.0
        changes, settles = self.moves.settle(set(self.workers), self.now)
        for change in changes:
            self.ledger.join(change.source, change.target)
        for number, settle in settles.items():
            self.tell(number, settle)
        for worker in self.workers.values():
            worker.take_all_orders()
        self.check()

    @precondition(lambda self: len(self.workers) > 2)
    @rule(n=st.integers(0, 3), heir=st.integers(0, 3))
    def a_worker_dies(self, n: int, heir: int) -> None:
        """What is under way is committed or lost with the worker; then its points are loaded anew elsewhere."""
        dead = self.workers.pop(self.pick(n).id)
        for number in [n for n, m in self.moves.open.items() if dead.id in (m.source, m.target)]:
            for told, order in self.moves.cancel(number, "a worker is lost"):
                self.tell(told, order)
        for worker in self.workers.values():
            self.ledger.commit(worker.id, np.array([worker.change]))
            worker.change = 0.0
        for member in self.ledger.forget(dead.id):
            self.begin_again(self.workers[member])
        for worker in self.workers.values():
            worker.take_all_orders()
        held = np.concatenate([s.points.collect()[1] for s in self.workers.values()])
        lost = np.setdiff1d(np.arange(self.all), held)
        if len(lost):
            worker = self.pick(heir)
            worker.points.shards.append(self.shard(lost))
            worker.points.schedule.admit(None, len(worker.points.shards) - 1, len(lost), 0)
            self.passes.update(dict.fromkeys(lost.tolist(), 0))
        self.check()

    def begin_again(self, worker: StoringWorker) -> None:
        """Every point of a worker that shared the lost account is unviworkerd again; passes stay what they were."""
        worker.take_all_orders()
        for segment in worker.points.schedule.held():
            shard = worker.points.shards[segment.shard]
            put_states(shard, np.arange(segment.start, segment.end), np.zeros((segment.points, 1)))

    # -- laws ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """At a barrier: every point has one owner, its passes are right, and the statistics are the recomputed ones."""
        collected = [s.points.collect() for s in self.workers.values()]
        ids = np.concatenate([c[1] for c in collected])
        assert len(ids) == self.all and len(np.unique(ids)) == self.all, "a point is missing or doubled"
        total = sum(float(c[0].sum()) for c in collected)
        assert abs(float(self.ledger.total[0]) - total) <= 1e-10 * max(abs(total), 1.0), "statistics are off"
        assert self.ledger.discrepancy() <= 1e-10

    @invariant()
    def passes_are_never_lost(self) -> None:
        if not hasattr(self, "workers"):
            return
        for worker in self.workers.values():
            for s in worker.points.schedule.segments:
                shard = worker.points.shards[s.shard]
                first, last = shard.ids[s.start], shard.ids[s.end - 1]
                if s.status == "active":
                    assert s.passes == self.passes[int(first)] == self.passes[int(last)]
                features = shard.part(s.start // TILE * TILE, s.end).features if s.status == "active" else None
                if isinstance(features, Sparse):
                    assert features.values[-1] == float(last)
                elif features is not None and shard.layout == "rows":
                    assert features[-1, 0] == float(last) == shard.labels[s.end - 1]


TestConservation = World.TestCase
