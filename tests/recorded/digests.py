"""Digests of what the engine computes: bits of trained parameters, numbers of simulated jobs. Reads no record.

Bits of trained parameters depend on the processor's vectors and on the versions of numpy and numba, so they are kept
by processor. Numbers of simulated jobs are rounded before they are hashed and are the same on every machine.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator
from typing import Any

import llvmlite
import llvmlite.binding
import numba
import numpy as np
from engine_access import Numbers, comparison, fault_job

import flegel
from flegel.algorithms.fcm import FCM
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.lr import LR
from flegel.algorithms.nmf import NMF

WORKERS = (1, 3)
SEED, ITERATIONS = 7, 6
TRAINED: dict[str, tuple[Any, str]] = {
    "kmeans": (lambda: KMeans(k=24, init="random"), "blobs:3000"),
    "gmm": (lambda: GMM(k=6, init="random"), "blobs:3000"),
    "fcm": (lambda: FCM(k=6, init="random"), "blobs:3000"),
    "lr": (lambda: LR(l2=0.01), "blobs:3000"),
    "nmf": (lambda: NMF(rank=8), "ratings:20000"),
}
"""By name: how to make the algorithm, and its data."""
FAULTS = {"anything": 200, "losing": 50}
"""Seeds of each kind of scenario."""
DIGITS = 9
"""A value is hashed to 9 significant digits, below 1 to 9 decimals: rounding errors differ between processors near
the 16th digit, and a difference of two times has lost as many digits as it is smaller than they."""


def processor() -> str:
    return str(llvmlite.binding.get_host_cpu_name())


def made_with() -> dict[str, str]:
    """What besides the processor's name may change bits."""
    features = llvmlite.binding.get_host_cpu_features().flatten()
    return {
        "numpy": np.__version__,
        "numba": numba.__version__,
        "llvmlite": llvmlite.__version__,
        "features": hashlib.sha256(features.encode()).hexdigest()[:12],
    }


def trained(name: str, workers: int, cluster: flegel.LocalCluster) -> dict[str, str]:
    """Of a job under bsp: sha256 of each array of θ, repr of the objective, sha256 of all objectives on the way."""
    make, data = TRAINED[name]
    result = flegel.run(
        make(),
        data,
        workers=workers,
        sync="bsp",
        seed=SEED,
        max_iterations=ITERATIONS,
        tolerance=0,
        cluster=cluster,
        audit="off",
    )
    assert result.iterations == ITERATIONS
    found = {
        field: hashlib.sha256(f"{a.dtype.str} {a.shape} ".encode() + a.tobytes()).hexdigest()
        for field, a in {**result.internals, **result.parameters}.items()
    }
    course = [objective for _, _, objective, _ in result.to_json()["trace"]]
    return {**found, "objective": repr(result.objective), "course": hashlib.sha256(repr(course).encode()).hexdigest()}


def simulated_faults(kind: str, seed: int) -> dict[str, str]:
    return _digests(fault_job(kind, seed))


def simulated_comparison(name: str) -> dict[str, str]:
    return _digests(comparison(name))


def _digests(parts: Numbers) -> dict[str, str]:
    return {name: hashlib.sha256(" ".join(_words(part)).encode()).hexdigest()[:12] for name, part in parts.items()}


def _words(value: Any) -> Iterator[str]:
    """Numbers in a form that no rounding error changes; the shape of what holds them counts too."""
    if isinstance(value, list | tuple):
        yield "("
        for inner in value:
            yield from _words(inner)
        yield ")"
    elif value is None or isinstance(value, bool):
        yield str(value)
    elif isinstance(value, int | np.integer):
        yield str(int(value))
    else:
        yield rounded(float(value))


def rounded(value: float) -> str:
    if not math.isfinite(value):
        return str(value)
    return f"{value:.{DIGITS}g}" if abs(value) >= 1 else f"{round(value, DIGITS) + 0.0:.{DIGITS}f}"
