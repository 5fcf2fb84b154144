"""The settings that hold where they are asked for: the defaults, or those of the job that this thread works for.

Decisions ask `active()` for their subject. A job, a simulation or an ablation is run inside `using(changes)`, so no
setting has to be handed through functions that do not use it, and two jobs in two threads may have different ones.
Workers are told the changes with their shard, and each of their threads calls `adopt`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import cache
from types import MappingProxyType
from typing import Any

from flegel.configuration.audit import AuditSettings
from flegel.configuration.balance import SPARING, BalanceSettings
from flegel.configuration.barriers import BarrierSettings
from flegel.configuration.checkpoints import CheckpointSettings
from flegel.configuration.cluster import ClusterSettings
from flegel.configuration.glm import GeneralizedLinearSettings
from flegel.configuration.gpu import GpuSettings
from flegel.configuration.groups import SiteSettings
from flegel.configuration.interval import IntervalSettings
from flegel.configuration.kernels import KernelSettings
from flegel.configuration.kmeans import KMeansSettings
from flegel.configuration.liveness import LivenessSettings
from flegel.configuration.lr import LogisticRegressionSettings
from flegel.configuration.moves import MoveSettings
from flegel.configuration.networks import NetworkSettings
from flegel.configuration.nmf import FactorizationSettings
from flegel.configuration.placement import PlacementSettings
from flegel.configuration.processors import ProcessorSettings
from flegel.configuration.ranks import RankSettings
from flegel.configuration.resting import RestingSettings
from flegel.configuration.setting import DescribedSetting, Setting, described
from flegel.configuration.shapes import ShapeSettings
from flegel.configuration.sizes import SizeSettings
from flegel.configuration.starts import StartSettings
from flegel.configuration.tables import TableSettings
from flegel.configuration.termination import TerminationSettings
from flegel.configuration.training import TrainingSettings
from flegel.configuration.transport import TransportSettings
from flegel.errors import UsageError, nearest


@dataclass(frozen=True)
class Settings:
    """All of them, by subject."""

    interval: IntervalSettings = field(default_factory=IntervalSettings)
    barriers: BarrierSettings = field(default_factory=BarrierSettings)
    balance: BalanceSettings = field(default_factory=BalanceSettings)
    balance_sparing: BalanceSettings = SPARING
    resting: RestingSettings = field(default_factory=RestingSettings)
    termination: TerminationSettings = field(default_factory=TerminationSettings)
    audit: AuditSettings = field(default_factory=AuditSettings)
    checkpoints: CheckpointSettings = field(default_factory=CheckpointSettings)
    placement: PlacementSettings = field(default_factory=PlacementSettings)
    training: TrainingSettings = field(default_factory=TrainingSettings)
    moves: MoveSettings = field(default_factory=MoveSettings)
    liveness: LivenessSettings = field(default_factory=LivenessSettings)
    groups: SiteSettings = field(default_factory=SiteSettings)
    tables: TableSettings = field(default_factory=TableSettings)
    sizes: SizeSettings = field(default_factory=SizeSettings)
    starts: StartSettings = field(default_factory=StartSettings)
    kmeans: KMeansSettings = field(default_factory=KMeansSettings)
    glm: GeneralizedLinearSettings = field(default_factory=GeneralizedLinearSettings)
    lr: LogisticRegressionSettings = field(default_factory=LogisticRegressionSettings)
    kernels: KernelSettings = field(default_factory=KernelSettings)
    shapes: ShapeSettings = field(default_factory=ShapeSettings)
    nmf: FactorizationSettings = field(default_factory=FactorizationSettings)
    networks: NetworkSettings = field(default_factory=NetworkSettings)
    ranks: RankSettings = field(default_factory=RankSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    processors: ProcessorSettings = field(default_factory=ProcessorSettings)
    transport: TransportSettings = field(default_factory=TransportSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)


DEFAULTS = Settings()
MOST_WHOLE = 1_000_000
"""The largest value of a whole number that gives no other bound: rounds, passes, workers. Larger ones would only use
memory."""
_active: ContextVar[Settings] = ContextVar("flegel settings", default=DEFAULTS)
NO_CHANGES: Mapping[str, float] = MappingProxyType({})
_changes: ContextVar[Mapping[str, float]] = ContextVar("flegel setting changes", default=NO_CHANGES)


def active() -> Settings:
    """The settings of the job that this thread works for."""
    return _active.get()


def active_changes() -> dict[str, float]:
    """What differs from the defaults here, by full name."""
    return dict(_changes.get())


def changes_of_thread() -> Mapping[str, float] | None:
    """The same; None where this thread works for no job and in no block."""
    found = _changes.get()
    return None if found is NO_CHANGES else found


@contextmanager
def using(changes: Mapping[str, float]) -> Iterator[Settings]:
    """Within the block these settings differ, besides those that differ already."""
    together = {**_changes.get(), **changes}
    found = changed(together)
    settings, names = _active.set(found), _changes.set(together)
    try:
        yield found
    finally:
        _active.reset(settings)
        _changes.reset(names)


def adopt(changes: Mapping[str, float]) -> None:
    """From now on this thread works for a job with these changes: a worker's thread, at the beginning of each job."""
    _active.set(changed(changes))
    _changes.set(dict(changes))


def changed(changes: Mapping[str, float]) -> Settings:
    """The defaults with other values for some settings; raises `UsageError` for a name or a value that cannot be."""
    by_subject: dict[str, dict[str, Any]] = {}
    for name, value in changes.items():
        subject, _, short = name.partition(".")
        by_subject.setdefault(subject, {})[short] = checked(name, value)
    records = {
        subject: dataclasses.replace(getattr(DEFAULTS, subject), **fields) for subject, fields in by_subject.items()
    }
    return dataclasses.replace(DEFAULTS, **records) if records else DEFAULTS


def checked(name: str, value: Any) -> float | int:
    """The value of a setting, of its own type."""
    known = all_settings()
    if name not in known:
        hint = nearest(name, list(known), otherwise=".")
        raise UsageError(f"No setting is called {name!r}{hint} `flegel settings` lists them with their units.")
    about, whole = known[name].about, known[name].whole
    value = value.item() if hasattr(value, "item") else value  # a number of NumPy
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value:
        raise UsageError(f"The setting {name} must be a number ({about.unit}), not {value!r}.")
    high = MOST_WHOLE if whole and about.high == Setting.high else about.high
    if not about.low <= value <= high:
        allowed = f"at least {about.low:g} and at most {high:g} ({about.unit})"
        raise UsageError(f"The setting {name} must be {allowed}, not {str(value)[:24]}.")
    if whole and value != int(value):
        raise UsageError(f"The setting {name} must be a whole number ({about.unit}), not {value!r}.")
    return int(value) if whole else float(value)


@cache
def all_settings() -> Mapping[str, DescribedSetting]:
    """Every setting by its full name, in the order of subjects and fields."""
    found = {}
    for subject in dataclasses.fields(DEFAULTS):
        for setting in described(subject.name, getattr(DEFAULTS, subject.name)):
            found[setting.name] = setting
    return found
