"""What a finished job gives back: figures, parameters, trace. Pure data; saving is the runtime's business."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.errors import ExitCode
from flegel.plan.termination import FAILED

if TYPE_CHECKING:
    import pandas as pd

    from flegel.datasets import Treatment
    from flegel.machine.coordinator.coordinator import Coordinator


@dataclass
class Result:
    """One training run. `to_json()` is the stable contract of `--json`; the rest is for Python."""

    algorithm: Algorithm
    name: str
    dataset: dict[str, Any]
    sync: str
    workers: int
    seed: int
    converged: bool
    reason: str
    objective: float | None
    iterations: int
    seconds: float
    load_seconds: float
    rows: list[dict[str, Any]]
    worker: list[dict[str, Any]]
    utilization: float
    parameter: Tree
    placement: str = "processes"
    """Where the workers were: `processes`, or `threads` of the process that asked for the job."""
    outcome: str = ""
    """Why the job ended, in one word (`flegel.plan.termination.Verdict`)."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many reports were made under a θ so many updates old."""
    kernel: str = ""
    warnings: list[str] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures of the model besides its objective (`Algorithm.metrics`), such as a held-out error."""
    classes: list[str] | None = None
    scaling: tuple[Array, Array] | None = None
    """Shift and factor of each column, where the rows were scaled; `predict` scales new rows alike."""
    treatment: Treatment | None = None
    """How the columns of the data became rows; `predict` treats new tables alike."""
    state: Array | None = None
    """Hidden state of the points in the order of the data, where it was collected."""
    model: str | None = None
    """Folder of the saved model."""
    balance: dict[str, Any] = field(default_factory=lambda: {"mode": "off"})
    """What moved between workers, and why."""
    incidents: list[dict[str, Any]] = field(default_factory=list)
    """Workers that were lost, joined or left, when, and when training went on."""

    @property
    def parameters(self) -> dict[str, Array]:
        """θ by name."""
        return dict(zip(pytree.names(self.parameter), pytree.flatten(self.parameter), strict=True))

    @property
    def trace(self) -> pd.DataFrame:
        """One line per barrier."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    def predict(self, features: Any) -> Array:
        """What the trained model says about rows."""
        rows = self.treatment.apply(features) if self.treatment else scaled(np.asarray(features), self.scaling)
        return self.algorithm.predict(rows, pytree.present(self.parameter))

    def to_json(self) -> dict[str, Any]:
        return {
            "algorithm": self.name,
            "hyperparameters": {k: _plain(v) for k, v in self.algorithm.hyper().items()},
            "dataset": self.dataset,
            "sync": self.sync,
            "workers": self.workers,
            "placement": self.placement,
            "seed": self.seed,
            "converged": self.converged,
            "outcome": self.outcome,
            "reason": self.reason,
            "objective": _plain(self.objective),
            "iterations": self.iterations,
            "seconds": self.seconds,
            "load_seconds": self.load_seconds,
            "trace": [[r["seconds"], r["iteration"], _plain(r["objective"]), _plain(r["interval"])] for r in self.rows],
            "worker": self.worker,
            "utilization": self.utilization,
            "staleness": {str(k): v for k, v in self.staleness.items()},
            "balance": self.balance,
            "incidents": self.incidents,
            "model": self.model,
            "kernel": self.kernel,
            "warnings": self.warnings,
            "metrics": {name: _plain(value) for name, value in self.metrics.items()},
        }

    def __repr__(self) -> str:
        value = "none" if self.objective is None else f"{self.objective:.6g}"
        return (
            f"<Result of {self.name}: objective {value} after {self.iterations} iterations and "
            f"{self.seconds:.3g} s, {self.reason}>"
        )


def exit_code(outcome: str) -> ExitCode:
    """What a command exits with whose job ended so."""
    return ExitCode.NOT_AS_ASKED if outcome in FAILED else ExitCode.DONE


def scaled(features: Any, scaling: tuple[Array, Array] | None) -> Any:
    """Rows as the model knows them."""
    if scaling is None:
        return features
    from flegel.datasets.scale import Scaling, apply

    own = features.copy() if isinstance(features, np.ndarray) else features
    return apply(own, Scaling(*scaling))


def _plain(value: Any) -> Any:
    """JSON has neither arrays nor NaN."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def worker_rows(machine: Coordinator) -> list[dict[str, Any]]:
    """The time account of each worker."""
    merging = merging_seconds(machine)
    return [
        {
            "id": w.id,
            "points": w.points,
            "visits": w.visits,
            "passes": w.passes,
            "gain": w.gain if machine.state.attribute else None,
            "compute_seconds": w.compute,
            "wait_seconds": w.wait,
            "barrier_seconds": w.respond,
            "merge_seconds": merging.get(w.id, 0.0),
        }
        for w in machine.view.workers.values()
    ]


COURSE = 64  # moments of a job that `--json` tells the passes of


def _course(machine: Coordinator) -> list[dict[str, Any]]:
    """Passes, points in flight and bytes over time: evenly chosen barriers, the last one among them."""
    rows = [row for row in machine.trace if row.passes]
    chosen = sorted({round(i * (len(rows) - 1) / (COURSE - 1)) for i in range(COURSE)}) if rows else []
    return [
        {
            "seconds": rows[i].seconds,
            "passes": rows[i].passes,
            "in_flight": rows[i].in_flight,
            "bytes": rows[i].moved_bytes,
            **({"gains": rows[i].gains} if rows[i].gains else {}),
        }
        for i in chosen
    ]


def balance_row(machine: Coordinator) -> dict[str, Any]:
    """Moves, points, bytes, the spread of passes at the end and their course, and the reasons."""
    passes = [w.passes for w in machine.view.workers.values() if w.points]
    spread = max(passes) - min(passes) if passes else 0.0
    balance = machine.balance
    if balance is None:
        return {"mode": "off", "spread": spread, "course": _course(machine)}
    moves = balance.migrations
    return {
        "mode": balance.mode,
        "spread": spread,
        "moves": moves.count,
        "points": moves.points,
        "bytes": moves.bytes,
        "notes": list(moves.notes),
        "course": _course(machine),
    }


def merging_seconds(machine: Coordinator) -> dict[int, float]:
    """Of each worker's waiting, the part in which reports were merged and θ was sent: nobody was awaited any more.

    The last to report has nobody to wait for, so the shortest wait of a round is that part, for all of its workers.
    """
    found: dict[int, float] = {}
    for row in machine.trace:
        waits = {span[0]: span[6] for span in row.spans if span[6] > 0}
        for worker in waits:
            found[worker] = found.get(worker, 0.0) + min(waits.values())
    return found


def utilization(workers: list[dict[str, Any]]) -> float:
    """Computing time over all time (computing, waiting, responding), summed over workers (PSP paper, Eq. 14)."""
    busy = sum(w["compute_seconds"] for w in workers)
    idle = sum(w["wait_seconds"] + w["barrier_seconds"] for w in workers)
    return float(busy / max(busy + idle, 1e-12))
