"""Non-negative factorization with the interface of `sklearn.decomposition.NMF`. The engine's algorithm computes."""

from __future__ import annotations

import math
import numbers
import warnings
from typing import Any

import numpy as np
import scipy.sparse
from sklearn.base import ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.extmath import randomized_svd

from flegel.algorithms.nmf.kullback import KLNMF, KLFactors
from flegel.algorithms.nmf.nmf import NMF as Algorithm
from flegel.algorithms.nmf.nmf import Factors
from flegel.algorithms.nmf.rows import errors, fold_in
from flegel.configuration.sources import settings_outside
from flegel.core.pytree import Array
from flegel.results.result import Result
from flegel.sklearn.base import EngineEstimator, for_engine, share

MAX_COMPONENTS = 512  # that the algorithm has
SOLVERS = {"cd": "coordinate", "mu": "multiplicative"}
INITS = (None, "random", "nndsvd", "nndsvda", "nndsvdar", "custom")
SQUARES, DIVERGENCE = ("frobenius", 2), ("kullback-leibler", 1)  # names and numbers of beta_loss


class NMF(ClassNamePrefixFeaturesOutMixin, TransformerMixin, EngineEstimator):  # type: ignore[misc]
    """X ≈ W·H without negative numbers; H is `components_`, W what `transform` returns. As in scikit-learn; besides:

    `init`: where H begins; None and random: random numbers that some passes over a sample improve. Rows are solved for
    that H, so W of `init="custom"` is checked and changes nothing. `solver`: cd or mu; both take the whole matrix
    (entries that a sparse matrix does not store are 0). `tol`: the fit ends when a pass over the rows changes the
    objective by less, relatively. `max_iter`: passes. `beta_loss`: frobenius, or, with mu, kullback-leibler (without
    penalties). `shuffle` changes nothing. `workers`, `sync`, `cluster`: see
    `flegel.run`. `target`: the fit ends at this sum of squared errors. `fit` takes sample weights.
    """

    _accepts_sparse = True
    _positive = True

    def __init__(
        self,
        n_components: Any = "auto",
        *,
        init: str | None = None,
        solver: str = "cd",
        beta_loss: Any = "frobenius",
        tol: float | None = 1e-5,
        max_iter: int = 200,
        random_state: Any = None,
        alpha_W: float = 0.0,
        alpha_H: Any = "same",
        l1_ratio: float = 0.0,
        verbose: int = 0,
        shuffle: bool = False,
        workers: int | None = None,
        sync: str | None = None,
        cluster: Any = None,
        target: float | None = None,
    ) -> None:
        self.n_components = n_components
        self.init = init
        self.solver = solver
        self.beta_loss = beta_loss
        self.tol = tol
        self.max_iter = max_iter
        self.random_state = random_state
        self.alpha_W = alpha_W
        self.alpha_H = alpha_H
        self.l1_ratio = l1_ratio
        self.verbose = verbose
        self.shuffle = shuffle
        self.workers = workers
        self.sync = sync
        self.cluster = cluster
        self.target = target

    # -- training ------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None, *, W: Any = None, H: Any = None) -> NMF:
        self.fit_transform(X, y, W, H, sample_weight)
        return self

    def fit_transform(self, X: Any, y: Any = None, W: Any = None, H: Any = None, sample_weight: Any = None) -> Array:
        X = self._rows(X, reset=True)
        weights = self._weights(sample_weight, X)
        self._check_parameters()
        self.n_components_ = self._wanted(X.shape[1] if H is None or self.init != "custom" else len(H))
        first = self._first_components(X, weights, W, H)
        self.components_ = self._components(X, weights, first).astype(X.dtype)
        self._mass = float(X.shape[0] if weights is None else weights.sum())
        return self._finish(X)

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> NMF:
        """Goes on from the present components: one step on these rows, and the mean of both, each counted with the rows
        that it has seen."""
        if not hasattr(self, "components_"):
            return self.fit(X, y, sample_weight)
        X = self._rows(X, reset=False)
        weights = self._weights(sample_weight, X)
        self._check_parameters()
        mass = float(X.shape[0] if weights is None else weights.sum())
        before = self.components_.astype(np.float64)
        batch = self._components(X, weights, before, passes=1)
        batch *= np.sqrt((before**2).sum() / max((batch**2).sum(), 1e-300))  # only W·H has a scale
        self.components_ = (before + share(self._mass, mass) * (batch - before)).astype(X.dtype)
        self._mass += mass
        self._finish(X)
        return self

    def _rows(self, X: Any, *, reset: bool, **options: Any) -> Any:
        """Small sets become dense, so that a sparse matrix and a dense one give the same numbers, to the last bit."""
        rows = super()._rows(X, reset=reset, **options)
        few = math.prod(rows.shape) <= settings_outside().starts.canonical_order_numbers
        return rows.toarray() if few and scipy.sparse.issparse(rows) else rows

    def _wanted(self, found: int) -> int:
        """`n_components`; what was `found` in the data or in H where it is left open."""
        wanted: Any = self.n_components
        if wanted is None or (isinstance(wanted, str) and wanted == "auto"):
            return min(found, MAX_COMPONENTS)
        if not isinstance(wanted, numbers.Integral) or not 1 <= int(wanted) <= MAX_COMPONENTS:
            raise ValueError(f"n_components must be 'auto' or 1 to {MAX_COMPONENTS}, not {wanted!r}.")
        return int(wanted)

    def _check_parameters(self) -> None:
        if self.solver not in [*SOLVERS]:
            raise ValueError(f"solver must be one of {list(SOLVERS)}, not {self.solver!r}.")
        if self.init not in INITS:
            raise ValueError(f"init must be one of {list(INITS)}, not {self.init!r}.")
        self._check_real("alpha_W", 0)
        if self.alpha_H != "same":
            self._check_real("alpha_H", 0, "'same'")
        if not 0 <= self._check_real("l1_ratio") <= 1:
            raise ValueError(f"l1_ratio must be from 0 to 1, not {self.l1_ratio!r}.")
        if self.beta_loss not in SQUARES and self.solver == "cd":
            raise ValueError(
                f"Invalid beta_loss parameter: solver 'cd' does not handle beta_loss = {self.beta_loss!r}; use "
                "beta_loss='frobenius'."
            )
        if self._counts and (self.alpha_W or self._alpha_H):
            raise ValueError(
                f"beta_loss={self.beta_loss!r} has no penalties here; use alpha_W=0 and alpha_H=0, or scikit-learn's "
                "class."
            )
        if self.beta_loss not in SQUARES + DIVERGENCE:
            raise ValueError(
                f"beta_loss={self.beta_loss!r} is not available; use 'frobenius' or 'kullback-leibler', or "
                "scikit-learn's class."
            )

    @property
    def _counts(self) -> bool:
        """Whether the divergence of Kullback and Leibler is what is minimized."""
        return self.beta_loss in DIVERGENCE

    @property
    def _alpha_H(self) -> float:
        return float(self.alpha_W if isinstance(self.alpha_H, str) else self.alpha_H)

    @property
    def _warns(self) -> bool:  # type: ignore[override]
        """`tol=0` asks for all passes."""
        return self.tol is None or self._check_real("tol", 0, "None") > 0

    def _not_converged(self, reason: str) -> str:
        """With scikit-learn's words: programs look for them."""
        return f"Maximum number of iterations {self.max_iter} reached. Increase it to improve convergence. ({reason}.)"

    def _first_components(self, X: Any, weights: Array | None, W: Any, H: Any) -> Array | None:
        """H to begin with; None: the algorithm's own."""
        k = self.n_components_
        if self.init == "custom":
            return _given(X, W, H, k)
        if W is not None or H is not None:
            warnings.warn(
                "When init!='custom', provided W or H are ignored. Set init='custom' to use them as initialization.",
                RuntimeWarning,
                stacklevel=3,
            )
        if self.init is None or self.init == "random":
            return None
        if k > min(X.shape):
            raise ValueError(
                f"init = {self.init!r} can only be used when n_components <= min(n_samples, n_features); use "
                "init='random'."
            )
        if self.init == "nndsvd" and self.solver == "mu":
            warnings.warn(
                "The multiplicative update ('mu') solver cannot update zeros present in the initialization, and so "
                "leads to poorer results when used jointly with init='nndsvd'; use init='nndsvda'.",
                UserWarning,
                stacklevel=3,
            )
        found = singular_start(X, weights, k, self._seed())
        if self.init != "nndsvd":
            mean, empty = float(X.mean()), found == 0
            noise = np.abs(np.random.default_rng(self._seed()).standard_normal(found.shape))
            found = np.where(empty, mean if self.init == "nndsvda" else mean * noise / 100, found)
        return found

    def _components(self, X: Any, weights: Array | None, first: Array | None, **options: Any) -> Array:
        """H of a job on these rows that begins with `first`. The engine's H and penalties are in units of the mean
        entry: W and H in those of its square root."""
        mass = np.ones(X.shape[0]) if weights is None else weights
        mean = float(mass @ np.asarray(X.sum(axis=1), dtype=np.float64).reshape(-1) / (mass.sum() * X.shape[1]))
        mean = mean if mean > 0 else 1.0
        self._unit = math.sqrt(mean)
        if self._counts:
            counts = KLNMF(rank=self.n_components_)
            of_counts = None if first is None else _of_counts(first.T / self._unit, mean)
            found = self._train(counts, X, None, weights, start=of_counts, **options)
            return np.asarray(found.parameter.factors.T) * self._unit
        squares, sums = (1.0 - self.l1_ratio) / mean, self.l1_ratio / mean**1.5
        algorithm = Algorithm(
            rank=self.n_components_,
            solver=SOLVERS[self.solver],
            regularization=float(self.alpha_W) * (squares + sums),
            column_regularization=self._alpha_H * (squares + sums),
            l1_ratio=sums / (squares + sums),
            precision="float64" if X.dtype == np.float64 else "float32",
        )
        if first is None:
            best = self._train(algorithm, X, None, weights, **options)
        else:
            penalized = self.alpha_W and self._alpha_H and "passes" not in options  # a part of the rows
            begun = np.ascontiguousarray((self._balanced(X, first) if penalized else first).T / math.sqrt(mean))
            start = Factors(begun, np.zeros(0), np.ones(1), np.zeros(5), np.zeros(4), begun, np.ones(2))
            best = self._train(algorithm, X, None, weights, start=start, **options)
            if penalized and self.l1_ratio and self.init != "custom":
                best = self._better(best, algorithm, X, weights, **options)
        return np.asarray(best.parameter.factors.T) * self._unit

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.components_ = (np.asarray(parameter.factors.T) * self._unit).astype(dtype)
        return True

    def _better(self, found: Result, algorithm: Algorithm, X: Any, weights: Array | None, **options: Any) -> Result:
        """What was found, or what the algorithm's own start leads to, whichever has the lower objective: penalties on
        sums end whole components of a start by singular vectors before these are formed."""
        made = self.n_iter_
        other = self._train(algorithm, X, None, weights, **options)
        if found.objective is None or (other.objective is not None and other.objective < found.objective):
            return other
        self.n_iter_ = made
        return found

    def _balanced(self, X: Any, H: Array) -> Array:
        """`H` with that scale of each component against W with which the penalties of both are least: descending by W
        and H in turn would approach it slowly."""
        W = fold_in(for_engine(X), np.ascontiguousarray(H.T, dtype=np.float64), 1.0, np.zeros(4), False)
        sums, squares = float(self.l1_ratio), 1.0 - float(self.l1_ratio)
        of_rows = float(self.alpha_W) * X.shape[1] * np.array([sums * W.sum(axis=0), squares * (W**2).sum(axis=0)])
        of_columns = self._alpha_H * X.shape[0] * np.array([sums * H.sum(axis=1), squares * (H**2).sum(axis=1)])
        low, high = np.full(len(H), -30.0), np.full(len(H), 30.0)  # logarithms of the scale, halved 60 times
        for _ in range(60):
            scale = np.exp((low + high) / 2.0)
            too_small = of_rows[0] * scale + of_rows[1] * scale**2 < of_columns[0] / scale + of_columns[1] / scale**2
            low, high = np.where(too_small, np.log(scale), low), np.where(too_small, high, np.log(scale))
        known = W.any(axis=0) & H.any(axis=1)
        return H / np.where(known, np.exp((low + high) / 2.0), 1.0)[:, None]

    def _finish(self, X: Any) -> Array:
        if self._counts:
            W, divergence = self._solved_counts(X)
            self.reconstruction_err_ = math.sqrt(2.0 * divergence)
            return W.astype(X.dtype)
        W = self._solved(X)
        factors = np.ascontiguousarray(self.components_.T, dtype=np.float64)
        squares, _, _ = errors(for_engine(X), W, factors, 1.0, np.zeros(4), False)
        self.reconstruction_err_ = math.sqrt(max(squares, 0.0))
        return W.astype(X.dtype)

    def _solved(self, X: Any) -> Array:
        """W of these rows, to convergence."""
        if self._counts:
            return self._solved_counts(X)[0]
        alpha, ratio = float(self.alpha_W), float(self.l1_ratio)
        penalty = np.array([alpha * (1.0 - ratio), 0.0, alpha * ratio, 0.0])
        return fold_in(for_engine(X), np.asarray(self.components_.T, dtype=np.float64), 1.0, penalty, False)

    def _solved_counts(self, X: Any) -> tuple[Array, float]:
        theta = _of_counts(self.components_.T / self._unit, self._unit**2)
        W, divergence = KLNMF(rank=len(self.components_)).solved(for_engine(X), theta)
        return W * self._unit, divergence * self._unit**2

    # -- use -----------------------------------------------------------------------------------------------

    def transform(self, X: Any) -> Array:
        """W of these rows."""
        X = self._new_rows(X)
        return self._solved(X).astype(X.dtype)

    def inverse_transform(self, X: Any) -> Array:
        """W·H."""
        from sklearn.utils.validation import check_is_fitted

        check_is_fitted(self)
        return np.asarray(X @ self.components_)

    @property
    def _n_features_out(self) -> int:
        return len(self.components_)


def _of_counts(factors: Array, scale: float) -> KLFactors:
    """θ of `KLNMF` with this H."""
    factors = np.ascontiguousarray(factors, dtype=np.float64)
    return KLFactors(factors, np.array([scale]), np.zeros(3), np.zeros((len(factors) + 1, factors.shape[1])))


def _given(X: Any, W: Any, H: Any, k: int) -> Array:
    """H of `init="custom"`; raises as scikit-learn does where W or H does not fit the rows."""
    for name, values, shape in (("H", H, (k, X.shape[1])), ("W", W, (X.shape[0], k))):
        if values is None:
            raise ValueError(f"init='custom' needs {name} in fit and fit_transform; give it, or use another init.")
        for at, word in enumerate(("first", "second")):
            if values.shape[at] != shape[at]:
                raise ValueError(
                    f"Array with wrong {word} dimension passed to NMF (input {name}). Expected {shape[at]}, but got "
                    f"{values.shape[at]}."
                )
        if values.min() < 0:
            raise ValueError(f"Negative values in data passed to NMF (input {name})")
        if values.max() == 0:
            raise ValueError(f"Array passed to NMF (input {name}) is full of zeros.")
    if H.dtype != X.dtype or W.dtype != X.dtype:
        raise TypeError(f"H and W should have the same dtype as X. Got H.dtype = {H.dtype} and W.dtype = {W.dtype}.")
    return np.asarray(H, dtype=np.float64)


def singular_start(X: Any, weights: Array | None, k: int, seed: int) -> Array:
    """H of NNDSVD: of each singular pair the positive or the negative parts, whichever have the larger product of
    lengths; they approximate the pair best without negative numbers.

    C. Boutsidis, E. Gallopoulos, SVD based initialization: a head start for nonnegative matrix factorization (2008).
    """
    if weights is not None:
        roots = np.sqrt(weights)
        X = scipy.sparse.diags(roots) @ X if scipy.sparse.issparse(X) else roots[:, None] * X
    left, strengths, right = randomized_svd(X, k, random_state=seed)
    found = np.zeros(right.shape)
    for f in range(k):
        u, v = (np.abs(left[:, 0]), np.abs(right[0])) if f == 0 else (left[:, f], right[f])
        parts = [(np.maximum(sign * u, 0.0), np.maximum(sign * v, 0.0)) for sign in (1.0, -1.0)]
        sizes = [float(np.linalg.norm(a) * np.linalg.norm(b)) for a, b in parts]
        best = int(sizes[1] > sizes[0])
        if sizes[best] > 0:
            of_columns = parts[best][1]
            found[f] = math.sqrt(strengths[f] * sizes[best]) * of_columns / np.linalg.norm(of_columns)
    return found
