"""K-modes and k-prototypes: objective and updates from scratch, every model, categories that nobody has seen."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flegel
from flegel.algorithms.clusters.kprototypes import KModes, KPrototypes
from flegel.core.pytree import Array
from flegel.errors import DataError, UsageError
from flegel.runtime.job.result_store import save
from tests.models import MODELS


def table(rows: int, seed: int = 0) -> tuple[Array, Array]:
    """Two columns of numbers and three of codes around four prototypes; and which one each row is of."""
    rng = np.random.default_rng(seed)
    which = rng.integers(4, size=rows)
    codes = rng.integers(6, size=(4, 3))[which]
    noise = rng.random((rows, 3)) < 0.15
    codes = np.where(noise, rng.integers(6, size=(rows, 3)), codes)
    return np.column_stack([3.0 * rng.normal(size=(4, 2))[which] + rng.normal(size=(rows, 2)), codes]), which


def by_hand(X: Array, centroids: Array, gamma: float, codes: slice) -> tuple[Array, Array]:
    """Costs and new prototypes of one step, written down plainly."""
    numbers = np.delete(X, np.r_[codes], axis=1)
    places = np.delete(np.arange(X.shape[1]), np.r_[codes])
    cost = ((numbers[:, None] - centroids[:, places]) ** 2).sum(axis=2)
    cost = cost + gamma * (X[:, None, codes] != centroids[:, codes]).sum(axis=2)
    labels, new = cost.argmin(axis=1), centroids.copy()
    for j in range(len(centroids)):
        mine = X[labels == j]
        new[j, places] = mine[:, places].mean(axis=0)
        for t in np.arange(X.shape[1])[codes]:
            new[j, t] = np.bincount(mine[:, t].astype(int)).argmax()
    return cost, new


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
def test_every_model_ends_where_no_step_by_hand_improves(sync: str, cluster) -> None:
    X, _ = table(2000)
    algorithm = KPrototypes(k=4, categorical=[2, 3, 4], gamma=1.5)
    result = flegel.run(algorithm, X, sync=sync, workers=2, cluster=cluster, straggler="0:3x", max_seconds=600, seed=1)
    assert result.outcome == "converged", result.reason
    cost, better = by_hand(X, result.parameter.centroids, 1.5, slice(2, 5))
    assert result.objective == pytest.approx(cost.min(axis=1).sum(), rel=1e-9)
    assert result.objective == pytest.approx(algorithm.evaluate(X, None, result.parameter).objective, rel=1e-9)
    assert by_hand(X, better, 1.5, slice(2, 5))[0].min(axis=1).sum() >= result.objective * (1 - 1e-4)


def test_modes_are_found_and_the_cost_counts_what_differs() -> None:
    rng = np.random.default_rng(3)
    modes = np.array([[0, 0, 0, 0, 0], [1, 1, 1, 1, 1], [2, 2, 2, 2, 2]])
    which = rng.integers(3, size=900)
    X = np.where(rng.random((900, 5)) < 0.1, rng.integers(4, size=(900, 5)), modes[which]).astype(float)
    result = flegel.run(KModes(k=3), X, sync="bsp", workers=1, seed=0, progress=False)
    found = result.parameter.centroids
    assert sorted(map(tuple, found.astype(int))) == sorted(map(tuple, modes))
    assert (
        result.objective == (modes[which] != X).sum(axis=1).clip(max=5).sum()
        or result.objective <= (modes[which] != X).sum()
    )


def test_a_code_that_is_not_in_the_sample_differs_from_all() -> None:
    X, _ = table(500)
    algorithm = KPrototypes(k=3, categorical=[2, 3, 4], gamma=2.0)
    result = flegel.run(algorithm, X, sync="bsp", workers=1, seed=0, progress=False)
    strange = X[:20].copy()
    strange[:, 2] = 77.0
    kept = algorithm.distances(X[:20], result.parameter)
    equal = X[:20, None, 2] == result.parameter.centroids[:, 2]
    np.testing.assert_allclose(algorithm.distances(strange, result.parameter), kept + 2.0 * equal)


def test_numbers_that_are_no_codes_are_refused() -> None:
    with pytest.raises(UsageError, match="columns of categories hold codes 0, 1, 2"):
        flegel.run(KModes(k=2), np.random.default_rng(0).normal(size=(50, 2)), progress=False)
    with pytest.raises(UsageError, match="there is no column 9"):
        flegel.run(KPrototypes(k=2, categorical=[9]), np.ones((50, 2)), progress=False)


def people(rows: int = 240) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    which = rng.integers(3, size=rows)
    return pd.DataFrame(
        {
            "age": np.round(20.0 + 20.0 * which + rng.normal(size=rows), 2).astype(np.float32),
            "colour": np.array(["red", "green", "blue"])[which],
            "city": np.array(["a", "b", "c", "d"])[rng.integers(4, size=rows)],
            "vip": which == 1,
            "zip": np.array([1010, 2020, 3030])[which],
        }
    )


def trained(table: Any, **given: Any) -> Any:
    algorithm = given.pop("algorithm", KPrototypes)(k=3, **given.pop("hyper", {}))
    return flegel.run(algorithm, table, sync="bsp", workers=1, seed=0, progress=False, **given)


def test_text_and_booleans_of_a_table_are_categories_and_columns_are_named(tmp_path: Path) -> None:
    frame = people()
    frame.to_csv(tmp_path / "people.csv", index=False)
    frame.to_parquet(tmp_path / "people.parquet")
    codes = frame.assign(**{name: np.unique(frame[name], return_inverse=True)[1] for name in frame.columns[1:]})
    places = [1, 2, 3]
    for named in (None, "zip", "colour,zip", ["zip"]):
        hyper = {} if named is None else {"categorical": named}
        plain = frame.assign(**{name: codes[name] for name in ("colour", "city", "vip", *(["zip"] if named else []))})
        by_number = trained(plain.to_numpy(np.float32), hyper={"categorical": [*places, *([4] if named else [])]})
        for table in (frame, *(tmp_path / f"people.{suffix}" for suffix in ("csv", "parquet"))):
            found = trained(table, hyper=hyper)
            assert found.objective == pytest.approx(by_number.objective, rel=1e-4), "rows of a frame are float64"
            np.testing.assert_array_equal(found.parameter.first, by_number.parameter.first)
            np.testing.assert_array_equal(found.labels, by_number.labels)


def test_new_tables_may_have_another_order_and_categories_that_nobody_has_seen(tmp_path: Path) -> None:
    frame = people()
    result = trained(frame, hyper={"categorical": ["zip"]})
    save(result, tmp_path / "model")
    model = flegel.load(tmp_path / "model")
    mixed = frame[["zip", "vip", "city", "colour", "age"]].assign(note="none")
    mixed.to_csv(tmp_path / "mixed.csv", index=False)
    for table in (mixed, tmp_path / "mixed.csv"):
        np.testing.assert_array_equal(model.predict(table), result.labels)
        assert model.evaluate(table).objective == pytest.approx(result.objective, rel=1e-5)
    strange = frame.assign(colour="pink", zip=4040)
    with pytest.warns(UserWarning, match="that training did not have"):
        away = model.distances(strange)
    differs = np.zeros_like(away)
    for t, name in ((1, "colour"), (4, "zip")):
        codes = np.unique(frame[name], return_inverse=True)[1]
        differs += codes[:, None] == result.parameter.centroids[:, t]
    np.testing.assert_allclose(away, model.distances(frame) + result.parameter.gamma * differs, rtol=1e-6)
    with pytest.raises(DataError, match="has no column 'city'"):
        model.predict(frame.drop(columns="city"))


def test_columns_that_cannot_be_categories_are_named(tmp_path: Path) -> None:
    frame = people()
    with pytest.raises(UsageError, match=r"column 'age' holds .*leave this one out"):
        trained(frame, algorithm=KModes)
    assert trained(frame, algorithm=KModes, drop=["age"]).outcome == "converged"
    with pytest.raises(UsageError, match="column 'age' holds"):
        trained(frame, hyper={"categorical": [0]})
    with pytest.raises(DataError, match="no column 'colr'; did you mean 'colour'"):
        trained(frame, hyper={"categorical": ["colr"]})


def test_a_gap_is_a_category_of_its_own_where_gaps_are_treated_and_codes_are_not_scaled() -> None:
    gaps = people().astype({"vip": object})
    gaps.loc[3, "vip"], gaps.loc[[5, 6], "colour"] = None, None
    found = trained(gaps, missing="mean", scale="standard")
    assert found.parameter.codes.tolist() == [0, 4, 4, 3, 0]
    assert found.treatment.columns[1].categories == ["blue", "green", "red", "(missing)"]
