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

    def __init__(self, others: int) -> None:
        self._others = others
        self._steps: deque[tuple[int, float]] = deque(maxlen=active().training.remembered_steps)
        self._away: deque[float] = deque(maxlen=active().training.remembered_steps)

    def add(self, points: int, seconds: float, away: bool) -> None:
        """So many points took so long; `away`: nothing could have called the worker back meanwhile."""
        if seconds >= active().training.shortest_measured_step_seconds:
            self._steps.append((points, seconds))
        if away:
            self._away.append(seconds)
        else:
            self._away.clear()

    def fitting(self, rest: float, least: int) -> int | None:
        """Points of the next step, `least` or more, that end within `rest` seconds; 0: it is time to stop, None: not
        known yet."""
        if late(max(self._away, default=0.0), rest, self._others):
            return 0
        if not self._steps:
            return None
        points, seconds = (sum(column) for column in zip(*self._steps, strict=True))
        fit = int(points / seconds * rest)
        return fit if fit >= least else 0

    def batch(self, rest: float, multiple: int, first: bool = False, call: float = 0.0) -> int | None:
        """Points of a step that nothing can call back: as many as end within `rest` seconds, a multiple of this; 0: too
        few to be worth it, unless it is the `first` of its round, None: not known yet. By the median speed, for a
        single hitch says nothing.

        Each step takes `call` seconds whatever its size. In proportion to steps that are mostly call, larger ones would
        seem too long, and steps would stay small for ever.
        """
        if not self._steps:
            return None
        least = 1.0 - active().interval.largest_call_share
        speeds = sorted(points / max(seconds - call, least * seconds) for points, seconds in self._steps)
        usual = sum(points for points, _ in self._steps) / len(self._steps)
        fit = int(speeds[len(speeds) // 2] * max(rest - call, 0.0))
        if first:
            return max(fit - fit % multiple, multiple)
        return fit - fit % multiple if fit >= max(multiple, active().training.smallest_step_share * usual) else 0


def late(seconds: float, rest: float, others: int) -> bool:
    """What takes so long keeps `others` waiting for longer than this worker would stand idle, if it stopped now."""
    return rest <= 0 or (seconds - rest) * others > rest
