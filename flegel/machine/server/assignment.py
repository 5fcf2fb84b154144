"""Who takes over after a loss, and the step before slices move: copies first. Pure; the rest is `plan/placement`."""

from __future__ import annotations

from collections.abc import Collection

from flegel.plan.placement.assignment import promoted
from flegel.plan.placement.slice_map import SliceMap


def after_loss(former_map: SliceMap, live: Collection[int], replicas: int) -> tuple[SliceMap, tuple[int, ...]]:
    """Each slice of a lost server goes to its first copy that lives, and lost copies are made anew elsewhere; returns
    also the slices that have no copy."""
    found, orphans = promoted(former_map, set(former_map.servers) - set(live), {*former_map.servers, *live})
    order, copies = sorted(live), []
    for number, holder in enumerate(found.primary):
        at = order.index(holder)
        others = dict.fromkeys((*found.replicas[number], *order[at + 1 :], *order[:at]))
        copies.append(tuple(others)[:replicas])
    return SliceMap(found.version, found.slices, found.primary, tuple(copies)), orphans


def copies_first(former_map: SliceMap, goal: SliceMap) -> SliceMap:
    """The primaries of now, with copies wherever the goal wants something."""
    copies = []
    for number, holder in enumerate(former_map.primary):
        wanted = dict.fromkeys((goal.primary[number], *goal.replicas[number]))
        copies.append(tuple(server for server in wanted if server != holder))
    return SliceMap(goal.version, goal.slices, former_map.primary, tuple(copies))
