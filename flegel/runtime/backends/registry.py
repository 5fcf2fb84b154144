"""Which backend serves a device. Backends are imported when they are chosen: a compiler takes a second to import."""

from __future__ import annotations

from importlib import import_module
from typing import cast

from flegel.errors import UsageError
from flegel.runtime.backends.protocol import Backend

BACKENDS: dict[str, str] = {"cpu": "flegel.runtime.backends.numba.backend"}
"""By device: the module that has a `BACKEND`."""


def choose(device: str) -> Backend:
    """The backend of a device."""
    if device not in BACKENDS:
        raise UsageError(f"No backend for the device {device!r}; there are {', '.join(sorted(BACKENDS))}.")
    return cast("Backend", import_module(BACKENDS[device]).BACKEND)
