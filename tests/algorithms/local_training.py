"""A training loop in one process for tests of algorithms: shares, intervals, barriers, and nothing else.

It keeps the statistics as the engine promises to: a report a worker and barrier, kept fields cumulative,
spent fields for one barrier only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.shard import DataPoint, Shard, Sparse, SparseRow, make_shard
from flegel.core.stop_flag import new_flag


def sparse_of(dense: Any, dtype: Any = np.float64, observed: Any = None) -> Sparse:
    """CSR of the entries that are not 0, or of those that `observed` marks."""
    mask = (np.asarray(dense) != 0) if observed is None else observed
    row, column = np.nonzero(mask)
    indptr = np.concatenate([[0], np.cumsum(np.bincount(row, minlength=len(dense)))]).astype(np.int64)
    return Sparse(indptr, column.astype(np.int32), np.asarray(dense)[row, column].astype(dtype), dense.shape[1])


def rows_between(features: Any, first: int, last: int) -> Any:
    if not isinstance(features, Sparse):
        return features[first:last]
    lo, hi = features.indptr[first], features.indptr[last]
    return Sparse(
        features.indptr[first : last + 1] - lo,
        features.indices[lo:hi],
        features.values[lo:hi],
        features.columns,
    )


def count_rows(features: Any) -> int:
    return len(features.indptr) - 1 if isinstance(features, Sparse) else len(features)


def sample_of(features: Any, labels: Any, rows: int = 2000) -> Sample:
    points = count_rows(features)
    columns = features.columns if isinstance(features, Sparse) else features.shape[1]
    if isinstance(features, Sparse) or points <= rows:
        return Sample(features, labels, points, columns)
    chosen = np.linspace(0, points - 1, rows).astype(int)
    return Sample(features[chosen], None if labels is None else labels[chosen], points, columns)


def point_of(share: Shard, i: int) -> DataPoint:
    """Point i of a share in the layout `rows`; its state is a view."""
    rows = share.features
    if isinstance(rows, Sparse):
        lo, hi = rows.indptr[i], rows.indptr[i + 1]
        return DataPoint(SparseRow(rows.indices[lo:hi], rows.values[lo:hi]), share.labels[i], share.state[i])
    return DataPoint(rows[i], share.labels[i], share.state[i])


@dataclass
class Run:
    """θ is read-only as in a job: kernels are compiled for that type, and not once more for another."""

    algorithm: Algorithm
    sample: Sample
    shares: list[Shard]
    parameter: Any
    statistics: Any
    cursors: list[int]
    trained_with: Any = None
    objectives: list[float] = field(default_factory=list)

    def barrier(self, points: int) -> None:
        """Every worker trains this many points, reports, and θ moves once."""
        pytree.clear(self.statistics, self.algorithm.statistics.spent)
        self.trained_with = self.parameter = pytree.read_only(
            self.parameter
        )  # a test may have put in arrays of its own
        for w, share in enumerate(self.shares):
            report = pytree.zeros_like(self.statistics)
            kernel = self.algorithm.kernel(share)
            left = min(points, share.points)
            while left > 0:
                start = self.cursors[w]
                end = min(share.points, start + left)
                reached = kernel(share, self.parameter, report, start, end, 0, new_flag())
                assert reached == end
                left -= end - start
                self.cursors[w] = 0 if end == share.points else end
            self.algorithm.aggregate(self.statistics, report)
        self.parameter = pytree.read_only(self.algorithm.updateParameter(self.statistics, self.parameter))
        assert pytree.is_finite(self.parameter) and pytree.is_finite(self.statistics)
        value = self.algorithm.objective(self.statistics, self.parameter)
        if value is not None:
            self.objectives.append(value)

    def passes(self, count: float, interval: int | None = None) -> Run:
        """Barriers every `interval` points a worker (default: a whole share), until `count` passes are
        done.
        """
        each = max(max(share.points for share in self.shares), 1)
        interval = each if interval is None else interval
        for _ in range(max(round(count * each / interval), 1)):
            self.barrier(interval)
        return self


def start(
    algorithm: Algorithm,
    features: Any,
    labels: Any = None,
    workers: int = 1,
    seed: int = 0,
    parameter: Any = None,
) -> Run:
    sample = sample_of(features, labels)
    algorithm.validate(sample)
    rng = np.random.default_rng(seed)
    parameter = algorithm.initParameter(sample, rng) if parameter is None else parameter
    edges = np.linspace(0, sample.points, workers + 1).astype(int)
    shares = []
    for first, last in pairwise(edges):
        state = algorithm.initState(int(last - first), sample.columns, rng)
        own = None if labels is None else labels[first:last]
        shares.append(make_shard(rows_between(features, first, last), own, state, algorithm.kernels.layout, int(first)))
    statistics = pytree.as_doubles(algorithm.initAggregator(sample, parameter))
    return Run(algorithm, sample, shares, pytree.read_only(parameter), statistics, [0] * workers)
