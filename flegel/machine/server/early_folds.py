"""Slices of θ that are made before the fold is ordered: as soon as all expected workers have pushed a slice. Pure.

The coordinator says whom it expects when it lets workers train. Each slice that is complete is folded on the side, and
its θ leaves at once, while other slices still come in: a link carries both directions at the same time. Nothing is
committed. When the fold is ordered, with the same reports and the version that was reserved, it is done as ever, with
the same bits, and only the sending is left out. When another fold is ordered, it has another version, and what was sent
early is never used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Protocol

from flegel.core.pytree import Tree
from flegel.server_messages import ExpectReports, FoldSlices, ReplaceParameter


class EarlySlice(Protocol):
    """What is asked of a slice."""

    op: int

    def early(self, place: str, changes: list[Tree]) -> Tree | None: ...


class EarlyFolds:
    """One server."""

    def __init__(self) -> None:
        self._expected_reports: ExpectReports | None = None
        self._tried_slices: set[int] = set()
        self._pushes: Counter[int] = Counter()
        """By slice: parts that have come since; with thousands of workers one does not look for all at each part."""
        self._sent_versions: dict[int, int] = {}
        """By slice: the version that receivers have."""

    def expect(self, body: ExpectReports) -> None:
        self._expected_reports = body
        self._tried_slices.clear()
        self._pushes.clear()

    def pushed(self, numbers: Iterable[int]) -> None:
        """Parts of a report have come."""
        self._pushes.update(numbers)

    def candidates(self) -> list[int]:
        """Slices that may be complete."""
        count = len(self._expected_reports.reports) if self._expected_reports is not None else 0
        return [n for n, pushes in self._pushes.items() if pushes >= count > 0 and n not in self._tried_slices]

    def make(self, number: int, state: EarlySlice, changes: Callable[[], list[Tree]]) -> Tree | None:
        """θ of a slice that has the reports of all expected workers; None where it cannot be made now."""
        body = self.expected
        if state.op != body.after:
            return None
        self._tried_slices.add(number)
        made = state.early(body.place, changes())
        if made is not None:
            self._sent_versions[number] = body.version
        return made

    @property
    def expected(self) -> ExpectReports:
        assert self._expected_reports is not None
        return self._expected_reports

    def forget(self, number: int) -> None:
        """Another server has the slice."""
        self._sent_versions.pop(number, None)
        self._tried_slices.discard(number)

    def missing(self, fold: FoldSlices | ReplaceParameter, worker: int, numbers: Iterable[int]) -> list[int]:
        """Slices whose θ this worker has not been sent yet."""
        body = self._expected_reports
        known = body is not None and worker in body.receivers and fold.version == body.version
        return [n for n in numbers if not (known and self._sent_versions.get(n) == fold.version)]
