"""What a finished job gives back: figures, parameters, trace. Pure data; saving is the runtime's business."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from flegel.algorithm import Algorithm, Evaluation, described_hyper
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.declarations.figures import ModelHooks
from flegel.declarations.optional import hook
from flegel.errors import ExitCode, UsageError
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.results.prediction import (
    Answer,
    TrainingRows,
    answer,
    class_names,
    evaluate,
    model_of,
    predict,
    score,
    with_names,
)
from flegel.wording import counted

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
    threads: int = 0
    """Threads of each worker that trained together; 0: a worker was one thread."""
    outcome: str = ""
    """Why the job ended, in one word (`flegel.plan.termination.Verdict`)."""
    staleness: dict[int, int] = field(default_factory=dict)
    """How many reports were made under a θ so many updates old."""
    abandoned: int = 0
    """Visits that were abandoned because a point was too expensive (`expensive="abandon"` or `"retry"`)."""
    kernel: str = ""
    kernel_choice: str = ""
    """Which of its kernels the algorithm took for these rows, and why; why hooks were interpreted."""
    sync_choice: str = ""
    """What the synchronization model chose by itself, and why, such as `auto` between barriers and single reports."""
    warnings: list[str] = field(default_factory=list)
    description: list[str] = field(default_factory=list)
    """What the model is like, in a line or two, such as the sizes of clusters."""
    metrics: dict[str, float] = field(default_factory=dict)
    """Figures beside the objective at the end of training, such as the accuracy."""
    validation: dict[str, Any] = field(default_factory=dict)
    """Rows that were held out: how many (`rows`), and the figures on them while the job trained (`course`, one record
    a look: seconds, iteration, figures; the last is of the result). Empty without `validate`."""
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
    """Workers that were lost, joined or left, recounts, when, and when training went on."""
    servers: dict[str, Any] = field(default_factory=dict)
    """Parameter servers: loads, measured links, decisions with their reasons; empty without servers."""
    sites: dict[str, Any] = field(default_factory=dict)
    """Rounds with other groups, traffic with their bucket, median seconds of a round; empty for a job of its own."""
    audit: dict[str, Any] = field(default_factory=lambda: {"mode": "off"})
    """How often the statistics were checked, what was found, and how far they were from an evaluation of θ."""

    _labels: Array | None = field(default=None, init=False, repr=False)
    training: TrainingRows | None = field(default=None, repr=False)
    """The rows of training, where this process can read them."""
    notebook_picture: ClassVar[Callable[[Result], str] | None] = None
    """Draws the run; set by `flegel.api.jobs`, because pictures know results and not the other way round."""

    @property
    def parameters(self) -> dict[str, Array]:
        """The model by name, such as centroids, or weights and bias."""
        return model_of(self)[0]

    @property
    def internals(self) -> dict[str, Array]:
        """What else θ holds: constants, and what the algorithm remembers between two steps."""
        return model_of(self)[1]

    @property
    def trace(self) -> pd.DataFrame:
        """One line per barrier."""
        import pandas as pd

        return pd.DataFrame(self.rows)

    # -- answers about rows ----------------------------------------------------------------------------------------

    def predict(self, table: Any, *, missing: str | None = None) -> Array:
        """The class (by its name) or cluster (by its number) of each row of a frame, an array or a file. Columns are
        found by name where the model has names; what does not fit is refused in one sentence. Gaps become what they
        became in training; `missing`, here and below, says otherwise: error, drop, mean, median, indicator, keep."""
        return predict(self, self._treatment(), table, missing)

    def probabilities(self, table: Any = None, *, missing: str | None = None) -> Array:
        """(rows, classes or clusters), in the order of `class_names`; of the rows of training by default."""
        return self._answer(hook(self.algorithm, ModelHooks.probabilities), table, missing)

    def distances(self, table: Any = None, *, missing: str | None = None) -> Array:
        """(rows, centroids); of the rows of training by default."""
        return self._answer(hook(self.algorithm, ModelHooks.distances), table, missing)

    def scores(self, table: Any = None, *, missing: str | None = None) -> Array:
        """How well each row fits: log-odds (LR), log density (GMM), minus squared distance (k-means), largest
        membership (FCM); of the rows of training by default."""
        return self._answer(hook(self.algorithm, ModelHooks.scores), table, missing)

    def score(self, table: Any, labels: Any = None, *, missing: str | None = None) -> float:
        """How good the model is on these rows; larger is better: accuracy (LR, networks), mean log-likelihood (GMM),
        minus the objective (all others). `table` as for `predict`, or a pair (X, y); `labels` are values, or the name
        of a column. Rows with gaps are left out where training left them out."""
        return score(self, self._treatment(), table, labels, missing)

    def evaluate(self, table: Any, labels: Any = None, *, missing: str | None = None) -> Evaluation:
        """The objective, and figures by name such as accuracy and log-loss, on these rows; arguments as for `score`."""
        return evaluate(self, self._treatment(), table, labels, missing)

    @property
    def labels(self) -> Array:
        """The class or cluster of each row of training, in the order of the data."""
        if self._labels is None:
            found = self._answer(self.algorithm.predict, None)
            if found.ndim != 1:
                raise UsageError(f"{type(self.algorithm).__name__} assigns rows to no class or cluster.")
            self._labels = with_names(self, found)
        return self._labels

    @property
    def sizes(self) -> Array:
        """Rows of training in each class or cluster, as assigned by the model, in the order of `class_names`."""
        return np.asarray([(self.labels == name).sum() for name in self.class_names])

    @property
    def class_names(self) -> list[Any]:
        """What `predict` answers with: class names or label values, or the numbers of the clusters."""
        return class_names(self)

    def _treatment(self) -> Treatment:
        from flegel.datasets import Scaling, Treatment

        how = None if self.scaling is None else Scaling(*self.scaling)
        return self.treatment or Treatment(int(self.dataset["columns"])).scaled_by(how)

    def _answer(self, hook: Answer, table: Any, missing: str | None = None) -> Array:
        if table is not None:
            return answer(self, self._treatment(), hook, table, missing)
        if self.training is None:
            raise UsageError("The rows of training are not in this process; pass rows.")
        return self.training.answer(self, hook)

    # -- for people ------------------------------------------------------------------------------------------------

    def summary(self) -> str:
        """The run in a few lines."""
        value = "none" if self.objective is None else f"{self.objective:.6g}"
        data, more = self.dataset, len(self.data_report) - MAX_REPORT_LINES
        lines = [
            f"{self.name} on {data['name']}: {counted(data['rows'], 'row')} of {counted(data['columns'], 'column')}",
            f"{'converged' if self.converged else 'stopped'}: {self.reason}",
            f"objective {value}{''.join(self._figures())} after {counted(self.iterations, 'barrier')} under "
            f"{self.sync}, {self.seconds:.3g} s of training",
            f"{counted(self.workers, 'worker')} in {self.placement}, {self.utilization:.0%} of their time computing; "
            f"{self.load_seconds:.3g} s of loading before",
            *(f"{name}: {_shape(value)}" for name, value in self.parameters.items() if value.dtype.kind in "fiub"),
            *([f"classes: {', '.join(self.classes[:20])}"] if self.classes else []),
            *self.description,
            *(f"note: {text}" for text in self.warnings),
            *self.data_report[:MAX_REPORT_LINES],
            *([f"  … and {more} more lines in data_report"] if more > 0 else []),
        ]
        return "\n".join(lines)

    @property
    def data_report(self) -> list[str]:
        """What became of each column of a table (one-hot, dates, left out, …), as lines for people; empty for plain
        numbers, and where the rows of training are not in this process."""
        return [] if self.training is None else self.training.report

    def _repr_html_(self) -> str:
        """For notebooks: the summary and the picture of the run."""
        draw = type(self).notebook_picture
        return f"<pre>{escape(self.summary())}</pre>" + ("" if draw is None else draw(self))

    @property
    def module(self) -> Any:
        """The trained network as an `nn.Module`."""
        return module_of(self.algorithm, pytree.present(self.parameter))

    def to_sklearn(self) -> Any:
        """The model as a fitted estimator of scikit-learn; in a pipeline behind a scaler where the rows were scaled."""
        return estimator(self.algorithm, pytree.present(self.parameter), self.classes, self.scaling)

    def to_json(self) -> dict[str, Any]:
        """The result without arrays of the model, for `--json` and `result.json`; fields are added, never renamed or
        removed."""
        return {
            "algorithm": self.name,
            "hyperparameters": {k: _plain(v) for k, v in described_hyper(self.algorithm).items()},
            "dataset": self.dataset,
            "sync": self.sync,
            "workers": self.workers,
            "placement": self.placement,
            "threads": self.threads,
            "seed": self.seed,
            "converged": self.converged,
            "outcome": self.outcome,
            "reason": self.reason,
            "objective": _plain(self.objective),
            "metrics": {name: _plain(value) for name, value in self.metrics.items()},
            "validation": self._validation(),
            "iterations": self.iterations,
            "seconds": self.seconds,
            "load_seconds": self.load_seconds,
            "trace": [[r["seconds"], r["iteration"], _plain(r["objective"]), _plain(r["interval"])] for r in self.rows],
            "worker": self.worker,
            "utilization": self.utilization,
            "staleness": {str(k): v for k, v in self.staleness.items()},
            "abandoned": self.abandoned,
            "balance": self.balance,
            "incidents": self.incidents,
            "servers": self.servers,
            "sites": self.sites,
            "audit": {name: _plain(value) for name, value in self.audit.items()},
            "model": self.model,
            "kernel": self.kernel,
            "kernel_choice": self.kernel_choice,
            "sync_choice": self.sync_choice,
            "warnings": self.warnings,
            "description": self.description,
            "classes": self.classes,
        }

    def _validation(self) -> dict[str, Any]:
        course = [{name: _plain(value) for name, value in one.items()} for one in self.validation.get("course", ())]
        return {**self.validation, "course": course} if self.validation else {}

    def _figures(self) -> list[str]:
        return [f", {name} {value:.4g}" for name, value in self.metrics.items()]

    def __repr__(self) -> str:
        value = "none" if self.objective is None else f"{self.objective:.6g}"
        return (
            f"<Result of {self.name}: objective {value}{''.join(self._figures())} after {self.iterations} iterations "
            f"and {self.seconds:.3g} s, {self.reason}>"
        )


MAX_REPORT_LINES = 12  # about columns, in a summary: half a screen


def estimator(
    algorithm: Algorithm, parameter: Tree, classes: list[str] | None, scaling: tuple[Array, Array] | None
) -> Any:
    """A trained model as a fitted estimator of scikit-learn."""
    model = hook(algorithm, ModelHooks.to_sklearn)(parameter, classes)
    if scaling is None:
        return model
    from flegel.algorithms.estimators import scaled_before

    return scaled_before(model, scaling)


def _shape(value: Array) -> str:
    return f"{value.reshape(-1)[0]:.6g}" if value.size == 1 else " × ".join(map(str, value.shape)) + " numbers"


def module_of(algorithm: Algorithm, parameter: Tree) -> Any:
    """The `nn.Module` of a network; other algorithms have none."""
    make = getattr(algorithm, "module", None)
    if make is None:
        raise UsageError(f"{type(algorithm).__name__} is no network, so there is no module; see `parameters`.")
    return make(parameter)


def exit_code(outcome: str) -> ExitCode:
    """What a command exits with whose job ended so."""
    return ExitCode.NOT_AS_ASKED if outcome in FAILED_OUTCOMES else ExitCode.DONE


def _plain(value: Any) -> Any:
    """JSON has neither arrays nor NaN."""
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def worker_rows(machine: Coordinator) -> list[dict[str, Any]]:
    """The time account of each worker, also of those that rest, by number. Of the time between its reports it computed,
    waited (`wait`, in part for others to merge reports and for θ: `merge`), or was about to follow an order
    (`barrier`)."""
    merging = merging_seconds(machine)
    every = [*machine.view.workers.values(), *machine.state.resting.values()]
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
            **({"resting": True} if w.id in machine.state.resting else {}),
        }
        for w in sorted(every, key=lambda w: w.id)
    ]


COURSE_MOMENTS = 64  # of a job at which `--json` has the passes of each worker


def _course(machine: Coordinator) -> list[dict[str, Any]]:
    """Passes, points in flight and bytes over time: evenly chosen barriers, the last one among them."""
    rows = [row for row in machine.trace if row.passes]
    chosen = sorted({round(i * (len(rows) - 1) / (COURSE_MOMENTS - 1)) for i in range(COURSE_MOMENTS)}) if rows else []
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


def sections(machine: Coordinator) -> dict[str, Any]:
    """Fields of a result that tell of parts of the job; of balance also what every job has: the spread of passes at the
    end, and their course."""
    passes = [w.passes for w in machine.view.workers.values() if w.points]
    spread = max(passes) - min(passes) if passes else 0.0
    found: dict[str, Any] = {"balance": {"mode": "off", "spread": spread, "course": _course(machine)}}
    for part in machine.parts:
        for name, section in part.section().items():
            found[name] = {**found.get(name, {}), **section}
    return found


def merging_seconds(machine: Coordinator) -> dict[int, float]:
    """Of each worker's waiting, the part in which reports were merged and θ was sent, after the last report had
    arrived.

    The worker that reports last waits only for that, so the shortest wait of a round is this part for all its workers.
    """
    found: dict[int, float] = {}
    for row in machine.trace:
        waits = {worker: waiting for worker, *_, waiting in row.spans if waiting > 0}
        for worker in waits:
            found[worker] = found.get(worker, 0.0) + min(waits.values())
    return found


def utilization(workers: list[dict[str, Any]]) -> float:
    """Computing time over all time (computing, waiting, responding), summed over workers (PSP paper, Eq. 14)."""
    busy = sum(w["compute_seconds"] for w in workers)
    idle = sum(w["wait_seconds"] + w["barrier_seconds"] for w in workers)
    return float(busy / max(busy + idle, 1e-12))
