"""Reports that workers have pushed and no fold has used yet, by worker and round. Pure bookkeeping.

A part counts once: what comes again, or belongs to a round that is folded already, changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

from flegel.core.pytree import Array


class ReportInbox:
    """Parts of reports for the slices of one server."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, int], list[Array]] = {}
        self._parts: dict[tuple[int, int], dict[int, list[Array]]] = {}

    def put(self, worker: int, round_: int, rest: list[Array], parts: dict[int, list[Array]]) -> None:
        """Parts by slice."""
        key = (worker, round_)
        held = self._parts.setdefault(key, {})
        self._rest.setdefault(key, rest)
        for number, arrays in parts.items():
            held.setdefault(number, arrays)

    def has(self, worker: int, rounds: Sequence[int], number: int) -> bool:
        return all(number in self._parts.get((worker, round_), ()) for round_ in rounds)

    def get(self, worker: int, round_: int, number: int) -> tuple[list[Array], list[Array]]:
        """The rest fields, and the cut fields of this slice."""
        return self._rest[worker, round_], self._parts[worker, round_][number]

    def used(self, worker: int, round_: int, number: int) -> None:
        """This slice holds everything of this worker up to that round."""
        for key in [key for key in self._parts if key[0] == worker and key[1] <= round_]:
            self._parts[key].pop(number, None)
            if not self._parts[key]:
                del self._parts[key], self._rest[key]

    def clear(self) -> None:
        self._rest.clear()
        self._parts.clear()

    def __len__(self) -> int:
        return len(self._parts)
