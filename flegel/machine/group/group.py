"""A group and its rounds: what to read from and write to the bucket, and what follows. Pure: no store, clock or thread.

    joining     find the newest result by `current` and the beats of others, or begin with round 1
    open        beats; contribute; when everybody who is waited for has, one of them writes the result, once
    fetching    the result is known; read the contributions that it names, then tell the coordinator
    ending      training is over everywhere; statistics under the last θ are exchanged for its objective
    over        the last beat says how this group ended

Each group is in one round, and opens the next when it has applied the result. Nothing depends on an earlier message:
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

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.machine.group.contributions import OTHER_PACKAGE, Contributions
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
)
from flegel.machine.group.own_beat import OwnBeat
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
from flegel.machine.group.table import MemberTable
from flegel.machine.group.unreadable import UnreadableObjects
from flegel.machine.group.waiting import WaitReports, missing_groups

ENDED_PHASES = ("finished", "left", "excluded")


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


class Group:
    """Build it, feed it events, carry out its commands. `next_at` says when to wake it."""

    def __init__(
        self, settings: GroupSettings, shapes: Sequence[tuple[int, ...]], base: Sequence[Array], now: float
    ) -> None:
        """`shapes`: of what is contributed. `base`: additive fields of θ(0), where θ is exchanged."""
        self._settings = settings
        self._calls = StoreCalls(settings.poll, settings.beat, now)
        self.table = MemberTable(settings.name, settings.silence, 3.0 * settings.beat)
        self._contributions = Contributions(shapes, settings.package)
        self._shapes = list(shapes)
        self._base, self._velocity = list(base), list[Array]()
        self._status = StatusChanged("loading")
        self.phase = "joining"
        self.round = 0
        self._own: Entry | None = None
        self._own_content = b""
        self._stored = False
        self._withheld = 0
        self._ready_since: float | None = None
        self._result: tuple[RoundResult, list[Array]] | None = None
        self._previous: RoundResult | None = None
        self._current: tuple[int, str] = (0, "")
        """The round that the object `current` names, and the tag of the object as it was read."""
        self._headers: dict[int, RoundResult] = {}
        """Of the last results, to leave them behind without their θ."""
        self._cleaned = 0
        """The last round whose objects were removed."""
        self._counted = False
        """Results were skipped, and one of them holds this group's last contribution."""
        self._stored_at = now
        self._beats = 0
        self._beat_at = -np.inf
        self._beat_object = OwnBeat(settings.name, settings.life, now)
        self._looked_at = -np.inf
        self._refused: set[str] = set()
        self.rounds_made = 0
        """Results that this group wrote."""
        self._now = now
        self._awake = 0.0
        """Seconds in which this group was awake: a frozen process has waited for nothing."""
        self._unreadable = UnreadableObjects(settings.silence)
        self._known_content: dict[str, bytes] = {}
        """Own contributions and results of the last two rounds, to be written again where they are damaged."""
        self._asked: set[str] = set()
        """Members whose object was looked up, whatever was found."""
        self._listed = self._no_current = False
        self._waiting_since: dict[str, float] = {}
        """Of what can stall: since when, in seconds awake."""
        self._told_stalled = -np.inf
        self._wait_reports = WaitReports()
        self._lost: set[str] = set()
        """Groups whose loss was told."""
        self._stalled = self._fenced = False
        self._confirm: int | None = None
        """The number of the last beat when a final result was read."""
        self._strangers: dict[str, tuple[int, int]] = {}
        """Life and number of the beats of groups with another package."""
        self._last: RoundResult | None = None
        """The final result, where this group is in it."""
        self._ends: dict[str, tuple[Array, ...]] = {}

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def base(self) -> list[Array]:
        """Additive fields of θ after the last result."""
        return self._base

    @property
    def over(self) -> bool:
        """The last beat is in the store, or this group has nothing to say any more."""
        told = self._beat_object.told
        return self._fenced or (
            self._status.state in ENDED_PHASES and told is not None and told.state == self._status.state
        )

    def handle(self, event: GroupEvent, now: float) -> list[GroupCommand]:
        """Take in an event and do what is due now. Once another process has its name (fenced), it does nothing more."""
        self._calls.out = []
        self._awake += min(max(now - self._now, 0.0), 3.0 * self._settings.beat)
        self._now = now
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
        return min(self._calls.next_at(now), self._beat_at + self._settings.beat, now + self._settings.beat)

    # -- what is to be done now ----------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        """What this group does at any time: its beat, the beats of others, and the work of its phase."""
        self._beat(now)
        if self._status.state in ENDED_PHASES:
            return
        if now - self._looked_at >= self._settings.beat:
            self._looked_at = now
            self._calls.list(MEMBERS, now)
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
        status, own = self._status, self._own if self._stored else None
        state = status.state if self.phase != "joining" or status.state in ENDED_PHASES else "loading"
        state = "stalled" if self._stalled and state not in ENDED_PHASES else state
        beat = MemberBeat(
            self._settings.name,
            self._settings.life,
            self._beats + 1,
            state,
            self.round,
            own.key if own else "",
            own.digest if own else "",
            self._withheld,
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
            self._beats, self._beat_at = self._beats + 1, now
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
        """The coordinator's contribution to the open round; without arrays it withholds one in this round."""
        if event.round != self.round or self.phase != "open" or self._own is not None:
            return  # an offer for a round that is over: the coordinator offers again
        if not event.arrays:
            self._withheld = self.round
            return
        s = self._settings
        header = Contribution(
            s.name,
            s.life,
            self.round,
            len(event.arrays),
            event.visits,
            event.points,
            event.settled,
            event.objective,
            event.commits,
            s.package,
        )
        self._own_content = encode(header, [*event.arrays, *event.parameter])
        key = contribution_key(self.round, s.name, s.life)
        self._own = Entry(s.name, s.life, key, digest_of(self._own_content), self.round, event.settled)
        self._known_content[key] = self._own_content
        self._withheld = 0

    # -- waits ---------------------------------------------------------------------------------------------

    def _watch_waits(self, now: float) -> None:
        """Say why nothing goes on, where that lasts; nobody waits for this group meanwhile."""
        waits = self._waits(now)
        self._waiting_since = {what: self._waiting_since.get(what, self._awake) for what in waits}
        late = [what for what, (_, patience) in waits.items() if self._awake - self._waiting_since[what] > patience]
        self._stalled = any(what != "groups" for what in late)
        if not late:
            self._told_stalled = -np.inf
        elif self._awake - self._told_stalled >= self._settings.silence:
            why = f"{waits[late[0]][0]}, for {self._awake - self._waiting_since[late[0]]:.0f} s"
            if self._told_stalled == -np.inf:
                self._calls.out.append(Remark(why))
            self._told_stalled = self._awake
            self._calls.out.append(Stalled(why))

    def _waits(self, now: float) -> dict[str, tuple[str, float]]:
        """What this group waits for that others cannot know of: a sentence, and how long at most."""
        s, failed = self._settings, self._calls.failed
        limit, key = active().groups.stalled_after_silences * s.silence, result_key(self.round)
        found: dict[str, tuple[str, float]] = {}
        if now - self._calls.answered_at > 3.0 * s.beat:
            found["store"] = ("the bucket does not answer", limit)
        if now - self._beat_object.told_at > 3.0 * s.beat:
            why = failed.get(self._beat_object.key)
            found["beat"] = (_sentence("the beat of this group cannot be written", why), limit)
        if self.phase == "joining":
            found["join"] = (_sentence(f"the newest result ({key}) cannot be read", self._unreadable.why(key)), limit)
        elif self.phase == "fetching":
            found["fetch"] = (f"the contributions to round {self.round} cannot be read", limit)
        elif self.phase == "open" and self._unreadable.holds(key):
            found["result"] = (_sentence(f"{key} cannot be read", self._unreadable.why(key)), limit)
        elif self.phase == "open" and self._own is not None and not self._stored:
            found["contribution"] = (_sentence(f"{self._own.key} cannot be written", failed.get(self._own.key)), limit)
        came = len(self.table.seen()) + 1
        if self._status.state == "resting" and self._last is None and came < s.least_groups:
            found["groups"] = (
                f"only {came} of --groups {s.least_groups} came",
                active().groups.absent_after_silences * s.silence,
            )
        return found

    def _tell_waiting(self) -> None:
        """Say for whom this group waits, where that lasts."""
        report = self._wait_reports.look(*self._waits_for(), self._awake)
        if report is not None:
            self._calls.out.append(report)

    def _waits_for(self) -> tuple[str, bool]:
        """For whom this group waits and how long at most, and whether that is told at once."""
        s, came, resting = self._settings, len(self.table.seen()) + 1, self._status.state == "resting"
        if self._last is not None or self.phase != "open":
            return "", False
        if resting and came < s.least_groups:
            return missing_groups(came, s.least_groups, active().groups.absent_after_silences * s.silence), True
        late = [beat.group for beat in self.table.live() if not self._is_ready(beat)] if self._stored else []
        silent = [group for group in late if self.table.silence(group) > 3.0 * s.beat]
        if silent:
            names, limit = ", ".join(silent), f"for {s.silence:g} s at most"
            return f"waits for {names} in round {self.round}, without a sign of life ({limit})", True
        if resting and late:
            return f"waits for {', '.join(late)} in round {self.round}, still training", False
        return "", False

    def _tell_lost(self) -> None:
        """Say once of a group that it is not waited for any more."""
        if self._last is not None:
            return  # training is over: who has the last result need not stay
        lost = self.table.lost()
        self._calls.out += [GroupLost(group, why) for group, why in lost.items() if group not in self._lost]
        self._lost = set(lost)

    # -- joining -------------------------------------------------------------------------------------------

    def _join(self, now: float) -> None:
        """Enter with the newest result that `current` or a beat tells of; with round 1 where nothing does.

        Round 1 is only entered when `current` is absent (or stays unreadable) and the beats of all listed members were
        read. A result that stays unreadable ends this group, unless θ is exchanged and a member is beyond that round:
        who knows this θ writes it again.
        """
        self._calls.get(CURRENT, now, MAX_BEAT_BYTES)
        newest = max(self.table.newest(), self._current[0])
        if newest >= max(self.round, 1):
            self.round = newest
        if self.round:
            key = result_key(self.round)
            self._calls.get(key, now, self._settings.largest)
            known = any(beat.round > self.round for beat in self.table.live())
            final = self._settings.exchange == "statistics" or not known
            if final and self._unreadable.given_up(key, self._awake):
                self._abandon(f"{key} cannot be read: {self._unreadable.why(key)}")
            return
        without_current = self._no_current or self._unreadable.given_up(CURRENT, self._awake)
        if without_current and self._listed and self.table.known <= self._asked:
            self._calls.out.append(RoundOpened(1))
            self._enter(1)

    # -- an open round -------------------------------------------------------------------------------------

    def _open(self, now: float) -> None:
        """Wait until all live groups have contributed; then read the result, or make it if it is this group's turn."""
        s, key = self._settings, result_key(self.round)
        if self._own is not None and not self._stored:
            self._calls.put(self._own.key, self._own_content, now)
        live = self.table.live()
        if self.table.ahead(self.round) or self._withheld == self.round or self._unreadable.holds(key):
            self._calls.get(key, now, s.largest)
        if any(beat.round > self.round for beat in live):
            if self._unreadable.given_up(key, self._awake) and s.exchange == "statistics":
                self._abandon(f"{key} cannot be read: {self._unreadable.why(key)}")
            return
        if not self._stored and self._withheld != self.round:
            return
        if any(not self._is_ready(beat) for beat in live):
            self._ready_since = None
            return
        if self._ready_since is None:
            self._ready_since = self._awake
        turn = self._turn(live)
        if turn and self._awake - self._ready_since < 2.0 * turn * s.beat:
            self._calls.get(key, now, s.largest)  # one of the others makes it
            return
        if self._unreadable.holds(key) and not self._unreadable.for_longer_than(
            key, active().groups.remake_after_beats * s.beat, self._awake
        ):
            return  # somebody may have applied it, and writes it again
        self._aggregate(live, now)

    def _turn(self, live: list[MemberBeat]) -> int:
        """Who makes the result: the first by name, and each of the others so much later."""
        return sorted([self._settings.name, *(beat.group for beat in live)]).index(self._settings.name)

    def _is_ready(self, beat: MemberBeat) -> bool:
        return beat.round == self.round and (bool(beat.sent) or beat.withheld == self.round)

    def _aggregate(self, live: list[MemberBeat], now: float) -> None:
        """Collect all contributions of the round, and write its result once they are here or given up."""
        present = [b for b in self.table.present() if b.round == self.round and b.sent]
        wanted = [Entry(b.group, b.life, b.sent, b.digest, self.round) for b in present]
        entries = [self._own] if self._own is not None else []
        named = {self._settings.name, *(entry.group for entry in wanted)}
        if self._settings.exchange == "statistics" and self._previous is not None:
            before = self._previous.entries
            wanted += [e for e in before if e.group not in named and self.table.finished(e.group)]
        complete = True
        for entry in wanted:
            received = self._contributions.get(entry.key)
            if received is not None:
                entries.append(received.entry)
            else:
                self._calls.get(entry.key, now, self._settings.largest)
                complete = complete and self._given_up(now)
        if complete and entries:
            self._write_result(entries, self._is_final(entries, live), now)

    def _is_final(self, entries: list[Entry], live: list[MemberBeat]) -> bool:
        """Everybody is at rest, and was so with the same groups before: who rested alone has not heard the others. The
        contribution of a group that has finished does not change any more."""
        before = self._previous.entries if self._previous is not None else ()
        return (
            all(entry.settled or self.table.finished(entry.group) for entry in entries)
            and {(e.group, e.life) for e in entries} == {(e.group, e.life) for e in before}
            and {beat.group for beat in live} <= {entry.group for entry in entries}
            and not self.table.loading()
            and len({entry.group for entry in entries} | self.table.gone()) >= self._settings.least_groups
        )

    def _given_up(self, now: float) -> bool:
        """What a beat names has not been found for as long as a group may be silent: the round goes on without it."""
        return self._ready_since is not None and self._awake - self._ready_since > self._settings.silence

    def _write_result(self, entries: list[Entry], final: bool, now: float) -> None:
        """Create the result of the round, or replace one that cannot be read; the first writer wins."""
        s = self._settings
        if s.exchange == "parameters":
            own = self._own
            if own is not None and self._contributions.get(own.key) is None:
                self._contributions.accept(own, self._own_content)
            content = self._contributions.result(
                self.round, entries, final, s.name, s.outer, self._base, self._velocity
            )
        else:
            content = self._contributions.result(self.round, entries, final, s.name)
        key = result_key(self.round)
        tag = self._unreadable.tag(key)  # of a damaged result, which nobody who is there has applied
        self._calls.put(key, content, now, "swap" if tag else "create", tag)

    # -- answers -------------------------------------------------------------------------------------------

    def _answered(self, command: StoreCommand, event: Answered, now: float) -> None:
        """An answer of the store, by what was asked."""
        match command:
            case GetObject(_, key) if key == self._beat_object.key:
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
                    self._unreadable.note(key, "it is not there", "", self._awake)
            case ListObjects(_, prefix) if prefix == MEMBERS and event.outcome == "done":
                self._listed = True
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

    def _refuse(self, key: str, why: str) -> None:
        if key not in self._refused:
            self._refused.add(key)
            self._calls.out.append(Remark(f"{key} was refused: {why}"))

    def _not_read(self, key: str, why: str, tag: str) -> None:
        """It is there, and is not what it should be."""
        self._refuse(key, why)
        self._calls.again("get", key, self._now + self._settings.beat)
        if key == CURRENT or key == result_key(self.round) or self._wanted(key) is not None:
            self._unreadable.note(key, why, tag, self._awake)

    def _member_read(self, key: str, event: Answered, now: float) -> None:
        """The bucket answered a read of another group's beat: note it in the table, or that the beat is missing or
        refused."""
        if event.outcome == "failed":
            return
        self._asked.add(key.removeprefix(MEMBERS))
        if event.outcome == "done":
            self._member(key, event.content, now)
        else:
            self.table.missed(key.removeprefix(MEMBERS), now)
        if event.outcome == "refused":
            self._not_read(key, event.why, event.tag)

    def _member(self, key: str, content: bytes, now: float) -> None:
        """A beat that was read: of a group of this job, of another job, or damaged."""
        every = self._settings.beat
        if self._stored:  # it is waited for: soon at first, then less and less often
            every = min(max(self._settings.poll, (now - self._stored_at) / 8.0), every)
        self._calls.again("get", key, now + every)
        try:
            beat, _ = decode(content, MemberBeat)
        except DecodeError as error:
            return self._refuse(key, str(error))
        if MEMBERS + beat.group != key:
            return self._refuse(key, f"it says that it is of {beat.group}")
        if beat.package != self._settings.package:
            return self._stranger(beat)
        if self.table.hear(beat, now):
            self._calls.out.append(GroupJoined(beat.group))
        self._write_again(beat.lacks, now)
        return None

    def _stranger(self, beat: MemberBeat) -> None:
        """`job` was removed or damaged, and there are two packages. Of groups that are there, those with one of them go
        on: the smaller hash, which all of them know."""
        self._refuse(MEMBERS + beat.group, "it trains with another package")
        before, self._strangers[beat.group] = self._strangers.get(beat.group), (beat.life, beat.beat)
        lives = before is not None and before != (beat.life, beat.beat) and beat.state not in ENDED_PHASES
        if lives and beat.package < self._settings.package:
            self._fenced = True
            self._calls.out.append(
                Fenced(
                    f"{beat.group} trains with another package than this group, because `job` was removed from the "
                    "bucket or damaged; use a new bucket, or start this group again."
                )
            )

    def _write_again(self, lacks: tuple[str, ...], now: float) -> None:
        """Objects that another group cannot read and whose content this group knows."""
        for key in lacks:
            content = self._known_content.get(key) or self._bare(key)
            if content and self._calls.put(key, content, now):
                self._calls.again("put", key, now + self._settings.beat)
        if CURRENT in lacks and self._previous is not None:
            self._calls.get(CURRENT, now, MAX_BEAT_BYTES)

    def _bare(self, key: str) -> bytes:
        """An older result, without its θ: who needs it goes on with a newer one."""
        header = next((h for r, h in self._headers.items() if result_key(r) == key), None)
        return b"" if header is None else encode(RoundResult(header.round, header.entries, header.final, 0, header.by))

    def _current_read(self, event: Answered, now: float) -> None:
        """The object `current` names the newest round; where it is behind or absent, it is written again."""
        if event.outcome == "done":
            try:
                current, _ = decode(event.content, Current)
            except DecodeError as error:
                return self._current_lost(str(error), event.tag, now)
            self._unreadable.found(CURRENT)
            self._no_current, self._current = False, (current.round, event.tag)
            self._calls.again("get", CURRENT, now + self._settings.beat)
            if self.phase != "joining" and self._previous is not None and current.round < self._previous.round:
                self._advance_current(now)
        elif event.outcome == "refused":
            self._current_lost(event.why, event.tag, now)
        elif event.outcome == "absent":
            self._no_current = True
            if self._previous is not None:
                self._current = (0, "")
                self._advance_current(now)
        return None

    def _current_lost(self, why: str, tag: str, now: float) -> None:
        """Who has applied a result knows what `current` should say."""
        self._not_read(CURRENT, why, tag)
        if self._previous is not None:
            self._unreadable.found(CURRENT)
            self._calls.put(CURRENT, encode(Current(self._previous.round)), now, "swap" if tag else "replace", tag)

    def _jump(self, skipped: RoundResult, now: float) -> None:
        """What belongs to this result is gone: go on from the newest one."""
        self._counted = self._counted or skipped.life_of(self._settings.name) == self._settings.life
        self.phase, self._result = "joining", None
        self._unreadable.clear()
        self._calls.get(CURRENT, now, MAX_BEAT_BYTES)

    def _abandon(self, why: str) -> None:
        """Leave a round out: statistics of the next one replace all that it would have brought."""
        self._calls.out.append(Remark(f"round {self.round} was left out: {why}"))
        if self._result is not None:
            self._previous = self._result[0]
        self._calls.out.append(RoundOpened(self.round + 1))
        self._enter(self.round + 1)

    def _advance_current(self, now: float) -> None:
        """`current` only ever grows: it is replaced where it is what was read."""
        assert self._previous is not None
        newest, (known, tag) = self._previous.round, self._current
        if newest > known:
            mode = "swap" if tag else "create"
            self._calls.put(CURRENT, encode(Current(newest)), now, mode, tag)

    def _result_read(self, key: str, event: Answered, now: float) -> None:
        """The bucket answered a read of this round's result: adopt it, or note why it cannot be read. That it is absent
        is normal while the round is open and nobody is ahead."""
        if key != result_key(self.round) or self.phase not in ("open", "joining"):
            return
        if event.outcome == "done":
            self._adopt(event.content, event.tag, now)
        elif event.outcome == "refused":
            self._not_read(key, event.why, event.tag)
        elif event.outcome == "absent" and (self.phase == "joining" or self.table.ahead(self.round)):
            self._unreadable.note(key, "it is not there", "", self._awake)
        elif event.outcome == "absent":
            self._unreadable.found(key)

    def _adopt(self, content: bytes, tag: str, now: float) -> None:
        """A result of this round: check it, and begin to fetch the contributions that it names."""
        key = result_key(self.round)
        try:
            result, arrays = decode(content, RoundResult)
        except DecodeError as error:
            return self._not_read(key, str(error), tag)
        if result.round != self.round:
            return self._not_read(key, f"it says that it is of round {result.round}", tag)
        wanted = len(self._base) if self._settings.exchange == "parameters" else 0
        if result.fields != wanted or len(arrays) not in (wanted, 2 * wanted):
            self._jump(result, now)  # its θ was removed, because it is old
            return None
        if any(a.shape != b.shape for a, b in zip(arrays, [*self._base, *self._base], strict=False)):
            return self._not_read(key, "it holds a θ of another shape than this job", tag)
        life = result.life_of(self._settings.name)
        if life is not None and life > self._settings.life:
            return self._fence()
        self._unreadable.found(key)
        self._known_content[key] = content
        self._result, self.phase, self._confirm = (result, arrays), "fetching", None
        self._fetch(now)
        return None

    def _fetch(self, now: float) -> None:
        """Fetch what the result names; once all is here, hand it to the coordinator and open the next round."""
        assert self._result is not None
        result, arrays = self._result
        statistics = self._settings.exchange == "statistics"
        others = [e for e in result.entries if e.group != self._settings.name] if statistics else []
        missing = [e for e in others if self._contributions.get(e.key) is None]
        for entry in missing:
            self._calls.get(entry.key, now, self._settings.largest)
        if missing:
            lost = [e.key for e in missing if self._unreadable.given_up(e.key, self._awake)]
            if any(b.round > self.round + active().groups.kept_rounds for b in self.table.present()):
                self._jump(result, now)
            elif lost:
                self._abandon(f"{lost[0]} cannot be read: {self._unreadable.why(lost[0])}")
            return
        included = self._counted or result.life_of(self._settings.name) == self._settings.life
        final = result.final and result.life_of(self._settings.name) == self._settings.life
        if final and not self._confirmed():
            return
        remote, theta = {}, tuple(arrays[: result.fields])
        for entry in others:
            received = self._contributions.get(entry.key)
            assert received is not None
            remote[entry.group] = received.changes
            theta = theta or received.parameter
        if self._settings.exchange == "parameters":
            self._base, self._velocity = arrays[: result.fields], arrays[result.fields :]
        self._counted = False
        groups = tuple(e.group for e in result.entries)
        self._calls.out.append(
            Synchronized(result.round, remote, theta, included, final, groups, self._together(result))
        )
        self._previous = self._headers[result.round] = result
        for old in [
            r for r in self._headers if r <= min(result.round, self._current[0]) - 3 * active().groups.kept_rounds
        ]:
            del self._headers[old]
        if result.by == self._settings.name:
            self._advance_current(now)
            self._clean_up(now)
        kept = {e.key for e in result.entries}
        self._contributions.keep(kept)
        kept |= {result_key(result.round), result_key(result.round - 1)}
        self._known_content = {key: held for key, held in self._known_content.items() if key in kept}
        self._last = result if final else None
        self._enter(result.round + 1)

    def _together(self, result: RoundResult) -> bool:
        """Nobody ended before this round, was lost or is missing."""
        here = {entry.group for entry in result.entries if entry.round == result.round}
        return len(here) >= self._settings.least_groups and self.table.seen() <= here

    def _confirmed(self) -> bool:
        """Before the end: one more beat is in the store, so no other process has this name."""
        if self._confirm is None:
            self._confirm, self._beat_at = self._beats, -np.inf
        told = self._beat_object.told
        return told is not None and told.beat > self._confirm

    def _enter(self, round_: int) -> None:
        self.round, self.phase = round_, "open"
        self._own, self._own_content, self._stored = None, b"", False
        self._withheld, self._ready_since, self._result = 0, None, None
        self._unreadable.clear()
        if self._status.state != "loading":
            self._beat(self._now)

    def _wanted(self, key: str) -> Entry | None:
        """The contribution of this name that is waited for."""
        if self._result is not None:
            return next((e for e in self._result[0].entries if e.key == key), None)
        beat = next((b for b in self.table.present() if b.sent == key and b.round == self.round), None)
        if beat is not None:
            return Entry(beat.group, beat.life, key, beat.digest, beat.round)
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

    def _stored_one(self, command: PutObject, event: Answered, now: float) -> None:
        """The answer to a write: of the beat, the contribution, the result or `current`."""
        key, done = command.key, event.outcome == "done"
        if key == self._beat_object.key:
            self._beat_object.stored(command, event, now)
        elif self._own is not None and key == self._own.key:
            if done and not self._stored:
                self._stored, self._stored_at = True, now
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
        if self._last is None:
            self._calls.out.append(EndsHeard({}))
            return
        s = self._settings
        self._own_content = encode(EndStatistics(s.name, s.life, self._last.round), arrays)
        self._known_content[ENDS + s.name] = self._own_content
        self.phase, self._stored, self._ready_since, self._ends = "ending", False, self._awake, {}

    def _end(self, now: float) -> None:
        """Collect the others' statistics under the last θ; a group that is gone is not waited for long."""
        assert self._last is not None and self._ready_since is not None
        if not self._stored:
            self._stored = self._calls.put(ENDS + self._settings.name, self._own_content, now)
        waited = self._awake - self._ready_since
        there = {beat.group for beat in self.table.live()}
        last = self._last
        expected = [e.group for e in last.entries if e.round == last.round and e.group != self._settings.name]
        missing = [group for group in expected if group not in self._ends]
        for group in missing:
            self._calls.get(ENDS + group, now, self._settings.largest)
        soon = 4.0 * self._settings.beat  # whoever is not there any more has written it before, or will not
        awaited = [g for g in missing if waited <= (active().groups.evaluation_seconds if g in there else soon)]
        if not awaited:
            for group in missing:
                self._calls.out.append(Remark(f"{group} did not say what the last θ is worth on its rows"))
            self._calls.out.append(EndsHeard(self._ends))
            self.phase = "open"

    def _end_read(self, key: str, content: bytes) -> None:
        """Another group's statistics under the last θ; those of an earlier end are ignored."""
        group = key.removeprefix(ENDS)
        try:
            header, arrays = decode(content, EndStatistics)
        except DecodeError as error:
            return self._refuse(key, str(error))
        self._calls.again("get", key, self._now + self._settings.poll)
        life = self._last.life_of(group) if self._last is not None else None
        if self._last is None or (header.group, header.life, header.round) != (group, life, self._last.round):
            return None  # of an earlier end
        if [a.shape for a in arrays] != self._shapes or not finite(arrays):
            return self._refuse(key, "it holds other statistics than this job")
        self._ends[group] = tuple(arrays)
        return None

    # -- old rounds ----------------------------------------------------------------------------------------

    def _clean_up(self, now: float) -> None:
        """The next rounds whose objects nobody needs. `current` may be far behind, where its puts failed, and a joiner
        begins with the round that it names: that one and all later ones stay whole."""
        assert self._previous is not None
        last = min(self._previous.round, self._current[0]) - active().groups.kept_rounds
        for round_ in range(max(self._cleaned, last - active().groups.kept_rounds) + 1, last + 1):
            self._calls.list(f"rounds/{round_}/", now)
            self._cleaned = round_

    def _remove_old(self, prefix: str, names: tuple[str, ...], now: float) -> None:
        """Objects of an old round that no result names any more. Who was in it stays known; only its θ goes."""
        kept = {e.key for e in self._previous.entries} if self._previous is not None else set()
        for name in names:
            if name.startswith(prefix) and name not in kept and not name.endswith("/result"):
                self._calls.delete(name, now)
        header = self._headers.get(int(prefix.split("/")[1]))
        if header is not None and header.fields:
            self._calls.put(result_key(header.round), self._bare(result_key(header.round)), now)


def _sentence(what: str, why: str | None) -> str:
    return f"{what} ({why})" if why else what
