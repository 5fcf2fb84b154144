"""Which backend serves a device. Backends are imported when they are chosen: a compiler takes a second to import."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from flegel.errors import UsageError
from flegel.runtime.backends.protocol import Backend

BACKENDS: dict[str, str] = {
    "cpu": "flegel.runtime.backends.numba.backend",
    "cuda": "flegel.runtime.backends.torch.backend",
    "torch": "flegel.runtime.backends.torch.backend",
}
"""By kind of device: the module that has a `BACKEND`. `torch:cpu` is torch on a processor, `cuda:1` the second GPU. How
a device of each kind is written is in `DEVICE_FORMS` of plan/devices.py."""
LIBRARIES: dict[str, str] = {"cuda": "torch", "torch": "torch"}
"""By kind of device: the library that its backend needs beyond those of the engine; also the name of the extra of
Flegel that installs it."""
TEAM = "flegel.runtime.backends.numba.team"  # the module of the backend whose kernels several threads run
ABANDONING = "flegel.runtime.backends.numba.abandoned_visits"  # that of the backend whose visits may be abandoned
OWN: dict[str, str] = {"network": "flegel.torch.backend"}
"""By name: backends that algorithms ask for themselves (`Kernels.backend`), on whatever device."""


def library_of(device: str, own: str = "") -> str:
    """The library that the backend of a device, or the one that an algorithm asks for (`own`), cannot do without; empty
    where that is none beyond the engine's own."""
    return "torch" if own in OWN else LIBRARIES.get(device.partition(":")[0], "")


def choose(
    device: str,
    own: str = "",
    threads: int = 0,
    fixed_blocks: bool = False,
    expensive: str = "fail",
    point_seconds: float = 0.0,
) -> Backend:
    """The backend of a device; `own`: the one that an algorithm asks for, on that device. `threads`: of a team, on
    processors (`numba/team.py`, also for `fixed_blocks`); 0: no team. `expensive`, `point_seconds`: whether and when
    visits are abandoned (`numba/abandoned_visits.py`)."""
    kind = device.partition(":")[0]
    if kind not in BACKENDS:
        raise UsageError(f"No backend for the device {device!r}; there are {', '.join(sorted(BACKENDS))}.")
    if expensive != "fail" and kind == "cpu" and not own:
        return cast("Backend", import_module(ABANDONING).AbandoningBackend(expensive == "retry", point_seconds))
    if threads and kind == "cpu" and not own:
        return cast("Backend", import_module(TEAM).TeamBackend(threads, fixed_blocks))
    try:
        module = import_module(OWN[own] if own else BACKENDS[kind])
    except ModuleNotFoundError as error:
        library = library_of(device, own)
        package = f"'flegel[{library}]'" if library else error.name
        raise UsageError(
            f"This job needs {error.name} on every host that runs it; install it with: pip install {package}."
        ) from None
    return cast("Backend", module.BACKEND).on(device)
