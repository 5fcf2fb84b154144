"""A cluster without processes: slaves that execute orders, messages that get lost, a master that crashes.

The master machine is the real one, and so are the bytes of its journal; everything else is a few lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from flegel.cluster.master.actions import Action, Caller, RecordFact, ReplyTo, SendTo
from flegel.cluster.master.facts import OVER, RUNNING
from flegel.cluster.master.journal import JOURNAL_HEADER, frame, read
from flegel.cluster.master.master import Master
from flegel.cluster.transport.protocol import (  # fmt: skip
    COORDINATOR,
    Accepted,
    CancelJob,
    ClusterJob,
    CoordinatorStatus,
    EndProcesses,
    ForgetProcesses,
    LaunchCoordinator,
    LaunchWorker,
    ProcessStatus,
    ResumeJob,
    SlaveBeat,
    SubmitJob,
    ToClient,
    ToSlave,
    WorkerEnded,
)
from flegel.job import AlgorithmRef

Name = tuple[str, int, int, int]


def fresh_status(job: str, attempt: int, wanted: dict[int, int]) -> CoordinatorStatus:
    """A status with the configuration of each wanted worker."""
    return CoordinatorStatus(job, attempt, wanted, dict.fromkeys(wanted, "config"))


@dataclass
class FakeSlave:
    """Reports processes as a real slave does, without running any."""

    name: str
    slots: int
    boot: int = 0
    up: bool = True
    draining: bool = False
    frozen: bool = False
    """Its process is stopped: it sends nothing, its connection stays open, and what it runs goes on."""
    cut: bool = False
    """The network is down: nothing gets through, and nobody is told."""
    processes: dict[Name, ProcessStatus] = field(default_factory=dict)
    coordinators: dict[tuple[str, int], CoordinatorStatus] = field(default_factory=dict)
    most: int = 0
    threads: dict[Name, int] = field(default_factory=dict)
    """What each worker was given; 0: it is no team."""

    def slots_in_use(self) -> int:
        return sum(max(self.threads.get(name, 0), 1) for name in self.living() if name[2] != COORDINATOR)

    def beat(self) -> SlaveBeat:
        coordinators = tuple(d for d in self.coordinators.values())
        return SlaveBeat(
            self.name, f"{self.name}.{self.boot}", self.slots, "host", 0.0, 0, self.draining,
            tuple(self.processes.values()), coordinators,
        )  # fmt: skip

    def execute(self, order: ToSlave) -> None:
        match order:
            case LaunchCoordinator(job=job, attempt=attempt, workers=workers):
                name = (job, attempt, COORDINATOR, 0)
                if name not in self.processes:
                    self.processes[name] = ProcessStatus(*name)
                    self.coordinators[job, attempt] = fresh_status(job, attempt, dict.fromkeys(range(workers), 0))
            case LaunchWorker(job=job, attempt=attempt, worker=worker, incarnation=incarnation, threads=threads):
                name = (job, attempt, worker, incarnation)
                if name not in self.processes:
                    self.processes[name], self.threads[name] = ProcessStatus(*name), threads
            case EndProcesses(job=job, attempt=attempt, worker=worker, incarnation=incarnation):
                for name in list(self.processes):
                    if name[:2] == (job, attempt) and (worker is None or name[2:] == (worker, incarnation)):
                        self.end(name, "lost", "was dismissed")
            case ForgetProcesses(processes=processes):
                for name in processes:
                    if name in self.processes and not self.processes[name].alive:
                        del self.processes[name]
                        if name[2] == COORDINATOR:
                            self.coordinators.pop(name[:2], None)
            case WorkerEnded(job=job, attempt=attempt, worker=worker, incarnation=incarnation):
                status = self.coordinators.get((job, attempt))
                if status is not None and status.wanted.get(worker) == incarnation and self.alive(job, attempt):
                    wanted = {**status.wanted, worker: incarnation + 1}  # the coordinator wanted a new one
                    self.coordinators[job, attempt] = fresh_status(job, attempt, wanted)

    def alive(self, job: str, attempt: int) -> bool:
        process = self.processes.get((job, attempt, COORDINATOR, 0))
        return process is not None and process.alive

    def end(self, name: Name, outcome: str, why: str, fault: bool = False) -> None:
        if self.processes[name].alive:
            self.processes[name] = ProcessStatus(*name, alive=False, outcome=outcome, why=why, fault=fault)

    def living(self) -> list[Name]:
        return [name for name, process in self.processes.items() if process.alive]


class SimulatedCluster:
    """Master, slaves, journal and messages under way, on virtual time."""

    def __init__(self, slaves: int = 2, slots: int = 2) -> None:
        self.now = 1000.0
        self.disk = JOURNAL_HEADER
        self.slaves = {f"s{i}": FakeSlave(f"s{i}", slots) for i in range(slaves)}
        self.tickets: dict[str, str] = {}
        """What clients were told: ticket → job."""
        self.ran: dict[str, int] = {}
        """How often a job's result was made on some slave."""
        self.wire: list[tuple[str, ToSlave]] = []
        self.torn = 0
        self.restart()

    # -- the master ----------------------------------------------------------------------------------------

    def restart(self, keep: int | None = None) -> None:
        """The master is killed; with `keep`, only so many bytes of what it wrote last have reached the disk."""
        table, good = read(self.disk)
        self.disk = self.disk[:good]
        self.wire.clear()
        self.master = Master(table, self.now, 0.0)

    def do(self, actions: list[Action], crash: int | None = None) -> ToClient | None:
        """Carry actions out in the right order; `crash` kills the master after so many bytes of its facts."""
        content = b"".join(frame(a.fact) for a in actions if isinstance(a, RecordFact))
        if crash is not None and content:
            self.disk += content[: crash % (len(content) + 1)]
            self.restart()
            return None
        self.disk += content
        answer = None
        for action in actions:
            match action:
                case SendTo(slave, order):
                    self.wire.append((slave, order))
                case ReplyTo(given):
                    answer = given
        return answer

    def submit(self, ticket: str, workers: int | None, owner: str, crash: int | None = None, **more: Any) -> None:
        spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs", workers=workers, **more)
        answer = self.do(self.master.request_received(Caller(owner), SubmitJob(ticket, spec), self.now), crash)
        if isinstance(answer, Accepted):
            assert self.tickets.setdefault(ticket, answer.job) == answer.job, "the same ticket is the same job"

    def cancel(self, job: str, crash: int | None = None) -> None:
        self.do(self.master.request_received(Caller("x", admin=True), CancelJob(job), self.now), crash)

    def resume(self, job: str) -> None:
        self.do(self.master.request_received(Caller("x", admin=True), ResumeJob(job), self.now))

    def tick(self, seconds: float, crash: int | None = None) -> None:
        """The master runs on for so long; it ticks twice a second."""
        end = self.now + seconds
        while self.now < end:
            self.now = min(self.now + 0.5, end)
            gone = {name for name, slave in self.slaves.items() if not slave.up}
            self.do(self.master.tick(self.now, gone), crash)

    def freeze_master(self, seconds: float) -> None:
        """The master is stopped for so long; the first thing that it does afterwards is to look at the clock."""
        self.now += seconds
        self.do(self.master.tick(self.now, {name for name, slave in self.slaves.items() if not slave.up}))

    # -- the wire ------------------------------------------------------------------------------------------

    def beat(self, name: str, crash: int | None = None) -> None:
        slave = self.slaves[name]
        if slave.up and not slave.frozen and not slave.cut:
            self.do(self.master.beat_received(slave.beat(), self.now), crash)

    def deliver(self, lose: bool = False, twice: bool = False) -> None:
        """The oldest order under way."""
        if not self.wire:
            return
        name, order = self.wire.pop(0)
        if lose or not self.slaves[name].up or self.slaves[name].cut:
            return
        if self.slaves[name].frozen:
            self.wire.append((name, order))  # it will read that when it wakes up
            return
        for _ in range(2 if twice else 1):
            self.slaves[name].execute(order)

    # -- what slaves do ------------------------------------------------------------------------------------

    def finish(self, name: str, pick: int) -> None:
        """A coordinator that has all its workers is done."""
        slave = self.slaves[name]
        coordinators = [n for n in slave.living() if n[2] == COORDINATOR and self.has_all_workers(n)]
        if coordinators:
            chosen = coordinators[pick % len(coordinators)]
            slave.end(chosen, "done", "converged")
            self.ran[chosen[0]] = self.ran.get(chosen[0], 0) + 1

    def has_all_workers(self, coordinator: Name) -> bool:
        status = next(
            s.coordinators[coordinator[:2]] for s in self.slaves.values() if coordinator[:2] in s.coordinators
        )
        running = {n[2:] for s in self.slaves.values() if s.up for n in s.living() if n[:2] == coordinator[:2]}
        return set(status.wanted.items()) <= running

    def kill_process(self, name: str, pick: int, fault: bool) -> None:
        slave = self.slaves[name]
        living = slave.living()
        if living:
            slave.end(living[pick % len(living)], "lost", "was killed", fault)

    def kill_slave(self, name: str) -> None:
        slave = self.slaves[name]
        slave.up = False
        slave.processes.clear()
        slave.coordinators.clear()

    def start_slave(self, name: str) -> None:
        slave = self.slaves[name]
        if not slave.up:
            slave.up, slave.draining, slave.frozen, slave.cut = True, False, False, False
            slave.boot += 1

    # -- what must hold ------------------------------------------------------------------------------------

    def check(self) -> None:
        table, good = read(self.disk)
        assert good == len(self.disk) and table == self.master.table, "the journal gives exactly this table"
        jobs = self.master.table.jobs
        for ticket, job in self.tickets.items():
            assert self.master.table.tickets[ticket] == job and job in jobs, "no job that was accepted is lost"
        assert len(set(self.master.table.tickets.values())) == len(jobs), "and none is there twice"
        for name, slave in self.slaves.items():
            used = sum(j.slots.get(name, 0) for j in jobs.values() if j.state == RUNNING)
            assert used <= slave.slots, f"{name} has {used} slots of {slave.slots}"
        for job in jobs.values():
            assert (job.state == RUNNING) == bool(job.slots) or job.state == RUNNING

    def settle(self) -> None:
        """No more faults: slaves come back, messages arrive, coordinators finish; then all must be over."""
        for name in self.slaves:
            self.start_slave(name)
            self.slaves[name].draining = self.slaves[name].frozen = self.slaves[name].cut = False
        for _ in range(400):
            for name in self.slaves:
                self.beat(name)
            for _ in range(len(self.wire)):
                self.deliver()
            for name in self.slaves:
                for pick in range(4):
                    self.finish(name, pick)
            self.tick(1.0)
            if all(j.state in OVER for j in self.master.table.jobs.values()) and not any(
                s.processes for s in self.slaves.values()
            ):
                break
        self.check()
        for job in self.master.table.jobs.values():
            assert job.state in OVER, f"{self.master.view(job)}"
            assert job.state != "done" or self.ran.get(job.id, 0) >= 1
        for slave in self.slaves.values():
            assert not slave.processes, f"{slave.name} still has {slave.processes}"
