"""The object in `members/` by which a group shows that it is there: written by compare-and-swap. Pure.

Of two processes with one name the one that began later has the larger life. It takes the object over, and the other
one finds that out at its next beat, whatever their clocks say. What is damaged is replaced.
"""

from __future__ import annotations

from flegel.errors import DecodeError
from flegel.machine.group.events import Answered, PutObject
from flegel.machine.group.records import MAX_BEAT_BYTES, MEMBERS, MemberBeat, decode
from flegel.machine.group.store_calls import StoreCalls


class OwnBeat:
    """What is in the store under this group's name, as far as it is known."""

    def __init__(self, name: str, life: int, now: float) -> None:
        """`name`: of the group. `life`: the incarnation of its process, larger than those of earlier processes."""
        self.key = MEMBERS + name
        self._life = life
        self._object_is_known = False
        """It was read, or written, since the last failure: `_object_exists` and `_tag` hold."""
        self._object_exists = False
        self._tag = ""
        self.told: MemberBeat | None = None
        """The last beat that is certainly in the store."""
        self.told_at = now

    def write(self, calls: StoreCalls, content: bytes, now: float) -> bool:
        """True where the put is under way; otherwise what is there has to be read first."""
        if not self._object_is_known:
            calls.get(self.key, now, MAX_BEAT_BYTES)
            return False
        mode = "create" if not self._object_exists else "swap" if self._tag else "replace"
        return calls.put(self.key, content, now, mode, self._tag)

    def stored(self, command: PutObject, event: Answered, now: float) -> None:
        """The answer to a put; one that failed may have happened."""
        self._object_is_known = event.outcome == "done"
        if self._object_is_known:
            self._object_exists, self._tag, self.told_at = True, event.tag, now
            self.told, _ = decode(command.content, MemberBeat)

    def read(self, event: Answered) -> bool:
        """What is there; True where a process that began later has taken the name."""
        if event.outcome == "failed":
            return False
        self._object_is_known, self._object_exists, self._tag = True, event.outcome != "absent", event.tag
        if event.outcome != "done":
            return False
        try:
            beat, _ = decode(event.content, MemberBeat)
        except DecodeError:
            return False
        return MEMBERS + beat.group == self.key and beat.life > self._life
