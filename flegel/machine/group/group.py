"""A group and its rounds: what to read from and write to the bucket, and what follows. Pure: no store, clock or thread.

    joining     find the newest result by `current`, or begin with round 1
    open        beats; contribute; when everybody who is waited for has, one of them writes the result, once
    fetching    the result is known; read the contributions that it names, then tell the coordinator
    over        the last beat says how this group ended

Each group is in one round, and opens the next when it has applied the result. Nothing depends on an earlier message:
the state of every group is in its beat, a result is written once by a conditional put, and every other object is
written by one group alone. So a put whose answer was lost is looked up, a stale listing only delays, and clocks need
not agree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flegel.core.pytree import Array
from flegel.errors import DecodeError
from flegel.machine.group.contributions import Contributions
from flegel.machine.group.events import (
    Answered,
    Fenced,
    GetObject,
    GroupCommand,
    GroupEvent,
    GroupJoined,
    Hinted,
    ListObjects,
    Offered,
    PutObject,
    Remark,
    RoundOpened,
    SendHint,
    StatusChanged,
    StoreCommand,
    Synchronized,
    TimePassed,
)
from flegel.machine.group.records import (
    CURRENT,
    MEMBERS,
    NAME,
    Contribution,
    Current,
    Entry,
    MemberBeat,
    RoundResult,
    contribution_key,
    decode,
    digest_of,
    encode,
    result_key,
)
from flegel.machine.group.store_calls import StoreCalls
from flegel.machine.group.table import MemberTable

KEPT_ROUNDS = 4  # objects of older rounds are removed
ENDED = ("finished", "left", "excluded")


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


class Group:
    """Build it, feed it events, carry out its commands. `next_at` says when to wake it."""

    def __init__(
        self, settings: GroupSettings, shapes: Sequence[tuple[int, ...]], base: Sequence[Array], now: float
    ) -> None:
        """`shapes`: of what is contributed. `base`: additive fields of θ(0), where θ is exchanged."""
        self._settings = settings
        self._calls = StoreCalls(settings.poll, settings.beat)
        self.table = MemberTable(settings.name, settings.silence, 3.0 * settings.beat)
        self._contributions = Contributions(shapes)
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
        self._headers: dict[int, RoundResult] = {}
        """Of the last results, to leave them behind without their θ."""
        self._cleaned = 0
        """The last round whose objects were removed."""
        self._counted = False
        """Results were skipped, and one of them holds this group's last contribution."""
        self._stored_at = now
        self._beats = 0
        self._beat_at = -np.inf
        self._told: MemberBeat | None = None
        self._looked_at = -np.inf
        self._refused: set[str] = set()
        self.rounds_made = 0
        """Results that this group wrote."""
        self._now = now

    @property
    def name(self) -> str:
        return self._settings.name

    @property
    def base(self) -> list[Array]:
        """Additive fields of θ after the last result."""
        return self._base

    @property
    def over(self) -> bool:
        """The last beat is in the store."""
        told = self._told
        return self._status.state in ENDED and told is not None and told.state == self._status.state

    def handle(self, event: GroupEvent, now: float) -> list[GroupCommand]:
        self._calls.out = []
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
            case Hinted(content):
                self._hinted(content)
            case TimePassed():
                pass
        self._step(now)
        return self._calls.out

    def next_at(self, now: float) -> float:
        """When to wake it, at the latest."""
        return min(self._calls.next_at(now), self._beat_at + self._settings.beat, now + self._settings.beat)

    # -- what is to be done now ----------------------------------------------------------------------------

    def _step(self, now: float) -> None:
        self._beat(now)
        if self._status.state in ENDED:
            return
        if now - self._looked_at >= self._settings.beat:
            self._looked_at = now
            self._calls.list(MEMBERS, now)
            for name in sorted(self.table.known):
                self._calls.forget("get", MEMBERS + name)
        for name in sorted(self.table.known):
            self._calls.get(MEMBERS + name, now)
        if self.phase == "joining":
            self._calls.get(CURRENT, now)
        elif self.phase == "open":
            self._open(now)
        elif self.phase == "fetching":
            self._fetch(now)

    def _beat(self, now: float) -> None:
        status, own = self._status, self._own if self._stored else None
        state = status.state if self.phase != "joining" or status.state in ENDED else "loading"
        beat = MemberBeat(
            self._settings.name, self._settings.life, self._beats + 1, state, self.round,
            own.key if own else "", own.digest if own else "", self._withheld,
            status.commits, status.workers, status.load, self._settings.address,
        )  # fmt: skip
        told = self._told
        changed = told is None or (beat.state, beat.round, beat.sent, beat.withheld) != (
            told.state, told.round, told.sent, told.withheld,
        )  # fmt: skip
        due = now - self._beat_at >= self._settings.beat
        content = encode(beat) if changed or due else b""
        if content and self._calls.put(MEMBERS + self._settings.name, content, now):
            self._beats, self._beat_at = self._beats + 1, now
            self._calls.out.append(SendHint(content))

    def _hinted(self, content: bytes) -> None:
        """Says the same as the store, sooner."""
        try:
            beat, _ = decode(content, MemberBeat)
        except DecodeError:
            return  # nothing depends on it
        if NAME.fullmatch(beat.group):
            self.table.hint(beat)

    def _offer(self, event: Offered, now: float) -> None:
        if event.round != self.round or self.phase != "open" or self._own is not None:
            return  # an offer for a round that is over: the coordinator offers again
        if not event.arrays:
            self._withheld = self.round
            return
        s = self._settings
        header = Contribution(
            s.name, s.life, self.round, len(event.arrays), event.visits, event.points, event.settled, event.objective,
            event.commits,
        )  # fmt: skip
        self._own_content = encode(header, [*event.arrays, *event.parameter])
        key = contribution_key(self.round, s.name, s.life)
        self._own = Entry(s.name, s.life, key, digest_of(self._own_content), self.round, event.settled)
        self._withheld = 0

    def _open(self, now: float) -> None:
        s = self._settings
        if self._own is not None and not self._stored:
            self._calls.put(self._own.key, self._own_content, now)
        live = self.table.live()
        if self.table.ahead(self.round) or self._withheld == self.round:
            self._calls.get(result_key(self.round), now)
        if not self._stored and self._withheld != self.round:
            return
        if any(not self._is_ready(beat) for beat in live):
            self._ready_since = None
            return
        if self._ready_since is None:
            self._ready_since = now
        turn = self._turn(live)
        if turn and now - self._ready_since < 2.0 * turn * s.beat:
            self._calls.get(result_key(self.round), now)  # one of the others makes it
            return
        self._aggregate(live, now)

    def _turn(self, live: list[MemberBeat]) -> int:
        """Who makes the result: the first by name, and each of the others so much later."""
        return sorted([self._settings.name, *(beat.group for beat in live)]).index(self._settings.name)

    def _is_ready(self, beat: MemberBeat) -> bool:
        return beat.round == self.round and (bool(beat.sent) or beat.withheld == self.round)

    def _aggregate(self, live: list[MemberBeat], now: float) -> None:
        entries = [self._own] if self._own is not None else []
        complete = True
        present = [b for b in self.table.present() if b.round == self.round and b.sent]
        for beat in present:
            entry = Entry(beat.group, beat.life, beat.sent, beat.digest, self.round)
            received = self._contributions.get(entry.key)
            if received is not None:
                entries.append(received.entry)
            elif beat.state != "finished" and not self._given_up(entry.key, now):
                complete = False
                self._calls.get(entry.key, now)
            elif beat.state == "finished":
                complete = complete and self._given_up(entry.key, now)
                self._calls.get(entry.key, now)
        if not complete or not entries:
            return
        named = {entry.group for entry in entries}
        if self._settings.exchange == "statistics" and self._previous is not None:
            entries += [e for e in self._previous.entries if e.group not in named and self.table.finished(e.group)]
        self._write_result(entries, self._is_final(entries, live), now)

    def _is_final(self, entries: list[Entry], live: list[MemberBeat]) -> bool:
        """Everybody is at rest, and was so with the same groups before: who rested alone has not heard the others."""
        before = self._previous.entries if self._previous is not None else ()
        return (
            all(entry.settled for entry in entries)
            and {(e.group, e.life) for e in entries} == {(e.group, e.life) for e in before}
            and {beat.group for beat in live} <= {entry.group for entry in entries}
            and not self.table.loading()
            and len({entry.group for entry in entries} | self.table.gone()) >= self._settings.least_groups
        )

    def _given_up(self, key: str, now: float) -> bool:
        """What a beat names has not been found for as long as a group may be silent: the round goes on without it."""
        return self._ready_since is not None and now - self._ready_since > self._settings.silence

    def _write_result(self, entries: list[Entry], final: bool, now: float) -> None:
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
        self._calls.put(result_key(self.round), content, now, "create")

    # -- answers -------------------------------------------------------------------------------------------

    def _answered(self, command: StoreCommand, event: Answered, now: float) -> None:
        if event.outcome == "refused":
            self._refuse(command, event.why)
            return
        match command:
            case ListObjects(_, prefix) if prefix == MEMBERS and event.outcome == "done":
                names = [name.removeprefix(MEMBERS) for name in event.names]
                self.table.known.update(n for n in names if NAME.fullmatch(n) and n != self._settings.name)
            case ListObjects(_, prefix) if event.outcome == "done":
                self._remove_old(prefix, event.names, now)
            case GetObject(_, key) if key.startswith(MEMBERS) and event.outcome == "done":
                self._member(key, event.content, now)
            case GetObject(_, key) if key == CURRENT:
                self._current_read(event, now)
            case GetObject(_, key) if key.endswith("/result"):
                self._result_read(key, event, now)
            case GetObject(_, key) if key.startswith("rounds/") and event.outcome == "done":
                self._contribution_read(key, event.content)
            case PutObject():
                self._stored_one(command, event, now)
            case _:
                pass

    def _refuse(self, command: StoreCommand, why: str) -> None:
        key = command.prefix if isinstance(command, ListObjects) else command.key
        if key not in self._refused:
            self._refused.add(key)
            self._calls.out.append(Remark(f"{key} was refused: {why}"))

    def _member(self, key: str, content: bytes, now: float) -> None:
        every = self._settings.beat
        if self._stored:  # it is waited for: soon at first, then less and less often
            every = min(max(self._settings.poll, (now - self._stored_at) / 8.0), every)
        self._calls.again("get", key, now + every)
        try:
            beat, _ = decode(content, MemberBeat)
        except DecodeError as error:
            return self._refuse(GetObject(0, key), str(error))
        if MEMBERS + beat.group != key:
            return self._refuse(GetObject(0, key), f"it says that it is of {beat.group}")
        if self.table.hear(beat, now):
            self._calls.out.append(GroupJoined(beat.group))
        return None

    def _current_read(self, event: Answered, now: float) -> None:
        if event.outcome == "done":
            try:
                current, _ = decode(event.content, Current)
            except DecodeError as error:
                return self._refuse(GetObject(0, CURRENT), str(error))
            self._current = (current.round, event.tag)
            self._calls.again("get", CURRENT, now + self._settings.beat)
            if self.phase == "joining" and current.round >= self.round:
                self.round = current.round
                self._calls.get(result_key(self.round), now)
            elif self._previous is not None and current.round < self._previous.round:
                self._raise_current(now)
        elif event.outcome == "absent" and self.phase == "joining" and self.round == 0:
            self._calls.out.append(RoundOpened(1))
            self._enter(1)
        return None

    def _jump(self, skipped: RoundResult, now: float) -> None:
        """What belongs to this result is gone: go on from the newest one."""
        self._counted = self._counted or skipped.life_of(self._settings.name) == self._settings.life
        self.phase, self._result = "joining", None
        self._calls.get(CURRENT, now)

    def _raise_current(self, now: float) -> None:
        """`current` only ever grows: it is replaced where it is what was read."""
        assert self._previous is not None
        newest, (known, tag) = self._previous.round, self._current
        if newest > known:
            mode = "swap" if tag else "create"
            self._calls.put(CURRENT, encode(Current(newest)), now, mode, tag)

    def _result_read(self, key: str, event: Answered, now: float) -> None:
        if key != result_key(self.round) or self.phase not in ("open", "joining"):
            return
        if event.outcome == "done":
            self._adopt(event.content, now)
        elif event.outcome == "absent" and self.phase == "joining":
            self._calls.get(CURRENT, now)  # not visible yet

    def _adopt(self, content: bytes, now: float) -> None:
        try:
            result, arrays = decode(content, RoundResult)
        except DecodeError as error:
            return self._refuse(GetObject(0, result_key(self.round)), str(error))
        if result.round != self.round:
            return self._refuse(GetObject(0, result_key(self.round)), f"it says that it is of round {result.round}")
        wanted = len(self._base) if self._settings.exchange == "parameters" else 0
        if result.fields != wanted or len(arrays) not in (wanted, 2 * wanted):
            self._jump(result, now)  # its θ was removed, because it is old
            return None
        life = result.life_of(self._settings.name)
        if life is not None and life > self._settings.life:
            self._calls.out.append(Fenced(f"another process takes part as {self._settings.name}; this one is replaced"))
            return None
        self._result, self.phase = (result, arrays), "fetching"
        self._fetch(now)
        return None

    def _fetch(self, now: float) -> None:
        assert self._result is not None
        result, arrays = self._result
        statistics = self._settings.exchange == "statistics"
        others = [e for e in result.entries if e.group != self._settings.name] if statistics else []
        missing = [e for e in others if self._contributions.get(e.key) is None]
        for entry in missing:
            self._calls.get(entry.key, now)
        if missing:
            if any(b.round > self.round + KEPT_ROUNDS for b in self.table.present()):
                self._jump(result, now)
            return
        remote, theta = {}, tuple(arrays[: result.fields])
        for entry in others:
            received = self._contributions.get(entry.key)
            assert received is not None
            remote[entry.group] = received.changes
            theta = theta or received.parameter
        if self._settings.exchange == "parameters":
            self._base, self._velocity = arrays[: result.fields], arrays[result.fields :]
        included = self._counted or result.life_of(self._settings.name) == self._settings.life
        self._counted = False
        groups = tuple(e.group for e in result.entries)
        self._calls.out.append(Synchronized(result.round, remote, theta, included, result.final, groups))
        self._previous = self._headers[result.round] = result
        for old in [r for r in self._headers if r <= min(result.round, self._current[0]) - 3 * KEPT_ROUNDS]:
            del self._headers[old]
        if result.by == self._settings.name:
            self._raise_current(now)
            self._clean_up(now)
        self._contributions.keep({e.key for e in result.entries})
        self._enter(result.round + 1)

    def _enter(self, round_: int) -> None:
        self.round, self.phase = round_, "open"
        self._own, self._own_content, self._stored = None, b"", False
        self._withheld, self._ready_since, self._result = 0, None, None
        if self._status.state != "loading":
            self._beat(self._now)

    def _contribution_read(self, key: str, content: bytes) -> None:
        wanted = next((e for e in self._result[0].entries if e.key == key), None) if self._result else None
        if wanted is None:
            beat = next((b for b in self.table.present() if b.sent == key), None)
            wanted = Entry(beat.group, beat.life, key, beat.digest, beat.round) if beat is not None else None
        if wanted is not None and (why := self._contributions.accept(wanted, content)):
            self._refuse(GetObject(0, key), why)
            self._calls.again("get", key, self._now + self._settings.beat)

    def _stored_one(self, command: PutObject, event: Answered, now: float) -> None:
        key, done = command.key, event.outcome == "done"
        if key == MEMBERS + self._settings.name:
            if done:
                self._told, _ = decode(command.content, MemberBeat)
        elif self._own is not None and key == self._own.key:
            if done and not self._stored:
                self._stored, self._stored_at = True, now
        elif key == result_key(self.round) and self.phase == "open":
            if done:
                self.rounds_made += 1
                self._adopt(command.content, now)
            elif event.outcome in ("conflict", "failed"):  # somebody was first; or perhaps this very put
                self._calls.forget("get", key)
                self._calls.get(key, now)
        elif key == CURRENT:
            if done:
                self._current = (decode(command.content, Current)[0].round, event.tag)
            else:
                self._calls.get(CURRENT, now)

    def _clean_up(self, now: float) -> None:
        """The next rounds whose objects nobody needs. `current` may be far behind, where its puts failed, and a joiner
        begins with the round that it names: that one and all later ones stay whole."""
        assert self._previous is not None
        last = min(self._previous.round, self._current[0]) - KEPT_ROUNDS
        for round_ in range(max(self._cleaned, last - KEPT_ROUNDS) + 1, last + 1):
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
            bare = RoundResult(header.round, header.entries, header.final, 0, header.by)
            self._calls.put(result_key(header.round), encode(bare), now)
