"""The multi-stage, self-corrected fit of the interval (paper Section 3.3). Pure; no clock, no workers.

Within a stage g(η) = aη + b, the progress per unit of training, is taken as linear, and the interval maximizes
G(η) = η·g(η) / (η + φ), the progress per second with a barrier cost φ (Eq. 7):

    a < 0 < b:   η* = −φ + √(φ² − bφ/a)            a ≥ 0:   longer, up to a full pass

Four things differ from the paper, each for a measured reason (docs/adr/rollback-for-probes.md):
training is counted in visits, not seconds, so a noisy clock cannot disturb g; probes of another length are
bracketed by rounds of the usual length, and the natural decay of progress is fitted beside the slope, instead of a
rollback; the line is the tangent that the elasticity β = −d ln g / d ln η gives at η (a = −βg/η, b = (1+β)g), whose
fixed point is right even where g is no line; and a measurement is weighed against what is known already by its own
standard error, so that noise moves nothing.

For gradient methods g follows from the measured gradient noise (gradient_noise.py), and η from that alone.
Where the algorithm itself gives g, because its objective reacts too late for a probe
(docs/adr/objectives-that-lag.md), only φ and the speed are measured: η maximizes G with that g.

A stage ends when progress falls below the prediction, or when φ or the speed has changed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from flegel.configuration.active import active
from flegel.core.pytree import Array
from flegel.plan.interval.environment import Recent, apart, environment_change
from flegel.plan.interval.gradient_noise import best_interval
from flegel.plan.interval.interval import PARTS, Round, Step, milliseconds

PROBE = (1, 1, 2, 1, 1, 2, 1, 1)
"""Lengths of the rounds of a probe in units of η: two long ones, bracketed by usual ones."""


@dataclass(frozen=True)
class Fit:
    """β with its standard error, and g at the end of the probe."""

    elasticity: float
    error: float
    quality: float


class MultiStage:
    """Each round in gives the next step. States: measuring → starting → probing ⇄ holding; told (g given); by cost (the
    worker makes θ itself); or whole (θ held)."""

    def __init__(self, first: float | None = None) -> None:
        rules = active().interval
        self._given = first
        """The first interval in seconds where the user gave one, else None."""
        self.probes = True
        """Measure the slope of g. Without, η follows from speed, φ and the prior κ alone."""
        self._least = rules.first_measured_part
        """The part of a pass that the first rounds visit at least, so that an update rests on enough points."""
        self._state = "measuring"
        self._phi = Recent(rules.barrier_cost_rounds)
        """φ: seconds that a barrier costs."""
        self._rate, self._pass = Recent(rules.speed_rounds), Recent(rules.pass_rounds)
        """Visits a second of all workers together, and visits in a full pass."""
        self._call, self._visit_rate = Recent(rules.speed_rounds), Recent(rules.speed_rounds)
        """Of gradient methods: seconds that a call takes besides its visits, and visits a second in the rest."""
        self._asked = 0.0
        """Seconds of the last step that was given out: η, and what workers lose before they begin to train."""
        self._lost = Recent(5)
        """Seconds from order to signal in which workers did not train, because a large θ arrives late."""
        self._loss = rules.expected_loss
        """κ: what g loses from no interval to a whole pass, as known so far."""
        self._doubt = rules.expected_loss_error
        """The standard error of κ."""
        self._eta = first or 0.0
        """η: the interval in seconds; 0 while none is known."""
        self._queue: list[float] = []
        """Intervals of the probe that are still to be tried."""
        self._samples: list[tuple[float, float, float]] = []
        """By round of the probe: logarithm of its visits, logarithm of the gain a visit, `_work` at its end."""
        self._work = 0.0
        """Passes since the start."""
        self._rounds = 0
        """Rounds since the start."""
        self._whole = False
        """The last round was to be a whole pass, because of what barriers cost (`_by_cost`)."""
        self._alike = False
        """Workers are equally fast, as the last round says."""
        self.stage = 0
        self._predicted = self._actual = 0.0
        """Gain since holding began: by `_quality`, and as measured."""
        self._quality: float | None = None
        """g at the start of the stage: gain a visit; None where no probe has measured it."""
        self._held = 0
        """Barriers since holding began."""
        self._at_start = (0.0, 0.0)
        """φ and visits a second when the probe or the holding began, to notice that they have changed."""

    def first(self, least: float) -> Step:
        self._least = max(least, active().interval.first_measured_part)
        if self._given:
            text = f"first interval {milliseconds(self._given)}, as given, but {self._least:.2g} of a pass at most"
            return Step(self._given, text, self._least)
        return Step(None, f"measuring speed and barrier cost on {self._least:.2g} of a pass", self._least)

    def next(self, last: Round) -> Step:
        """The interval of the next round, from what the last one measured; the reason says what changed."""
        if last.visits <= 0:
            return self._step("nothing was trained in the last round; the same again")
        self._phi.add(last.barrier_cost)
        self._rate.add(last.rate)
        self._pass.add(last.full_pass)
        if self._asked and last.visits < active().interval.whole_pass * last.full_pass:
            trained = last.seconds - last.barrier_cost
            self._lost.add(min(max(self._asked - trained, 0.0), last.barrier_cost))
        self._work += last.visits / max(self._pass.median, 1.0)
        self._rounds += 1
        self._alike = last.alike
        if last.noise is not None:
            return self._by_noise(last.noise, last)
        if last.held and last.alike:
            return self._whole_passes()
        if last.worth is not None:
            return self._told(last.worth, last)
        if last.local_updates:
            return self._by_cost()
        match self._state:
            case "measuring":
                self._state = "starting"
                if last.laps >= 1.0:  # the first round was a pass already
                    return self._starting(last)
                return self._move_to(self._early(last), f"first pass, φ={milliseconds(self._phi.mean)}")
            case "starting" | "by cost":
                return self._starting(last)
            case "probing":
                return self._probing(last)
        return self._holding(last)

    # -- states --------------------------------------------------------------------------------------------

    def _starting(self, last: Round) -> Step:
        """The next step while no pass is complete: the interval follows from speed and φ; after the first pass the
        search begins."""
        if last.laps < 1.0:
            better = self._early(last)
            if apart(better, self._eta) > active().interval.environment_change:
                return self._move_to(better, f"φ is {milliseconds(self._phi.mean)} by now")
            self._eta = self._clamped(better)
            return self._step()
        if last.gain is None or not self._searches:
            self._hold(None)
            why = "no objective to go by" if last.gain is None else "first pass done"
            return self._move_to(self._recommend(self._loss), f"{why}: from speed and φ={milliseconds(self._phi.mean)}")
        return self._new_stage("first pass done", self._recommend(self._loss))

    def _new_stage(self, why: str, eta: float | None = None) -> Step:
        """Begin a probe, with rounds of the present η first."""
        self.stage += 1
        self._state = "probing"
        before = self._eta
        if eta is not None and apart(eta, self._eta) > active().interval.unchanged_within:
            self._eta = self._clamped(eta)
        longest = self._longest()
        up = 2.0 * self._eta <= longest
        self._queue = [self._eta * (k if up else 1.0 / k) for k in PROBE]
        self._samples = []
        self._at_start = (self._phi.mean, self._rate.median)
        changed = f" → η {milliseconds(before)} → {milliseconds(self._eta)}" if self._eta != before else ""
        other = self._queue[2]
        return Step(
            self._queue.pop(0),
            f"stage {self.stage}: {why}{changed}; comparing {milliseconds(self._eta)} with {milliseconds(other)}",
        )

    def _probing(self, last: Round) -> Step:
        if last.gain is not None and last.gain > 0:
            self._samples.append((math.log(last.visits), math.log(last.gain / last.visits), self._work))
        if self._queue:
            return Step(self._queue.pop(0))
        return self._conclude()

    def _conclude(self) -> Step:
        """The probe is complete: fit how g depends on the interval, and keep, change or probe again."""
        rules = active().interval
        if environment := self._environment():
            return self._new_stage(environment, self._recommend(self._loss))
        fit = fit_elasticity(self._samples)
        self._hold(fit.quality if fit else None)
        if fit is None:
            return self._step(f"stage {self.stage}: the probe is noise; keeping η {milliseconds(self._eta)}")
        beta = self._weigh(fit)
        phi, eta, g = self._phi.mean, self._eta, fit.quality
        wanted = optimal_interval(phi, eta, beta)
        story = f"stage {self.stage}: a={-beta * g / eta:.3g}, b={(1 + beta) * g:.3g}, φ={milliseconds(phi)}"
        ratio = apart(self._clamped(wanted), eta)
        if ratio <= rules.unchanged_within:
            return self._step(f"{story}; η {milliseconds(eta)} is right")
        step = self._move_to(wanted, story)
        if ratio > rules.probe_again_above:
            return self._new_stage(step.reason)
        return step

    def _hold(self, quality: float | None) -> None:
        self._state = "holding"
        self._quality = quality
        self._predicted = self._actual = 0.0
        self._held = 0
        self._at_start = (self._phi.mean, self._rate.median)

    def _holding(self, last: Round) -> Step:
        """A round between two probes. A new stage begins when speed or φ changed, or progress fell below prediction."""
        self._held += 1
        if environment := self._environment():
            if not self._searches:
                self._hold(None)
                return self._move_to(self._recommend(self._loss), environment)
            return self._new_stage(environment, self._recommend(self._loss))
        if last.gain is None or not self._searches:
            return self._step()
        self._actual += last.gain
        if self._quality is None:
            self._predicted = 0.0
        else:
            self._predicted += self._quality * last.visits
        if self._held < len(PROBE):
            return self._step()
        if self._actual <= 0:
            self._hold(self._quality)
            return self._step("no progress in this stage; nothing to learn about the interval")
        if self._quality is None:
            return self._new_stage("measuring again")
        if self._actual < active().interval.stage_ends_below * self._predicted:
            missing = 1.0 - self._actual / self._predicted
            return self._new_stage(f"progress {missing:.0%} below prediction over {self._held} barriers")
        return self._step()

    def _environment(self) -> str:
        """What changed if φ or the total speed did (stragglers or workers came or went); empty if neither did."""
        return environment_change(self._at_start, (self._phi.mean, self._rate.median))

    def _told(self, worth: Array, last: Round) -> Step:
        """η from the algorithm's own g: a part of a pass over all data, even if no round can last so long."""
        rules = active().interval
        whole = last.points / max(self._rate.median, 1e-9)
        part = best_part(worth, self._phi.mean / max(whole, 1e-9))
        eta, before = part * whole, self._state
        if last.laps < 1.0 and self._least > rules.first_measured_part:
            eta = max(eta, self._least * self._longest())
        self._state = "told"
        if last.alone and self._phi.mean > rules.whole_pass_alone_above * self._longest():
            self._eta = self._asked = self._longest()
            return Step(self._eta, f"a whole pass: a barrier takes {milliseconds(self._phi.mean)}", whole=True)
        if before == "told" and apart(self._clamped(eta), self._eta) <= rules.unchanged_within:
            return self._step()
        return self._move_to(
            eta, f"{part:.2g} of a pass is best, as the algorithm says, φ={milliseconds(self._phi.mean)}"
        )

    def _whole_passes(self) -> Step:
        """θ stays for a pass: nothing is gained by a barrier within it. A straggler among them would let all others
        wait, so this is for workers that are alike."""
        before, self._state, self._eta = self._state, "whole", self._longest()
        self._asked = self._eta + self._lost.median
        why = "" if before == "whole" else "θ is held for a whole pass, as the algorithm says"
        return Step(self._asked, why, whole=True)

    def _by_cost(self) -> Step:
        """θ is made anew between barriers too, so g does not fall with η, and nothing is probed: rounds are so long
        that barriers take little of the time, and no longer, because observers, targets and checkpoints wait for
        barriers."""
        rules, before, self._state = active().interval, self._state, "by cost"
        eta = self._clamped(rules.max_interval_costs * self._phi.mean)
        if eta >= rules.whole_pass * self._longest():
            changed, self._eta = not self._whole or before != "by cost", self._longest()
            self._whole, self._asked = True, self._eta
            why = f"a whole pass: the worker makes θ itself, and a barrier takes {milliseconds(self._phi.mean)}"
            return Step(self._eta, why if changed else "", whole=True)
        if before == "by cost" and not self._whole and apart(eta, self._eta) <= rules.unchanged_within:
            return self._step()
        self._whole = False
        return self._move_to(eta, f"the worker makes θ itself, φ={milliseconds(self._phi.mean)}")

    def _by_noise(self, scale: float, last: Round) -> Step:
        """η* from the gradient noise scale B, which reports tell at no cost: nothing is probed."""
        if math.isnan(scale):
            return self._step("the gradient noise is not known yet; the same again")
        trained = max(last.seconds - last.barrier_cost, 1e-9)
        part_of_call = min(last.call, active().interval.largest_call_share * trained)
        self._call.add(part_of_call)
        self._visit_rate.add(last.visits / (trained - part_of_call))
        phi, call, rate, before = self._phi.mean, self._call.median, self._visit_rate.median, self._state
        eta = self._clamped(best_interval(phi, scale, rate, call))
        self._state = "told"
        visiting = self._eta - call if self._eta > call else self._eta
        if before == "told":
            eta = min(eta, self._eta + visiting)  # a single estimate may be far off, and a long round shows that late
        if before == "told" and apart(eta - call, self._eta - call) <= active().interval.unchanged_within:
            return self._step()
        calls = f" and {milliseconds(call)} a call" if call else ""
        return self._move_to(
            eta, f"gradient noise scale {scale:.3g}, φ={milliseconds(phi)}, {rate:.3g} points/s{calls}"
        )

    # -- arithmetic ----------------------------------------------------------------------------------------

    def _weigh(self, fit: Fit) -> float:
        """β = −d ln g / d ln η from a probe and from what was known, weighted by inverse variance; κ and its error
        follow.

        Where g falls by κx in a part x of a pass, β = κx / (1 − κx), and dβ/dκ = x / (1 − κx)². So a probe of short
        rounds, which can hardly measure β, changes κ little.
        """
        rules = active().interval
        x = self._share(self._eta)
        rest = max(1.0 - self._loss * x, rules.smallest_rest)
        known, slope = self._loss * x / rest, x / rest**2
        known_error, error = self._doubt * slope, fit.error
        # Where the two differ by more than twice their common error, κ has changed, and what was known counts less.
        known_error *= max(1.0, abs(fit.elasticity - known) / math.hypot(known_error, error) / 2.0)
        old, new = known_error**-2, error**-2
        beta = (known * old + fit.elasticity * new) / (old + new)
        # κ drifts: never as sure as the probes alone.
        self._doubt = rules.error_growth * (old + new) ** -0.5 / slope
        # The inverse of β = κx / (1 − κx), below 1 / x but for rounding.
        self._loss = min(beta / ((1.0 + beta) * x), 1.0 / x) if beta > 0 else 0.0
        return beta

    @property
    def _searches(self) -> bool:
        rules = active().interval
        phi = self._phi.mean
        costly = phi > rules.costly_barrier * (phi + self._longest())
        return self.probes and not (costly and self._alike and self._rounds <= rules.rounds_without_probes)

    def _recommend(self, loss: float) -> float:
        """η* where g falls linearly, by `loss` from no interval to a full pass: n* = −ν + √(ν² + νN/κ), ν = φR.

        Among equal workers g = 1 / (1 + κ/0.6·(1.5x − 0.5x²)) where that makes η longer: about the same where barriers
        are cheap, and whole passes where one costs a third of a pass. Measured on sixteen cores, FCM with barriers that
        cost a pass: half passes save 7 % of the visits and cost 40 % of the time. Among unequal workers φ is in part
        the waiting for the slow, which shorter intervals avoid.
        """
        nu, whole, longest = self._phi.mean * self._rate.median, self._pass.median, self._longest()
        if loss <= 0:
            return longest
        part = (-nu + math.sqrt(nu * nu + nu * whole / loss)) / whole
        if self._alike:
            falls = loss / active().interval.expected_loss * (1.5 * PARTS - 0.5 * PARTS * PARTS)
            part = max(part, best_part(1.0 / (1.0 + falls), nu / whole))
        return part * longest

    def _early(self, last: Round) -> float:
        """η in the first pass: short, but with enough points for an update, and such that the pass ends at a barrier.
        Until then no objective is known, and a round that goes on beyond it delays the first one."""
        rules = active().interval
        longest = self._longest()
        enough = self._least * longest if self._least > rules.first_measured_part else 0.0
        eta = max(self._recommend(rules.expected_loss), enough)
        rest = rules.first_pass_leeway * (1.0 - last.laps) * longest
        if rest < eta / 2:  # a round for so little would be all barrier
            return eta
        return rest / max(int(rest / max(eta, 1e-9)), 1)

    def _share(self, eta: float) -> float:
        return min(max(eta * self._rate.median / max(self._pass.median, 1.0), 1e-6), 1.0)

    def _longest(self) -> float:
        return self._pass.median / max(self._rate.median, 1e-9)

    def _clamped(self, eta: float) -> float:
        longest = self._longest()
        shortest = min(active().interval.shortest_seconds, longest)
        return min(max(eta, shortest), longest)

    def _move_to(self, eta: float, why: str) -> Step:
        before = self._eta
        self._eta = self._clamped(eta)
        origin = f"η {milliseconds(before)} → " if before else "η "
        return self._step(f"{why} → {origin}{milliseconds(self._eta)}")

    def _step(self, reason: str = "") -> Step:
        """Where the algorithm gives g, the time before workers begin to train is added to η."""
        if self._eta <= 0:
            return Step(None, reason, self._least)
        self._asked = self._eta + (self._lost.median if self._state == "told" else 0.0)
        whole = self._alike and self._state == "holding" and self._eta >= active().interval.whole_pass * self._longest()
        return Step(self._asked, reason, whole=whole)


def best_part(worth: Array, lost: float) -> float:
    """The part x of a pass that maximizes G = x·g(x) / (x + φ), for g at `PARTS` and a φ in passes."""
    return float(PARTS[np.argmax(PARTS * worth / (PARTS + lost))])


def optimal_interval(phi: float, eta: float, elasticity: float) -> float:
    """η* of the tangent with a = −βg/η and b = (1+β)g; where g does not fall, longer than now."""
    if elasticity <= 0:
        return active().interval.growth_where_flat * eta
    return -phi + math.sqrt(phi * phi + phi * eta * (1.0 + elasticity) / elasticity)


def fit_elasticity(samples: list[tuple[float, float, float]]) -> Fit | None:
    """Least squares of ln g = c − β·ln n − d·w over (ln n, ln g, w). None if there are too few."""
    if len(samples) <= 3:  # the fit has three coefficients
        return None
    n, g, work = (np.array(column) for column in zip(*samples, strict=True))
    if n.max() <= n.min():
        return None
    design = np.column_stack([np.ones_like(n), n - n.mean(), work - work.mean()])
    solution, *_ = np.linalg.lstsq(design, g, rcond=None)
    residual = g - design @ solution
    variance = float(residual @ residual) / (len(samples) - 3)
    spread = np.linalg.pinv(design.T @ design)[1, 1]
    usual = n <= np.median(n) + 0.1
    quality = float(np.exp(g[usual][-2:].mean()))
    return Fit(-float(solution[1]), math.sqrt(variance * spread) + active().interval.fit_error_floor, quality)
