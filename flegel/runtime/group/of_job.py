"""The group of a job, where it has one. Most jobs have none and import nothing else of groups."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from flegel.algorithm import Algorithm
from flegel.job import Job
from flegel.machine.coordinator.coordinator import Coordinator

if TYPE_CHECKING:
    from flegel.runtime.group.session import GroupSession


def group_of(job: Job, algorithm: Algorithm) -> GroupSession | None:
    """None for a job that trains alone."""
    if not job.sites.group and not job.sites.bucket:
        return None
    from flegel.runtime.group.session import open_group

    return open_group(job, algorithm)


def summary_of(group: GroupSession, machine: Coordinator) -> dict[str, Any]:
    """What a result says about the other sites."""
    from flegel.machine.group.part import GroupPart

    part = machine.part(GroupPart)
    return group.summary(part.exchange) if part is not None else {}
