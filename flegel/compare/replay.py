"""What if a recorded job had run under another model? The trace becomes a cluster model; the candidates run on it.

The recorded job itself stands in the table as `recorded`; simulating its own model beside it shows how far the
simulation can be believed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import msgspec

from flegel.algorithm import Algorithm
from flegel.compare.candidate import parse_candidates
from flegel.compare.comparison import in_memory
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison
from flegel.compare.simulation import ClusterModel, SimulationRunner, SimulationSettings, simulation_runner
from flegel.compare.stats import first_reaching
from flegel.datasets import Dataset, open_data
from flegel.errors import FlegelError, StorageError, UsageError
from flegel.loading.damage import damage_as
from flegel.loading.documents import read_json
from flegel.runtime.job.find_algorithm import find_builtin
from flegel.runtime.job.result_store import read_trace
from flegel.runtime.processes.worker_cluster import MAX_WORKERS
from flegel.sim.network import NetworkSpec
from flegel.sim.replay import progress, record

RECORDED_LABEL = "recorded"


class RecordedResult(msgspec.Struct):
    """What a result must say to be replayed; somebody else may have written it."""

    algorithm: str
    dataset: RecordedData
    workers: Annotated[int, msgspec.Meta(ge=1, le=MAX_WORKERS)]
    hyperparameters: dict[str, Any]
    sync: str
    seed: int
    worker: list[dict[str, Any]]
    reason: str
    seconds: float
    objective: float | None
    iterations: int
    utilization: float


class RecordedData(msgspec.Struct):
    """The data of a recorded job."""

    name: str
    rows: Annotated[int, msgspec.Meta(ge=1)]
    columns: Annotated[int, msgspec.Meta(ge=1)]


class Recorded:
    """A folder that `flegel submit` saved."""

    def __init__(self, folder: Path) -> None:
        """Read the result and the trace; raises `UsageError` for a folder without them and `StorageError` for damaged
        ones."""
        try:
            self.result: dict[str, Any] = read_json(folder / "result.json")
            self.rows = read_trace(folder)
        except OSError as error:
            raise UsageError(
                f"{folder} is no saved run (could not read {Path(error.filename or folder).name}); give the folder "
                "that flegel submit made."
            ) from None
        self.damage = f"The run in {folder} is damaged"
        if not self.rows:
            raise StorageError(f"{self.damage}: its trace is empty.")
        with damage_as(self.damage):
            msgspec.convert(self.result, RecordedResult)

    def algorithm(self, given: Algorithm | None) -> Algorithm:
        """The algorithm of the recorded job: the given one, else by its name where it is built in."""
        if given is not None:
            return given
        try:
            return self._built_in()
        except UsageError:
            raise UsageError(
                f"The recorded job trained {self.result['algorithm']}, which is not built in; name it: flegel simulate "
                "file.py:Class --replay …"
            ) from None

    def _built_in(self) -> Algorithm:
        """By its name alone: a file that a record names is never opened."""
        cls = find_builtin(self.result["algorithm"])
        with damage_as(self.damage):
            return cls(**self.result["hyperparameters"])

    def data(self, given: str, label: str | None) -> Dataset:
        """Its data, by the name in the record where none is given."""
        about = self.result["dataset"]
        for name in [given] if given else [f"{about['name']}:{about['rows']}", about["name"]]:
            try:
                found = open_data(name, label=label)
                if given or (found.rows, found.columns) == (about["rows"], about["columns"]):
                    return in_memory(found)
            except FlegelError:
                if given:
                    raise
        raise UsageError(
            f"The data of the recorded job ({about['name']}, {about['rows']:,} rows) cannot be opened by that name; "
            "give them with --data."
        )


def replay(
    folder: Path,
    sync: str,
    *,
    algorithm: Algorithm | None = None,
    data: str = "",
    label: str | None = None,
    partition: str = "shuffle",
    straggler: str = "",
    learning: str = "real",
    target: float | None = None,
    max_seconds: float | None = None,
    log: Callable[[str], None] = lambda text: None,
    watch: Any = lambda label: None,
) -> tuple[Comparison, SimulationRunner]:
    """Simulates the models in `sync` on the cluster of the recorded job."""
    job = Recorded(folder)
    result = job.result
    chosen = job.algorithm(algorithm)
    rows = job.data(data, label)
    goal = target if target is not None else _end(result, chosen, rows)
    with damage_as(job.damage):
        heard = record(job.rows, result["workers"])
        mine = recorded_attempt(job, float(goal), chosen.learning.maximize)
        shown = picture(job.rows, result["worker"], result.get("staleness", {}))
        course = progress(job.rows, rows.rows, chosen.learning.maximize) if learning == "curve" else None
    model = ClusterModel(
        rates=heard.rates,
        courses=heard.courses,
        costs=heard.costs,
        learning=learning,
        network=NetworkSpec(latency=heard.costs.message),
        pass_seconds=heard.seconds,
        progress=course,
    )
    settings = SimulationSettings(
        algorithm=chosen,
        data=rows,
        candidates=parse_candidates(sync),
        workers=result["workers"],
        repeat=1,
        straggler=straggler,
        target=float(goal),
        seed=result["seed"],
        partition=partition,
        log=log,
        model=model,
        target_note="given" if target is not None else f"what the recorded {result['sync']} ended at",
        max_seconds=max_seconds or 100 * heard.seconds,
        watch=watch,
        title=f"What if: {type(chosen).__name__} on {rows.name}, recorded under {result['sync']}",
    )
    runner = simulation_runner(settings)
    found = runner.run()
    found = _with(found, mine, shown)
    return found, runner


def _end(result: dict[str, Any], chosen: Algorithm, rows: Dataset) -> float:
    """What the recorded job ended at, where that says something about what is trained now."""
    if result["objective"] is None:
        raise UsageError("The recorded job had no objective; give a --target.")
    about, name = result["dataset"], type(chosen).__name__
    if name.lower() != result["algorithm"].lower():
        raise UsageError(
            f"The recorded job trained {result['algorithm']}; its objective is no target for {name}: give a --target."
        )
    if (rows.rows, rows.columns) != (about["rows"], about["columns"]):
        raise UsageError(
            f"The recorded job had {about['rows']:,} × {about['columns']:,} values, {rows.name} has {rows.rows:,} × "
            f"{rows.columns:,}; its objective is no target for them: give a --target."
        )
    return float(result["objective"])


def recorded_attempt(job: Recorded, target: float, maximize: bool) -> Attempt:
    """The recorded job as a line of a comparison."""
    result = job.result
    reached = first_reaching([(r["seconds"], r["objective"]) for r in job.rows], target, maximize)
    passes = [w["passes"] for w in result["worker"] if w["points"]] or [0.0]
    return Attempt(
        candidate=RECORDED_LABEL,
        round=0,
        outcome="reached" if reached is not None else "limit",
        reason=result["reason"],
        reached=reached,
        seconds=result["seconds"],
        objective=result["objective"],
        barriers=result["iterations"],
        utilization=result["utilization"],
        passes_low=min(passes),
        passes_high=max(passes),
    )


def _with(found: Comparison, mine: Attempt, shown: Any) -> Comparison:
    """The recorded run in the first line."""
    label = RECORDED_LABEL
    found.candidates = [label, *found.candidates]
    found.attempts = [mine, *found.attempts]
    found.pictures = {label: shown, **found.pictures}
    return found


__all__ = ["Recorded", "replay"]
