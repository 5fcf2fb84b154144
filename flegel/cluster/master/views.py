"""Jobs and slaves as clients see them. Pure."""

from __future__ import annotations

from flegel.cluster.master.facts import QUEUED, RUNNING, JobEntry
from flegel.cluster.transport.protocol import CoordinatorStatus, JobView, SlaveBeat, SlaveView


def servers_of(job: JobEntry, status: CoordinatorStatus) -> int:
    """Parameter servers of a running job; at least one is left for a worker."""
    seen = status.snapshot.get("servers")
    wanted = seen.get("wanted", 0) if seen else job.spec_now.servers
    return min(int(wanted) if str(wanted).isdigit() else 0, max(job.places - 1, 0))


def job_view(job: JobEntry, status: CoordinatorStatus | None, waits: str) -> JobView:
    """A job with one sentence about its state. `waits`: what a waiting job waits for, where that is known."""
    reason = job.why
    if job.state == QUEUED:
        reason = "; ".join(filter(None, (job.why, waits or "waits for its turn")))
    elif job.state == RUNNING:
        waiting = status.snapshot.get("waits_for") if status is not None else ""
        reason = "; ".join(filter(None, (status.phase, waiting))) if status is not None else "starting"
    servers = servers_of(job, status) if status is not None else 0
    return JobView(
        job=job.id,
        owner=job.owner,
        state=job.state,
        algorithm=short_name(job.spec.algorithm.name),
        data=job.spec.data,
        priority=job.spec.priority,
        workers=job.places - servers if job.state == RUNNING else job.wanted,
        submitted=job.submitted,
        reason=reason,
        started=job.started,
        ended=job.ended,
        attempt=job.attempt,
        place=job.slave if job.state == RUNNING else "",
        slots=job.slots,
        slots_of_worker=0 if job.size.alone else job.size.slots,
        trace=job.trace,
        usage=job.usage,
        snapshot=status.snapshot if status is not None else {},
    )


def slave_view(beat: SlaveBeat, present: bool, silent: bool, used_slots: int) -> SlaveView:
    state = "silent" if silent else "draining" if beat.draining else "here" if present else "awaited"
    return SlaveView(beat.slave, beat.address, beat.slots, used_slots, beat.load, beat.memory, state)


def short_name(algorithm: str) -> str:
    """`flegel.algorithms.kmeans.kmeans:KMeans` is shown as kmeans, a user's class by its name."""
    module, colon, name = algorithm.partition(":")
    return (module.rpartition(".")[2] if colon else name or module)[:40]
