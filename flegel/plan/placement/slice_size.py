"""How large a slice should be: large ones overlap little, small ones pay their fixed cost often. Pure.

003, Eq. 1 and 4: T = (x·N/W + α/W)(M/x + 1) + Δt is least at x = sqrt(M·α/N). M: parameters, N: nodes, W: bandwidth,
α: the fixed cost of a slice, counted in parameters. The paper uses α = 1.2e5 throughout; here it is fitted to the
transfers of the job itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isclose, sqrt

from flegel.configuration.active import active


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

    def alpha(self, sharing: int) -> float:
        """Fixed cost in parameters of a whole link that `sharing` transfers use at once: seconds × throughput."""
        found = self.fitted()
        return active().placement.first_slice_cost if found is None else sharing * found[0] / found[1]


def best_size(total: int, alpha: float, nodes: int, servers: int = 1) -> int:
    """Eq. 4, at least 1; at most what leaves two slices for each server, so that load can be moved at all."""
    return max(1, min(round(sqrt(total * alpha / nodes)), total // (2 * servers)))


def slices_of_job(total: int, servers: int, workers: int) -> int:
    """How many slices a job has from its start: as the formula says, and at least what lets loads be divided."""
    rules = active().placement
    wanted = round(total / best_size(total, rules.first_slice_cost, workers)) if total else 0
    most = rules.most_slices_each_server * servers
    return max(rules.fewest_slices_each_server * servers, min(max(wanted, total // rules.smallest_slice), most))
