"""What a worker can still do before its own clock ends the round, by how long its last steps took. Pure.

A worker that waits for a signal learns too late that it should have stopped: one that sleeps, or waits for its
processor, keeps everybody else waiting until it comes back. One that knows when the round ends does not begin what
it will not finish in time; it alone stands idle then. A little late is in time: with n others, a delay of x costs n·x
of their time, and to stop now the rest of its own.
"""

from __future__ import annotations

from collections import deque

LAST = 4  # steps that are remembered
TELLING = 2e-4  # seconds: a shorter step says more about the call than about the points
WORTH = 0.25  # of a usual step: a smaller one is mostly the time of its call
NEWER, HITCH = 0.25, 1.5  # weight of a step in the time of steps of its size, of which it counts so many times at most
FEW = 64  # points up to which twice as many are tried, to learn what a call costs
GROWTH = (
    4  # times the largest of the last steps, at most: what a call costs is known the better the more sizes were seen
)


class DeadlineEstimate:
    """Tell it every step; ask it before the next one."""

    def __init__(self, others: int) -> None:
        self._others = others
        self._steps: deque[tuple[int, float]] = deque(maxlen=LAST)
        self._away: deque[float] = deque(maxlen=LAST)
        self._sizes: dict[int, tuple[float, float]] = {}
        """Points and seconds of a step, means by the power of two that its points are in."""

    def add(self, points: int, seconds: float, away: bool) -> None:
        """So many points took so long; `away`: nothing could have called the worker back meanwhile."""
        if seconds >= TELLING:
            self._steps.append((points, seconds))
            size = points.bit_length()
            many, usual = self._sizes.get(size, (float(points), seconds))
            hitch = min(seconds, HITCH * usual)  # a single one says nothing
            self._sizes[size] = many + NEWER * (points - many), usual + NEWER * (hitch - usual)
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

    def batch(self, rest: float, multiple: int, first: bool = False) -> int | None:
        """Points of a step that nothing can call back: as many as end within `rest` seconds, a multiple of this; 0: too
        few to be worth it, None: not known yet. The `first` of a round takes as long as its call at least: the call is
        paid for anyway.

        A step takes the time of a call and that of its points, as steps of different sizes tell; after the first small
        one twice as many are tried. By the median speed alone a GPU, where a call takes as long as thousands of
        points, would compute the same few in every round."""
        if not self._steps:
            return None
        usual = sum(points for points, _ in self._steps) / len(self._steps)
        largest = max(points for points, _ in self._steps)
        call, each = self._cost()
        fit = int(min(max(rest - call, 0.0) / each, GROWTH * largest))
        if len(self._sizes) == 1 and largest <= fit and largest <= FEW:
            fit = max(fit, 2 * largest)
        if first:
            fit = max(fit, int(min(call / each, GROWTH * largest)))
            return max(fit - fit % multiple, multiple)
        return fit - fit % multiple if fit >= max(multiple, WORTH * usual) else 0

    def _cost(self) -> tuple[float, float]:
        """Seconds of a call and of each point, from the smallest and the largest steps; of one size by its median."""
        if len(self._sizes) == 1:
            return 0.0, sorted(seconds / points for points, seconds in self._steps)[(len(self._steps) - 1) // 2]
        (few, short), (many, long) = self._sizes[min(self._sizes)], self._sizes[max(self._sizes)]
        each = max((long - short) / (many - few), 0.0)
        call = max(short - each * few, 0.0)
        return call, max((long - call) / many, 1e-12)


def late(seconds: float, rest: float, others: int) -> bool:
    """What takes so long keeps `others` waiting for longer than this worker would stand idle, if it stopped now."""
    return rest <= 0 or (seconds - rest) * others > rest
