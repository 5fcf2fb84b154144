"""`flegel.run` on real workers: the right answer under every kind of use. One warm cluster serves all tests."""

from __future__ import annotations

import json
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans as Lloyd

import flegel
from flegel import LocalCluster, UsageError
from flegel.algorithms.kmeans import KMeans
from flegel.results.result import Result

pytestmark = pytest.mark.processes

ROWS, K = 4000, 6


@cache
def clouds(dtype: str) -> tuple[np.ndarray, np.ndarray]:
    """Clouds that touch, and the same start for us and for scikit-learn, near enough for one optimum."""
    rng = np.random.default_rng(5)
    means = rng.permuted(np.linspace(-5, 5, K * 5)).reshape(K, 5)
    rows = (means[rng.integers(K, size=ROWS)] + rng.normal(scale=1.5, size=(ROWS, 5))).astype(dtype)
    return rows, means + rng.normal(scale=1.5, size=means.shape)


@cache
def lloyd(dtype: str) -> Any:
    rows, start = clouds(dtype)
    return Lloyd(K, init=start, n_init=1, algorithm="lloyd", tol=0, max_iter=500).fit(rows.astype(float))


def train(cluster: LocalCluster, workers: int, sync: str, dtype: str = "float64", **more: Any) -> Result:
    rows, start = clouds(dtype)
    options: dict[str, Any] = {"tolerance": 1e-9, "max_iterations": 2000, **more}
    interval = "3ms" if sync == "fsp" else None
    return flegel.run(
        KMeans(k=K, init=start), rows, workers=workers, sync=sync, interval=interval, cluster=cluster, **options
    )


@pytest.mark.parametrize("workers", [1, 2, 3, 8])
def test_bsp_finds_the_centroids_of_lloyds_algorithm(cluster: LocalCluster, workers: int) -> None:
    result = train(cluster, workers, "bsp", tolerance=0, max_iterations=lloyd("float64").n_iter_ + 3)
    np.testing.assert_allclose(result.parameters["centroids"], lloyd("float64").cluster_centers_, rtol=0, atol=1e-6)
    assert result.objective == pytest.approx(lloyd("float64").inertia_, rel=1e-9)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("sync", ["bsp", "fsp"])
@pytest.mark.parametrize("workers", [1, 2, 4, 8])
def test_the_objective_is_that_of_lloyd_and_never_gets_worse(
    cluster: LocalCluster, workers: int, sync: str, dtype: str
) -> None:
    result = train(cluster, workers, sync, dtype)
    assert result.objective == pytest.approx(lloyd(dtype).inertia_, rel=1e-3)
    rows, _ = clouds(dtype)
    assert result.objective == pytest.approx(
        result.algorithm.evaluate(rows, None, result.parameter).objective, rel=1e-3
    )
    values = [objective for _, _, objective, _ in result.to_json()["trace"] if objective is not None]
    assert len(values) > 2
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(values))


def test_bsp_gives_the_same_bits_again(cluster: LocalCluster) -> None:
    one, other = (train(cluster, 3, "bsp", max_iterations=7, seed=4) for _ in range(2))
    np.testing.assert_array_equal(one.parameters["centroids"], other.parameters["centroids"])
    assert [row["objective"] for row in one.rows] == [row["objective"] for row in other.rows]


def test_statistics_conserve_on_real_workers(cluster: LocalCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state that workers send back gives, from scratch, the objective that the engine kept incrementally."""
    monkeypatch.setenv("FLEGEL_DEBUG", "1")
    result = train(cluster, 4, "fsp", collect_state=True, audit="off")  # an audit assigns all points anew at the end
    rows, _ = clouds("float64")
    assigned = result.state[:, 0]
    assert result.state.shape == (ROWS, 1) and assigned.min() >= 0, "every point was visited by its one owner"
    scratch = ((rows - result.parameters["centroids"][assigned]) ** 2).sum()
    assert result.objective == pytest.approx(scratch, rel=1e-10)


def test_the_result_has_every_field_of_the_contract(cluster: LocalCluster) -> None:
    result = train(cluster, 2, "fsp")
    said = json.loads(json.dumps(result.to_json(), allow_nan=False))
    assert set(said) >= {
        "algorithm", "hyperparameters", "dataset", "sync", "workers", "seed", "converged", "reason", "objective",
        "iterations", "seconds", "load_seconds", "trace", "worker", "utilization", "model",
    }  # fmt: skip
    assert said["dataset"].keys() >= {"name", "rows", "columns", "stand_in"}
    assert said["worker"][0].keys() >= {
        "id", "points", "visits", "passes", "compute_seconds", "wait_seconds", "barrier_seconds", "merge_seconds",
    }  # fmt: skip
    assert all(len(row) == 4 for row in said["trace"]) and len(said["trace"]) == said["iterations"]
    assert [w["id"] for w in said["worker"]] == [0, 1]
    assert sum(w["points"] for w in said["worker"]) == ROWS
    visits, passes = (w["visits"] for w in said["worker"]), (w["passes"] * w["points"] for w in said["worker"])
    assert sum(visits) == pytest.approx(sum(passes))  # of each worker too, unless points moved
    assert 0 < said["utilization"] <= 1 and said["seconds"] > 0 and said["load_seconds"] > 0
    assert isinstance(result.trace, pd.DataFrame) and len(result.trace) == result.iterations
    assert {"seconds", "iteration", "objective", "interval"} <= set(result.trace.columns)


def test_one_cluster_serves_many_different_jobs(cluster: LocalCluster) -> None:
    rows, _ = clouds("float64")
    for k, data, workers in ((6, rows, 2), (3, rows[:100, :2], 3), (6, rows.astype("float32"), 8), (6, rows, 1)):
        result = flegel.run(KMeans(k=k), data, workers=workers, sync="bsp", max_iterations=3, cluster=cluster)
        assert result.parameters["centroids"].shape == (k, data.shape[1])
        assert result.iterations <= 3 and len(result.worker) == workers


def test_a_job_after_a_failed_one_is_not_disturbed(cluster: LocalCluster) -> None:
    with pytest.raises(flegel.FlegelError):
        flegel.run(KMeans(k=99), clouds("float64")[0][:50], workers=2, cluster=cluster)
    assert train(cluster, 2, "bsp", max_iterations=2).iterations == 2


def test_labels_frames_and_lists_are_data(cluster: LocalCluster) -> None:
    rows, _ = clouds("float64")
    for data in ((rows[:200], np.zeros(200)), pd.DataFrame(rows[:200]), rows[:200].tolist()):
        result = flegel.run(KMeans(k=3, init="first"), data, workers=1, sync="bsp", max_iterations=2, cluster=cluster)
        assert result.dataset["rows"] == 200 and result.dataset["columns"] == 5


def test_prediction_is_the_assignment_of_the_last_pass(cluster: LocalCluster) -> None:
    result = train(cluster, 2, "bsp", tolerance=0, max_iterations=lloyd("float64").n_iter_ + 3, collect_state=True)
    np.testing.assert_array_equal(result.predict(clouds("float64")[0]), result.state[:, 0])


def test_a_wall_clock_limit_in_the_middle_of_the_first_pass_still_commits(cluster: LocalCluster) -> None:
    rows = np.random.default_rng(0).normal(size=(1_000_000, 5))
    result = flegel.run(KMeans(k=K, init="first"), rows, workers=2, sync="bsp", max_seconds=1e-3, cluster=cluster)
    assert result.reason == "reached 0.001 s" and not result.converged
    assert result.iterations == 1 and sum(w["visits"] for w in result.worker) > 0


def test_an_interval_shorter_than_a_message_still_gets_somewhere(cluster: LocalCluster) -> None:
    rows, start = clouds("float64")
    algorithm = KMeans(k=K, init=start)
    result = flegel.run(
        algorithm, rows[:300], workers=2, sync="fsp", interval="1us", max_iterations=2000, cluster=cluster
    )
    assert result.converged, result.reason


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"workers": 0}, "number of workers"),
        ({"workers": -1}, "number of workers"),
        ({"workers": 9}, "cluster has 8"),
        ({"sync": "bspp"}, "did you mean 'bsp'"),
        ({"interval": 0.0}, "interval"),
        ({"interval": -1.0}, "interval"),
        ({"interval": "soon"}, "no duration"),
        ({"tolerance": 0}, "Nothing would ever end"),
        ({"tolerance": -1}, "tolerance"),
        ({"max_iterations": 0}, "max_iterations"),
        ({"max_seconds": 0}, "max_seconds"),
        ({"max_seconds": float("nan")}, "max_seconds"),
        ({"seed": -1}, "seed"),
        ({"seed": 2**70}, "seed"),
    ],
    ids=str,
)
def test_wrong_use_is_one_sentence(cluster: LocalCluster, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        flegel.run(KMeans(k=2), clouds("float64")[0], **{"workers": 2, "cluster": cluster, **options})


@pytest.mark.parametrize(
    ("algorithm", "data", "words"),
    [
        (KMeans(k=2), np.zeros((0, 3)), "no rows|empty"),
        (KMeans(k=2), np.zeros((1, 3)), "2 workers are more than the 1 point"),
        (KMeans(k=7), np.ones((5, 3)), "k=7 is more than"),
        (KMeans(k=2), np.array([[1.0, np.nan], [1.0, 2.0], [0.0, 1.0]]), "has no value in 1 of 3 rows"),
        (KMeans(k=2), np.array([[1.0, np.inf], [1.0, 2.0], [0.0, 1.0]]), "inf"),
        (KMeans(k=2), [[1.0, 2.0], [3.0]], "no table of numbers"),
        (KMeans(k=2), "no_such_set", "no data set"),
        (KMeans(k=2), "/no/such/file.csv", "does not exist"),
        ("kmean", np.ones((5, 3)), "did you mean 'kmeans'"),
        (object(), np.ones((5, 3)), "no algorithm"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_bad_input_is_one_sentence(cluster: LocalCluster, algorithm: Any, data: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        flegel.run(algorithm, data, workers=2, cluster=cluster)
    assert "\n" not in str(caught.value)


def test_a_closed_cluster_says_so() -> None:
    cluster = LocalCluster(workers=1)
    cluster.close()
    with pytest.raises(UsageError, match="closed"):
        cluster.send(0, None)  # type: ignore[arg-type]
