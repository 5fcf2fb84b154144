"""Figures of a job or of a cluster as families of samples, in the form of Prometheus. Pure: no library, no clock.

Base units (seconds, bytes), counters end in `_total`, and labels are bounded: states have a fixed set of words, and
jobs appear while they run, at most `MAX_LABELLED_JOBS` of them.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from flegel import __version__
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot

BARRIER_BUCKETS_SECONDS = (1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0, 3.0, 10.0)  # borders of the histogram
JOB_STATES = ("queued", "running", "done", "failed", "cancelled")
SLAVE_STATES = ("here", "awaited", "draining")
MAX_LABELLED_JOBS = 100  # running jobs with figures of their own: Prometheus keeps a series for each label

GAUGES = {
    "flegel_interval_seconds": ("interval", "Interval between barriers, where the model has one."),
    "flegel_objective": ("estimate", "Objective, or its estimate while some points are unseen."),
    "flegel_workers": ("members", "Workers of the job."),
    "flegel_workers_resting": ("resting", "Workers that rest beside those of the job."),
    "flegel_points": ("points", "Points of the job."),
    "flegel_points_in_flight": ("in_flight", "Points that are to change hands."),
    "flegel_training_seconds": ("seconds", "Seconds of training until the last barrier."),
}
"""Of a job, by name: the field of its snapshot, and what it is."""

Labels = Mapping[str, str]


class MetricSample(NamedTuple):
    """One line of a scrape; `suffix` follows the name of its family."""

    suffix: str
    labels: Labels
    value: float


class Family(NamedTuple):
    """Samples of one name. The name of a counter is without `_total`."""

    name: str
    kind: str
    help: str
    samples: Sequence[MetricSample]


class BarrierHistogram:
    """Seconds of each round that the average worker did not compute, in cumulative buckets."""

    def __init__(self) -> None:
        self._counts = [0] * (len(BARRIER_BUCKETS_SECONDS) + 1)
        self._sum = 0.0

    def add(self, seconds: float) -> None:
        self._counts[bisect.bisect_left(BARRIER_BUCKETS_SECONDS, seconds)] += 1
        self._sum += seconds

    def samples(self) -> list[MetricSample]:
        found, below = [], 0
        for bound, count in zip((*map(str, BARRIER_BUCKETS_SECONDS), "+Inf"), self._counts, strict=True):
            below += count
            found.append(MetricSample("_bucket", {"le": bound}, below))
        return [*found, MetricSample("_count", {}, below), MetricSample("_sum", {}, self._sum)]


class JobFigures:
    """The metrics of one job, from its barriers and snapshots."""

    def __init__(self) -> None:
        self._barriers = BarrierHistogram()
        self._visits = self._count = 0
        self._snapshot: JobSnapshot | None = None

    def take(self, seen: JobSnapshot, rows: Iterable[TraceRow]) -> None:
        self._snapshot = seen
        for row in rows:
            self._count += 1
            self._visits += row.visits
            self._barriers.add(row.barrier_cost)

    def families(self) -> list[Family]:
        """All families of the job as they are now; those of its workers once there is a snapshot."""
        found = [
            build_info(),
            Family("flegel_barriers", "counter", "Barriers.", [MetricSample("_total", {}, self._count)]),
        ]
        found.append(
            Family(
                "flegel_barrier_seconds",
                "histogram",
                "Seconds of a round that the average worker did not compute.",
                self._barriers.samples(),
            )
        )
        if self._snapshot is not None:
            found += job_families([({}, self._snapshot, self._visits)])
        return found


def job_families(jobs: Sequence[tuple[Labels, JobSnapshot, float]]) -> list[Family]:
    """Figures of running jobs: labels, the last snapshot and visits of each."""
    states = ("compute", "wait", "respond")
    spent = [
        MetricSample("_total", {**labels, "state": state}, float(getattr(seen, state)))
        for labels, seen, _ in jobs
        for state in states
    ]

    def gauge(name: str, text: str, values: Iterable[tuple[Labels, float | None]]) -> Family:
        return Family(
            name, "gauge", text, [MetricSample("", labels, float(v)) for labels, v in values if v is not None]
        )

    def counter(name: str, text: str, values: Iterable[tuple[Labels, float]]) -> Family:
        return Family(name, "counter", text, [MetricSample("_total", labels, float(v)) for labels, v in values])

    lost = [(labels, sum(i.kind == "lost" for i in seen.incidents)) for labels, seen, _ in jobs]
    return [
        Family("flegel_worker_seconds", "counter", "Seconds of all workers together, by what they did.", spent),
        counter("flegel_visits", "Points visited.", [(labels, visits) for labels, _, visits in jobs]),
        counter("flegel_moved_bytes", "Bytes of moved points.", [(k, s.moved_bytes) for k, s, _ in jobs]),
        counter("flegel_workers_lost", "Workers lost during training.", lost),
        *(gauge(name, text, [(k, getattr(s, field)) for k, s, _ in jobs]) for name, (field, text) in GAUGES.items()),
    ]


def cluster_families(jobs: Sequence[Any], slaves: Sequence[Any]) -> list[Family]:
    """The metrics of a master: `jobs` and `slaves` are its views of them."""
    states = Counter(job.state for job in jobs)
    present = Counter(slave.state for slave in slaves)
    running = [job for job in jobs if job.state == "running" and job.snapshot][:MAX_LABELLED_JOBS]
    seen = [({"job": j.job}, msgspec.convert(j.snapshot, JobSnapshot)) for j in running]
    slots = [MetricSample("", {"use": use}, float(v)) for use, v in _slots(slaves).items()]
    return [
        build_info(),
        Family("flegel_jobs", "gauge", "Jobs by state.", _by_state(states, JOB_STATES)),
        Family("flegel_slaves", "gauge", "Slaves by state.", _by_state(present, SLAVE_STATES)),
        Family("flegel_slots", "gauge", "Slots of the slaves that are here.", slots),
        Family(
            "flegel_barriers",
            "counter",
            "Barriers.",
            [MetricSample("_total", labels, s.iteration) for labels, s in seen],
        ),
        *job_families([(labels, s, s.visits) for labels, s in seen]),
    ]


def build_info() -> Family:
    return Family(
        "flegel_build_info", "gauge", "Version of Flegel; always 1.", [MetricSample("", {"version": __version__}, 1.0)]
    )


def _by_state(counts: Mapping[str, int], states: Sequence[str]) -> list[MetricSample]:
    return [MetricSample("", {"state": state}, counts[state]) for state in states]


def _slots(slaves: Sequence[Any]) -> dict[str, int]:
    here = [slave for slave in slaves if slave.state == "here"]
    used = sum(slave.used for slave in here)
    return {"used": used, "free": max(sum(slave.slots for slave in here) - used, 0)}
