"""Fits records into the largest size of a message: what is needed least is omitted first. Pure.

Messages have a largest size, and what jobs and user code put into them has none. What decisions depend on (which
processes there are, how they ended) is never omitted; what is for people, and what can follow later, is.
"""

from __future__ import annotations

import msgspec

from flegel.cluster.transport.protocol import CoordinatorStatus, JobView, ProcessStatus, SlaveBeat
from flegel.errors import UsageError

MAX_CAUSE_CHARACTERS, MAX_TRACEBACK_CHARACTERS = 2_000, 20_000
"""Of the cause of a failure and of its traceback, as a heartbeat passes them on; the log has all of it."""
UNBOUNDED_SNAPSHOT_FIELDS = ("workers", "flows", "incidents", "news", "reason", "servers")
"""Parts of a snapshot that grow with the job; lists of jobs omit them, `flegel status JOB` has them."""
MAX_LISTED_SNAPSHOT_BYTES = 1000
"""Of a snapshot in a list of jobs; a larger one is omitted, so that some 900 jobs fit into an answer."""
MAX_LISTED_TEXT_CHARACTERS = 300
"""Of a cause in a list of jobs, for the same reason."""

_size = msgspec.msgpack.Encoder().encode


def size(record: object) -> int:
    return len(_size(record))


def fitted(beat: SlaveBeat, most_bytes: int) -> SlaveBeat:
    """The heartbeat in at most so many bytes.

    The configuration of a worker is needed once, before it starts, so those that do not fit go with a later heartbeat:
    every job gets an even part of half the space. Progress and tracebacks are omitted if that is not enough.
    """
    needing = [status for status in beat.coordinators if status.configs]
    each = most_bytes // 2 // max(len(needing), 1)
    beat.coordinators = tuple(_some_configs(status, each) for status in beat.coordinators)
    if size(beat) <= most_bytes:
        return beat
    beat.coordinators = tuple(
        msgspec.structs.replace(status, snapshot={}, last_loss=status.last_loss[:MAX_LISTED_TEXT_CHARACTERS])
        for status in beat.coordinators
    )
    if size(beat) <= most_bytes:
        return beat
    beat.processes = tuple(
        msgspec.structs.replace(p, trace="", why=p.why[:MAX_LISTED_TEXT_CHARACTERS]) for p in beat.processes
    )
    if size(beat) <= most_bytes:
        return beat
    raise UsageError(
        f"The heartbeat of slave {beat.slave} takes {size(beat)} bytes, and a message has {most_bytes}; start it with "
        "fewer --slots."
    )


def _some_configs(status: CoordinatorStatus, most: int) -> CoordinatorStatus:
    """The status with as many workers' configurations as fit into `most` bytes."""
    left, configs = most, {}
    for worker, config in status.configs.items():
        left -= len(config.encode()) + 16  # 16 bytes: its key and lengths
        if left < 0:
            break
        configs[worker] = config
    return status if len(configs) == len(status.configs) else msgspec.structs.replace(status, configs=configs)


def shortened(process: ProcessStatus) -> ProcessStatus:
    """The status with its cause and traceback cut to the length that is passed on."""
    return msgspec.structs.replace(
        process, why=process.why[:MAX_CAUSE_CHARACTERS], trace=process.trace[-MAX_TRACEBACK_CHARACTERS:]
    )


def listed(jobs: tuple[JobView, ...], most_bytes: int) -> tuple[JobView, ...]:
    """The newest jobs that fit, in their order, without what only `flegel status JOB` shows."""
    kept: list[JobView] = []
    left = most_bytes
    for job in reversed(jobs):
        snapshot = {name: value for name, value in job.snapshot.items() if name not in UNBOUNDED_SNAPSHOT_FIELDS}
        line = msgspec.structs.replace(
            job,
            trace="",
            reason=job.reason[:MAX_LISTED_TEXT_CHARACTERS],
            data=job.data[:MAX_LISTED_TEXT_CHARACTERS],
            snapshot=snapshot if size(snapshot) < MAX_LISTED_SNAPSHOT_BYTES else {},
        )
        left -= size(line)
        if left < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))
