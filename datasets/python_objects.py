"""Rows that a Python program already has: arrays, frames, tables, tensors. Never imports a library to ask about it."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.datasets.arrays import ArraySource
from flegel.datasets.base import Source
from flegel.datasets.options import Options
from flegel.errors import UsageError


def source_from_object(value: Any, options: Options) -> Source:
    """A source over the object's own memory where that is possible."""
    labels = None
    if isinstance(value, tuple) and len(value) == 2:
        value, labels = value
    if isinstance(value, list):
        value = np.asarray(value)
    if isinstance(value, np.ndarray):
        return ArraySource(
            value,
            None if labels is None else np.asarray(labels),
            origin="the given array",
            dtype=options.dtype,
            label_column=options.label if isinstance(options.label, int) else None,
        )
    raise UsageError(f"{type(value).__name__} is nothing that rows can be read from.")
