"""The knobs of balance. Where each of them comes from is in docs/balance.md."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class BalanceSettings:
    """The knobs. ε is the paper's; the rest keeps measurement noise from moving data."""

    epsilon: float = 0.3
    """Largest |P*_i − C| that counts as balanced (Eq. 8). Half a pass would let passes differ by one; the rest is for
    what happens until the next look, and until points have moved."""
    laps: float = 3.0
    """A split has so many passes, even where the job will perhaps be over before: what is given to make up lost passes
    in less time would have to come back. For whoever has fewer points than most it is as much shorter: few are no
    burden, wherever they are."""
    ahead: float = 2.0
    """And it is at least so many times what a move takes, for the same reason."""
    part: float = 0.0
    """And at least this part of the remaining time."""
    look: float = 0.25
    """Passes until a plan is looked at again."""
    likeness: float = 0.03
    """Relative difference of N and V up to which two workers are the same super worker."""
    least: float = 0.03
    """A worker gives at least this part of its points, or gets that much more; nothing is moved for less. Whoever is
    several passes off gives as many times less."""
    certainty: float = 1.2
    """Standard errors by which a worker is taken to be nearer to the others than it looks, and more among many."""
    caution: float = 0.0
    """The part of what doubt may explain that is not given or taken even by those who act."""
    memory: float = 0.9
    """How much of what is known of a speed is kept from one round to the next."""
    long_memory: float = 0.98
    """The same while the speed does not change."""
    reversal: float = 1.5
    """Who gave last acts as a taker only if it is so many times ε off, and who took as a giver."""
    forget: float = 4.0
    """Passes after which nobody asks any more who gave and who took."""
    pays: float = 1.25
    """Where speeds are in doubt, nothing is moved unless the remaining time is so many times what a move takes before
    it is of any use."""
    guessed: float = 1.0
    """Of a remaining time that is guessed from the objective, the part in which such a move must pay."""
    doubtful: float = 0.03
    """Relative standard error of a speed that is called so; below, less time is enough, in proportion."""
    clearly: float = 3.0
    """Times slower or faster by the pass than most, surely: no crowded processor does that to equal workers for long,
    and no doubt keeps points from moving."""
    trust: float = 1.0
    """A plan is followed for so many times as long as there have been plans, at most: what is known of speeds and of
    the remaining time rests on no more than that."""
    in_time: float = 0.8
    """Points must have arrived within this part of the remaining time: the rest is for what they are moved for."""
    slower: float = 2.0
    """Times slower by the point than most, surely: who makes a crew uneven."""


SPARING = BalanceSettings(
    epsilon=0.4,
    laps=2.0,
    ahead=8.0,
    part=0.25,
    look=1.0,
    certainty=2.0,
    caution=1.0,
    reversal=2.0,
    forget=32.0,
    pays=10.0,
    guessed=0.5,
)
"""Where a move costs more than small differences of passes do. Nobody is slow: they come from noise, and are over by
themselves or matter little. Workers share processors: who had one for itself just now may have to share it the next
moment. Or all wait while points move."""
