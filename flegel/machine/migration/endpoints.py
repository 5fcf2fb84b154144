"""The two ends of a migration as state machines: the giving and the taking worker (paper Section 4.3).

Events in, commands out. They know windows by number only; arrays, sockets and threads are the runtime's. What they
never do is decide who owns a window: the coordinator decides that at a barrier
(`machine/balance/balance_control.py`). Until then the source holds the window locked and the target holds it inactive,
so no two workers train the same point, whatever is lost, doubled or late on the way.

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
    """Choose and lock a window of about `points` points; answer with `was_cut`."""

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
    """Decides whether the kernel of the sending host should have a small send buffer for a link. That is tried where
    the link is slow, and kept where it makes the link no slower: over long distances, where answers take long, large
    buffers are what makes a link fast."""

    def __init__(self) -> None:
        self.small_buffer = False
        """Which buffer to use now: the small one, or that of the operating system."""
        self._decided = False
        """The small buffer was tried, and `small_buffer` is the result for the rest of the job."""
        self._switched_at = -math.inf
        """When the small buffer was first used: windows sent before that went through the large one."""
        self._last_large_answered_at = -math.inf
        """When the last window that went through the large buffer was answered: until then both share the link."""
        self._rate_with_large_buffer = 0.0
        """Bytes a second, median of some windows."""
        self._rates: deque[float] = deque(maxlen=active().moves.windows_to_judge_link)
        """Bytes a second of the last windows through the present buffer."""

    def note(self, size: float, took: float, sent_at: float, now: float) -> None:
        """A window of `size` bytes, sent at `sent_at`, was answered `now`, `took` seconds after the link was free for
        it."""
        if sent_at < self._switched_at:
            self._last_large_answered_at = now
        if self._decided or sent_at < self._last_large_answered_at or took <= 0:
            return
        self._rates.append(size / took)
        if len(self._rates) < active().moves.windows_to_judge_link:
            return
        rate = statistics.median(self._rates)
        if self.small_buffer:
            kept = active().moves.small_buffer_speed_kept * self._rate_with_large_buffer
            self._decided, self.small_buffer = True, rate >= kept
        elif rate < active().moves.slow_link_bytes_per_second:
            self.small_buffer, self._rate_with_large_buffer, self._switched_at = True, rate, now
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
    """Windows are not cut smaller than one of `pieces` equal parts of the move."""
    each: float = 0.0
    """Bytes of a point on the link; 0: it does not travel."""
    send_buffer: SendBufferTrial = field(default_factory=SendBufferTrial)
    patience: float = 2.0
    """Seconds of silence after which unanswered windows are sent again; follows the answers that come."""

    def __post_init__(self) -> None:
        self.size = min(self.first or self.window, self.window)
        """Points of the next window."""
        self._last_answer_at = -math.inf
        self.points_left = self.points
        """Points that are in no window yet."""
        self.cutting: dict[int, int] = {}
        """By number of a window that the schedule was asked to lock: its points."""
        self.windows = 0
        """Windows that were sent."""
        self._next_window = 0
        self.in_flight: dict[int, WindowInFlight] = {}
        """By number: windows that were sent and are not answered."""
        self.phase = "shipping"

    def start(self) -> list[Command]:
        return self._pump()

    def was_cut(self, number: int, points: int, now: float) -> list[Command]:
        """The schedule locked a window of `points` points; 0: there is nothing more to give."""
        if self.phase == "closed" or number not in self.cutting:
            return []
        asked = self.cutting.pop(number)
        if not points:
            self.points_left = 0
            return self._pump()
        self.windows += 1
        self.points_left = max(self.points_left + asked - points, 0)
        self.in_flight[number] = WindowInFlight(now, points)
        return [SendWindow((self.move, number)), *self._pump()]

    def answered(self, number: int, lacking: bool, now: float) -> list[Command]:
        """The receiver has a window, or lacks what its short form refers to; then the full form is sent."""
        flight = self.in_flight.get(number)
        if flight is None or self.phase == "closed":
            return []
        if lacking:
            if flight.full:
                return []  # an answer to the first try; the full window is on its way
            flight.full, flight.sent_at = True, now
            return [SendWindow((self.move, number), full=True)]
        del self.in_flight[number]
        # Ten times what an answer takes: a busy receiver is not a lost window.
        self.patience = min(
            # It shrinks slowly, and never below half a second.
            max(0.9 * self.patience, 10 * (now - flight.sent_at), 0.5),
            active().moves.max_resend_seconds,
        )
        self._fit(flight, now)
        self._last_answer_at = now
        return self._pump()

    def _fit(self, flight: WindowInFlight, now: float) -> None:
        """Choose the size that would have taken `moves.window_transfer_seconds` since the link was free."""
        took = now - max(flight.sent_at, self._last_answer_at)
        if self.each:
            self.send_buffer.note(flight.points * self.each, took, flight.sent_at, now)
        fitting = flight.points * active().moves.window_transfer_seconds / took if took > 0 else math.inf
        size = int(min(max(fitting, self.size / 2), active().moves.max_window_growth * self.size, self.window))
        self.size = max(size, min(self.points // self.pieces, self.window), TILE) // TILE * TILE

    def tick(self, now: float) -> list[Command]:
        """Send again what has been without an answer for too long, unless answers to others come: it waits its turn."""
        late = [n for n, f in self.in_flight.items() if now - max(f.sent_at, self._last_answer_at) >= self.patience]
        for number in late:
            self.in_flight[number].sent_at = now
        if late:
            self.patience = min(2 * self.patience, active().moves.max_resend_seconds)
        return [SendWindow((self.move, n), self.in_flight[n].full) for n in late]

    def due(self) -> float | None:
        """When to call `tick` next."""
        return min(
            (max(f.sent_at, self._last_answer_at) + self.patience for f in self.in_flight.values()), default=None
        )

    def close(self) -> list[Command]:
        """The coordinator ended the move. What it did not settle stays here."""
        if self.phase == "closed":
            return []
        self.phase = "closed"
        self.in_flight.clear()
        return [ReleaseWindows(self.move)]

    def _pump(self) -> list[Command]:
        """Ask for windows as long as there are tiles to give and credits to send them."""
        commands: list[Command] = []
        while (
            self.phase == "shipping"
            and self.points_left >= TILE
            and len(self.in_flight) + len(self.cutting) < self.credits
        ):
            points = min(self.size, self.points_left)
            self.points_left -= points
            self.cutting[self._next_window] = points
            commands.append(CutWindow((self.move, self._next_window), points))
            self._next_window += 1
        if self.phase == "shipping" and self.points_left < TILE and not (self.in_flight or self.cutting):
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
