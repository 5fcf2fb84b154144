"""Answers of a server to the coordinator, a few at a time: the coordinator never has more of θ on its way than a few
messages of each server. Pure.

Large answers are acknowledged (`AnswerSeen`); behind two that are not, others wait here. They hold references to θ,
which is made anew by each fold, so waiting takes no memory.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Any

import msgspec

from flegel.core.pytree import Array
from flegel.server_messages import SlicesFolded

Answer = tuple[SlicesFolded, tuple[Array, ...]]


@dataclass
class PacedAnswers:
    """Paces the answers of one server."""

    at_once: int = 8 << 20
    """Bytes of one answer, unless a single slice has more."""
    above: int = 1 << 20
    """Bytes from which on an answer is acknowledged."""
    window: int = 2
    """Answers that may be on their way."""
    _waiting: deque[Answer] = field(default_factory=deque)
    _unseen: int = 0

    def add(self, body: SlicesFolded, arrays: tuple[Array, ...]) -> None:
        paced = sum(a.nbytes for a in arrays) >= self.above
        self._waiting.append((msgspec.structs.replace(body, paced=paced), arrays))

    def seen(self) -> None:
        """The coordinator has taken one."""
        self._unseen -= 1

    def due(self) -> list[Answer]:
        """What may leave now."""
        found: list[Any] = []
        while self._waiting and self._unseen < self.window:
            self._unseen += self._waiting[0][0].paced
            found.append(self._waiting.popleft())
        return found
