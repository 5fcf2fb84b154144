"""The two ends of a migration as state machines: the giving and the taking worker (paper Section 4.3).

Events in, commands out. They know windows by number only; arrays, sockets and threads are the runtime's. What they
never do is decide who owns a window: that is the coordinator's word at a barrier
(`machine/coordinator/migrations.py`). Until it is
spoken the source holds the window locked and the target holds it inactive, so whatever is lost, doubled or late
on the way, nobody trains a point that another one trains.

The size of a window follows the link: it grows while answers come fast and shrinks where they are slow, so that a
window is locked for about `moves.window_transfer_seconds` whatever the bandwidth, but not below a part of the move.

Source:   cutting ⇄ shipping (at most `credits` windows without an answer) → sent → closed
Target:   open (each window kept once, answered as often as it comes) → closed
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from dataclasses import dataclass, field

from flegel.configuration.active import active
from flegel.core.shard import TILE
from flegel.machine.worker.visit_schedule import Transfer

# -- commands ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CutWindow:
    """Choose and lock a window of about so many points; answer with `was_cut`."""

    transfer: Transfer
    points: int


@dataclass(frozen=True)
class SendWindow:
    """Send this window; `full` even where the target should have a copy."""

    transfer: Transfer
    full: bool = False


@dataclass(frozen=True)
class ReportSent:
    """Tell the coordinator how many windows there are in all."""

    move: int
    windows: int


@dataclass(frozen=True)
class ReleaseWindows:
    """The windows of this move that did not change owner are the source's to train again."""

    move: int


@dataclass(frozen=True)
class StoreWindow:
    """Lay the window that just came aside, inactive, and tell the coordinator."""

    transfer: Transfer


@dataclass(frozen=True)
class AnswerSource:
    """Answer the source."""

    transfer: Transfer
    lacking: bool = False


@dataclass(frozen=True)
class DropWindows:
    """Forget what was laid aside for this move and not taken."""

    move: int


Command = CutWindow | SendWindow | ReportSent | ReleaseWindows | StoreWindow | AnswerSource | DropWindows


@dataclass
class WindowInFlight:
    """A window without an answer."""

    sent_at: float
    points: int = 0
    full: bool = False


class SendBufferTrial:
    """Should the sender's kernel hold little of what goes over a link? It is tried where the link is slow, and kept
    where that makes it no slower: far away, where answers take long, large buffers are what makes a link fast."""

    def __init__(self) -> None:
        self.tight = False
        self._known = False
        """It was tried, and `tight` is what came of it."""
        self._changed = self._alone = -math.inf
        """When the last window left as before; when the last such one was answered. Until then two share the link."""
        self._loose = 0.0
        self._rates: deque[float] = deque(maxlen=active().moves.windows_to_judge_link)

    def note(self, size: float, took: float, sent_at: float, now: float) -> None:
        """A window of so many bytes, sent at that time, took so long since the link was free for it."""
        if sent_at < self._changed:
            self._alone = now
        if self._known or sent_at < self._alone or took <= 0:
            return
        self._rates.append(size / took)
        if len(self._rates) < active().moves.windows_to_judge_link:
            return
        rate = statistics.median(self._rates)
        if self.tight:
            self._known, self.tight = True, rate >= active().moves.small_buffer_speed_kept * self._loose
        elif rate < active().moves.slow_link_bytes_per_second:
            self.tight, self._loose, self._changed = True, rate, now
            self._rates.clear()


@dataclass
class MigrationSource:
    """The source's end of one move."""

    move: int
    points: int
    window: int
    """Points of the largest window."""
    first: int = 0
    """Points of the first window, while nothing is known of the link; 0: as the largest."""
    credits: int = field(default_factory=lambda: active().moves.windows_under_way)
    """Windows that may be on their way at once: what the target must be able to hold, and what is locked."""
    pieces: int = field(default_factory=lambda: active().moves.max_windows_per_move)
    """Windows are not cut smaller than such a part of the move."""
    each: float = 0.0
    """Bytes of a point on the link; 0: it does not travel."""
    depth: SendBufferTrial = field(default_factory=SendBufferTrial)
    patience: float = 2.0
    """Seconds of silence after which unanswered windows are sent again; follows the answers that come."""

    def __post_init__(self) -> None:
        self.size = min(self.first or self.window, self.window)
        """Points of the next window."""
        self._heard = -math.inf
        self.left = self.points
        self.cutting: dict[int, int] = {}
        self.windows = 0
        self._next = 0
        self.flying: dict[int, WindowInFlight] = {}
        self.phase = "shipping"

    def start(self) -> list[Command]:
        return self._pump()

    def was_cut(self, number: int, points: int, now: float) -> list[Command]:
        """The schedule locked a window of so many points; 0: there is nothing more to give."""
        if self.phase == "closed" or number not in self.cutting:
            return []
        asked = self.cutting.pop(number)
        if not points:
            self.left = 0
            return self._pump()
        self.windows += 1
        self.left = max(self.left + asked - points, 0)
        self.flying[number] = WindowInFlight(now, points)
        return [SendWindow((self.move, number)), *self._pump()]

    def answered(self, number: int, lacking: bool, now: float) -> list[Command]:
        """The receiver has a window, or lacks what its short form refers to; then the full form is sent."""
        flight = self.flying.get(number)
        if flight is None or self.phase == "closed":
            return []
        if lacking:
            if flight.full:
                return []  # an answer to the first try; the full window is on its way
            flight.full, flight.sent_at = True, now
            return [SendWindow((self.move, number), full=True)]
        del self.flying[number]
        # Ten times what an answer takes: a busy receiver is not a lost window.
        self.patience = min(
            max(0.9 * self.patience, 10 * (now - flight.sent_at), 0.5), active().moves.max_resend_seconds
        )
        self._fit(flight, now)
        self._heard = now
        return self._pump()

    def _fit(self, flight: WindowInFlight, now: float) -> None:
        """The size that would have taken `moves.window_transfer_seconds`, from the time since the link was free."""
        took = now - max(flight.sent_at, self._heard)
        if self.each:
            self.depth.note(flight.points * self.each, took, flight.sent_at, now)
        fitting = flight.points * active().moves.window_transfer_seconds / took if took > 0 else math.inf
        size = int(min(max(fitting, self.size / 2), active().moves.max_window_growth * self.size, self.window))
        self.size = max(size, min(self.points // self.pieces, self.window), TILE) // TILE * TILE

    def tick(self, now: float) -> list[Command]:
        """Send again what has been without an answer for too long, unless answers to others come: it waits its turn."""
        late = [n for n, f in self.flying.items() if now - max(f.sent_at, self._heard) >= self.patience]
        for number in late:
            self.flying[number].sent_at = now
        if late:
            self.patience = min(2 * self.patience, active().moves.max_resend_seconds)
        return [SendWindow((self.move, n), self.flying[n].full) for n in late]

    def due(self) -> float | None:
        """When to call `tick` next."""
        return min((max(f.sent_at, self._heard) + self.patience for f in self.flying.values()), default=None)

    def close(self) -> list[Command]:
        """The coordinator ended the move. What it did not settle stays here."""
        if self.phase == "closed":
            return []
        self.phase = "closed"
        self.flying.clear()
        return [ReleaseWindows(self.move)]

    def _pump(self) -> list[Command]:
        """Ask for windows as long as there are tiles to give and credits to send them."""
        commands: list[Command] = []
        while self.phase == "shipping" and self.left >= TILE and len(self.flying) + len(self.cutting) < self.credits:
            points = min(self.size, self.left)
            self.left -= points
            self.cutting[self._next] = points
            commands.append(CutWindow((self.move, self._next), points))
            self._next += 1
        if self.phase == "shipping" and self.left < TILE and not (self.flying or self.cutting):
            self.phase = "sent"
            commands.append(ReportSent(self.move, self.windows))
        return commands


@dataclass
class MigrationTarget:
    """The target's end of one move."""

    move: int
    kept: set[int] = field(default_factory=set)
    closed: bool = False

    def came(self, number: int, usable: bool) -> list[Command]:
        """A window is here; not `usable` means that it relies on a copy that this worker does not have."""
        if self.closed:
            return []
        transfer = (self.move, number)
        if number in self.kept:
            return [AnswerSource(transfer)]
        if not usable:
            return [AnswerSource(transfer, lacking=True)]
        self.kept.add(number)
        return [StoreWindow(transfer), AnswerSource(transfer)]

    def close(self) -> list[Command]:
        if self.closed:
            return []
        self.closed = True
        return [DropWindows(self.move)]
