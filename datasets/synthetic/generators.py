"""Generated sets: clusters, arbiter PUFs, images, ratings. Every worker can generate any rows, always the same ones.

Never stores rows: they are drawn from counters (see `block_source.block_rng`) by the worker that uses them.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import numpy as np

from flegel.core.pytree import Array
from flegel.core.shard import Sparse
from flegel.datasets.rows.row_ranges import expand
from flegel.datasets.rows.source import Description, Rows, Source, concatenate_sparse
from flegel.datasets.synthetic.block_source import BlockSource, block_rng
from flegel.errors import DataError

_FIXED = 2**63
"""Block number of the random numbers of a whole set (centres, weights, templates)."""


class Blobs(BlockSource):
    """Round clusters of equal size and spread; the label is the cluster."""

    kind = "blobs"
    labelled = True

    def __init__(self, rows: int, seed: int = 0, columns: int = 16, centers: int = 10) -> None:
        super().__init__(rows, columns, seed)
        self.origin, self.centers = "blobs", centers
        fixed = block_rng("blobs", seed, _FIXED)
        self.means = fixed.uniform(-10, 10, (centers, columns)).astype(np.float32)

    def block(self, rng: np.random.Generator) -> tuple[Array, Array | None]:
        which = rng.integers(0, self.centers, self.block_rows)
        return self.means[which] + rng.standard_normal((self.block_rows, self.columns), np.float32), which.astype(
            np.float64
        )

    def describe(self) -> Description:
        plain = {"rows": self.rows, "seed": self.seed, "columns": self.columns, "centers": self.centers}
        return {"kind": self.kind, **plain}

    @classmethod
    def from_description(cls, description: Description) -> Blobs:
        return cls(*(description[k] for k in ("rows", "seed", "columns", "centers")))


class ArbiterPuf(BlockSource):
    """An XOR of simulated arbiter PUFs: parity features of random challenges (±1) and the response (±1).

    Stage delays are normal, and the response of one chain is the sign of a linear function of the parities,
    as in the additive delay model of an arbiter; the XOR of the chains is the product of their
    signs.
    """

    kind = "puf"
    labelled = True
    label_values = (-1.0, 1.0)

    def __init__(self, rows: int, seed: int = 0, stages: int = 128, chains: int = 5) -> None:
        super().__init__(rows, stages, seed)
        self.origin, self.chains = "puf", chains
        self.delays = block_rng("puf", seed, _FIXED).standard_normal((stages + 1, chains), np.float32)

    def block(self, rng: np.random.Generator) -> tuple[Array, Array | None]:
        signs = (1 - 2 * rng.integers(0, 2, (self.block_rows, self.columns), np.int8)).astype(np.float32)
        parity = np.cumprod(signs[:, ::-1], axis=1)[:, ::-1]
        response = np.sign(parity @ self.delays[:-1] + self.delays[-1]).prod(axis=1)
        return parity, np.where(response < 0, -1.0, 1.0)

    def describe(self) -> Description:
        plain = {"rows": self.rows, "seed": self.seed, "stages": self.columns, "chains": self.chains}
        return {"kind": self.kind, **plain}

    @classmethod
    def from_description(cls, description: Description) -> ArbiterPuf:
        return cls(*(description[k] for k in ("rows", "seed", "stages", "chains")))


@functools.cache
def _templates(name: str, side: int, channels: int, classes: int) -> Array:
    """(class, shift, pixel): one smooth shape per class, shifted by up to two pixels in each direction."""
    rng = block_rng(name, 0, _FIXED)
    margin = 2
    y, x = np.mgrid[0 : side + 2 * margin, 0 : side + 2 * margin]
    figures = np.zeros((classes, channels, *x.shape), np.float32)
    for figure in figures:
        for _ in range(6):
            cx, cy = rng.uniform(margin + 4, side + margin - 4, 2)
            wide, narrow, angle = rng.uniform(3, 7), rng.uniform(1, 2), rng.uniform(0, np.pi)
            along = (x - cx) * np.cos(angle) + (y - cy) * np.sin(angle)
            across = (y - cy) * np.cos(angle) - (x - cx) * np.sin(angle)
            stroke = np.exp(-((along / wide) ** 2) - (across / narrow) ** 2)
            figure += stroke * rng.uniform(0.4, 1.0, (channels, 1, 1))
    figures *= 255 / figures.max(axis=(1, 2, 3), keepdims=True)
    moved = [
        figures[:, :, dy : dy + side, dx : dx + side].reshape(classes, -1)
        for dy in range(2 * margin + 1)
        for dx in range(2 * margin + 1)
    ]
    return np.stack(moved, axis=1)


_NOISE = np.where(np.arange(256) < 64, (np.arange(256) - 31.5) * 1.5, 0.0).astype(np.float32)
"""Noise of a pixel by random byte: zero for three of four bytes."""


class Images(BlockSource):
    """Images of ten smooth shapes, shifted, dimmed and noisy, as integers from 0 to 255."""

    kind = "images"
    labelled = True
    CLASSES: ClassVar[int] = 10
    label_values = tuple(map(float, range(CLASSES)))

    def __init__(self, name: str, rows: int, seed: int = 0, side: int = 28, channels: int = 1) -> None:
        super().__init__(rows, side * side * channels, seed)
        self.origin, self.side, self.channels = name, side, channels
        self.templates = _templates(name, side, channels, self.CLASSES)

    def block(self, rng: np.random.Generator) -> tuple[Array, Array | None]:
        which = rng.integers(0, self.CLASSES, self.block_rows)
        moved = rng.integers(0, self.templates.shape[1], self.block_rows)
        image = self.templates[which, moved]
        image *= rng.uniform(0.6, 1.0, (self.block_rows, 1)).astype(np.float32)
        image += _NOISE[np.frombuffer(rng.bytes(image.size), np.uint8).reshape(image.shape)]
        np.clip(image, 0, 255, out=image)
        return np.rint(image, out=image), which.astype(np.float64)

    def describe(self) -> Description:
        plain = {"rows": self.rows, "seed": self.seed, "side": self.side, "channels": self.channels}
        return {"kind": self.kind, "name": self.origin, **plain}

    @classmethod
    def from_description(cls, description: Description) -> Images:
        return cls(*(description[k] for k in ("name", "rows", "seed", "side", "channels")))


class Ratings(Source):
    """Ratings from 0.5 to 5 in steps of 0.5, one sparse row per user.

    The number of ratings of a user is log-normal, that of an item falls as a power of its rank, and a rating is the
    rounded sum of biases, an inner product of eight factors and noise, which is the model that NMF fits.
    """

    kind = "rated"
    sparse = True
    BLOCK: ClassVar[int] = 256
    FACTORS: ClassVar[int] = 8

    def __init__(self, name: str, users: int, items: int, ratings: int, seed: int = 0) -> None:
        """Draw what all blocks share, once: the number of ratings of each user, and popularity, factors and bias of the
        items."""
        if users < 1 or items < 1 or not users <= ratings <= users * items:
            raise DataError(
                f"{ratings} ratings do not fit {users} users and {items} items; "
                f"use between {users} and {users * items}."
            )
        self.origin, self.rows, self.columns = name, users, items
        self.ratings, self.seed = ratings, seed
        self.dtype: np.dtype[Any] = np.dtype(np.float32)
        rng = block_rng(name, seed, _FIXED)
        self.degrees = _degrees(rng, users, items, ratings)
        popularity = (np.arange(items) + 5.0) ** -0.9
        self.cumulative = np.cumsum(popularity / popularity.sum())
        self.place = rng.permutation(items).astype(np.int32)
        self.item_factors = rng.standard_normal((items, self.FACTORS), np.float32) / np.float32(self.FACTORS**0.5)
        self.item_bias = (0.35 * rng.standard_normal(items)).astype(np.float32)

    def edges(self) -> Array | None:
        return np.append(np.arange(0, self.rows, self.BLOCK, dtype=np.int64), self.rows)

    def _block(self, number: int) -> Sparse:
        """The ratings of one block of users. Users are independent given the items, so each block is drawn by itself
        and always comes out the same."""
        rng = block_rng(self.origin, self.seed, number)
        degrees = self.degrees[number * self.BLOCK : (number + 1) * self.BLOCK]
        user = np.repeat(np.arange(len(degrees)), degrees)
        start = np.cumsum(degrees) - degrees
        turn = np.arange(len(user)) - start[user]
        drawn = (turn + rng.random(len(user))) / degrees[user]
        rank = np.minimum(np.searchsorted(self.cumulative, drawn), self.columns - 1)
        rank = _distinct(rank, turn, user, degrees, self.columns)
        item = self.place[rank]
        order = np.lexsort((item, user))
        item, user = item[order], user[order]
        taste = rng.standard_normal((len(degrees), self.FACTORS), np.float32)
        bias = 0.4 * rng.standard_normal(len(degrees))
        score = 3.55 + bias[user] + self.item_bias[item] + 0.7 * rng.standard_normal(len(item))
        score += 0.6 * np.einsum("ij,ij->i", taste[user], self.item_factors[item])
        values = (np.clip(np.rint(score * 2), 1, 10) / 2).astype(np.float32)
        return Sparse(np.concatenate(([0], np.cumsum(degrees))), item, values, self.columns)

    def take(self, ranges: Array, rng: np.random.Generator | None = None) -> Rows:
        """Generate every block that holds wanted users, and keep their rows."""
        ids = expand(ranges)
        parts: list[Rows] = []
        at = 0
        while at < len(ids):
            number = int(ids[at]) // self.BLOCK
            end = at + 1
            while end < len(ids) and ids[end] // self.BLOCK == number:
                end += 1
            wanted = ids[at:end] if rng is None else rng.permutation(ids[at:end])
            parts.append(Rows(_select(self._block(number), wanted - number * self.BLOCK), None, wanted))
            at = end
        rows = concatenate_sparse(parts, self.columns)
        assert isinstance(rows.features, Sparse)
        return rows._replace(features=rows.features._replace(values=rows.features.values.astype(self.dtype)))

    def column(self, index: int) -> Array:
        values = np.zeros(self.rows)
        for number in range(-(-self.rows // self.BLOCK)):
            block = self._block(number)
            at = np.flatnonzero(block.indices == index)
            values[number * self.BLOCK + np.searchsorted(block.indptr, at, side="right") - 1] = block.values[at]
        return values

    def describe(self) -> Description:
        plain = {"users": self.rows, "items": self.columns, "ratings": self.ratings, "seed": self.seed}
        return {"kind": self.kind, "name": self.origin, **plain}

    @classmethod
    def from_description(cls, description: Description) -> Ratings:
        return cls(*(description[k] for k in ("name", "users", "items", "ratings", "seed")))


def _degrees(rng: np.random.Generator, users: int, items: int, ratings: int) -> Array:
    """Ratings per user: log-normal, between 1 and `items`, with the sum `ratings`."""
    weight = rng.lognormal(0.0, 1.0, users)
    low, high = 0.0, float(ratings)
    for _ in range(100):  # bisection for the scale at which clipped degrees add up
        scale = (low + high) / 2
        if np.clip(np.floor(weight * scale), 1, items).sum() > ratings:
            high = scale
        else:
            low = scale
    degrees = np.clip(np.floor(weight * low), 1, items).astype(np.int64)
    while (missing := ratings - int(degrees.sum())) > 0:
        room = np.flatnonzero(degrees < items)[:missing]
        degrees[room] += 1
    return degrees


def _distinct(rank: Array, turn: Array, user: Array, degrees: Array, items: int) -> Array:
    """Ascending ranks of each user made distinct: a repeated one is moved up, at the end down."""
    width = items + int(degrees.max()) + 1
    base = user.astype(np.int64) * width
    pushed = np.maximum.accumulate(rank - turn + base) - base + turn
    return np.asarray(np.minimum(pushed, items - degrees[user] + turn))


def _select(block: Sparse, rows: Array) -> Sparse:
    starts, stops = block.indptr[rows], block.indptr[rows + 1]
    where = expand(np.stack([starts, stops], axis=1))
    indptr = np.concatenate(([0], np.cumsum(stops - starts)))
    return Sparse(indptr, block.indices[where], block.values[where], block.columns)
