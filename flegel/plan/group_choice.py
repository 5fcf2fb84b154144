"""Which group a worker should belong to: load × round-trip time, with hysteresis (paper 3.2.4). Pure.

A worker that moves changes both loads. So it compares what it has now with what it would have after its own move, and
moves only where that is 20 % less: when few workers differ by one, none moves, and two workers never swap for ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from flegel.configuration.active import active


@dataclass(frozen=True)
class GroupLoad:
    """A group as a worker sees it: load average, workers that share it, seconds of a round trip."""

    load: float
    workers: int
    round_trip: float

    @property
    def product(self) -> float:
        return self.load * self.round_trip

    @property
    def with_one_more(self) -> float:
        """The product after this worker has joined: each worker brings its part of the load, at least 1 where none."""
        each = self.load / self.workers if self.workers else 1.0
        return (self.load + each) * self.round_trip


def choose_group(current: str, groups: Mapping[str, GroupLoad], since_move: float) -> tuple[str, str]:
    """The group to belong to from now on, and why. A group that is not in the table is gone: the best of the others."""
    others = {name: seen.with_one_more for name, seen in groups.items() if name != current}
    best = min(sorted(others), key=lambda name: others[name], default=current)
    if current not in groups:
        return best, f"{current} is gone"
    now = groups[current].product
    if since_move < active().groups.stay_seconds:
        return current, f"moved {since_move:.0f} s ago"
    hysteresis = active().groups.hysteresis
    if best == current or others[best] >= (1.0 - hysteresis) * now:
        return current, f"no group is {hysteresis:.0%} better than {now:.3g}"
    return best, f"load × round trip {others[best]:.3g} instead of {now:.3g}"
