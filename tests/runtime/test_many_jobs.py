"""Many jobs of teams in one process, of shapes that are drawn anew at each run, leave nothing behind."""

from __future__ import annotations

import gc
import os
import random
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from waiting import until

import flegel
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF

JOBS = 12
MORE_OBJECTS = 400
"""Of Python, that a second round of the same jobs may have made: entries of bounded caches. A job makes thousands."""


def own_class() -> type[flegel.Algorithm]:
    """The class of an example, which is the user's: its team trains in a process."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "docs" / "examples"))
    try:
        from means import Means
    finally:
        sys.path.pop(0)
    return Means


def drawn(seed: int) -> list[Any]:
    """Jobs of all algorithms, with rows, columns, threads and models drawn by this seed."""
    draw, jobs = random.Random(seed), list[Any]()
    for number in range(JOBS):
        rows, columns = draw.randint(50, 20_000), draw.choice([3, 5])
        X = np.abs(np.random.default_rng(draw.randint(0, 99)).normal(size=(rows, columns)))
        k, labels = draw.choice([2, 4]), (X[:, 0] > 0.7).astype(int)
        models = [KMeans(k=k), GMM(k=k), FCM(k=k), LR(), NMF(rank=2, solver="coordinate"), own_class()(k=3)]
        options = {
            "threads": draw.choice([1, 2, 3]),
            "sync": draw.choice(["bsp", "fsp"]),
            "max_iterations": draw.randint(1, 5),
        }
        model = models[number % len(models)]
        jobs.append((model, (X, labels) if isinstance(model, LR) else (X,), options))
    return jobs


def belongings() -> dict[str, Any]:
    """What the system keeps for this process, all but memory."""
    me = psutil.Process()
    maps = Path("/proc/self/maps")
    return {
        "threads": sorted(thread.name for thread in threading.enumerate()),
        "descriptors": me.num_fds(),
        "processes": len(me.children(recursive=True)),
        "shared memory": sum("flegel" in line for line in maps.read_text().splitlines()) if maps.exists() else 0,
        "temporary files": sorted(path.name for path in Path(tempfile.gettempdir()).iterdir()),
    }


@pytest.mark.processes
@pytest.mark.slow  # some kernels are compiled
def test_many_jobs_in_a_process_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    seed = int.from_bytes(os.urandom(4), "big")
    jobs = drawn(seed)

    def one_round() -> int:
        for model, data, options in jobs:
            flegel.run(model, *data, **options)
        gc.collect()
        return len(gc.get_objects())

    one_round()
    assert until(lambda: not any(t.name.startswith("team-") for t in threading.enumerate()))
    before, objects = belongings(), one_round()
    again = one_round()
    assert again < objects + MORE_OBJECTS, f"seed {seed}"
    assert until(lambda: belongings() == before), f"seed {seed}: {before} has become {belongings()}"
    flegel.shutdown()
    assert until(lambda: not psutil.Process().children(recursive=True)), f"seed {seed}"
