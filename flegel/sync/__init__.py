"""Synchronization models, one file each. A new one is one file with a subclass of `policy.SyncModel`, and a test.

The class registers itself; `models` imports every file of this package, so nothing is listed by hand.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from flegel.errors import UsageError, nearest
from flegel.job import PUBLISHED, SyncSpec
from flegel.sync.policy import BALANCE_OPTIONS, REGISTERED, SyncModel
from flegel.wording import duration_option, option

CHOICES = {
    "matching": ("level", "pairs"),
    "probes": ("bracketed", "rollback"),
    "timers": ("late", "all"),
    "round_end": ("idle", "first"),
    "search": ("once", "again"),
    "counts": ("fitting", "multiple"),
    "waiting": ("interruptible", "training", "idle"),
}
"""Options that choose between forms of a mechanism: ours first, then that of the paper, then others."""


def models() -> dict[str, type[SyncModel]]:
    """Every synchronization model by name, in alphabetical order."""
    _import_all()
    return dict(sorted(REGISTERED.items()))


@cache
def _import_all() -> None:
    for module in pkgutil.iter_modules(__path__, __name__ + "."):
        importlib.import_module(module.name)


def options() -> dict[str, object]:
    """Every option that some model has, and its type."""
    return {name: kind for model in models().values() for name, kind in model.options().items()}


def model_of(spec: SyncSpec) -> type[SyncModel]:
    """The class of the model that was asked for."""
    known = models()
    if spec.model not in known:
        if spec.model.endswith(PUBLISHED) and spec.model.removesuffix(PUBLISHED) in known:
            having = [name for name in known if name.endswith(PUBLISHED)]
            ours = spec.name.removesuffix(PUBLISHED)
            raise UsageError(f"{ours} has no other form in a paper; {', '.join(having)} have one.")
        raise UsageError(f"No synchronization model is called {spec.name!r}{nearest(spec.name, list(known))}")
    return known[spec.model]


def make_policy(spec: SyncSpec) -> SyncModel:
    """The model that was asked for; options that it does not have are refused."""
    chosen_model, known = model_of(spec), models()
    own = chosen_model.options()
    given = {name: getattr(spec, name) for name in spec.__struct_fields__ if name not in ("name", "published")}
    for switch, value in given.items():
        if value not in (None, "off") and switch not in own:
            having = [
                name for name, other in known.items() if switch in other.options() and not name.endswith(PUBLISHED)
            ]
            raise UsageError(f"{spec.model} has no {option(switch)}; it is an option of {', '.join(having)}.")
    _check(spec)
    chosen = {switch: given[switch] for switch in own if given.get(switch) is not None}
    return chosen_model(**{name: value for name, value in chosen.items() if name not in BALANCE_OPTIONS})


def balance_mode(spec: SyncSpec, workers: int) -> str:
    """Whether and how points move to faster workers: by default wherever the model lets passes drift apart."""
    if workers < 2 or not models()[spec.model].balances:
        return "off"
    return spec.balance or "async"


def matching(spec: SyncSpec) -> str:
    """Who gives points to whom, where points move."""
    return spec.matching or models()[spec.model].matching


def check_topology(spec: SyncSpec, topology: str) -> None:
    """Replicas of θ need a model whose updates take a report of every worker."""
    able = [name for name, model in models().items() if model.all_report]
    if topology == "allreduce" and spec.model not in able:
        raise UsageError(
            f"{spec.model} merges reports of single workers, so θ cannot live on all of them; "
            f"{option('topology', 'allreduce')} "
            f"works with {', '.join(able)}."
        )


def _check(spec: SyncSpec) -> None:
    """Refuse options of a synchronization model that are out of range."""
    if spec.interval is not None and not 0 < spec.interval < 86400:
        raise UsageError(f"{duration_option('interval', spec.interval)} must be more than 0 and less than a day.")
    if spec.barrier_timeout is not None and not 0 < spec.barrier_timeout < 86400:
        raise UsageError(
            f"{duration_option('barrier_timeout', spec.barrier_timeout)} must be more than 0 and less than a day."
        )
    if spec.coordination not in (None, "semi", "centralized"):
        raise UsageError(f"{option('coordination', spec.coordination)} must be semi or centralized.")
    if spec.balance not in (None, "off", "async", "sync"):
        raise UsageError(f"{option('balance', spec.balance)} must be async, sync or off.")
    for name, values in CHOICES.items():
        value = getattr(spec, name)
        if value is not None and value not in values:
            raise UsageError(f"{option(name, value)} must be {', '.join(values[:-1])} or {values[-1]}.")
    for name, other, without_effect in (
        ("probes", "interval", spec.probes is not None and spec.interval is not None),
        ("timers", "coordination", spec.timers == "all" and spec.coordination == "centralized"),
        ("matching", "balance", spec.matching is not None and spec.balance == "off"),
    ):
        if without_effect:
            shown = duration_option if other == "interval" else option
            both = f"{option(name, getattr(spec, name))} has no effect with {shown(other, getattr(spec, other))}"
            raise UsageError(f"{both}; omit one of them.")
    if spec.staleness is not None and spec.staleness < 0:
        raise UsageError(f"{option('staleness', spec.staleness)} must be 0 or more.")
    if spec.batches is not None and spec.batches < 1:
        raise UsageError(f"{option('batches', spec.batches)} must be at least 1.")
    if spec.factor is not None and not 1 < spec.factor <= 16:
        raise UsageError(f"{option('factor', spec.factor)} must be more than 1 and at most 16.")
