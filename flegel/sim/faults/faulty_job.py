"""A whole job under faults, on virtual time, and the laws that must hold whatever happens. No process, no socket.

Coordinator, workers, channels, fence, ledger, holdings and migration are the machines of a real job. The wires lose,
double and reorder; workers die, freeze, are cut off, come back from the dead, join and leave; disks are slow and clocks
are wrong. After every commit:

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

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.core.shard import TILE
from flegel.errors import FlegelError
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.coordinator.balance_control import BalanceControl
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
from flegel.machine.fencing import Fence
from flegel.machine.ledger import Ledger
from flegel.messages import LoadShard, Report, TreeLayout, WorkerBeat
from flegel.plan.balance.planner import Balance, BalancePlan, MoveCost, Proposal
from flegel.plan.balance.remaining_time import TimeLeft
from flegel.plan.balance.settings import BalanceSettings
from flegel.plan.balance.target_passes import WorkerLoad
from flegel.sim.event_queue import EventQueue
from flegel.sim.faults.faulty_worker import (
    COLUMNS,
    HOLD,
    PATIENCE,
    ChannelEnd,
    Clusters,
    FaultyWorker,
    nothing,
    statistics,
)
from flegel.sim.faults.reliable_channel import Packet, ReliableChannel
from flegel.sim.faults.scenarios import HUB, Fault, LossyNetwork, Scenario
from flegel.sync import make_policy

STARTS_IN, NOTICED_IN = 0.05, 0.1  # seconds until a new process is up, until the supervisor sees that one has ended
MOST_SECONDS, MOST_EVENTS = 600.0, 400_000
UNLUCKY = ("no worker is left", "in a row")
"""Errors that end a job rightly: more was lost than anybody could make good."""


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
    """Moves of points for no reason at all."""

    def __init__(self, scenario: Scenario) -> None:
        super().__init__(BalanceSettings())
        self._random = Random(f"whims {scenario.seed}")
        self._left = scenario.whims
        self._ways: list[tuple[int, int]] = []

    def due(self, now: float) -> bool:
        return self._left > 0 and self._random.random() < 0.5

    def plan(
        self, loads: Sequence[WorkerLoad], left: TimeLeft, now: float, carriage: MoveCost | None = None
    ) -> BalancePlan:
        idle = [w for w in loads if not w.busy and not w.full]
        if len(idle) < 2:
            return BalancePlan((), "nobody is free")
        free = {w.worker for w in idle}
        back = [(target, source) for source, target in self._ways if {source, target} <= free]
        if back and self._random.random() < 0.5:  # the way back, along which only states travel
            source, target = self._random.choice(back)
        else:
            source, target = self._random.sample(sorted(free), 2)
        self._ways.append((source, target))
        self._left -= 1
        points = self._random.randint(1, 3 * TILE)
        return BalancePlan((Proposal(source, target, points, "a whim"),), "whims")


class FaultyJob:
    """Make it and `run` it."""

    def __init__(self, scenario: Scenario, log: Callable[[str], None] | None = None) -> None:
        self.scenario, self._log = scenario, log
        self.logged = log is not None
        self.events = EventQueue()
        self.wires = LossyNetwork(scenario, self.events, self.log if log else None)
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
        self.sites: dict[int, FaultyWorker] = {}
        """The present life of each worker, also where it has just died and nobody knows."""
        self._lines: dict[int, ChannelEnd] = {}
        self._lives: dict[int, int] = {}
        self._fence = Fence("job")
        self._hired: set[int] = set()
        self._again = 0
        self._luck = Random(f"luck {scenario.seed}")
        self._theta: dict[int, tuple[bytes, str]] = {}
        self._last_visit = np.full(count, -1)
        self._last_round: dict[tuple[int, int], int] = {}
        self._round = -1

    def _coordinator(self, theta: Array) -> Coordinator:
        scenario = self.scenario
        criteria = Criteria(max_iterations=scenario.iterations, tolerance=0)
        algorithm = Clusters()
        balancing = (
            BalanceControl("async", criteria, patience=5.0, plan=RandomMoves(scenario)) if scenario.whims else None
        )
        form = TreeLayout("array", ())
        workers = range(scenario.workers)
        return Coordinator(
            algorithm=algorithm,
            policy=make_policy(SyncSpec(scenario.sync, interval=0.01 if scenario.sync == "fsp" else None)),
            criteria=criteria,
            parameter=theta,
            ledger=Ledger(algorithm, nothing()),
            loads={w: LoadShard(AlgorithmRef("x", {}), {}, w, len(workers), 0, form, form) for w in workers},
            patience=Timeouts(load=60.0, silence=2.0, report=60.0, hook=60.0, hire=0.5, start=10.0),
            balancing=balancing,
            collect=scenario.collect,
            debug=scenario.seed % 2 == 0,  # of the others accounts are looked at when somebody is lost, and at the end
            rows=len(self.rows),
            replace=scenario.replace,
        )

    # -- the whole ---------------------------------------------------------------------------------------------

    def run(self) -> Outcome:
        """To its end; raises `Violation`."""
        try:
            for worker in range(self.scenario.workers):
                self._employ(worker)
            for misfortune in self.scenario.misfortunes:
                self.events.at(misfortune.at, self._strike, misfortune)
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
            raise Violation(f"{type(error).__name__}: {error} ({self._where()})") from error

    def _where(self) -> str:
        job = self.machine
        workers = ", ".join(f"{w.id} {w.phase}{' (stopping)' if w.stopping else ''}" for w in job.view.workers.values())
        return (
            f"{self.events.now:.3f} s, {job.phase}, round {job.view.round}, crew {job.crew.phase or 'steady'}, "
            f"hired {sorted(job.crew.hired)}, workers {workers}"
        )

    def _outcome(self, done: Done) -> Outcome:
        job = self.machine
        error = str(done.error) if done.error is not None else ""
        if error and not any(words in error for words in UNLUCKY):
            raise Violation(f"the job failed: {error}")
        if not error:
            self._check_end()
        return Outcome(
            scenario=self.scenario,
            seconds=self.events.now,
            events=self.events.count,
            packets=self.wires.sent,
            lost=self.wires.lost,
            again=self._again + sum(line.channel.again for line in self._lines.values()),
            stale=self.stale,
            commits=len(job.trace),
            moved=job.balancing.moves.points if job.balancing else 0,
            incidents=len(job.crew.incidents),
            error=error,
            theta=b"".join(a.tobytes() for a in pytree.flatten(job.parameter)),
            objectives=tuple(row.objective for row in job.trace),
        )

    def log(self, text: str) -> None:
        if self._log is not None:
            self._log(f"{self.events.now:9.4f}  {text}")

    # -- coming and going ----------------------------------------------------------------------------------

    def _employ(self, worker: int) -> None:
        life = self._lives[worker] = self._lives.get(worker, -1) + 1
        site = self.sites[worker] = FaultyWorker(self, worker, life)
        self._fence.admit(worker, life)
        channel = ReliableChannel((0, life), patience=PATIENCE, hold=HOLD)
        self._lines[worker] = ChannelEnd(channel, self.events, lambda packet: self._to_site(site, packet))
        self.log(f"worker {site.name} is up")

    def _hire(self, worker: int) -> None:
        if worker not in self._hired:
            return
        self._hired.discard(worker)
        if self._luck.random() < 0.1:
            self._tell(WorkerDied(worker, "could not be started"))
            return
        self._employ(worker)
        self._tell(WorkerJoined(worker))

    def _expel(self, worker: int, gently: bool) -> None:
        """The coordinator is done with this life; the process may not know."""
        self._hired.discard(worker)
        self._fence.expel(worker)
        line = self._lines.pop(worker, None)
        if line is not None:
            self._again += line.channel.again
            line.channel.close()
        site = self.sites.pop(worker, None)
        if site is not None and gently:
            site.die()

    def _strike(self, m: Fault) -> None:
        if self.done is not None:
            return
        self.log(f"misfortune: {m.kind} {m.worker} {m.seconds or ''}")
        site = self.sites.get(m.worker)
        match m.kind:
            case "leave":
                self._tell(LeaveJob(m.worker))
            case "join":
                self._tell(ScaleTo(len(self.machine.view.workers) + 1))
            case "cut":
                self.wires.cut(m.worker, self.events.now + m.seconds)
            case "frozen" if site is not None:
                site.freeze(m.seconds)
            case "killed" | "crashed" if site is not None and not site.dead:
                site.die()
                self.events.at(self.events.now + NOTICED_IN, self._notice, site, m.kind == "crashed")

    def _notice(self, site: FaultyWorker, fault: bool) -> None:
        if self.sites.get(site.number) is site:
            self._tell(WorkerDied(site.number, "crashed" if fault else "was killed", fault))

    # -- messages ------------------------------------------------------------------------------------------

    def _to_site(self, site: FaultyWorker, packet: Packet) -> None:
        self.wires.send(HUB, site.number, packet, site.receive, packet)

    def from_site(self, site: FaultyWorker, packet: Packet) -> None:
        """Anybody may speak, also somebody who was replaced; who counts is decided by session and fence."""
        line = self._lines.get(site.number)
        if line is None:
            self.stale += 1
            return
        refused = line.channel.refused
        for envelope, arrays in line.hear(packet):
            why = self._fence.refuse(envelope)
            if why is None:
                if isinstance(envelope.body, Report):
                    self.sites[site.number].in_flight.pop(envelope.sequence, None)
                self._tell(FromWorker(envelope.worker, envelope.body, arrays))
        self.stale += line.channel.refused > refused and packet.session != line.channel.session

    def beat(self, site: FaultyWorker, visits: int) -> None:
        self.wires.send(site.number, HUB, "Beat", self._beat, site.number, site.life, visits)

    def _beat(self, worker: int, life: int, visits: int) -> None:
        if self._fence.speaker(worker) == life:
            self._tell(FromWorker(worker, WorkerBeat(visits, "updateDataPoint")))
        else:
            self.stale += 1

    def _tell(self, event: Event) -> None:
        if self.done is not None:
            return
        job = self.machine
        before = len(job.trace)
        if self._log is not None and not (isinstance(event, FromWorker) and isinstance(event.body, WorkerBeat)):
            said = event.body if isinstance(event, FromWorker) else event
            self.log(f"coordinator hears {said}" + (f" of {event.worker}" if isinstance(event, FromWorker) else ""))
        commands = list(job.handle(event, self.events.now))
        if job.view.round < self._round:
            raise Violation(f"round {self._round} was followed by round {job.view.round}")
        self._round = job.view.round
        if len(job.trace) > before:
            self._check()
        self._execute(commands)

    def _execute(self, commands: list[Command]) -> None:
        for command in commands:
            match command:
                case Send(worker, body, arrays):
                    if worker in self._lines:
                        self._lines[worker].say((body, tuple(np.array(a) for a in arrays)))
                case SetTimer(at, timer):
                    self.events.at(at, self._tell, timer)
                case StartWorker(worker):
                    self._hired.add(worker)
                    self.events.at(self.events.now + STARTS_IN, self._hire, worker)
                case EvictWorker(worker, why, gently):
                    self.log(f"coordinator expels {worker}: {why}")
                    self._expel(worker, gently)
                case Note(text):
                    self.machine.notes.append(text)
                    self.log(f"coordinator notes: {text}")
                case Done():
                    self.done, self.events.over = command, True

    # -- laws ----------------------------------------------------------------------------------------------

    def trained(self, site: FaultyWorker, round_: int, theta: tuple[Array, ...], ids: Array) -> None:
        """A site visited points; who was replaced may do what it likes."""
        if self.sites.get(site.number) is not site:
            return
        bits = b"".join(a.tobytes() for a in theta)
        known, by = self._theta.setdefault(round_, (bits, site.name))
        if known != bits:
            raise Violation(f"workers {by} and {site.name} trained under different θ in round {round_}")
        if round_ < self._last_round.get((site.number, site.life), -1):
            raise Violation(f"worker {site.name} went back to round {round_}")
        self._last_round[site.number, site.life] = round_
        if (self._last_visit[ids] >= round_).any():
            raise Violation(f"worker {site.name} visited points twice in round {round_}")
        self._last_visit[ids] = round_

    def _check(self) -> None:
        job = self.machine
        crew = [self.sites[w] for w in job.view.workers if w in self.sites]
        if len(crew) != len(job.view.workers):
            raise Violation(f"workers {sorted(job.view.workers)} count, {sorted(self.sites)} are there")
        if job.points != len(self.rows):
            raise Violation(f"the coordinator counts {job.points} points of {len(self.rows)}")
        held = [s.holdings.collect() for s in crew if s.holdings is not None]
        ids = np.concatenate([h[1] for h in held])
        if not self._each_once(ids):
            raise Violation(f"{len(ids)} points are held, {len(np.unique(ids))} different ones, of {len(self.rows)}")
        labels = np.concatenate([h[0][:, 0] for h in held]).astype(np.int64)
        expected = statistics(self.rows[ids], labels)
        for change in self._open_changes(crew):
            pytree.subtract(expected, change)
        for name, total, wanted in zip(expected._fields, pytree.flatten(job.ledger.total), expected, strict=True):
            if np.abs(total - wanted).max() > 1e-10 * max(np.abs(wanted).max(), 1.0):
                raise Violation(f"{name} is {total.tolist()}, not {wanted.tolist()} ({self._where()})")
        self._check_objective()

    def _each_once(self, ids: Array) -> bool:
        """Each row has exactly one number among these, and nothing else has."""
        times = np.bincount(ids, minlength=len(self.rows))
        return len(times) == len(self.rows) and bool((times == 1).all())

    def _open_changes(self, crew: list[FaultyWorker]) -> list[Any]:
        """Made, and not yet part of the total: on their way, held, or kept for the next report."""
        found = [change for site in crew for change in site.in_flight.values()]
        found += list(self.machine._held.values())
        found += [site.change for site in crew if site.machine._extra_visits]
        return found

    def _check_objective(self) -> None:
        job = self.machine
        if self.scenario.sync in ("ssp", "asp", "psp") or job.crew.incidents or len(job.trace) < 2:
            return
        old, new = job.trace[-2].objective, job.trace[-1].objective
        if old is not None and new is not None and new > old + 1e-9 * abs(old):
            raise Violation(f"the objective rose from {old} to {new}")

    def _check_end(self) -> None:
        job = self.machine
        if (gap := job.ledger.discrepancy()) > 1e-10:
            raise Violation(f"statistics and the sum over owners differ by {gap:.2g} at the end")
        if job.verdict is None or job.iteration < self.scenario.iterations:
            raise Violation(f"the job ended after {job.iteration} of {self.scenario.iterations} iterations")
        if self.scenario.collect:
            ids = np.concatenate([found[1] for found in job.states.values()])
            if not self._each_once(ids):
                raise Violation(f"{len(ids)} states were collected, of {len(self.rows)} points")


def run(scenario: Scenario, log: Callable[[str], None] | None = None) -> Outcome:
    """The job under its faults, and compared with a calm one where it must come to the same."""
    found = FaultyJob(scenario, log).run()
    if scenario.sync == "bsp" and not found.incidents and not found.error:  # all may be lost before training began
        calm = FaultyJob(scenario.calm).run()
        if found.theta != calm.theta or found.objectives != calm.objectives:
            raise Violation("the result is not that of the same job without faults")
    return found
