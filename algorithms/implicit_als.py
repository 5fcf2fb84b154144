"""Factors of users and items from counts of use (implicit feedback), by alternating least squares. Never reads data or
a clock."""

from __future__ import annotations

from typing import Annotated, Any, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Evaluation, Sample
from flegel.algorithms.documents import entries
from flegel.algorithms.every_point import EveryPoint, all_counted
from flegel.algorithms.rows import rows_of
from flegel.algorithms.solve import solve_user
from flegel.core.pytree import Array, protected
from flegel.core.shard import DataPoint, Sparse
from flegel.declarations.accepts import Accepts
from flegel.declarations.figures import ReportedFigures
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError
from flegel.wording import setting

MOST_NUMBERS = 2**27
"""Of the statistics, which have a symmetric matrix for each column: 1 GB."""
MOST_EXTRA = 1e10
"""Of alpha·r. The objective is about 1 an entry, and a difference of sums of alpha·r: 1e-6 of it is rounding."""
FIRST_SIZE = 0.1
"""Of item factors at the start, as a length; users are solved for at once, so that only their directions matter."""


class ItemFactors(NamedTuple):
    """θ: a row a column, and their products Σ y·yᵀ, which every user needs; `total`: what all users weigh."""

    factors: Array
    products: Array
    total: Array


class UserSums(NamedTuple):
    """s. Over users, each with the factors x of its last visit: Σ x·xᵀ; of each column Σ (c − 1)·x·xᵀ, lower
    triangles, and Σ c·x over users who have it. `figures`: Σ c over all entries, the weight of the users that were
    visited, and how many values are no counts of use."""

    whole: Array
    own: Array
    pulls: Array
    figures: Array


class UserChange(NamedTuple):
    """A user's old and new factors."""

    point: Any
    last: Array
    new: Array
    first: float
    weight: float
    alpha: float


class ImplicitALS(EveryPoint):
    """Find factors x of rows (users) and y of columns (items) with x·y near 1 where a user has an item, else near 0.

    Minimized is Σ c·(p − x·y)² + l2·(Σ|x|² + Σ|y|²) over all pairs, with p = 1 and c = 1 + alpha·r where the row has a
    value r > 0, else p = 0 and c = 1. A visit solves for x under the present items; state of a point: x. Statistics are
    sums of the last x, so that items are solved for exactly at each update, and the objective never rises, whichever
    users were visited. A symmetric matrix of `rank` columns for each item is kept.
    Reference: Y. Hu, Y. Koren, C. Volinsky, Collaborative filtering for implicit feedback datasets (2008).
    """

    accepts = Accepts(sparse=True, weighted=True, labels="ignored", ratings=True)
    state = HiddenState(memoryless=True)
    learning = Learning(tolerance=1e-4, auxiliary=("products", "total"))
    placement = ParameterPlacement(unsharded="users are solved for with the products of all items' factors")
    figures = ReportedFigures(followed=("mean_rank",))
    hyper_names = HyperNames(also_called={"factors": "rank", "n_components": "rank", "regularization": "l2"})

    rank: Annotated[int, Meta(ge=1, le=512, description="number of factors")] = 20
    alpha: Annotated[float, Meta(gt=0, description="confidence of an entry r is 1 + alpha·r")] = 40.0
    l2: Annotated[float, Meta(gt=0, description="penalty on squared factors")] = 0.1

    def validate(self, sample: Sample) -> None:
        self._refuse(self._outside(sample.features))
        if sample.columns * self.rank * (self.rank + 1) // 2 > MOST_NUMBERS:
            fitting = int(np.sqrt(2 * MOST_NUMBERS / sample.columns))
            raise UsageError(
                f"ImplicitALS keeps {self.rank}·{self.rank + 1}/2 numbers for each of {sample.columns:,} columns, more "
                f"than 1 GB; use {setting('rank', max(fitting - 1, 1))} or less, or leave rare columns out."
            )

    def _outside(self, features: Any) -> int:
        """How many values are no counts of use."""
        values = features.values if isinstance(features, Sparse) else np.asarray(features)
        return int((~((values >= 0) & (values <= MOST_EXTRA / self.alpha))).sum())

    def _refuse(self, outside: int) -> None:
        if outside:
            raise UsageError(
                f"ImplicitALS: counts of use are from 0 to {MOST_EXTRA / self.alpha:g} (beyond, rounding of alpha·r "
                f"hides the objective), and {outside:,} values at least are not; choose others, or divide them."
            )

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> ItemFactors:
        self.validate(sample)
        factors = rng.normal(size=(sample.columns, self.rank)) * (FIRST_SIZE / np.sqrt(self.rank))
        return ItemFactors(factors, factors.T @ factors, np.array([sample.mass]))

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        """x, and 1 after the first visit."""
        return np.zeros((points, self.rank + 1))

    def initAggregator(self, sample: Sample, parameter: ItemFactors) -> UserSums:
        columns, rank = parameter.factors.shape
        return UserSums(
            np.zeros((rank, rank)), np.zeros((columns, rank * (rank + 1) // 2)), np.zeros((columns, rank)), np.zeros(3)
        )

    def updateDataPoint(self, dataPoint: DataPoint, parameter: ItemFactors, iterationNum: int) -> UserChange:
        indices, values = entries(dataPoint.features)
        rank, last = self.rank, dataPoint.state[: self.rank].astype(np.float64)
        new = solve_user(indices, values, parameter.factors, parameter.products, self.alpha, self.l2)
        first = 1.0 - dataPoint.state[rank]
        for f in range(rank):
            dataPoint.state[f] = new[f]
            new[f] = dataPoint.state[f]
        dataPoint.state[rank] = 1.0
        return UserChange(dataPoint.features, last, new, first, dataPoint.weight, self.alpha)

    def aggregate(self, target: UserSums, change: UserChange) -> UserSums:
        """Replace a user's factors in the sums."""
        row, last, new, first, weight, alpha = change
        indices, values = entries(row)
        rank, place = new.shape[0], 0
        pairs = np.empty(rank * (rank + 1) // 2)
        for f in range(rank):
            for g in range(f + 1):
                pairs[place] = weight * (new[f] * new[g] - last[f] * last[g])
                target.whole[f, g] += pairs[place]
                if g < f:
                    target.whole[g, f] += pairs[place]
                place += 1
        for i in range(indices.shape[0]):
            item, extra = indices[i], alpha * values[i]
            if not 0.0 < extra <= MOST_EXTRA:
                target.figures[2] += 0.0 if extra == 0.0 else first
                continue
            for p in range(place):
                target.own[item, p] += extra * pairs[p]
            for f in range(rank):
                target.pulls[item, f] += weight * (1.0 + extra) * (new[f] - last[f])
            target.figures[0] += first * weight * (1.0 + extra)
        target.figures[1] += first * weight
        return target

    def updateParameter(self, aggregator: UserSums, oldParameter: ItemFactors) -> ItemFactors:
        self._refuse(int(aggregator.figures[2]))
        if not all_counted(aggregator.figures[1], oldParameter):
            return oldParameter  # items whose users were not visited yet would become 0
        factors = np.array(oldParameter.factors)
        lower, step = np.tril_indices(self.rank), max(2**20 // self.rank**2, 1)
        for first in range(0, len(factors), step):
            part = slice(first, first + step)
            matrices = np.zeros((len(factors[part]), self.rank, self.rank))
            matrices[:, lower[0], lower[1]] = matrices[:, lower[1], lower[0]] = aggregator.own[part]
            matrices += aggregator.whole + self.l2 * np.eye(self.rank)
            factors[part] = np.linalg.solve(matrices, aggregator.pulls[part][:, :, None])[:, :, 0]
        return ItemFactors(factors, factors.T @ factors, oldParameter.total)

    def objective(self, aggregator: UserSums, parameter: ItemFactors) -> float:
        y, (f, g) = np.asarray(parameter.factors), np.tril_indices(self.rank)
        twice = np.where(f == g, 1.0, 2.0)
        curved = float(np.einsum("ip,ip->", aggregator.own, twice * y[:, f] * y[:, g]))
        curved += float((aggregator.whole * parameter.products).sum())
        size = float(np.trace(aggregator.whole)) + float((y**2).sum())
        return float(aggregator.figures[0]) - 2.0 * float((aggregator.pulls * y).sum()) + curved + self.l2 * size

    def work(self, columns: int) -> float:
        return float(self.rank**2 * (self.rank / 6.0 + columns / 20.0))

    def model(self, parameter: ItemFactors) -> dict[str, Array]:
        return {"factors": parameter.factors}

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, features: Any, parameter: ItemFactors) -> Array:
        """Factors of users, solved for under the finished items."""
        self._refuse(self._outside(features))
        users = np.empty((rows_of(features), self.rank))
        factors, products = (protected(np.ascontiguousarray(a)) for a in (parameter.factors, parameter.products))
        for i in range(len(users)):
            users[i] = solve_user(*entries_of(features, i), factors, products, self.alpha, self.l2)
        return users

    def predict(self, features: Any, parameter: ItemFactors) -> Array:
        """x·y of each row with every column: the larger, the more likely a user wants it."""
        return np.asarray(self.transform(features, parameter) @ np.asarray(parameter.factors).T)

    def evaluate(self, features: Any, labels: Array | None, parameter: ItemFactors) -> Evaluation:
        """The objective of these users; `mean_rank`: where the items of a user are among all items in the order of
        their scores, from 0 (the first) to 1, weighted by r (0.5: by chance)."""
        y, users = np.asarray(parameter.factors), self.transform(features, parameter)
        total, ranks, mass = self.l2 * float((users**2).sum() + (y**2).sum()), 0.0, 0.0
        for i, x in enumerate(users):
            indices, values = entries_of(features, i)
            scores, kept = y @ x, values > 0
            own, r = scores[indices[kept]], values[kept].astype(np.float64)
            total += float(x @ parameter.products @ x + ((1.0 + self.alpha * r) * (1.0 - own) ** 2 - own**2).sum())
            places = np.searchsorted(np.sort(-scores), -own) / max(len(y) - 1, 1)
            ranks, mass = ranks + float(r @ places), mass + float(r.sum())
        return Evaluation(total, {"mean_rank": ranks / mass if mass > 0 else 0.5})


def entries_of(features: Any, i: int) -> tuple[Array, Array]:
    """Columns and values of row i."""
    if isinstance(features, Sparse):
        inside = slice(int(features.indptr[i]), int(features.indptr[i + 1]))
        return np.asarray(features.indices[inside]), np.asarray(features.values[inside])
    found = entries(np.asarray(features[i]))
    return np.asarray(found[0]), np.asarray(found[1])
