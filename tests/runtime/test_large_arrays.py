"""Arrays as hyper-parameters: they travel as arrays, however large, by every way that a job has."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel import Algorithm, LocalCluster
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.cli.main import app
from flegel.errors import DecodeError
from flegel.job import AlgorithmRef
from flegel.loading.class_source import reference
from flegel.messages import LoadShard, TreeLayout
from flegel.runtime.transport.codec import MAX_HEADER_BYTES, PackedArrays, Sequencer, decode

sys.path.append(str(Path(__file__).parents[1] / "cluster"))
from daemon_cluster import DaemonCluster

K, COLUMNS = 300, 600  # 1.4 MB as float64, above the limit of a header
ROWS = np.random.default_rng(0).normal(size=(K + 60, COLUMNS)).astype(np.float32)
INIT = ROWS[:K]


class Weighted(Algorithm):
    """A user's class whose visits read a large array."""

    table: np.ndarray[Any, Any] = np.zeros((1, 1))

    def initParameter(self, sample, rng):
        return np.zeros(sample.columns)

    def initState(self, points, columns, rng):
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        weight = self.table[0, 0] + self.table[-1, -1]
        change = dataPoint.features * (weight - dataPoint.state[0])
        dataPoint.state[0] = weight
        return change

    def updateParameter(self, aggregator, oldParameter):
        return aggregator.copy()


def load(**hyper: Any) -> LoadShard:
    form = TreeLayout("array", ())
    return LoadShard(AlgorithmRef("x", hyper), {}, 0, 1, 0, form, form)


def test_arrays_inside_a_message_are_frames_behind_the_others() -> None:
    first, second = np.arange(600_000.0).reshape(600, 1000), np.arange(7, dtype=np.float32)
    for behind in ((), (np.ones(3),), (np.ones(100_000), np.ones(2))):
        frames = Sequencer("job", 0, 0, 0).wrap(load(k=3, first=first, second=second), PackedArrays(behind))
        assert len(bytes(frames[0])) < MAX_HEADER_BYTES
        envelope, arrays = decode([bytes(f) for f in frames])
        assert isinstance(envelope.body, LoadShard)
        hyper = envelope.body.algorithm.hyper
        assert hyper["k"] == 3 and np.array_equal(hyper["first"], first) and np.array_equal(hyper["second"], second)
        assert hyper["second"].dtype == np.float32 and hyper["first"].flags.writeable
        assert [a.tolist() for a in arrays] == [b.tolist() for b in behind]


def test_an_array_that_was_announced_and_did_not_come_is_refused() -> None:
    frames = [bytes(f) for f in Sequencer("job", 0, 0, 0).wrap(load(first=np.ones(9), second=np.ones(9)))]
    for damaged in (frames[:-1], frames[:1], [*frames[:-1], frames[-1][:-8]], [*frames, b"12345678"]):
        with pytest.raises(DecodeError):
            decode(damaged)


@pytest.mark.parametrize("algorithm", [KMeans(k=K, init=INIT), GMM(k=K, init=INIT), FCM(k=K, init=INIT)])
def test_workers_do_not_get_what_only_the_start_needs(algorithm: Algorithm) -> None:
    assert "init" not in reference(algorithm).hyper
    assert np.array_equal(reference(algorithm, whole=True).hyper["init"], INIT)
    small = type(algorithm)(k=2, init="random")
    assert reference(small).hyper["init"] == "random"


@pytest.mark.processes
def test_a_large_start_trains_is_kept_resumed_and_saved(cluster: LocalCluster, tmp_path: Path) -> None:
    own = KMeans(k=K, init=INIT)
    how = {"workers": 2, "cluster": cluster, "sync": "bsp", "tolerance": 0}
    first = flegel.run(own, ROWS, max_iterations=2, checkpoint=str(tmp_path / "kept"), out=tmp_path / "model", **how)
    again = flegel.run(KMeans(k=K, init=INIT.tolist()), ROWS, max_iterations=4, **how)
    resumed = flegel.resume(tmp_path / "kept", algorithm=own, data=ROWS, max_iterations=4, cluster=cluster)
    assert np.array_equal(resumed.parameters["centroids"], again.parameters["centroids"])
    assert (tmp_path / "model" / "model.json").stat().st_size < 10_000
    said = json.loads((tmp_path / "model" / "result.json").read_text())["hyperparameters"]["init"]
    assert said.startswith(f"array of {K} × {COLUMNS}, sha256 ")
    assert np.array_equal(flegel.load(tmp_path / "model").predict(ROWS), first.labels)
    with pytest.raises(flegel.UsageError, match="init is 'array of"):
        flegel.resume(tmp_path / "kept", algorithm=KMeans(k=K, init=INIT + 1), data=ROWS, max_iterations=5)


@pytest.mark.processes
def test_a_user_s_class_reads_a_large_array_on_workers(cluster: LocalCluster) -> None:
    table = np.full((500, 500), 2.0)
    result = flegel.run(Weighted(table=table), ROWS, workers=2, cluster=cluster, sync="bsp", max_iterations=1)
    assert np.allclose(result.parameter, 4.0 * ROWS.sum(axis=0, dtype=np.float64), atol=1e-2)


@pytest.mark.processes
def test_a_large_start_by_a_command_and_on_a_cluster(tmp_path: Path) -> None:
    np.save(tmp_path / "init.npy", INIT)
    np.save(tmp_path / "rows.npy", ROWS)
    words = f"submit kmeans --data rows.npy --set k={K} --set init=init.npy --max-iterations 1 --workers 2 --out"
    with contextlib.chdir(tmp_path):
        done = CliRunner().invoke(app, [*words.split(), "here"])
    assert done.exit_code == 0, done.output
    with DaemonCluster(tmp_path, slaves=1) as daemons:
        with contextlib.chdir(tmp_path):
            done = CliRunner().invoke(app, [*words.split(), "there"], env=daemons.environment)
        assert done.exit_code == 0, done.output + daemons.logs()
        with pytest.MonkeyPatch.context() as patch:
            for name, value in daemons.environment.items():
                patch.setenv(name, value)
            with flegel.connect(daemons.address) as cluster:
                result = cluster.run(KMeans(k=K, init=INIT), ROWS, workers=2, max_iterations=1)
    assert result.parameters["centroids"].shape == (K, COLUMNS)


@pytest.mark.processes
def test_a_large_start_of_an_estimator(cluster: LocalCluster) -> None:
    from flegel.sklearn import KMeans as Estimator

    model = Estimator(n_clusters=K, init=INIT, n_init=1, max_iter=2).fit(ROWS)
    assert model.cluster_centers_.shape == (K, COLUMNS)
