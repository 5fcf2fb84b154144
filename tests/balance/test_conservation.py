"""The conservation laws under every order of events: windows lost, doubled, late; moves called off; workers dying.

Real holdings, agendas, migration machines, book and ledger; only training and the network are the test's own. A point's
hidden state is the number of the round that last visited it, and its contribution to the statistics is that number, so
a point that is doubled, dropped or trained from a stale state shows up in the total.
"""

from __future__ import annotations

from dataclasses import replace
from random import Random

import numpy as np
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, precondition, rule

from flegel.algorithm import Algorithm
from flegel.core.shard import TILE, Shard, Sparse, make_shard
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.migration.migrations import Migrations
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.messages import (
    MoveReady,
    MoveRefused,
    MoveSent,
    ReceivePoints,
    SendPoints,
    SharedMemoryRef,
    SharedPointsRef,
    TransferOwnership,
    Window,
    WindowArrived,
)
from flegel.params.ledger import Ledger
from flegel.plan.balance.planner import Proposal

SOMEWHERE = SharedMemoryRef(0, 0, "", 0, "<f8", ())
"""The test hands lent shares over by themselves; where they lie is the runtime's business."""


class Sum(Algorithm):
    """Statistics: one number."""


class Site:
    """A worker: what the trainer and the mover of a real one do, without threads."""

    def __init__(self, id: int, share: Shard, world: World) -> None:
        self.id, self.world, self.holdings = id, world, PointStore(share)
        self.inbox: list[object] = []
        self.outbox: list[object] = []
        self.change = 0.0
        self.giving: dict[int, MigrationSource] = {}
        self.targets: dict[int, int] = {}
        self.windows: dict[tuple[int, int], object] = {}
        self.taking: dict[int, MigrationTarget] = {}
        self.borrowed: dict[int, Shard] = {}

    def borrow(self, whole: Shard) -> Shard:
        """The same points with states of our own; one share for each memory, whoever it came from."""
        at = whole.ids.ctypes.data
        if at not in self.borrowed:
            self.borrowed[at] = replace(whole, state=np.zeros_like(whole.state), halted=np.zeros_like(whole.halted))
        return self.borrowed[at]

    def work_off(self) -> None:
        while self.inbox:
            self.obey(self.inbox.pop(0))

    def obey(self, order: object) -> None:
        match order:
            case ReceivePoints(move=move, points=points):
                if self.world.refusing:
                    self.outbox.append(MoveRefused(move, "no room"))
                    return
                self.holdings.prepare(move, points)
                self.taking[move] = MigrationTarget(move)
                self.outbox.append(MoveReady(move, ""))
            case SendPoints(move=move, target=target, points=points):
                self.giving[move] = MigrationSource(move, points, window=2 * TILE, credits=2)
                self.targets[move] = target
                self.do(self.giving[move].start())
            case TransferOwnership(given=given, taken=taken, closed=closed):
                self.holdings.settle(given, taken)
                for move in closed:
                    if move in self.giving:
                        self.do(self.giving.pop(move).close())
                    if move in self.taking:
                        self.do(self.taking.pop(move).close())

    def do(self, commands: list[endpoints.Command]) -> None:
        for command in commands:
            match command:
                case endpoints.CutWindow((move, number) as transfer, points):
                    window = self.holdings.cut(transfer, points, self.targets[move])
                    self.windows[transfer] = window
                    cut = window.part.points if window else 0
                    self.do(self.giving[move].was_cut(number, cut, self.world.now))
                case endpoints.SendWindow(transfer, full):
                    window = self.windows[transfer]
                    assert isinstance(window, OutgoingWindow)
                    lent = None
                    if self.world.neighbours:
                        states = SOMEWHERE if self.world.states_too else None
                        lent = SharedPointsRef(window.start, window.whole.points, SOMEWHERE, (SOMEWHERE,), state=states)
                    body, arrays = window.frames(full, lent)
                    frozen = tuple(np.array(a) for a in arrays)
                    self.world.network.append((self.id, self.targets[transfer[0]], body, frozen, window.whole))
                case endpoints.ReportSent(move, windows):
                    self.outbox.append(MoveSent(move, windows))
                case endpoints.ReleaseWindows(move):
                    self.holdings.free(move)
                case endpoints.DropWindows(move):
                    self.holdings.drop(move)

    def receive(self, source: int, body: object, arrays: tuple[np.ndarray, ...], whole: Shard | None) -> None:
        if isinstance(body, Window):
            taking = self.taking.get(body.move)
            lent = self.borrow(whole) if body.lent and whole and self.world.in_sight else None
            usable = self.holdings.usable(body) and (body.lent is None or lent is not None)
            if body.lent and body.lent.state and whole:
                arrays = (whole.part(body.lent.start, body.lent.start + body.points).state, *arrays)
            for command in taking.came(body.number, usable) if taking else []:
                match command:
                    case endpoints.StoreWindow():
                        self.holdings.lay_aside(body, arrays, source, lent)
                        self.outbox.append(WindowArrived(body.move, body.number, body.points, body.passes, 0, 1))
                    case endpoints.AnswerSource((move, number), lacking):
                        self.world.network.append((self.id, source, (move, number, lacking), (), None))
        else:
            move, number, lacking = body  # type: ignore[misc]
            if move in self.giving:
                self.do(self.giving[move].answered(number, lacking, self.world.now))

    def train(self, points: int, round_: int) -> None:
        agenda = self.holdings.agenda
        agenda.begin()
        left = points
        while left > 0 and (run := agenda.next(left)):
            share = self.holdings.shares[run.share]
            for i in range(run.start, run.end):
                old = share.state[i // TILE, 0, i % TILE] if share.layout == "tiles" else share.state[i, 0]
                if share.layout == "tiles":
                    share.state[i // TILE, 0, i % TILE] = round_
                else:
                    share.state[i, 0] = round_
                self.change += round_ - old
                self.world.passes[int(share.ids[i])] += 1
            agenda.advance(run, run.end)
            left -= run.end - run.start


class World(RuleBasedStateMachine):
    sites = Bundle("sites")

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
        self.sites_by_id = {i: Site(i, self.share(np.arange(i * size, (i + 1) * size)), self) for i in range(count)}

    def share(self, ids: np.ndarray) -> Shard:
        """Points whose one feature is their own number."""
        state = np.zeros((len(ids), 1))
        if self.kind == "sparse":
            rows = Sparse(np.arange(len(ids) + 1), np.zeros(len(ids), np.int64), ids.astype(float), 1)
            return make_shard(rows, ids.astype(float), state, "rows", ids)
        return make_shard(ids.astype(float)[:, None], ids.astype(float), state, self.kind, ids)

    def pick(self, n: int) -> Site:
        alive = sorted(self.sites_by_id)
        return self.sites_by_id[alive[n % len(alive)]]

    # -- rules ---------------------------------------------------------------------------------------------

    @precondition(lambda self: len(self.sites_by_id) > 1)
    @rule(a=st.integers(0, 3), b=st.integers(1, 3), points=st.integers(1, 8 * TILE))
    def a_move_begins(self, a: int, b: int, points: int) -> None:
        source = self.pick(a)
        others = [w for w in sorted(self.sites_by_id) if w != source.id]
        for worker, order in self.moves.begin(Proposal(source.id, others[b % len(others)], points, ""), self.now):
            self.tell(worker, order)

    def tell(self, worker: int, order: object) -> None:
        if worker in self.sites_by_id:
            self.sites_by_id[worker].inbox.append(order)

    @rule(n=st.integers(0, 3))
    def an_order_arrives(self, n: int) -> None:
        site = self.pick(n)
        if site.inbox:
            site.obey(site.inbox.pop(0))

    @rule(n=st.integers(0, 3))
    def an_answer_arrives(self, n: int) -> None:
        site = self.pick(n)
        if site.outbox:
            for worker, order in self.moves.answer(site.id, site.outbox.pop(0), self.now):  # type: ignore[arg-type]
                self.tell(worker, order)

    @precondition(lambda self: self.network)
    @rule(n=st.integers(0, 30), fate=st.sampled_from(["arrives", "arrives", "arrives", "twice", "lost"]))
    def something_between_workers(self, n: int, fate: str) -> None:
        at = n % len(self.network)
        source, target, body, arrays, whole = self.network[at]
        if fate != "twice":
            del self.network[at]
        if fate != "lost" and target in self.sites_by_id:
            self.sites_by_id[target].receive(source, body, arrays, whole)

    @rule(steps=st.integers(1, 12), order=st.randoms(use_true_random=False))
    def things_take_their_course(self, steps: int, order: Random) -> None:
        """Messages arrive for a while, in any order between workers, so that moves get somewhere."""
        for _ in range(steps):
            for site in self.sites_by_id.values():
                if site.inbox:
                    site.obey(site.inbox.pop(0))
                if site.outbox:
                    for worker, told in self.moves.answer(site.id, site.outbox.pop(0), self.now):  # type: ignore[arg-type]
                        self.tell(worker, told)
            if self.network:
                source, target, body, arrays, whole = self.network.pop(order.randrange(len(self.network)))
                if target in self.sites_by_id:
                    self.sites_by_id[target].receive(source, body, arrays, whole)

    @rule()
    def time_passes(self) -> None:
        self.now += 100.0
        for site in self.sites_by_id.values():
            for giving in list(site.giving.values()):
                site.do(giving.tick(self.now))

    @rule(n=st.integers(0, 9))
    def a_move_is_called_off(self, n: int) -> None:
        if self.moves.open:
            number = sorted(self.moves.open)[n % len(self.moves.open)]
            for worker, order in self.moves.cancel(number, "test"):
                self.tell(worker, order)

    @rule(refusing=st.booleans())
    def memory_is_short_or_not(self, refusing: bool) -> None:
        self.refusing = refusing

    @rule(in_sight=st.booleans())
    def lent_memory_can_be_seen_or_not(self, in_sight: bool) -> None:
        self.in_sight = in_sight

    @rule(n=st.integers(0, 3), points=st.integers(1, 12 * TILE))
    def a_worker_trains(self, n: int, points: int) -> None:
        site = self.pick(n)
        site.work_off()  # orders come in their order: what was settled is known before training goes on
        self.round += 1
        site.train(points, self.round)

    @rule()
    def a_barrier(self) -> None:
        for site in self.sites_by_id.values():
            self.ledger.commit(site.id, np.array([site.change]))
            site.change = 0.0
        changes, settles = self.moves.settle(set(self.sites_by_id), self.now)
        for change in changes:
            self.ledger.join(change.source, change.target)
        for worker, settle in settles.items():
            self.tell(worker, settle)
        for site in self.sites_by_id.values():
            site.work_off()
        self.check()

    @precondition(lambda self: len(self.sites_by_id) > 2)
    @rule(n=st.integers(0, 3), heir=st.integers(0, 3))
    def a_worker_dies(self, n: int, heir: int) -> None:
        """What is under way is committed or lost with the worker; then its points are loaded anew elsewhere."""
        dead = self.sites_by_id.pop(self.pick(n).id)
        for number in [n for n, m in self.moves.open.items() if dead.id in (m.source, m.target)]:
            for worker, order in self.moves.cancel(number, "a worker is lost"):
                self.tell(worker, order)
        for site in self.sites_by_id.values():
            self.ledger.commit(site.id, np.array([site.change]))
            site.change = 0.0
        for member in self.ledger.forget(dead.id):
            self.begin_again(self.sites_by_id[member])
        for site in self.sites_by_id.values():
            site.work_off()
        held = np.concatenate([s.holdings.collect()[1] for s in self.sites_by_id.values()])
        lost = np.setdiff1d(np.arange(self.all), held)
        if len(lost):
            site = self.pick(heir)
            site.holdings.shares.append(self.share(lost))
            site.holdings.agenda.admit(None, len(site.holdings.shares) - 1, len(lost), 0)
            self.passes.update(dict.fromkeys(lost.tolist(), 0))
        self.check()

    def begin_again(self, site: Site) -> None:
        """Every point of a worker that shared the lost account is unvisited again; passes stay what they were."""
        site.work_off()
        for segment in site.holdings.agenda.held():
            share = site.holdings.shares[segment.share]
            lanes = np.arange(segment.start, segment.end)
            if share.layout == "tiles":
                share.state[lanes // TILE, 0, lanes % TILE] = 0.0
            else:
                share.state[lanes] = 0.0

    # -- laws ----------------------------------------------------------------------------------------------

    def check(self) -> None:
        """At a barrier: every point has one owner, its passes are right, and the statistics are the recomputed ones."""
        collected = [s.holdings.collect() for s in self.sites_by_id.values()]
        ids = np.concatenate([c[1] for c in collected])
        assert len(ids) == self.all and len(np.unique(ids)) == self.all, "a point is missing or doubled"
        total = sum(float(c[0].sum()) for c in collected)
        assert abs(float(self.ledger.total[0]) - total) <= 1e-10 * max(abs(total), 1.0), "statistics are off"
        assert self.ledger.discrepancy() <= 1e-10

    @invariant()
    def passes_are_never_lost(self) -> None:
        if not hasattr(self, "sites_by_id"):
            return
        for site in self.sites_by_id.values():
            for s in site.holdings.agenda.segments:
                share = site.holdings.shares[s.share]
                first, last = share.ids[s.start], share.ids[s.end - 1]
                if s.status == "active":
                    assert s.passes == self.passes[int(first)] == self.passes[int(last)]
                features = share.part(s.start // TILE * TILE, s.end).features if s.status == "active" else None
                if isinstance(features, Sparse):
                    assert features.values[-1] == float(last)
                elif features is not None and share.layout == "rows":
                    assert features[-1, 0] == float(last) == share.labels[s.end - 1]


TestConservation = World.TestCase
