"""Mixtures of Bernoulli distributions: clusters of rows of yes and no, by EM. Never reads data or a clock."""

from __future__ import annotations

import math
from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.documents import entries
from flegel.algorithms.rows import row_parts, rows_of, times
from flegel.algorithms.seeding import ALSO_CALLED_K
from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.errors import UsageError

START_NUMBERS = 2**24
"""Of rows that starts are tried on: 128 MB."""


class Chances(NamedTuple):
    """θ. `chances`: of a 1, (components, columns). Workers need what follows from these: `logits`, a row a column, and
    `empty`, log weight + Σ log(1 − chance), the logarithm of a row of zeros."""

    weights: Array
    chances: Array
    logits: Array
    empty: Array


class YesSums(NamedTuple):
    """s, a row a column: Σ of the shares of rows with a 1 there; Σ of shares, and of their entropies."""

    ones: Array
    shares: Array
    entropy: Array


class ShareChange(NamedTuple):
    """How a visit changes the shares that components have in a row."""

    point: Any
    shares: Array
    entropy: float
    weight: float
    above: float


class BernoulliMixture(Algorithm):
    """Partition rows of zeros and ones softly into k clusters, in each of which columns are independent.

    Model: a row is of component j with `weights[j]`, and then column t is 1 with `chances[j, t]`. Values above
    `binarize` are ones. State of a point: the shares of the components in it, and their entropy; they follow from θ
    alone. Statistics: sums of shares. Update: relative frequencies, with `smoothing` rows more of either value.
    Objective: the free energy −Σ q·(log P(row, j) − log q), less the logarithm of the smoothing prior; it never rises,
    whichever rows were visited (Neal & Hinton 1998), and ends at minus the log-likelihood.
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored")
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-7, slow_gains=True, auxiliary=("logits", "empty"))
    figures = ReportedFigures(followed=("log_likelihood",))
    hyper_names = HyperNames(also_called=ALSO_CALLED_K)

    k: Annotated[int, Meta(ge=1, description="number of components")] = 10
    binarize: Annotated[float, Meta(ge=0, description="values above it count as 1, others as 0")] = 0.0
    smoothing: Annotated[float, Meta(gt=0, description="rows of either value that each column gets besides")] = 1e-3
    n_init: Annotated[int, Meta(ge=1, description="starts that are tried on the sample")] = 3

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Chances:
        """Of several starts around rows of the sample the one that EM takes furthest there."""
        most = min(active().starts.kmeans_most_trial_rows, max(START_NUMBERS // sample.columns, self.k))
        some = np.sort(rng.permutation(rows_of(sample.features))[:most])
        ones = self._ones(sample.features, sample.columns, some)
        mass = np.ones(len(some)) if sample.weights is None else np.asarray(sample.weights, float)[some]
        mean, best, least = mass @ ones / max(mass.sum(), 1e-300), None, np.inf
        for _ in range(self.n_init):
            around = ones[rng.choice(len(some), self.k, replace=len(some) < self.k)]
            theta = self.mixture(np.ones(self.k), 0.5 * mean + 0.5 * (0.25 + 0.5 * around))
            for _ in range(active().starts.lloyd_passes):
                shares, value = self._expected(ones, theta)
                theta = self._updated((shares * mass[:, None]).T @ ones, mass @ shares)
            if -(mass @ value) < least:
                best, least = theta, float(-(mass @ value))
        assert best is not None
        return best

    def _ones(self, features: Any, columns: int, chosen: Array | None = None) -> Array:
        """Chosen rows, all by default, as ones and zeros."""
        chosen = np.arange(rows_of(features)) if chosen is None else chosen
        if not isinstance(features, Sparse):
            return np.asarray(np.asarray(features)[chosen] > self.binarize, np.float64)
        made, place = np.zeros((len(chosen), columns)), np.full(rows_of(features), -1)
        place[chosen] = np.arange(len(chosen))
        owner = np.repeat(place, np.diff(features.indptr))
        known = (owner >= 0) & (features.values > self.binarize)
        made[owner[known], features.indices[known]] = 1.0
        return made

    def mixture(self, weights: Array, chances: Array) -> Chances:
        """θ of these, with what follows from them."""
        weights = weights / weights.sum()
        empty = np.log(weights) + np.log1p(-chances).sum(axis=1)
        return Chances(weights, chances, np.ascontiguousarray((np.log(chances) - np.log1p(-chances)).T), empty)

    def _updated(self, ones: Array, shares: Array) -> Chances:
        """From sums of shares, (components, columns) and (components)."""
        shares = np.maximum(shares, 0.0)[:, None]
        chances = (np.clip(ones, 0.0, shares) + self.smoothing) / (shares + 2.0 * self.smoothing)
        return self.mixture(shares[:, 0] + self.smoothing, chances)

    def _expected(self, ones: Any, theta: Chances) -> tuple[Array, Array]:
        """Shares of the components in rows of ones and zeros, and the rows' log-likelihoods."""
        joint = times(ones, theta.logits) + theta.empty
        top = joint.max(axis=1, keepdims=True)
        chance = np.exp(joint - top)
        total = chance.sum(axis=1, keepdims=True)
        return chance / total, (top + np.log(total))[:, 0]

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, self.k + 1))

    def initAggregator(self, sample: Sample, parameter: Chances) -> YesSums:
        return YesSums(np.zeros_like(parameter.logits), np.zeros(self.k), np.zeros(1))

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Chances, iterationNum: int) -> ShareChange:
        indices, values = entries(dataPoint.features)
        shares = parameter.empty.copy()
        for i in range(indices.shape[0]):
            if values[i] > self.binarize:
                for j in range(shares.shape[0]):
                    shares[j] += parameter.logits[indices[i], j]
        top, total, entropy, k = shares.max(), 0.0, 0.0, shares.shape[0]
        for j in range(k):
            shares[j] = math.exp(shares[j] - top)
            total += shares[j]
        for j in range(k):
            last, shares[j] = dataPoint.state[j], shares[j] / total
            if shares[j] > 0.0:
                entropy -= shares[j] * math.log(shares[j])
            dataPoint.state[j] = shares[j]
            shares[j] = dataPoint.state[j] - last
        change = entropy - dataPoint.state[k]
        dataPoint.state[k] = entropy
        return ShareChange(dataPoint.features, shares, change, dataPoint.weight, self.binarize)

    def aggregate(self, target: YesSums, change: ShareChange) -> YesSums:
        """Add the change of one row's shares to the sums."""
        row, shares, entropy, weight, above = change
        indices, values = entries(row)
        for i in range(indices.shape[0]):
            if values[i] > above:
                for j in range(shares.shape[0]):
                    target.ones[indices[i], j] += weight * shares[j]
        for j in range(shares.shape[0]):
            target.shares[j] += weight * shares[j]
        target.entropy[0] += weight * entropy
        return target

    def updateParameter(self, aggregator: YesSums, oldParameter: Chances) -> Chances:
        return self._updated(np.asarray(aggregator.ones).T, np.asarray(aggregator.shares))

    def objective(self, aggregator: YesSums, parameter: Chances) -> float:
        inside = aggregator.shares @ parameter.empty + (aggregator.ones * parameter.logits).sum()
        return -float(inside + aggregator.entropy[0]) - self._prior(parameter)

    def _prior(self, theta: Chances) -> float:
        inside = np.log(theta.chances).sum() + np.log1p(-theta.chances).sum() + np.log(theta.weights).sum()
        return self.smoothing * float(inside)

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"BernoulliMixture: k={self.k} is more than the number of points, {sample.points}.")

    def model(self, parameter: Chances) -> dict[str, Array]:
        return {"weights": parameter.weights, "chances": parameter.chances}

    def work(self, columns: int) -> float:
        return 2.0 * self.k * columns

    def densities(self, features: Any, parameter: Chances) -> tuple[Array, Array]:
        """Shares of the components in rows, and the rows' log-likelihoods."""
        columns = parameter.chances.shape[1]
        parts = [self._expected(self._ones(rows, columns), parameter) for _, _, rows in row_parts(features, columns)]
        return np.concatenate([part[0] for part in parts]), np.concatenate([part[1] for part in parts])

    def probabilities(self, features: Any, parameter: Chances) -> Array:
        return self.densities(features, parameter)[0]

    def scores(self, features: Any, parameter: Chances) -> Array:
        """The log-likelihood of each row."""
        return self.densities(features, parameter)[1]

    def predict(self, features: Any, parameter: Chances) -> Array:
        """The component with the largest share of each row, int32."""
        return np.asarray(self.probabilities(features, parameter).argmax(axis=1), dtype=np.int32)

    def evaluate(self, features: Any, labels: Array | None, parameter: Chances) -> Evaluation:
        total = float(self.scores(features, parameter).sum())
        return Evaluation(-total - self._prior(parameter), {"log_likelihood": total / max(rows_of(features), 1)})
