"""Makes the workers of a job run where they should: compares what its coordinator wants with what slaves report. Pure.

Every decision compares the wanted state with the reported one, so lost, repeated and late messages need no special
treatment: the next heartbeat leads to the same order again.
"""

from __future__ import annotations

from flegel.cluster.master.facts import RUNNING, JobEntry, WorkersPlaced
from flegel.cluster.master.placement import allocate
from flegel.cluster.master.state import KnownSlave, MasterState, ProcessId
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    CoordinatorStatus,
    DrainWorkers,
    EndProcesses,
    ForgetProcesses,
    LaunchWorker,
    ProcessStatus,
    WorkerEnded,
    runs_submitted_code,
)
from flegel.configuration.active import active


class WorkerStaffing:
    """The workers of all running jobs."""

    def __init__(self, state: MasterState) -> None:
        self._state = state
        self._losses: dict[ProcessId, tuple[str, bool]] = {}
        """Workers that have ended while their coordinator wants them: how, and whether by the job's fault."""
        self._leaving: set[ProcessId] = set()
        """Workers on draining slaves whose coordinator was told to move their points."""

    def worker_ended(self, slave: KnownSlave, job: JobEntry, process: ProcessStatus) -> None:
        """A heartbeat says that a worker has ended: its coordinator is told until it wants another incarnation."""
        name = (process.job, process.attempt, process.worker, process.incarnation)
        status = self._state.coordinator(job)
        if status is None:
            return  # its coordinator has not reported yet; a later heartbeat says it again
        if status.wanted.get(process.worker) == process.incarnation:
            self._losses[name] = (process.why, process.fault)
            self._state.send(job.slave, WorkerEnded(*name, process.why, process.fault))
        else:
            self._state.send(slave.name, ForgetProcesses((name,)))

    def coordinator_reported(self, job: JobEntry, status: CoordinatorStatus) -> None:
        """Tell the coordinator again of losses that it has not reacted to."""
        for name, how in list(self._losses.items()):
            *attempt, worker, incarnation = name
            if attempt == [job.id, job.attempt]:
                if status.wanted.get(worker) == incarnation:
                    self._state.send(job.slave, WorkerEnded(*name, *how))
                else:
                    del self._losses[name]

    def reconcile(self, job: JobEntry) -> None:
        """Every worker that the coordinator wants runs on a slot of the job; no other worker does."""
        status = self._state.coordinator(job)
        if job.state != RUNNING or status is None:
            return
        slaves = self._state.slaves
        if any(name not in slaves or not slaves[name].present for name in job.slots):
            return  # they may run what is missing; a heartbeat or their loss will tell
        self._acquire_slots(job, len(status.wanted))
        used, seen = self._count(job, status)
        for worker, incarnation in status.wanted.items():
            if (worker, incarnation) in seen or (job.id, job.attempt, worker, incarnation) in self._losses:
                continue
            if worker not in status.configs:
                continue  # there were many at once; a later heartbeat brings its configuration
            room = {s: job.size.workers(count) - used[s] for s, count in job.slots.items() if slaves[s].open}
            free = [s for s in room if room[s] > 0]
            if not free:
                return
            chosen = min(free, key=lambda s: (-room[s], -job.threads_on(s), s))
            used[chosen] += 1
            self._launch(job, status, slaves[chosen], worker, incarnation)
        self._release_slots(job, status, used)

    def _count(self, job: JobEntry, status: CoordinatorStatus) -> tuple[dict[str, int], dict[tuple[int, int], str]]:
        """Workers by slave, and where each reported or ordered worker is; unwanted workers are ended."""
        used = dict.fromkeys(job.slots, 0)
        seen: dict[tuple[int, int], str] = {}
        for slave in self._state.slaves.values():
            for process in slave.processes(job):
                if process.worker == COORDINATOR:
                    continue
                seen[process.worker, process.incarnation] = slave.name
                if process.alive and status.wanted.get(process.worker) == process.incarnation:
                    used[slave.name] = used.get(slave.name, 0) + 1
                elif process.alive:
                    order = EndProcesses(job.id, job.attempt, process.worker, process.incarnation)
                    self._state.send(slave.name, order)
            for name, ordered_at in list(slave.ordered.items()):
                *attempt, worker, incarnation = name
                if attempt == [job.id, job.attempt] and (worker, incarnation) not in seen:
                    used[slave.name] = used.get(slave.name, 0) + 1
                    if status.wanted.get(worker) != incarnation:
                        del slave.ordered[name]
                    elif self._state.now - ordered_at >= active().cluster.repeat_order_seconds:
                        self._launch(job, status, slave, worker, incarnation)
                    seen[worker, incarnation] = slave.name
        return used, seen

    def _launch(
        self, job: JobEntry, status: CoordinatorStatus, slave: KnownSlave, worker: int, incarnation: int
    ) -> None:
        """Note that a slave was asked to start this worker, and send the order once the coordinator has told its
        configuration."""
        slave.ordered[job.id, job.attempt, worker, incarnation] = self._state.now
        if worker in status.configs:
            config, spec = status.configs[worker], job.spec
            order = LaunchWorker(
                job.id, job.attempt, worker, incarnation, config, spec.memory, spec.data, runs_submitted_code(spec),
                job.threads_on(slave.name),
            )  # fmt: skip
            self._state.send(slave.name, order)

    def _acquire_slots(self, job: JobEntry, wanted_workers: int) -> None:
        """Slots that were lost with a slave, or never found, as far as some are free now."""
        if wanted_workers > job.places:
            slots = allocate(wanted_workers, self._state.capacities(), job.slots, job.size, partly=True)
            if slots is not None and slots != job.slots:
                self._state.record(WorkersPlaced(job.id, self._state.at, job.attempt, slots))

    def _release_slots(self, job: JobEntry, status: CoordinatorStatus, used: dict[str, int]) -> None:
        """Slots that the job has left: on slaves that go away, or because it was made smaller. `used`: workers by
        slave."""
        size, slaves = job.size, self._state.slaves
        slots = {s: count if slaves[s].open else size.slots_in_use(used[s], count) for s, count in job.slots.items()}
        was_scaled = job.workers is not None or job.servers is not None or job.spec.server_count != "fixed"
        spare = size.workers_of(slots) - max(len(status.wanted), job.workers or 0) if was_scaled else 0
        idle = {s: size.workers(count) - used[s] for s, count in slots.items()}
        for name in sorted(slots, key=lambda s: -idle[s]):
            released = min(spare, idle[name])
            if released > 0:
                slots[name] = size.slots_in_use(size.workers(slots[name]) - released, slots[name])
                spare -= released
        slots = {name: count for name, count in slots.items() if count}
        if slots != job.slots and slots:
            self._state.record(WorkersPlaced(job.id, self._state.at, job.attempt, slots))

    def slave_drains(self, job: JobEntry, slave: KnownSlave) -> None:
        """Tell the coordinator to move the points of the workers on this slave to its other workers, before the slave
        ends."""
        status = self._state.coordinators.get(job.id)
        if status is None or not status.elastic or len(status.wanted) < 2:
            return
        names = {
            (p.job, p.attempt, p.worker, p.incarnation)
            for p in slave.processes(job)
            if p.alive and p.worker != COORDINATOR and status.wanted.get(p.worker) == p.incarnation
        }
        new = sorted(names - self._leaving)
        if new and len(names) < len(status.wanted):
            self._leaving |= names
            self._state.send(job.slave, DrainWorkers(job.id, job.attempt, tuple(worker for _, _, worker, _ in new)))

    def slave_lost(self, job: JobEntry, slave: KnownSlave, why: str) -> None:
        """The coordinator is told which workers it has lost, and gets other slots where there are some."""
        lost = {(p.worker, p.incarnation) for p in slave.processes(job) if p.alive}
        lost |= {name[2:] for name in slave.ordered if name[:2] == (job.id, job.attempt)}
        status = self._state.coordinators.get(job.id)
        for worker, incarnation in sorted(lost):
            if status is not None and status.wanted.get(worker) == incarnation:
                self._losses[job.id, job.attempt, worker, incarnation] = (f"is lost: {why}", False)
                order = WorkerEnded(job.id, job.attempt, worker, incarnation, f"is lost: {why}")
                self._state.send(job.slave, order)
        left = {name: count for name, count in job.slots.items() if name != slave.name}
        slots = allocate(job.places, self._state.capacities(), left, job.size) or left
        self._state.record(WorkersPlaced(job.id, self._state.at, job.attempt, slots))

    def forget(self, job: JobEntry) -> None:
        """Drop what is known about the workers of a job whose attempt has ended."""
        self._losses = {name: how for name, how in self._losses.items() if name[0] != job.id}
        self._leaving = {name for name in self._leaving if name[0] != job.id}
        for slave in self._state.slaves.values():
            slave.ordered = {name: at for name, at in slave.ordered.items() if name[0] != job.id}
