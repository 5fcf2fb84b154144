"""What happens to a group and what it wants done. Plain records, no decisions.

Between the group (the thread that talks to the bucket) and the coordinator of its job: `Offered`, `StatusChanged` one
way; `Synchronized`, `Withheld`, `GroupJoined`, `GroupLost`, `Waiting`, `Fenced`, `Stalled` the other. At the end:
`Evaluated`, and `EndsHeard` back.
"""

from __future__ import annotations

import msgspec

from flegel.core.pytree import Array
from flegel.machine.coordinator.events import PartCommand, PartEvent
from flegel.machine.coordinator.observation import SitesSnapshot


class Answered(msgspec.Struct, frozen=True):
    """The store's answer. `failed` says nothing about whether a put has happened or still will."""

    op: int
    outcome: str
    """done, absent, conflict (a condition did not hold), refused (not signed as it should be) or failed."""
    content: bytes = b""
    tag: str = ""
    """Of what is there, also where it was refused."""
    names: tuple[str, ...] = ()
    why: str = ""


class TimePassed(msgspec.Struct, frozen=True):
    """Time has passed."""


class Offered(msgspec.Struct, frozen=True):
    """What this group contributes to a round; no arrays: it withholds."""

    round: int
    arrays: tuple[Array, ...]
    parameter: tuple[Array, ...]
    visits: float
    points: int
    settled: bool
    objective: float | None
    commits: int
    wire: str = "full"
    """How changes of θ are written (`wire.py`)."""
    fragment: int = -1
    """Of θ that it changes (`fragments.py`); -1: all."""
    changed: tuple[float, ...] = ()
    """By how much this group has changed each fragment, where there are several."""


class StatusChanged(msgspec.Struct, frozen=True):
    """What the beats are to say from now on."""

    state: str
    commits: int = 0
    workers: int = 0
    load: float = 0.0


class Evaluated(msgspec.Struct, frozen=True):
    """Statistics of one pass over all rows of this group under its last θ."""

    arrays: tuple[Array, ...]


class Hinted(msgspec.Struct, frozen=True):
    """Another group sent its beat directly. It may be lost, late or there twice; the store says the same later."""

    content: bytes


GroupEvent = Answered | TimePassed | Offered | StatusChanged | Evaluated | Hinted


class GetObject(msgspec.Struct, frozen=True):
    op: int
    key: str
    largest: int = 0
    """Bytes; what is larger is refused without being read. 0: as many as the store allows."""


class PutObject(msgspec.Struct, frozen=True):
    op: int
    key: str
    content: bytes
    mode: str = "replace"
    """replace, create (only where there is none), or swap (only where its tag is `expected`)."""
    expected: str = ""


class ListObjects(msgspec.Struct, frozen=True):
    op: int
    prefix: str


class DeleteObject(msgspec.Struct, frozen=True):
    op: int
    key: str


class SendHint(msgspec.Struct, frozen=True):
    """This group's beat, for everybody who can be reached directly."""

    content: bytes


class Synchronized(msgspec.Struct, frozen=True):
    """The result of a round, for the coordinator. The round after it is open."""

    round: int
    remote: dict[str, tuple[Array, ...]]
    """Statistics of every other group; empty where θ is exchanged."""
    parameter: tuple[Array, ...]
    """The new θ (its additive fields), where θ is exchanged; else θ of one group, for those who join."""
    included: bool
    """This group's own contribution is part of it."""
    final: bool
    groups: tuple[str, ...]
    together: bool = False
    """Every group that ever took part, and as many as are expected, contributed to this very round."""
    ages: dict[str, int] = {}
    """Rounds by which contributions are older than the result, where they are."""
    why: str = ""
    """Why the round ended, where a quorum ended it."""
    link: float = 0.0
    """Bytes a second that this group can send to the bucket; 0 while that is not known."""
    fragments: tuple[int, ...] = (0,)
    """Of θ that are new, where θ is exchanged."""
    next_fragment: int = 0
    """Of θ that the next round is for."""
    outliers: dict[str, str] = {}
    """Groups whose changes were outliers, and what was done to them."""


class RoundOpened(msgspec.Struct, frozen=True):
    """The first round of a job: there is no result yet; or one was left out."""

    round: int
    fragment: int = 0
    """Of θ that it is for."""


class GroupJoined(msgspec.Struct, frozen=True):
    """A group that was not there before."""

    group: str


class Fenced(msgspec.Struct, frozen=True):
    """Another process took the name of this group."""

    why: str


class Excluded(msgspec.Struct, frozen=True):
    """The model of this group was not good enough too often."""

    why: str


class Stalled(msgspec.Struct, frozen=True):
    """This group waits in vain: the bucket does not answer, an object stays unreadable, a group never came. Repeated
    while that lasts."""

    why: str


class Waiting(msgspec.Struct, frozen=True):
    """What this group waits for, for people; empty: it waits no longer. Repeated while that lasts."""

    why: str
    line: bool = False
    """It is time for a line in the log."""


class GroupLost(msgspec.Struct, frozen=True):
    """A group is not waited for any more, and the next result is without it."""

    group: str
    why: str
    """has left, has been silent for 30 s, …"""
    stands: bool = False
    """Its last statistics stay in the model: with a quorum groups may be absent."""


class SitesSeen(msgspec.Struct, frozen=True):
    """Who is there and who is waited for, for people: when that changes, at most once a beat."""

    seen: SitesSnapshot


class Withheld(msgspec.Struct, frozen=True):
    """A contribution that was offered is not sent, and will not be."""

    round: int


class EndsHeard(msgspec.Struct, frozen=True):
    """Statistics of other groups under the θ of the last result, as far as they came."""

    statistics: dict[str, tuple[Array, ...]]


class Remark(msgspec.Struct, frozen=True):
    text: str


StoreCommand = GetObject | PutObject | ListObjects | DeleteObject
ToCoordinator = (
    Synchronized
    | RoundOpened
    | Withheld
    | GroupJoined
    | GroupLost
    | Fenced
    | Excluded
    | Stalled
    | Waiting
    | EndsHeard
    | SitesSeen
    | Remark
)
GroupCommand = StoreCommand | ToCoordinator | SendHint


class FromGroup(PartEvent, frozen=True):
    """News of the other groups that train the same model (machine/group)."""

    news: ToCoordinator


class ToGroup(PartCommand, frozen=True):
    """For the other groups: a contribution, or how this one stands."""

    body: Offered | StatusChanged | Evaluated
