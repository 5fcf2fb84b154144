"""Gaussian mixtures by incremental EM: the model, its statistics and the plain per-point hooks.

The hooks are the specification, one point at a time; `kernel.py` computes the same for whole tiles.
Never reads data or a clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from flegel.algorithm import Algorithm, Evaluation, Sample
from flegel.algorithms.estimators import fitted_mixture
from flegel.algorithms.gmm.covariances import covariances_of, precision_factors
from flegel.algorithms.gmm.moments import Mixture, MixtureMoments, spread_of, unknown_variance, with_unseen
from flegel.algorithms.gmm.sample_rows import LEAST_EXPONENT, SampleRows, expectation, moments, sample_rows
from flegel.algorithms.gmm.shapes import (
    by_products,
    diagonals,
    floored,
    multiplicities,
    outer,
    packed,
    precisions,
    served_by_products,
    square,
    symmetric,
    whitening,
)
from flegel.algorithms.kmeans.shapes import starts_on_a_sample
from flegel.algorithms.kmeans.wide_start import start_of
from flegel.algorithms.number_range import check_squares
from flegel.algorithms.seeding import (
    ALSO_CALLED_K,
    KMEANS_PLUS_PLUS,
    NAMED,
    START_FILE,
    check_enough,
    clipped,
    coverage,
    covered,
    different_clusters,
    holds,
    in_deviations,
    nearest_centre,
    polishing_passes,
    prepared,
    several_lloyd,
    some_weighted,
    standard_units,
    start_rows,
    unseen_weight,
    weighted_rows,
)
from flegel.algorithms.soft_kernel import CUT, soft_kernel
from flegel.configuration.active import active
from flegel.core import pytree
from flegel.core.entry_point import EntryPoint
from flegel.core.pytree import Array
from flegel.core.shard import DataPoint, Shard
from flegel.core.sharding import Sharding
from flegel.declarations.accepts import Accepts
from flegel.declarations.hidden_state import HiddenState
from flegel.declarations.hyper_names import HyperNames
from flegel.declarations.kernels import Kernel, Kernels
from flegel.declarations.learning import Learning
from flegel.declarations.placement import ParameterPlacement
from flegel.errors import UsageError

_TRAIN = EntryPoint("flegel.algorithms.gmm.kernel", "train")
LEAST_VARIANCE = 1e-12  # lower bound of the regularization, relative to a column's variance
EMPTY = 1e-8  # a component with fewer points than this counts as empty


BY_COMPONENT = ParameterPlacement(
    sharding=Sharding(dict.fromkeys(("means", "covariances", "whiten", "level"), 0), {"sums": 0, "squares": 0}),
    starts_from_means=True,
)


class ResponsibilityChange(NamedTuple):
    """A point's change: by how much its responsibilities (and, last, its entropy) have changed; and y."""

    changes: Array
    y: Array


def trial_rows(k: int, work: int, rows: int) -> int:
    """Rows on which starts are tried, of so many; `work`: multiplications for one of them in a pass."""
    rules = active().starts
    within = rules.gmm_fewest_trial_rows, rules.gmm_most_trial_rows
    many = min(int(np.clip(rules.gmm_rows_per_component * k, *within)), rows)
    costly = many * work >= rules.gmm_costly_pass
    return min(int(np.clip(rules.gmm_costly_rows_per_component * k, *within)), many) if costly else many


def start_passes(starts: int, work: int, rows: float) -> int:
    """By how many passes of EM each start is tried; the best one makes as many more. `work`: multiplications of a pass
    over the sample; `rows`: how many of the job there are for each of the sample. Where a pass is costly, all of them
    take a bounded part of the training, two each at least. All starts are tried: of 256 components the best of two was
    up to 0.5 % less likely than the best of four."""
    rules = active().starts
    if work < rules.gmm_costly_pass:
        return rules.gmm_trial_passes
    allowed = rules.gmm_passes_before_training * max(rows, 1.0)
    return int(np.clip(allowed / (starts + 1), 2, rules.gmm_trial_passes))


def _scatter(aggregator: MixtureMoments, counts: Array) -> Array:
    """Packed covariances of the components that have these counts, before anything is raised; zero where there are no
    points."""
    filled = counts > EMPTY
    n = np.where(filled, counts, 1.0)[:, None]
    scatter = aggregator.squares / n - outer(aggregator.sums / n, aggregator.squares.shape[1])
    scatter[~filled] = 0.0
    return scatter


class GMM(Algorithm):
    """Fit a mixture of k Gaussians.

    Model: p(x) = Σ w_j N(x; μ_j, Σ_j). State of a point: its responsibilities r_1 … r_k and their entropy, 0 at first.
    Statistics: Σ r_j, Σ r_j y, Σ r_j y yᵀ about a fixed origin in fixed units (mean and deviation of
    the sample without outliers, the latter to a power of two), and the sum of entropies; a visit adds the difference
    to the point's last one, in float64 where float32 would lose it.
    M-step: w_j = N_j / N, μ_j the mean, Σ_j the covariance that maximizes F among those with Σ_j ⪰ floor; before every
    point has been visited, the sample counts for those that are missing (`seeding.unseen_weight`). The floor is
    `regularization` times the variance of each column, without its outliers, or `least_variance` where that is more. A
    component without points stays as it was, with weight 0.
    Objective (maximized): F(Q, θ) of the paper's Eq. (2), Σ_i E_r[log w_z p(x_i | z)] + H(r_i) over visited
    points, exactly, from the statistics. It never falls: to about 1e-12 in float64, and 1e-7 in float32, whose
    responsibilities sum to 1 no better. After a pass under θ it is the log-likelihood of θ, which `evaluate` computes
    anew; between barriers it is less by what the last M-step left to gain.
    Start: the best of `n_init` (by likelihood on the sample), each a few passes of EM from the clusters of k-means.
    Other ways to start give the means alone.
    Reference: A. Dempster, N. Laird, D. Rubin (1977); R. Neal, G. Hinton (1998).
    """

    accepts = Accepts(weighted=True, labels="ignored")
    placement = BY_COMPONENT
    state = HiddenState(memoryless=True)
    learning = Learning(
        maximize=True, tolerance=1e-6, trivial="a single Gaussian", auxiliary=("points",), local_updates=True
    )
    kernels = Kernels(
        layout="tiles",
        torch_program="flegel.algorithms.gmm.torch_program:MixtureProgram",
        compiled_apart=({}, {"covariance": "full"}),
    )
    hyper_names = HyperNames(also_called=ALSO_CALLED_K, starting=("init",))

    k: Annotated[int, Meta(ge=1, description="number of components")] = 10
    covariance: Annotated[
        Literal["diagonal", "diag", "full", "tied", "spherical"],
        Meta(description="shape of a component: diagonal (or diag), full, tied (one full matrix for all), spherical"),
    ] = "diagonal"
    regularization: Annotated[
        float, Meta(ge=0, description="least variance, as a fraction of a column's variance without its outliers")
    ] = 1e-6
    least_variance: Annotated[float, Meta(ge=0, description="least variance, in the units of the data")] = 0.0
    init: Annotated[
        str | np.ndarray[Any, Any],
        Meta(description="k-means++ (clusters of k-means); means: random, first, a .npy file of k rows, or an array"),
        START_FILE,
    ] = "k-means++"
    n_init: Annotated[int, Meta(ge=1, description="starts by k-means++ that are tried on the sample")] = 4

    # -- start ---------------------------------------------------------------------------------------------

    def initParameter(self, sample: Sample, rng: np.random.Generator) -> Mixture:
        """With `init="k-means++"` the best of several mixtures that were trained on the sample (`_best_start`). Else
        means that are rows of the sample or as the user gives them, equal weights, and one covariance for all
        components: the scatter of the rows about their nearest means."""
        if isinstance(self.init, str) and self.init in NAMED:
            check_enough(self.k, sample.weights, "GMM")
        rows, mass = weighted_rows(np.asarray(sample.features), sample.weights)
        origin, unit, floor = self._units(rows)
        if isinstance(self.init, str) and self.init == KMEANS_PLUS_PLUS:
            return self._best_start((rows - origin) / unit, mass, origin, unit, floor, sample.mass, rng)
        means = (start_rows(rows, self.k, self.init, sample.columns, rng, "GMM", mass) - origin) / unit
        y = (rows - origin) / unit
        # One variance for all components; outliers count as 5 units from their mean.
        within = np.minimum((y - means[nearest_centre(y, means)]) ** 2, 25.0)
        within = within.mean(axis=0) if mass is None else mass @ within / mass.sum()
        spread = np.broadcast_to(np.maximum(within, np.maximum(1e-3, floor)), means.shape)
        if self.covariance == "spherical":
            spread = np.broadcast_to(spread.mean(axis=1, keepdims=True), means.shape)
        covariances = spread.copy()
        if self._matrices(sample.columns):
            covariances = packed(np.stack([np.diag(row) for row in spread]))
        about = coverage(sample.mass, 0.0)  # a guess at the components' sizes stands for no points
        return self._mixture(np.full(self.k, 1.0 / self.k), means, covariances, origin, unit, floor, about)

    def _units(self, rows: Array) -> tuple[Array, Array, Array]:
        """Origin and unit of each column, and its least variance in units of unit²."""
        origin, unit, deviation = standard_units(rows)
        if self.covariance == "spherical":
            unit = np.full_like(unit, unit.max())
            deviation = np.full_like(deviation, deviation.max())
        relative = max(self.regularization, LEAST_VARIANCE) * (deviation / unit) ** 2
        return origin, unit, np.maximum(relative, self.least_variance / unit**2)

    def continueParameter(self, previous: Mixture, sample: Sample, rng: np.random.Generator) -> Mixture:
        width = self._width(sample.columns)
        if previous.means.shape != (self.k, sample.columns) or previous.covariances.shape != (self.k, width):
            raise UsageError("GMM: start= is a mixture of another shape than k, covariance and the data ask for.")
        origin, unit, floor = self._units(weighted_rows(np.asarray(sample.features), sample.weights)[0])
        about = coverage(sample.mass, 0.0)
        return self._in_units(previous.weights, previous.means, previous.covariances, origin, unit, floor, about)

    def mixture(self, weights: Array, means: Array, covariances: Array) -> Mixture:
        """θ of given components; `covariances` has a packed row each (see `shapes`). All in the units of the data."""
        unit = 2.0 ** np.round(0.5 * np.log2(diagonals(covariances, means.shape[1]).mean(axis=0)))
        floor, about = np.zeros(means.shape[1]), coverage(1.0, 0.0)
        return self._in_units(weights, means, covariances, means.mean(axis=0), unit, floor, about)

    def _in_units(
        self, weights: Array, means: Array, covariances: Array, origin: Array, unit: Array, floor: Array, about: Array
    ) -> Mixture:
        scaled = covariances / outer(unit[None, :], covariances.shape[1])
        return self._mixture(weights, (means - origin) / unit, scaled, origin, unit, floor, about)

    def _best_start(
        self,
        y: Array,
        mass: Array | None,
        origin: Array,
        unit: Array,
        floor: Array,
        points: float,
        rng: np.random.Generator,
    ) -> Mixture:
        """Of several starts by k-means the one that EM takes furthest: every second one on rows in deviations of their
        columns, so that outliers and the values of a column with few of them get clusters of their own, the others on
        clipped rows in units of the middle of each column, so that they do not."""
        if self.k > len(y):
            raise UsageError(f"GMM: k={self.k} is more than the {len(y)} points drawn; lower k.")
        size = trial_rows(self.k, self.k * self._width(y.shape[1]), len(y))
        some, row_weights = some_weighted(y, mass, size, rng)
        best, most = None, -np.inf
        blank = self._blank(origin, unit, floor)
        work = len(some) * self.k * self._width(y.shape[1])
        sampled = float(len(some) if row_weights is None else row_weights.sum())
        passes = start_passes(self.n_init, work, points / sampled)
        rngs = rng.spawn(self.n_init)  # one for each start, so that more starts are the same ones and others
        begun = self._clusters(in_deviations(some), row_weights, rngs[::2])
        begun += self._clusters(clipped(some), row_weights, rngs[1::2])
        of = sample_rows(some)
        for number in different_clusters(begun):
            shares = np.zeros((self.k, len(some)))
            shares[begun[number], np.arange(len(some))] = 1.0
            first = self._step(of, row_weights, shares, blank)
            mixture, value = self._passes(of, row_weights, first, passes - 1)
            if value > most or best is None:
                best, most = mixture, value
        assert best is not None
        best, _ = self._passes(of, row_weights, best, max(polishing_passes(work), passes))
        return best._replace(points=coverage(points, sampled, trained=True))

    def _clusters(self, rows: Array, row_weights: Array | None, rngs: Sequence[np.random.Generator]) -> list[Array]:
        """The cluster of each row by k-means, from a start for each generator."""
        if starts_on_a_sample(self.k, rows.shape[1]):
            return [start_of(rows, self.k, 0, rng, row_weights).labels for rng in rngs]
        begun = several_lloyd(prepared(rows), self.k, rngs, row_weights)
        return [nearest_centre(rows, found.centres) for found in begun]

    def _step(self, of: SampleRows, row_weights: Array | None, shares: Array, mixture: Mixture) -> Mixture:
        """An M-step over these rows under responsibilities (components, rows)."""
        weighted = shares if row_weights is None else shares * row_weights
        full = self._matrices(of.rows.shape[1])
        return self.updateParameter(self._matrix_moments(of.rows, weighted) if full else moments(of, weighted), mixture)

    def _passes(
        self, of: SampleRows, row_weights: Array | None, mixture: Mixture, passes: int
    ) -> tuple[Mixture, float]:
        """EM over these rows until it comes to rest; the mixture and its log-likelihood, a mean or weighted sum."""
        value = -np.inf
        for left in range(passes, -1, -1):
            found = None if self._matrices(of.rows.shape[1]) else expectation(of, mixture)
            if found is None:
                by_rows, densities = self._expectation(of.rows, mixture)
                found = by_rows.T, densities
            shares, densities = found
            before, value = value, float(densities.mean() if row_weights is None else row_weights @ densities)
            if not left or value - before <= active().starts.gmm_ends_below_gain * abs(value):
                break
            mixture = self._step(of, row_weights, shares, mixture)
        return mixture, value

    def _matrix_moments(self, y: Array, shares: Array) -> MixtureMoments:
        squares = packed(np.stack([(y * share[:, None]).T @ y for share in shares]))
        return MixtureMoments(shares.sum(axis=1), shares @ y, squares, np.zeros(1))

    # -- training ------------------------------------------------------------------------------------------

    def initState(self, points: int, columns: int, rng: np.random.Generator) -> Array:
        return np.zeros((points, self.k + 1))

    def initAggregator(self, sample: Sample, parameter: Mixture) -> MixtureMoments:
        return MixtureMoments(
            np.zeros_like(parameter.weights),
            np.zeros_like(parameter.means),
            np.zeros_like(parameter.covariances),
            np.zeros(1),
        )

    def updateDataPoint(self, dataPoint: DataPoint, parameter: Mixture, iterationNum: int) -> ResponsibilityChange:
        """Responsibilities of the components for this point, as the change since the last visit; the last number is the
        entropy term of F."""
        k, d = parameter.means.shape
        whiten, unit = parameter.whiten, parameter.unit
        y = (dataPoint.features - parameter.origin) / unit
        below = np.empty(k)
        for j in range(k):
            squares, entry = 0.0, 0
            for row in range(d):
                z = 0.0
                for t in range(row if whiten.shape[1] == d else 0, row + 1):
                    z += whiten[j, entry] * (y[t] - (parameter.means[j, t] - parameter.origin[t]) / unit[t])
                    entry += 1
                squares += z * z
            below[j] = parameter.level[j] - 0.5 * squares
        below -= below.max()
        shares = np.exp(below)
        for j in range(k):
            if not below[j] > CUT:
                shares[j] = 0.0
                below[j] = 0.0
        mass = shares.sum()
        changes = np.empty(k + 1)
        changes[:k] = shares / mass
        changes[k] = np.log(mass) - (shares * below).sum() / mass
        for j in range(k + 1):  # the change of the stored value, which may be rounded to float32
            old = np.float64(dataPoint.state[j])
            dataPoint.state[j] = changes[j]
            changes[j] = (np.float64(dataPoint.state[j]) - old) * dataPoint.weight
        return ResponsibilityChange(changes, y)

    def aggregate(self, target: MixtureMoments, change: ResponsibilityChange | MixtureMoments) -> MixtureMoments:
        """Add one point's change to the moments, or a worker's moments."""
        if len(change) == 4:  # MixtureMoments, a worker's report; numba removes this branch for a ResponsibilityChange
            pytree.add(target, change)
            return target
        changes, y = change
        k, d = target.sums.shape
        for j in range(k):
            target.counts[j] += changes[j]
            entry = 0
            for row in range(d):
                target.sums[j, row] += changes[j] * y[row]
                for t in range(row if target.squares.shape[1] == d else 0, row + 1):
                    target.squares[j, entry] += changes[j] * y[row] * y[t]
                    entry += 1
        target.entropy[0] += changes[k]
        return target

    def updateParameter(self, aggregator: MixtureMoments, oldParameter: Mixture) -> Mixture:
        components = 0, len(oldParameter.weights)
        summary = self.sliceSummary(aggregator, oldParameter, *components)
        return self.updateSlice(aggregator, oldParameter, *components, summary)

    def sliceSummary(self, aggregator: MixtureMoments, parameter: Mixture, start: int, stop: int) -> Array:
        """Second moments of the columns: together they tell the rounding error of variances. A tied matrix needs the
        scatter of each component, too, behind them."""
        if unseen := unseen_weight(parameter.points, float(aggregator.counts.sum())):
            aggregator = with_unseen(aggregator, parameter, unseen, slice(start, stop))
        if self.covariance != "tied":
            return spread_of(aggregator)
        counts = np.maximum(aggregator.counts, 0.0)[start:stop]
        return np.concatenate([spread_of(aggregator), _scatter(aggregator, counts)], axis=1)

    def updateSlice(
        self, aggregator: MixtureMoments, oldParameter: Mixture, start: int, stop: int, summary: Array | None
    ) -> Mixture:
        """`counts` and `weights` are those of all components."""
        mine = slice(start, stop)
        seen = float(aggregator.counts.sum())
        if holds(oldParameter.points, seen):
            return oldParameter
        about = covered(oldParameter.points, seen)
        if unseen := unseen_weight(oldParameter.points, seen):
            aggregator = with_unseen(aggregator, oldParameter, unseen, mine)
        everybody = np.maximum(aggregator.counts, 0.0)
        counts = everybody[mine]
        filled = counts > EMPTY
        n = np.where(filled, counts, 1.0)[:, None]
        width = aggregator.squares.shape[1]
        old_means = (oldParameter.means - oldParameter.origin) / oldParameter.unit
        means = np.where(filled[:, None], aggregator.sums / n, old_means)
        if self.covariance == "tied":
            covariances = self._tied(aggregator.counts, oldParameter.floor, summary)[mine]
        else:
            least = np.maximum(oldParameter.floor, unknown_variance(aggregator.counts[mine], summary))
            scatter = _scatter(aggregator, counts)
            covariances = floored(scatter, np.where(filled, counts, 0.0), least, self.covariance)
            covariances[~filled] = (oldParameter.covariances / outer(oldParameter.unit[None, :], width))[~filled]
        total = everybody.sum()
        weights = everybody / total if total > 0 else oldParameter.weights
        made = self._mixture(weights[mine], means, covariances, *oldParameter[5:8], about)
        return made._replace(weights=weights)

    def _tied(self, counts: Array, floor: Array, summary: Array | None) -> Array:
        """The matrix that all components share, a row for each; from what `sliceSummary` said of all of them."""
        assert summary is not None
        spread, scatter = summary[:, : len(floor)], np.ascontiguousarray(summary[:, len(floor) :])
        least = np.maximum(floor, unknown_variance(counts, spread))
        return floored(scatter, np.where(counts > EMPTY, counts, 0.0), least, "tied")

    def objective(self, aggregator: MixtureMoments, parameter: Mixture) -> float:
        """The log-likelihood bound from the statistics alone: the levels of the components, less half the whitened
        scatter about their means, plus the entropy of the memberships. `level`: the log density without its term in
        x."""
        d = parameter.means.shape[1]
        filled = aggregator.counts > EMPTY
        counts = aggregator.counts[filled, None]
        means = (parameter.means[filled] - parameter.origin) / parameter.unit
        own_means = aggregator.sums[filled] / counts
        width = parameter.whiten.shape[1]
        # About the means m of θ, where ȳ is the own mean: Σ r (y − m)(y − m)ᵀ = Σ r yyᵀ − n ȳȳᵀ + n (ȳ − m)(ȳ − m)ᵀ.
        about_own = aggregator.squares[filled] - counts * outer(own_means, width)
        scatter = about_own + counts * outer(own_means - means, width)
        # Σ r ‖whiten·(y − m)‖², a sum over whole matrices. Packed: entries off the diagonal count twice.
        distances = (precisions(parameter.whiten[filled], d) * scatter * multiplicities(d, width)).sum()
        return float(aggregator.counts[filled] @ parameter.level[filled] - 0.5 * distances + aggregator.entropy[0])

    def part_noise(self, objective: float, points: int, parameter: Mixture) -> float:
        """Half a unit of log-likelihood for each free parameter (Wilks)."""
        return 0.5 * (parameter.weights.size - 1 + parameter.means.size + parameter.whiten.size)

    def metrics(self, aggregator: MixtureMoments, parameter: Mixture) -> dict[str, float]:
        """Information criteria, to compare numbers of components: the smaller, the better."""
        points = float(aggregator.counts.sum())
        if points <= 0 or unseen_weight(parameter.points, points):
            return {}
        misfit, free = -2.0 * self.objective(aggregator, parameter), self._free_numbers(parameter)
        return {"bic": misfit + free * float(np.log(points)), "aic": misfit + 2.0 * free}

    def _free_numbers(self, parameter: Mixture) -> int:
        """How many numbers the model has: weights, means and covariances; tied ones count once, and a spherical one is
        a single number."""
        width = parameter.whiten.shape[1]
        of_shapes = {"tied": width, "spherical": self.k}.get(self.covariance, self.k * width)
        return int(parameter.weights.size - 1 + parameter.means.size + of_shapes)

    def baseline(self, aggregator: MixtureMoments, parameter: Mixture) -> float:
        """One Gaussian of the same shape, fitted to all points."""
        counts, sums, squares = (field.sum(axis=0, keepdims=True) for field in aggregator[:3])
        whole = MixtureMoments(counts, sums, squares, np.zeros(1))
        k = len(parameter.weights)
        single = Mixture(*(field[:1] if len(field) == k and at < 5 else field for at, field in enumerate(parameter)))
        return self.objective(whole, self.updateParameter(whole, single._replace(points=coverage(0.0, 0.0))))

    def kernel(self, share: Shard) -> Kernel | None:
        return soft_kernel(_TRAIN, share, self.k) if share.layout == "tiles" else None

    def validate(self, sample: Sample) -> None:
        if self.k > sample.points:
            raise UsageError(f"GMM: k={self.k} is more than the number of points, {sample.points}")
        check_squares(sample, "GMM")

    def warnings(self, aggregator: MixtureMoments, parameter: Mixture) -> list[str]:
        """Components that lost their points or have no variance, and columns whose outliers hide the variance of the
        rest."""
        d = parameter.means.shape[1]
        empty = aggregator.counts <= EMPTY
        found = []
        if empty.any():
            found.append(
                f"{int(empty.sum())} of {self.k} components have lost all their points (weight 0); a smaller k may do."
            )
        unknown = unknown_variance(aggregator.counts, spread_of(aggregator))[~empty]
        precision = diagonals(precisions(parameter.whiten[~empty], d), d)
        flat = (precision * np.maximum(parameter.floor, unknown)).sum(axis=1).round()  # directions without variance
        if flat.any():
            found.append(
                f"{int((flat > 0).sum())} of {self.k} components have no variance above the floor in up to "
                f"{int(flat.max())} of {d} directions (duplicate rows, constant or collinear columns): "
                f"the likelihood depends on regularization={self.regularization:g} there."
            )
        if (coarse := (unknown > parameter.floor).any(axis=0)).any():
            found.append(
                f"{int(coarse.sum())} of {d} columns hold outliers so far off that float64 sums cannot tell variances "
                "down to the floor; remove or clip the outliers, or raise regularization."
            )
        return found

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, features: Any, parameter: Mixture) -> tuple[Array, Array]:
        """Responsibilities of each row, and the logarithm of its density."""
        rules = active().shapes
        rows = np.asarray(features)
        k, d = parameter.means.shape
        if rows.ndim != 2 or rows.shape[1] != d:
            raise UsageError(f"GMM: rows of shape {rows.shape} do not fit a model of {d} columns.")
        parts = [
            self._expectation(
                (rows[at : at + rules.gmm_rows_evaluated_at_once] - parameter.origin) / parameter.unit,
                parameter,
            )
            for at in range(0, len(rows), rules.gmm_rows_evaluated_at_once)
        ]
        if not parts:
            return np.zeros((0, k)), np.zeros(0)
        return np.concatenate([shares for shares, _ in parts]), np.concatenate([top for _, top in parts])

    def _expectation(self, y: Array, parameter: Mixture) -> tuple[Array, Array]:
        """For rows in units of the sample: memberships, and the log-likelihood of each row."""
        k, d = parameter.means.shape
        means = (parameter.means - parameter.origin) / parameter.unit
        diagonal = parameter.whiten.shape[1] == d
        if diagonal and served_by_products(y, means, parameter.whiten):
            logits = parameter.level - by_products(y, means, parameter.whiten)
        else:
            logits = np.empty((len(y), k))
            for j in range(k):
                away = y - means[j]
                whitened = away * parameter.whiten[j] if diagonal else away @ square(parameter.whiten[j], d).T
                logits[:, j] = parameter.level[j] - 0.5 * np.einsum("it,it->i", whitened, whitened)
        top = logits.max(axis=1)
        below = logits - top[:, None]
        shares = np.exp(np.where(below > LEAST_EXPONENT, below, -np.inf))
        mass = shares.sum(axis=1)
        return shares / mass[:, None], top + np.log(mass)

    def probabilities(self, features: Any, parameter: Mixture) -> Array:
        """Responsibilities of the components."""
        return self.transform(features, parameter)[0]

    def scores(self, features: Any, parameter: Mixture) -> Array:
        """The logarithm of the density."""
        return self.transform(features, parameter)[1]

    def model(self, parameter: Mixture) -> dict[str, Array]:
        """Covariances in the shapes of scikit-learn: (k, d, d) for full ones, (d, d) tied, (k, d) diagonal, (k,)
        spherical."""
        matrices = self._matrices(parameter.means.shape[1])
        covariances = self.covariance_matrices(parameter) if matrices else np.asarray(parameter.covariances)
        if self.covariance == "full" and not matrices:  # of one column
            covariances = covariances[:, :, None]
        if self.covariance == "tied":
            covariances = covariances[0] if matrices else covariances[:1]
        if self.covariance == "spherical":
            covariances = covariances[:, 0]
        return {"weights": parameter.weights, "means": parameter.means, "covariances": covariances}

    def work(self, columns: int) -> float:
        full = self.covariance in ("full", "tied")
        return float(self.k * columns * (columns / 2 if full else 4))

    def predict(self, features: Any, parameter: Mixture) -> Array:
        """The most responsible component of each row, int32."""
        return np.asarray(self.transform(features, parameter)[0].argmax(axis=1), dtype=np.int32)

    def to_sklearn(self, parameter: Mixture, classes: list[str] | None) -> Any:
        kind = "diag" if self.covariance == "diagonal" else self.covariance
        covariances = covariances_of(parameter.covariances, kind, parameter.means.shape[1])
        factors = precision_factors(covariances, kind)
        return fitted_mixture(kind, parameter.weights, parameter.means, covariances, factors)

    def evaluate(self, features: Any, labels: Array | None, parameter: Mixture) -> Evaluation:
        """The log-likelihood of these rows."""
        densities = self.transform(features, parameter)[1]
        return Evaluation(float(densities.sum()), {"mean_log_likelihood": float(densities.mean())})

    def score(self, features: Any, labels: Array | None, parameter: Mixture) -> float:
        """The mean log-likelihood of a row, as in scikit-learn."""
        return self.evaluate(features, labels, parameter).metrics["mean_log_likelihood"]

    def covariance_matrices(self, parameter: Mixture) -> Array:
        """(k, d, d), in the units of the data."""
        d = parameter.means.shape[1]
        return np.stack([symmetric(row, d) for row in parameter.covariances])

    # -- shapes --------------------------------------------------------------------------------------------

    def _matrices(self, columns: int) -> bool:
        return self.covariance in ("full", "tied") and columns > 1

    def _width(self, columns: int) -> int:
        """Numbers in a component's packed covariance."""
        return columns * (columns + 1) // 2 if self._matrices(columns) else columns

    def _blank(self, origin: Array, unit: Array, floor: Array) -> Mixture:
        """Equal components of unit covariance about the origin."""
        d = len(origin)
        ones = np.ones((self.k, d))
        covariances = packed(np.stack([np.eye(d)] * self.k)) if self._matrices(d) else ones
        weights, none = np.full(self.k, 1.0 / self.k), coverage(0.0, 0.0)
        return self._mixture(weights, 0.0 * ones, covariances, origin, unit, floor, none)

    def _mixture(
        self,
        weights: Array,
        means: Array,
        covariances: Array,
        origin: Array,
        unit: Array,
        floor: Array,
        points: Array,
    ) -> Mixture:
        """Everything in the units of the data, from means and covariances in standard units."""
        d, width = means.shape[1], covariances.shape[1]
        whiten, logarithm = whitening(covariances, d)
        constant = -0.5 * d * np.log(2 * np.pi) - np.log(unit).sum()
        level = np.log(np.maximum(weights, 1e-300)) + constant + logarithm
        scaled = covariances * outer(unit[None, :], width)
        return Mixture(weights, origin + means * unit, scaled, whiten, level, origin, unit, floor, points)
