"""Topics of documents beside scikit-learn's: the same steps from the same start, and bounds that are as good."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
import scipy.sparse
from scipy.special import gammaln, psi
from sklearn.decomposition import LatentDirichletAllocation as Theirs

import flegel
from flegel.algorithms.documents import digamma, digamma_each, log_gamma_sum
from flegel.algorithms.lda import LDA
from flegel.core.shard import Sparse
from flegel.errors import UsageError
from tests.models import MODELS

TOPICS, WORDS = 4, 60
RNG = np.random.default_rng(0)
BETA = RNG.dirichlet(np.full(WORDS, 0.1), TOPICS)
X = scipy.sparse.csr_matrix(
    np.stack([RNG.multinomial(50, mixture @ BETA) for mixture in RNG.dirichlet(np.full(TOPICS, 0.2), 400)]), dtype=float
)
START = RNG.gamma(100.0, 0.01, (WORDS, TOPICS))


def test_digamma_is_that_of_scipy() -> None:
    for x in (1e-6, 1e-3, 0.1, 0.5, 1.0, 1.4616321449683622, 3.0, 7.99, 8.0, 123.4, 1e8):
        assert digamma(x) == pytest.approx(psi(x), rel=1e-12, abs=1e-12)
    some = RNG.gamma(0.5, 10.0, (7, 3))
    assert np.allclose(digamma_each(some), psi(some), rtol=1e-12, atol=1e-12)
    assert log_gamma_sum(some) == pytest.approx(gammaln(some).sum(), rel=1e-12)


def test_passes_of_bsp_are_steps_of_batch_variational_bayes() -> None:
    theirs = Theirs(TOPICS, max_iter=1, mean_change_tol=1e-9, max_doc_update_iter=1000)
    theirs._check_non_neg_array(X, reset_n_features=True, whom="here")
    theirs._init_latent_vars(WORDS)
    theirs.components_ = START.T.copy()
    theirs.exp_dirichlet_component_ = np.exp(psi(START) - psi(START.sum(axis=0))).T
    for _ in range(3):
        theirs._em_step(X, total_samples=X.shape[0], batch_update=True)
    algorithm = LDA(k=TOPICS, init=START, change=1e-9, visits=1000)
    result = flegel.run(algorithm, X, sync="bsp", workers=1, max_passes=3, seed=0, progress=False)
    counts = result.parameter.counts.T
    apart = np.abs(counts - theirs.components_).sum() / counts.sum()
    assert apart < 0.01, "a document may have several fixed points; scikit-learn begins at random ones"
    theirs.components_, theirs.exp_dirichlet_component_ = counts, result.parameter.words.T
    found = algorithm.evaluate(Sparse(X.indptr, X.indices, X.data, WORDS), None, result.parameter)
    assert found.objective == pytest.approx(-theirs.score(X), rel=1e-5)


@cache
def their_worst_bound() -> float:
    return max(-Theirs(TOPICS, max_iter=30, random_state=seed).fit(X).score(X) for seed in range(3))


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_ends_at_a_bound_as_good_as_that_of_scikit_learn(sync: str, cluster) -> None:
    algorithm = LDA(k=TOPICS)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    found = algorithm.evaluate(Sparse(X.indptr, X.indices, X.data, WORDS), None, result.parameter).objective
    assert found <= their_worst_bound() * 1.01
    assert result.objective == pytest.approx(found, rel=1e-3)


def test_dense_and_sparse_rows_and_weights_give_the_same_topics() -> None:
    options = {"sync": "bsp", "workers": 1, "max_passes": 4, "seed": 0, "progress": False}
    algorithm = LDA(k=TOPICS, init=START)
    sparse = flegel.run(algorithm, X, **options).parameter.counts
    np.testing.assert_allclose(flegel.run(algorithm, X.toarray(), **options).parameter.counts, sparse, rtol=1e-9)
    weights = RNG.integers(1, 4, size=X.shape[0])
    twice = X[np.repeat(np.arange(X.shape[0]), weights)]
    weighted = flegel.run(algorithm, (X, None, weights.astype(float)), **options).parameter.counts
    np.testing.assert_allclose(weighted, flegel.run(algorithm, twice, **options).parameter.counts, rtol=1e-8)


def test_what_is_no_count_is_refused() -> None:
    with pytest.raises(UsageError, match="LDA counts words, and a value is below 0"):
        flegel.run(LDA(k=2), np.array([[1.0, -1.0], [2.0, 0.0]]), progress=False)
    with pytest.raises(UsageError, match="init has the shape"):
        flegel.run(LDA(k=2, init=np.ones((3, 3))), np.ones((4, 2)), progress=False)
    with pytest.raises(UsageError, match="init has numbers that are missing, infinite or not above 0"):
        flegel.run(LDA(k=2, init=-np.ones((2, 2))), np.ones((4, 2)), progress=False)
