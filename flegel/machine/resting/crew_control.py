"""When workers are sent to rest and called back: measures speeds and barriers, asks plan/crew.py. Pure.

Looked at after each update of a model with barriers. A change of the crew costs a pause, so one is made when what it
saves, over as long as the present crew has trained, is more than that: the job loses at most about twice what it would
have lost by knowing better. Touches no points; who hands over what is coordinator/redistribution.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.state import JobState
from flegel.plan.crew import BarrierCosts, Crew, Worth, best_crew
from flegel.sync.policy import Updated, WorkerView

ROUNDS = 4  # with one crew before it is judged, and between two looks
LEAST, LEAST_BACK = 0.05, 0.1
"""Gain from which workers rest, and from which they are called back: of a crew that rests only old speeds are known."""
LOOKS, LOOKS_BACK, BACK = 2, 3, 4.0
"""Looks in a row that must say so before workers rest and before they are called back, and how often a change's price
must be saved for that."""
MEMORY, LONG_MEMORY = 0.9, 0.995
"""Share of the past in the speed of a worker: ten rounds at first, two hundred later, a quarter of what was seen in
between. Workers that share processors are slow for tenths of a second, and should not be sent away for that."""
FEW = 256  # workers whose rounds are looked at one by one; of more the coordinator's own figure is taken
AGAIN = 0.1  # of the time since the last change until the next look
STEPS = 4  # barriers that a change takes, before one was measured
EACH = 5e-7  # seconds for each point that is handed over, before a change was measured


class CrewControl:
    """Asked at barriers; remembers what barriers cost with how many workers."""

    def __init__(
        self, interval: float | None = None, first: Crew | None = None, expected: Mapping[int, float] | None = None
    ) -> None:
        """`interval`: as the user gave it. `first`: the crew that the job begins with, where some rest. `expected`:
        relative speeds of workers that were never measured."""
        self.first = first
        self._interval, self._expected = interval, expected or {}
        self._costs = BarrierCosts()
        self._members: tuple[int, ...] = ()
        self._rounds = 0
        self._since = self._look_at = 0.0
        self._recalls = self._agreeing = self._rounds_looked = 0
        self._work: dict[int, tuple[float, float]] = {}
        """Of each worker: visits and seconds of computing, those of former rounds less and less."""

    def at_barrier(self, job: JobState, membership: Membership, updated: Updated, now: float) -> Next:
        """What follows for the crew from one more update."""
        self._measure(job, updated, now)
        if (
            self._rounds < self._rounds_looked + ROUNDS
            or now < self._look_at
            or not membership.steady
            or membership.roster.hired
        ):
            return Next.NOTHING
        self._look_at, self._rounds_looked = now + AGAIN * (now - self._since), self._rounds
        wanted = self._wanted(job, updated)
        if wanted is None or not _fits(job, wanted):
            self._agreeing = 0
            return Next.NOTHING
        saved = (now - self._since) * wanted.gain / (1.0 + wanted.gain)
        price = self._price(job, membership, wanted)
        fewer = set(wanted.working) <= set(self._members)
        self._agreeing = self._agreeing + 1 if wanted.gain >= (LEAST if fewer else LEAST_BACK) else 0
        if fewer:
            if self._agreeing < LOOKS or saved < price:
                return Next.NOTHING
            return membership.rest(set(wanted.resting) - set(job.resting), wanted.reason, now)
        if self._agreeing >= LOOKS_BACK and saved >= BACK * price * 2**self._recalls:
            self._recalls += 1
            membership.recall(wanted.reason, now)
        return Next.NOTHING

    def _measure(self, job: JobState, updated: Updated, now: float) -> None:
        members = tuple(job.view.workers)
        if members != self._members:  # the round of the change itself says little
            self._members, self._rounds, self._since = members, -1, now if self._members else job.began
            self._look_at, self._agreeing, self._rounds_looked = 0.0, 0, 0
        self._rounds += 1
        keep = min(max(MEMORY, 1.0 - 4.0 / max(self._rounds, 1)), LONG_MEMORY)
        if len(members) <= FEW:
            for w in job.view.workers.values():
                visits, seconds = self._work.get(w.id, (0.0, 0.0))
                self._work[w.id] = keep * visits + w.last_visits, keep * seconds + w.last_compute
        rate = sum(self._rate(w) for w in job.view.workers.values())
        if self._rounds > 0 and rate > 0 and updated.visits:
            self._costs.add(len(members), max(updated.seconds - updated.visits / rate, 0.0))

    def _wanted(self, job: JobState, updated: Updated) -> Crew | None:
        """The best crew; None where too little is known, or the present one is it."""
        if updated.noise is not None and math.isnan(updated.noise):
            return None
        rates = self._rates(job)
        if len(rates) < 2 or max(rates.values()) <= 0.0:
            return None
        worth = Worth(float(job.points), updated.worth, updated.noise, self._interval)
        wanted = best_crew(rates, self._members, self._costs.at, worth)
        return None if set(wanted.working) == set(self._members) else wanted

    def _rates(self, job: JobState) -> dict[int, float]:
        """Points a second of all workers. Of one that was never measured: by its expected speed beside the fastest."""
        rates = {w.id: self._rate(w) for w in job.view.workers.values()}
        fastest = max(rates, key=lambda worker: rates[worker])
        for worker, seen in job.resting.items():
            share = self._expected.get(worker, 1.0) / self._expected.get(fastest, 1.0)
            rates[worker] = self._rate(seen) or rates[fastest] * share
        return rates

    def _rate(self, seen: WorkerView) -> float:
        visits, seconds = self._work.get(seen.id, (0.0, 0.0))
        return visits / seconds if seconds > 0 else seen.rate

    def _price(self, job: JobState, membership: Membership, wanted: Crew) -> float:
        """Seconds of a change."""
        known = [i.resumed - i.at for i in membership.incidents if i.kind == "rest" and i.resumed is not None and i.at]
        if known:
            return known[-1]
        moving = sum(job.view.workers[w].points for w in wanted.resting if w in job.view.workers)
        return STEPS * self._costs.at(len(self._members)) + EACH * moving


def _fits(job: JobState, wanted: Crew) -> bool:
    """The crew has room for all points, as far as rooms are known."""
    rooms = [job.view.workers[w].room for w in wanted.working if w in job.view.workers]
    return not all(rooms) or sum(rooms) >= job.points
