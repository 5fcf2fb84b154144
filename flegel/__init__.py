"""Flegel: distributed machine learning on unequal machines, by flexible synchronous parallelism.

    import flegel
    from flegel.algorithms.kmeans import KMeans

    result = flegel.run(KMeans(k=10), X, workers=4, sync="fsp")

Names are imported when they are first used, so that `import flegel` is quick.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

__version__ = "0.2.0"

_HERE = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib takes 10 ms to import
if not os.path.isdir(os.path.join(_HERE, "algorithms")):  # noqa: PTH112, PTH118
    # A checkout: flegel.algorithms and flegel.datasets are the folders beside this one. Whoever is in the checkout
    # imports this folder, also where the package is installed elsewhere.
    __path__.append(os.path.dirname(_HERE))  # noqa: PTH120

_HOMES = {
    "Algorithm": "flegel.algorithm",
    "Accepts": "flegel.declarations.accepts",
    "HiddenState": "flegel.declarations.hidden_state",
    "HyperNames": "flegel.declarations.hyper_names",
    "Kernels": "flegel.declarations.kernels",
    "Learning": "flegel.declarations.learning",
    "ParameterPlacement": "flegel.declarations.placement",
    "ReportedFigures": "flegel.declarations.figures",
    "Statistics": "flegel.declarations.statistics",
    "Sharding": "flegel.core.sharding",
    "Callback": "flegel.callbacks.callback",
    "EarlyStopping": "flegel.callbacks.early_stopping",
    "DataPoint": "flegel.core.shard",
    "Sample": "flegel.algorithm",
    "Result": "flegel.results.result",
    "LocalCluster": "flegel.api.jobs",
    "connect": "flegel.cluster.connected",
    "check_algorithm": "flegel.checks.conformance",
    "join": "flegel.api.jobs",
    "load": "flegel.runtime.job.result_store",
    "resume": "flegel.api.jobs",
    "run": "flegel.api.jobs",
    "settings": "flegel.configuration.sources",
    "shutdown": "flegel.api.jobs",
    "FlegelError": "flegel.errors",
    "UsageError": "flegel.errors",
    "DataError": "flegel.errors",
    "AlgorithmError": "flegel.errors",
    "FlegelWarning": "flegel.errors",
}

__all__ = [
    "Accepts",
    "Algorithm",
    "AlgorithmError",
    "Callback",
    "DataError",
    "DataPoint",
    "EarlyStopping",
    "FlegelError",
    "FlegelWarning",
    "HiddenState",
    "HyperNames",
    "Kernels",
    "Learning",
    "LocalCluster",
    "ParameterPlacement",
    "ReportedFigures",
    "Result",
    "Sample",
    "Sharding",
    "Statistics",
    "UsageError",
    "check_algorithm",
    "connect",
    "join",
    "load",
    "resume",
    "run",
    "settings",
    "shutdown",
]

if TYPE_CHECKING:
    from flegel.algorithm import Algorithm, Sample
    from flegel.api.jobs import LocalCluster, join, resume, run, shutdown
    from flegel.callbacks.callback import Callback
    from flegel.callbacks.early_stopping import EarlyStopping
    from flegel.checks.conformance import check_algorithm
    from flegel.cluster.connected import connect
    from flegel.configuration.sources import settings
    from flegel.core.shard import DataPoint
    from flegel.core.sharding import Sharding
    from flegel.declarations.accepts import Accepts
    from flegel.declarations.figures import ReportedFigures
    from flegel.declarations.hidden_state import HiddenState
    from flegel.declarations.hyper_names import HyperNames
    from flegel.declarations.kernels import Kernels
    from flegel.declarations.learning import Learning
    from flegel.declarations.placement import ParameterPlacement
    from flegel.declarations.statistics import Statistics
    from flegel.errors import AlgorithmError, DataError, FlegelError, FlegelWarning, UsageError
    from flegel.results.result import Result
    from flegel.runtime.job.result_store import load


_SYSTEMS = ("dask", "k8s", "mpi", "ray", "slurm", "spark")
"""Systems whose machines a cluster can be launched on: `flegel.ray.Cluster(slaves=4)`. Slaves on this host
(`flegel launch local`) are no such system: they are for trying a launch, and `LocalCluster` trains more quickly."""


def __getattr__(name: str) -> Any:
    """Import public names when they are first used."""
    import importlib

    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    if name in _SYSTEMS:
        return importlib.import_module(f"flegel.cluster.launch.{name}")
    raise AttributeError(f"module 'flegel' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *_HOMES, *_SYSTEMS]
