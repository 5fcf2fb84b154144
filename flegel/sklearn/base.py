"""What all estimators have in common: the job behind `fit`, its options, seeds and weights.

Never knows an algorithm. A fit is one call of `flegel.run`: small ones in threads of this process, large ones on worker
processes that all estimators of this process share and that end with it. Inside workers of joblib a fit uses one
thread, because the cores are taken already.
"""

from __future__ import annotations

import numbers
import warnings
from collections.abc import Callable
from typing import Any, ClassVar

import joblib
import numpy as np
import scipy.sparse
from sklearn.base import BaseEstimator
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from flegel.algorithm import Algorithm
from flegel.api.jobs import is_behind_master, run
from flegel.core.parallel_sums import in_pieces
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.errors import UsageError
from flegel.results.result import Result
from flegel.sklearn.fit_callbacks import CallbackSupportMixin, PassesAsTasks, heard_by_callbacks
from flegel.sklearn.foreign_arrays import accept_foreign_arrays
from flegel.sklearn.rows import prepared

LEAST_TOLERANCE = 1e-300  # in place of tol=0, which would switch the engine's criterion off
ROUNDED_PASSES = 1e-9  # visits divided by points may be so far below a whole number
FLOAT_TYPES = [np.float64, np.float32]
CHECKED_BY_ONE_THREAD = 4 << 20  # bytes of rows that are searched for infinities at a time


class EngineEstimator(CallbackSupportMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the estimators. Subclasses have the parameters `workers`, `sync`, `cluster`, `target`, `random_state`,
    `max_iter`, `tol` and `verbose`."""

    _accepts_sparse: ClassVar[bool] = False
    _positive: ClassVar[bool] = False
    _warns: ClassVar[bool] = True
    """A fit that ends at `max_iter` warns, as in scikit-learn."""
    n_iter_: Any
    """Passes over the rows; an array where scikit-learn has one."""

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        for name in ("fit", "fit_transform"):
            found = vars(cls).get(name) or (getattr(cls, "fit", None) if name == "fit" else None)
            if found is not None and not getattr(found, "is_heard", False):
                setattr(cls, name, heard_by_callbacks(found))
        accept_foreign_arrays(cls)

    def _most_passes(self) -> int:
        """Of a fit, as callbacks are told, with the one that is begun last and not made; 0: one pass is all."""
        most = getattr(self, "max_iter", None)
        return 0 if most is None else max(int(most), 1) + 1

    def _set_from(self, parameter: Tree, algorithm: Algorithm, dtype: Any) -> bool:
        """Set the attributes that answers need from θ, for callbacks that look at a model which is not ready; False:
        they cannot be had before the end of the fit."""
        return False

    # -- rows ----------------------------------------------------------------------------------------------

    def _rows(self, X: Any, *, reset: bool, **options: Any) -> Any:
        """Checked rows: float32 and float64 stay, others become float64; sparse ones become CSR."""
        sparse = "csr" if self._accepts_sparse else False
        if "ensure_all_finite" not in options and surely_finite(X):
            options["ensure_all_finite"] = False
        rows = validate_data(
            self,
            X,
            reset=reset,
            accept_sparse=sparse,
            dtype=FLOAT_TYPES,
            order="C",
            accept_large_sparse=True,
            **options,
        )
        rows = (_as_kernels_take(rows[0]), *rows[1:]) if isinstance(rows, tuple) else _as_kernels_take(rows)
        self._check_sign(rows[0] if isinstance(rows, tuple) else rows)
        return rows

    def _check_sign(self, rows: Any) -> None:
        if self._positive:
            values = rows.data if scipy.sparse.issparse(rows) else rows
            if values.size and values.min() < 0:
                raise ValueError(f"Negative values in data passed to {type(self).__name__}")

    def _new_rows(self, X: Any) -> Any:
        """Rows for a fitted model."""
        check_is_fitted(self)
        return self._rows(X, reset=False)

    def _weights(self, sample_weight: Any, X: Any) -> Array | None:
        """Float64 weights; None where all are 1."""
        if sample_weight is None:
            return None
        weights = np.asarray(
            _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True), dtype=np.float64
        )
        if not weights.sum() > 0:
            raise ValueError("Every sample weight is 0; at least one must be positive (sample_weight).")
        return weights

    def _check_number(self, name: str, least: int, most: int | None = None) -> int:
        value: Any = getattr(self, name)
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or int(value) < least:
            raise ValueError(f"{name} must be a whole number of {least} or more, not {value!r}.")
        if most is not None and int(value) > most:
            raise ValueError(f"n_samples={most} should be >= {name}={value}.")
        return int(value)

    def _check_real(self, name: str, least: float | None = None, besides: str = "") -> float:
        """A finite number, of `least` or more; `besides`: what else may be given, in words."""
        value: Any = getattr(self, name)
        real = isinstance(value, numbers.Real) and np.isfinite(float(value))
        if not real or (least is not None and value < least):
            known = "a finite number" if least is None else f"a finite number of {least:g} or more"
            raise ValueError(f"{name} must be {besides and f'{besides} or '}{known}, not {value!r}.")
        return float(value)

    # -- the job -------------------------------------------------------------------------------------------

    def _seed(self) -> int:
        state = getattr(self, "random_state", 0)  # one that has none draws nothing
        if isinstance(state, numbers.Integral):
            return int(state)
        return int(check_random_state(state).randint(2**31 - 1))

    def _sync(self, partial: bool = False) -> str:
        """`bsp` where results must repeat, to the last bit, or a single pass is made (`partial`); `fsp` otherwise."""
        if self.sync is not None:
            return str(self.sync)
        return "bsp" if partial or self.random_state is not None else "fsp"

    def _job_options(self) -> dict[str, Any]:
        backend, _ = joblib.parallel.get_active_backend()
        if (getattr(backend, "nesting_level", 0) or 0) > 0:
            return {"threads": 1, "processes": "no"}  # the bits of a fit outside
        options = {"workers": self._asked_workers(), "cluster": self.cluster}
        return {name: value for name, value in options.items() if value is not None}

    def _not_converged(self, reason: str) -> str:
        return f"{type(self).__name__} did not converge: {reason}. Raise max_iter or tol."

    def _asked_workers(self) -> int | None:
        """`workers`, else what `n_jobs` says, where an estimator has it; None: as many as the rows are worth."""
        jobs = getattr(self, "n_jobs", None)
        if self.workers is not None or jobs is None or jobs == -1:
            text = isinstance(self.workers, str) and self.workers.strip().isdecimal()
            if self.workers is not None and not text and not isinstance(self.workers, numbers.Integral):
                raise ValueError(f"workers={self.workers!r} must be a whole number, 1 or more, or None.")
            return None if self.workers is None else int(self.workers)
        return int(joblib.effective_n_jobs(jobs))

    def _train(
        self,
        algorithm: Algorithm | Callable[[int], Algorithm],
        X: Any,
        y: Array | None = None,
        weights: Array | None = None,
        start: Tree | None = None,
        passes: float | None = None,
        tolerance: float | None = None,
    ) -> Result:
        """One job; `passes` instead of `max_iter`, `tolerance` instead of `tol`. `algorithm` may be made of the number
        of rows that are trained."""
        rows = prepared(X, y, weights, getattr(algorithm, "k", 1))
        chosen = algorithm if isinstance(algorithm, Algorithm) else algorithm(rows.features.shape[0])
        once = chosen.statistics.constant
        sync = self._sync(partial=passes is not None or once)
        options: dict[str, Any] = {"seed": self._seed(), "sync": sync, **self._job_options()}
        if not once:  # one pass is exact: nothing else ends the job
            options["max_passes"] = passes or self._check_number("max_iter", 1)
            wanted = tolerance if tolerance is not None or self.tol is None else self._check_real("tol", 0, "None")
            if wanted is not None:
                options["tolerance"] = max(wanted, LEAST_TOLERANCE)
        if chosen.accepts.ratings:  # rows and columns, never a list of ratings, however few columns there are
            options["format"] = "table"
        if self.target is not None:
            options["target"] = self._check_real("target", besides="None")
        if getattr(self, "verbose", 0):
            options["say"] = print
        if (
            hasattr(self, "_fit_task")
            and not once
            and not (self.cluster is not None and is_behind_master(self.cluster))
        ):
            options["observers"] = [PassesAsTasks(self, lambda model, theta: model._set_from(theta, chosen, X.dtype))]
        try:
            result = run(chosen, rows, progress=False, start=start, **options)
        except UsageError as error:
            raise ValueError(str(error)) from error
        if getattr(self, "verbose", 0):
            print(f"{type(self).__name__}: {sync}, {result.reason}; {result.iterations} updates.")
        if once and result.outcome == "diverged":
            raise ValueError(f"{type(self).__name__} has no result: {result.reason}. Scale the columns of X.")
        if not result.converged and passes is None and self._warns:
            told = [text for text in result.warnings[:1] if result.outcome != "limit" and result.reason not in text]
            warnings.warn(
                self._not_converged("; ".join([result.reason, *told])),
                ConvergenceWarning,
                stacklevel=3,
            )
        self.sync_ = sync
        if once:
            return result
        least = min((w["passes"] for w in result.worker if w["points"]), default=1.0)
        self.n_iter_ = max(int(least + ROUNDED_PASSES), 1)  # whole ones, as callbacks hear of them
        return result

    def __getstate__(self) -> Any:
        """Processes do not travel: a copy in another process trains on its own."""
        state = super().__getstate__()
        return {**state, "cluster": None} if state.get("cluster") is not None else state

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.array_api_support = False  # arrays of other libraries are taken, and answers are NumPy's
        tags.input_tags.sparse = self._accepts_sparse
        tags.input_tags.positive_only = self._positive
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def surely_finite(X: Any) -> bool:
    """Whether large rows are finite, by the sums of their parts, which several threads form; scikit-learn's own look at
    them takes one. Where a sum is not finite it has still to look."""
    if type(X) is not np.ndarray or X.dtype not in FLOAT_TYPES or X.ndim != 2 or X.nbytes < CHECKED_BY_ONE_THREAD:
        return False
    sums: list[float] = []

    def some(start: int, end: int) -> None:
        with np.errstate(all="ignore"):
            sums.append(float(X[start:end].sum()))

    in_pieces(len(X), max(CHECKED_BY_ONE_THREAD // X[:1].nbytes, 1), some)
    return bool(np.isfinite(sums).all())


def for_engine(X: Any) -> Any:
    """Rows as the engine's algorithms know them: those of scipy's CSR matrices have a class of their own."""
    return Sparse(X.indptr, X.indices, X.data, X.shape[1]) if scipy.sparse.issparse(X) else X


def share(old: float, new: float) -> float:
    """The part that new rows have in all rows so far."""
    return new / (old + new) if old + new > 0 else 1.0


def _as_kernels_take(rows: Any) -> Any:
    """Sparse rows whose places are numbers of 32 bits, each place once; others as they are."""
    if not scipy.sparse.issparse(rows):
        return rows
    if not rows.has_canonical_format:
        rows = rows.copy()  # the caller's matrix stays as it is
        rows.sum_duplicates()
    if rows.indices.dtype == rows.indptr.dtype == np.int32:
        return rows
    if max(rows.nnz, rows.shape[1]) > np.iinfo(np.int32).max:
        raise ValueError(f"Only up to {np.iinfo(np.int32).max:,} columns and values of sparse rows are accepted.")
    places = rows.indices.astype(np.int32), rows.indptr.astype(np.int32)
    return type(rows)((rows.data, *places), shape=rows.shape)
