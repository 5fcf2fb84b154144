"""When a group contributes to the open round: every T commits, every so many seconds, or by measured costs. Pure.

A joiner (paper 3.1.5) that appears when the next commit would contribute defers that to the commit after it, once in a
round; one that appears at another time, while a synchronization goes on or after it, has the next one made at the next
commit. A group that joins contributes at its first commit, whatever its interval is (paper 3.1.4).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from flegel.errors import UsageError
from flegel.machine.group.round_meter import RoundMeter
from flegel.options import parse_seconds
from flegel.plan.interval.interval import FixedInterval, Interval
from flegel.plan.interval.multi_stage import MultiStage
from flegel.wording import option


@dataclass(frozen=True)
class Every:
    """How often groups exchange: a number of commits, of seconds, or an interval that is found; the fields that do not
    apply are 0."""

    commits: int = 0
    seconds: float = 0.0
    auto: bool = False

    def of_part(self, fragments: int) -> Every:
        """Between two contributions where each is one of so many fragments of θ, so that all of θ is exchanged as often
        as it would be in one piece. A found interval is that of a round, whatever it holds."""
        return replace(
            self, commits=max(self.commits // fragments, min(self.commits, 1)), seconds=self.seconds / fragments
        )


def parse_every(text: str) -> Every:
    """'3': commits; '30s', '500ms', '2min': time; 'auto'."""
    word = text.strip()
    if word == "auto":
        return Every(auto=True)
    if word.isdecimal() and 0 < int(word) < 1 << 31:
        return Every(commits=int(word))
    if word[:1].isdigit() and word[-1].isalpha():
        return Every(seconds=parse_seconds(word))
    raise UsageError(f"{option('every', text)}: give a number of commits such as 3, a time such as 30s, or auto.")


class SendSchedule:
    """Told of commits, opened rounds and joiners; asked whether it is time."""

    def __init__(self, every: Every) -> None:
        """`every`: the option --every: a number of commits, seconds, or an interval that is found while training."""
        self._commits_between = every.commits
        self._interval: Interval = MultiStage() if every.auto else FixedInterval(every.seconds)
        self._meter = RoundMeter()
        step = self._interval.first(0.0)
        self.seconds = step.seconds or 0.0
        self._tells_reasons = every.auto
        self._reason = step.reason
        self.commits = 0
        self._round_is_open = False
        self._due_commit, self._due_at = 0, 0.0
        self._send_at_next_commit = False
        """A group joined while no round was open: the next contribution is made at the next commit."""
        self._deferred_in_round = False
        """The contribution to the open round was deferred for a joiner; a second one does not defer it again."""

    def opened(self, now: float, comparable: bool = False, joins: bool = False) -> None:
        """The last result was applied; the next round is open. `comparable`: the same groups as in the last one.
        `joins`: it is the first round of this group, and the others have made results before.

        What the ended round cost may change the interval. The next contribution is due when both a number of commits
        and a time are reached; at the next commit where another group joined meanwhile (`_send_at_next_commit`).
        """
        not_sent, self._round_is_open = self._round_is_open, True
        ended = self._meter.opened(now, comparable)
        if ended is not None:
            step = self._interval.next(ended)
            self.seconds = self.seconds if step.seconds is None else step.seconds
            self._reason = step.reason or self._reason
        at_next_commit = self._send_at_next_commit or joins
        due_commit = self.commits + (1 if at_next_commit else self._commits_between)
        due_at = now if at_next_commit else now + self.seconds
        # A round that ended without this group does not defer its contribution: a slow group would never send one.
        self._due_commit = min(self._due_commit, due_commit) if not_sent else due_commit
        self._due_at = min(self._due_at, due_at) if not_sent else due_at
        self._send_at_next_commit = self._deferred_in_round = False

    def explain(self) -> str:
        """Why a found interval was changed since the last call; empty where it was not, and where it is given."""
        said, self._reason = self._reason, ""
        return said if self._tells_reasons else ""

    def commit(self, now: float, visits: int = 0, points: int = 0, objective: float | None = None) -> bool:
        """A commit is done: is it time to contribute?"""
        self.commits += 1
        self._meter.commit(visits, points, objective)
        return self._round_is_open and self.commits >= self._due_commit and now >= self._due_at

    def sent(self, now: float) -> None:
        self._round_is_open = False
        self._meter.sent(now)

    def joined(self, now: float) -> None:
        """Another group has joined. The next commit would contribute: the one after it does, and the joiner can take
        part. Otherwise the next contribution is made at the next commit, also where a result was applied just now: the
        joiner must not wait for a whole interval."""
        if not self._round_is_open:
            self._send_at_next_commit = True
        elif self.commits + 1 < self._due_commit or now < self._due_at:
            self._due_commit, self._due_at = self.commits + 1, now
        elif not self._deferred_in_round:
            self._due_commit, self._deferred_in_round = self.commits + 2, True
