"""What goes wrong in a user's hook or in a worker process reaches the user by name, and leaves nothing behind."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path
from typing import Any

import broken_hooks as broken
import numpy as np
import psutil
import pytest

import flegel
from flegel import AlgorithmError, LocalCluster
from flegel.algorithms.kmeans import KMeans
from flegel.errors import FlegelError, WorkerLost

pytestmark = pytest.mark.processes

ROWS = np.random.default_rng(0).normal(size=(1000, 3))
ROWS[700, 0] = 5000.0  # beyond the rows of the trial run before training


def run(algorithm: flegel.Algorithm, **more: Any) -> flegel.Result:
    options: dict[str, Any] = {"workers": 2, "sync": "bsp", "max_iterations": 5, **more}
    return flegel.run(algorithm, ROWS, **options)


ON_THE_COORDINATOR, ON_A_WORKER, BEFORE = r"coordinator, round 0", r"worker [01], round 0", "before training"
HOOKS = [
    (broken.InInitParameter, "initParameter", BEFORE),
    (broken.InInitState, "initState", BEFORE),
    (broken.InInitStateOfALargeShare, "initState", "worker [01]"),
    (broken.InInitAggregator, "initAggregator", BEFORE),
    (broken.InUpdateDataPoint, "updateDataPoint", ON_A_WORKER),
    (broken.InAggregate, "updateDataPoint|aggregate", ON_A_WORKER),
    (broken.InUpdateParameter, "updateParameter", ON_THE_COORDINATOR),
    (broken.InTerminationCheck, "terminationCheck", "coordinator, round 1"),
    (broken.InObjective, "objective", ON_THE_COORDINATOR),
]


@pytest.mark.parametrize(("cls", "hook", "place"), HOOKS, ids=lambda x: getattr(x, "__name__", None))
def test_an_exception_in_a_hook_is_the_users_own_traceback(
    cluster: LocalCluster, cls: type[flegel.Algorithm], hook: str, place: str
) -> None:
    with pytest.raises(AlgorithmError, match=rf"({hook}) raised ValueError: BOOM \({place}\)") as caught:
        run(cls(), cluster=cluster)
    trace = caught.value.trace
    assert re.search(rf'{re.escape(broken.__file__)}", line \d+, in \w+\n +raise ValueError\("BOOM"\)', trace), trace
    assert f"{os.sep}flegel{os.sep}runtime" not in trace, "no line of the engine"


def test_an_exception_in_interpreted_code_looks_the_same(cluster: LocalCluster) -> None:
    with (
        pytest.warns(flegel.FlegelWarning, match="runs interpreted"),
        pytest.raises(
            AlgorithmError, match=r"updateDataPoint raised ValueError: BOOM \(worker [01], round 0\)"
        ) as caught,
    ):
        run(broken.InInterpretedUpdateDataPoint(), cluster=cluster)
    assert 'raise ValueError("BOOM")' in caught.value.trace


@pytest.mark.parametrize(
    "cls", [broken.StateOfText, broken.StateOfTooFewRows, broken.StateWithoutColumns], ids=lambda c: c.__name__
)
def test_a_state_that_is_no_table_of_numbers_is_refused(cluster: LocalCluster, cls: type[flegel.Algorithm]) -> None:
    with pytest.raises(FlegelError, match=r"initState must return .*\(points, size\)"):
        run(cls(), cluster=cluster, collect_state=True)


def test_one_warning_for_a_class_that_runs_interpreted(cluster: LocalCluster) -> None:
    import user_classes as users

    with pytest.warns(flegel.FlegelWarning) as caught:
        odd = run(users.Uncompilable(), cluster=cluster)
    assert len([w for w in caught if issubclass(w.category, flegel.FlegelWarning)]) == 1
    assert odd.kernel == "interpreted"
    plain = run(users.DenseMean(), cluster=cluster)
    assert plain.kernel == "compiled"
    np.testing.assert_allclose(odd.parameters["sums"], plain.parameters["sums"], rtol=1e-12)


def test_the_cluster_is_as_good_as_new_after_all_this(cluster: LocalCluster) -> None:
    for cls in (broken.InUpdateDataPoint, broken.InAggregate):
        with pytest.raises(AlgorithmError):
            run(cls(), cluster=cluster)
        assert run(broken.Sound(), cluster=cluster).iterations == 5


# -- processes ---------------------------------------------------------------------------------------------


def belongings() -> tuple[set[int], set[Any], int]:
    """Children, listening ports and shared memory of this process."""
    me = psutil.Process()
    ports = {c.laddr for c in me.net_connections() if c.status == psutil.CONN_LISTEN}
    maps = Path("/proc/self/maps")
    shared = sum("memfd:flegel" in line for line in maps.read_text().splitlines()) if maps.exists() else 0
    return {child.pid for child in me.children(recursive=True)}, ports, shared


def test_a_job_whose_workers_are_all_killed_names_the_last_one_and_nothing_is_left() -> None:
    before = belongings()

    def kill(machine: Any) -> None:
        if machine.iteration > 3:
            for pid in belongings()[0] - before[0]:
                os.kill(pid, signal.SIGKILL)

    with pytest.raises(WorkerLost, match=r"Worker [01] was killed by SIGKILL in round \d+, and no worker is left"):
        flegel.run(
            KMeans(k=3, init="first"), ROWS, workers=2, sync="bsp", tolerance=0, max_seconds=600, watch=kill,
            replace=False, processes="yes",
        )  # fmt: skip
    after = belongings()
    assert after[0] <= before[0] and after[1:] == before[1:], "waiting workers of an earlier job may be gone too"


def test_a_cluster_replaces_a_worker_that_died() -> None:
    before = belongings()
    with LocalCluster(workers=2) as cluster:
        assert run(KMeans(k=3, init="first"), cluster=cluster, max_iterations=2).iterations == 2
        victim = psutil.Process(max(belongings()[0] - before[0]))
        victim.kill()
        psutil.wait_procs([victim], timeout=600)
        again = run(KMeans(k=3, init="first"), cluster=cluster, max_iterations=2)
        assert again.iterations == 2
    assert belongings() == before


def test_a_run_leaves_nothing_behind_even_when_the_caller_breaks_it_off() -> None:
    before = belongings()

    class Enough(Exception):
        pass

    def stop(machine: Any) -> None:
        raise Enough

    with pytest.raises(Enough):
        run(KMeans(k=3, init="first"), tolerance=0, max_iterations=None, max_seconds=600, watch=stop)
    assert belongings() == before
