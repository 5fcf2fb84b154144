"""Whether it pays to move slices now, with the reason in words. Pure: rates and counts of rounds come from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from flegel.configuration.active import active
from flegel.plan.placement.assignment import levelled
from flegel.plan.placement.slice_map import SliceMap, difference
from flegel.plan.placement.water_filling import LinkLoad, slowest, water_filling

JUDGED_TRIALS = (3, 5, 10)
"""A gain counts when the last so many trials leave no doubt; few of them are enough after links have changed."""


@dataclass(frozen=True)
class PlacementDecision:
    """The map to use from the next barrier on (the current one where nothing moves), and why."""

    chosen: SliceMap
    moves: bool
    reason: str
    seconds_now: float
    seconds_planned: float
    cost: float
    planned: SliceMap
    """What the rates ask for, whether it is worth it or not."""


def gain_in_hindsight(links: Mapping[int, LinkLoad], current_map: SliceMap, planned_map: SliceMap) -> float:
    """Share of a round that the plan would have saved, by the rates of a round that the plan has not seen. The gain by
    the rates from which a plan was made is always positive; this one is so only where links differ in truth."""
    now = slowest(links, current_map.loads())
    return 1 - slowest(links, planned_map.loads()) / now if now > 0 else 0.0


def confirmed(trials: Sequence[float]) -> float:
    """The gain that the last trials leave no doubt about: their mean less twice its standard error."""
    some = [trials[-count:] for count in JUDGED_TRIALS if len(trials) >= count]
    return max((fmean(last) - 2 * stdev(last) / len(last) ** 0.5 for last in some), default=0.0)


def decide(
    current: SliceMap,
    links: Mapping[int, LinkLoad],
    replicas: int,
    remaining_rounds: float,
    noise: float = 0.0,
    trials: Sequence[float] | None = None,
) -> PlacementDecision:
    """`links` by server, in the unit of the slices' sizes; `remaining_rounds` as far as the caller can tell; `noise`:
    relative error of the rates; `trials`: what former plans would have saved in rounds that these had not seen."""
    rules = active().placement
    now = slowest(links, current.loads())
    wanted = water_filling(links, current.total)
    planned = levelled(current, tuple(links), replicas, wanted.carried)
    if planned.primary == current.primary:
        near = now <= (1 + rules.load_tolerance) * wanted.seconds
        why = "every load is near its share" if near else "slices are too large, or too few, to divide the load better"
        return PlacementDecision(current, False, f"kept: {why}", now, now, 0.0, current)
    then = slowest(links, planned.loads())
    gain = now - then
    least = max(rules.least_gain, rules.noise_multiple * noise) if trials is None else rules.least_gain
    if trials is not None and confirmed(trials) < rules.least_gain:
        reason = (
            f"kept: moving is expected to shorten the transfers of a round from {now:.3g} s to {then:.3g} s; "
            f"{len(trials)} rounds since then leave doubts, they confirm {max(confirmed(trials), 0.0):.0%}"
        )
        return PlacementDecision(current, False, reason, now, then, 0.0, planned)
    if gain < least * now:
        reason = (
            f"kept: moving would shorten the transfers of a round from {now:.3g} s to {then:.3g} s, "
            f"less than {least:.0%} and within the noise of the forecast"
        )
        return PlacementDecision(current, False, reason, now, then, 0.0, planned)
    cost = seconds_of_copies(current, planned, links)
    saved = gain * remaining_rounds
    numbers = (
        f"{gain:.3g} s a round over {remaining_rounds:.0f} remaining rounds saves {saved:.3g} s, "
        f"moving costs {cost:.3g} s"
    )
    if saved <= rules.savings_over_cost * cost:
        reason = f"kept: {numbers}; the saving must exceed {rules.savings_over_cost:g} times the cost"
        return PlacementDecision(current, False, reason, now, then, cost, planned)
    idle = sorted(set(links) - set(wanted.active))
    slow = f"; the links of servers {', '.join(map(str, idle))} are full of their workers' traffic" if idle else ""
    by_rounds = f"; later rounds confirm {confirmed(trials):.0%} or more" if trials is not None else ""
    return PlacementDecision(planned, True, f"moved: {numbers}{by_rounds}{slow}", now, then, cost, planned)


def seconds_of_copies(old_map: SliceMap, new_map: SliceMap, links: Mapping[int, LinkLoad]) -> float:
    """Seconds until the slowest link has sent and received what moves between the maps."""
    sent: dict[int, float] = defaultdict(float)
    received: dict[int, float] = defaultdict(float)
    for copy in difference(old_map, new_map):
        received[copy.target] += copy.size
        if copy.source is not None:
            sent[copy.source] += copy.size
    times = [side[server] / links[server].rate for side in (sent, received) for server in side if server in links]
    return max(times, default=0.0)
