"""A worker process in a simulated job with faults: the real machines, real points, a speed, a clock that may be off.

It may die, freeze and thaw, be cut off, or live on after it was replaced without knowing. Its answers
go through a `ReliableChannel`, as do the orders that it gets. Training is k-means on integers, in numpy: every sum is
exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from bench.faults.reliable_channel import Packet, ReliableChannel
from bench.faults.scenarios import COORDINATOR, LossyNetwork, Scenario
from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, make_shard
from flegel.machine.migration.endpoints import MigrationSource
from flegel.machine.worker import worker as machine
from flegel.machine.worker.executor import visit
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.messages import (
    Answer,
    Envelope,
    LoadShard,
    ReassignmentOrder,
    ReceivePoints,
    Report,
    SendPoints,
    ShardLoaded,
    TransferOwnership,
    Window,
    WindowReceived,
)
from flegel.sim.event_queue import EventQueue
from flegel.sim.inline_worker import InlineWorker

CLUSTERS, COLUMNS = 3, 2
BEAT = 0.25
REACT = 0.0001
PATIENCE, HOLD = 0.02, 0.004  # of channels: latencies here are about a millisecond


class ClusterSums(NamedTuple):
    sums: Any
    counts: Any
    squares: Any


class Clusters(Algorithm):
    """K-means; the state of a point is its cluster, −1 before the first visit."""

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        filled = aggregator.counts > 0
        fresh = np.array(oldParameter)
        fresh[filled] = aggregator.sums[filled] / aggregator.counts[filled, None]
        return fresh

    def objective(self, aggregator: Any, parameter: Any) -> float:
        within = aggregator.squares[0] - 2.0 * (aggregator.sums * parameter).sum()
        return float(within + aggregator.counts @ (parameter**2).sum(axis=1))


def empty_statistics() -> ClusterSums:
    return ClusterSums(np.zeros((CLUSTERS, COLUMNS)), np.zeros(CLUSTERS), np.zeros(1))


def statistics(rows: Array, labels: Array) -> ClusterSums:
    """From scratch; label −1: never visited."""
    total = empty_statistics()
    seen = labels >= 0
    rows, labels = rows[seen], labels[seen]
    total.counts[:] = np.bincount(labels, minlength=CLUSTERS)
    for column in range(COLUMNS):
        total.sums[:, column] = np.bincount(labels, rows[:, column], CLUSTERS)
    total.squares[0] = np.vdot(rows, rows)
    return total


class ChannelEnd:
    """A channel at work: sends what it wants sent and wakes it when it is due."""

    def __init__(self, channel: ReliableChannel, events: EventQueue, transmit: Callable[[Packet], None]) -> None:
        self.channel = channel
        self._events, self._transmit = events, transmit
        self._armed = math.inf
        self.asleep_until = 0.0

    def send(self, item: Any) -> None:
        self._out(self.channel.put(item, self._events.now))

    def receive(self, packet: Packet) -> list[Any]:
        items, packets = self.channel.take(packet, self._events.now)
        self._out(packets)
        return items

    def _out(self, packets: list[Packet]) -> None:
        for packet in packets:
            self._transmit(packet)
        due = self.channel.due()
        if due < self._armed:
            self._arm(due)

    def _arm(self, at: float) -> None:
        self._armed = at
        self._events.at(at, self._tick, at)

    def _tick(self, at: float) -> None:
        if at != self._armed:  # an earlier one was set meanwhile, and it has set the next
            return
        self._armed = math.inf
        if self._events.now < self.asleep_until:
            return self._arm(self.asleep_until)
        due = self.channel.due()
        if due <= self._events.now:
            self._out(self.channel.tick(self._events.now))
        elif due < math.inf:  # what it was set for was done in time
            self._arm(due)


class FaultyWorld(Protocol):
    """What a worker needs of the world around it."""

    scenario: Scenario
    events: EventQueue
    network: LossyNetwork
    rows: Array
    parts: dict[int, Array]
    workers: dict[int, FaultyWorker]
    logged: bool
    """Somebody reads what is logged."""

    def from_worker(self, site: FaultyWorker, packet: Packet) -> None: ...

    def beat(self, site: FaultyWorker, visits: int, hook: str) -> None: ...

    def trained(self, site: FaultyWorker, round_: int, theta: tuple[Array, ...], ids: Array) -> None: ...

    def log(self, text: str) -> None: ...


class FaultyWorker(InlineWorker):
    """One incarnation of a worker."""

    def __init__(self, world: FaultyWorld, number: int, life: int) -> None:
        super().__init__()
        self.world, self.number, self.life = world, number, life
        self.in_flight: dict[int, ClusterSums] = {}
        """Reported changes, by number, that the coordinator has not been told yet."""
        self.change = empty_statistics()
        self.dead = False
        self.visits = 0
        scenario = world.scenario
        self.speed = scenario.speeds[number % len(scenario.speeds)]
        self._ahead, self._rate = scenario.skew.get(number, (0.0, 1.0))
        self._awake_at = 0.0
        self._sequence = 0
        channel = ReliableChannel((0, life), patience=PATIENCE, hold=HOLD)
        self._end = ChannelEnd(channel, world.events, self._transmit)
        self._theta: tuple[Array, ...] = ()
        self._work: machine.BeginTrain | None = None
        self._began = 0.0
        world.events.at(world.events.now + BEAT, self._beat)

    # -- life ----------------------------------------------------------------------------------------------

    @property
    def name(self) -> str:
        return f"{self.number}.{self.life}"

    @property
    def now(self) -> float:
        """By its own clock."""
        return self._ahead + self._rate * self.world.events.now

    def die(self) -> None:
        self.dead = True
        self._end.channel.close()

    def quit(self) -> None:
        self.die()

    def freeze(self, seconds: float) -> None:
        """What comes meanwhile is handled afterwards."""
        self._awake_at = self._end.asleep_until = self.world.events.now + seconds

    def jump(self, seconds: float) -> None:
        """Its clock shows another time from now on."""
        self._ahead += seconds

    def _later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """After so long by its own clock, if it is alive and awake then."""
        self.world.events.at(self.world.events.now + seconds / self._rate, self._awake, what, *args)

    def _awake(self, what: Callable[..., None], *args: Any) -> None:
        if self.dead:
            return
        if self.world.events.now < self._awake_at:
            self.world.events.at(self._awake_at, self._awake, what, *args)
            return
        what(*args)

    def _beat(self) -> None:
        if not self.dead:
            if self.world.events.now >= self._awake_at:
                self.world.beat(self, self.visits, "updateDataPoint" if self._work is not None else "")
            self._later(BEAT, self._beat)

    # -- orders and answers --------------------------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        """From the network."""
        self._awake(self._received, packet)

    def _received(self, packet: Packet) -> None:
        for body, arrays in self._end.receive(packet):
            if self.world.logged:
                self.world.log(f"worker {self.name} is ordered {body}")
            self.executor.order(body, arrays, self.now)

    def _transmit(self, packet: Packet) -> None:
        if not self.dead:
            self.world.network.send(self.number, COORDINATOR, packet, self.world.from_worker, self, packet)

    def send(self, body: Answer, arrays: tuple[Array, ...], now: float) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self._sequence, body)
        if isinstance(body, Report):
            self.in_flight[self._sequence] = ClusterSums(*arrays)
        self._sequence += 1
        self._end.send((envelope, arrays))

    def set_timer(self, at: float, round_: int) -> None:
        self._later(at - self.now, self._timer, round_)

    def _timer(self, round_: int) -> None:
        self.executor.handle(machine.OwnTimer(round_), self.now)

    def statistics(self) -> tuple[Array, ...]:
        return tuple(a.copy() for a in self.change)

    # -- points --------------------------------------------------------------------------------------------

    @property
    def _disk_seconds(self) -> float:
        return self.world.scenario.disk.get(self.number, 0.0)

    def load(self, order: LoadShard, arrays: tuple[Array, ...]) -> None:
        self._later(self._disk_seconds, self._load, order)

    def _load(self, order: LoadShard) -> None:
        ids = np.zeros(1, np.int64) if order.empty else self.world.parts[order.index]
        self.hold(PointStore(self.unvisited(ids), owned=not order.empty))
        loaded = ShardLoaded(self.points.schedule.owned, COLUMNS, "simulated", "", 0.0)
        self.executor.handle(machine.ShardReady(loaded), self.now)

    def reassign(self, order: ReassignmentOrder, arrays: tuple[Array, ...]) -> None:
        self._later(self._disk_seconds, super().reassign, order, arrays)

    def unvisited(self, ids: Array) -> Shard:
        return self.visited(ids, self.fresh_states(len(ids)))

    def visited(self, ids: Array, states: Array) -> Shard:
        return make_shard(self.world.rows[ids], None, np.array(states, np.int32), "rows", np.array(ids))

    def fresh_states(self, points: int) -> Array:
        return np.full((points, 1), -1, np.int32)

    # -- the trainer ---------------------------------------------------------------------------------------

    @property
    def training(self) -> bool:
        return self._work is not None

    def train(self, order: machine.BeginTrain, now: float) -> None:
        if order.arrays:
            self._theta = order.arrays
            self.points.schedule.begin(order.cursor)
        if not order.keep:
            pytree.clear(self.change)
        self._work, self._began = order, self.now
        points = min(order.points, self.points.schedule.active)
        self._later(REACT + points / self.speed, self._finish, order, False)

    def halt(self, now: float) -> None:
        if self._work is not None:
            self._later(REACT, self._finish, self._work, True)

    def _finish(self, order: machine.BeginTrain, stopped: bool) -> None:
        """The kernel returns: all points are done, or the flag is up."""
        if self._work is not order or self.store is None:
            return
        self._work = None
        asked = points = min(order.points, self.store.schedule.active)
        if stopped:
            points = min(points, max(int((self.now - self._began) * self.speed), 1))

        def learn(shard: Shard, start: int, end: int) -> int:
            self._learn(shard, start, end)
            self.world.trained(self, order.round, self._theta, shard.ids[start:end])
            return end

        before = self.store.schedule.caught_up
        visits = visit(self.store, points, learn)
        caught_up = self.store.schedule.caught_up - before
        self.visits += visits
        spent, unseen = self.now - self._began, self.store.schedule.unseen
        done = machine.TrainerDone(
            visits, visits >= asked, unseen, 0, spent, self._began, self.now, caught_up=caught_up
        )
        postponed, self._postponed = self._postponed, []
        self.executor.handle(done, self.now)
        for work in postponed:
            work(self.store)

    def _learn(self, shard: Shard, start: int, end: int) -> None:
        rows, states = np.asarray(shard.features)[start:end], shard.state[start:end, 0]
        last = states.astype(np.int64)
        theta = self._theta[0]
        distances = np.zeros((len(rows), CLUSTERS))
        for column in range(COLUMNS):
            away = rows[:, column, None] - theta[:, column]
            away *= away
            distances += away
        nearest = distances.argmin(axis=1)
        states[:] = nearest
        moved = nearest != last
        if not moved.any():
            return
        rows, nearest, last = rows[moved], nearest[moved], last[moved]
        for into, new, old in zip(self.change, statistics(rows, nearest), statistics(rows, last), strict=True):
            into += new - old

    # -- points that move ----------------------------------------------------------------------------------

    def transfer(self, order: TransferOwnership) -> None:
        """Moves are closed together with the change of ownership, after the kernel has returned."""
        self.at_rest(lambda _: super(FaultyWorker, self).transfer(order))

    def move(self, order: ReceivePoints | SendPoints) -> None:
        super().move(order)
        if isinstance(order, SendPoints):
            self._resend(order.move)

    def _resend(self, move: int) -> None:
        """Windows without an answer are sent again."""
        if self.moves is not None and move in self.moves.sending:
            self.moves.tick(move)
            self._later(PATIENCE, self._resend, move)

    def new_source(self, order: SendPoints) -> MigrationSource:
        return MigrationSource(order.move, order.points, window=TILE, credits=2, patience=PATIENCE)

    def address(self) -> str:
        return self.name

    def ship(self, order: SendPoints, window: OutgoingWindow, full: bool) -> None:
        body, arrays = window.frames(full)
        self._to_peer(order.target, body, tuple(np.array(a) for a in arrays))

    def _to_peer(self, target: int, body: Window | WindowReceived, arrays: tuple[Array, ...] = ()) -> None:
        peer = self.world.workers.get(target)
        if peer is not None:
            self.world.network.send(self.number, target, body, peer.receive_from_peer, self.number, body, arrays)

    def receive_from_peer(self, source: int, body: Window | WindowReceived, arrays: tuple[Array, ...]) -> None:
        """From the network between workers. Sizes are not simulated: every window counts one byte."""
        self._awake(self.from_peer, source, body, arrays, 1, partial(self._to_peer, source))
