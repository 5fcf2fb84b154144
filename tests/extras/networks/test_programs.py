"""Programs of algorithms for GPUs give the statistics of the hooks; here on torch's processor device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

torch = needs.library("torch")

from flegel import run
from flegel.algorithm import Sample
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.gmm.torch_program import MixtureProgram
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.kmeans.triton_kernel import Tile, tile_for
from flegel.algorithms.lr import LR
from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.shard import make_shard
from flegel.core.stop_flag import new_flag
from flegel.errors import UsageError
from flegel.machine.audit.recount import Recount
from flegel.machine.worker.point_store import PointStore
from flegel.runtime.backends.conformance import check_backend
from flegel.runtime.backends.registry import choose
from flegel.runtime.backends.torch.devices import torch_device
from flegel.runtime.backends.torch.streaming import writeable_view

RNG = np.random.default_rng(0)
WHICH = RNG.integers(3, size=700)
ROWS = RNG.normal(size=(700, 5)) + 3.0 * np.eye(3, 5)[WHICH]
CASES = [
    (KMeans(k=4, init="random"), None),
    (GMM(k=3, init="random"), None),
    (GMM(k=3, init="random", covariance="full"), None),
    (LR(classes=[0.0, 1.0]), WHICH % 2),
    (LR(classes=[0.0, 1.0, 2.0]), WHICH),
    (LR(classes=[0.0, 1.0, 2.0], memory=False), WHICH),
]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
@pytest.mark.parametrize(("algorithm", "labels"), CASES, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("device", ["torch:cpu", "cuda:0"])
def test_statistics_are_those_of_the_hooks(device: str, algorithm: Any, labels: Any, kind: Any) -> None:
    if device != "torch:cpu" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    rows = np.ascontiguousarray(ROWS, dtype=kind)
    answers = None if labels is None else labels.astype(np.float64)
    check_backend(choose(device), algorithm, rows, answers, close=1e-5)


@pytest.mark.parametrize("far", [0.0, 50.0])
def test_wide_rows_on_a_gpu_move_in_one_kernel(far: float) -> None:
    if not torch.cuda.is_available():
        pytest.skip("no GPU here")
    rows = (np.random.default_rng(4).normal(size=(3000, 80)) + far).astype(np.float32)
    check_backend(choose("cuda:0"), KMeans(k=64, init="random"), rows, close=1e-5)


def test_rows_that_are_read_only_go_to_a_device_without_a_copy() -> None:
    """A copy of each part takes ten times its transfer."""
    rows = np.arange(12.0).reshape(4, 3)
    rows.flags.writeable = False
    tensor = torch.from_numpy(writeable_view(rows))
    assert tensor.data_ptr() == rows.ctypes.data
    assert np.array_equal(tensor.numpy(), rows)
    assert torch.from_numpy(writeable_view(rows[:0])).shape == (0, 3)


def test_far_away_rows_keep_their_clusters() -> None:
    check_backend(choose("torch:cpu"), KMeans(k=4, init="random"), (ROWS + 1000.0).astype(np.float32), close=1e-5)


@pytest.mark.parametrize(("scatter", "by_products"), [(1.0, True), (1e-5, False)])
def test_narrow_components_are_measured_by_differences(scatter: float, by_products: bool) -> None:
    """Products lose the digits of a distance where a mean lies many deviations of its component from the origin."""
    rows = scatter * RNG.normal(size=(600, 4)) + 3.0 * np.eye(3, 4)[np.arange(600) % 3]
    algorithm = GMM(k=3, init="random")
    sample = Sample(rows, None, len(rows), 4)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    narrow = theta._replace(whiten=theta.whiten / scatter)
    program = MixtureProgram(algorithm, torch.device("cpu"))
    program.set_parameter(narrow)
    assert program._by_products == by_products
    y = (torch.from_numpy(rows) - program._origin) / program._unit
    expected = program._level - 0.5 * program._distances(y)
    found = program._log_densities(y, y * y)
    assert torch.allclose(found, expected, rtol=1e-9, atol=1e-8)


@pytest.mark.processes
def test_a_job_with_torch_beside_processors_gives_the_same_model() -> None:
    """Under bsp the mixed workers make the same statistics, so the same centroids to rounding; under fsp points move
    between them."""
    settings: dict[str, Any] = {"workers": 2, "seed": 3, "max_iterations": 6}
    alone = run(KMeans(k=4), ROWS, sync="bsp", **settings)
    mixed = run(KMeans(k=4), ROWS, sync="bsp", device="0=torch:cpu", **settings)
    np.testing.assert_allclose(mixed.parameter.centroids, alone.parameter.centroids, rtol=1e-5, atol=1e-6)
    flexible = run(
        KMeans(k=4),
        np.tile(ROWS, (8, 1)),
        sync="fsp",
        device="1=torch:cpu",
        workers=2,
        straggler="0:8x",
    )
    assert flexible.outcome == "converged"
    assert sum(worker["points"] for worker in flexible.worker) == 8 * len(ROWS)
    value = flexible.algorithm.evaluate(np.tile(ROWS, (8, 1)), None, flexible.parameter).objective
    assert flexible.objective == pytest.approx(value, rel=1e-3)


def test_points_that_were_trained_keep_their_states_when_others_arrive() -> None:
    """Tiles in the middle are trained first; those around them are brought later."""
    algorithm = KMeans(k=4, init="random")
    sample = Sample(ROWS, None, len(ROWS), 5)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    empty = algorithm.initAggregator(sample, theta)
    shard = make_shard(ROWS, None, algorithm.initState(len(ROWS), 5, RNG), "tiles")
    kernel = choose("torch:cpu").build(algorithm, shard, theta, empty, False)
    kernel.run(shard, 128, 256, 0, new_flag())
    kernel.run(shard, 0, len(ROWS), 0, new_flag())
    assert kernel.statistics()[1].sum() == len(ROWS)


@pytest.mark.parametrize("layout", ["tiles", "rows"])
@pytest.mark.parametrize("staying", [0, 192])
@pytest.mark.parametrize("device", ["torch:cpu", "cuda:0"])
def test_rows_that_do_not_fit_come_anew_in_each_pass(
    device: str, staying: int, layout: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics and states are those of a shard that fits, also when a pass is cut anywhere."""
    if device != "torch:cpu" and not torch.cuda.is_available():
        pytest.skip("no GPU here")
    algorithm, sample = KMeans(k=4, init="random"), Sample(ROWS, None, len(ROWS), 5)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    empty = algorithm.initAggregator(sample, theta)
    shards = [make_shard(ROWS, None, algorithm.initState(len(ROWS), 5, RNG), layout) for _ in range(2)]
    whole = choose(device).build(algorithm, shards[0], theta, empty, False)
    monkeypatch.setattr("flegel.runtime.backends.torch.kernel.TorchKernel.rows_that_fit", lambda *_: staying)
    with using({"gpu.streamed_bytes": 128 * 5 * 8}):
        part = choose(device).build(algorithm, shards[1], theta, empty, False)
    for kernel, shard in ((whole, shards[0]), (part, shards[1])):
        for start, end in ((0, 100), (100, 333), (333, 700), (0, 700)):
            assert kernel.run(shard, start, end, 0, new_flag()) == end
        kernel.fetch_states([shard])
    for one, other in zip(whole.statistics(), part.statistics(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-9)
    assert np.array_equal(shards[0].state_rows(), shards[1].state_rows())
    stopped = new_flag()
    stopped[0] = 1
    assert part.run(shards[1], 10, 700, 0, stopped) == 10
    part.close()


@pytest.mark.parametrize(("algorithm", "labels"), [CASES[0], CASES[1], CASES[3]], ids=lambda v: type(v).__name__)
def test_points_are_counted_again_as_on_processors(algorithm: Any, labels: Any) -> None:
    """States stay on the device between the visits of a recount, and nothing of the copies is left there."""
    answers = None if labels is None else labels.astype(np.float64)
    sample = Sample(ROWS, answers, len(ROWS), 5)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    empty = algorithm.initAggregator(sample, theta)

    def fresh(points: int) -> Any:
        return algorithm.initState(points, 5, np.random.default_rng(1))

    shard = make_shard(ROWS, algorithm.accepts.kept_labels(answers), fresh(len(ROWS)), algorithm.kernels.layout)
    store = PointStore(shard)
    counts = []
    for device in ("torch:cpu", "cpu"):
        kernel = choose(device).build(algorithm, shard, theta, empty, False)
        kernel.run(shard, 0, len(ROWS), 0, new_flag())
        after = algorithm.updateParameter(pytree.present(pytree.unflatten(empty, kernel.statistics())), theta)
        recount = Recount(algorithm, kernel, theta, empty, fresh)
        there = len(getattr(kernel, "_shards", ()))
        assert recount.visit_error(store, pytree.flatten(pytree.as_doubles(after)), 128, 1) == 0.0
        counts.append(recount.whole(store, pytree.flatten(pytree.as_doubles(after))))
        assert len(getattr(kernel, "_shards", ())) == there
        shard = make_shard(ROWS, algorithm.accepts.kept_labels(answers), fresh(len(ROWS)), algorithm.kernels.layout)
        store = PointStore(shard)
    for one, other in zip(*counts, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trained", [128, 700])
def test_states_come_back_in_tiles(trained: int) -> None:
    algorithm = KMeans(k=4, init="random")
    sample = Sample(ROWS, None, len(ROWS), 5)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    empty = algorithm.initAggregator(sample, theta)
    shards = [make_shard(ROWS, None, algorithm.initState(len(ROWS), 5, RNG), "tiles") for _ in range(2)]
    for device, shard in zip(("torch:cpu", "cpu"), shards, strict=True):
        kernel = choose(device).build(algorithm, shard, theta, empty, False)
        kernel.run(shard, 0, trained, 0, new_flag())
        kernel.fetch_states([shard])
    assert np.array_equal(shards[0].state_rows(), shards[1].state_rows())


@pytest.mark.parametrize("layout", ["tiles", "rows"])
def test_states_of_some_points_come_back_alone(layout: str) -> None:
    algorithm, points = KMeans(k=3), np.random.default_rng(0).normal(size=(300, 4)).astype(np.float32)
    sample = Sample(points, None, len(points), 4)
    theta = pytree.as_doubles(algorithm.initParameter(sample, np.random.default_rng(0)))
    empty = pytree.zeros_like(algorithm.initAggregator(sample, theta))
    state = algorithm.initState(len(points), 4, np.random.default_rng(0))
    shard = make_shard(points, None, state, layout)
    before = shard.state_rows().copy()
    kernel = choose("torch:cpu").build(algorithm, shard, theta, empty, False)
    kernel.run(shard, 0, 200, 0, new_flag())
    kernel.fetch_states([shard], 70, 256)
    some = shard.state_rows().copy()
    kernel.fetch_states([shard])
    whole = shard.state_rows()
    assert np.array_equal(some[70:256], whole[70:256]) and not np.array_equal(whole[70:200], before[70:200])
    assert np.array_equal(some[:70], before[:70])


def test_an_algorithm_without_a_program_is_refused() -> None:
    with pytest.raises(UsageError, match="FCM has no program for cpu"):
        check_backend(choose("torch:cpu"), FCM(k=3, init="random"), ROWS)


def test_points_with_weights_are_refused() -> None:
    with pytest.raises(UsageError, match="without weights"):
        run(KMeans(k=4), (ROWS, None, np.ones(len(ROWS))), device="0=torch:cpu", workers=1, max_iterations=2)


def test_an_audit_uses_the_rows_that_are_on_the_device() -> None:
    algorithm = KMeans(k=4, init="random")
    sample = Sample(ROWS, None, len(ROWS), 5)
    theta = algorithm.initParameter(sample, np.random.default_rng(0))
    empty = algorithm.initAggregator(sample, theta)
    for layout in ("rows", "tiles"):
        shard = make_shard(ROWS, None, algorithm.initState(len(ROWS), 5, RNG), layout)
        kernel = choose("torch:cpu").build(algorithm, shard, theta, empty, False)
        kernel.run(shard, 0, len(ROWS), 0, new_flag())
        part = shard.part(128, 256)
        found = kernel._whole_of(part)
        assert found is not None and found[1] == slice(128, 256)
        np.testing.assert_array_equal(found[0].features[found[1]].numpy(), ROWS[128:256])
        other = make_shard(ROWS[:256].copy(), None, algorithm.initState(256, 5, RNG), layout)
        assert kernel._whole_of(other) is None


def test_tiles_of_distances_have_the_sides_that_the_settings_say() -> None:
    assert tile_for(2000, 768) == Tile(rows=128, centroids=128, columns=32, warps=8, stages=3)
    assert tile_for(64, 768) == Tile(rows=128, centroids=64, columns=32, warps=4, stages=4)
    assert tile_for(2000, 28) == Tile(rows=128, centroids=64, columns=32, warps=8, stages=1)
    with using({"gpu.tile_rows": 100, "gpu.narrow_columns": 16}):
        assert tile_for(2000, 28).rows == 64, "the next lower power of 2"
        assert tile_for(2000, 28).centroids == 128


@pytest.mark.parametrize(
    ("gpus", "sentence"),
    [(1, "has 1 GPU: only cuda:0"), (2, "has 2 GPUs: cuda:0 to cuda:1"), (0, "CUDA is not available")],
)
def test_a_gpu_that_the_host_does_not_have_is_refused(
    gpus: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: gpus > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    with pytest.raises(UsageError, match=sentence):
        torch_device("cuda:2")
    if gpus == 2:
        assert torch_device("cuda:1").index == 1
