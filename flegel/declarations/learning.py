"""How an algorithm learns: the direction and the meaning of its objective, when it has converged, how far apart
barriers may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from flegel.core.pytree import Tree
from flegel.declarations.field_types import TypedFields
from flegel.job import DEFAULT_TOLERANCE


@dataclass(frozen=True, kw_only=True)
class Learning(TypedFields):
    """`learning = Learning(maximize=True)`. Without it a sum over points is minimized, until its relative change over
    a pass is within the usual tolerance."""

    maximize: bool = False
    """Direction of the objective."""
    averaged: bool = False
    """The objective is an average over points rather than a sum."""
    tolerance: float = DEFAULT_TOLERANCE
    """Relative change of the objective over a full pass within which a job has converged, unless the user gives
    another. Choose it by what is left: a method that gains a part ρ of the last gain in each pass is still
    tolerance · ρ / (1 − ρ) from its limit."""
    slow_gains: bool = False
    """Gains shrink slowly from pass to pass (alternating minimization): a job has then converged only where the second
    half of all passes has gained less than 100 tolerances, besides the last one less than one."""
    trivial: str = "a trivial model"
    """What `baseline` is the objective of, in words."""
    auxiliary: tuple[str, ...] = ()
    """Fields of θ that are no parameters of the model: constants, and what the algorithm remembers. They are left out
    where the engine counts parameters, which decides how many points the first updates rest on."""
    local_updates: bool = False
    """θ follows from the statistics, however often it is made: with a flexible barrier the only worker of a job then
    calls `updateParameter` between barriers too. Not for steps along a gradient, whose number matters."""


class LearningHooks:
    """Methods that a class may define; otherwise these answer."""

    def efficiency(self, part: float, workers: int) -> float | None:
        """What a visit is worth where barriers are `part` of a pass apart, as a part of what it is worth where they are
        close together. None: `fsp` finds out by probing.

        To be defined where a probe cannot tell, because the objective answers to θ a pass late: it is made of what the
        points were worth when they were last visited.
        """
        return None

    def holds(self: Any, parameter: Tree) -> bool:
        """True where θ stays as it is until every point has been visited with it. Among workers that are alike `fsp`
        then makes one barrier a pass: more of them would change nothing, and a round that goes on beyond the pass would
        visit points again in vain. So it is where statistics are constant.
        """
        return bool(self.statistics.constant)

    def noise_scale(self, parameter: Tree) -> float | None:
        """The gradient noise scale B in samples, as estimated so far (`flegel.plan.interval.gradient_noise`): a visit
        in an update of b visits is worth 1/(1 + b/B). Not a number while it is not known yet. None: no gradient method,
        and the interval is found in another way.
        """
        return None

    def part_noise(self, objective: float, points: int, parameter: Tree) -> float | None:
        """How much of the objective over so many points is due to θ having been fitted to just these, about: what more
        points would teach. A worker with `local_updates` visits a part of its points again while that gains more. None:
        it visits all points from the beginning.
        """
        return None

    def alternative(self, aggregator: Tree, parameter: Tree) -> Tree | None:
        """Another θ that may lead to a better optimum. It is tried on a part of the points, while visits cost little,
        and given up unless it proves better; where it does, this is asked again. None: there is no such θ.
        """
        return None

    def optimality(self, aggregator: Tree, parameter: Tree) -> float | None:
        """How far the objective is from its minimum, as a part of the objective; infinite while that is not known yet,
        not a number where no step improves it any more. None: the algorithm cannot tell, and relative change over a
        pass is judged instead. Asked once per full pass of the slowest worker; the job has converged where it is within
        the tolerance.
        """
        return None

    def finished(self, parameter: Tree) -> str:
        """Why training is over, such as `10 epochs are done`; empty while it is not. Asked at every barrier."""
        return ""

    def baseline(self, aggregator: Tree, parameter: Tree) -> float | None:
        """The objective of a trivial model on the same points, from the statistics alone: one cluster, the intercept,
        zeros. A job whose objective is worse never counts as converged. None: the statistics cannot tell.
        """
        return None

    def steppedBack(self, parameter: Tree) -> Tree:
        """θ to go on from when the job has diverged: the best one that it had. Where θ holds the length of steps, make
        them shorter here."""
        return parameter

    def finalParameter(self, aggregator: Tree, parameter: Tree) -> Tree:
        """θ as the result: the last one, unless the algorithm knows a better one that it has measured."""
        return parameter
