"""θ and statistics cut along one axis into slices, for parameter servers. Views and copies only, no decision.

A class declares which fields are cut along which axis (`Sharding`). All cut fields have the same number of *units*
along their axes: components, columns, weights. The other fields, the *rest*, are small and go with every slice. So a
slice is a bundle like the whole one, with shorter fields, and the hooks of the class work on it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import numpy as np

from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import UsageError

UNCUT = -1  # in place of an axis: the field is not cut into slices


@dataclass(frozen=True)
class Sharding:
    """Declared on a class: the axis along which each named field is cut. Fields that are not named are the rest."""

    parameter: Mapping[str, int] = field(default_factory=dict)
    statistics: Mapping[str, int] = field(default_factory=dict)
    granule: int = 1
    """Cuts lie at multiples of so many units."""


@dataclass(frozen=True)
class Cuts:
    """How the bundles of one job are cut: an axis for each field (`UNCUT` for the rest), and the slices."""

    parameter: tuple[int, ...]
    statistics: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]
    """First unit, and the one behind the last."""

    bytes_of_unit: int = 1
    """Of the cut fields of θ and of the statistics together."""

    @property
    def count(self) -> int:
        return len(self.slices)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each slice: what a worker sends and receives of it in a round."""
        return tuple(self.bytes_of_unit * (stop - start) for start, stop in self.slices)


def axes(bundle: Tree, declared: Mapping[str, int]) -> tuple[int, ...]:
    """The axis of each field; a field that has nothing in it is rest."""
    unknown = [name for name in declared if name not in pytree.names(bundle)]
    if unknown:
        raise UsageError(f"`sharding` names the field {unknown[0]!r}, which {type(bundle).__name__} does not have.")
    pairs = zip(pytree.names(bundle), pytree.flatten(bundle), strict=True)
    return tuple(declared.get(name, UNCUT) if array.size else UNCUT for name, array in pairs)


def units(bundle: Tree, along: Sequence[int]) -> set[int]:
    """The extents of the cut fields along their axes."""
    return {a.shape[axis] for a, axis in zip(pytree.flatten(bundle), along, strict=True) if axis != UNCUT}


Partition = Callable[[int, int], Sequence[int]]
"""From the number of granules, and how many slices are wanted, to the granules of each slice."""


def make_cuts(
    sharding: Sharding, parameter: Tree, statistics: Tree, wanted: int, partition: Partition | None = None
) -> Cuts:
    """About so many slices, of equal size or as `partition` says; fewer where there are fewer granules."""
    of_parameter, of_statistics = axes(parameter, sharding.parameter), axes(statistics, sharding.statistics)
    extents = units(parameter, of_parameter) | units(statistics, of_statistics)
    if len(extents) != 1:
        raise UsageError(f"Fields that `sharding` cuts have one and the same extent; these have {sorted(extents)}.")
    extent = extents.pop()
    weight = (bytes_cut(parameter, of_parameter) + bytes_cut(statistics, of_statistics)) // max(extent, 1)
    if partition is None:
        slices = even_slices(extent, sharding.granule, wanted)
    else:
        sizes = partition(-(-extent // sharding.granule), wanted)
        slices = slices_of_sizes(extent, sharding.granule, sizes)
    return Cuts(of_parameter, of_statistics, slices, max(weight, 1))


def slices_of_sizes(extent: int, granule: int, sizes: Iterable[int]) -> tuple[tuple[int, int], ...]:
    """Slices of so many granules each, which cover the extent."""
    ends = [min(granule * end, extent) for end in accumulate(sizes)]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def bytes_cut(bundle: Tree, along: Sequence[int]) -> int:
    """Bytes of the fields that are cut."""
    return sum(a.nbytes for a, axis in _fields(bundle, along) if axis != UNCUT)


def even_slices(extent: int, granule: int, wanted: int) -> tuple[tuple[int, int], ...]:
    """Cut into `wanted` slices of about equal size whose ends lie at multiples of `granule`."""
    granules = -(-extent // granule)
    count = max(1, min(wanted, granules))
    ends = [min(granules * at // count * granule, extent) for at in range(1, count)] + [extent]
    return tuple(zip([0, *ends[:-1]], ends, strict=True))


def cut(bundle: Tree, along: Sequence[int], start: int, stop: int) -> Tree:
    """One slice, as views; the rest as it is."""
    return pytree.unflatten(bundle, [part(a, axis, start, stop) for a, axis in _fields(bundle, along)])


def cut_fields(bundle: Tree, along: Sequence[int], start: int, stop: int) -> list[Array]:
    """Of one slice the cut fields alone."""
    return [part(a, axis, start, stop) for a, axis in _fields(bundle, along) if axis != UNCUT]


def rest_fields(bundle: Tree, along: Sequence[int]) -> list[Array]:
    """The fields that are not cut."""
    return [a for a, axis in _fields(bundle, along) if axis == UNCUT]


def together(like: Tree, along: Sequence[int], rest: Iterable[Array], cuts: Iterable[Array]) -> Tree:
    """A bundle from its rest and its cut fields."""
    rests, parts = iter(rest), iter(cuts)
    return pytree.unflatten(like, [next(rests) if axis == UNCUT else next(parts) for axis in along])


def paste(into: Sequence[Array], along: Sequence[int], start: int, stop: int, parts: Iterable[Array]) -> None:
    """The cut fields of a slice into whole arrays."""
    cut_arrays = [(array, axis) for array, axis in zip(into, along, strict=True) if axis != UNCUT]
    for (array, axis), piece in zip(cut_arrays, parts, strict=True):
        part(array, axis, start, stop)[...] = piece


def is_zero(arrays: Iterable[Array]) -> bool:
    """Nothing in them: such a slice is not sent. −0 is something: sums of it have other bits than those of 0."""
    return not any(_holds_something(a) for a in arrays)


def _holds_something(array: Array) -> bool:
    some = active().transport.sampled_units  # mostly all of it has to be looked at only where it is zero
    if array.ndim and bool(np.any(array[:some])):
        return True
    return bool(np.any(array)) or (array.dtype.kind == "f" and bool(np.any(np.signbit(array))))


def _fields(bundle: Tree, along: Sequence[int]) -> list[tuple[Array, int]]:
    return list(zip(pytree.flatten(bundle), along, strict=True))


def part(array: Array, axis: int, start: int, stop: int) -> Array:
    if axis == UNCUT:
        return array
    return array[(slice(None),) * axis + (slice(start, stop),)]
