"""What a comparison found, as it is written to JSON and read back. Pure data; knows no cluster.

Everything that a report shows is in here, so that a report can be made again, elsewhere and later, from the file.
Fields that were renamed keep their names of format 1 in the file (`rename`).
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import msgspec

from flegel.compare.stats import Spread, median, spread
from flegel.errors import UNDECODABLE, StorageError
from flegel.loading.regular_files import MAX_DOCUMENT_BYTES, read_regular

RECORD_FORMAT = 1  # version of the file


class Attempt(msgspec.Struct, kw_only=True, rename={"candidate": "contender", "other_programs_share": "foreign"}):
    """One run of one candidate."""

    candidate: str
    round: int
    outcome: str
    """`reached` the target, `diverged`, `stalled` (no change any more, short of the target), `limit` or `failed`."""
    reason: str
    reached: float | None = None
    """Seconds of training until the target was reached."""
    seconds: float = 0.0
    objective: float | None = None
    """What the engine said at the end."""
    checked: float | None = None
    """What an evaluation of the model on the data, from scratch, says."""
    metrics: dict[str, float] = {}
    barriers: int = 0
    utilization: float = 0.0
    passes_low: float = 0.0
    passes_high: float = 0.0
    load_seconds: float = 0.0
    other_programs_share: float | None = None
    """Processor time of other programs, as a share (0 to 1) of what all usable cores offer."""
    steal: float | None = None
    """Time that the hypervisor took away, as a share of the time."""
    load_average: float | None = None
    disturbed: str = ""
    again: bool = False
    """Run once more because an earlier one was disturbed."""


class Lane(msgspec.Struct):
    """What one worker did when: (begin, end, kind) with kind `compute`, `respond` or `wait`."""

    worker: int
    segments: list[tuple[float, float, str]] = []
    shares: list[tuple[float, float, float]] = []
    """Instead of segments where there are too many: shares of computing, responding and waiting in equal slices."""


class Timeline(msgspec.Struct):
    """All workers of one run."""

    seconds: float
    lanes: list[Lane]
    moving: list[tuple[float, float]] = []
    """When points were on their way from one worker to another."""
    updates: list[float] = []
    """Moments at which θ was made, where these are few."""


class Picture(msgspec.Struct, kw_only=True):
    """One run to look at: the curve, the workers, the reasons."""

    curve: list[tuple[float, float | None, float | None]]
    """Seconds, objective, interval; thinned."""
    timeline: Timeline
    workers: list[dict[str, Any]]
    reasons: list[tuple[float, str]] = []
    staleness: dict[str, int] = {}
    costs: list[tuple[float, float]] = []
    """Seconds, cost of that barrier in seconds; thinned."""
    note: str = ""


class RunEnvironment(msgspec.Struct, kw_only=True):
    """Where and when it was measured."""

    date: str
    commit: str
    machine: dict[str, str]
    versions: dict[str, str]
    command: str = ""


class Comparison(
    msgspec.Struct,
    kw_only=True,
    tag_field="kind",
    tag="compare",
    rename={"candidates": "contenders", "environment": "setting"},
):
    """Candidates on the same data, from the same start, to the same target."""

    format: int = RECORD_FORMAT
    title: str
    algorithm: str
    hyperparameters: dict[str, Any]
    dataset: dict[str, Any]
    workers: int
    straggler: str
    seed: int
    maximize: bool
    target: float
    target_note: str
    limit: float
    candidates: list[str]
    attempts: list[Attempt]
    pictures: dict[str, Picture] = {}
    notes: list[str] = []
    environment: RunEnvironment | None = None

    def of(self, candidate: str) -> list[Attempt]:
        """The attempts that count: undisturbed ones, where there are any."""
        mine = [a for a in self.attempts if a.candidate == candidate]
        quiet = [a for a in mine if not a.disturbed]
        return quiet or mine

    def times(self, candidate: str) -> Spread | None:
        """Seconds to the target; None unless most attempts reached it."""
        mine = self.of(candidate)
        found = [a.reached for a in mine if a.reached is not None]
        return spread(found) if found and 2 * len(found) > len(mine) else None

    def lines(self) -> list[TableLine]:
        """One line per candidate, in the order asked for."""
        known = {c: self.times(c) for c in self.candidates}
        best = min((s.median for s in known.values() if s), default=None)
        return [line for c in self.candidates if (line := _line(c, self.of(c), known[c], best))]

    def ratio(self, slow: str, fast: str) -> tuple[float, bool] | None:
        """How many times longer `slow` takes; with True where that is only a lower bound.

        None where nothing is known: a run that was given up sooner than `fast` was done says nothing.
        """
        quick, other = self.times(fast), self.times(slow)
        if quick is None or quick.median <= 0:
            return None
        if other is not None:
            return other.median / quick.median, False
        ran = [a.seconds for a in self.of(slow) if a.outcome == "limit"]
        return (median(ran) / quick.median, True) if ran and median(ran) >= quick.median else None


class TableLine(msgspec.Struct, kw_only=True):
    """A candidate in the table."""

    candidate: str
    time: Spread | None
    ratio: float | None
    """To the best; a lower bound where `time` is None."""
    ran: float
    """Median seconds of its runs, whether they reached the target or not."""
    outcome: str
    barriers: float
    utilization: float
    passes_low: float
    passes_high: float
    objective: float | None
    confirmed: bool
    """`objective` comes from an evaluation from scratch, not from the engine."""
    disturbed: bool
    count: int


def _line(name: str, mine: list[Attempt], time: Spread | None, best: float | None) -> TableLine | None:
    """A candidate's line of the table from its attempts; None where it never ran."""
    if not mine:
        return None
    ratio = time.median / best if time and best else None
    if time is None and best and (ran := [a.seconds for a in mine if a.outcome == "limit"]):
        ratio = median(ran) / best if median(ran) >= best else None
    checked = [a.checked for a in mine if a.checked is not None]
    stated = [a.objective for a in mine if a.objective is not None]
    values = checked or stated
    outcomes = [a.outcome for a in mine]
    return TableLine(
        candidate=name,
        time=time,
        ratio=ratio,
        ran=median([a.seconds for a in mine]),
        outcome=max(sorted(set(outcomes)), key=outcomes.count),
        barriers=median([a.barriers for a in mine]),
        utilization=median([a.utilization for a in mine]),
        passes_low=median([a.passes_low for a in mine]),
        passes_high=median([a.passes_high for a in mine]),
        objective=median(values) if values else None,
        confirmed=bool(checked),
        disturbed=all(a.disturbed for a in mine),
        count=len(mine),
    )


def write(document: msgspec.Struct, path: Path) -> None:
    """Write a comparison as JSON, in one step."""
    scratch = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch.write_bytes(msgspec.json.encode(document) + b"\n")
        scratch.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink()
        raise StorageError(f"Could not write {path}: {error.strerror or error}.") from None


def read(path: Path, kind: Any = Comparison) -> Any:
    """A file that `write` made of a record of this kind."""
    try:
        found = msgspec.json.decode(read_regular(path, MAX_DOCUMENT_BYTES), type=kind)
    except OSError as error:
        raise StorageError(f"Could not read {path}: {error.strerror or error}.") from None
    except UNDECODABLE as error:
        raise StorageError(f"{path} is no record of Flegel that can be shown here: {error}.") from None
    if found.format != RECORD_FORMAT:
        raise StorageError(f"{path} has format {found.format}; this version reads {RECORD_FORMAT}.")
    return found
