"""How fast a group's link to its bucket is, from the puts that it makes anyway, and how changes of θ are written on it.
Pure.

Small objects (beats) tell the latency, large ones (contributions) the rate. `--wire auto` takes the most exact form
whose sending takes a small part of the time between two contributions: what is rounded away is sent later, and what
is on its way for long is old when it arrives.
"""

from __future__ import annotations

import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.group_options import WIRES
from flegel.machine.group.wire import packed, unpacked

BYTES_PER_VALUE = {"full": 8.0, "bf16": 2.0, "int8": 1.016, "int4": 0.516}
"""Without scales and compression: `full` is written in float64."""
UNMEASURED = "int8"
"""The first contribution measures the link: in an eighth of the bytes, and within 0.4 %."""


class LinkMeter:
    """Told of every put that was done."""

    def __init__(self) -> None:
        remembered = active().groups.remembered_puts
        self._latencies: deque[float] = deque(maxlen=remembered)
        self._large: deque[tuple[int, float]] = deque(maxlen=remembered)

    def put(self, size: int, seconds: float) -> None:
        if size <= active().groups.max_latency_object_bytes:
            self._latencies.append(seconds)
        else:
            self._large.append((size, seconds))

    @property
    def bytes_per_second(self) -> float:
        """0 while no large object was sent."""
        if not self._large:
            return 0.0
        latency = statistics.median(self._latencies) if self._latencies else 0.0
        # An object that took no longer than a beat says only that the link is faster than its whole time says.
        rates = [size / max(seconds - latency, seconds / 2, 1e-6) for size, seconds in self._large]
        return statistics.median(rates)


@dataclass(frozen=True)
class WireChoice:
    """A form, and why."""

    wire: str
    reason: str


class WireFinder:
    """The form of a group's next change: given, or found."""

    def __init__(self, wire: str) -> None:
        self._finds = wire == "auto"
        self.wire = "" if self._finds else wire
        """Of the last change; empty before the first, where it is found."""
        self.link = 0.0
        """Bytes a second to the bucket, as measured; 0 while that is not known."""
        self._sent_at: float | None = None

    def next(self, values: int, now: float) -> str:
        """Choose the form of a change of so many numbers; why, where it is another one than before."""
        interval = 0.0 if self._sent_at is None else now - self._sent_at
        self._sent_at = now
        if not self._finds:
            return ""
        choice = choose_wire(values, self.link, interval, self.wire)
        told = f"changes of θ are sent as {choice.wire}: {choice.reason}" if choice.wire != self.wire else ""
        self.wire = choice.wire
        return told

    def readable(self, changes: Sequence[Array]) -> list[Array]:
        """Changes as others will read them: the rest stays in this group's θ, and is part of its next change."""
        if self.wire == "full":
            return list(changes)
        return unpacked(self.wire, packed(self.wire, changes), [change.shape for change in changes])


def choose_wire(values: int, bytes_per_second: float, interval: float, present: str = "") -> WireChoice:
    """`values`: numbers of a contribution. `interval`: seconds between two contributions of this group. `present`: what
    was chosen before; a more exact form is taken only where it takes half of the time that is allowed, so that
    a link at the limit does not change its form all the time."""
    if bytes_per_second <= 0.0 or interval <= 0.0:
        return WireChoice(UNMEASURED, "the link is not measured yet")
    allowed = active().groups.max_sending_share * interval
    for wire in WIRES:
        takes = BYTES_PER_VALUE[wire] * values / bytes_per_second
        more_exact = present in WIRES and WIRES.index(wire) < WIRES.index(present)
        if takes <= (allowed / 2 if more_exact else allowed):
            break
    else:
        wire, takes = WIRES[-1], BYTES_PER_VALUE[WIRES[-1]] * values / bytes_per_second
    told = f"{values:,} numbers take {takes:.3g} s of {interval:.3g} s between contributions"
    return WireChoice(wire, f"{told} at {8e-6 * bytes_per_second:.3g} Mbit/s")
