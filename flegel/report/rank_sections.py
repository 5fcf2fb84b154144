"""Which rank of a data-parallel training is slow, where, since when, and what it costs. Pure: records in, numbers out.

Ranks write what they spent on each section of their iterations, by windows of the wall clock (`flegel.torch.watch`). A
score is the time of a reference over a rank's own, between 0 and 1: 0.5 takes twice as long. The reference is the
median of all ranks in the same window (relative), or the rank's own past (history).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from statistics import median

from flegel.errors import UsageError

SECTIONS = ("data", "forward", "backward", "exchange", "step", "host")
OWN_SECTIONS = tuple(s for s in SECTIONS if s != "exchange")
"""What a rank does by itself: the exchange contains the wait for others."""
CLEARLY_SLOW = 0.5  # score of a section that is told beside the slowest rank: it takes twice as long as the median's
SILENT_WINDOWS = 3  # that others have and a rank has not, from which it counts as ended: one may still be under way
RECENT_WINDOWS = 6  # that a score looks at: half a minute with windows of 5 s
NOISE_SHARE = 0.02
"""Of an iteration: a section that takes so little more than its reference is not called slow."""
LEAST_SEGMENT = 4  # windows between two changes of level
LEAST_CHANGE = 0.1  # of the level itself
CHANGE_ERRORS = 4.0
"""Standard errors of the difference of two levels from which it is a change: below, one in some thousand splits of
pure noise would count."""


@dataclass(frozen=True)
class RankWindow:
    """One rank in one window of time."""

    window: int
    iterations: int
    seconds: Mapping[str, float]

    def each(self, section: str) -> float:
        """Seconds of an iteration."""
        return self.seconds.get(section, 0.0) / max(self.iterations, 1)

    def busy(self) -> float:
        """Seconds of an iteration that the rank spent by itself."""
        return sum(self.each(section) for section in OWN_SECTIONS)


@dataclass(frozen=True)
class RankScores:
    """Of one rank."""

    relative: dict[str, float]
    """By section; "all" for everything that it does by itself."""
    history: dict[str, float]
    waited: float
    """Seconds in which it waited for later ranks."""
    caused: float
    """Seconds in which others waited for it."""
    changes: tuple[tuple[int, float, float], ...]
    """Windows at which its iterations became slower or faster, with the seconds of an iteration before and after."""


@dataclass(frozen=True)
class WatchReport:
    """Of all ranks."""

    every: float
    ranks: dict[int, RankScores]
    windows: dict[int, list[RankWindow]] = field(repr=False)
    absent: tuple[int, ...] = ()
    """Ranks of which there is no record."""
    silent: tuple[tuple[int, float], ...] = ()
    """Ranks whose records end before those of the others, and how many seconds before."""

    @property
    def lost(self) -> float:
        return sum(one.waited for one in self.ranks.values())

    def after(self, window: int) -> float:
        """Seconds from the first window of all ranks to this one."""
        return (window - min(one.window for own in self.windows.values() for one in own)) * self.every

    def others_slow(self) -> list[tuple[int, str, float]]:
        """Ranks beside the slowest one with a section that is clearly slow, the worst of each."""
        first = self.slowest()
        worst = [
            (rank, *min(((s, one.relative[s]) for s in OWN_SECTIONS), key=lambda pair: pair[1]))
            for rank, one in self.ranks.items()
            if first is None or rank != first[0]
        ]
        return sorted((one for one in worst if one[2] < CLEARLY_SLOW), key=lambda one: one[2])

    def slowest(self) -> tuple[int, str] | None:
        """The rank with the lowest score, and its worst section; None if no rank is slow."""
        rank = min(self.ranks, key=lambda r: self.ranks[r].relative["all"])
        scores = self.ranks[rank].relative
        if scores["all"] >= 1.0:
            return None
        return rank, min(OWN_SECTIONS, key=lambda s: (scores[s], s))


def read_watch(folder: Path) -> tuple[float, dict[int, list[RankWindow]], int]:
    """What ranks have written into a folder: seconds of a window, the windows of each rank, and how many ranks there
    are, as they say. Lines that a killed process left incomplete, and other files, are left out."""
    files = sorted(folder.glob("rank-*.jsonl"))
    if not files:
        raise UsageError(f"{folder} has no records of ranks: train with flegel.torch.watch(model, folder=…) first.")
    found: dict[int, list[RankWindow]] = {}
    every, ranks = 0.0, 0
    for file in files:
        name = file.stem.removeprefix("rank-")
        if not name.isdecimal() or not file.is_file():
            continue
        for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
            try:
                told = json.loads(line)
                seconds = {str(section): float(spent) for section, spent in told["seconds"].items()}
                one = RankWindow(int(told["window"]), int(told["iterations"]), seconds)
                length, many = float(told["every"]), int(told.get("ranks", 0))
            except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
                continue
            if one.iterations > 0 and length > 0.0 and all(0.0 <= v < math.inf for v in seconds.values()):
                found.setdefault(int(name), []).append(one)
                every, ranks = length, max(ranks, many)
    if not found:
        raise UsageError(f"{folder} has no whole window of any rank yet: wait for some seconds of training.")
    return every, found, ranks


def examine(every: float, windows: dict[int, list[RankWindow]], ranks: int = 0) -> WatchReport:
    """Scores of all ranks, and what waiting cost. `ranks`: how many there are, if that is known."""
    absent = tuple(rank for rank in range(ranks) if rank not in windows)
    last = {rank: max(one.window for one in own) for rank, own in sorted(windows.items())}
    newest = max(last.values())
    silent = tuple((r, (newest - at) * every) for r, at in last.items() if newest - at >= SILENT_WINDOWS)
    by_window = _by_window(windows)
    waited, caused = _losses(by_window)
    scores = {
        rank: RankScores(
            _relative(rank, by_window),
            _history(own),
            waited.get(rank, 0.0),
            caused.get(rank, 0.0),
            tuple(_changes(own)),
        )
        for rank, own in sorted(windows.items())
    }
    return WatchReport(every, scores, windows, absent, silent)


def _by_window(windows: Mapping[int, Iterable[RankWindow]]) -> dict[int, dict[int, RankWindow]]:
    found: dict[int, dict[int, RankWindow]] = {}
    for rank, own in windows.items():
        for one in own:
            found.setdefault(one.window, {})[rank] = one
    return {window: found[window] for window in sorted(found)}


def score(reference: float, own: float, whole: float) -> float:
    """1 where a rank needs no more than the reference, within what is noise of the whole iteration."""
    if own <= reference + NOISE_SHARE * whole or own <= 0.0:
        return 1.0
    return reference / own


def _relative(rank: int, by_window: Mapping[int, Mapping[int, RankWindow]]) -> dict[str, float]:
    """Beside the median of all ranks, over the last windows that they share."""
    shared = [ranks for ranks in by_window.values() if rank in ranks and len(ranks) > 1][-RECENT_WINDOWS:]
    found: dict[str, float] = {}
    for section in ("all", *OWN_SECTIONS):
        scores = []
        for ranks in shared:
            times = {r: one.busy() if section == "all" else one.each(section) for r, one in ranks.items()}
            usual = median(one.busy() for one in ranks.values())
            scores.append(score(median(times.values()), times[rank], usual))
        found[section] = median(scores) if scores else 1.0
    return found


def _history(own: Sequence[RankWindow]) -> dict[str, float]:
    """The last windows beside all before them."""
    before, recent = own[:-RECENT_WINDOWS], own[-RECENT_WINDOWS:]
    found: dict[str, float] = {}
    for section in ("all", *OWN_SECTIONS):
        if not before:
            found[section] = 1.0
            continue
        times = [[o.busy() if section == "all" else o.each(section) for o in part] for part in (before, recent)]
        found[section] = score(median(times[0]), median(times[1]), median(o.busy() for o in before))
    return found


def _losses(by_window: Mapping[int, Mapping[int, RankWindow]]) -> tuple[dict[int, float], dict[int, float]]:
    """Seconds in the exchange beyond those of the rank that came last, which did not wait: who lost them, and whom they
    were lost for."""
    waited: dict[int, float] = {}
    caused: dict[int, float] = {}
    for ranks in by_window.values():
        if len(ranks) < 2:
            continue
        last = min(ranks, key=lambda r: ranks[r].seconds.get("exchange", 0.0))
        least = ranks[last].seconds.get("exchange", 0.0)
        for rank, one in ranks.items():
            lost = one.seconds.get("exchange", 0.0) - least
            waited[rank] = waited.get(rank, 0.0) + lost
            caused[last] = caused.get(last, 0.0) + lost
    return waited, caused


def _changes(own: Sequence[RankWindow]) -> list[tuple[int, float, float]]:
    times = [one.busy() for one in own]
    bounds = [0, *change_points(times), len(times)]
    found = []
    for a, b, c in zip(bounds, bounds[1:], bounds[2:], strict=False):
        found.append((own[b].window, median(times[a:b]), median(times[b:c])))
    return found


def change_points(values: Sequence[float]) -> list[int]:
    """Where the level changes: the split that explains most of the squares is taken if the levels differ by several
    standard errors and by a tenth, then both sides are looked at. The noise is that of differences of neighbours, which
    a change of level leaves alone."""
    if len(values) < 2 * LEAST_SEGMENT:
        return []
    noise = median(abs(b - a) for a, b in pairwise(values)) / 0.954  # the median of |N(0, 2σ²)| is 0.954 σ
    sums = list(accumulate(values, initial=0.0))
    many, total = len(values), sums[-1]

    def explained(split: int) -> float:
        return sums[split] ** 2 / split + (total - sums[split]) ** 2 / (many - split)

    at = max(range(LEAST_SEGMENT, many - LEAST_SEGMENT + 1), key=explained)
    before, after = median(values[:at]), median(values[at:])
    error = noise * math.sqrt(1 / at + 1 / (many - at))
    if abs(after - before) <= max(CHANGE_ERRORS * error, LEAST_CHANGE * before):
        return []
    return [*change_points(values[:at]), at, *(at + later for later in change_points(values[at:]))]
