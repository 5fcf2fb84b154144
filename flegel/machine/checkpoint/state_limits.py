"""Whether a stored state is one that a job can have had: somebody else may have written the checkpoint. Pure: no file.

A state that no job reaches makes a resumed one run without end. A count below zero or a beginning in the future is
never at its limit; a time so large that a second more is the same number never passes; an interval of nothing gives
rounds in which no worker trains; a worker whose clock is far ahead of the others' never trains again. All of it is
refused here, before anything is made of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from flegel.errors import StorageError
from flegel.machine.checkpoint.snapshot import optional_parts, part_of
from flegel.machine.plain_data import thaw
from flegel.plan.interval.interval import PARTS
from flegel.plan.termination import Verdict
from flegel.sync.policy import Updated, View, WorkerView

LONGEST_TIME = 2.0**32
"""Seconds, 136 years: a clock in float64 still tells microseconds apart there."""
LARGEST_COUNT = 1 << 50
"""Of iterations, rounds, visits: a float64 still tells it from the next number."""
SHORTEST_INTERVAL = 1e-9
"""Seconds: in less no point is visited."""


def check_state(data: dict[str, Any], points: Sequence[int]) -> None:
    """Refuse with `StorageError` what no job can have stored. `points`: how many each of its workers held."""
    now, job, commits = data["now"], part_of(data, "job"), part_of(data, "commits")
    check_position(0, job["iteration"], 0.0)
    times = (now, job["began"], commits["updated_at"])
    _require(all(_is_time(at) for at in times) and job["began"] <= now, "times that cannot be")
    _require(all(_optional(v) for v in (job["objective"], commits["estimate"], commits["gain"])), "no objective")
    _require(isinstance(job["reason"], str) and isinstance(commits["diverged"], str), "no reasons")
    _require(_counts(commits["staleness"]), "no staleness")
    verdict = job["verdict"]
    _require(verdict is None or (isinstance(verdict, Verdict) and isinstance(verdict.reason, str)), "no verdict")
    view = thaw(data["view"])
    _require(isinstance(view, View), "no view of the workers")
    _check_view(view, points, job["resting"])
    _check_event(thaw(data["event"]), view)
    for name in ("policy", "termination", *optional_parts(data)):
        _check_fields(data[name])


def check_position(round_: object, iteration: object, seconds: object) -> None:
    """Where a job stood: at a commit, or at a checkpoint."""
    _require(_is_count(round_) and _is_count(iteration), "a round or an iteration that cannot be")
    _require(_is_time(seconds) and seconds >= 0.0, "a time that cannot be")  # type: ignore[operator]


def check_clocks(policy: object, view: View) -> None:
    """No worker is further ahead of the slowest one than the model of the resumed job allows."""
    most = getattr(policy, "staleness", math.inf) + 1
    clocks = [worker.clock for worker in view.workers.values()]
    _require(max(clocks) - min(clocks) <= most, f"workers that are more than {most:g} batches ahead of others")


def check_runs(runs: Sequence[tuple[int, int]], visits: object, compute: object) -> None:
    """What a worker says of its points: how many were traversed how often, and what it had not reported."""
    _require(all(_is_count(number) for run in runs for number in run), "numbers of passes that cannot be")
    _require(_is_count(visits) and _is_time(compute), "visits that cannot be")


def _check_view(view: View, points: Sequence[int], resting: object) -> None:
    """Refuse workers that no job can have had, and points other than those in the parts of the checkpoint."""
    workers = view.workers
    _require(_is_count(view.round) and _is_number(view.evidence) and view.evidence > 0, "no round")
    _require(isinstance(workers, dict) and isinstance(resting, dict), "no workers")
    assert isinstance(resting, dict)
    for number, seen in (*workers.items(), *resting.items()):
        _require(_is_count(number) and isinstance(seen, WorkerView) and seen.id == number, "workers that cannot be")
        _check_worker(seen)
    known = [seen.points for seen in workers.values()]
    _require(bool(known) and known == list(points), "workers with other points than they have")


def _check_worker(seen: WorkerView) -> None:
    """Refuse figures of a worker that are negative, not finite, or contradict each other."""
    counts = (
        seen.points,
        seen.clock,
        seen.visits,
        seen.unseen,
        seen.halted,
        seen.last_visits,
        seen.room,
        seen.caught_up,
    )
    times = (seen.compute, seen.respond, seen.wait, seen.last_compute, seen.call)
    _require(all(map(_is_count, counts)) and all(map(_is_time, times)), "figures of workers that cannot be")
    _require(seen.unseen <= seen.points and seen.halted <= seen.points, "more points unseen or halted than there are")
    _require(_is_number(seen.rate) and 0.0 <= seen.rate < math.inf and _is_number(seen.gain), "speeds that cannot be")
    carried = isinstance(seen.carried, int) and -seen.points <= seen.visits + seen.carried <= LARGEST_COUNT
    _require(carried, "passes that cannot be")
    flags = isinstance(seen.exhausted, bool) and not seen.stopping
    _require(flags and seen.phase == "idle", "workers that train")


def _check_event(event: object, view: View) -> None:
    """Refuse a last commit that names other workers, or has figures that are not finite."""
    _require(isinstance(event, Updated), "no commit")
    assert isinstance(event, Updated)
    _require(isinstance(event.workers, tuple) and set(event.workers) <= set(view.workers), "a commit of other workers")
    _require(_is_count(event.round) and _is_count(event.visits), "a commit that cannot be")
    _require(_is_time(event.barrier_cost) and _is_time(event.seconds), "a commit of a time that cannot be")
    _require(all(map(_optional, (event.gain, event.objective))), "a commit without an objective")
    _require(event.noise is None or isinstance(event.noise, float), "a commit without noise")
    worth = event.worth
    known = worth is None or (isinstance(worth, np.ndarray) and worth.shape == PARTS.shape)
    _require(known and (worth is None or bool(np.isfinite(worth).all())), "intervals of a worth that cannot be")


def _check_fields(data: Any) -> None:
    """What models, termination and parts keep: no field is other than numbers that can be."""
    for kind, name, value in _fields(data):
        allowed = _ALLOWED.get((kind, name)) or _ALLOWED.get(("", name))
        if allowed is not None:
            _require(allowed(thaw(value)), f"{kind}.{name}, a number that cannot be")
        _require(not _has_nan(value), f"{kind}.{name}, which is no number")


def _fields(data: Any) -> Iterator[tuple[str, str, Any]]:
    """Class, attribute and value of everything inside, as it is stored."""
    if not isinstance(data, list):
        return
    if len(data) == 3 and data[0] == "object":
        for name, value in data[2]:
            yield data[1], name, value
            yield from _fields(value)
        return
    for inner in data:
        yield from _fields(inner)


def _has_nan(value: Any) -> bool:
    if isinstance(value, list):
        return any(map(_has_nan, value)) if value[:1] != ["object"] else False  # whose fields come by themselves
    return isinstance(value, float) and math.isnan(value)


def _require(holds: bool, what: str) -> None:
    if not holds:
        raise StorageError(f"it holds {what}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.number) and not isinstance(value, bool) and not math.isnan(value)


def _optional(value: object) -> bool:
    """An objective may be anything but another thing: where it is not finite, the job has diverged."""
    return value is None or (isinstance(value, int | float | np.number) and not isinstance(value, bool))


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST_COUNT


def _is_time(value: object) -> bool:
    return _is_number(value) and abs(value) <= LONGEST_TIME  # type: ignore[arg-type]


def _counts(value: object) -> bool:
    return isinstance(value, dict) and all(_is_count(k) and _is_count(v) for k, v in value.items())


def _is_interval(value: object) -> bool:
    return _is_number(value) and SHORTEST_INTERVAL <= value < math.inf  # type: ignore[operator]


def _is_part(value: object) -> bool:
    return _is_number(value) and 0.0 < value <= 1.0  # type: ignore[operator]


def _marks(value: object) -> bool:
    return isinstance(value, list) and all(len(mark) == 2 and all(map(_is_number, mark)) for mark in value)


_ALLOWED: dict[tuple[str, str], Callable[[Any], bool]] = {
    ("FixedInterval", "seconds"): _is_interval,
    ("Step", "seconds"): lambda value: value is None or _is_interval(value),
    ("Step", "fraction"): _is_part,
    ("Search", "size"): _is_interval,
    ("Search", "factor"): _is_interval,
    ("BinarySearch", "_given"): lambda value: value is None or _is_interval(value),
    ("BinarySearch", "_factor"): _is_interval,
    ("MultiStage", "_given"): lambda value: value is None or _is_interval(value),
    ("MultiStage", "_eta"): lambda value: value == 0.0 or _is_interval(value),
    ("MultiStage", "_queue"): lambda value: isinstance(value, list) and all(map(_is_interval, value)),
    ("MultiStage", "_least"): _is_part,
    ("LocalTimers", "patience"): lambda value: _is_time(value) and value >= 0.0,
    ("LocalTimers", "delta"): lambda value: isinstance(value, dict) and all(map(_is_time, value.values())),
    ("Termination", "_checked_at"): lambda value: _is_number(value) and 0.0 <= value < math.inf,
    ("Termination", "_marks"): _marks,
    ("Termination", "_visits"): _counts,
    ("", "staleness"): lambda value: _is_number(value) and value >= 0.0,
    ("", "batches"): lambda value: _is_count(value) and value >= 1,
}
"""By class and attribute, or by attribute alone."""
