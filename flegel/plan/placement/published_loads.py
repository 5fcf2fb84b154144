"""Loads of parameter servers as 003 prints them: its Algorithm 1, and Elastic, with which it compares. Pure.

Algorithm 1 begins with even loads and makes the times of the slowest and the fastest link equal, again and again, until
all times are within a threshold. Eq. 14, as printed, divides by S_min − S_max; from Eq. 12 and 13 follows the sum. Both
are here: with the printed sign loads leave every bound (`printed`), so jobs use the other one. `water_filling.py` has
what is the default: the same optimum in one step, also where some server should carry nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from flegel.configuration.active import active
from flegel.plan.placement.assignment import levelled
from flegel.plan.placement.replanning import PlacementDecision
from flegel.plan.placement.slice_map import SliceMap
from flegel.plan.placement.water_filling import LinkLoad, Load, slowest


def elastic(links: Mapping[int, LinkLoad], total: float) -> Load:
    """In proportion to the rates; ignores the traffic that does not depend on the load."""
    sum_of_rates = sum(link.rate for link in links.values())
    carried = {server: total * link.rate / sum_of_rates for server, link in links.items()}
    return Load(carried, slowest(links, carried), tuple(sorted(links)))


def pairwise(links: Mapping[int, LinkLoad], total: float, printed: bool = False) -> Load:
    """Algorithm 1. No load is below 0, unless `printed`, which takes Eq. 14 with its sign as it stands."""
    carried = dict.fromkeys(links, total / len(links))
    for _ in range(active().placement.pairwise_steps_each_server * len(links)):
        seconds = {server: links[server].seconds(m) for server, m in carried.items()}
        slow, fast = max(seconds, key=lambda s: seconds[s]), min(seconds, key=lambda s: seconds[s])
        if seconds[slow] - seconds[fast] < active().placement.pairwise_similar_seconds:
            break
        both = carried[slow] + carried[fast]
        faster = _equal_times(links[slow], links[fast], both, printed)
        faster = faster if printed else min(max(faster, 0.0), both)
        if faster == carried[fast]:
            break  # the fastest has all that the two carry
        carried[fast], carried[slow] = faster, both - faster
    return Load(carried, slowest(links, carried), tuple(sorted(server for server in links if carried[server] > 0)))


def _equal_times(slow: LinkLoad, fast: LinkLoad, both: float, printed: bool) -> float:
    """What the faster of two carries when both take the same time (Eq. 12 to 14; S_min is the rate of the faster, whose
    time is the least)."""
    above = slow.factor * both * fast.rate + slow.fixed * fast.rate - fast.fixed * slow.rate
    below = slow.factor * fast.rate + (-fast.factor if printed else fast.factor) * slow.rate
    return above / below if below else both


Scheme = Callable[[Mapping[int, LinkLoad], float], Load]
SCHEMES: dict[str, Scheme] = {"elastic": elastic, "published": pairwise}
"""By the value of `--server-load`."""


def decide_each_round(
    current: SliceMap, links: Mapping[int, LinkLoad], replicas: int, scheme: Scheme
) -> PlacementDecision:
    """A new plan in every round, as 003 has it: what it costs to move slices, and noise, are not looked at."""
    wanted = scheme(links, current.total)
    planned = levelled(current, tuple(links), replicas, wanted.carried)
    now, then = slowest(links, current.loads()), slowest(links, planned.loads())
    moves = planned.primary != current.primary
    reason = f"{'moved' if moves else 'kept'}: transfers of a round take {now:.3g} s, by the plan {then:.3g} s"
    return PlacementDecision(planned if moves else current, moves, reason, now, then, 0.0, planned)
