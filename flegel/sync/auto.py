"""Models that choose for themselves while they train: searched intervals or not, and barriers or single reports.

η follows from the measured speed, the measured cost of a barrier and the usual loss of a long interval (the prior κ of
plan/interval/multi_stage.py). Trials correct κ. Among equal workers they cost up to 4 % of a job and find nothing that
pays for that; among unequal ones the loss differs more, because points move and shares are uneven. Points move between
workers as under `fsp`.

Networks say how noisy their gradients are. By that and by the measured costs (plan/update_choice.py) θ is made at
barriers, as under `fsp`, or of each report as it comes, as under `asp`, with reports of equal time. Barriers come back
when they are the better choice, when points are to change owner, and in every job whose θ needs the reports of all
workers. This file holds the choice; the barrier is `fsp.py`.
"""

from __future__ import annotations

import math
from statistics import median
from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.environment import Recent
from flegel.plan.interval.interval import Step
from flegel.plan.interval.multi_stage import MultiStage
from flegel.plan.update_choice import UpdateChoice, UpdateCosts, WorkerCost, choose_updates
from flegel.sync.fsp import FlexibleBarrier
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import (
    NOTHING,
    Decision,
    Event,
    Reported,
    Started,
    StopWorkers,
    TrainWorkers,
    Update,
    Updated,
    View,
    WorkerView,
)


class Auto(FlexibleBarrier):
    """Intervals by speed and cost of barriers alone, or with probes, by what the workers' speeds say; for networks also
    updates of single reports, by what barriers cost."""

    name = "auto"
    summary = "chooses while it trains: searched intervals or none, for networks barriers or single reports"
    stored: ClassVar = {LocalTimers: (), MultiStage: (), Recent: (), Step: ()}
    transient = ("_sent_at",)

    def __init__(self) -> None:
        self._chosen = MultiStage()
        """The interval, searched only where workers turn out to be unequal."""
        self._chosen.probes = False
        super().__init__(self._chosen, "semi")
        self._agreeing = 0
        """Rounds in a row that wanted trials, or none, other than now."""
        self._single = self._returning = False
        """θ is made of each report as it comes; and: barriers come back as soon as nobody trains."""
        self._for_other = 0
        """Updates in a row for which the other way of making θ was the better one."""
        self._barriers_for = 0
        """Rounds in which barriers stay whatever they cost: points change owner at barriers alone."""
        self._rates: dict[int, float] = {}
        """By worker: samples a second besides its calls."""
        self._answer = Recent(active().interval.barrier_cost_rounds)
        """Seconds from the end of a worker's computing to its next order, of single reports."""
        self._seconds: dict[int, float] = {}
        """By worker: how long a single report of it is."""
        self._sent_at: dict[int, float] = {}
        """By worker: when it was told to make its single report."""
        self._why = self._why_searched = ""
        """Why θ is made at barriers or of single reports; and: why intervals are searched, or no longer."""

    @property
    def choice(self) -> str:
        """What it has chosen by now, and why."""
        return "; ".join(why for why in (self._why, self._why_searched) if why)

    @property
    def interval(self) -> float | None:  # type: ignore[override]
        return median(self._seconds.values()) if self._single and self._seconds else self._step.seconds

    def decide(self, event: Event, view: View, now: float) -> Decision:
        match event:
            case Started():
                self._single = self._returning = False
            case Reported(worker=worker, moving=moving):
                self._measure(view.workers[worker])
                if moving:
                    self._barriers_for = active().barriers.rounds_to_choose
        if self._single:
            return self._decide_single(event, view, now)
        why = self._choose(view) if isinstance(event, Updated) else ""
        if isinstance(event, Updated) and event.noise is not None and self._leaves_barriers(event, view):
            return self._release(view, now, self._why)
        decision = super().decide(event, view, now)
        if not why:
            return decision
        self._why_searched = why
        return Decision(decision.actions, f"{why}; {decision.reason}" if decision.reason else why)

    # -- searched intervals --------------------------------------------------------------------------------

    def _choose(self, view: View) -> str:
        """Changes the choice where two rounds in a row call for it; says why."""
        rules = active().barriers
        waiting, unequal = idle_part(view), rules.unequal_idle
        wanted = waiting > (unequal if not self._chosen.probes else unequal / 3)
        self._agreeing = self._agreeing + 1 if wanted != self._chosen.probes else 0
        if self._agreeing < rules.rounds_to_choose:
            return ""
        self._chosen.probes, self._agreeing = wanted, 0
        if wanted:
            return f"speeds differ: under bsp workers would wait {waiting:.0%} of their time: the interval is searched"
        return f"speeds are alike by now (bsp would wait {waiting:.0%}): no more trials"

    # -- updates of single reports -------------------------------------------------------------------------

    def _measure(self, worker: WorkerView) -> None:
        """A report: how fast its worker is besides its calls."""
        if worker.last_visits and worker.last_compute > 0.0:
            call = min(worker.call, active().interval.largest_call_share * worker.last_compute)
            fresh, known = worker.last_visits / (worker.last_compute - call), self._rates.get(worker.id)
            weight = active().barriers.lateness_weight
            self._rates[worker.id] = fresh if known is None else known + weight * (fresh - known)

    def _compared(self, event: Updated, view: View) -> UpdateChoice | None:
        """Barriers or single reports, by what was measured; None where something is not known yet."""
        known, noise = [w for w in view.workers.values() if w.points], event.noise
        if noise is None or math.isnan(noise) or len(known) < 2 or any(w.id not in self._rates for w in known):
            return None
        barrier = median(self._phi) if self._phi else event.barrier_cost
        costs = UpdateCosts(
            [WorkerCost(self._rates[w.id], w.call) for w in known], barrier, self._answer.median or barrier, noise
        )
        found = choose_updates(costs, self._single)
        self._seconds = dict(zip((w.id for w in known), found.seconds, strict=True))
        return found

    def _leaves_barriers(self, event: Updated, view: View) -> bool:
        """At a barrier: whether θ is made of single reports from now on."""
        if self._barriers_for:
            self._barriers_for -= 1
            return False
        found = self._compared(event, view) if view.single_reports else None
        if found is None or not found.single:
            self._for_other = 0
            self._why = self._why if found is None else found.reason
            return False
        # The first rounds of a job are those in which gradients agree most: nothing is waited for there.
        self._for_other = self._for_other + 1 if self._why else active().barriers.rounds_to_choose
        if self._for_other < active().barriers.rounds_to_choose:
            return False
        self._single, self._for_other, self._why = True, 0, found.reason
        self._sent_at = {}
        return True

    def _decide_single(self, event: Event, view: View, now: float) -> Decision:
        """Fold each report in as it comes, and let its worker go on; where barriers come back, stop everybody first."""
        match event:
            case Reported():
                if not self._returning:
                    self._returning = self._barriers_for > 0
                    if not self._returning:
                        return Decision((Update(view.reported()),))
                return self._bring_to_barrier(view)
            case Updated():
                if self._returning and not view.training():
                    self._single = self._returning = False
                    return self._begin(view, now)
                if not self._returning and self._returns(event, view):
                    self._returning = True
                    stop = self._bring_to_barrier(view)
                    return stop if stop.actions else self._back_at_once(view, now)
                return NOTHING if self._returning else self._release(view, now, "")
        return NOTHING

    def _returns(self, event: Updated, view: View) -> bool:
        """Whether barriers are the better choice by now, in as many updates as make some rounds."""
        found = self._compared(event, view)
        self._for_other = self._for_other + 1 if found is not None and not found.single else 0
        if found is None or self._for_other < active().barriers.rounds_to_choose * len(view.workers):
            return False
        self._for_other, self._why = 0, found.reason
        return True

    def _back_at_once(self, view: View, now: float) -> Decision:
        """Barriers come back, and nobody trains: the next round begins."""
        self._single = self._returning = False
        return self._begin(view, now)

    def _bring_to_barrier(self, view: View) -> Decision:
        """Stop those who train; when the last one has reported, fold in what is held."""
        training = view.training()
        if not training:
            held = view.reported()
            return Decision((Update(held),)) if held else NOTHING
        stop = tuple(w for w in training if not view.workers[w].stopping)
        return Decision((StopWorkers(stop),), self._why) if stop else NOTHING

    def _release(self, view: View, now: float, why: str) -> Decision:
        """Everybody who is idle trains for the time of a single report."""
        idle = tuple(w.id for w in view.workers.values() if w.phase == "idle")
        usual = median(self._seconds.values()) if self._seconds else None
        seconds = {w: self._seconds.get(w, usual) for w in idle}
        for w in idle:
            if w in self._sent_at:
                self._answer.add(max(now - self._sent_at[w] - view.workers[w].last_compute, 0.0))
        self._sent_at.update(dict.fromkeys(idle, now))
        known = {w: s for w, s in seconds.items() if s is not None}
        return Decision((TrainWorkers(idle, None, known),), why) if idle else NOTHING


def idle_part(view: View) -> float:
    """The part of its time that the average worker would wait for the slowest in equal shares; 0 where a speed is
    unknown. Shares are taken as equal: points that have moved hide how much workers differ."""
    rates = [w.rate for w in view.workers.values() if w.points]
    if not rates or min(rates) <= 0.0:
        return 0.0
    return 1.0 - sum(min(rates) / rate for rate in rates) / len(rates)
