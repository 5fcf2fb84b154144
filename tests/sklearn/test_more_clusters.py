"""Estimators of clusters and topics beside those of the five algorithms: what they promise on small tables."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from sklearn.exceptions import ConvergenceWarning

from flegel import UsageError, algorithms
from flegel.sklearn import (
    BisectingKMeans,
    KMeans,
    KMeansConstrained,
    KModes,
    KPrototypes,
    LatentDirichletAllocation,
    MiniBatchKMeans,
)

RNG = np.random.default_rng(5)
X = RNG.normal(size=(300, 3)) + 6.0 * np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1]])[
    RNG.choice(3, 300, p=[0.7, 0.2, 0.1])
]  # fmt: skip


def test_sizes_hold_exactly_and_new_rows_go_by_prices() -> None:
    model = KMeansConstrained(4, size_min=75, size_max=75, random_state=0).fit(X)
    assert np.bincount(model.labels_).tolist() == [75] * 4
    squared = ((X[:, None] - model.cluster_centers_) ** 2).sum(axis=2)
    assert model.inertia_ == pytest.approx(squared[np.arange(300), model.labels_].sum())
    priced = squared + model.prices_
    assert priced[np.arange(300), model.predict(X)] == pytest.approx(priced.min(axis=1)), "a tie may go either way"
    assert (model.predict(X) == model.labels_).mean() > 0.98, "all but the few that are indifferent"
    np.testing.assert_allclose(model.transform(X) ** 2, squared)


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(4))
def test_fits_of_small_tables_come_to_rest(seed: int) -> None:
    from sklearn.datasets import load_iris

    rows = load_iris().data  # with equal rows
    model = KMeansConstrained(5, size_min=30, size_max=30, max_iter=20, random_state=seed, workers=1).fit(rows)
    assert np.bincount(model.labels_).tolist() == [30] * 5


@pytest.mark.filterwarnings("error::sklearn.exceptions.ConvergenceWarning")
def test_a_fit_ends_where_many_equal_rows_go_to_and_fro() -> None:
    rows = np.round(np.random.default_rng(1).normal(size=(600, 2)))
    model = KMeansConstrained(6, size_min=90, size_max=110, max_iter=30, random_state=1, workers=1).fit(rows)
    counts = np.bincount(model.labels_)
    assert counts.min() >= 90 and counts.max() <= 110


def test_without_limits_they_are_clusters_of_k_means() -> None:
    from sklearn.cluster import KMeans as Theirs

    ours = KMeansConstrained(3, random_state=0).fit(X)
    assert ours.inertia_ <= Theirs(3, n_init=3, random_state=0).fit(X).inertia_ * 1.0001
    assert not ours.prices_.any()


def test_limits_that_rows_cannot_have_are_refused() -> None:
    with pytest.raises(ValueError, match="n_samples=300 rows do not fit into 4 clusters of 80 to 300"):
        KMeansConstrained(4, size_min=80).fit(X)
    with pytest.raises(ValueError, match="size_max must be a whole number of 1 or more"):
        KMeansConstrained(4, size_max=0).fit(X)


def test_categories_may_be_text_and_unknown_ones_differ_from_all() -> None:
    rows = np.array([["red", "small"], ["red", "small"], ["red", "large"], ["blue", "tall"], ["blue", "tall"]])
    model = KModes(2, random_state=0).fit(rows)
    assert sorted(map(tuple, model.cluster_centroids_)) == [("blue", "tall"), ("red", "small")]
    assert model.cost_ == 1.0 and model.labels_[0] == model.labels_[2] != model.labels_[3]
    assert model.predict(np.array([["green", "tall"]]))[0] == model.labels_[3]


def test_numbers_and_categories_are_clustered_together() -> None:
    rows = np.array([[1.0, "a"], [1.2, "a"], [0.9, "b"], [9.0, "b"], [9.3, "b"], [8.8, "a"]], dtype=object)
    model = KPrototypes(2, categorical=[1], gamma=0.5, random_state=0).fit(rows)
    assert model.labels_.tolist() in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0])
    numbers = np.array([1.0, 1.2, 0.9]), np.array([9.0, 9.3, 8.8])
    assert model.cost_ == pytest.approx(sum(((part - part.mean()) ** 2).sum() for part in numbers) + 2 * 0.5)
    with pytest.raises(ValueError, match="names column 2, which X does not have; it has columns 0 to 1"):
        KPrototypes(2, categorical=[2]).fit(rows)


ROWS = np.array([[1.0, "a"], [2.0, "b"], [8.0, "a"], [9.0, "b"]], dtype=object)


def test_columns_of_categories_are_named_as_in_the_frame() -> None:
    frame = pd.DataFrame({"size": [1.0, 2.0, 8.0, 9.0], "kind": ["a", "b", "a", "b"]})
    named = KPrototypes(2, categorical=["kind"], random_state=0).fit(frame)
    assert named.labels_.tolist() == KPrototypes(2, categorical=[1], random_state=0).fit(ROWS).labels_.tolist()
    with pytest.raises(ValueError, match="names column 'other', which X does not have; known are: kind, size"):
        KPrototypes(2, categorical=["other"]).fit(frame)


def test_a_gamma_of_0_ignores_categories_and_one_below_or_without_end_is_refused() -> None:
    found = KPrototypes(2, categorical=[1], gamma=0.0, random_state=0).fit(ROWS)
    assert found.gamma_ == 0.0 and found.cost_ == pytest.approx(1.0)
    for wrong in (-1.0, np.inf, np.nan):
        with pytest.raises(ValueError, match="gamma"):
            KPrototypes(2, categorical=[1], gamma=wrong).fit(ROWS)
        with pytest.raises(UsageError, match="gamma"):
            algorithms.KPrototypes(k=2, gamma=wrong)


def test_gaps_and_mixed_columns_are_refused_in_words() -> None:
    with pytest.raises(ValueError, match="contains None"):
        KModes(2).fit(np.array([["a", None], ["b", "c"], ["a", "c"]], dtype=object))
    with pytest.raises(ValueError, match="Column 1 of X mixes text"):
        KModes(2).fit(np.array([["a", 1], ["b", "c"], ["a", "c"]], dtype=object))
    with pytest.raises(ValueError, match="Column 1 of X is not one of numbers"):
        KPrototypes(2, categorical=[]).fit(ROWS)
    with pytest.raises(ValueError, match="Column 'kind' of X is not one of numbers"):
        KPrototypes(2, categorical=["size"]).fit(pd.DataFrame(ROWS, columns=["size", "kind"]))


@pytest.mark.parametrize("kind", [str, "category", "string"])
def test_columns_of_text_and_booleans_hold_categories_by_themselves(kind: str) -> None:
    frame = pd.DataFrame(ROWS, columns=["size", "kind"]).astype({"size": float, "kind": kind})
    frame["sold"] = [True, False, False, True]
    wanted = KPrototypes(2, categorical=["kind", "sold"], random_state=0).fit(frame)
    for table in (frame, frame.to_numpy(object)):
        found = KPrototypes(2, random_state=0).fit(table)
        assert list(found.categories_) == [1, 2] and found.cost_ == wanted.cost_
    assert not KPrototypes(2, random_state=0).fit(frame[["size"]].astype(object)).categories_


def test_the_number_of_clusters_is_found() -> None:
    model = KMeans("auto", random_state=0).fit(X)
    assert model.n_clusters_ == len(model.cluster_centers_) == 3
    assert model.inertia_ == pytest.approx(KMeans(3, random_state=0).fit(X).inertia_, rel=1e-6)
    with pytest.raises(ValueError, match="n_clusters='auto' takes rows without NaN"):
        KMeans("auto", metric="cosine").fit(X)
    rng = np.random.default_rng(0)
    many = np.repeat(30.0 * rng.normal(size=(60, 4)), 20, axis=0) + rng.normal(size=(1200, 4))
    with pytest.warns(ConvergenceWarning, match=r"limit of 50 clusters .* binds.* AutoKMeans\(k_max=100\)"):
        assert KMeans("auto", random_state=0).fit(many).n_clusters_ == 50


def test_rows_with_gaps_count_what_is_observed() -> None:
    gaps = np.where(np.random.default_rng(0).random(X.shape) < 0.15, np.nan, X)
    model = KMeans(3, random_state=0).fit(gaps)
    squared = np.nansum((gaps[:, None] - model.cluster_centers_) ** 2, axis=2)
    assert model.inertia_ == pytest.approx(squared.min(axis=1).sum())
    np.testing.assert_allclose(model.transform(gaps) ** 2, squared)
    assert (model.predict(gaps) == model.labels_).all() and model.score(gaps) == pytest.approx(-model.inertia_)
    with pytest.raises(ValueError, match="contains NaN, which partial_fit does not take"):
        model.partial_fit(gaps)
    with pytest.raises(ValueError, match="NaN"):
        KMeans(3, metric="cosine").fit(gaps)


def test_batches_of_so_many_rows_end_at_clusters_of_k_means() -> None:
    model = MiniBatchKMeans(3, batch_size=50, random_state=0).fit(X)
    assert model.n_steps_ >= 6 and model.sync_ == "bsp-mini"
    assert model.inertia_ <= KMeans(3, random_state=0).fit(X).inertia_ * 1.001


def test_splits_find_the_clusters_of_scikit_learn() -> None:
    from sklearn.cluster import BisectingKMeans as Theirs

    model = BisectingKMeans(3, random_state=0).fit(X)
    assert model.inertia_ <= Theirs(3, n_init=3, random_state=0).fit(X).inertia_ * 1.01
    assert (model.predict(X) == model.labels_).all() and model.score(X) == pytest.approx(-model.inertia_)
    with pytest.raises(ValueError, match="bisecting_strategy must be one of"):
        BisectingKMeans(3, bisecting_strategy="none").fit(X)


@pytest.mark.parametrize("method", ["batch", "online"])
def test_topics_explain_documents_as_well_as_those_of_scikit_learn(method: str) -> None:
    from sklearn.decomposition import LatentDirichletAllocation as Theirs

    rng = np.random.default_rng(0)
    words = rng.dirichlet(np.full(40, 0.1), 3)
    rows = np.stack([rng.multinomial(60, mixture @ words) for mixture in rng.dirichlet(np.full(3, 0.3), 300)])
    ours = LatentDirichletAllocation(3, learning_method=method, random_state=0).fit(rows)
    theirs = Theirs(3, learning_method=method, random_state=0).fit(rows)
    assert ours.perplexity(rows) <= theirs.perplexity(rows) * 1.02
    assert ours.bound_ == pytest.approx(ours.perplexity(rows)) and ours.n_iter_ == 10
    assert ours.transform(rows).sum(axis=1) == pytest.approx(1.0)


def test_random_starts_are_tried_several_times() -> None:
    many = KMeans(3, init="random", random_state=0).fit(X)
    assert many._n_init == 10 and many.inertia_ <= KMeans(3, random_state=0).fit(X).inertia_ * 1.0001
    drawn: list[int] = []

    def some(rows: np.ndarray, k: int, random_state: np.random.RandomState) -> np.ndarray:
        drawn.append(k)
        return np.asarray(rows[random_state.permutation(len(rows))[:k]])

    assert KMeans(3, init=some, n_init=4, random_state=0).fit(X).inertia_ > 0 and drawn == [3] * 4


def test_float32_and_sparse_rows_begin_as_dense_ones_do() -> None:
    import scipy.sparse

    rows = np.round(np.random.default_rng(0).normal(size=(200, 6)), 3) * 1.1
    labels = KMeans(8, n_init=1, random_state=3).fit(rows).labels_
    np.testing.assert_array_equal(KMeans(8, n_init=1, random_state=3).fit(rows.astype(np.float32)).labels_, labels)
    np.testing.assert_array_equal(
        KMeans(8, n_init=1, random_state=3).fit(scipy.sparse.csr_matrix(rows)).labels_, labels
    )


def test_a_fit_of_topics_ends_when_the_perplexity_stands_still() -> None:
    words = np.random.default_rng(3).poisson(1.0, size=(60, 12))
    options = {"n_components": 3, "max_iter": 12, "random_state": 0}
    assert LatentDirichletAllocation(evaluate_every=1, perp_tol=5.0, **options).fit(words).n_iter_ == 2
    parts = LatentDirichletAllocation(evaluate_every=5, perp_tol=1e-9, **options).fit(words)
    assert parts.n_iter_ == 12
    np.testing.assert_allclose(parts.components_, LatentDirichletAllocation(**options).fit(words).components_)


def test_gaps_that_are_not_understood_are_told_as_such() -> None:
    rows = X.copy()
    rows[3, 1] = np.nan
    with pytest.raises(ValueError, match="gaps only in dense rows with metric='euclidean'"):
        KMeans(3, metric="cosine").fit(rows)
    with pytest.raises(ValueError, match="gaps only in dense rows with metric='euclidean'"):
        KMeans(3).fit(scipy.sparse.csr_matrix(rows))
    rows[:, 2] = np.nan
    with pytest.raises(ValueError, match=r"column 2 \(counted from 0\) has no observed number; leave it out"):
        KMeans(3).fit(rows)


def test_clusters_that_no_split_made_are_told_and_attract_no_row() -> None:
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0], [5.0, 5.0]], 5, axis=0)
    with pytest.warns(ConvergenceWarning, match=r"distinct clusters \(3\)"):
        model = BisectingKMeans(5, random_state=0).fit(rows)
    assert {tuple(centre) for centre in model.cluster_centers_} == {(0.0, 0.0), (1.0, 1.0), (5.0, 5.0)}
