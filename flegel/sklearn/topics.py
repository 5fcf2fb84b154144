"""`LatentDirichletAllocation` with the interface of scikit-learn's; a fit is one job of the engine."""

from __future__ import annotations

from typing import Any

import numpy as np
from sklearn import decomposition

from flegel.algorithms.lda import LDA, Topics
from flegel.sklearn.base import LEAST_TOLERANCE, EngineEstimator
from flegel.sklearn.drop_in import with_engine_parameters


@with_engine_parameters
class LatentDirichletAllocation(EngineEstimator, decomposition.LatentDirichletAllocation):  # type: ignore[misc]
    """Topics of documents, by variational Bayes. Parameters, attributes and answers are scikit-learn's; `fit` is a job:
    `learning_method="online"` updates topics after each `batch_size` rows (`bsp-mini`), "batch" after each pass.
    `n_jobs` is `workers`. `max_iter` passes are made, or fewer: with `evaluate_every` above 0 the perplexity is found
    after so many passes, and the fit ends when it changes by less than `perp_tol`. `partial_fit` is scikit-learn's
    own."""

    _accepts_sparse = True
    _positive = True
    _warns = False
    tol = None
    components_: Any

    def fit(self, X: Any, y: Any = None) -> LatentDirichletAllocation:
        """Train on all rows."""
        self._validate_params()
        X = self._check_non_neg_array(X, reset_n_features=True, whom="LatentDirichletAllocation.fit")
        self._init_latent_vars(X.shape[1], dtype=X.dtype)
        algorithm = LDA(
            k=self.n_components,
            alpha=float(self.doc_topic_prior_),
            eta=float(self.topic_word_prior_),
            offset=float(self.learning_offset),
            decay=float(self.learning_decay),
            visits=int(self.max_doc_update_iter),
            change=float(self.mean_change_tol),
            init=np.ascontiguousarray(self.components_.T, np.float64),
        )
        self._batches = -(-X.shape[0] // self.batch_size) if self._sync() == "bsp-mini" else None
        if self.evaluate_every <= 0:
            self._take(self._train(algorithm, X, tolerance=LEAST_TOLERANCE).parameter, X)
            return self
        theta, made, before = None, 0, None
        while made < self.max_iter:
            passes = min(self.evaluate_every, self.max_iter - made)
            theta = self._train(algorithm, X, start=theta, passes=passes, tolerance=LEAST_TOLERANCE).parameter
            made += passes
            self._take(theta, X)
            if self.verbose:
                print(f"iteration: {made} of max_iter: {self.max_iter}, perplexity: {self.bound_:.4f}")
            if before is not None and abs(before - self.bound_) < self.perp_tol:
                break
            before = self.bound_
        self.n_iter_ = made
        return self

    def _take(self, theta: Topics, X: Any) -> None:
        """Attributes of scikit-learn's class, from these topics."""
        self._set_from(theta, None, X.dtype)
        parts, _ = self._e_step(X, cal_sstats=False, random_init=False)
        self.bound_ = self._perplexity_precomp_distr(X, parts, sub_sampling=False)

    def _set_from(self, parameter: Any, algorithm: Any, dtype: Any) -> bool:
        self.components_ = np.ascontiguousarray(parameter.counts.T, dtype=dtype)
        self.exp_dirichlet_component_ = np.ascontiguousarray(parameter.words.T, dtype=dtype)
        self.n_batch_iter_ = int(parameter.steps[0]) + 1
        return True

    def _sync(self, partial: bool = False) -> str:
        if self.sync is not None:
            return str(self.sync)
        return "bsp-mini" if self.learning_method == "online" else "bsp"

    def _job_options(self) -> dict[str, Any]:
        options = super()._job_options()
        return options if self._batches is None else {**options, "batches": self._batches}
