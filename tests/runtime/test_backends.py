"""Backends keep one contract: numba, and a second one that keeps shards in memory of its own as a GPU would."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from user_classes import DenseMean

from flegel.algorithm import Algorithm, Sample
from flegel.algorithms.kmeans import KMeans
from flegel.core import pytree
from flegel.core.shard import Shard, make_shard
from flegel.errors import AlgorithmError, UsageError
from flegel.loading.class_source import reference
from flegel.machine.audit.recount import Recount
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.worker import BeginLoad, BeginTrain, ShardReady, TrainerDone
from flegel.messages import LoadShard
from flegel.params.tree_layout import form_of
from flegel.plan.devices import DEVICE_FORMS, parse_devices
from flegel.runtime.backends.conformance import check_backend
from flegel.runtime.backends.protocol import Backend, ShardKernel
from flegel.runtime.backends.registry import BACKENDS, LIBRARIES, choose
from flegel.runtime.worker.row_sources import SharedRows
from flegel.runtime.worker.trainer import Trainer

MICRO_BATCH = 16
ROWS = np.random.default_rng(5).integers(-9, 10, size=(300, 4)) * 1.0


class DeviceKernel:
    """Runs the hooks in pure Python over a copy of each shard; only `fetch_states` and `put_states` copy states."""

    device, kind, note, library, least_points, grid, room = "copy", "interpreted", "", "", 1, 1, 0
    overhead, abandoned = 0.0, 0

    def __init__(self, algorithm: Algorithm, parameter: Any, empty: Any) -> None:
        self._algorithm, self._parameter, self._sums = algorithm, parameter, pytree.copy(empty)
        self._copies: dict[int, tuple[Shard, Shard]] = {}

    def set_parameter(self, arrays: Sequence[Any]) -> None:
        self._parameter = pytree.unflatten(self._parameter, [np.array(a) for a in arrays])

    def clear_statistics(self) -> None:
        pytree.clear(self._sums)

    def add_statistics(self, arrays: Sequence[Any]) -> None:
        pytree.add(self._sums, pytree.unflatten(self._sums, list(arrays)))

    def statistics(self) -> tuple[Any, ...]:
        return tuple(a.copy() for a in pytree.flatten(self._sums))

    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Any) -> int:
        copy = self._copy(shard)
        for first in range(start, end, MICRO_BATCH):
            if flag[0]:
                return first
            for i in range(first, min(first + MICRO_BATCH, end)):
                self._visit(copy, i, iteration)
        shard.halted[start:end] = copy.halted[start:end]
        return end

    def _visit(self, shard: Shard, i: int, iteration: int) -> None:
        from flegel.runtime.backends.numba.interpreted_loop import data_point, fold_change

        if not shard.halted[i]:
            self._algorithm._halting = False
            theta = pytree.present(self._parameter)
            change = self._algorithm.updateDataPoint(data_point(shard, i), theta, iteration)
            fold_change(self._algorithm, self._sums, change)
            shard.halted[i] = self._algorithm._halting

    def _copy(self, shard: Shard) -> Shard:
        if id(shard) not in self._copies:
            made = make_shard(np.array(shard.features), shard.labels.copy(), shard.state.copy(), "rows", shard.ids)
            self._copies[id(shard)] = (shard, made)
        return self._copies[id(shard)][1]

    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        for shard in shards:
            shard.state[...] = self._copy(shard).state

    def put_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        for shard in shards:
            copy = self._copy(shard)
            copy.state[start:end], copy.halted[start:end] = shard.state[start:end], shard.halted[start:end]

    def forget(self, shard: Shard) -> None:
        self._copies.pop(id(shard), None)

    def close(self) -> None:
        self._copies.clear()


class DeviceBackend:
    device = "copy"

    def on(self, device: str) -> Any:
        return self

    def layout(self, algorithm: Algorithm, columns: int, interpret: bool) -> str:
        return "rows"

    def build(self, algorithm: Algorithm, shard: Shard, parameter: Any, empty: Any, interpret: bool) -> ShardKernel:
        return DeviceKernel(algorithm, parameter, empty)


BACKEND = DeviceBackend()


def test_a_recount_keeps_states_that_live_on_a_device() -> None:
    """A second visit that reads states from the host again counts a point twice: GPUs were called unsound."""
    algorithm, rng = KMeans(k=3, init="first"), np.random.default_rng(0)
    sample = Sample(ROWS, None, len(ROWS), ROWS.shape[1])
    theta = algorithm.initParameter(sample, rng)
    empty = algorithm.initAggregator(sample, theta)
    kernel = DeviceKernel(algorithm, theta, empty)
    store = PointStore(make_shard(ROWS, None, algorithm.initState(300, 4, rng), "rows"), owned=True)
    recount = Recount(algorithm, kernel, theta, empty, lambda points: algorithm.initState(points, 4, rng))
    other = pytree.flatten(theta._replace(centroids=theta.centroids[::-1] + 2.0))
    assert recount.visit_error(store, other, 128, 1) == 0.0
    assert recount.whole(store, other)[1].sum() == 300.0
    assert not kernel._copies, "copies of points that were counted again are freed"


@pytest.fixture
def devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(BACKENDS, "copy", __name__)


@pytest.mark.parametrize("algorithm", [KMeans(k=3, init="random"), DenseMean()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("device", ["cpu", "copy"])
@pytest.mark.usefixtures("devices")
def test_backends_keep_the_contract(device: str, algorithm: Algorithm) -> None:
    kernel = check_backend(choose(device), algorithm, ROWS)
    assert kernel.device == device


class Forgetful(DeviceKernel):
    def add_statistics(self, arrays: Sequence[Any]) -> None:
        """Changes of a resumed job are lost."""


class Deaf(DeviceKernel):
    def run(self, shard: Shard, start: int, end: int, iteration: int, flag: Any) -> int:
        return super().run(shard, start, end, iteration, np.zeros(1, np.uint8))


class Stale(DeviceKernel):
    def fetch_states(self, shards: Sequence[Shard], start: int = 0, end: int | None = None) -> None:
        """States stay on the device."""


@pytest.mark.parametrize(
    ("broken", "complaint"),
    [(Forgetful, "statistics"), (Deaf, "although the flag was up"), (Stale, "states differ")],
)
def test_a_backend_that_breaks_the_contract_is_found(broken: type[DeviceKernel], complaint: str) -> None:
    class Broken(DeviceBackend):
        def build(self, algorithm: Algorithm, shard: Shard, parameter: Any, empty: Any, interpret: bool) -> ShardKernel:
            return broken(algorithm, parameter, empty)

    backend: Backend = Broken()
    with pytest.raises(AlgorithmError, match=complaint):
        check_backend(backend, DenseMean(), ROWS)


def test_an_unknown_device_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="No backend for the device 'abacus'; there are cpu"):
        choose("abacus")


def _trained(device: str) -> tuple[list[Any], list[Any]]:
    """Statistics and states after two rounds in a trainer thread."""
    algorithm = DenseMean()
    rows = SharedRows(ROWS, None, [np.arange(len(ROWS))])
    theta = pytree.as_doubles(algorithm.initParameter(type("S", (), {"columns": 4}), np.random.default_rng(0)))
    empty = pytree.zeros_like(theta)
    load = LoadShard(reference(algorithm), rows.describe(), 0, 1, 0, form_of(theta), form_of(empty), device=device)
    trainer = Trainer()
    states: list[Any] = []
    try:
        arrays = (*pytree.flatten(theta), *pytree.flatten(empty))
        trainer.order(BeginLoad(load, arrays))
        assert isinstance(trainer.results.get(timeout=600), ShardReady)
        store = trainer.store
        assert store is not None
        for round_ in range(2):
            trainer.order(BeginTrain(round_, len(ROWS), tuple(pytree.flatten(theta))))
            done = trainer.results.get(timeout=600)
            assert isinstance(done, TrainerDone) and done.visits == len(ROWS)
        found = [a.copy() for a in trainer.statistics()]
        trainer.at_rest(store, lambda held: states.extend(a.copy() for a in held.collect()))
    finally:
        trainer.quit()
        rows.close()
    return found, states


@pytest.mark.usefixtures("devices")
def test_the_trainer_knows_only_the_protocol() -> None:
    """The same statistics and states on a device whose memory is not that of the host."""
    for mine, other in zip(_trained("copy"), _trained("cpu"), strict=True):
        assert len(mine) == len(other) == 2
        for a, b in zip(mine, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_every_kind_of_device_can_be_asked_for_and_has_a_backend() -> None:
    assert set(DEVICE_FORMS) == set(BACKENDS) and set(LIBRARIES) <= set(BACKENDS)
    assert parse_devices("0=cpu,1=torch:cpu,2=cuda:1", 0, 3) == {0: "cpu", 1: "torch:cpu", 2: "cuda:1"}
