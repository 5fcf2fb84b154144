"""Resting workers as a part of a coordinator: looked at after each barrier; the membership does the rest. Pure."""

from __future__ import annotations

from flegel.machine.coordinator.part import CoordinatorPart, CoordinatorPort
from flegel.machine.resting.resting_control import RestingControl
from flegel.plan.termination import Progress
from flegel.sync.policy import Updated


class RestingPart(CoordinatorPart):
    """Sends workers of one job to rest and calls them back."""

    name = "resting"

    def __init__(self, control: RestingControl) -> None:
        self.control = control

    def attach(self, coordinator: CoordinatorPort) -> None:
        super().attach(coordinator)
        coordinator.membership.begin_with(self.control.first)

    def at_barrier(self, workers: tuple[int, ...], updated: Updated, progress: Progress, now: float) -> bool:
        job = self.coordinator
        step = self.control.at_barrier(job.state, job.membership, updated, now)
        if step:
            job.carry_out(step, now)
        return bool(step)
