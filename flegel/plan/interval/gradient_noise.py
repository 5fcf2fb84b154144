"""Gradient noise: how much of a mean gradient is chance, and the interval that follows from it. Pure.

The mean gradient of b samples has E‖g_b‖² = ‖G‖² + S/b, with the true gradient G and the sum S of the variances of one
sample's gradient. Norms at two batch sizes give both; B = S / ‖G‖² is the noise scale (S. McCandlish et al., An
empirical model of large-batch training, 2018). A visit in a batch of b is worth 1/(1 + b/B) of one in a small batch,
so with R visits a second and φ seconds that a round costs whatever its length, the progress per second is best with
b = √(φ·B·R). Those φ seconds are the barrier and, where a worker calls a library, that call.

Never sees gradients, only their norms and counts: whoever pools gradients (a coordinator, or ranks among themselves)
computes these at no extra traffic.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from flegel.configuration.active import active
from flegel.plan.interval.interval import Round, Step, milliseconds


@dataclass(frozen=True)
class NoiseEstimate:
    """S and ‖G‖² of one update. Unbiased, so either may be negative by chance."""

    variance: float
    square: float


def from_two_batches(small: float, few: float, large: float, many: float) -> NoiseEstimate | None:
    """From ‖g‖² of the mean gradients of `few` and of `many` samples; those may share samples.

    None where both are of the same size.
    """
    if not 0 < few < many:
        return None
    variance = (small - large) / (1.0 / few - 1.0 / many)
    return NoiseEstimate(variance, large - variance / many)


def from_reports(squares: Sequence[float], counts: Sequence[float], pooled: float) -> NoiseEstimate | None:
    """From ‖ΣG‖² of each worker's gradient sum, its number of samples, and ‖ΣG‖² of the sum over all workers.

    The spread between workers over its degrees of freedom: Σ ‖ΣG_i‖²/n_i − ‖ΣG‖²/n = (workers − 1)·S in expectation.
    Workers that saw nothing are left out; None where fewer than two saw something.
    """
    seen = [(square, count) for square, count in zip(squares, counts, strict=True) if count > 0]
    total = float(sum(count for _, count in seen))
    if len(seen) < 2:
        return None
    between = sum(square / count for square, count in seen) - pooled / total
    variance = between / (len(seen) - 1)
    return NoiseEstimate(variance, pooled / total**2 - variance / total)


@dataclass(frozen=True)
class GradientNoise:
    """Running means of S and of ‖G‖². A new value for each estimate, so that it can be kept with θ.

    The ratio of means is used, not the mean of ratios: a single ‖G‖² is often near 0.
    """

    variance: float = 0.0
    square: float = 0.0
    weight: float = 0.0

    def add(self, estimate: NoiseEstimate | None, memory: float | None = None) -> GradientNoise:
        """After one more update; unchanged where there is no estimate, or none that is finite."""
        if estimate is None or not (math.isfinite(estimate.variance) and math.isfinite(estimate.square)):
            return self
        if memory is None:
            memory = active().interval.noise_memory
        return GradientNoise(
            memory * self.variance + (1.0 - memory) * estimate.variance,
            memory * self.square + (1.0 - memory) * estimate.square,
            memory * self.weight + (1.0 - memory),
        )

    @property
    def scale(self) -> float | None:
        """B; None while nothing is known. Infinite where the true gradient cannot be told from 0."""
        if not self.weight or self.variance <= 0.0:
            return None
        return self.variance / self.square if self.square > 0.0 else math.inf


def can_be_told(batch: float, updates: float) -> float:
    """The largest B that so many updates of so many samples can tell from an infinite one: ‖g_b‖² scatters by about
    S/b, its mean over the updates by S/(b·√updates). More is a guess, and a long interval learns from it slowly."""
    return batch * math.sqrt(updates)


def worth(batch: float, scale: float) -> float:
    """What a visit in a batch of so many is worth, as a part of what it is worth in a small batch."""
    return 1.0 / (1.0 + batch / scale)


def gain(batch: float, reference: float, scale: float) -> float:
    """Steps of batches of `reference` samples that one step of `batch` samples replaces: the factor of the learning
    rate (T. Johnson et al., AdaScale SGD, 2020). In proportion to the batch below the noise scale, bounded above it."""
    if not math.isfinite(scale):
        return batch / reference
    return (1.0 + scale / reference) / (1.0 + scale / batch)


def best_interval(phi: float, scale: float, rate: float, call: float = 0.0) -> float:
    """η* = c + √((φ + c)·B/R), where each round takes a call of c seconds besides its visits, of which R are done in a
    second: the maximum of b·worth(b) / (b/R + c + φ) at b = R·(η − c)."""
    return call + math.sqrt((phi + call) * scale / rate)


class NoiseInterval:
    """η* of gradient methods whose rounds tell φ, B and R and nothing else: no objective and no passes."""

    def __init__(self) -> None:
        self._costs: deque[float] = deque(maxlen=9)

    def first(self, least: float) -> Step:
        return Step(0.0, "one piece of training until the gradient noise is known")

    def next(self, last: Round) -> Step:
        """In whole pieces of the slowest worker, for whose ends all others would wait."""
        piece, scale = last.indivisible, last.noise
        if last.barrier_cost > 0.0:
            self._costs.append(last.barrier_cost)
        if scale is None or math.isnan(scale) or not self._costs or last.visits <= 0:
            return Step(piece)
        phi = median(self._costs)
        eta = min(best_interval(phi, scale, last.rate), active().interval.max_interval_costs * phi)
        if piece > 0.0:
            eta = max(round(eta / piece), 1) * piece
        return Step(eta, f"gradient noise scale {scale:.3g}, φ={milliseconds(phi)}, {last.rate:.3g} samples/s")
