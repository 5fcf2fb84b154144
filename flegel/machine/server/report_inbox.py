"""What workers have sent and what they wait for: reports that no fold has used yet, and θ that is not made yet. Pure
bookkeeping.

A part of a report counts once: what comes again, or belongs to a round that is folded already, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flegel.core.pytree import Array


@dataclass
class PushedParts:
    """What has come of one report: the rest fields, and the cut fields by slice."""

    rest: list[Array]
    parts: dict[int, list[Array]] = field(default_factory=dict)


class ReportInbox:
    """Parts of reports for the slices of one server."""

    def __init__(self) -> None:
        self._reports: dict[int, dict[int, PushedParts]] = {}
        """By worker, then by round: a worker has few rounds here, a job may have thousands of workers."""

    def put(self, worker: int, round_: int, uncut_fields: list[Array], parts: dict[int, list[Array]]) -> None:
        """Parts by slice."""
        held = self._reports.setdefault(worker, {}).setdefault(round_, PushedParts(uncut_fields)).parts
        for number, arrays in parts.items():
            held.setdefault(number, arrays)

    def has(self, worker: int, rounds: Sequence[int], number: int) -> bool:
        mine = self._reports.get(worker, {})
        return all(round_ in mine and number in mine[round_].parts for round_ in rounds)

    def get(self, worker: int, round_: int, number: int) -> tuple[list[Array], list[Array]]:
        """The rest fields, and the cut fields of this slice."""
        report = self._reports[worker][round_]
        return report.rest, report.parts[number]

    def used(self, worker: int, round_: int, number: int) -> None:
        """Note that a slice holds everything of this worker up to that round."""
        mine = self._reports.get(worker, {})
        for each in [each for each in mine if each <= round_]:
            mine[each].parts.pop(number, None)
            if not mine[each].parts:
                del mine[each]

    def clear(self) -> None:
        self._reports.clear()

    def __len__(self) -> int:
        return sum(len(mine) for mine in self._reports.values())


class OpenPulls:
    """Workers that asked for θ of a version that is not here yet."""

    def __init__(self) -> None:
        self._wanted_slices: dict[int, tuple[int, set[int]]] = {}

    def add(self, worker: int, version: int, missing: set[int]) -> None:
        if missing:
            known, others = self._wanted_slices.get(worker, (version, set()))
            self._wanted_slices[worker] = (version, missing | others if known == version else missing)

    def take(self, numbers: Iterable[int], versions: Mapping[int, int]) -> list[tuple[int, list[int]]]:
        """By worker: those of these slices that it waits for and that are here by now, in these versions."""
        found = []
        for worker, (version, wanted) in list(self._wanted_slices.items()):
            ready = [n for n in numbers if n in wanted and versions.get(n, -1) >= version]
            wanted -= set(ready)
            if not wanted:
                del self._wanted_slices[worker]
            found.append((worker, ready))
        return found
