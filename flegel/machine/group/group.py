"""A group and its rounds: what to read from and write to the bucket, and what follows. Pure: no store, clock or thread.

    joining     find the newest result by `current` and the beats of others, or begin with the first round: 1, or that
                after `current` where this is of an earlier training in the same bucket
    open        beats; contribute; when everybody who is waited for has, one of them writes the result, once
    fetching    the result is known; read the contributions that it names, then tell the coordinator
    ending      training is over everywhere; statistics under the last θ are exchanged for its objective
    over        the last beat says how this group ended

Each group is in one round, and opens the next when it has applied the result. With a quorum a round ends when so many
have contributed and waiting for more does not pay (`quorum.py`); a contribution that is late is part of a later round,
and statistics of absent groups stand. Nothing depends on an earlier message:
the state of every group is in its beat, a result is written once by a conditional put, and every other object is
written by one group alone. So a put whose answer was lost is looked up, a stale listing only delays, and clocks need
not agree.

Every wait has a bound. An object that cannot be read is named in the beat, and who knows its content writes it again
(`unreadable.py`); after `silence` seconds it is given up. What then still does not go on is told as `Stalled`, and
nobody waits for this group any more. Bounds count only time in which this group was awake.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.machine.coordinator.observation import SiteSnapshot
from flegel.machine.group.common_parameter import REMOVED, CommonParameter
from flegel.machine.group.contributions import LARGEST_COUNT, OTHER_PACKAGE, Contributions
from flegel.machine.group.events import (
    Answered,
    EndsHeard,
    Evaluated,
    Fenced,
    GetObject,
    GroupCommand,
    GroupEvent,
    GroupJoined,
    GroupLost,
    Hinted,
    ListObjects,
    Offered,
    PutObject,
    Remark,
    RoundOpened,
    SendHint,
    Stalled,
    StatusChanged,
    StoreCommand,
    Synchronized,
    TimePassed,
    Withheld,
)
from flegel.machine.group.fragments import Fragments
from flegel.machine.group.link_meter import LinkMeter
from flegel.machine.group.own_beat import OwnBeat
from flegel.machine.group.own_contribution import OwnContribution
from flegel.machine.group.quorum import ALL_GROUPS, GraceWindow, Quorum, RoundEnd
from flegel.machine.group.records import (
    CURRENT,
    ENDS,
    MAX_BEAT_BYTES,
    MEMBERS,
    NAME,
    Contribution,
    Current,
    EndStatistics,
    Entry,
    MemberBeat,
    RoundResult,
    contribution_key,
    decode,
    digest_of,
    encode,
    finite,
    result_key,
)
from flegel.machine.group.store_calls import StoreCalls
from flegel.machine.group.table import MemberLook, MemberTable
from flegel.machine.group.unreadable import UnreadableObjects
from flegel.machine.group.waiting import SiteReports, WaitReports, missing_groups
from flegel.machine.group.wire import packed

ENDED_PHASES = ("finished", "left", "excluded")
HEADERS_KEPT_FACTOR = 3
"""Headers of results are kept for so many times `kept_rounds`. Clean-up leaves the last `kept_rounds` alone, works on
as many before them, and its answers may take as many again."""


@dataclass(frozen=True)
class GroupSettings:
    """One group. `life` grows from one process of it to the next."""

    name: str
    life: int
    exchange: str = "statistics"
    """statistics or parameters."""
    outer: str = "mean"
    silence: float = 30.0
    """Seconds without a changed beat after which a group leaves the table."""
    beat: float = 1.0
    poll: float = 0.02
    """Seconds between two looks for what is awaited, at first; they grow up to `beat`."""
    least_groups: int = 1
    """Training is not over before so many groups have taken part in one round."""
    address: str = ""
    package: str = ""
    """Hash of the training package."""
    largest: int = 0
    """Bytes of a contribution or a result at most; 0: as many as the store allows."""
    fragments: int = 1
    """Parts of θ, one of which is exchanged in a round."""
    outliers: str = "keep"
    """What is done to changes that are outliers: keep, clip, damp or exclude."""
    quorum: Quorum = ALL_GROUPS
    grace: float | None = None
    """Seconds that a round with its quorum waits for more; None: found."""


class Group:
    """Build it, feed it events, carry out its commands. `next_at` says when to wake it."""

    def __init__(
        self, settings: GroupSettings, shapes: Sequence[tuple[int, ...]], base: Sequence[Array], now: float
    ) -> None:
        """`shapes`: of what is contributed. `base`: additive fields of θ(0), where θ is exchanged."""
        self._settings = settings
        self._calls = StoreCalls(settings.poll, settings.beat, now)
        self.table = MemberTable(settings.name, settings.silence, active().groups.beats_until_late * settings.beat)
        self._common = CommonParameter(base, Fragments(shapes, settings.fragments))
        self._contributions = Contributions(shapes, settings.package, settings.fragments, settings.exchange)
        self._shapes = list(shapes)
        self._status = StatusChanged("loading")
        self.phase = "joining"
        self.round = 0
        self._own = OwnContribution(replaces=settings.exchange == "statistics")
        self._next_offer: Offered | None = None  # to be written after the contribution that is being written
        self._end_content, self._end_is_stored = b"", False  # statistics of this group under the last θ
        self._counted: dict[str, tuple[int, int]] = {}
        """Of every group: life and round of its last contribution that a result counted."""
        self._link = LinkMeter()
        self._grace = GraceWindow(settings.grace, settings.beat)
        self._round_end = RoundEnd(False)
        self._distrusted: set[tuple[str, int]] = set()
        """Groups (and lives) whose last contribution stayed unreadable: rounds wait for no other one of theirs."""
        self._withheld_round = 0  # the last round to which the coordinator withheld a contribution
        self._only_withholds = False  # its last contribution was withheld: it ends with a final result of others
        self._ready_since: float | None = None  # since when the round could end, in seconds awake
        self._result: tuple[RoundResult, list[Array]] | None = None
        """The result whose contributions are being fetched, and its arrays: under `parameters` θ, then the outer
        optimizer's velocity."""
        self._previous: RoundResult | None = None  # the last result that was applied
        self._final_result: RoundResult | None = None  # the final result, where this group is in it
        self._current: tuple[int, str] = (0, "")
        """The round that the object `current` names, and the tag of the object as it was read."""
        self._first_round = 1
        """Of this training. Rounds of an earlier one in the same bucket are before it."""
        self._headers: dict[int, RoundResult] = {}  # of the last results, to leave them behind without their θ
        self._last_cleaned_round = 0  # the last round whose objects were removed
        self._own_stored_at = now
        self._beats_written = 0
        self._beat_at = -np.inf
        self._beat_object = OwnBeat(settings.name, settings.life, now)
        self._members_read_at = -np.inf
        self._refused_keys: set[str] = set()
        self.rounds_made = 0  # results that this group wrote
        self._last_event_at = now
        self._awake_seconds = 0.0  # seconds in which this group was awake: a frozen process has waited for nothing
        self._unreadable = UnreadableObjects(settings.silence)
        self._known_content: dict[str, bytes] = {}
        """Own contributions, results of the last two rounds, and those with the newest values of a fragment of θ, to be
        written again where they are damaged."""
        self._member_look = MemberLook()
        self._current_is_absent = False
        self._waiting_since: dict[str, float] = {}  # of what can stall: since when, in seconds awake
        self._stall_told_at, self._wait_reports, self._site_reports = -np.inf, WaitReports(), SiteReports()
        self._groups_told_lost: set[str] = set()  # groups whose loss was told
        self._stalled = self._fenced = False
        self._beat_at_final_result: int | None = None  # the number of the last beat when a final result was read
        self._beats_of_strangers: dict[str, tuple[int, int]] = {}
        """Life and number of the beats of groups with another package."""
        self._end_statistics: dict[str, tuple[Array, ...]] = {}

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def base(self) -> list[Array]:
        """Additive fields of θ after the last result."""
        return self._common.base

    @property
    def last_event_at(self) -> float:
        """When this group was awake last, as far as it knows."""
        return self._last_event_at

    @property
    def pending_since(self) -> float | None:
        """When its contribution that no result has counted was stored; None without one."""
        return self._own_stored_at if self._own.told is not None else None

    @property
    def over(self) -> bool:
        """The last beat is in the store, or this group has nothing to say any more."""
        told = self._beat_object.told
        return self._fenced or (
            self._status.state in ENDED_PHASES and told is not None and told.state == self._status.state
        )

    @property
    def stalled(self) -> bool:
        """This group waits in vain for the bucket or an object of it, and nobody waits for this group."""
        return self._stalled

    def handle(self, event: GroupEvent, now: float) -> list[GroupCommand]:
        """Take in an event and do what is due now. Once another process has its name (fenced), it does nothing more."""
        self._calls.out = []
        self._awake_seconds += min(
            max(now - self._last_event_at, 0.0), active().groups.beats_until_late * self._settings.beat
        )
        self._last_event_at = now
        match event:
            case Answered():
                command = self._calls.took(event, now)
                if command is not None:
                    self._answered(command, event, now)
            case Offered():
                self._offer(event, now)
            case StatusChanged():
                self._status = event
            case Evaluated(arrays):
                self._begin_ending(arrays)
            case Hinted(content):
                self._hinted(content)
            case TimePassed():
                pass
        if self._fenced:
            return [c for c in self._calls.out if isinstance(c, Fenced)]
        self._step(now)
        return self._calls.out

    def next_at(self, now: float) -> float:
        """When to wake it, at the latest."""
        found = [self._calls.next_at(now), now + self._settings.beat]
        beat_at = self._beat_at + self._settings.beat
        if beat_at > now:  # one that is due already is under way or must wait: its answer or that wait wakes this group
            found.append(beat_at)
        if not self._round_end.ends:
            found.append(now + max(self._round_end.look_at - self._awake_seconds, 0.0))
        return min(found)

    # -- what is to be done now ----------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        """What this group does at any time: its beat, the beats of others, and the work of its phase."""
        self._beat(now)
        if self._status.state in ENDED_PHASES:
            return
        if self._own.entry is not None and not self._own.stored:
            self._calls.put(self._own.entry.key, self._own.content, now)
        if now - self._members_read_at >= self._settings.beat and self._calls.list(MEMBERS, now):
            self._members_read_at = now
            for name in sorted(self.table.known):
                self._calls.forget("get", MEMBERS + name)
        for name in sorted(self.table.known):
            self._calls.get(MEMBERS + name, now, MAX_BEAT_BYTES)
        if self.phase == "joining":
            self._join(now)
        elif self.phase == "open":
            self._open(now)
        elif self.phase == "fetching":
            self._fetch(now)
        elif self.phase == "ending":
            self._end(now)
        self._watch_waits(now)
        self._tell_waiting()
        self._tell_lost()

    def _beat(self, now: float) -> None:
        """Write this group's beat where it says something new or is due; other groups get it at once as a hint."""
        status, own = self._status, self._own.told
        state = status.state if self.phase != "joining" or status.state in ENDED_PHASES else "loading"
        state = "stalled" if self._stalled and state not in ENDED_PHASES else state
        beat = MemberBeat(
            self._settings.name,
            self._settings.life,
            self._beats_written + 1,
            state,
            self.round,
            own.key if own else "",
            own.digest if own else "",
            own.round if own else 0,
            self._own.visits if own else 0.0,
            self._withheld_round,
            status.commits,
            status.workers,
            status.load,
            self._settings.address,
            self._unreadable.names,
            self._settings.package,
        )
        told = self._beat_object.told
        changed = told is None or (beat.state, beat.round, beat.sent, beat.withheld, beat.lacks) != (
            told.state,
            told.round,
            told.sent,
            told.withheld,
            told.lacks,
        )
        due = now - self._beat_at >= self._settings.beat
        content = encode(beat) if changed or due else b""
        if content and self._beat_object.write(self._calls, content, now):
            self._beats_written, self._beat_at = self._beats_written + 1, now
            self._calls.out.append(SendHint(content))

    def _hinted(self, content: bytes) -> None:
        """Says the same as the store, sooner."""
        try:
            beat, _ = decode(content, MemberBeat)
        except DecodeError:
            return  # nothing depends on it
        if NAME.fullmatch(beat.group) and beat.package == self._settings.package:
            self.table.hint(beat)

    def _offer(self, event: Offered, now: float) -> None:
        """The coordinator's contribution; without arrays it withholds one in this round. One for a round that is over
        meanwhile is late, and part of a later round."""
        if not event.arrays:
            self._withheld_round, self._only_withholds = event.round, self._own.entry is None
            self._look_anew()
            self._calls.out.append(Withheld(event.round))
            return
        if not self._own.takes(event.round):
            self._next_offer = event  # the last one is still being written
            return
        s = self._settings
        header = Contribution(
            s.name,
            s.life,
            event.round,
            len(event.arrays),
            event.visits,
            event.points,
            event.settled,
            event.objective,
            event.commits,
            s.package,
            event.wire,
            event.fragment,
            event.changed,
        )
        parameter = event.parameter if self._tells_parameter() else ()
        content = encode(header, [*packed(event.wire, event.arrays), *parameter], compress=True)
        key = contribution_key(event.round, s.name, s.life)
        self._own.offer(
            Entry(s.name, s.life, key, digest_of(content), event.round, event.settled), content, event.visits
        )
        self._known_content[key] = content
        self._withheld_round, self._only_withholds = 0, False

    def _tells_parameter(self) -> bool:
        """Whether this group's contribution holds θ beside its statistics, for those who join: one in a round does."""
        before = self._previous.entries if self._previous is not None else ()
        return not before or before[0].group == self._settings.name

    # -- waits ---------------------------------------------------------------------------------------------

    def _watch_waits(self, now: float) -> None:
        """Say why nothing goes on, where that lasts; nobody waits for this group meanwhile."""
        waits = self._waits(now)
        self._waiting_since = {what: self._waiting_since.get(what, self._awake_seconds) for what in waits}
        late = [
            what for what, (_, patience) in waits.items() if self._awake_seconds - self._waiting_since[what] > patience
        ]
        self._stalled = any(what not in ("groups", "quorum", "rows") for what in late)
        if not late:
            self._stall_told_at = -np.inf
        elif self._awake_seconds - self._stall_told_at >= self._settings.silence:
            why = f"{waits[late[0]][0]}, for {self._awake_seconds - self._waiting_since[late[0]]:.0f} s"
            if self._stall_told_at == -np.inf and self._stalled:  # otherwise it ends the job, which tells why
                self._calls.out.append(Remark(why))
            self._stall_told_at = self._awake_seconds
            self._calls.out.append(Stalled(why))

    def _waits(self, now: float) -> dict[str, tuple[str, float]]:
        """What this group waits for that others cannot know of: a sentence, and how long at most."""
        s, failed = self._settings, self._calls.failed
        limit, key = active().groups.stalled_after_silences * s.silence, result_key(self.round)
        found: dict[str, tuple[str, float]] = {}
        if now - self._calls.answered_at > active().groups.beats_until_late * s.beat:
            found["store"] = ("the bucket does not answer", limit)
        if now - self._beat_object.told_at > active().groups.beats_until_late * s.beat:
            why = failed.get(self._beat_object.key)
            found["beat"] = (_sentence("the beat of this group cannot be written", why), limit)
        if self.phase == "joining":
            found["join"] = (_sentence(f"the newest result ({key}) cannot be read", self._unreadable.why(key)), limit)
        elif self.phase == "fetching":
            found["fetch"] = (f"the contributions to round {self.round} cannot be read", limit)
        elif self.phase == "open" and self._unreadable.holds(key):
            found["result"] = (_sentence(f"{key} cannot be read", self._unreadable.why(key)), limit)
        elif self.phase == "open" and self._own.entry is not None and not self._own.stored:
            found["contribution"] = (
                _sentence(f"{self._own.entry.key} cannot be written", failed.get(self._own.entry.key)),
                limit,
            )
        if self._status.state == "resting":
            limit = active().groups.absent_after_silences * s.silence
            found |= {what: (why, limit) for what, why in self._absent().items()}
        return found

    def _absent(self) -> dict[str, str]:
        """What this group, at rest, waits for that others have not sent: a sentence."""
        found: dict[str, str] = {}
        there, needed = self._contributions_there(self._ready()), self._needed()
        if self._settings.quorum.given and self._own.told is not None and there < needed:
            found["quorum"] = f"only {there} of the quorum of {needed} groups are there"
        if self._only_withholds and self.phase == "open" and not there:
            found["rows"] = "no group has contributed, because of too few rows or a gate that none passes"
        came = len(self.table.seen()) + 1
        if self._final_result is None and came < self._settings.least_groups:
            found["groups"] = f"only {came} of --groups {self._settings.least_groups} came"
        return found

    def _tell_waiting(self) -> None:
        """Say for whom this group waits, where that lasts."""
        report = self._wait_reports.look(*self._waits_for(), self._awake_seconds)
        if report is not None:
            self._calls.out.append(report)
        seen = self._site_reports.look(self.round, self._sites, self._settings.beat, self._last_event_at)
        if seen is not None:
            self._calls.out.append(seen)

    def _sites(self) -> tuple[SiteSnapshot, ...]:
        """This group and all others, in the order of their names."""
        last = self._previous
        ages = {e.group: last.round - e.round for e in last.entries} if last is not None else {}
        name, live, late = self._settings.name, {beat.group for beat in self.table.live()}, self.phase == "open"
        own = SiteSnapshot(
            name,
            self._status.state,
            self.round,
            self._own.told is not None,
            False,
            False,
            ages.get(name),
            self._status.workers,
        )
        others = [
            SiteSnapshot(
                beat.group,
                beat.state,
                beat.round,
                self._is_new(beat),
                late and beat.group in live and not self._is_current(beat),
                self.table.silence(beat.group) > active().groups.beats_until_late * self._settings.beat,
                ages.get(beat.group),
                beat.workers,
            )
            for beat in self.table.beats()
        ]
        return tuple(sorted([own, *others], key=lambda site: site.group))

    def _waits_for(self) -> tuple[str, bool]:
        """For whom this group waits and how long at most, and whether that is told at once."""
        s, came, resting = self._settings, len(self.table.seen()) + 1, self._status.state == "resting"
        if self._final_result is not None or self.phase != "open":
            return "", False
        if resting and came < s.least_groups:
            return missing_groups(came, s.least_groups, active().groups.absent_after_silences * s.silence), True
        late = [beat.group for beat in self.table.live() if not self._is_current(beat)] if self._own.told else []
        silent = [group for group in late if self.table.silence(group) > active().groups.beats_until_late * s.beat]
        if silent:
            names, limit = ", ".join(silent), f"for {s.silence:g} s at most"
            return f"waits for {names} in round {self.round}, without a sign of life ({limit})", True
        if resting and late:
            return f"waits for {', '.join(late)} in round {self.round}, still training", False
        if s.quorum.given and self._own.told is not None:
            there, needed = self._contributions_there(self._ready()), self._needed()
            if there < needed:
                return f"waits for a quorum in round {self.round}: {there} of {needed} groups are there", False
        return "", False

    def _tell_lost(self) -> None:
        """Say once of a group that it is not waited for any more."""
        if self._final_result is not None:
            return  # training is over: who has the last result need not stay
        lost = self.table.lost()
        stand = {e.group for e in self._previous.entries} if self._stands() and self._previous is not None else set()
        stand -= self.table.left()
        new = [group for group in lost if group not in self._groups_told_lost]
        self._calls.out += [GroupLost(group, lost[group], group in stand) for group in new]
        self._groups_told_lost = set(lost)

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self, now: float) -> None:
        """Enter with the newest result that `current` or a beat tells of; with the first round where nothing does.

        That is only entered when `current` is absent, of an earlier training, or stays unreadable, and the beats of all
        listed members were read. A result that stays unreadable ends this group, unless θ is exchanged and a member is
        beyond that round: who knows this θ writes it again.
        """
        self._calls.get(CURRENT, now, MAX_BEAT_BYTES)
        newest = max(self.table.newest(), self._current[0])
        if newest >= self._first_round and newest >= max(self.round, 1):
            self.round = newest
        if self.round:
            key = result_key(self.round)
            self._calls.get(key, now, self._settings.largest)
            known = any(beat.round > self.round for beat in self.table.live())
            final = self._settings.exchange == "statistics" or not known
            if final and self._unreadable.given_up(key):
                self._abandon(f"{key} cannot be read: {self._unreadable.why(key)}")
            return
        without_current = self._current_is_absent or self._first_round > 1 or self._unreadable.given_up(CURRENT)
        if without_current and self._knows_members():
            self._calls.out.append(RoundOpened(self._first_round))
            self._enter(self._first_round)

    def _look_anew(self) -> None:
        """List the members and read their beats once more: what was asked before does not count."""
        self._member_look = MemberLook(self._calls.last_number, self._awake_seconds)
        self._members_read_at = -np.inf

    def _knows_members(self) -> bool:
        """Whether members were listed and their beats read: before that nobody can be told to be absent. In an open
        round since this group contributed to it, so that a group which began to train since the last round is not left
        out."""
        return self._member_look.is_listed and self.table.known <= self._member_look.read

    def _has_looked(self) -> bool:
        """Whether this group knows its members, or a listing or a beat could not be read for as long as a group may be
        silent."""
        return self._knows_members() or self._awake_seconds - self._member_look.began > self._settings.silence

    # -- an open round -------------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        """Wait until the round may end; then read the result, or make it if it is this group's turn."""
        s, key = self._settings, result_key(self.round)
        live, ready = self.table.live(), self._ready()
        if self.table.ahead(self.round) or self._withheld_round == self.round or self._unreadable.holds(key):
            self._calls.get(key, now, s.largest)
        if any(beat.round > self.round for beat in live):
            if self._unreadable.given_up(key) and s.exchange == "statistics":
                self._abandon(f"{key} cannot be read: {self._unreadable.why(key)}")
            return
        for beat in ready:
            if (beat.group, beat.life) in self._distrusted and beat.sent:
                self._calls.get(beat.sent, now, s.largest)  # trusted again once it can be read
        self._round_end = self._decide_end(live, ready)
        has_contributed = self._own.told is not None or self._withheld_round == self.round
        if not (self._round_end.ends and has_contributed and self._has_looked()):
            self._ready_since = None
            return
        if self._ready_since is None:
            self._ready_since = self._awake_seconds
        turn = self._turn(ready)
        if turn and self._awake_seconds - self._ready_since < 2.0 * turn * s.beat:
            self._calls.get(key, now, s.largest)  # one of the others makes it
            return
        if self._unreadable.holds(key) and not self._unreadable.for_longer_than(
            key, active().groups.remake_after_beats * s.beat
        ):
            return  # somebody may have applied it, and writes it again
        self._aggregate(live, now)

    def _decide_end(self, live: list[MemberBeat], ready: list[MemberBeat]) -> RoundEnd:
        """Whether the round ends now: every live group has contributed, or a quorum has and waiting does not pay.

        Where everybody is at rest nobody trains, so waiting costs nothing: training is only over with a round in which
        all are up to date."""
        own, withheld = self._own.told, self._withheld_round == self.round
        late = [beat.group for beat in live if not self._is_current(beat)]
        if not withheld and (own is None or not self._is_of_round(own.round)):
            late.append(self._settings.name)
        if not self._settings.quorum.given:
            return RoundEnd(not late)
        if all(state == "resting" for state in (self._status.state, *(beat.state for beat in live))):
            there = self._contributions_there(ready)
            return RoundEnd(not late and there >= self._needed(), "every group is at rest")
        for beat in live:
            if self._is_current(beat):
                self._grace.arrived(beat.group, beat.visits, self._awake_seconds)
        if self._settings.name not in late:
            self._grace.arrived(self._settings.name, self._own.visits, self._awake_seconds)
        return self._grace.decide(self._contributions_there(ready), self._needed(), late, self._awake_seconds)

    def _ready(self) -> list[MemberBeat]:
        """Live groups that have contributed, or withhold their contribution to this round."""
        return [beat for beat in self.table.live() if self._is_ready(beat)]

    def _contributions_there(self, ready: list[MemberBeat]) -> int:
        """Contributions towards the quorum: this group's own, those of others, and those of groups that finished."""
        sent = {b.group for b in ready if b.sent and (b.group, b.life) not in self._distrusted}
        return (self._own.told is not None) + len(sent | self._finished())

    def _finished(self) -> set[str]:
        return {beat.group for beat in self.table.beats() if beat.state == "finished"}

    def _has_quorum(self, entries: list[Entry]) -> bool:
        """Whether so many of the contributions that could be read are new, or of groups that have finished."""
        new = {e.group for e in entries if (e.life, e.round) > self._counted.get(e.group, (0, 0))}
        return not self._settings.quorum.given or len(new | self._finished()) >= self._needed()

    def _needed(self) -> int:
        known = len(self.table.seen()) + 1
        return self._settings.quorum.needed(known, self._settings.least_groups, len(self.table.left()))

    def _stands(self) -> bool:
        """Whether statistics of a group that is absent stay in the model."""
        return self._settings.quorum.given and self._settings.exchange == "statistics"

    def _turn(self, ready: list[MemberBeat]) -> int:
        """Who makes the result: the first by name, and each of the others so much later."""
        return sorted([self._settings.name, *(beat.group for beat in ready)]).index(self._settings.name)

    def _is_ready(self, beat: MemberBeat) -> bool:
        return self._is_new(beat) or beat.withheld == self.round

    def _is_current(self, beat: MemberBeat) -> bool:
        """Ready, and no newer contribution of it is expected in this round."""
        return beat.withheld == self.round or (self._is_new(beat) and self._is_of_round(beat.sent_round))

    def _is_of_round(self, made_in: int) -> bool:
        """Statistics of an earlier round count, and newer ones are to follow; a change of θ that was late counts before
        the next one is made."""
        return made_in >= self.round or self._settings.exchange == "parameters"

    def _is_new(self, beat: MemberBeat) -> bool:
        """It tells of a contribution that no result has counted; one that a stale beat still tells of has been."""
        return bool(beat.sent) and (beat.life, beat.sent_round) > self._counted.get(beat.group, (0, 0))

    def _aggregate(self, live: list[MemberBeat], now: float) -> None:
        """Collect all contributions of the round, and write its result once they are here or given up."""
        told = self.table.beats() if self._settings.quorum.given else self.table.present()
        wanted = [Entry(b.group, b.life, b.sent, b.digest, b.sent_round) for b in told if self._is_new(b)]
        entries = [self._own.told] if self._own.told is not None else []
        named = {entry.group for entry in (*entries, *wanted)}
        if self._settings.exchange == "statistics" and self._previous is not None:
            left, withholding = self.table.left(), {b.group for b in told if b.withheld == self.round}
            if self._withheld_round == self.round:
                withholding.add(self._settings.name)

            def stands(group: str) -> bool:
                """Whether statistics that it sent to an earlier round stay in this one."""
                return self.table.finished(group) or group in withholding or (self._stands() and group not in left)

            wanted += [e for e in self._previous.entries if e.group not in named and stands(e.group)]
        complete = True
        for entry in wanted:
            received = self._contributions.get(entry.key)
            if received is not None:
                entries.append(received.entry)
            else:
                self._calls.get(entry.key, now, self._settings.largest)
                if self._given_up(now):
                    self._distrusted.add((entry.group, entry.life))
                complete = complete and (entry.group, entry.life) in self._distrusted
        if complete and entries and self._has_quorum(entries):
            self._write_result(entries, self._is_final(entries, live), now)

    def _is_final(self, entries: list[Entry], live: list[MemberBeat]) -> bool:
        """Everybody is at rest, and was so with the same groups before: who rested alone has not heard the others. The
        contribution of a group that has finished does not change any more."""
        before = self._previous.entries if self._previous is not None else ()
        withholding = {b.group for b in live if b.state == "resting" and b.withheld == self.round}
        if self._withheld_round == self.round and self._status.state == "resting":
            withholding.add(self._settings.name)
        return (
            all(self._is_at_rest(entry) for entry in entries)
            and {(e.group, e.life) for e in entries} == {(e.group, e.life) for e in before}
            and {beat.group for beat in live} <= {entry.group for entry in entries} | withholding
            and not self.table.loading()
            and len({e.group for e in entries} | self.table.gone() | withholding) >= self._settings.least_groups
        )

    def _is_at_rest(self, entry: Entry) -> bool:
        """Its group was at rest in this very round, has finished, or was absent for so long that nobody waits for it at
        the end: its statistics stand as they are."""
        seen = entry.group in self.table.seen() or entry.group == self._settings.name
        absent_for = self.table.silence(entry.group) if seen else self._awake_seconds
        return (
            (entry.settled and entry.round == self.round)
            or self.table.finished(entry.group)
            or absent_for > active().groups.absent_after_silences * self._settings.silence
        )

    def _given_up(self, now: float) -> bool:
        """What a beat names has not been found for as long as a group may be silent: the round goes on without it."""
        return self._ready_since is not None and self._awake_seconds - self._ready_since > self._settings.silence

    def _write_result(self, entries: list[Entry], final: bool, now: float) -> None:
        """Create the result of the round, or replace one that cannot be read; the first writer wins."""
        s, key = self._settings, result_key(self.round)
        if not self._calls.is_free("put", key, now):
            return  # it is being written: a step over all of θ is not made again before the answer
        why = self._round_end.reason
        if s.exchange == "parameters":
            own = self._own.told
            if own is not None and self._contributions.get(own.key) is None:
                self._contributions.accept(own, self._own.content)
            content = self._contributions.result(
                self.round,
                entries,
                final,
                s.name,
                s.outer,
                self._common.base,
                self._common.velocity,
                self._counted,
                why,
                s.outliers,
                self._previous,
                self._common.exchanged_in,
            )
        else:
            content = self._contributions.result(
                self.round, entries, final, s.name, counted_before=self._counted, why=why
            )
        tag = self._unreadable.tag(key)  # of a damaged result, which nobody who is there has applied
        self._calls.put(key, content, now, "swap" if tag else "create", tag)

    # -- answers -------------------------------------------------------------------------------------------

    def _answered(self, command: StoreCommand, event: Answered, now: float) -> None:
        """An answer of the store, by what was asked."""
        match command:
            case GetObject(_, key) if key == self._beat_object.key:
                if event.outcome == "absent" and self._beat_object.told is not None:
                    self._tell_removed(key)
                if self._beat_object.read(event):
                    self._fence()
            case GetObject(_, key) if key == CURRENT:
                self._current_read(event, now)
            case GetObject(_, key) if key.endswith("/result"):
                self._result_read(key, event, now)
            case GetObject(_, key) if key.startswith(MEMBERS):
                self._member_read(key, event, now)
            case GetObject(_, key) if event.outcome == "refused":
                self._not_read(key, event.why, event.tag)
            case GetObject(_, key) if key.startswith(ENDS) and event.outcome == "done":
                self._end_read(key, event.content)
            case GetObject(_, key) if key.startswith("rounds/") and event.outcome == "done":
                self._contribution_read(key, event.content)
            case GetObject(_, key) if key.startswith("rounds/") and event.outcome == "absent":
                if self._wanted(key) is not None:
                    self._unreadable.note(key, "it is not there", "", self._awake_seconds)
            case ListObjects(number, prefix) if prefix == MEMBERS and event.outcome == "done":
                self._member_look.is_listed |= self._member_look.counts(number)
                names = [name.removeprefix(MEMBERS) for name in event.names]
                self.table.known.update(n for n in names if NAME.fullmatch(n) and n != self._settings.name)
            case ListObjects(_, prefix) if event.outcome == "done":
                self._remove_old(prefix, event.names, now)
            case PutObject():
                self._stored_one(command, event, now)
            case _:
                pass

    def _fence(self) -> None:
        """Stop taking part: a later process with this group's name has replaced this one."""
        self._fenced = True
        self._calls.out.append(
            Fenced(
                f"Another process takes part as {self._settings.name} and has replaced this one; give each group "
                "a name of its own."
            )
        )

    def _tell_removed(self, key: str) -> None:
        """Say once that somebody removes objects which are in use."""
        if key not in self._refused_keys:
            self._refused_keys.add(key)
            self._calls.out.append(
                Remark(
                    f"{key} was removed from the bucket, perhaps with all of it; the groups train on and write their "
                    "objects again, but no group can join before training begins anew in another bucket"
                )
            )

    def _refuse(self, key: str, why: str) -> None:
        if key not in self._refused_keys:
            self._refused_keys.add(key)
            self._calls.out.append(Remark(f"{key} was refused: {why}"))

    def _not_read(self, key: str, why: str, tag: str) -> None:
        """An object is there, and is not what it should be: note it, so that it is read again or given up."""
        self._refuse(key, why)
        self._calls.again("get", key, self._last_event_at + self._settings.beat)
        if key == CURRENT or key == result_key(self.round) or self._wanted(key) is not None:
            self._unreadable.note(key, why, tag, self._awake_seconds)

    def _member_read(self, key: str, event: Answered, now: float) -> None:
        """The bucket answered a read of another group's beat: note it in the table, or that the beat is missing or
        refused."""
        if event.outcome == "failed":
            return
        counts = self._member_look.counts(event.op)
        if counts:
            self._member_look.read.add(key.removeprefix(MEMBERS))
        if event.outcome == "done":
            self._member(key, event.content, now)
        else:
            self.table.missed(key.removeprefix(MEMBERS), now)
        if event.outcome == "refused":
            self._not_read(key, event.why, event.tag)
        if not counts:
            self._calls.forget("get", key)

    def _member(self, key: str, content: bytes, now: float) -> None:
        """A beat that was read: of a group of this job, of another job, or damaged. One that cannot be used is no sign
        of life: nobody may wait for ever for a group that has another version, or lies."""
        every = self._settings.beat
        if self._own.told is not None:  # it is waited for: soon at first, then less and less often
            every = min(max(self._settings.poll, (now - self._own_stored_at) / 8.0), every)
        self._calls.again("get", key, now + every)
        beat, why = _beat_of(key, content)
        if beat is None or beat.package != self._settings.package:
            self.table.missed(key.removeprefix(MEMBERS), now)
            return self._refuse(key, why) if beat is None else self._stranger(beat)
        if self.table.hear(beat, now):
            self._calls.out.append(GroupJoined(beat.group))
        self._write_again(beat.lacks, now)
        return None

    def _stranger(self, beat: MemberBeat) -> None:
        """`job` was removed or damaged, and there are two packages. Of groups that are there, those with one of them go
        on: the smaller hash, which all of them know."""
        before, self._beats_of_strangers[beat.group] = self._beats_of_strangers.get(beat.group), (beat.life, beat.beat)
        lives = before is not None and before != (beat.life, beat.beat) and beat.state not in ENDED_PHASES
        if lives:  # otherwise it is of an earlier training
            self._refuse(MEMBERS + beat.group, "it trains with another package")
        if lives and beat.package < self._settings.package:
            self._fenced = True
            self._calls.out.append(
                Fenced(
                    f"{beat.group} trains with another package than this group, because `job` was removed from the "
                    "bucket or damaged; use a new bucket, or start this group again."
                )
            )

    def _write_again(self, lacks: tuple[str, ...], now: float) -> None:
        """Objects that another group cannot read and whose content this group knows. A result with the newest values of
        a fragment is never replaced by one without them."""
        newest = {result_key(round_) for round_ in self._previous.exchanged_in} if self._previous is not None else set()
        for key in lacks:
            content = self._known_content.get(key) or (b"" if key in newest else self._bare(key))
            if content and self._calls.put(key, content, now):
                self._calls.again("put", key, now + self._settings.beat)
        if CURRENT in lacks and self._previous is not None:
            self._calls.get(CURRENT, now, MAX_BEAT_BYTES)

    def _bare(self, key: str) -> bytes:
        """An older result, without its θ: who needs it goes on with a newer one."""
        header = next((h for r, h in self._headers.items() if result_key(r) == key), None)
        return b"" if header is None else encode(msgspec.structs.replace(header, fields=0, short=()))

    def _current_read(self, event: Answered, now: float) -> None:
        """The object `current` names the newest round; where it is behind or absent, it is written again."""
        if event.outcome == "done":
            try:
                current, _ = decode(event.content, Current)
            except DecodeError as error:
                return self._current_lost(str(error), event.tag, now)
            self._unreadable.found(CURRENT)
            self._current_is_absent, self._current = False, (current.round, event.tag)
            if self.phase == "joining" and current.package != self._settings.package:
                self._first_round = max(self._first_round, current.round + 1)
            self._calls.again("get", CURRENT, now + self._settings.beat)
            if self.phase != "joining" and self._previous is not None and current.round < self._previous.round:
                self._advance_current(now)
        elif event.outcome == "refused":
            self._current_lost(event.why, event.tag, now)
        elif event.outcome == "absent":
            self._current_is_absent = True
            if self._previous is not None:
                self._current = (0, "")
                self._advance_current(now)
        return None

    def _current_lost(self, why: str, tag: str, now: float) -> None:
        """Who has applied a result knows what `current` should say."""
        self._not_read(CURRENT, why, tag)
        if self._previous is not None:
            self._unreadable.found(CURRENT)
            self._calls.put(CURRENT, self._named_current(), now, "swap" if tag else "replace", tag)

    def _jump(self, now: float) -> None:
        """What belongs to this result is gone: go on from the newest one, which says what of this group is counted."""
        self.phase, self._result = "joining", None
        self._common.forget()
        self._unreadable.clear()
        self._calls.get(CURRENT, now, MAX_BEAT_BYTES)

    def _abandon(self, why: str) -> None:
        """Leave a round out: statistics of the next one replace all that it would have brought."""
        self._calls.out.append(Remark(f"round {self.round} was left out: {why}"))
        if self._result is not None:
            self._previous = self._result[0]
        self._calls.out.append(RoundOpened(self.round + 1, (self.round + 1) % self._common.fragments.count))
        self._enter(self.round + 1)

    def _advance_current(self, now: float) -> None:
        """`current` only ever grows: it is replaced where it is what was read."""
        assert self._previous is not None
        newest, (known, tag) = self._previous.round, self._current
        if newest > known:
            mode = "swap" if tag else "create"
            self._calls.put(CURRENT, self._named_current(), now, mode, tag)

    def _named_current(self) -> bytes:
        """The object `current` as it should be."""
        assert self._previous is not None
        return encode(Current(self._previous.round, self._settings.package))

    def _result_read(self, key: str, event: Answered, now: float) -> None:
        """The bucket answered a read of this round's result: adopt it, or note why it cannot be read. That it is absent
        is normal while the round is open and nobody is ahead."""
        if self.phase == "fetching" and key in map(result_key, self._rounds_lacking()):
            self._older_read(key, event)
            return
        if key != result_key(self.round) or self.phase not in ("open", "joining"):
            return
        if event.outcome == "done":
            self._adopt(event.content, event.tag, now)
        elif event.outcome == "refused":
            self._not_read(key, event.why, event.tag)
        elif event.outcome == "absent" and (self.phase == "joining" or self.table.ahead(self.round)):
            self._unreadable.note(key, "it is not there", "", self._awake_seconds)
        elif event.outcome == "absent":
            self._unreadable.found(key)

    def _adopt(self, content: bytes, tag: str, now: float) -> None:
        """A result of this round: check it, and begin to fetch the contributions that it names."""
        key = result_key(self.round)
        try:
            result, parts = decode(content, RoundResult)
            arrays = self._common.restored(result, parts)
        except DecodeError as error:
            return self._not_read(key, str(error), tag)
        if result.round != self.round:
            return self._not_read(key, f"it says that it is of round {result.round}", tag)
        if result.package != self._settings.package:
            why = "it is of another training"
            return self._abandon(f"{key}: {why}") if self.phase == "open" else self._not_read(key, why, tag)
        why = self._common.misfit(result, arrays)
        if why == REMOVED:
            self._jump(now)
            return None
        if why:
            return self._not_read(key, why, tag)
        life = result.life_of(self._settings.name)
        if life is not None and life > self._settings.life:
            return self._fence()
        self._unreadable.found(key)
        self._known_content[key] = content
        names = {entry.group for entry in result.entries if NAME.fullmatch(entry.group)}
        self.table.known.update(names - {self._settings.name})  # also where a stale listing lacks them
        self._result, self.phase, self._beat_at_final_result = (result, arrays), "fetching", None
        self._fetch(now)
        return None

    def _rounds_lacking(self) -> list[int]:
        """Rounds before the result that is being fetched whose fragments of θ this group does not have."""
        return self._common.lacking(self._result[0]) if self._result is not None else []

    def _older_read(self, key: str, event: Answered) -> None:
        """A result with fragments of θ that this group lacks; where it cannot be read, θ as this group has it stays
        after a while, and is replaced with the next exchange of the fragment."""
        if event.outcome == "failed":
            return
        why = event.why or "it is not there"
        if event.outcome == "done":
            try:
                result, parts = decode(event.content, RoundResult)
                arrays = self._common.restored(result, parts)
                why = self._common.misfit(result, arrays)
                if not why and result.package == self._settings.package and result_key(result.round) == key:
                    self._common.hold(result, arrays)
                    self._known_content[key] = event.content
                    self._unreadable.found(key)
                    return
            except DecodeError as error:
                why = str(error)
        self._calls.again("get", key, self._last_event_at + self._settings.beat)
        if why == REMOVED and max(self.table.newest(), self._current[0]) > self.round:
            self._jump(self._last_event_at)  # a newer result has these fragments
            return
        self._unreadable.note(key, why or "it is of another round", event.tag, self._awake_seconds)

    def _fetch(self, now: float) -> None:
        """Fetch what the result names; once all is here, hand it to the coordinator and open the next round."""
        assert self._result is not None
        result, arrays = self._result
        keys = [result_key(round_) for round_ in self._rounds_lacking()]
        lacking = [key for key in keys if not self._unreadable.given_up(key)]
        for key in lacking:
            self._calls.get(key, now, self._settings.largest)
        if lacking:
            if any(b.round > self.round + active().groups.kept_rounds for b in self.table.present()):
                self._jump(now)
            return
        statistics = self._settings.exchange == "statistics"
        others = [e for e in result.entries if e.group != self._settings.name] if statistics else []
        missing = [e for e in others if self._contributions.get(e.key) is None]
        for entry in missing:
            self._calls.get(entry.key, now, self._settings.largest)
        if missing:
            lost = [e.key for e in missing if self._unreadable.given_up(e.key)]
            if any(b.round > self.round + active().groups.kept_rounds for b in self.table.present()):
                self._jump(now)
            elif lost:
                self._abandon(f"{lost[0]} cannot be read: {self._unreadable.why(lost[0])}")
            return
        takes_part = result.life_of(self._settings.name) == self._settings.life
        final = result.final and (takes_part or self._only_withholds)
        if final and not self._confirmed():
            return
        for group, *last in result.counted:
            self._counted[group] = max(self._counted.get(group, (0, 0)), (last[0], last[1]))
        included = self._own.counted(*result.counted_of(self._settings.name))
        self._grace.closed([beat.group for beat in self.table.live()], self._awake_seconds)
        self._hand_over(result, arrays, others, included, final)
        self._previous = self._headers[result.round] = result
        if result.by == self._settings.name:
            self._advance_current(now)
            self._clean_up(now)
        self._forget_old(result)
        self._final_result = result if final and takes_part else None
        self._enter(result.round + 1)

    def _hand_over(
        self, result: RoundResult, arrays: list[Array], other_entries: list[Entry], included: bool, final: bool
    ) -> None:
        """Tell the coordinator what the round brought. `included`: this group's contribution is in it."""
        remote, theta, fragments = {}, tuple[Array, ...](), tuple[int, ...]()
        for entry in other_entries:
            received = self._contributions.get(entry.key)
            assert received is not None
            remote[entry.group] = received.changes
            theta = theta or received.parameter
        if self._settings.exchange == "parameters":
            fragments = self._common.take(result, arrays)
            theta = tuple(self._common.base)
        groups = tuple(e.group for e in result.entries)
        ages = {e.group: result.round - e.round for e in result.entries if e.round < result.round}
        together = self._everybody_took_part(result)
        self._calls.out.append(
            Synchronized(
                result.round,
                remote,
                theta,
                included,
                final,
                groups,
                together,
                ages,
                result.why,
                self._link.bytes_per_second,
                fragments,
                result.next_fragment,
                dict(result.outliers),
            )
        )

    def _forget_old(self, result: RoundResult) -> None:
        """Drop headers, contributions and contents that nobody can ask for once this result is applied."""
        kept_rounds = HEADERS_KEPT_FACTOR * active().groups.kept_rounds + 3 * self._common.fragments.count
        last_dropped = min(result.round, self._current[0]) - kept_rounds
        self._headers = {round_: header for round_, header in self._headers.items() if round_ > last_dropped}
        kept = {e.key for e in result.entries}
        self._contributions.keep(kept)
        kept |= {result_key(round_) for round_ in (result.round, result.round - 1, *result.exchanged_in)}
        kept |= {entry.key for entry in (self._own.entry, self._own.told) if entry is not None}
        self._known_content = {key: held for key, held in self._known_content.items() if key in kept}

    def _everybody_took_part(self, result: RoundResult) -> bool:
        """Whether no group ended before this round, was lost or is missing."""
        here = {entry.group for entry in result.entries if entry.round == result.round}
        return len(here) >= self._settings.least_groups and self.table.seen() <= here

    def _confirmed(self) -> bool:
        """Whether, before the end, one more beat is in the store, so that no other process has this name."""
        if self._beat_at_final_result is None:
            self._beat_at_final_result, self._beat_at = self._beats_written, -np.inf
        told = self._beat_object.told
        return told is not None and told.beat > self._beat_at_final_result

    def _enter(self, round_: int) -> None:
        self.round, self.phase = round_, "open"
        self._withheld_round, self._ready_since, self._result = 0, None, None
        self._unreadable.clear()
        self._look_anew()
        self._round_end = RoundEnd(False)
        self._grace.opened(self._awake_seconds)
        if self._status.state != "loading":
            self._beat(self._last_event_at)

    def _wanted(self, key: str) -> Entry | None:
        """The contribution of this name that is waited for."""
        if self._result is not None:
            return next((e for e in self._result[0].entries if e.key == key), None)
        beat = next((b for b in self.table.beats() if b.sent == key), None)
        if beat is not None:
            return Entry(beat.group, beat.life, key, beat.digest, beat.sent_round)
        before = self._previous.entries if self._previous is not None else ()
        return next((e for e in before if e.key == key), None)

    def _contribution_read(self, key: str, content: bytes) -> None:
        """The content of another group's contribution is here: keep it for this round, or note why it cannot be
        used."""
        wanted = self._wanted(key)
        if wanted is None:
            return
        why = self._contributions.accept(wanted, content)
        if why.endswith(OTHER_PACKAGE):
            self._refuse(key, why)
            self._unreadable.give_up(key, why)
        elif why:
            self._not_read(key, why, "")
        else:
            self._unreadable.found(key)
            self._distrusted.discard((wanted.group, wanted.life))

    def _stored_one(self, command: PutObject, event: Answered, now: float) -> None:
        """The answer to a write: of the beat, the contribution, the result or `current`."""
        key, done = command.key, event.outcome == "done"
        if done:
            self._link.put(len(command.content), self._calls.seconds)
        if key == self._beat_object.key:
            self._beat_object.stored(command, event, now)
        elif self._own.entry is not None and key == self._own.entry.key:
            if done and not self._own.stored:
                self._own.was_stored()
                self._own_stored_at = now
                self._look_anew()
                following, self._next_offer = self._next_offer, None
                if following is not None:
                    self._offer(following, now)
        elif key == result_key(self.round) and self.phase == "open":
            if done:
                self.rounds_made += 1
                self._adopt(command.content, event.tag, now)
            elif event.outcome in ("conflict", "failed"):  # somebody was first; or perhaps this very put
                self._calls.forget("get", key)
                self._calls.get(key, now, self._settings.largest)
        elif key == CURRENT:
            if done:
                self._current = (decode(command.content, Current)[0].round, event.tag)
            else:
                self._calls.get(CURRENT, now, MAX_BEAT_BYTES)

    # -- the end -------------------------------------------------------------------------------------------

    def _begin_ending(self, arrays: tuple[Array, ...]) -> None:
        """Show the others this group's statistics under the last θ, and wait for theirs."""
        if self._final_result is None:
            self._calls.out.append(EndsHeard({}))
            return
        s = self._settings
        self._end_content = encode(EndStatistics(s.name, s.life, self._final_result.round), arrays, compress=True)
        self._known_content[ENDS + s.name] = self._end_content
        self.phase, self._end_is_stored, self._ready_since, self._end_statistics = (
            "ending",
            False,
            self._awake_seconds,
            {},
        )

    def _end(self, now: float) -> None:
        """Collect the others' statistics under the last θ; a group that is gone is not waited for long."""
        assert self._final_result is not None and self._ready_since is not None
        if not self._end_is_stored:
            self._end_is_stored = self._calls.put(ENDS + self._settings.name, self._end_content, now)
        waited = self._awake_seconds - self._ready_since
        there = {beat.group for beat in self.table.live()}
        last = self._final_result
        expected = [e.group for e in last.entries if e.round == last.round and e.group != self._settings.name]
        missing = [group for group in expected if group not in self._end_statistics]
        for group in missing:
            self._calls.get(ENDS + group, now, self._settings.largest)
        soon = 4.0 * self._settings.beat  # whoever is not there any more has written it before, or will not
        awaited = [g for g in missing if waited <= (active().groups.evaluation_seconds if g in there else soon)]
        if not awaited:
            for group in missing:
                self._calls.out.append(Remark(f"{group} did not say what the last θ is worth on its rows"))
            self._calls.out.append(EndsHeard(self._end_statistics))
            self.phase = "open"

    def _end_read(self, key: str, content: bytes) -> None:
        """Another group's statistics under the last θ; those of an earlier end are ignored."""
        group = key.removeprefix(ENDS)
        try:
            header, arrays = decode(content, EndStatistics)
        except DecodeError as error:
            return self._refuse(key, str(error))
        self._calls.again("get", key, self._last_event_at + self._settings.poll)
        life = self._final_result.life_of(group) if self._final_result is not None else None
        if self._final_result is None or (header.group, header.life, header.round) != (
            group,
            life,
            self._final_result.round,
        ):
            return None  # of an earlier end
        if [a.shape for a in arrays] != self._shapes or not finite(arrays):
            return self._refuse(key, "it holds other statistics than this job")
        self._end_statistics[group] = tuple(arrays)
        return None

    # -- old rounds ----------------------------------------------------------------------------------------

    def _clean_up(self, now: float) -> None:
        """The next rounds whose objects nobody needs. `current` may be far behind, where its puts failed, and a joiner
        begins with the round that it names: that one and all later ones stay whole."""
        assert self._previous is not None
        last = min(self._previous.round, self._current[0]) - active().groups.kept_rounds
        for round_ in range(max(self._last_cleaned_round, last - active().groups.kept_rounds) + 1, last + 1):
            self._calls.list(f"rounds/{round_}/", now)
            self._last_cleaned_round = round_
            self._remove_replaced(round_, now)

    def _remove_replaced(self, round_: int, now: float) -> None:
        """Contributions of absent groups that this result was the last one to name."""
        header = self._headers.get(round_)
        named_later = {e.key for later, h in self._headers.items() if later > round_ for e in h.entries}
        for entry in header.entries if header is not None else ():
            if entry.round < round_ and entry.key not in named_later:
                self._calls.delete(entry.key, now)

    def _is_uncounted(self, name: str, round_: int) -> bool:
        """A contribution of a group that no result has counted; its group may not have told of it yet."""
        group, _, life = name.partition(".")
        beat = next((b for b in self.table.beats() if b.group == group and f"{b.life:x}" == life), None)
        return beat is not None and (beat.life, round_) > self._counted.get(group, (0, 0))

    def _remove_old(self, prefix: str, names: tuple[str, ...], now: float) -> None:
        """Objects of an old round that no result names any more. Who was in it stays known; only its θ goes."""
        kept = {e.key for e in self._previous.entries} if self._previous is not None else set()
        kept |= {beat.sent for beat in self.table.beats()}
        round_ = int(prefix.split("/")[1])
        for name in names:
            late = self._is_uncounted(name.removeprefix(prefix), round_)
            if name.startswith(prefix) and name not in kept and not late and not name.endswith("/result"):
                self._calls.delete(name, now)
        self._remove_parameter(round_, now)

    def _remove_parameter(self, round_: int, now: float) -> None:
        """θ of this round and of those before it, where no later result names one of their fragments as its newest."""
        header = self._headers.get(round_)
        needed = {r for later, h in self._headers.items() if later > round_ for r in h.exchanged_in}
        for old in sorted({round_, *header.exchanged_in} - needed) if header is not None else ():
            held = self._headers.get(old)
            if held is not None and held.fields:
                self._calls.put(result_key(old), self._bare(result_key(old)), now)


def _sentence(what: str, why: str | None) -> str:
    return f"{what} ({why})" if why else what


def _beat_of(key: str, content: bytes) -> tuple[MemberBeat | None, str]:
    """The beat in the object of a group, or why it cannot be used."""
    try:
        beat, _ = decode(content, MemberBeat)
    except DecodeError as error:
        return None, str(error)
    if MEMBERS + beat.group != key:
        return None, f"it says that it is of {beat.group}"
    if not 0.0 <= beat.visits < LARGEST_COUNT:
        return None, f"it tells of {beat.visits:g} visits"
    return beat, ""
