"""Since which map each slice has had its present holder: what an earlier holder says late does not count. Pure.

A server that was frozen, replaced and woken goes on with the map that it knew. Its messages carry that map's number, so
receivers can tell them from those of its successor, even where both have the same number.
"""

from __future__ import annotations

from flegel.server_messages import ServerMap


class Holders:
    """One process's view of the maps that it was given."""

    def __init__(self) -> None:
        self._map: ServerMap | None = None
        self._since: dict[int, int] = {}

    def use(self, fresh: ServerMap) -> list[int]:
        """A newer map; returns the slices that have another holder than before. In the first map that are all, and
        servers that have not heard of it yet count: nobody else knows this process."""
        before, self._map = self._map, fresh
        if before is None:
            return list(range(len(fresh.primary)))
        changed = [
            number
            for number, server in enumerate(fresh.primary)
            if before.primary[number] != server or before.addresses.get(server) != fresh.addresses[server]
        ]
        self._since.update(dict.fromkeys(changed, fresh.version))
        return changed

    def is_current(self, number: int, version: int) -> bool:
        """Whether somebody who knows that map can be the holder of the slice."""
        return version >= self._since.get(number, 0)
