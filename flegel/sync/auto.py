"""Flexible barriers that choose for themselves: intervals without trials where workers are alike, a search where not.

η follows from the measured speed, the measured cost of a barrier and the usual loss of a long interval (the prior κ of
plan/interval/multi_stage.py). Trials correct κ. Among equal workers they cost up to 4 % of a job and find nothing that
pays for that; among unequal ones the loss differs more, because points move and shares are uneven. Points move between
workers as under `fsp`. This file holds the choice; the barrier is `fsp.py`.
"""

from __future__ import annotations

from typing import ClassVar

from flegel.configuration.active import active
from flegel.plan.interval.interval import Step
from flegel.plan.interval.multi_stage import MultiStage, Recent
from flegel.sync.fsp import FlexibleBarrier
from flegel.sync.local_timers import LocalTimers
from flegel.sync.policy import Decision, Event, Updated, View


class Auto(FlexibleBarrier):
    """Intervals by speed and cost of barriers alone, or with probes, by what the workers' speeds say."""

    name = "auto"
    summary = "chooses while it trains: no trials among equal workers, searched intervals among unequal ones"
    stored: ClassVar = {LocalTimers: (), MultiStage: (), Recent: (), Step: ()}

    def __init__(self) -> None:
        self._chosen = MultiStage()
        self._chosen.probes = False
        super().__init__(self._chosen, "semi")
        self._agreeing = 0

    def decide(self, event: Event, view: View, now: float) -> Decision:
        why = self._choose(view) if isinstance(event, Updated) else ""
        decision = super().decide(event, view, now)
        if not why:
            return decision
        return Decision(decision.actions, f"{why}; {decision.reason}" if decision.reason else why)

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


def idle_part(view: View) -> float:
    """The part of its time that the average worker would wait for the slowest in equal shares; 0 where a speed is
    unknown. Shares are taken as equal: points that have moved hide how much workers differ."""
    rates = [w.rate for w in view.workers.values() if w.points]
    if not rates or min(rates) <= 0.0:
        return 0.0
    return 1.0 - sum(min(rates) / rate for rate in rates) / len(rates)
