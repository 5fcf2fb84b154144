"""What a finished job gives back: figures of its coordinator, and the sections of its parts."""

from __future__ import annotations

from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.loading.class_source import is_built_in
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.observation import metrics_of
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.results.prediction import TrainingRows
from flegel.results.result import Result, sections, utilization, worker_rows
from flegel.runtime.job.model_remarks import description, never_predicted
from flegel.runtime.job.part import JobRun


def collected(running: JobRun) -> Result:
    """The result of a job whose training is over."""
    running.request.observers.phase("result", "warnings")
    found = {**_of_request(running), **_of_machine(running)}
    for section in (sections(running.machine), *(part.section() for part in running.parts)):
        for name, value in section.items():
            if isinstance(value, dict):
                value = {**found.get(name, {}), **value}
            elif isinstance(value, list):
                value = [*found.get(name, ()), *value]
            found[name] = value
    return Result(**found)


def _of_request(running: JobRun) -> dict[str, Any]:
    """What was trained, on which rows, and how."""
    request = running.request
    algorithm, data, scaling, choice = request.algorithm, request.data, running.scaling, running.job_cluster.choice
    whole = data if data.held_out is None else data.held_out.whole
    return {
        "algorithm": algorithm,
        "name": type(algorithm).__name__.lower() if is_built_in(algorithm) else type(algorithm).__name__,
        "dataset": data.summary(),
        "sync": request.job.sync.model,
        "workers": request.workers,
        "placement": choice.kind if choice else "processes",
        "seed": request.job.seed,
        "load_seconds": running.machine.state.ready_at - running.shift - running.began,
        "kernel": running.built.kind,
        "kernel_choice": running.built.note,
        "classes": data.classes,
        "scaling": None if scaling is None else (scaling.shift, scaling.factor),
        "treatment": data.treatment.scaled_by(scaling),
        "training": TrainingRows(whole, scaling),
    }


def _of_machine(running: JobRun) -> dict[str, Any]:
    """How training went, and what came out."""
    machine, algorithm = running.machine, running.request.algorithm
    assert machine.verdict is not None
    workers = worker_rows(machine)
    parameter = pytree.present(machine.commits.final_parameter())
    return {
        "converged": machine.verdict.converged,
        "reason": machine.verdict.reason,
        "outcome": machine.verdict.outcome,
        "objective": _objective(machine),
        "iterations": machine.iteration,
        "seconds": machine.state.seconds,
        "rows": [vars(row) for row in machine.trace],
        "worker": workers,
        "utilization": utilization(workers),
        "sync_choice": machine.state.policy.choice,
        "staleness": dict(sorted(machine.commits.staleness.items())),
        "abandoned": machine.commits.abandoned,
        "parameter": parameter,
        "warnings": [*remarks(machine), *never_predicted(algorithm, running.prepared.sample, parameter)],
        "description": description(algorithm, machine.store.statistics, machine.parameter),
        "metrics": _metrics(running, parameter),
        "state": _in_data_order(machine) if machine.collection.states else None,
        "incidents": [vars(incident) for incident in machine.membership.incidents],
    }


def _objective(machine: Coordinator) -> float | None:
    """The objective by a pass over all points under the final θ, where one was made; else of the last barrier that has
    one."""
    count = machine.state.final_count
    if count is not None and count.objective is not None:
        return count.objective
    best = machine.step_back.best_objective
    if machine.verdict is not None and machine.verdict.outcome == "diverged" and best is not None:
        return best
    return next((row.estimate for row in reversed(machine.trace) if row.estimate is not None), None)


def _metrics(running: JobRun, parameter: Tree) -> dict[str, float]:
    """Figures beside the objective: of the statistics of the last pass, and, where they need rows, of the sample."""
    state, algorithm, rows = running.machine.state, running.request.algorithm, running.prepared.sample
    counted = state.final_count.counted if state.final_count is not None else None
    found = metrics_of(state, state.store.statistics if counted is None else counted, parameter)
    if algorithm.figures.shown and pytree.is_finite(parameter):
        evaluation = call_hook(algorithm, "the end", "evaluate", rows.features, rows.labels, parameter)
        told = hook_values.figures(evaluation.metrics, "evaluate", "the end") if evaluation is not None else {}
        found |= {name: told[name] for name in algorithm.figures.shown if name in told}
    return found


def remarks(machine: Coordinator) -> list[str]:
    """What a user should read beside the figures."""
    said = call_hook(machine.state.algorithm, "the end", "warnings", machine.store.statistics, machine.parameter)
    found = hook_values.texts(said, "warnings")
    if machine.verdict is not None and machine.verdict.outcome in FAILED_OUTCOMES:
        found = [machine.verdict.reason, *found]
    for part in machine.parts:
        found = [*found, *part.remarks()]
    unseen = sum(w.unseen for w in machine.view.workers.values())
    if unseen and machine.trace and machine.trace[-1].estimate is not None:
        found = [*found, f"the objective is an estimate: {unseen} of {machine.state.points} points were never visited"]
    return found


def _in_data_order(machine: Coordinator) -> Array:
    """Workers own the rows in shuffled order; users know them in the order of the data."""
    states, numbers = zip(*machine.collection.states.values(), strict=True)
    shuffled, ids = np.concatenate(states), np.concatenate(numbers)
    restored = np.empty_like(shuffled)
    restored[ids] = shuffled
    return restored
