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
        self._holder_since_map: dict[int, int] = {}
        """By slice: the version of the map with which its present holder began."""
        self.cut = 0
        """The first map with the present slices."""

    def use(self, new_map: ServerMap) -> list[int]:
        """A newer map; returns the slices that have another holder than before. In the first map that are all, and
        servers that have not heard of it yet count: nobody else knows this process. Where θ is cut anew that are all,
        too."""
        before, self._map = self._map, new_map
        if before is None or before.cut != new_map.cut:
            self.cut = new_map.cut
            self._holder_since_map.clear()
            return list(range(len(new_map.primary)))
        changed = [
            number
            for number, server in enumerate(new_map.primary)
            if before.primary[number] != server or before.addresses.get(server) != new_map.addresses[server]
        ]
        self._holder_since_map.update(dict.fromkeys(changed, new_map.version))
        return changed

    def is_current(self, number: int, version: int) -> bool:
        """Whether somebody who knows that map can be the holder of the slice."""
        return version >= max(self.cut, self._holder_since_map.get(number, 0))
