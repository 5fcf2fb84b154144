"""What an observer sees of a running job: one immutable record per look. Reads the coordinator, never changes it.

Displays, progress reports of a cluster and callers of `flegel.run` get these records and never the coordinator. A look
costs a few microseconds per shown worker, so it is made a few times a second and at milestones, not at each barrier.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from flegel.core.pytree import Tree
from flegel.machine.coordinator.events import TraceRow
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.plan.placement.snapshot import PlacementSnapshot

if TYPE_CHECKING:  # a display that only reads records loads neither the coordinator nor numba
    from flegel.machine.coordinator.coordinator import Coordinator
    from flegel.machine.coordinator.state import JobState
    from flegel.sync.policy import WorkerView

SHOWN = 40  # workers that a record describes one by one unless more are asked for; a terminal has no more lines


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
    """idle, training, reported or resting."""
    visits: int = 0
    moving: int = 0
    """Points under way to it, less those under way from it."""
    host: str = ""
    """Where its process runs, once that is known."""


class FlowSnapshot(msgspec.Struct, frozen=True):
    """Points from one worker to another."""

    source: int
    target: int
    points: int
    """That changed owner so far."""
    bytes: int
    """That arrived so far."""
    under_way: int
    """Points that are to change owner and have not yet."""


class IncidentSnapshot(msgspec.Struct, frozen=True):
    """Workers changed, and training went on."""

    kind: str
    """lost, joined, left; rest, recall and recount are of several workers."""
    worker: int
    why: str
    at: float
    seconds: float
    """Until training went on."""
    unvisited: int


FOLLOWED_AT = "validation_iteration"
"""Among the figures of a snapshot: the barrier whose θ those of held-out rows are of. Later barriers come before these
rows are looked at again."""


class SiteSnapshot(msgspec.Struct, frozen=True):
    """One group of several that train one model, as this one sees it."""

    group: str
    state: str
    round: int
    """That is open for it."""
    sent: bool
    """A contribution of it is there that no result has counted."""
    waited_for: bool
    """The open round waits for it."""
    silent: bool
    """It has not been heard of for several beats."""
    age: int | None
    """Rounds by which its contribution is older than the last result; None: it is not in that."""
    workers: int


class SitesSnapshot(msgspec.Struct, frozen=True):
    """All groups, and the traffic of this one with their bucket."""

    round: int
    sites: tuple[SiteSnapshot, ...]
    why: str = ""
    """Why the last round ended, where a quorum ended it."""
    bytes_sent: int = 0
    bytes_received: int = 0


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
    """Points that are to change owner and have not yet."""
    moved_bytes: int = 0
    metrics: dict[str, float] = {}
    """Figures beside the objective (`ModelHooks.metrics`)."""
    attribute: bool = False
    """It is known what each worker does for the objective."""
    verdict: str = ""
    """Why the job ended; empty before."""
    workers: tuple[WorkerSnapshot, ...] = ()
    """Once there has been a commit; the first 40, unless the observer wants more."""
    incidents: tuple[IncidentSnapshot, ...] = ()
    """All changes of workers after which training has gone on; the list only grows."""
    at: float = 0.0
    """Seconds of training at this look; `seconds` is the last commit."""
    maximize: bool = False
    """A larger objective is better."""
    flows: tuple[FlowSnapshot, ...] = ()
    """Pairs of workers between which points moved or move, the largest ones."""
    members: int = 0
    """Workers that hold points, shown or not."""
    resting: int = 0
    """Workers that rest: the job is faster without them."""
    waits_for: str = ""
    """What the whole job waits for, such as other groups."""
    news: tuple[str, ...] = ()
    """What people should read of other groups; the list only grows."""
    compute: float = 0.0
    """Seconds of all workers together, as the two that follow."""
    wait: float = 0.0
    respond: float = 0.0
    servers: PlacementSnapshot | None = None
    """The parameter servers, where the job has any."""
    sites: SitesSnapshot | None = None
    """The groups at several sites, where the job is one of them."""


def observe(
    job: Coordinator,
    *,
    now: float | None = None,
    shown: int = SHOWN,
    hosts: Mapping[int, str] | None = None,
    followed: Mapping[str, float] | None = None,
) -> JobSnapshot:
    """One look. `now`: on the coordinator's clock; `shown`: workers to describe; `hosts`: where workers run;
    `followed`: figures of rows that are held out."""
    state, membership, hosts = job.state, job.membership, hosts or {}
    every = list(state.view.workers.values())
    verdict = state.verdict.reason if state.verdict is not None else ""
    last = state.trace[-1] if state.trace else None
    general = JobSnapshot(
        type(state.algorithm).__name__,
        state.policy.name,
        state.phase,
        len(membership.loaded),
        len(membership.loads),
        round=state.view.round,
        points=sum(w.points for w in every),
        unseen=sum(w.unseen for w in every),
        verdict=verdict,
        incidents=_incidents(job),
        at=_at(job, now),
        maximize=state.algorithm.learning.maximize,
        members=len(every),
        resting=len(state.resting),
        waits_for=state.waits_for,
        news=tuple(state.news),
        **{name: value for part in job.parts for name, value in part.seen().items()},
    )
    if last is None:
        return general
    moving = {worker: points for part in job.parts for worker, points in part.moving().items()}
    return msgspec.structs.replace(
        general,
        visits=sum(w.visits for w in every),
        seconds=last.seconds,
        iteration=last.iteration,
        objective=last.objective,
        estimate=last.estimate,
        interval=last.interval,
        reason=last.reason,
        in_flight=last.in_flight,
        moved_bytes=last.moved_bytes,
        attribute=state.attribute,
        compute=sum(w.compute for w in every),
        wait=sum(w.wait for w in every),
        respond=sum(w.respond for w in every),
        metrics={**metrics_of(state, state.store.statistics, state.store.parameter), **(followed or {})},
        workers=tuple(_worker(w, state, moving, hosts) for w in [*every, *state.resting.values()][:shown]),
    )


def _worker(worker: WorkerView, state: JobState, moving: Mapping[int, int], hosts: Mapping[int, str]) -> WorkerSnapshot:
    """`moving`: points under way to each worker, less those under way from it; `hosts`: where workers run."""
    return WorkerSnapshot(
        worker.id,
        worker.points,
        worker.passes,
        worker.rate,
        worker.compute,
        worker.wait,
        worker.respond,
        worker.gain,
        "resting" if worker.id in state.resting else worker.phase,
        worker.visits,
        moving.get(worker.id, 0),
        hosts.get(worker.id, ""),
    )


def metrics_of(state: JobState, statistics: Tree, parameter: Tree) -> dict[str, float]:
    """Figures beside the objective, of these statistics and θ."""
    said = call_hook(state.algorithm, state.place, "metrics", statistics, parameter)
    return hook_values.figures(said, "metrics", state.place)


def at_barrier(seen: JobSnapshot, row: TraceRow, visits: int) -> JobSnapshot:
    """The job as it was at this barrier: its figures are those of the row, the workers those of the look after it."""
    return msgspec.structs.replace(
        seen,
        seconds=row.seconds,
        at=row.seconds,
        iteration=row.iteration,
        objective=row.objective,
        estimate=row.estimate,
        interval=row.interval,
        reason=row.reason,
        in_flight=row.in_flight,
        moved_bytes=row.moved_bytes,
        visits=visits,
    )


def _at(job: Coordinator, now: float | None) -> float:
    state = job.state
    if state.phase == "loading" or now is None:
        return state.trace[-1].seconds if state.trace else 0.0
    over = state.verdict is not None and state.ended > state.began
    return (state.ended if over else now) - state.began


def _incidents(job: Coordinator) -> tuple[IncidentSnapshot, ...]:
    return tuple(
        IncidentSnapshot(i.kind, i.worker, i.why, i.at, i.resumed - i.at, i.unvisited)
        for i in job.membership.incidents
        if i.resumed is not None
    )
