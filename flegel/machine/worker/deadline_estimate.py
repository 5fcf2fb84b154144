"""What a worker can still do before its own clock ends the round, by how long its last steps took. Pure.

A worker that waits for a signal learns too late that it should have stopped: one that sleeps, or waits for its
processor, keeps everybody else waiting until it comes back. One that knows when the round ends does not begin what
it will not finish in time; it alone stands idle then. A little late is in time: with n others, a delay of x costs n·x
of their time, and to stop now the rest of its own.
"""

from __future__ import annotations

from collections import deque

from flegel.configuration.active import active


class DeadlineEstimate:
    """Tell it every step; ask it before the next one."""

    def __init__(self, other_workers: int) -> None:
        self._other_workers = other_workers
        self._steps: deque[tuple[int, float]] = deque(maxlen=active().training.remembered_steps)
        """Points and seconds of the last steps."""
        self._unreachable_seconds: deque[float] = deque(maxlen=active().training.remembered_steps)
        """Of the last steps in which nothing could have called the worker back, as long as there was no other step."""

    def add(self, points: int, seconds: float, away: bool) -> None:
        """Note that `points` points took `seconds`; `away`: nothing could have called the worker back meanwhile."""
        if seconds >= active().training.shortest_measured_step_seconds:
            self._steps.append((points, seconds))
        if away:
            self._unreachable_seconds.append(seconds)
        else:
            self._unreachable_seconds.clear()

    def fitting(self, seconds_left: float, least: int) -> int | None:
        """Points of the next step, `least` or more, that end within `seconds_left`; 0: it is time to stop, None: not
        known yet."""
        if late(max(self._unreachable_seconds, default=0.0), seconds_left, self._other_workers):
            return 0
        if not self._steps:
            return None
        points, seconds = (sum(column) for column in zip(*self._steps, strict=True))
        fit = int(points / seconds * seconds_left)
        return fit if fit >= least else 0

    def batch(self, seconds_left: float, multiple: int, first: bool = False, call: float = 0.0) -> int | None:
        """Points of a step that nothing can call back: as many as end within `seconds_left`, a multiple of `multiple`;
        0: too few to be worth it, unless it is the `first` of its round, None: not known yet. By the median speed,
        for a single hitch says nothing.

        Each step takes `call` seconds whatever its size. In proportion to steps that are mostly call, larger ones would
        seem too long, and steps would stay small for ever.
        """
        if not self._steps:
            return None
        least = 1.0 - active().interval.largest_call_share
        speeds = sorted(points / max(seconds - call, least * seconds) for points, seconds in self._steps)
        usual = sum(points for points, _ in self._steps) / len(self._steps)
        fit = int(speeds[len(speeds) // 2] * max(seconds_left - call, 0.0))
        if first:
            return max(fit - fit % multiple, multiple)
        return fit - fit % multiple if fit >= max(multiple, active().training.smallest_step_share * usual) else 0


def late(seconds: float, seconds_left: float, other_workers: int) -> bool:
    """What takes so long keeps other workers waiting for longer than this one would stand idle, if it stopped now."""
    return seconds_left <= 0 or (seconds - seconds_left) * other_workers > seconds_left
