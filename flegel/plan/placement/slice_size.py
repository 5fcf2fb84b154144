"""How large a slice should be: large ones overlap little, small ones pay their fixed cost often. Pure.

003, Eq. 1 and 4: T = (x·N/W + α/W)(M/x + 1) + Δt is least at x = sqrt(M·α/N). M: parameters, N: nodes, W: bandwidth,
α: the fixed cost of a slice, counted in parameters. The paper uses α = 1.2e5 throughout; here it is fitted to the
transfers of the job itself, and θ is cut anew when another size has become clearly better.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isclose, sqrt

from flegel.configuration.active import active
from flegel.plan.placement.hash_ring import position
from flegel.plan.placement.slice_map import cut


@dataclass(frozen=True)
class SliceCost:
    """Least squares of seconds = fixed + size·each, with forgetting; `seen` returns the next state."""

    weight: float = 0.0
    size: float = 0.0
    seconds: float = 0.0
    size_squared: float = 0.0
    size_seconds: float = 0.0

    def seen(self, size: float, seconds: float) -> SliceCost:
        """The same sums with one more measurement, earlier ones counting less."""
        keep = active().placement.slice_cost_memory
        return SliceCost(
            keep * self.weight + 1,
            keep * self.size + size,
            keep * self.seconds + seconds,
            keep * self.size_squared + size * size,
            keep * self.size_seconds + size * seconds,
        )

    def fitted(self) -> tuple[float, float] | None:
        """Seconds of a slice of size 0, and of each parameter; None while one size alone was seen."""
        mean_square, square_mean = self.size_squared * self.weight, self.size * self.size
        if self.weight < 2 or isclose(mean_square, square_mean, rel_tol=1e-9):
            return None
        each = (self.weight * self.size_seconds - self.size * self.seconds) / (mean_square - square_mean)
        fixed = (self.seconds - each * self.size) / self.weight
        return (max(0.0, fixed), each) if each > 0 else None

    def alpha(self, sharing: int) -> float | None:
        """Fixed cost in parameters of a whole link that `sharing` transfers use at once: seconds × throughput. None
        while too few transfers, or of one size alone, were seen."""
        found = self.fitted()
        if found is None or self.weight < active().placement.slice_cost_transfers:
            return None
        return sharing * found[0] / found[1]


def exchange_time(size: float, total: float, alpha: float, nodes: int) -> float:
    """Eq. 1 without W and Δt: parameters that the link of a node could carry in that time."""
    return (size * nodes + alpha) * (total / size + 1)


def best_size(total: int, alpha: float, nodes: int, servers: int = 1) -> int:
    """Eq. 4; at most what leaves some slices for each server, so that load can be moved at all."""
    most = total // (active().placement.fewest_slices_each_server * servers)
    return max(1, min(round(sqrt(total * alpha / nodes)), most))


def divisible_size(total: int, alpha: float, nodes: int, servers: int) -> int:
    """The smallest slice with which Eq. 1 is near its least value: that is flat around Eq. 4's size, and small slices
    divide loads more finely. The smaller root of N·x² − (T − N·M − α)·x + α·M = 0."""
    best = best_size(total, alpha, nodes, servers)
    time = (1 + active().placement.slice_time_tolerance) * exchange_time(best, total, alpha, nodes)
    half = (time - nodes * total - alpha) / (2 * nodes)
    root = half - sqrt(max(half * half - total * alpha / nodes, 0.0))
    return max(1, min(best, round(root)))


@dataclass(frozen=True)
class SliceRule:
    """How θ of one job is cut. `load`: the value of `--server-load`."""

    total: int
    """Parameters of θ."""
    load: str = "network"
    measured: bool = True
    """The links are measured: each server has small slices, too."""

    def size(self, alpha: float, servers: int, workers: int) -> int:
        """Parameters of a slice: by Eq. 4, or somewhat less where loads follow measured links."""
        choose = divisible_size if self.load == "network" and self.measured else best_size
        return choose(self.total, alpha, max(workers, 1), servers)

    def count(self, alpha: float, servers: int, workers: int) -> int:
        """Slices of about that size: one for each server at least."""
        if not self.total:
            return servers
        most = active().placement.most_slices_each_server * servers
        return max(min(round(self.total / self.size(alpha, servers, workers)), most), servers)

    def sizes(self, granules: int, wanted: int, servers: int) -> Sequence[int]:
        """Granules of each slice. Where links are measured, two small slices for each server, as 003 has them: so many
        exactly, or, with `published`, by chance (Eq. 5)."""
        probe = round(active().placement.probe_parameters * granules / max(self.total, 1))
        count = max(1, min(wanted, granules))
        size = max(granules // count, 1)
        if not self.measured or not probe or 2 * probe > size:
            least, more = divmod(granules, count)
            return (least + 1,) * more + (least,) * (count - more)
        if self.load == "published":
            return partition(granules, size, probe, servers)
        return cut(granules, size, servers, probe, active().placement.measuring_slices)


def partition_rate(nodes: int, slices: float) -> float:
    """Eq. 5: the chance of a piece of θ to become a probe; w/n is taken for the number of pieces of the usual size."""
    return min(2 * nodes / slices * active().placement.probe_share, 0.5)


def partition(total: int, size: int, probe: int, nodes: int) -> tuple[int, ...]:
    """003, Section 3.2: walk along θ; each piece is a probe by the chance of Eq. 5, else a slice. The same for all
    workers, which the paper leaves open: they must agree on the slices. Missing probes are cut off the largest slices,
    so that each server can have as many as it needs."""
    chance, pieces, left = partition_rate(nodes, total / size), list[int](), total
    while left:
        drawn = position(f"piece {len(pieces)}") / 2**64
        pieces.append(min(probe if drawn < chance else size, left))
        left -= pieces[-1]
    needed = active().placement.measuring_slices * nodes - sum(piece <= probe for piece in pieces)
    for _ in range(needed):
        largest = max(range(len(pieces)), key=lambda at: pieces[at])
        if pieces[largest] <= 2 * probe:
            break
        pieces[largest] -= probe
        pieces.append(probe)
    return tuple(pieces)


@dataclass(frozen=True)
class CutDecision:
    """Whether θ should be cut anew, and why."""

    wanted: bool
    reason: str = ""


def decide_cut(
    total: float, size: float, better: float, alpha: float, nodes: int, rate: float, rounds: float, copies: int
) -> CutDecision:
    """`size`, `better`: of slices now and as the rule asks for; `rate`: what the slowest link carries in a second;
    `rounds` that are left; `copies` of each slice, which are made anew, too. All in one unit."""
    rules = active().placement
    now, then = (exchange_time(each, total, alpha, nodes) / rate for each in (size, better))
    if now - then <= rules.least_gain * now:
        return CutDecision(False)
    cost = (1 + copies) * total / rate
    told = (
        f"slices of {better / 1e6:.2f} MB instead of {size / 1e6:.2f} MB shorten a round by {now - then:.3g} s, "
        f"over {rounds:.0f} remaining rounds by {(now - then) * rounds:.3g} s, cutting costs {cost:.3g} s"
    )
    if (now - then) * rounds <= rules.savings_over_cost * cost:
        return CutDecision(False, f"kept: {told}")
    return CutDecision(True, f"cut anew: {told}")
