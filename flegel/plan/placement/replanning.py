"""Whether it pays to move slices now, with the reason in words. Pure: rates and counts of rounds come from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from flegel.plan.placement.assignment import BAND, levelled
from flegel.plan.placement.slice_map import SliceMap, difference
from flegel.plan.placement.water_filling import LinkLoad, slowest, water_filling

COST_FACTOR = 2.0
"""The gain over the remaining rounds must exceed twice the cost of moving: both are forecasts."""
LEAST_GAIN = 0.05
"""Of a round's transfers; slices and rounds are not divided more finely than that."""
NOISE_FACTOR = 2.0
"""A gain counts when it exceeds twice the noise: rates differ from the forecast by `noise` in the mean."""


@dataclass(frozen=True)
class PlacementDecision:
    """The map to use from the next barrier on (the current one where nothing moves), and why."""

    chosen: SliceMap
    moves: bool
    reason: str
    seconds_now: float
    seconds_planned: float
    cost: float


def decide(
    current: SliceMap, links: Mapping[int, LinkLoad], replicas: int, remaining_rounds: float, noise: float = 0.0
) -> PlacementDecision:
    """`links` by server, in the unit of the slices' sizes; `remaining_rounds` as far as the caller can tell; `noise`:
    relative error of the rates."""
    now = slowest(links, current.loads())
    wanted = water_filling(links, current.total)
    planned = levelled(current, tuple(links), replicas, wanted.carried)
    if planned.primary == current.primary:
        near = now <= (1 + BAND) * wanted.seconds
        why = "every load is near its share" if near else "slices are too large, or too few, to divide the load better"
        return PlacementDecision(current, False, f"kept: {why}", now, now, 0.0)
    then = slowest(links, planned.loads())
    gain = now - then
    least = max(LEAST_GAIN, NOISE_FACTOR * noise)
    if gain < least * now:
        reason = (
            f"kept: moving would shorten the transfers of a round from {now:.3g} s to {then:.3g} s, "
            f"less than {least:.0%} and within the noise of the forecast"
        )
        return PlacementDecision(current, False, reason, now, then, 0.0)
    cost = seconds_of_copies(current, planned, links)
    saved = gain * remaining_rounds
    numbers = (
        f"{gain:.3g} s a round over {remaining_rounds:.0f} remaining rounds saves {saved:.3g} s, "
        f"moving costs {cost:.3g} s"
    )
    if saved <= COST_FACTOR * cost:
        reason = f"kept: {numbers}; the saving must exceed {COST_FACTOR:g} times the cost"
        return PlacementDecision(current, False, reason, now, then, cost)
    idle = sorted(set(links) - set(wanted.active))
    slow = f"; the links of servers {', '.join(map(str, idle))} are full of their workers' traffic" if idle else ""
    return PlacementDecision(planned, True, f"moved: {numbers}{slow}", now, then, cost)


def seconds_of_copies(old: SliceMap, new: SliceMap, links: Mapping[int, LinkLoad]) -> float:
    """Seconds until the slowest link has sent and received what moves between the maps."""
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for copy in difference(old, new):
        received[copy.target] += copy.size
        if copy.source is not None:
            sent[copy.source] += copy.size
    times = [side[server] / links[server].rate for side in (sent, received) for server in side if server in links]
    return max(times, default=0.0)
