"""A worker process in a simulated job with faults: the real machines, real points, a speed, a clock that may be off.

It may die, freeze and thaw, be cut off, or live on after it was replaced without knowing. Whatever it says goes through
a `Channel`, as do the orders that it gets. Training is k-means on integers, in numpy: every sum is exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import TILE, Shard, make_shard
from flegel.machine.migration import endpoints
from flegel.machine.migration.endpoints import MigrationSource, MigrationTarget
from flegel.machine.worker import reassignment
from flegel.machine.worker import worker as machine
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.messages import (
    Answer,
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
    Report,
    ResetPoints,
    SendPoints,
    ShardLoaded,
    States,
    Window,
    WindowArrived,
)
from flegel.sim.event_queue import EventQueue
from flegel.sim.faults.reliable_channel import Packet, ReliableChannel
from flegel.sim.faults.scenarios import HUB, LossyNetwork, Scenario

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


def nothing() -> ClusterSums:
    return ClusterSums(np.zeros((CLUSTERS, COLUMNS)), np.zeros(CLUSTERS), np.zeros(1))


def statistics(rows: Array, labels: Array) -> ClusterSums:
    """From scratch; label −1: never visited."""
    total = nothing()
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

    def say(self, item: Any) -> None:
        self._out(self.channel.put(item, self._events.now))

    def hear(self, packet: Packet) -> list[Any]:
        items, packets = self.channel.take(packet, self._events.now)
        self._out(packets)
        return items

    def _out(self, packets: list[Packet]) -> None:
        for packet in packets:
            self._transmit(packet)
        due = self.channel.due()
        if due < self._armed:
            self._armed = due
            self._events.at(due, self._tick)

    def _tick(self) -> None:
        self._armed = math.inf
        if self._events.now < self.asleep_until:
            self._armed = self.asleep_until
            self._events.at(self.asleep_until, self._tick)
            return
        due = self.channel.due()
        if due <= self._events.now:
            self._out(self.channel.tick(self._events.now))
        elif due < math.inf:  # what it was set for was done in time
            self._armed = due
            self._events.at(due, self._tick)


class FaultyWorld(Protocol):
    """What a site needs of the world around it."""

    scenario: Scenario
    events: EventQueue
    wires: LossyNetwork
    rows: Array
    parts: dict[int, Array]
    sites: dict[int, FaultyWorker]
    logged: bool
    """Somebody reads what is logged."""

    def from_site(self, site: FaultyWorker, packet: Packet) -> None: ...

    def beat(self, site: FaultyWorker, visits: int) -> None: ...

    def trained(self, site: FaultyWorker, round_: int, theta: tuple[Array, ...], ids: Array) -> None: ...

    def log(self, text: str) -> None: ...


class FaultyWorker:
    """One life of a worker."""

    def __init__(self, world: FaultyWorld, number: int, life: int) -> None:
        self.world, self.number, self.life = world, number, life
        self.machine = machine.Worker()
        self.holdings: PointStore | None = None
        self.in_flight: dict[int, ClusterSums] = {}
        """Reported changes, by number, that the coordinator has not been told yet."""
        self.change = nothing()
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
        self._after: list[Callable[[], None]] = []
        self._giving: dict[int, tuple[MigrationSource, int, dict[int, OutgoingWindow]]] = {}
        self._taking: dict[int, MigrationTarget] = {}
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

    def freeze(self, seconds: float) -> None:
        """What comes meanwhile is handled afterwards."""
        self._awake_at = self._end.asleep_until = self.world.events.now + seconds

    def _later(self, seconds: float, what: Callable[..., None], *args: Any) -> None:
        """After so long by its own clock, if it lives then, and is awake."""
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
                self.world.beat(self, self.visits)
            self._later(BEAT, self._beat)

    # -- orders and answers --------------------------------------------------------------------------------

    def receive(self, packet: Packet) -> None:
        """From the wire."""
        self._awake(self._received, packet)

    def _received(self, packet: Packet) -> None:
        for body, arrays in self._end.hear(packet):
            if self.world.logged:
                self.world.log(f"worker {self.name} is ordered {body}")
            self._feed(machine.OrderReceived(body, arrays))

    def _transmit(self, packet: Packet) -> None:
        if not self.dead:
            self.world.wires.send(self.number, HUB, packet, self.world.from_site, self, packet)

    def _say(self, body: Answer, arrays: tuple[Array, ...] = ()) -> None:
        envelope = Envelope("job", 0, self.number, self.life, self._sequence, body)
        if isinstance(body, Report):
            self.in_flight[self._sequence] = ClusterSums(*arrays)
        self._sequence += 1
        self._end.say((envelope, arrays))

    def _feed(self, event: Any) -> None:
        for command in self.machine.handle(event, self.now):
            self._do(command)

    def _do(self, command: machine.Command) -> None:
        match command:
            case machine.BeginLoad(load):
                self._later(self.world.scenario.disk.get(self.number, 0.0), self._load, load)
            case machine.BeginTrain():
                self._begin(command)
            case machine.RaiseFlag():
                if self._work is not None:
                    self._later(REACT, self._finish, self._work, True)
            case machine.SendReply(body, with_changes, arrays):
                self._say(body, tuple(a.copy() for a in self.change) if with_changes else arrays)
            case machine.SetOwnTimer(at, round_):
                self._later(at - self.now, self._feed, machine.OwnTimer(round_))
            case machine.ReassignPoints(order, arrays):
                self._later(self.world.scenario.disk.get(self.number, 0.0), self._tend, order, arrays)
            case machine.ApplyOwnership(settle):
                self._afterwards(lambda: self._settle(settle))
            case machine.SendState():
                self._afterwards(self._send_state)
            case machine.BeginMove(order):
                self._move(order)
            case machine.Quit():
                self.die()
            case _:
                pass

    def _afterwards(self, work: Callable[[], None]) -> None:
        """The trainer does one thing after the other."""
        if self._work is None:
            work()
        else:
            self._after.append(work)

    def _load(self, load: LoadShard) -> None:
        ids = np.zeros(1, np.int64) if load.empty else self.world.parts[load.index]
        self.holdings = PointStore(self._share(ids), owned=not load.empty)
        self._feed(machine.ShardReady(ShardLoaded(self.holdings.agenda.owned, COLUMNS, "simulated", "", 0.0)))

    def _share(self, ids: Array, past: Array | None = None) -> Shard:
        state = np.full((len(ids), 1), -1, np.int32) if past is None else np.array(past, np.int32)
        return make_shard(self.world.rows[ids], None, state, "rows", np.array(ids))

    def _tend(self, order: Any, arrays: tuple[Array, ...]) -> None:
        holdings = self.holdings
        assert holdings is not None
        found: tuple[Array, ...] = ()
        body: Any = None
        match order:
            case ListPoints(rows=rows):
                found = (reassignment.census(holdings, rows),)
                body = PointsListed(**reassignment.summary(holdings))
            case ResetPoints():
                reassignment.reset(holdings, lambda n: np.full((n, 1), -1, np.int32))
            case GiveUpPoints(points=points):
                found = reassignment.part(holdings, points)
                body = PointsGivenUp(**reassignment.summary(holdings))
            case AssignPoints(visited=True):
                ids, past, halted, passes, anew = arrays
                reassignment.inherit(holdings, self._share(ids, past), halted, passes, anew)
                body = PointsAssigned(**reassignment.summary(holdings))
            case AssignPoints(passes=passes):
                reassignment.adopt(holdings, self._share(arrays[0]), passes)
                body = PointsAssigned(**reassignment.summary(holdings))
        self._feed(machine.PointsReassigned(body, found))

    def _send_state(self) -> None:
        assert self.holdings is not None
        found, ids = self.holdings.collect()
        self._say(States(), (np.array(found), np.array(ids)))

    # -- the trainer ---------------------------------------------------------------------------------------

    def _begin(self, order: machine.BeginTrain) -> None:
        assert self.holdings is not None
        if order.arrays:
            self._theta = order.arrays
            self.holdings.agenda.begin()
        if not order.keep:
            pytree.clear(self.change)
        self._work, self._began = order, self.now
        points = min(order.points, self.holdings.agenda.active)
        self._later(REACT + points / self.speed, self._finish, order, False)

    def _finish(self, order: machine.BeginTrain, stopped: bool) -> None:
        """The kernel returns: everything is done, or the flag went up."""
        if self._work is not order or self.holdings is None:
            return
        self._work = None
        agenda = self.holdings.agenda
        asked = left = min(order.points, agenda.active)
        if stopped:
            left = min(left, max(int((self.now - self._began) * self.speed), 1))
        visits = 0
        while left > 0 and (run := agenda.next(left)) is not None:
            share = self.holdings.shares[run.share]
            self._learn(share, run.start, run.end)
            self.world.trained(self, order.round, self._theta, share.ids[run.start : run.end])
            agenda.advance(run, run.end)
            left -= run.end - run.start
            visits += run.end - run.start
        self.visits += visits
        after, self._after = self._after, []
        done = machine.TrainerDone(
            visits, visits >= asked, agenda.unseen, 0, self.now - self._began, self._began, self.now
        )
        self._feed(done)
        for work in after:
            work()

    def _learn(self, share: Shard, start: int, end: int) -> None:
        rows, states = np.asarray(share.features)[start:end], share.state[start:end, 0]
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

    def _settle(self, settle: Any) -> None:
        assert self.holdings is not None
        self.holdings.settle(settle.given, settle.taken)
        for move in settle.closed:
            if move in self._giving:
                self._carry_out(self._giving.pop(move)[0].close())
            if move in self._taking:
                self._carry_out(self._taking.pop(move).close())

    def _move(self, order: ReceivePoints | SendPoints) -> None:
        assert self.holdings is not None
        match order:
            case ReceivePoints(move=move, points=points):
                self.holdings.prepare(move, points)
                self._taking[move] = MigrationTarget(move)
                self._say(MoveReady(move, self.name))
            case SendPoints(move=move, target=target, points=points):
                giving = MigrationSource(move, points, window=TILE, credits=2, patience=PATIENCE)
                self._giving[move] = (giving, target, {})
                self._carry_out(giving.start())
                self._watch_over(move)

    def _watch_over(self, move: int) -> None:
        """Windows without an answer are sent again."""
        if move in self._giving:
            self._carry_out(self._giving[move][0].tick(self.now))
            self._later(PATIENCE, self._watch_over, move)

    def _carry_out(self, commands: list[endpoints.Command]) -> None:
        holdings = self.holdings
        assert holdings is not None
        for command in commands:
            match command:
                case endpoints.CutWindow((move, number) as transfer, points):
                    giving, target, windows = self._giving[move]
                    window = holdings.cut(transfer, points, target)
                    if window is not None:
                        windows[number] = window
                    self._carry_out(giving.was_cut(number, window.part.points if window else 0, self.now))
                case endpoints.SendWindow((move, number), full):
                    _, target, windows = self._giving[move]
                    body, arrays = windows[number].frames(full)
                    self._to_peer(target, body, tuple(np.array(a) for a in arrays))
                case endpoints.ReportSent(move, windows_):
                    self._say(MoveSent(move, windows_))
                case endpoints.ReleaseWindows(move):
                    holdings.free(move)
                case endpoints.DropWindows(move):
                    holdings.drop(move)

    def _to_peer(self, target: int, body: Any, arrays: tuple[Array, ...] = ()) -> None:
        peer = self.world.sites.get(target)
        if peer is not None:
            self.world.wires.send(self.number, target, body, peer.from_peer, self.number, body, arrays)

    def from_peer(self, source: int, body: Any, arrays: tuple[Array, ...]) -> None:
        self._awake(self._from_peer, source, body, arrays)

    def _from_peer(self, source: int, body: Any, arrays: tuple[Array, ...]) -> None:
        if self.holdings is None:
            return
        if not isinstance(body, Window):
            move, number, lacking = body
            if move in self._giving:
                self._carry_out(self._giving[move][0].answered(number, lacking, self.now))
            return
        taking = self._taking.get(body.move)
        for command in taking.came(body.number, self.holdings.usable(body)) if taking else []:
            match command:
                case endpoints.StoreWindow():
                    self.holdings.lay_aside(body, arrays, source)
                    self._say(WindowArrived(body.move, body.number, body.points, body.passes, 0, 1))
                case endpoints.AnswerSource((move, number), lacking):
                    self._to_peer(source, (move, number, lacking))
