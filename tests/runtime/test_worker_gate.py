"""Workers whose own model is not good enough: withheld, counted later, or excluded with their points (dSyncPS)."""

from __future__ import annotations

import os
import signal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel import LocalCluster
from flegel.algorithm import Algorithm
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.cli.main import app
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.machine.coordinator.events import Timeouts
from flegel.params.gate import Gate
from flegel.params.gated import GatedStore
from flegel.params.protocol import Fold
from flegel.plan.termination import Termination, Verdict
from flegel.runtime.job import part as job_part
from tests.coordinators import coordinators


class Count(NamedTuple):
    """s: how often points were visited since the last barrier, and how many points there are."""

    visits: Any
    points: Any


class Counter(Algorithm):
    """θ is the number of all visits."""

    statistics = flegel.Statistics(spent=("visits",))

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(1)

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iterationNum: int) -> Any:
        raise NotImplementedError

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter + aggregator.visits


def counted(visits: float) -> Count:
    return Count(np.array([visits]), np.ones(1))


def fold(store: GatedStore, number: int, update: bool = True, **changes: float) -> float:
    """θ after a fold of these visits by worker."""
    workers = [int(name[1:]) for name in changes]
    folded = store.fold(Fold(number, workers, [counted(v) for v in changes.values()], "round 1", update=update))
    assert folded.number == number
    return float(store.parameter[0])


def gated(threshold: float, failures: int = 2) -> GatedStore:
    """A store whose workers pass where their own θ is at least `threshold`."""
    zero = Count(np.zeros(1), np.zeros(1))
    return GatedStore(Counter(), np.zeros(1), zero, lambda: Gate(threshold, failures), lambda theta: float(theta[0]))


def test_what_is_withheld_counts_with_the_report_that_passes() -> None:
    store = gated(10.0)
    assert fold(store, 0, w0=6.0, w1=12.0) == 12.0 and set(store.failed()) == {0}
    assert fold(store, 1, w0=1.0) == 19.0  # θ + 6 + 1 passes
    assert not store.failed() and store.refused == {0: 1} and store.discrepancy() == 0.0
    assert float(store.statistics.points[0]) == 3.0


def test_where_nobody_passes_theta_stays() -> None:
    store = gated(10.0)
    for number in range(3):
        assert fold(store, number, w0=1.0, w1=2.0) == 0.0 and set(store.failed()) == {0, 1}


def test_points_that_change_their_owner_take_what_was_withheld_along() -> None:
    store = gated(10.0)
    fold(store, 0, w0=1.0, w1=20.0)
    assert fold(store, 1, update=False, w1=3.0) == 20.0, "nothing is judged while workers change"
    store.join(0, 1)
    assert fold(store, 2, w1=0.0) == 24.0, "all visits count once"
    store.clear_statistics()
    assert fold(store, 3, w1=5.0) == 29.0


def labelled(seed: int = 0, rows: int = 2000, wrong: slice = slice(0)) -> tuple[Array, Array]:
    """Classes that overlap a little, so that there is a minimum."""
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(rows, 4))
    labels = (features @ [1.0, -2.0, 1.0, 0.5] + 0.2 * rng.logistic(size=rows) > 0).astype(np.float64)
    labels[wrong] = 1.0 - labels[wrong]
    return features, labels


def write(path: Path, features: Array, labels: Array) -> str:
    np.savetxt(path, np.column_stack([features, labels]), delimiter=",", header="a,b,c,d,y", comments="", fmt="%.6g")
    return str(path)


def options(folder: Path, **more: Any) -> dict[str, Any]:
    """The last quarter of the rows, those of worker 3, have the wrong labels."""
    write(folder / "rows.csv", *labelled(wrong=slice(1500, None)))
    gate = write(folder / "gate.csv", *labelled(seed=1, rows=200))
    return {
        "data": str(folder / "rows.csv"), "label": "y", "workers": 4, "sync": "bsp", "partition": "contiguous",
        "gate": "0.7", "gate_data": gate, "gate_failures": 3, **more,
    }  # fmt: skip


def test_a_worker_with_wrong_labels_leaves_with_its_points(tmp_path: Path) -> None:
    algorithm = LR()
    with coordinators() as found:
        result = flegel.run(algorithm, **options(tmp_path, processes=False, max_iterations=40))
    excluded = [i for i in result.incidents if i["kind"] == "excluded"]
    assert [i["worker"] for i in excluded] == [3] and excluded[0]["resumed"] is not None
    assert "worker 3 was excluded with its points" in str(result.warnings)
    machine = found[-1]
    assert machine.view.points == 1500 and set(machine.view.workers) == {0, 1, 2}
    features, labels = labelled(seed=1, rows=200)
    assert algorithm.evaluate(features, labels, result.parameter).metrics["accuracy"] > 0.9


def shifted(folder: Path, **more: Any) -> dict[str, Any]:
    """Rows of four clusters, of which those of worker 3 were measured on another scale."""
    rng = np.random.default_rng(0)
    rows = 8.0 * np.eye(4)[rng.integers(0, 4, 2000)] + rng.normal(size=(2000, 4))
    np.save(folder / "gate.npy", 8.0 * np.eye(4)[rng.integers(0, 4, 200)] + rng.normal(size=(200, 4)))
    rows[1500:] *= 5.0
    return {
        "data": rows, "workers": 4, "sync": "bsp", "partition": "contiguous",
        "gate": "-8000", "gate_data": str(folder / "gate.npy"), "gate_failures": 3, **more,
    }  # fmt: skip


@pytest.mark.parametrize("sync", ["bsp", "fsp", "asp"])
def test_the_model_is_that_of_the_rows_of_workers_that_pass(tmp_path: Path, sync: str) -> None:
    given = shifted(tmp_path, processes=False) | {"sync": sync}
    result = flegel.run(KMeans(k=4), **given)
    gone = {i["worker"] for i in result.incidents if i["kind"] == "excluded"}
    gone |= {w for w in range(4) if f"the last report of worker {w} is not in the model" in str(result.warnings)}
    assert 3 in gone and len(gone) < 4
    rows = np.concatenate([given["data"][500 * w : 500 * w + 500] for w in range(4) if w not in gone])
    again = KMeans(k=4).evaluate(rows, None, result.parameter)
    assert result.objective == pytest.approx(again.objective, rel=0.01)


def test_a_job_whose_workers_all_fail_says_so(tmp_path: Path) -> None:
    result = flegel.run(LR(), **options(tmp_path, processes=False, gate="1.01"))
    assert result.outcome == "excluded" and "no worker passes its gate: its score" in result.reason
    assert result.reason.endswith("use a smaller gate=, or other rows for gate_data=")


def test_the_command_line_fails_where_no_worker_passes(tmp_path: Path) -> None:
    given = options(tmp_path)
    words = ["submit", "lr", "--data", given["data"], "--label", "y", "--workers", "2", "--sync", "bsp", "--no-save"]
    words += ["--gate", "1.01", "--gate-data", given["gate_data"], "--gate-failures", "2"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 3 and done.output.count("no worker passes its gate") == 1, done.output
    assert "use a smaller --gate, or other rows for --gate-data" in done.output


def test_rows_of_the_gate_have_the_columns_of_the_training_data(tmp_path: Path) -> None:
    given = options(tmp_path, processes=False)
    text = Path(given["gate_data"]).read_text().replace("a,b,c,d,y", "b,a,c,d,y")
    Path(given["gate_data"]).write_text(text)
    with pytest.raises(UsageError, match=r"Column 1 of gate_data=.* is 'b', and of the training data 'a'; give"):
        flegel.run(LR(), **given)


def test_wrong_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(60, 2))
    np.save(tmp_path / "gate.npy", rows)
    given: dict[str, Any] = {"gate": "best", "gate_data": str(tmp_path / "gate.npy")}
    with pytest.raises(UsageError, match="give both"):
        flegel.run(KMeans(k=2), rows, gate="best")
    with pytest.raises(UsageError, match="has none of them, so omit one of both"):
        flegel.run(KMeans(k=2), rows, workers=2, servers=1, **given)
    with pytest.raises(UsageError, match="mixes them"):
        flegel.run(KMeans(k=2), rows, workers=2, balance="async", **given)
    with pytest.raises(UsageError, match="a checkpoint holds none that are withheld"):
        flegel.run(KMeans(k=2), rows, checkpoint=str(tmp_path / "c"), **given)
    with pytest.raises(UsageError, match="worker or group"):
        flegel.run(KMeans(k=2), rows, **given, gate_of="host")


@pytest.mark.processes
def test_a_worker_is_excluded_and_another_killed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The killed one is replaced, and its points count again; those of the excluded one do not."""
    judge, killed = Termination.judge, []

    def end(self: Termination, progress: Any, user_says_stop: bool) -> Verdict | None:
        verdict = judge(self, progress, user_says_stop)
        lost = [i for i in found[-1].membership.incidents if i.kind == "lost"] if found else []
        return verdict if lost and all(i.resumed is not None for i in lost) and progress.exact else None

    monkeypatch.setattr(Termination, "judge", end)
    with LocalCluster(workers=4) as cluster, coordinators() as found:

        def kill(seen: Any) -> None:
            members = found[-1].membership
            if not killed and any(i.kind == "excluded" and i.resumed is not None for i in members.incidents):
                killed.append(1)
                os.kill(cluster.registry.processes[1].pid, signal.SIGKILL)

        result = flegel.run(KMeans(k=4), cluster=cluster, watch=kill, worker_timeout=300.0, **shifted(tmp_path))
    kinds = [(i["kind"], i["worker"]) for i in result.incidents]
    assert kinds == [("excluded", 3), ("lost", 1)]
    machine = found[-1]
    assert machine.view.points == 1500 and machine.store.discrepancy() < 1e-10
    assert float(machine.store.statistics.counts.sum()) == 1500.0


@pytest.mark.processes
@pytest.mark.parametrize("sync", ["bsp", "asp"])
def test_a_worker_is_killed_while_its_reports_are_withheld(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sync: str
) -> None:
    """What was withheld is lost with it and counts nowhere; its replacement visits the same rows, and is excluded."""
    monkeypatch.setattr(job_part, "Timeouts", partial(Timeouts, hire=300.0))  # nobody else takes these rows over
    fold, judge, killed = GatedStore.fold, Termination.judge, []

    def fold_and_kill(self: GatedStore, request: Fold) -> Any:
        found = fold(self, request)
        if 3 in self.failed() and not killed:
            killed.append(cluster.registry.processes[3].pid)  # type: ignore[attr-defined]
            os.kill(killed[0], signal.SIGKILL)
        return found

    def end(self: Termination, progress: Any, user_says_stop: bool) -> Verdict | None:
        verdict = judge(self, progress, user_says_stop)
        gone = [i for i in found[-1].membership.incidents if i.kind == "excluded"] if found else []
        return verdict if gone and all(i.resumed is not None for i in gone) and progress.exact else None

    monkeypatch.setattr(GatedStore, "fold", fold_and_kill)
    monkeypatch.setattr(Termination, "judge", end)
    with LocalCluster(workers=4) as cluster, coordinators() as found:
        given = shifted(tmp_path) | {"sync": sync}
        result = flegel.run(KMeans(k=4), cluster=cluster, watch=lambda seen: None, worker_timeout=300.0, **given)
    kinds = [(i["kind"], i["worker"]) for i in result.incidents]
    assert kinds == [("lost", 3), ("excluded", 3)]
    machine = found[-1]
    assert machine.view.points == 1500 and machine.store.discrepancy() < 1e-10
    assert float(machine.store.statistics.counts.sum()) == 1500.0
