"""Rows as the engine gets them from an estimator: without rows of weight 0, and small sets in a canonical order.

Never trains. In a small set equal rows become one row with the sum of their weights, and rows are sorted. Then a fit
depends neither on the order of the rows nor on whether a row is repeated or weighted, to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from flegel.core.pytree import Array

FEW_NUMBERS = 1 << 18
"""Sets of at most this many numbers are brought into canonical order, which takes up to 0.1 s."""


class WeightedRows(NamedTuple):
    """Features, dense or CSR, labels and weights, each None where there are none."""

    features: Any
    labels: Array | None
    weights: Array | None


def prepared(features: Any, labels: Array | None, weights: Array | None, least: int) -> WeightedRows:
    """Rows of positive weight; in canonical order where they are few, unless fewer than `least` differ."""
    if weights is not None:
        kept = weights > 0
        if not kept.all():
            features, weights = features[kept], weights[kept]
            labels = None if labels is None else labels[kept]
    rows, columns = features.shape
    if rows * columns > FEW_NUMBERS:
        return WeightedRows(features, labels, _or_none(weights))
    dense = features.toarray() if scipy.sparse.issparse(features) else features
    keys = dense if labels is None else np.column_stack([dense, labels])
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    if len(first) < least:
        return WeightedRows(features, labels, _or_none(weights))
    merged = np.bincount(which.reshape(-1), weights, minlength=len(first)).astype(np.float64)
    return WeightedRows(features[first], None if labels is None else labels[first], _or_none(merged))


def _or_none(weights: Array | None) -> Array | None:
    """Weights that are all 1 are none: the engine has a faster kernel for rows without weights."""
    return None if weights is None or (weights == 1.0).all() else weights
