"""Fits records into the largest size of a message: what is needed least is omitted first. Pure.

Messages have a largest size, and what jobs and user code put into them has none. What decisions depend on (which
processes there are, how they ended) is never omitted; what is for people, and what can follow later, is.
"""

from __future__ import annotations

import msgspec

from flegel.cluster.transport.protocol import CoordinatorStatus, JobView, ProcessStatus, SlaveBeat
from flegel.errors import UsageError

WHY, TRACE = 2_000, 20_000
"""Characters of a cause and of a traceback that are passed on."""
LONG = ("workers", "flows", "incidents", "news", "reason", "servers")
"""Parts of a snapshot of any length; `flegel status JOB` has them."""
GLANCE = 1000
LINE = 300
"""Characters of a cause in a list of jobs."""

_size = msgspec.msgpack.Encoder().encode


def size(record: object) -> int:
    return len(_size(record))


def fitted(beat: SlaveBeat, most: int) -> SlaveBeat:
    """The heartbeat in at most so many bytes.

    The configuration of a worker is needed once, before it starts, so those that do not fit go with a later heartbeat:
    every job gets an even part of half the space. Progress and tracebacks are omitted if that is not enough.
    """
    needing = [status for status in beat.coordinators if status.configs]
    each = most // 2 // max(len(needing), 1)
    beat.coordinators = tuple(_some_configs(status, each) for status in beat.coordinators)
    if size(beat) <= most:
        return beat
    beat.coordinators = tuple(
        msgspec.structs.replace(status, glance={}, last_loss=status.last_loss[:LINE]) for status in beat.coordinators
    )
    if size(beat) <= most:
        return beat
    beat.processes = tuple(msgspec.structs.replace(p, trace="", why=p.why[:LINE]) for p in beat.processes)
    if size(beat) <= most:
        return beat
    raise UsageError(
        f"The heartbeat of slave {beat.slave} takes {size(beat)} bytes, and a message has {most}; start it with fewer "
        "--slots."
    )


def _some_configs(status: CoordinatorStatus, most: int) -> CoordinatorStatus:
    left, configs = most, {}
    for worker, config in status.configs.items():
        left -= len(config.encode()) + 16
        if left < 0:
            break
        configs[worker] = config
    return status if len(configs) == len(status.configs) else msgspec.structs.replace(status, configs=configs)


def shortened(process: ProcessStatus) -> ProcessStatus:
    """With texts of a bounded length."""
    return msgspec.structs.replace(process, why=process.why[:WHY], trace=process.trace[-TRACE:])


def listed(jobs: tuple[JobView, ...], most: int) -> tuple[JobView, ...]:
    """The newest jobs that fit, in their order, without what only `flegel status JOB` shows."""
    kept: list[JobView] = []
    left = most
    for job in reversed(jobs):
        glance = {name: value for name, value in job.glance.items() if name not in LONG}
        line = msgspec.structs.replace(
            job,
            trace="",
            reason=job.reason[:LINE],
            data=job.data[:LINE],
            glance=glance if size(glance) < GLANCE else {},
        )
        left -= size(line)
        if left < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))
