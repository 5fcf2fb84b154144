"""Parameters and aggregators as bundles of arrays: an array, or a NamedTuple of arrays.

The engine adds, copies, sends and stores such values without knowing the algorithm. Never does arithmetic
that an algorithm should decide about; addition is the one operation that statistics have in common.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Sequence
from functools import cache
from keyword import iskeyword
from typing import Any, TypeAlias, cast

import numpy as np

PREPARED_ARRAY_BYTES = 16 << 20  # bytes
FINITE_AT_ONCE = 1 << 16  # numbers
FIELD_SEPARATOR = "·"  # may stand in a name
Array: TypeAlias = "np.ndarray[Any, Any]"
Tree: TypeAlias = Any  # an array, or a NamedTuple whose fields are arrays


def is_bundle(value: object) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def names(value: Tree) -> tuple[str, ...]:
    """Field names; a bare array is called `value`."""
    return cast("tuple[str, ...]", value._fields) if is_bundle(value) else ("value",)


def flatten(value: Tree) -> list[Array]:
    """The arrays of a bundle in the order of its fields."""
    if isinstance(value, np.ndarray):
        return [value]
    return list(map(np.asarray, value if is_bundle(value) else [value]))


def unflatten(like: Tree, arrays: Sequence[Array]) -> Tree:
    """Arrays put back into the shape of `like`."""
    return arrays[0] if isinstance(like, np.ndarray) or not is_bundle(like) else type(like)(*arrays)


def as_doubles(value: Tree) -> Tree:
    """A C-ordered copy in float64: the usual type of θ and of statistics, whatever type the hooks compute in."""
    return unflatten(value, [_copied(a, np.float64) for a in flatten(value)])


def as_typed(value: Tree, like: Tree) -> Tree:
    """A C-ordered copy in the types of another bundle: types are fixed when a job begins."""
    arrays, types = flatten(value), [a.dtype for a in flatten(like)]
    if len(arrays) != len(types):
        return as_doubles(value)  # another shape: whoever compares shapes says so
    return unflatten(value, [_copied(a, t) for a, t in zip(arrays, types, strict=True)])


def taken(value: Tree, like: Tree) -> Tree:
    """As `as_typed`, to be kept: arrays refuse writes, and one that its maker has `given` away is not copied."""
    arrays, types = flatten(value), [a.dtype for a in flatten(like)]
    if len(arrays) != len(types):
        return as_doubles(value)
    return unflatten(value, [_kept(a, t) for a, t in zip(arrays, types, strict=True)])


def given(array: Array) -> Array:
    """The array, which refuses writes from now on: its maker keeps no view that could write to it."""
    array.flags.writeable = False
    return array


def _kept(array: Array, kind: Any) -> Array:
    flags = array.flags
    is_given = flags.owndata and not flags.writeable and flags.c_contiguous and array.dtype == kind
    return array if is_given else given(_copied(array, kind))


def _copied(array: Array, kind: Any) -> Array:
    """C-ordered. Where a large array holds nothing but +0, so does the copy, and takes no memory: nobody wrote to
    it."""
    if array.nbytes >= PREPARED_ARRAY_BYTES and array.flags.c_contiguous and array.dtype.kind in "fiu":
        raw = array.reshape(-1).view(np.uint8)
        if not raw[:4096].any() and not raw.any():
            return np.zeros(array.shape, kind)
    return np.array(array, dtype=kind, order="C")


def starting(value: Tree, typed: bool) -> Tree:
    """What a job begins with, `taken`: in its own types where the algorithm is `typed`, else in float64."""
    return unflatten(value, [_kept(a, a.dtype if typed else np.dtype(np.float64)) for a in flatten(value)])


def zeros_like(value: Tree, typed: bool = False) -> Tree:
    """Zeros in float64; `typed`: in the types of the value."""
    kinds = [a.dtype if typed else np.float64 for a in flatten(value)]
    return unflatten(value, [np.zeros(np.shape(a), dtype=k) for a, k in zip(flatten(value), kinds, strict=True)])


def without(value: Tree, fields: Sequence[str]) -> Tree:
    """A bundle that lacks the named fields, without a copy."""
    if not fields:
        return value
    kept = tuple(name for name in names(value) if name not in fields)
    return bundle_type(type(value).__name__, kept)(*(getattr(value, name) for name in kept))


@cache
def bundle_type(name: str, fields: tuple[str, ...]) -> Any:
    """The class of bundles with these fields. It is found again by its qualified name, here, in every process: so
    compiled code that is kept for it belongs to the same class in the next one."""
    made = namedtuple(name, fields, module=__name__)  # type: ignore[misc]
    if fields and FIELD_SEPARATOR not in "".join((name, *fields)):
        made.__qualname__ = FIELD_SEPARATOR.join((name, *fields))
    return made


def __getattr__(name: str) -> Any:
    """The class whose qualified name this is, where numba's cache looks for it."""
    first, *fields = name.split(FIELD_SEPARATOR)
    if not fields or not all(part.isidentifier() and not iskeyword(part) for part in (first, *fields)):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return bundle_type(first, tuple(fields))


def copy(value: Tree) -> Tree:
    return unflatten(
        value, [np.array(a) if a.nbytes < PREPARED_ARRAY_BYTES else _copied(a, a.dtype) for a in flatten(value)]
    )


def read_only(value: Tree) -> Tree:
    """The same memory through views that refuse writes; compiled code sees one type wherever the arrays came from."""
    return unflatten(value, [protected(a) for a in flatten(value)])


def protected(array: Array) -> Array:
    """The array itself if it refuses writes already, otherwise a view that does."""
    if not array.flags.writeable:
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def add(target: Tree, change: Tree) -> Tree:
    """target += change, in place, field by field."""
    for into, extra in zip(flatten(target), flatten(change), strict=True):
        np.add(into, extra, into)
    return target


def subtract(target: Tree, change: Tree) -> Tree:
    """target -= change, in place: what losing an owner means."""
    for into, extra in zip(flatten(target), flatten(change), strict=True):
        into -= extra
    return target


def clear(target: Tree, fields: Sequence[str] | None = None) -> Tree:
    """Zero all fields, or only the named ones, in place."""
    for name, into in zip(names(target), flatten(target), strict=True):
        if fields is None or name in fields:
            into[...] = 0
    return target


def same_shape(a: Tree, b: Tree) -> bool:
    return names(a) == names(b) and all(np.shape(x) == np.shape(y) for x, y in zip(flatten(a), flatten(b), strict=True))


def is_finite(value: Tree, known: Tree = ()) -> bool:
    """Whether all numbers are finite. `known`: its arrays were looked at before, and are not again."""
    seen = set(map(id, flatten(known))) if is_bundle(known) else ()
    return all(_is_finite(a) for a in flatten(value) if id(a) not in seen)


def _is_finite(array: Array) -> bool:
    """A large one in pieces, whose answers stay in the cache."""
    if array.size <= FINITE_AT_ONCE or not array.flags.c_contiguous:
        return bool(np.isfinite(array).all())
    flat = array.reshape(-1)
    pieces = range(0, flat.size, FINITE_AT_ONCE)
    return all(bool(np.isfinite(flat[start : start + FINITE_AT_ONCE]).all()) for start in pieces)


def is_tree(value: object) -> bool:
    """An array or a bundle of arrays, rather than a plain number or a word."""
    return isinstance(value, np.ndarray) or is_bundle(value)


def presented(value: Tree) -> Tree:
    """As hooks get it: `present(read_only(value))`, in one walk."""
    if isinstance(value, np.ndarray):
        return protected(value) if value.ndim else value[()]
    if not is_bundle(value):
        return present(read_only(value))
    return type(value)(*[_as_given(np.asarray(field)) for field in value])


def _as_given(array: Array) -> Any:
    return protected(array) if array.ndim else array[()]


def present(value: Tree) -> Tree:
    """The bundle as hooks see it: fields without dimensions are plain numbers."""
    arrays = flatten(value)
    if all(a.ndim for a in arrays):
        return value
    return unflatten(value, [a if a.ndim else a[()] for a in arrays])
