"""Named tuples of arrays on the wire and on disk: their layout, and the tuple again from layout and arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.messages import FrameSpec, LoadShard, TreeLayout


def build(form: TreeLayout, arrays: Sequence[Array], algorithm: Any) -> Tree:
    """Arrays in the tuple class that the algorithm's own module defines under that name, or in a plain one."""
    if not form.fields:
        return arrays[0]
    own = getattr(sys.modules[type(algorithm).__module__], form.name, None)
    if isinstance(own, type) and getattr(own, "_fields", None) == form.fields:
        return own(*arrays)
    return pytree.bundle_type(form.name, form.fields)(*arrays)


def form_of(value: Tree) -> TreeLayout:
    return TreeLayout(type(value).__name__, pytree.names(value)) if pytree.is_bundle(value) else TreeLayout("array", ())


def forms_of(*bundles: Tree) -> tuple[FrameSpec, ...]:
    """Types and shapes of all arrays, one bundle after the other."""
    return tuple(FrameSpec(a.dtype.str, a.shape) for bundle in bundles for a in pytree.flatten(bundle))


def with_stand_ins(load: LoadShard, arrays: tuple[Array, ...]) -> tuple[Array, ...]:
    """What comes with this order, zeros in place of what does not, which are the last of θ and the statistics: they
    take no memory until somebody writes to them."""
    sent = max(len(load.parameter.fields), 1) + max(len(load.statistics.fields), 1) - len(load.forms)
    return (*arrays[:sent], *(np.zeros(form.shape, form.dtype) for form in load.forms), *arrays[sent:])


def without_statistics(load: LoadShard, arrays: Sequence[Array]) -> tuple[LoadShard, list[Array]]:
    """The same order with the forms of statistics in place of these, which are zeros."""
    first = max(len(load.parameter.fields), 1)
    last = first + max(len(load.statistics.fields), 1)
    forms = tuple(FrameSpec(a.dtype.str, a.shape) for a in arrays[first:last])
    return msgspec.structs.replace(load, forms=forms), [*arrays[:first], *arrays[last:]]
