"""The map from slices of θ to parameter servers, and what has to be copied when one map follows another. Pure.

A slice is a contiguous range of the axis along which θ is cut; its size is counted in whatever the caller cuts (single
parameters, columns, components). This file assigns nothing: `assignment.py` does.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import accumulate, chain

from flegel.errors import UsageError


@dataclass(frozen=True)
class SliceMap:
    """`primary[i]` folds slice i of size `slices[i]`; `replicas[i]` hold copies of it, the first successor first."""

    version: int
    slices: tuple[int, ...]
    primary: tuple[int, ...]
    replicas: tuple[tuple[int, ...], ...]

    def __post_init__(self) -> None:
        """Each slice has one primary and its replicas on other servers."""
        if not len(self.slices) == len(self.primary) == len(self.replicas):
            raise ValueError(
                f"map {self.version}: {len(self.slices)} slices, {len(self.primary)} primaries, "
                f"{len(self.replicas)} lists of replicas"
            )
        for number in range(len(self.slices)):
            holders = self.holders(number)
            if len(set(holders)) != len(holders):
                raise ValueError(f"map {self.version}: slice {number} is twice on one server: {holders}")

    @property
    def total(self) -> int:
        return sum(self.slices)

    @property
    def servers(self) -> tuple[int, ...]:
        """Who holds something, as primary or replica."""
        return tuple(sorted(set(chain(self.primary, *self.replicas))))

    def starts(self) -> tuple[int, ...]:
        """Where each slice begins; one more entry than slices, the last is the total."""
        return tuple(accumulate(self.slices, initial=0))

    def holders(self, number: int) -> tuple[int, ...]:
        return (self.primary[number], *self.replicas[number])

    def of_server(self, server: int) -> tuple[int, ...]:
        """Numbers of the slices that this server folds."""
        return tuple(number for number, owner in enumerate(self.primary) if owner == server)

    def loads(self) -> dict[int, int]:
        """What each server folds; a server that holds replicas alone has 0."""
        found = dict.fromkeys(self.servers, 0)
        for size, owner in zip(self.slices, self.primary, strict=True):
            found[owner] += size
        return found


@dataclass(frozen=True)
class Copy:
    """A slice that `target` needs and does not have. `source` is None when every holder is lost."""

    number: int
    size: int
    source: int | None
    target: int
    as_primary: bool


def difference(old_map: SliceMap, new_map: SliceMap, lost_servers: Collection[int] = ()) -> tuple[Copy, ...]:
    """Copies that lead from one map to the next, by slice, the primary first. Who held a slice before needs none."""
    if old_map.slices != new_map.slices:
        raise ValueError(f"maps {old_map.version} and {new_map.version} cut θ into different slices")
    copies: list[Copy] = []
    for number, size in enumerate(new_map.slices):
        living = [server for server in old_map.holders(number) if server not in lost_servers]
        source = living[0] if living else None
        for target in new_map.holders(number):
            if target not in living:
                copies.append(Copy(number, size, source, target, target == new_map.primary[number]))
    return tuple(copies)


def cut(total: int, size: int, servers: int = 0, probe: int = 0, probes: int = 2) -> tuple[int, ...]:
    """Sizes of slices that cover `total`: `probes` small ones for each server, then ones of about `size`.

    Small slices let a server whose share is 0 still be measured (003, Section 3.2). They have `probe` parameters, less
    where they would make up more than 2 % of the total.
    """
    if total < 1 or size < 1:
        raise UsageError(f"cannot cut {total} parameters into slices of {size}.")
    small = servers * probes if probe else 0
    probe = min(probe, total // (50 * small)) if small else 0  # at most 2 % of the total
    small = small if probe else 0
    rest = total - small * probe
    count = max(1, round(rest / size))
    least, more = divmod(rest, count)
    return (probe,) * small + (least + 1,) * more + (least,) * (count - more)
