"""Rows as the engine gets them from an estimator: without rows of weight 0, and small sets in a canonical order.

Never trains. In a small set equal rows become one row with the sum of their weights, and rows are ordered by what is in
them. Then a fit depends neither on the order of the rows nor on whether a row is repeated or weighted, to the last bit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import scipy.sparse

from flegel.configuration.sources import settings_outside
from flegel.core.pytree import Array


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
    if rows * columns > settings_outside().starts.canonical_order_numbers:
        return WeightedRows(features, labels, _or_none(weights))
    dense = features.toarray() if scipy.sparse.issparse(features) else features
    keys = dense if labels is None else np.column_stack([dense, labels])
    first, which = distinct_rows(np.asarray(keys, np.float64))
    if len(first) < least:
        return WeightedRows(features, labels, _or_none(weights))
    merged = np.bincount(which, weights, minlength=len(first)).astype(np.float64)
    return WeightedRows(features[first], None if labels is None else labels[first], _or_none(merged))


def _or_none(weights: Array | None) -> Array | None:
    """Weights that are all 1 are none: the engine has a faster kernel for rows without weights."""
    return None if weights is None or (weights == 1.0).all() else weights


def distinct_rows(rows: Array) -> tuple[Array, Array]:
    """Of rows that differ: the place of one of each, in an order that depends on their numbers alone; and of every row,
    which of these it equals.

    Ordered by a hash of 64 bits: one sort of integers, where comparing whole rows takes several times as long. Should
    two rows that differ have one hash, whole rows are compared after all. The hash of the rows in float32 goes first:
    float32 rows and the float64 rows that they were made of have one order, and begin alike.
    """
    plain = np.ascontiguousarray(rows) + 0.0  # −0.0 becomes 0.0, which is equal and has other bits
    with np.errstate(over="ignore"):
        narrow = plain.astype(np.float32)
    hashes = _hashes(plain)
    order = np.argsort(hashes) if (narrow == plain).all() else np.lexsort((hashes, _hashes(narrow + np.float64(0.0))))
    ordered, hashes = plain[order], hashes[order]
    alike = (ordered[1:] == ordered[:-1]).all(axis=1)
    if not np.array_equal(alike, hashes[1:] == hashes[:-1]):
        _, first, which = np.unique(plain, axis=0, return_index=True, return_inverse=True)
        return first, which.reshape(-1)
    begins = np.concatenate([[True], ~alike]) if len(order) else np.zeros(0, bool)
    which = np.empty(len(order), np.intp)
    which[order] = np.cumsum(begins) - 1
    return order[begins], which


def _hashes(rows: Array) -> Array:
    """64 bits for each row. Numbers with short mantissas differ in their upper bits only, so these are mixed into the
    lower ones before and after a multiplication by an odd number for each column."""
    factors = np.random.default_rng(0x5EED).integers(1, 1 << 63, rows.shape[1], dtype=np.uint64) | np.uint64(1)
    bits = rows.view(np.uint64)
    mixed = (bits ^ (bits >> np.uint64(32))) * factors
    mixed ^= mixed >> np.uint64(29)
    total: Array = (mixed * factors[::-1]).sum(axis=1, dtype=np.uint64)
    total ^= total >> np.uint64(31)
    return total
