"""What the leader of a site sends to the other sites, and what their results do to θ of its ranks. Pure.

It sends the change of θ since the last result of all sites. A result becomes a *move*, which the ranks make at one of
their next barriers, all at the same one: θ + (result − what was sent), so training never waits and nothing is counted
twice. The first move of a leader replaces θ by what all sites have in common: what the ranks have trained since their
site was last counted is lost with a leader that is lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.group_options import GroupSpec
from flegel.machine.group.events import (
    Fenced,
    GroupJoined,
    GroupLost,
    Offered,
    Remark,
    RoundOpened,
    Stalled,
    StatusChanged,
    Synchronized,
    ToCoordinator,
    Withheld,
)
from flegel.machine.group.fragments import ALL_FRAGMENTS
from flegel.machine.group.link_meter import WireFinder
from flegel.machine.group.outliers import told_outliers
from flegel.machine.group.pending_change import PendingChange, VisitCounts
from flegel.machine.group.records import finite
from flegel.machine.group.schedule import Every, SendSchedule

Fields = Callable[[], list[Array]]
"""θ of now, copied from the device."""


@dataclass(frozen=True)
class Move:
    """What every rank of the site does to θ at one barrier."""

    round: int
    """Of the result that it makes."""
    values: tuple[Array, ...]
    replaces: bool
    """The values take the place of θ; otherwise they are added to it."""
    ends: bool = False
    """Training is over at all sites."""


class SiteExchange:
    """Of one leader, from its first news to the end."""

    def __init__(self, spec: GroupSpec, every: Every, theta0: Sequence[Array]) -> None:
        self._spec, self._form = spec, WireFinder(spec.wire)
        self._change = PendingChange(theta0, spec.fragments)
        self._schedule = SendSchedule(every.of_part(self._change.fragments.count))
        self._visits = VisitCounts(self._change.fragments.count)
        self._has_joined = self._is_resting = False
        self._fragment = self.round = 0
        """The round that is open; 0 while that is not known."""
        self._samples = self._ranks = 0
        self._offered_at_rest, self._has_news = -math.inf, False
        """θ has changed since this site contributed at rest."""
        self.out: list[Offered | StatusChanged] = []
        """For the other sites; taken away by the session."""
        self.told: list[str] = []
        """For people; taken away likewise."""
        self.groups: tuple[str, ...] = ()
        self.rounds = 0
        self.ages: dict[str, int] = {}
        self.outliers: dict[str, int] = {}
        self.why_ended = ""
        """Why training ended here without the other sites; empty where it did not."""
        self.fenced = ""
        """Another process has the name of this site."""
        self.not_finite = ""
        """θ of this site is worth nothing any more: no other site would read what it sends."""

    @property
    def has_joined(self) -> bool:
        """What all sites have in common is known."""
        return self._has_joined

    @property
    def goodput(self) -> float | None:
        return self._visits.goodput

    @property
    def wire(self) -> str:
        """How the last change was written."""
        return self._form.wire or "full"

    # -- what goes out -------------------------------------------------------------------------------------

    def at_barrier(self, samples: int, ranks: int, theta: Fields, moves: bool, now: float) -> None:
        """All ranks have stepped: contribute where it is time. `moves`: they are to make a move before that."""
        self._visits.made(samples)
        self._samples, self._ranks = self._samples + samples, ranks
        if self._schedule.commit(now, samples) and self.round and self._has_joined and not moves:
            self._offer(theta, False, now)

    def rest(self, theta: Fields, now: float) -> None:
        """The ranks have trained all they will: contribute what is left, and whenever a round opens, until every site
        rests."""
        if not self._is_resting:
            self._is_resting = True
            self._tell()
        anew = self._offered_at_rest + active().groups.contribute_again_seconds
        if self.round and self._has_joined and not self._change.is_pending and (self._has_news or now >= anew):
            self._offered_at_rest, self._has_news = now, False
            self._offer(theta, True, now)

    def _offer(self, theta: Fields, settled: bool, now: float) -> None:
        if self._change.is_pending:
            return  # it was late, and is counted in a later round; what was learned since follows after that
        self._schedule.sent(now)
        self._tell()
        fragment = ALL_FRAGMENTS if settled or self._change.fragments.count == 1 else self._fragment
        covered = self._change.fragments.of(fragment)
        visits = self._visits.of(covered)
        changes, changed = self._change.of(fragment, theta())
        if not finite(changes):
            self.not_finite = (
                f"Parameters of site {self._spec.group} are not finite, so nothing of them was sent to other sites; "
                "lower the learning rate, or look for inputs that are not finite."
            )
            return
        if told := self._form.next(sum(change.size for change in changes), now):
            self.told.append(told)
        arrays = self._change.send(fragment, self._form.readable(changes))
        self._visits.send(covered)
        self.out.append(
            Offered(
                self.round,
                arrays,
                (),
                visits,
                self._samples,
                settled,
                None,
                self._schedule.commits,
                self._form.wire or "full",
                fragment,
                changed,
            )
        )

    def _tell(self) -> None:
        state = "resting" if self._is_resting else "training"
        self.out.append(StatusChanged(state, self._schedule.commits, self._ranks, float(self._ranks)))

    # -- what comes back -----------------------------------------------------------------------------------

    def heard(self, news: ToCoordinator, theta: Fields, now: float) -> Move | None:
        """News of the other sites; the move that follows from it."""
        match news:
            case RoundOpened(round_, fragment):
                self.round, self._fragment = round_, fragment
                self._schedule.opened(now)
                return self._first(self._change.base, round_ - 1)
            case Synchronized():
                return self._synchronized(news, theta, now)
            case GroupJoined(group):
                self._schedule.joined(now)
                self.told.append(f"site {group} joined")
            case GroupLost(group, why):
                self.told.append(f"site {group} {why}; what it sent before stays in the model")
            case Withheld():
                self._change.is_pending = False
            case Remark(text):
                self.told.append(text)
            case Stalled(why) if self._is_resting:
                self.why_ended = why
            case Fenced(why):
                self.fenced = why
            case _:
                pass
        return None

    def _first(self, common: Sequence[Array], round_: int) -> Move | None:
        """The first news of a leader: all ranks begin with what the sites have in common."""
        if self._has_joined:
            return None
        self._has_joined = True
        self._change = PendingChange(common, self._spec.fragments)
        self._tell()
        return Move(round_, tuple(common), replaces=True)

    def _synchronized(self, result: Synchronized, theta: Fields, now: float) -> Move | None:
        comparable, joins = result.groups == self.groups, not self._has_joined
        self.round, self.groups, self.rounds = result.round + 1, result.groups, self.rounds + 1
        self._fragment, self._form.link, self.ages = result.next_fragment, result.link, dict(result.ages)
        self._schedule.opened(now, comparable, joins)
        self.told += [f"round {result.round} of sites: {told}" for told in told_outliers(result.outliers)]
        for group in result.outliers:
            self.outliers[group] = self.outliers.get(group, 0) + 1
        if joins:
            return self._first(result.parameter, result.round)
        if result.included:
            self._visits.counted()
        over = self._is_resting and result.final and result.included
        before = theta()
        after = self._change.apply(result, before, over)
        if over:
            return Move(result.round, tuple(after), replaces=True, ends=True)
        self._has_news = any(not np.array_equal(a, b) for a, b in zip(after, before, strict=True))
        moved = [(a.astype(np.float64) - b).astype(b.dtype) for a, b in zip(after, before, strict=True)]
        return Move(result.round, tuple(moved), replaces=False)
