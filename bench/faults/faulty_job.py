"""A whole job under faults, on virtual time, and the laws that must hold whatever happens. No process, no socket.

Coordinator, workers, channels, fence, ledger, point store and migration are the machines of a real job. The network
loses, doubles and reorders; workers die, freeze, are cut off, come back after they were replaced, join and leave; disks
are slow and clocks are wrong. After every commit:

1. every point has exactly one owner, and the coordinator's count of points is right;
2. the statistics are those of a recomputation from scratch, less what is reported and not yet folded in;
3. all workers trained under the same θ in the same round, and no point twice under one θ;
4. rounds never go back; under a barrier the objective never gets worse while nobody is lost.

And at the end: the job came to an end, every state was collected once, and where the model is determined by work alone
(`bsp`) and nobody was lost, the result is that of the same job without faults, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import msgspec
import numpy as np

from bench.faults.faulty_worker import (
    COLUMNS,
    HOLD,
    PATIENCE,
    ChannelEnd,
    Clusters,
    FaultyWorker,
    empty_statistics,
    statistics,
)
from bench.faults.reliable_channel import Packet, ReliableChannel
from bench.faults.scenarios import COORDINATOR, Fault, LossyNetwork, Scenario
from flegel.configuration.balance import BalanceSettings
from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.errors import FlegelError, WorkerLost
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.balance.part import BalancePart
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import (
    Command,
    Done,
    Event,
    EvictWorker,
    FromWorker,
    LeaveJob,
    Note,
    ScaleTo,
    Send,
    SetTimer,
    StartWorker,
    Timeouts,
    WorkerDied,
    WorkerJoined,
)
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.machine.coordinator.state import JobState
from flegel.machine.fencing import Fence
from flegel.machine.resting.part import RestingPart
from flegel.machine.resting.resting_control import RestingControl
from flegel.messages import LoadShard, Report, TreeLayout, WorkerBeat
from flegel.params.local import LocalStore
from flegel.plan.balance.planner import Balance, BalancePlan, MoveCost, Proposal
from flegel.plan.balance.remaining_time import TimeLeft
from flegel.plan.balance.target_passes import WorkerLoad
from flegel.sim.event_queue import EventQueue
from flegel.sync import make_policy
from flegel.sync.policy import Updated

STARTS_IN, NOTICED_IN = 0.05, 0.1  # seconds until a new process is up, until the supervisor sees that one has ended
MOST_SECONDS, MOST_EVENTS = 600.0, 400_000
EXPECTED_ERRORS = ("no worker is left", "in a row")
"""Texts of errors that end a job rightly: more was lost than can be recovered."""


def _expected(error: str) -> bool:
    return any(words in error for words in EXPECTED_ERRORS)


class Violation(AssertionError):
    """A law was broken, or the job hung."""


class Outcome(msgspec.Struct):
    """What a job came to."""

    scenario: Scenario
    seconds: float
    events: int
    packets: int
    lost: int
    again: int
    """Packets that channels sent again."""
    stale: int
    """Packets and beats of former lives that were refused."""
    commits: int
    moved: int
    incidents: int
    error: str
    theta: bytes
    objectives: tuple[float | None, ...]


class RandomMoves(Balance):
    """Moves of points at random."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(BalanceSettings())
        self._random = Random(f"whims {scenario.seed}")
        self._left = scenario.random_moves
        self._past_moves: list[tuple[int, int]] = []

    def due(self, now: float) -> bool:
        return self._left > 0 and self._random.random() < 0.5

    def plan(
        self, loads: Sequence[WorkerLoad], left: TimeLeft, now: float, carriage: MoveCost | None = None
    ) -> BalancePlan:
        idle = [w for w in loads if not w.busy and not w.refusal]
        if len(idle) < 2:
            return BalancePlan((), "nobody is free")
        free = {w.worker for w in idle}
        back = [(target, source) for source, target in self._past_moves if {source, target} <= free]
        if back and self._random.random() < 0.5:  # the way back, along which only states travel
            source, target = self._random.choice(back)
        else:
            source, target = self._random.sample(sorted(free), 2)
        self._past_moves.append((source, target))
        self._left -= 1
        points = self._random.randint(1, 3 * TILE)
        return BalancePlan((Proposal(source, target, points, "at random"),), "random moves")


class RandomRests(RestingControl):
    """Workers rest and come back at random."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__()
        self._random, self._left = Random(f"rests {scenario.seed}"), scenario.random_rests

    def at_barrier(self, job: JobState, membership: Membership, updated: Updated, now: float) -> Next:
        random = self._random
        if self._left <= 0 or random.random() < 0.6:
            return Next.NOTHING
        self._left -= 1
        if job.resting and random.random() < 0.5:
            membership.recall("at random", now)
            return Next.NOTHING
        workers = sorted(job.view.workers)
        return membership.rest(random.sample(workers, random.randint(1, len(workers))), "at random", now)


class FaultyJob:
    """Make it and `run` it."""

    def __init__(self, scenario: Scenario, log: Callable[[str], None] | None = None) -> None:
        self.scenario, self._log = scenario, log
        self.logged = log is not None
        self.events = EventQueue()
        self.network = LossyNetwork(scenario, self.events, self.log if log else None)
        self.done: Done | None = None
        self.stale = 0
        random = np.random.default_rng(scenario.seed)
        size = scenario.tiles * TILE + scenario.rest
        count = size * scenario.workers
        centres = random.integers(-40, 40, size=(5, COLUMNS))
        self.rows: Array = (centres[random.integers(5, size=count)] + random.integers(-9, 10, (count, COLUMNS))) * 1.0
        shuffled = random.permutation(count)
        self.parts = {w: np.sort(shuffled[w * size : (w + 1) * size]) for w in range(scenario.workers)}
        self.machine = self._coordinator(self.rows[random.choice(count, 3, replace=False)])
        self.workers: dict[int, FaultyWorker] = {}
        """The present life of each worker, also where it has just died and nobody knows."""
        self._channels: dict[int, ChannelEnd] = {}
        self._lives: dict[int, int] = {}
        self._fence = Fence("job")
        self._starting: set[int] = set()
        self._again = 0
        self._start_random = Random(f"luck {scenario.seed}")
        self._theta: dict[int, tuple[bytes, str]] = {}
        self._last_visit = np.full(count, -1)
        self._last_round: dict[tuple[int, int], int] = {}
        self._round = -1
        self._awake_at = 0.0
        """The coordinator is frozen until then."""
        self._ahead = 0.0
        """Seconds by which the coordinator's clock has jumped."""

    def _coordinator(self, theta: Array) -> Coordinator:
        scenario = self.scenario
        criteria = Criteria(max_iterations=scenario.iterations, tolerance=0)
        algorithm = Clusters()
        parts: list[CoordinatorPart] = [RestingPart(RandomRests(scenario))] if scenario.random_rests else []
        if scenario.random_moves:
            parts.append(BalancePart(BalanceControl("async", criteria, timeout=5.0, plan=RandomMoves(scenario))))
        form = TreeLayout("array", ())
        workers = range(scenario.workers)
        return self._make_coordinator(
            algorithm=algorithm,
            policy=make_policy(SyncSpec(scenario.sync, interval=0.01 if scenario.sync == "fsp" else None)),
            criteria=criteria,
            store=LocalStore(algorithm, theta, empty_statistics()),
            loads={w: LoadShard(AlgorithmRef("x", {}), {}, w, len(workers), 0, form, form) for w in workers},
            timeouts=Timeouts(load=60.0, silence=2.0, report=60.0, hook=60.0, hire=0.5, start=10.0),
            parts=parts,
            collect=scenario.collect,
            debug=scenario.seed % 2 == 0,  # of the others accounts are looked at when somebody is lost, and at the end
            rows=len(self.rows),
            replace_lost_workers=scenario.replace,
        )

    def _make_coordinator(self, **options: Any) -> Coordinator:
        return Coordinator(**options)

    # -- the whole ---------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """To its end; raises `Violation`."""
        try:
            for worker in range(self.scenario.workers):
                self._start_worker(worker)
            for fault in self.scenario.faults:
                self.events.at(fault.at, self.inject, fault)
            self._execute(self.machine.start(0.0))
            while self.done is None:
                before = self.events.count
                self.events.run(1000)
                late = self.events.now > MOST_SECONDS or self.events.count > MOST_EVENTS
                if self.done is None and (late or self.events.count == before):
                    raise Violation(f"the job hangs: {self._where()}")
            return self._outcome(self.done)
        except Violation:
            raise
        except (FlegelError, AssertionError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            if isinstance(error, WorkerLost) and _expected(str(error)):  # a driver ends the job with it, too
                return self._outcome(Done(error))
            raise Violation(f"{type(error).__name__}: {error} ({self._where()})") from error

    def _where(self) -> str:
        job = self.machine
        workers = ", ".join(f"{w.id} {w.phase}{' (stopping)' if w.stopping else ''}" for w in job.view.workers.values())
        return (
            f"{self.events.now:.3f} s, {job.phase}, round {job.view.round}, "
            f"change {job.membership.redistribution.phase or 'none'}, "
            f"hired {sorted(job.membership.roster.hired)}, workers {workers}"
        )

    def _outcome(self, done: Done) -> Outcome:
        job = self.machine
        error = str(done.error) if done.error is not None else ""
        if error and not _expected(error):
            raise Violation(f"the job failed: {error}")
        if not error:
            self._check_end()
        return Outcome(
            scenario=self.scenario,
            seconds=self.events.now,
            events=self.events.count,
            packets=self.network.sent,
            lost=self.network.lost,
            again=self._again + sum(end.channel.again for end in self._channels.values()),
            stale=self.stale,
            commits=len(job.trace),
            moved=balance.control.migrations.points if (balance := job.part(BalancePart)) else 0,
            incidents=len(job.membership.incidents),
            error=error,
            theta=b"".join(a.tobytes() for a in pytree.flatten(job.parameter)),
            objectives=tuple(row.objective for row in job.trace),
        )

    def log(self, text: str) -> None:
        if self._log is not None:
            self._log(f"{self.events.now:9.4f}  {text}")

    # -- coming and going ----------------------------------------------------------------------------------

    def _start_worker(self, number: int) -> None:
        life = self._lives[number] = self._lives.get(number, -1) + 1
        worker = self.workers[number] = self._make_worker(number, life)
        self._fence.admit(number, life)
        channel = ReliableChannel((0, life), patience=PATIENCE, hold=HOLD)
        end = ChannelEnd(channel, self.events, lambda packet: self._to_worker(worker, packet))
        end.asleep_until = self._awake_at
        self._channels[number] = end
        self.log(f"worker {worker.name} is up")

    def _make_worker(self, number: int, life: int) -> FaultyWorker:
        return FaultyWorker(self, number, life)

    def _started(self, worker: int) -> None:
        if worker not in self._starting:
            return
        self._starting.discard(worker)
        if self._start_random.random() < 0.1:
            self.tell(WorkerDied(worker, "could not be started"))
            return
        self._start_worker(worker)
        self.tell(WorkerJoined(worker))

    def _evict(self, number: int, gently: bool) -> None:
        """The coordinator gives this incarnation up; the process may not know."""
        self._starting.discard(number)
        self._fence.expel(number)
        end = self._channels.pop(number, None)
        if end is not None:
            self._again += end.channel.again
            end.channel.close()
        worker = self.workers.pop(number, None)
        if worker is not None and gently:
            worker.die()

    def inject(self, fault: Fault) -> None:
        """Make it happen, unless the job is over."""
        if self.done is not None:
            return
        self.log(f"fault: {fault.kind} {fault.worker} {fault.seconds or ''}")
        worker = self.workers.get(fault.worker)
        match fault.kind:
            case "leave":
                self.tell(LeaveJob(fault.worker))
            case "join":
                self.tell(ScaleTo(len(self.machine.view.workers) + 1))
            case "cut":
                self.network.cut(fault.worker, self.events.now + fault.seconds)
            case "frozen" if fault.worker == COORDINATOR:
                self._freeze(fault.seconds)
            case "jump" if fault.worker == COORDINATOR:
                self._ahead += fault.seconds
            case "deaf" | "mute":
                self.network.cut_one_way(fault.kind, fault.worker, self.events.now + fault.seconds)
            case "slow":
                self.network.delay(fault.worker, fault.seconds)
            case "jump" if worker is not None:
                worker.jump(fault.seconds)
            case "frozen" if worker is not None:
                worker.freeze(fault.seconds)
            case "killed" | "crashed" if worker is not None and not worker.dead:
                worker.die()
                self.events.at(self.events.now + NOTICED_IN, self._notice, worker, fault.kind == "crashed")

    def _freeze(self, seconds: float) -> None:
        """The coordinator does nothing for so long; what comes meanwhile waits, in its order."""
        self._awake_at = self.events.now + seconds
        for end in self._channels.values():
            end.asleep_until = self._awake_at

    def _notice(self, worker: FaultyWorker, fault: bool) -> None:
        if self.workers.get(worker.number) is worker:
            self.tell(WorkerDied(worker.number, "crashed" if fault else "was killed", fault))

    # -- messages ------------------------------------------------------------------------------------------

    def _to_worker(self, worker: FaultyWorker, packet: Packet) -> None:
        self.network.send(COORDINATOR, worker.number, packet, worker.receive, packet)

    def from_worker(self, worker: FaultyWorker, packet: Packet) -> None:
        """Anybody may speak, also somebody who was replaced; who counts is decided by session and fence."""
        if self.events.now < self._awake_at:
            self.events.at(self._awake_at, self.from_worker, worker, packet)
            return
        end = self._channels.get(worker.number)
        if end is None:
            self.stale += 1
            return
        refused = end.channel.refused
        for envelope, arrays in end.receive(packet):
            why = self._fence.refuse(envelope)
            if why is None:
                if isinstance(envelope.body, Report):
                    self.workers[worker.number].in_flight.pop(envelope.sequence, None)
                self.tell(FromWorker(envelope.worker, envelope.body, arrays))
        self.stale += end.channel.refused > refused and packet.session != end.channel.session

    def beat(self, worker: FaultyWorker, visits: int, hook: str) -> None:
        """`hook`: empty for a worker that waits, as in a real process."""
        self.network.send(worker.number, COORDINATOR, "Beat", self._beat, worker.number, worker.life, visits, hook)

    def _beat(self, worker: int, life: int, visits: int, hook: str) -> None:
        if self._fence.speaker(worker) == life:
            self.tell(FromWorker(worker, WorkerBeat(visits, hook)))
        else:
            self.stale += 1

    def tell(self, event: Event) -> None:
        if self.done is not None:
            return
        if self.events.now < self._awake_at:
            self.events.at(self._awake_at, self.tell, event)
            return
        job = self.machine
        before = len(job.trace)
        if self._log is not None and not (isinstance(event, FromWorker) and isinstance(event.body, WorkerBeat)):
            said = event.body if isinstance(event, FromWorker) else event
            self.log(f"coordinator hears {said}" + (f" of {event.worker}" if isinstance(event, FromWorker) else ""))
        commands = list(job.handle(event, self.events.now + self._ahead))
        if job.view.round < self._round:
            raise Violation(f"round {self._round} was followed by round {job.view.round}")
        self._round = job.view.round
        if len(job.trace) > before:
            self.check()
        self._execute(commands)

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(worker, body, arrays):
                    if worker in self._channels:
                        self._channels[worker].send((body, tuple(np.array(a) for a in arrays)))
                case SetTimer(at, timer):
                    self.events.at(max(at - self._ahead, self.events.now), self.tell, timer)
                case StartWorker(worker):
                    self._starting.add(worker)
                    self.events.at(self.events.now + STARTS_IN, self._started, worker)
                case EvictWorker(worker, why, gently):
                    self.log(f"coordinator expels {worker}: {why}")
                    self._evict(worker, gently)
                case Note(text):
                    self.machine.notes.append(text)
                    self.log(f"coordinator notes: {text}")
                case Done():
                    self.done, self.events.over = command, True

    # -- laws ----------------------------------------------------------------------------------------------

    def trained(self, worker: FaultyWorker, round_: int, theta: tuple[Array, ...], ids: Array) -> None:
        """A worker visited points; who was replaced may do what it likes."""
        if self.workers.get(worker.number) is not worker:
            return
        bits = b"".join(a.tobytes() for a in theta)
        known, by = self._theta.setdefault(round_, (bits, worker.name))
        if known != bits:
            raise Violation(f"workers {by} and {worker.name} trained under different θ in round {round_}")
        if round_ < self._last_round.get((worker.number, worker.life), -1):
            raise Violation(f"worker {worker.name} went back to round {round_}")
        self._last_round[worker.number, worker.life] = round_
        if (self._last_visit[ids] >= round_).any():
            raise Violation(f"worker {worker.name} visited points twice in round {round_}")
        self._last_visit[ids] = round_

    def check(self) -> None:
        job = self.machine
        present = [self.workers[w] for w in job.view.workers if w in self.workers]
        if len(present) != len(job.view.workers):
            raise Violation(f"workers {sorted(job.view.workers)} count, {sorted(self.workers)} are there")
        if job.state.points != len(self.rows):
            raise Violation(f"the coordinator counts {job.state.points} points of {len(self.rows)}")
        held = [s.store.collect() for s in present if s.store is not None]
        ids = np.concatenate([h[1] for h in held])
        if not self._each_once(ids):
            raise Violation(f"{len(ids)} points are held, {len(np.unique(ids))} different ones, of {len(self.rows)}")
        labels = np.concatenate([h[0][:, 0] for h in held]).astype(np.int64)
        expected = statistics(self.rows[ids], labels)
        for change in self._open_changes(present):
            pytree.subtract(expected, change)
        for name, total, wanted in zip(expected._fields, pytree.flatten(job.store.statistics), expected, strict=True):
            if np.abs(total - wanted).max() > 1e-10 * max(np.abs(wanted).max(), 1.0):
                raise Violation(f"{name} is {total.tolist()}, not {wanted.tolist()} ({self._where()})")
        self._check_objective()

    def _each_once(self, ids: Array) -> bool:
        """Each row has exactly one number among these, and nothing else has."""
        times = np.bincount(ids, minlength=len(self.rows))
        return len(times) == len(self.rows) and bool((times == 1).all())

    def _open_changes(self, present: list[FaultyWorker]) -> list[Any]:
        """Made, and not yet part of the total: on their way, held, or kept for the next report."""
        found = [change for worker in present for change in worker.in_flight.values()]
        found += list(self.machine.commits.held.values())
        found += [worker.change for worker in present if worker.executor.machine.extra_visits]
        return found

    def _check_objective(self) -> None:
        job = self.machine
        if self.scenario.sync in ("ssp", "asp", "psp") or job.membership.incidents or len(job.trace) < 2:
            return
        old, new = job.trace[-2].objective, job.trace[-1].objective
        if old is not None and new is not None and new > old + 1e-9 * abs(old):
            raise Violation(f"the objective rose from {old} to {new}")

    def _check_end(self) -> None:
        job = self.machine
        if (gap := job.store.discrepancy()) > 1e-10:
            raise Violation(f"statistics and the sum over owners differ by {gap:.2g} at the end")
        if job.verdict is None or job.iteration < self.scenario.iterations:
            raise Violation(f"the job ended after {job.iteration} of {self.scenario.iterations} iterations")
        if self.scenario.collect:
            ids = np.concatenate([found[1] for found in job.collection.states.values()])
            if not self._each_once(ids):
                raise Violation(f"{len(ids)} states were collected, of {len(self.rows)} points")


def run(scenario: Scenario, log: Callable[[str], None] | None = None) -> Outcome:
    """The job under its faults, and compared with a calm one where it must come to the same."""
    found = FaultyJob(scenario, log).run()
    if scenario.sync == "bsp" and not found.incidents and not found.error:  # all may be lost before training began
        without_faults = FaultyJob(scenario.without_faults).run()
        if found.theta != without_faults.theta or found.objectives != without_faults.objectives:
            raise Violation("the result is not that of the same job without faults")
    return found
