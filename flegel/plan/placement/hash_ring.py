"""A consistent-hash ring with virtual nodes: the order in which a slice would visit the servers. Pure.

It knows neither loads nor quotas: `assignment.py` walks along it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import blake2b

from flegel.configuration.active import active


def position(text: str) -> int:
    """Of a name on the ring, 0 to 2^64 - 1; the same on every machine and in every process."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big")


class HashRing:
    """Virtual nodes of servers in the order of their positions."""

    def __init__(self, servers: Iterable[int]) -> None:
        self.servers = tuple(sorted(set(servers)))
        nodes = sorted(
            (position(f"server {s}/{v}"), s) for s in self.servers for v in range(active().placement.virtual_nodes)
        )
        self._positions = [at for at, _ in nodes]
        self._owners = [server for _, server in nodes]

    def successors(self, number: int) -> Iterator[int]:
        """Distinct servers clockwise from the place of slice `number`; every server once."""
        first = bisect_left(self._positions, position(f"slice {number}"))
        seen: set[int] = set()
        for step in range(len(self._owners)):
            server = self._owners[(first + step) % len(self._owners)]
            if server not in seen:
                seen.add(server)
                yield server
                if len(seen) == len(self.servers):
                    return
