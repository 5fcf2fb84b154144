"""Whether it pays to move slices now, with the reason in words. Pure: rates and counts of rounds come from outside."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, stdev

from flegel.plan.placement.assignment import BAND, levelled
from flegel.plan.placement.slice_map import SliceMap, difference
from flegel.plan.placement.water_filling import LinkLoad, slowest, water_filling

COST_FACTOR = 2.0
"""The gain over the remaining rounds must exceed twice the cost of moving: both are forecasts."""
LEAST_GAIN = 0.05
"""Of a round's transfers; slices and rounds are not divided more finely than that."""
NOISE_FACTOR = 2.0
"""Without trials a gain counts when it exceeds twice the noise: rates differ from the forecast by `noise` in the
mean. On four equal links whose rates differ by 25 % from round to round, this moved slices in 15 of 20 simulated jobs
of 40 rounds, trials in 3. Where one of the links has 60 % of the others' rate, trials move within 6 rounds in half of
the jobs."""
TRIALS = (3, 5, 10)
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


def trial(links: Mapping[int, LinkLoad], current: SliceMap, planned: SliceMap) -> float:
    """Share of a round that the plan would have saved, by the rates of a round that the plan has not seen. The gain by
    the rates from which a plan was made is always positive; this one is so only where links differ in truth."""
    now = slowest(links, current.loads())
    return 1 - slowest(links, planned.loads()) / now if now > 0 else 0.0


def confirmed(trials: Sequence[float]) -> float:
    """The gain that the last trials leave no doubt about: their mean less twice its standard error."""
    some = [trials[-count:] for count in TRIALS if len(trials) >= count]
    return max((fmean(last) - 2 * stdev(last) / len(last) ** 0.5 for last in some), default=0.0)


def decide(
    current: SliceMap, links: Mapping[int, LinkLoad], replicas: int, remaining_rounds: float, noise: float = 0.0,
    trials: Sequence[float] | None = None,
) -> PlacementDecision:  # fmt: skip
    """`links` by server, in the unit of the slices' sizes; `remaining_rounds` as far as the caller can tell; `noise`:
    relative error of the rates; `trials`: what former plans would have saved in rounds that these had not seen."""
    now = slowest(links, current.loads())
    wanted = water_filling(links, current.total)
    planned = levelled(current, tuple(links), replicas, wanted.carried)
    if planned.primary == current.primary:
        near = now <= (1 + BAND) * wanted.seconds
        why = "every load is near its share" if near else "slices are too large, or too few, to divide the load better"
        return PlacementDecision(current, False, f"kept: {why}", now, now, 0.0, current)
    then = slowest(links, planned.loads())
    gain = now - then
    least = max(LEAST_GAIN, NOISE_FACTOR * noise) if trials is None else LEAST_GAIN
    if trials is not None and confirmed(trials) < LEAST_GAIN:
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
    if saved <= COST_FACTOR * cost:
        reason = f"kept: {numbers}; the saving must exceed {COST_FACTOR:g} times the cost"
        return PlacementDecision(current, False, reason, now, then, cost, planned)
    idle = sorted(set(links) - set(wanted.active))
    slow = f"; the links of servers {', '.join(map(str, idle))} are full of their workers' traffic" if idle else ""
    by_rounds = f"; later rounds confirm {confirmed(trials):.0%} or more" if trials is not None else ""
    return PlacementDecision(planned, True, f"moved: {numbers}{by_rounds}{slow}", now, then, cost, planned)


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
