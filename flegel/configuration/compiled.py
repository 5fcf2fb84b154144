"""The settings of kernels that this process has compiled with: read once, because code in memory cannot change."""

from __future__ import annotations

from functools import cache

from flegel.configuration.active import active, changed, changes_of_thread
from flegel.configuration.kernels import KernelSettings
from flegel.configuration.sources import VARIABLE, changes_of_environment
from flegel.errors import UsageError


@cache
def kernel_settings() -> KernelSettings:
    """Those of the first job of this process; outside of jobs, those of the environment."""
    changes = changes_of_thread()
    return changed(changes_of_environment() if changes is None else changes).kernels


def check_compiled() -> None:
    """At the beginning of a job: raise `UsageError` where it asks for other kernels than this process has."""
    if active().kernels == kernel_settings():
        return
    wanted, held = vars(active().kernels), vars(kernel_settings())
    name = next(name for name in wanted if wanted[name] != held[name])
    raise UsageError(
        f"kernels.{name} is {held[name]:g} in this process, which has loaded its kernels already, and cannot become "
        f"{wanted[name]:g}; set it for a new process, by {VARIABLE} or for its first job."
    )
