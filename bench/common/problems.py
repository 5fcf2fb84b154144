"""Problems that models are raced on: an algorithm with its start, and rows in files that every worker reads for itself.

Rows are made by many threads, block by block, and always the same. They lie in a temporary folder, so that a run costs
no copy of the whole set; the start is found once, so that all runs of a problem begin alike and at once.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bench.common.data_cache import DataCache
from flegel.core import pytree
from flegel.datasets.dataset import Dataset
from flegel.datasets.rows.arrays import ArraySource, open_npy
from flegel.runtime.job.find_algorithm import find_algorithm

ALGORITHMS = ("kmeans", "gmm", "fcm", "lr", "nmf")
SIZE = {"kmeans": 1.0, "gmm": 0.5, "fcm": 1.0, "lr": 0.25, "nmf": 1.0}  # of --rows, for passes of comparable length
WITHIN = {"kmeans": 0.07, "gmm": 0.04, "fcm": 0.005, "lr": 0.005, "nmf": 0.03}
"""Distance of the target from where `bsp` ends, as a part of what it gains after its first pass. Optima of k-means
that are reached from different starts differ by 4 % of that gain, those of GMM by 1 %: nearer is a lottery."""
BLOCK = 100_000

Filler = Callable[[np.random.Generator, np.ndarray], None]


FROM_ZERO = {"lr.sample_start_steps": 0}
"""Settings with which logistic regression begins at 0: from the minimum of a sample two passes are left, which would
tell nothing of models of synchronization."""


@dataclass
class Problem:
    """What a race is run on."""

    name: str
    algorithm: Any
    data: Dataset
    partition: str = "shuffle"


def mixture(columns: int, centres: int, apart: float = 3.5) -> Filler:
    """Clouds whose centres are about `apart` standard deviations from each other: they overlap."""
    rng = np.random.default_rng(0)
    means = rng.normal(scale=apart / np.sqrt(2 * columns), size=(centres, columns)).astype(np.float32)

    def fill(rng: np.random.Generator, rows: np.ndarray) -> None:
        rng.standard_normal(out=rows, dtype=np.float32)
        rows += means[rng.integers(centres, size=len(rows))]

    return fill


def collisions(rng: np.random.Generator, rows: np.ndarray) -> None:
    """Measurements like those of HIGGS: 28 columns, no gaps between clusters, some long tails."""
    rng.standard_normal(out=rows, dtype=np.float32)
    rows *= np.geomspace(1.5, 0.2, rows.shape[1], dtype=np.float32)
    rows[:, ::3] = np.exp(0.5 * rows[:, ::3])


class InOrder:
    """The same rows in the order of their first column: contiguous shares then know a part of the clusters each."""

    def __init__(self, fill: Filler) -> None:
        sample = np.empty((1_000_000, 28), np.float32)
        fill(np.random.default_rng(2), sample)
        self.quantiles = np.sort(sample[:, 0])

    def place(self, rng: np.random.Generator, made: np.ndarray, begin: int, rows: int) -> None:
        at = (begin + np.arange(len(made)) + rng.random(len(made))) / rows
        made[:, 0] = np.interp(at, np.linspace(0, 1, len(self.quantiles)), self.quantiles)


class Problems:
    """Makes problems in a temporary folder and forgets the former one when another is asked for."""

    def __init__(self, shares: str = "shuffled") -> None:
        self.shares = shares
        self.cache = DataCache(None)
        self.last: tuple[str, int, Problem] | None = None

    def __enter__(self) -> Problems:
        return self

    def __exit__(self, *_: object) -> None:
        self.cache.close()

    def get(self, name: str, rows: int) -> Problem:
        """An algorithm and data whose training takes some ten to fifty passes of bsp; for nmf, rows are ratings."""
        if self.last is None or self.last[:2] != (name, rows):
            self.cache.clear()
            self.last = (name, rows, self._make(name, rows))
        return self.last[2]

    def _make(self, name: str, rows: int) -> Problem:
        cls = find_algorithm(name)
        match name:
            case "kmeans" if self.shares == "sorted":
                data = self._dense(rows, 28, collisions, order=InOrder(collisions))
                return Problem(name, with_one_start(cls(k=50)), data, "contiguous")
            case "kmeans":
                return Problem(name, with_one_start(cls(k=50)), self._dense(rows, 28, collisions))
            case "gmm":
                return Problem(name, with_one_start(cls(k=16)), self._dense(rows, 32, mixture(32, 20, apart=2.0)))
            case "fcm":
                return Problem(name, with_one_start(cls(k=10)), self._dense(rows, 8, mixture(8, 12, apart=4.0)))
            case "lr":
                weight = np.random.default_rng(1).normal(size=200).astype(np.float32) * np.float32(0.2)
                return Problem(name, with_one_start(cls()), self._dense(rows, 200, mixture(200, 6), weight))
            case "nmf":
                return Problem(name, with_one_start(cls()), self.cache.rows(f"ratings:{rows}"))
        return Problem(name, with_one_start(cls()), self._dense(rows, 18, mixture(18, 10)))

    def _path(self, name: str) -> str:
        return str(self.cache.folder / f"{name}.npy")

    def _dense(
        self, rows: int, columns: int, fill: Filler, weight: np.ndarray | None = None, order: InOrder | None = None
    ) -> Dataset:
        """Rows, and with `weight` labels that are drawn by the logistic model."""
        features = np.lib.format.open_memmap(self._path("features"), "w+", np.float32, (rows, columns))
        labels = None
        if weight is not None:
            labels = np.lib.format.open_memmap(self._path("labels"), "w+", np.float64, (rows,))

        def make(block: int) -> None:
            rng = np.random.default_rng([1, block])
            part = slice(block * BLOCK, min((block + 1) * BLOCK, rows))
            made = np.empty((part.stop - part.start, columns), np.float32)
            fill(rng, made)
            if order is not None:
                order.place(rng, made, part.start, rows)
            features[part] = made
            if labels is not None and weight is not None:
                labels[part] = made @ weight + rng.logistic(size=len(made)) > 0

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(make, range(-(-rows // BLOCK))))
        paths = (self._path("features"), None if labels is None else self._path("labels"))
        source = ArraySource(
            open_npy(Path(paths[0])), None if paths[1] is None else open_npy(Path(paths[1])),
            origin="race", dtype="float32", paths=paths,
        )  # fmt: skip
        return Dataset("race", source, rows)


def with_one_start(algorithm: Any) -> Any:
    """The same algorithm, which looks for its θ(0) once for each seed and then remembers it."""
    found: dict[str, Any] = {}
    search = algorithm.initParameter

    def remembered(sample: Any, rng: np.random.Generator) -> Any:
        seeded = str(rng.bit_generator.state)
        if seeded not in found:
            found[seeded] = search(sample, rng)
        return pytree.copy(found[seeded])

    algorithm.initParameter = remembered
    return algorithm
