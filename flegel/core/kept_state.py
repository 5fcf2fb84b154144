"""What the engine keeps of a point for a class that returns contributions: numbers in a row of the state.

A contribution is kept as it is, field after field. A hidden value is kept behind a mark that says whether the point was
visited. Numbers take the type of the state, which has the precision of the features; the difference is formed of what
is kept, so that sums are conserved exactly. This file is the specification; compiled loops do the same without copies.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import AlgorithmError

TUPLE = "tuple"
"""In place of the name of a NamedTuple: a plain tuple."""


NOT_KEPT_EXACTLY = (
    "hidden returned a number that cannot be kept: what is an integer or a truth value at the first point must be "
    "one at every point; return float(...) where reals may come, and large integers alone, or give rows in float64"
)


class KeptField(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array or number of a kept value."""

    name: str
    shape: tuple[int, ...]
    kind: str
    """`f`, `i` or `b`: reals, integers or truth values."""

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)


class KeptForm(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The form of what is kept: an array or a number (one field without a name), a NamedTuple, or a plain tuple."""

    name: str
    fields: tuple[KeptField, ...]
    marked: bool
    """The first number of the row is 1 where the point was visited: of hidden values, which may be 0."""

    @property
    def numbers(self) -> int:
        """Of a row of the state."""
        return self.marked + sum(field.numbers for field in self.fields)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Integers alone stay exact whatever the precision of the features is."""
        return np.dtype(np.int64 if all(field.kind != "f" for field in self.fields) and self.marked else np.float64)

    def unvisited(self, points: int) -> Array:
        """The state of so many points before their first visit: they have contributed nothing."""
        return np.zeros((points, self.numbers), self.dtype)

    def pack(self, value: Any, row: Array, hook: str) -> None:
        """Write a value into a row of the state."""
        parts, at = parts_of(value), int(self.marked)
        if [np.shape(part) for part in parts] != [field.shape for field in self.fields]:
            said = [np.shape(part) for part in parts]
            raise AlgorithmError(
                f"{hook} returned shapes {said}, but {[field.shape for field in self.fields]} at the first point; "
                "every point needs the same shapes."
            )
        for field, part in zip(self.fields, parts, strict=True):
            flat = np.ravel(part)
            row[at : at + field.numbers] = flat
            kept = flat.astype(np.bool_) if field.kind == "b" else row[at : at + field.numbers]
            if self.marked and field.kind != "f" and not np.array_equal(kept, flat):
                raise AlgorithmError(NOT_KEPT_EXACTLY)
            at += field.numbers
        if self.marked:
            row[0] = 1

    def unpack(self, row: Array) -> Any:
        """The value in a row of the state, in the types in which it was returned."""
        found, at = [], int(self.marked)
        kinds = {"f": np.float64, "i": np.int64, "b": np.bool_}
        for field in self.fields:
            part: Any = row[at : at + field.numbers].astype(kinds[field.kind]).reshape(field.shape)
            found.append(part if field.shape else part[()])
            at += field.numbers
        if self.name == TUPLE:
            return tuple(found)
        return pytree.bundle_type(self.name, tuple(f.name for f in self.fields))(*found) if self.name else found[0]


COUNTED = KeptForm("", (), marked=True)
"""Of a point whose contribution is constant: whether it is in the statistics."""


def counted_once(new: Tree, row: Array, weight: float) -> Tree:
    """The change by a visit of a point whose contribution is constant: all of it at first, nothing afterwards."""
    factor = 0.0 if row[0] else weight
    row[0] = 1
    return pytree.unflatten(new, [factor * np.asarray(a, np.float64) for a in pytree.flatten(new)])


def parts_of(value: Any) -> list[Any]:
    """The arrays and numbers of a value."""
    return list(value) if isinstance(value, tuple) else [value]


def form_of_kept(value: Any, hook: str, marked: bool, left_out: tuple[str, ...] = ()) -> KeptForm:
    """The form of a value that a hook returned for one point; `left_out` are fields that need not be kept."""
    bundle, plain = pytree.is_bundle(value), isinstance(value, tuple)
    names = pytree.names(value) if bundle or not plain else tuple(map(str, range(len(value))))
    fields = []
    for name, part in zip(names, parts_of(value), strict=True):
        array = np.asarray(part)
        kind = {"u": "i"}.get(array.dtype.kind, array.dtype.kind)
        if kind not in "fib":
            raise AlgorithmError(
                f"{hook} returned {type(part).__name__}; return numbers, arrays of numbers or a NamedTuple of these."
            )
        if name not in left_out:
            fields.append(KeptField(name, array.shape, kind))
    return KeptForm(type(value).__name__ if bundle else TUPLE if plain else "", tuple(fields), marked)


def replaced_contribution(form: KeptForm, new: Tree, row: Array, spent: tuple[str, ...], weight: float) -> Tree:
    """The change from the contribution in a row of the state to this one, which is kept there from now on. Spent fields
    are no differences."""
    names, arrays = pytree.names(new), [np.asarray(a, np.float64) for a in pytree.flatten(new)]
    kept = [a for name, a in zip(names, arrays, strict=True) if name not in spent]
    before = row.astype(np.float64)
    form.pack(tuple(kept), row, "contribution")
    changed, at = row.astype(np.float64) - before, 0
    changes = []
    for name, array in zip(names, arrays, strict=True):
        if name in spent:
            changes.append(weight * array)
            continue
        changes.append(weight * changed[at : at + array.size].reshape(array.shape))
        at += array.size
    return pytree.unflatten(new, changes)


def replaced_statistics(new: Tree, old: Tree | None, spent: tuple[str, ...], weight: float) -> Tree:
    """The change from the statistics of the last hidden value to those of this one. Spent fields are no differences."""
    arrays = [np.asarray(a, np.float64) for a in pytree.flatten(new)]
    if old is not None:
        pairs = zip(pytree.names(new), arrays, pytree.flatten(old), strict=True)
        arrays = [a if name in spent else a - b for name, a, b in pairs]
    return pytree.unflatten(new, [weight * a for a in arrays])
