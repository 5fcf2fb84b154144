"""What an observer sees of a running job: one immutable record per look. Reads the coordinator, never changes it.

Displays, progress reports of a cluster and callers of `flegel.run` get these records and never the coordinator. A look
costs a few microseconds per shown worker, so it is made a few times a second and at milestones, not at each barrier.
"""

from __future__ import annotations

import msgspec

from flegel.machine.coordinator.coordinator import Coordinator

SHOWN = 40  # workers that a record describes one by one; a terminal has no more lines


class WorkerSnapshot(msgspec.Struct, frozen=True):
    """One worker."""

    id: int
    points: int
    passes: float
    rate: float
    """Points a second while computing."""
    compute: float
    """Seconds so far, as the two that follow."""
    wait: float
    respond: float
    gain: float
    """What it did for the objective, where that is attributed."""
    state: str = "idle"
    """idle, training or reported."""
    visits: int = 0
    moving: int = 0
    """Points under way to it, less those under way from it."""


class IncidentSnapshot(msgspec.Struct, frozen=True):
    """Workers changed, and training went on."""

    kind: str
    """lost, joined or left."""
    worker: int
    why: str
    at: float
    seconds: float
    """Until training went on."""
    unvisited: int


class JobSnapshot(msgspec.Struct, frozen=True):
    """The job at one moment."""

    algorithm: str
    policy: str
    phase: str
    loaded: int
    loads: int
    visits: int = 0
    seconds: float = 0.0
    """Of training, until the last commit."""
    iteration: int = 0
    round: int = 0
    objective: float | None = None
    estimate: float | None = None
    """The objective, or while some points are unseen an estimate scaled up from the others."""
    interval: float | None = None
    reason: str = ""
    """Of the last commit."""
    points: int = 0
    unseen: int = 0
    in_flight: int = 0
    """Points that are to change hands and have not yet."""
    moved_bytes: int = 0
    metrics: dict[str, float] = {}
    """Figures beside the objective (`Algorithm.metrics`)."""
    attribute: bool = False
    """It is known what each worker does for the objective."""
    verdict: str = ""
    """Why the job ended; empty before."""
    workers: tuple[WorkerSnapshot, ...] = ()
    """The first 40, once there has been a commit."""
    incidents: tuple[IncidentSnapshot, ...] = ()
    """All changes of workers after which training has gone on; the list only grows."""


def observe(job: Coordinator) -> JobSnapshot:
    """One look."""
    state, membership = job.state, job.membership
    every = list(state.view.workers.values())
    verdict = state.verdict.reason if state.verdict is not None else ""
    last = state.trace[-1] if state.trace else None
    general = JobSnapshot(
        type(state.algorithm).__name__, state.policy.name, state.phase, len(membership.loaded), len(membership.loads),
        round=state.view.round, points=sum(w.points for w in every), unseen=sum(w.unseen for w in every),
        verdict=verdict, incidents=_incidents(job),
    )  # fmt: skip
    if last is None:
        return general
    moving = _moving(job)
    return msgspec.structs.replace(
        general, visits=sum(w.visits for w in every), seconds=last.seconds, iteration=last.iteration,
        objective=last.objective, estimate=last.estimate, interval=last.interval, reason=last.reason,
        in_flight=last.in_flight, moved_bytes=last.moved_bytes, attribute=state.attribute,
        metrics=state.algorithm.metrics(state.store.parameter),
        workers=tuple(
            WorkerSnapshot(
                w.id, w.points, w.passes, w.rate, w.compute, w.wait, w.respond, w.gain, w.phase, w.visits,
                moving.get(w.id, 0),
            )
            for w in every[:SHOWN]
        ),
    )  # fmt: skip


def _moving(job: Coordinator) -> dict[int, int]:
    found: dict[int, int] = {}
    for move in job.balance.migrations.open.values() if job.balance is not None else ():
        left = max(move.points - move.moved, 0)
        found[move.target] = found.get(move.target, 0) + left
        found[move.source] = found.get(move.source, 0) - left
    return found


def _incidents(job: Coordinator) -> tuple[IncidentSnapshot, ...]:
    return tuple(
        IncidentSnapshot(i.kind, i.worker, i.why, i.at, i.resumed - i.at, i.unvisited)
        for i in job.membership.incidents
        if i.resumed is not None
    )
