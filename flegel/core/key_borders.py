"""Rows that belong together by a key: their order, and the places between two keys. Pure arithmetic on arrays.

Points move between workers in whole tiles (`flegel/machine/worker/visit_schedule.py`), so keys can move only where
their borders are edges of tiles. Of any 64 numbers some consecutive ones add up to a multiple of 64 (two of their 65
partial sums have the same remainder), so keys can be put in an order in which such places are frequent.
"""

from __future__ import annotations

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import TILE


def order_by_key(keys: Array, rng: np.random.Generator) -> Array:
    """A permutation that puts rows of one key beside each other, keys in random order, in bundles of whole tiles, which
    mostly have few keys; what fills no tiles comes last. Rows of one key stay in their order."""
    found, place, sizes = np.unique(keys, return_inverse=True, return_counts=True)
    rank = np.empty(len(found), np.int64)
    rank[_bundled(rng.permutation(len(found)).tolist(), sizes.tolist())] = np.arange(len(found))
    return np.argsort(rank[place.reshape(-1)], kind="stable")


def _bundled(order: list[int], sizes: list[int]) -> list[int]:
    """The keys in another order: consecutive ones whose sizes add up to whole tiles are taken out as soon as there are
    such."""
    done: list[int] = []
    waiting: list[int] = []
    sums = [0]
    """Rows before each waiting key, and behind the last, as remainders of whole tiles; all different."""
    for key in order:
        waiting.append(key)
        reached = (sums[-1] + sizes[key]) % TILE
        if reached in sums:
            at = sums.index(reached)
            done += waiting[at:]
            del waiting[at:], sums[at + 1 :]
        else:
            sums.append(reached)
    return done + waiting


def borders(keys: Array) -> Array:
    """Places at which another key begins; 0 and the end are such places, too."""
    inside = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    return np.concatenate([[0], inside, [len(keys)]]) if len(keys) else np.zeros(1, np.int64)


def nearest_borders(keys: Array, wanted: Array) -> Array:
    """The border nearest to each of these ascending places."""
    found = borders(keys)
    above = np.searchsorted(found, wanted).clip(max=len(found) - 1)
    below = (above - 1).clip(min=0)
    return np.asarray(np.where(wanted - found[below] < found[above] - wanted, found[below], found[above]))
