"""What is said is made to fit into a message: the least needed goes first. Pure.

A message has a largest size, and what jobs and user code put into one has none. What a machine decides by (which
processes there are, how they ended) is never left out; what is for people, and what can follow later, is.
"""

from __future__ import annotations

import msgspec

from flegel.cluster.transport.protocol import CoordinatorStatus, JobView, ProcessStatus, SlaveBeat
from flegel.errors import UsageError

WHY, TRACE = 2_000, 20_000
"""Characters of a cause and of a traceback that are passed on."""
LINE = 300
"""Characters of a cause in a list of jobs."""

_size = msgspec.msgpack.Encoder().encode


def size(record: object) -> int:
    return len(_size(record))


def fitted(beat: SlaveBeat, most: int) -> SlaveBeat:
    """The beat in at most so many bytes.

    A birth is needed once, before its worker runs, so those that do not fit go with a later beat: every job gets an
    even part of half the room. A look at the job and tracebacks are left out where it does not fit otherwise.
    """
    needing = [door for door in beat.doors if door.births]
    share = most // 2 // max(len(needing), 1)
    beat.doors = tuple(_some_births(door, share) for door in beat.doors)
    if size(beat) <= most:
        return beat
    beat.doors = tuple(msgspec.structs.replace(door, glance={}, trouble=door.trouble[:LINE]) for door in beat.doors)
    if size(beat) <= most:
        return beat
    beat.parts = tuple(msgspec.structs.replace(part, trace="", why=part.why[:LINE]) for part in beat.parts)
    if size(beat) <= most:
        return beat
    raise UsageError(
        f"What slave {beat.slave} runs takes {size(beat)} bytes to tell, and a message has {most}; start it with fewer "
        "--slots."
    )


def _some_births(door: CoordinatorStatus, most: int) -> CoordinatorStatus:
    room, births = most, {}
    for worker, birth in door.births.items():
        room -= len(birth.encode()) + 16
        if room < 0:
            break
        births[worker] = birth
    return door if len(births) == len(door.births) else msgspec.structs.replace(door, births=births)


def short(part: ProcessStatus) -> ProcessStatus:
    """With words of a bounded length."""
    return msgspec.structs.replace(part, why=part.why[:WHY], trace=part.trace[-TRACE:])


def listed(jobs: tuple[JobView, ...], most: int) -> tuple[JobView, ...]:
    """The newest jobs that fit, in their order, without what only `flegel status JOB` shows."""
    kept: list[JobView] = []
    room = most
    for job in reversed(jobs):
        glance = {name: value for name, value in job.glance.items() if name != "workers"}
        line = msgspec.structs.replace(
            job, trace="", reason=job.reason[:LINE], data=job.data[:LINE], glance=glance if size(glance) < LINE else {}
        )
        room -= size(line)
        if room < 0:
            break
        kept.append(line)
    return tuple(reversed(kept))
