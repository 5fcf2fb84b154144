"""Whether a class can be kept on parameter servers, and how its bundles are cut. Pure.

A class that cannot is refused in one sentence, before anything is started.
"""

from __future__ import annotations

from flegel.algorithm import Algorithm
from flegel.core.pytree import Tree
from flegel.core.sharding import Cuts, Partition, Sharding, make_cuts
from flegel.errors import UsageError
from flegel.params.ledger import sums_alone
from flegel.wording import option


def sharding_of(algorithm: Algorithm) -> Sharding:
    """What the class declares; refuses one that cannot be cut."""
    cls, declared = type(algorithm), algorithm.placement.sharding
    why = "" if declared is not None else algorithm.placement.unsharded
    if declared is not None and _inherits_placement_but_overrides(cls, "updateParameter"):
        why = "it overrides updateParameter and says nothing of its `placement`"
    if not why and not sums_alone(algorithm):
        why = "its aggregate does more than add"
    if why or declared is None:
        raise UsageError(f"{cls.__name__} cannot be kept on parameter servers: {why}; use {option('servers', 0)}.")
    return declared


def _inherits_placement_but_overrides(cls: type[Algorithm], hook: str) -> bool:
    """Whether `hook` was redefined by a subclass of the class that defines `placement`."""

    def depth(name: str) -> int:
        return next(at for at, each in enumerate(cls.__mro__) if name in vars(each))

    return depth("placement") > depth(hook)


def cuts_for(
    algorithm: Algorithm, parameter: Tree, statistics: Tree, wanted: int, partition: Partition | None = None
) -> Cuts:
    """The slices of a job, about so many; of equal size, or as `partition` says."""
    return make_cuts(sharding_of(algorithm), parameter, statistics, wanted, partition)
