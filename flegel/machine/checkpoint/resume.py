"""A coordinator that was just made continues from a snapshot, or from a commit that is newer than it. Pure: no file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from flegel.core.pytree import Tree
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.checkpoint.snapshot import optional_parts, part_of
from flegel.machine.checkpoint.state_limits import check_clocks
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.plain_data import thaw
from flegel.sync.policy import Updated, View, WorkerView
from flegel.sync.rebuild_statistics import RebuildStatistics


@dataclass(frozen=True)
class NewerCommit:
    """A commit after the checkpoint: θ is known, the points' states are those of the checkpoint."""

    round: int
    iteration: int
    seconds: float
    parameter: Tree


def restore(
    job: Coordinator,
    data: dict[str, Any],
    parts: dict[int, WorkerState],
    newer: NewerCommit | None = None,
    redealt: bool = False,
) -> None:
    """Put a coordinator that was just made into the state of a snapshot; it goes on once the workers have loaded.

    `parts` says what each worker will hold. Where their number differs from that of the snapshot (`redealt`),
    statistics stay whole and belong to all workers together; what was learned about single workers is forgotten.
    Statistics of points that no worker has visited (`shard_states.unvisited`) are empty.
    """
    state = job.state
    state.restore(part_of(data, "job"))
    plan = job.membership.resting_at_start
    resting = plan.resting if plan is not None else ()
    state.resting = {worker: seen for worker, seen in state.resting.items() if worker in resting}
    job.commits.restore(part_of(data, "commits"))
    state.store.restore(part_of(data, "store"), parts if redealt else None)
    event: Updated = thaw(data["event"])
    thaw(data["policy"], state.policy)
    thaw(data["termination"], job.termination)
    view: View = thaw(data["view"], state.view)
    if redealt:
        clock = max(w.clock for w in view.workers.values())
        view.workers = {w: _worker(w, part, clock) for w, part in parts.items()}
        event = msgspec.structs.replace(event, workers=tuple(parts))
    else:
        for part in job.parts:
            if (kept := part.stored()) is not None and part.name in data:
                thaw(data[part.name], kept)
    check_clocks(state.policy, view)
    job.termination.resumed(min((w.passes for w in view.workers.values() if w.points), default=0.0))
    if all(passes == 0 for part in parts.values() for _, passes in part.kept.runs):
        state.store.clear_statistics()
        for number, worker in view.workers.items():
            worker.unseen, worker.halted = parts[number].points, 0
    job.resume_with(event, float(data["now"]), fresh=redealt or not optional_parts(data))
    if newer is not None:
        continue_from(job, newer, now=float(data["now"]), started=True)


def continue_from(job: Coordinator, newer: NewerCommit, now: float, started: bool) -> None:
    """A newer θ than that of the statistics: one whole pass under it makes them fit, then the model goes on. `started`:
    the model and the parts have the state of a checkpoint; without one, they begin anew (`fresh`)."""
    state = job.state
    state.store.set_parameter(newer.parameter)
    state.view.round, state.iteration = newer.round, newer.iteration
    state.began = now - newer.seconds
    job.commits.continue_from(now)
    state.verdict = None
    state.policy = RebuildStatistics(state.policy, started)
    working = tuple(w for w in job.membership.loads if w not in state.resting)
    event = Updated(newer.round, working, None, exact=False, visits=0, barrier_cost=0.0)
    job.resume_with(event, now, fresh=not started)


def _worker(number: int, part: WorkerState, clock: int) -> WorkerView:
    """How the coordinator sees a worker that continues with these points, from their passes and votes."""
    runs = part.kept.runs
    return WorkerView(
        number,
        sum(points for points, _ in runs),
        clock=clock,
        visits=sum(points * passes for points, passes in runs),
        unseen=sum(points for points, passes in runs if not passes),
        halted=int(np.count_nonzero(part.halted)),
    )
