"""Synchronization models, one file each. A new one is a file, a line in `MODELS` and a test."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from flegel.errors import UsageError, nearest
from flegel.job import SyncSpec
from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.interval.search import BinarySearch, FixedInterval, Interval
from flegel.sync.asp import ASP
from flegel.sync.bsp import BSP
from flegel.sync.bsp_mini import BSPMini
from flegel.sync.fsp import FSP
from flegel.sync.policy import Policy
from flegel.sync.psp import PSP
from flegel.sync.ssp import SSP

BATCHES = 8  # a pass, where a model needs batches and the user gave no number; psp needs finer ones to fit them in


class SyncModel(NamedTuple):
    """How to make it, what it is, and which switches it has."""

    make: Callable[[SyncSpec], Policy]
    text: str
    options: tuple[str, ...] = ()
    repeatable: bool = False
    """The same data and seed give the same trajectory, to the last bit."""


def _fsp(spec: SyncSpec) -> Policy:
    chosen: Interval = FixedInterval(spec.interval) if spec.interval else MultiStage(spec.first_interval)
    return FSP(chosen, semi=spec.coordination != "centralized")


def _fsp_binary(spec: SyncSpec) -> Policy:
    search = BinarySearch(spec.first_interval, spec.factor or 2.0)
    return FSP(search, semi=spec.coordination != "centralized", name="fsp-binary")


MODELS: dict[str, SyncModel] = {
    "bsp": SyncModel(
        lambda s: BSP(), "full-batch barrier: every worker does one pass, everybody waits", repeatable=True
    ),
    "bsp-mini": SyncModel(
        lambda s: BSPMini(s.batches, s.factor or 2.0),
        "a barrier after each mini-batch; its size is searched at the start",
        ("batches", "factor"),
    ),
    "ssp": SyncModel(
        lambda s: SSP(1 if s.staleness is None else s.staleness, s.batches or BATCHES),
        "a worker may be a few batches ahead of the slowest, not more",
        ("staleness", "batches"),
    ),
    "asp": SyncModel(lambda s: ASP(s.batches or BATCHES), "no barrier at all; may diverge", ("batches",)),
    "fsp": SyncModel(
        _fsp,
        "flexible barriers by time; finds its own interval, stage by stage (the default)",
        ("interval", "first_interval", "coordination", "balance"),
    ),
    "fsp-binary": SyncModel(
        _fsp_binary,
        "flexible barriers by time; halves the interval while that pays",
        ("first_interval", "coordination", "factor", "balance"),
    ),
    "psp": SyncModel(
        lambda s: PSP(s.batches or 2 * BATCHES),
        "predicts how many iterations fit; who is early goes on training",
        ("batches",),
    ),
}


def make_policy(spec: SyncSpec) -> Policy:
    """The model that was asked for; switches that it does not have are refused."""
    if spec.name not in MODELS:
        raise UsageError(f"No synchronization model is called {spec.name!r}{nearest(spec.name, list(MODELS))}")
    model = MODELS[spec.name]
    for option in spec.__struct_fields__:
        value = getattr(spec, option)
        if option != "name" and value not in (None, "off") and option not in model.options:
            having = [name for name, other in MODELS.items() if option in other.options]
            shown = option.replace("_", "-")
            raise UsageError(f"{spec.name} has no --{shown}; it is a switch of {', '.join(having)}.")
    _check(spec)
    return model.make(spec)


def balance_mode(spec: SyncSpec, workers: int) -> str:
    """Whether and how points move to faster workers: by default wherever the model lets passes drift apart."""
    if workers < 2 or "balance" not in MODELS[spec.name].options:
        return "off"
    return spec.balance or "async"


def _check(spec: SyncSpec) -> None:
    for name in ("interval", "first_interval"):
        value = getattr(spec, name)
        if value is not None and not 0 < value < 86400:
            raise UsageError(f"--{name.replace('_', '-')} {value:g} must be more than 0 and less than a day.")
    if spec.interval is not None and spec.first_interval is not None:
        raise UsageError("--interval fixes the interval and --first-interval begins a search for it; give one.")
    if spec.coordination not in (None, "semi", "centralized"):
        raise UsageError(f"--coordination {spec.coordination!r} must be semi or centralized.")
    if spec.balance not in (None, "off", "async", "sync"):
        raise UsageError(f"--balance {spec.balance!r} must be async, sync or off.")
    if spec.staleness is not None and spec.staleness < 0:
        raise UsageError(f"--staleness {spec.staleness} must be 0 or more.")
    if spec.batches is not None and spec.batches < 1:
        raise UsageError(f"--batches {spec.batches} must be at least 1.")
    if spec.factor is not None and not 1 < spec.factor <= 16:
        raise UsageError(f"--factor {spec.factor:g} must be more than 1 and at most 16.")
