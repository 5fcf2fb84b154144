"""Objects of the bucket that should be there and cannot be read: absent, refused or damaged. Pure.

A group names them in its beats (`MemberBeat.lacks`). Whoever wrote such an object, or knows the result that it holds,
writes it again. One that stays unreadable for longer than a group may be silent, while the store answers, is given up:
a contribution is left out, a result is made anew where nobody who is there has applied it, and a round whose
contributions are lost is abandoned.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MAX_NAMED_OBJECTS = 16  # objects in one beat: a round has one for each group, and the result


@dataclass
class _Lack:
    since: float
    looked: float
    """When it was looked at last."""
    why: str
    tag: str


class UnreadableObjects:
    """What could not be read, since when and why."""

    def __init__(self, patience: float) -> None:
        self._patience = patience
        self._lacks: dict[str, _Lack] = {}

    def note(self, key: str, why: str, tag: str, now: float) -> None:
        """It could not be read. `tag`: of what is there instead; empty where nothing is."""
        known = self._lacks.get(key)
        self._lacks[key] = _Lack(known.since if known is not None else now, now, why, tag)

    def give_up(self, key: str, why: str) -> None:
        """It is whole, and will never be what is needed."""
        self._lacks[key] = _Lack(-math.inf, 0.0, why, "")

    def found(self, key: str) -> None:
        """It could be read, or is not needed any more."""
        self._lacks.pop(key, None)

    def clear(self) -> None:
        self._lacks.clear()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._lacks)[:MAX_NAMED_OBJECTS])

    def holds(self, key: str) -> bool:
        return key in self._lacks

    def tag(self, key: str) -> str:
        lack = self._lacks.get(key)
        return lack.tag if lack is not None else ""

    def why(self, key: str) -> str:
        lack = self._lacks.get(key)
        return lack.why if lack is not None else ""

    def for_longer_than(self, key: str, seconds: float) -> bool:
        """From the first look at it to the last one that the store answered: time in which the store was away says
        nothing."""
        lack = self._lacks.get(key)
        return lack is not None and lack.looked - lack.since > seconds

    def given_up(self, key: str) -> bool:
        return self.for_longer_than(key, self._patience)
