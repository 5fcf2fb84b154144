"""What is known of hyper-parameters by their names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from flegel.declarations.field_types import TypedFields


@dataclass(frozen=True, kw_only=True)
class HyperNames(TypedFields):
    """`hyper_names = HyperNames(also_called={"n_clusters": "k"})`."""

    also_called: Mapping[str, str] = field(default_factory=dict)
    """Names under which other libraries know a hyper-parameter, and ours: `{"n_clusters": "k"}`. They are accepted."""
    instead: Mapping[str, str] = field(default_factory=dict)
    """Hyper-parameters of other libraries that have no equal here, and what to give in their place."""
    starting: tuple[str, ...] = ()
    """Hyper-parameters that only `initParameter` reads. Arrays among them are part of θ(0) by the time that workers,
    servers, checkpoints and saved models get the others, and are not given to them."""
