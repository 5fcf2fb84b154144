"""Five planted errors of bookkeeping, each found; those that happen once are repaired. Workers are threads here.

The plants change the engine from inside: a change that never reaches the statistics, statistics that drift, a kernel
that does not subtract, a point with two owners, and a worker that trains under an old θ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.datasets import Dataset
from flegel.machine.coordinator.events import Send
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.worker.checksums import checksum, differences
from flegel.messages import Train
from flegel.params.ledger import Ledger
from flegel.params.local import LocalStore
from flegel.results.result import Result
from flegel.runtime.backends.numba.backend import NumbaKernel
from flegel.runtime.processes.thread_cluster import ThreadCluster

ROWS = np.random.default_rng(5).normal(size=(3000, 4)) + np.repeat(np.arange(6.0), 500)[:, None]
Patch = pytest.MonkeyPatch


@pytest.fixture(scope="module")
def cluster() -> Iterator[ThreadCluster]:
    with ThreadCluster(2) as threads:
        yield threads


def train(cluster: ThreadCluster, algorithm: flegel.Algorithm | None = None, **options: object) -> Result:
    chosen = algorithm or KMeans(k=6, init="first")
    return flegel.run(chosen, ROWS, cluster=cluster, max_iterations=400, **{"sync": "bsp", **options})  # type: ignore[arg-type]


def lost_change(patch: Patch) -> None:
    plain, calls = Ledger.commit_all, [0]

    def commit_all(self, owners, changes):  # type: ignore[no-untyped-def]
        calls[0] += 1
        plain(self, owners[:1], changes[:1]) if calls[0] == 3 else plain(self, owners, changes)

    patch.setattr(Ledger, "commit_all", commit_all)


def drifting_field(patch: Patch) -> None:
    plain, calls = LocalStore.fold, [0]

    def fold(self, request):  # type: ignore[no-untyped-def]
        calls[0] += 1
        if calls[0] == 3:
            self.statistics.squares[...] *= 1.001
        return plain(self, request)

    patch.setattr(LocalStore, "fold", fold)


def kernel_that_forgets_to_subtract(patch: Patch) -> None:
    plain = NumbaKernel.run

    def run(self, shard, start, end, iteration, flag):  # type: ignore[no-untyped-def]
        shard.state[...] = -1
        return plain(self, shard, start, end, iteration, flag)

    patch.setattr(NumbaKernel, "run", run)


def point_with_two_owners(patch: Patch) -> None:
    plain = Dataset.owners

    def owners(self, *args):  # type: ignore[no-untyped-def]
        first, second = plain(self, *args)
        return [first, np.concatenate([first[:1], second[1:]])]

    patch.setattr(Dataset, "owners", owners)


def stale_parameter(patch: Patch) -> None:
    plain, old = WorkerOrders.train, []

    def order(self, action, now):  # type: ignore[no-untyped-def]
        plain(self, action, now)
        for at, command in enumerate(self._job.out):
            if isinstance(command, Send) and isinstance(command.body, Train) and command.worker == 1:
                old.append(tuple(a.copy() for a in command.arrays))
                self._job.out[at] = Send(1, command.body, old[0])

    patch.setattr(WorkerOrders, "train", order)


@pytest.mark.parametrize(
    ("plant", "found", "repaired"),
    [
        (lost_change, "not the sum of what workers reported", True),
        (drifting_field, "not the sum of what workers reported", True),
        (kernel_that_forgets_to_subtract, "not new less old contributions", False),
        (point_with_two_owners, "instead of each of the 3000 once", False),
        (stale_parameter, "a pass over all points says", False),
    ],
    ids=lambda case: getattr(case, "__name__", ""),
)
def test_every_planted_error_is_found(
    cluster: ThreadCluster, plant: Callable[[Patch], None], found: str, repaired: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        result = train(cluster)
    assert any(found in problem for problem in result.audit["problems"]), result.audit
    assert result.audit["recounts"] >= 1 and any(i["kind"] == "recount" for i in result.incidents)
    assert any("counted again" in text for text in result.warnings)
    if repaired:
        sound = KMeans(k=6).evaluate(ROWS, None, result.parameter).objective
        assert result.outcome == "converged" and result.objective == pytest.approx(sound, rel=1e-12)
    else:
        assert result.outcome == "unsound" and not result.converged and found in result.reason


@pytest.mark.parametrize("sync", ["bsp", "fsp", "asp"])
def test_the_reported_objective_is_that_of_the_returned_model(cluster: ThreadCluster, sync: str) -> None:
    model = GMM(k=3)
    result = train(cluster, model, sync=sync)
    wanted = model.evaluate(ROWS, None, result.parameter).objective
    assert result.objective == pytest.approx(wanted, rel=1e-9) and result.audit["problems"] == []


def test_an_audit_changes_no_bit_of_training(cluster: ThreadCluster) -> None:
    one, other = (train(cluster, audit=mode) for mode in ("7", "off"))
    assert other.audit == {"mode": "off"} and one.audit["audits"] >= 1
    assert all((a == b).all() for a, b in zip(one.parameter, other.parameter, strict=True))


def test_checksums_of_reports_add_up_to_that_of_their_sum_and_tell_a_small_difference() -> None:
    rng = np.random.default_rng(1)
    reports = [[rng.normal(size=(50, 7)), rng.normal(size=3)] for _ in range(40)]
    total = [np.sum(column, axis=0) for column in zip(*reports, strict=True)]
    sums = sum(checksum(report) for report in reports)
    kinds = [a.dtype for a in total]
    assert (differences(checksum(total), sums, kinds) <= 1.0).all()
    total[0][20, 3] *= 1 + 1e-6
    apart = differences(checksum(total), sums, kinds)
    assert apart[0] > 1.0 >= apart[1]
