"""Calls of a group to its store: one at a time for each object, later again where one failed. Pure.

A failed put may have happened, or may happen later; whoever asked looks again. Delays double up to two seconds, so that
a store that comes back is noticed soon and one that is away is left alone.
"""

from __future__ import annotations

from collections.abc import Callable

from flegel.configuration.active import active
from flegel.machine.group.events import (
    Answered,
    DeleteObject,
    GetObject,
    GroupCommand,
    ListObjects,
    PutObject,
    StoreCommand,
)


class StoreCalls:
    """What is under way, and what has to wait."""

    def __init__(self, poll: float, longest_poll: float, now: float = 0.0) -> None:
        """`poll`: seconds before a call is made again after its first answer without news; waits grow to
        `longest_poll`."""
        self._poll, self._longest = poll, longest_poll
        self._calls_under_way: dict[int, StoreCommand] = {}
        self._objects_under_way: set[tuple[str, str]] = set()
        """Kind of call (get, put, …) and name of the object; likewise below."""
        self._not_before: dict[tuple[str, str], float] = {}
        self._delay: dict[tuple[str, str], float] = {}
        self._number = 0
        self._began_at: dict[int, float] = {}
        self.seconds = 0.0
        """That the call which was answered last took."""
        self.out: list[GroupCommand] = []
        self.answered_at = now
        """When the store answered last."""
        self.failed: dict[str, str] = {}
        """Why the last call to an object failed; those that were answered since are not here."""

    def get(self, key: str, now: float, largest: int = 0) -> None:
        """Read an object, unless that is under way or it is too early to look again."""
        self._call(("get", key), now, lambda op: GetObject(op, key, largest))

    def list(self, prefix: str, now: float) -> bool:
        """True where the call was made."""
        return self._call(("list", prefix), now, lambda op: ListObjects(op, prefix))

    def is_free(self, kind: str, key: str, now: float) -> bool:
        """Whether a call of this kind can be made now: none is under way for this object, and none has to wait."""
        return (kind, key) not in self._objects_under_way and now >= self._not_before.get((kind, key), now)

    @property
    def last_number(self) -> int:
        """Of the last call that was made; later ones have greater numbers."""
        return self._number

    def delete(self, key: str, now: float) -> None:
        self._call(("delete", key), now, lambda op: DeleteObject(op, key))

    def put(self, key: str, content: bytes, now: float, mode: str = "replace", expected: str = "") -> bool:
        """True where the call was made."""
        return self._call(("put", key), now, lambda op: PutObject(op, key, content, mode, expected))

    def _call(self, what: tuple[str, str], now: float, make: Callable[[int], StoreCommand]) -> bool:
        """Issue a command for an object unless a call for it is under way or must still wait after a failure; whether
        it was issued. `what`: the kind of call and the key; `make` builds the command from its number."""
        if not self.is_free(*what, now):
            return False
        self._number += 1
        command = make(self._number)
        self._calls_under_way[self._number] = command
        self._began_at[self._number] = now
        self._objects_under_way.add(what)
        self.out.append(command)
        return True

    def took(self, event: Answered, now: float) -> StoreCommand | None:
        """The call that was answered; None for an answer to no question."""
        command = self._calls_under_way.pop(event.op, None)
        if command is None:
            return None
        self.seconds = now - self._began_at.pop(event.op)
        what = _what(command)
        self._objects_under_way.discard(what)
        if event.outcome == "failed":
            self.failed[what[1]] = event.why or "no answer"
            self._wait(what, now, active().groups.first_retry_delay_seconds, active().groups.max_retry_delay_seconds)
        else:
            self.answered_at = now
            self.failed.pop(what[1], None)
            if event.outcome in ("absent", "refused"):
                self._wait(what, now, self._poll, self._longest)
            else:
                self.forget(*what)
        return command

    def _wait(self, what: tuple[str, str], now: float, first: float, longest: float) -> None:
        delay = min(max(1.5 * self._delay.get(what, 0.0), first), longest)  # waits grow by half each time
        self._delay[what], self._not_before[what] = delay, now + delay

    def again(self, kind: str, key: str, at: float) -> None:
        """Do not look before this time."""
        self._not_before[kind, key] = at

    def forget(self, kind: str, key: str) -> None:
        """No delay from before."""
        self._delay.pop((kind, key), None)
        self._not_before.pop((kind, key), None)

    def next_at(self, now: float) -> float:
        """When a delay is over."""
        return min(
            (at for what, at in self._not_before.items() if at > now and what not in self._objects_under_way),
            default=now + 1,
        )


def _what(command: StoreCommand) -> tuple[str, str]:
    """The kind of call, and the key or prefix that it concerns: at most one call of each is under way."""
    match command:
        case GetObject(_, key):
            return "get", key
        case PutObject(_, key):
            return "put", key
        case DeleteObject(_, key):
            return "delete", key
        case ListObjects(_, prefix):
            return "list", prefix
