"""Synchronization models, one file each. A new one is a file, a line in `MODELS` and a test."""

from __future__ import annotations

from collections.abc import Callable

from flegel.errors import UsageError, nearest
from flegel.spec import SyncSpec
from flegel.sync.base import Policy
from flegel.sync.bsp import BSP
from flegel.sync.fsp import FSP, FixedInterval

MODELS: dict[str, tuple[Callable[[SyncSpec], Policy], str]] = {
    "bsp": (lambda spec: BSP(), "full-batch barrier: every worker does one pass, everybody waits"),
    "fsp": (lambda spec: FSP(FixedInterval(spec.interval or 0.05)), "flexible barriers by time"),
}


def make_policy(spec: SyncSpec) -> Policy:
    if spec.name not in MODELS:
        raise UsageError(f"No synchronization model is called {spec.name!r}{nearest(spec.name, list(MODELS))}")
    return MODELS[spec.name][0](spec)
