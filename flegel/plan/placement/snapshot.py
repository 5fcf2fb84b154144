"""What is shown of the parameter servers of a job: loads, measured rates, reasons of decisions. Decides nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

SHOWN_SERVERS = 16
"""Servers and links on a screen; a record has them all."""


class ServerSnapshot(msgspec.Struct, frozen=True):
    """One server."""

    id: int
    """0, 1, ..., as in messages to people."""
    bytes: int
    """Of θ and of the statistics, that it holds as primary."""
    rate: float = 0.0
    """Bytes a second that its host's link carries, as forecast; 0: not measured."""


class PlacementSnapshot(msgspec.Struct, frozen=True):
    """The servers as the plan sees them."""

    servers: tuple[ServerSnapshot, ...]
    slices: int
    map: int
    """Version of the map; each loss, join and move makes a new one."""
    matrix: tuple[tuple[str, str, float], ...] = ()
    """Sending and receiving host, bytes a second."""
    reasons: tuple[str, ...] = ()
    """Of the last decisions; of equal ones in a row the first."""
    moves: int = 0
    """Plans that moved slices."""
    slice_cost: float = 0.0
    """What a slice costs besides its size, in parameters that a link carries in that time; 0: not measured."""
    best_slice: int = 0
    """Bytes of θ, by sqrt(M·α/N) with that cost."""
    lost: int = 0
    joined: int = 0
    left: int = 0
    """Since training began; `left`: because the job was to have fewer."""
    wanted: int = 0
    """How many the job should have."""
    most: int = 0
    """How many it can have: each has a slice at least."""
    recoveries: tuple[float, ...] = ()
    """Seconds from the detection of a loss to the end of the next fold."""


def lines(placement: Mapping[str, Any] | None) -> list[tuple[str, str]]:
    """A snapshot, as plain data, for people: names and what they are."""
    if not placement or not placement.get("servers"):
        return []
    count, wanted = len(placement["servers"]), placement.get("wanted", 0)
    going = f" (going to {wanted})" if wanted and wanted != count else ""
    found = [("servers", f"{count}{going}, {placement['slices']} slices, map {placement['map']}")]
    if placement.get("lost") or placement.get("joined") or placement.get("left"):
        longest = max(placement["recoveries"], default=0.0)
        told = f"{placement['lost']} lost, {placement['joined']} joined, {placement.get('left', 0)} left"
        found.append(("changes", told + (f"; next round after {longest:.2f} s at most" if longest else "")))
    found += [(f"server {one['id']}", _server(one)) for one in placement["servers"][:SHOWN_SERVERS]]
    slowest = sorted(placement["matrix"], key=lambda link: link[2])[:SHOWN_SERVERS]
    found += [("link", f"{source} → {target}: {_rate(rate)}") for source, target, rate in slowest]
    found += [("plan", reason) for reason in placement["reasons"][-3:]]
    if placement["slice_cost"]:
        cost, best = placement["slice_cost"], placement["best_slice"] / 1e6
        found.append(("slice", f"costs as much as {cost:.0f} parameters besides its size; best size {best:.2f} MB"))
    return found


def _server(one: Mapping[str, Any]) -> str:
    return f"{one['bytes'] / 1e6:.1f} MB" + (f", link {_rate(one['rate'])}" if one["rate"] else "")


def _rate(rate: float) -> str:
    return f"{rate * 8 / 1e6:.3g} Mbit/s"


def plain(found: PlacementSnapshot | None) -> dict[str, Any]:
    """For JSON; empty where a job has no servers."""
    return msgspec.to_builtins(found) if found is not None else {}
