"""A new θ from complete statistics: the one step that everybody who holds θ takes alike. Pure; no statistics change.

The coordinator's own store takes it once; with replicas each worker takes it on its own copy, to the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from flegel.algorithm import Algorithm, visit_hook
from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.errors import AlgorithmError
from flegel.params import hook_values

HookCall = Callable[..., Any]
"""Gets the name of a hook and its arguments; returns what the hook returns."""


class ParameterUpdate(NamedTuple):
    """A new θ, or the old one where the new one is refused."""

    parameter: Tree
    objective: float | None
    diverged: str = ""
    """Why the new θ is refused: something in it is not finite; empty where it is not."""


def new_parameter(algorithm: Algorithm, call: HookCall, total: Tree, parameter: Tree, place: str) -> ParameterUpdate:
    """Compute θ from the statistics `total`, and its objective. `place`: where the job is, for errors."""
    made = call("updateParameter", total, parameter)
    fresh = hook_values.tree(made, "updateParameter", lambda v: pytree.taken(v, parameter), place)
    if not pytree.same_shape(fresh, parameter):
        raise AlgorithmError(f"updateParameter returned θ in another shape in {place}.")
    if not pytree.is_finite(fresh, parameter):
        return ParameterUpdate(parameter, None, why_not_finite(algorithm, total))
    value = hook_values.number(call("objective", total, fresh), "objective", place)
    if value is not None and not math.isfinite(value):
        return ParameterUpdate(parameter, None, f"the objective became {value}")
    return ParameterUpdate(fresh, value)


def why_not_finite(algorithm: Algorithm, statistics: Tree) -> str:
    """Why θ holds numbers that are not finite, by the hook that they came from: the one that visits points where the
    statistics are not finite either, else `updateParameter`."""
    fields = zip(pytree.names(statistics), pytree.flatten(statistics), strict=True)
    bad = [name for name, array in fields if not pytree.is_finite(array)]
    if not bad:
        return "updateParameter returned numbers that are not finite"
    which = f" ({', '.join(bad)})" if pytree.is_bundle(statistics) else ""
    return f"the sums of what {visit_hook(type(algorithm))} returns are not finite{which}"
