"""What happens to the parameter servers of a job from outside. Plain records, no decisions."""

from __future__ import annotations

from flegel.machine.coordinator.events import PartEvent


class ScaleServers(PartEvent, frozen=True):
    """Somebody wants so many parameter servers from now on."""

    servers: int
