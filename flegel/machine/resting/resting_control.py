"""When workers are sent to rest and called back: measures speeds and barriers, asks plan/active_workers.py. Pure.

Decided after each update of a model with barriers. Sending workers to rest or calling them back costs a pause. It is
done when the time that it saves, over as long as the present workers have trained, exceeds that pause: then the job
loses at most about twice what it would have lost by knowing the future (ski rental). Touches no points: which worker
hands over which points is decided in machine/coordinator/redistribution.py.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from flegel.configuration.active import active
from flegel.machine.coordinator.membership import Membership, Next
from flegel.machine.coordinator.state import JobState
from flegel.plan.active_workers import ActiveWorkers, BarrierCosts, ValueOfVisits, best_active_workers
from flegel.sync.policy import Updated, WorkerView


class RestingControl:
    """Decides at barriers; remembers what barriers cost with how many workers."""

    def __init__(
        self,
        interval: float | None = None,
        first: ActiveWorkers | None = None,
        expected: Mapping[int, float] | None = None,
    ) -> None:
        """`interval`: as the user gave it. `first`: who trains at the beginning of the job, where some workers rest
        from the beginning. `expected`: relative speeds of workers that were never measured."""
        self.first = first
        self._interval, self._expected_speeds = interval, expected or {}
        self._costs = BarrierCosts()
        self._members: tuple[int, ...] = ()
        self._rounds = 0
        """Rounds since the members changed."""
        self._since = self._decide_at = 0.0
        """When the members changed, and from when on the next decision is made."""
        self._recalls = self._agreeing = self._decided_round = 0
        """Recalls so far, decisions in a row that wanted the same kind of change, and the round of the last one."""
        self._work: dict[int, tuple[float, float]] = {}
        """Of each worker: visits and seconds of computing; earlier rounds have geometrically smaller weights."""

    def at_barrier(self, job: JobState, membership: Membership, updated: Updated, now: float) -> Next:
        """Whether workers are sent to rest or called back after this update."""
        rules = active().resting
        if len(updated.workers) < len(job.view.workers):  # of single reports nothing is known about barriers
            return Next.NOTHING
        self._measure(job, updated, now)
        if (
            self._rounds < self._decided_round + rules.rounds_between_decisions
            or now < self._decide_at
            or not membership.steady
            or membership.roster.hired
        ):
            return Next.NOTHING
        self._decide_at = now + rules.pause_between_decisions * (now - self._since)
        self._decided_round = self._rounds
        wanted = self._wanted(job, updated)
        if wanted is None or not _fits(job, wanted):
            self._agreeing = 0
            return Next.NOTHING
        saved = (now - self._since) * wanted.gain / (1.0 + wanted.gain)
        price = self._price(job, membership, wanted)
        fewer = set(wanted.working) <= set(self._members)
        enough = wanted.gain >= (rules.gain_to_rest if fewer else rules.gain_to_recall)
        self._agreeing = self._agreeing + 1 if enough else 0
        if fewer:
            if self._agreeing < rules.decisions_to_rest or saved < price:
                return Next.NOTHING
            return membership.rest(set(wanted.resting) - set(job.resting), wanted.reason, now)
        # Every recall so far doubles what the next one must have saved: a job whose measurements change to and fro ends
        # with few changes.
        needed = rules.recall_savings * price * 2**self._recalls
        if self._agreeing >= rules.decisions_to_recall and saved >= needed:
            self._recalls += 1
            membership.recall(wanted.reason, now)
        return Next.NOTHING

    def _measure(self, job: JobState, updated: Updated, now: float) -> None:
        """Add one round to the speeds of workers and to the costs of barriers; the round of a change is left out."""
        rules = active().resting
        members = tuple(job.view.workers)
        if members != self._members:  # the round of the change itself says little
            self._members, self._rounds, self._since = members, -1, now if self._members else job.began
            self._decide_at, self._agreeing, self._decided_round = 0.0, 0, 0
        self._rounds += 1
        # Of n rounds about a quarter counts fully.
        keep = min(max(rules.speed_memory, 1.0 - 4.0 / max(self._rounds, 1)), rules.long_speed_memory)
        if len(members) <= rules.workers_measured_one_by_one:
            for w in job.view.workers.values():
                visits, seconds = self._work.get(w.id, (0.0, 0.0))
                self._work[w.id] = keep * visits + w.last_visits, keep * seconds + w.last_compute
        rate = sum(self._rate(w) for w in job.view.workers.values())
        if self._rounds > 0 and rate > 0 and updated.visits:
            self._costs.add(len(members), max(updated.seconds - updated.visits / rate, 0.0))

    def _wanted(self, job: JobState, updated: Updated) -> ActiveWorkers | None:
        """Who should train; None where too little is known, or where these are the workers that train now."""
        if updated.noise is not None and math.isnan(updated.noise):
            return None  # a gradient method whose noise is not measured yet; None: not a gradient method
        rates = self._rates(job)
        if len(rates) < 2 or max(rates.values()) <= 0.0:
            return None
        value = ValueOfVisits(
            points=float(job.points), by_part=updated.worth, noise=updated.noise, interval=self._interval
        )
        wanted = best_active_workers(rates, present=self._members, cost=self._costs.at, value=value)
        return None if set(wanted.working) == set(self._members) else wanted

    def _rates(self, job: JobState) -> dict[int, float]:
        """Points a second of all workers. Of one that was never measured: by its expected speed beside the fastest."""
        rates = {w.id: self._rate(w) for w in job.view.workers.values()}
        fastest = max(rates, key=lambda worker: rates[worker])
        for worker, seen in job.resting.items():
            share = self._expected_speeds.get(worker, 1.0) / self._expected_speeds.get(fastest, 1.0)
            rates[worker] = self._rate(seen) or rates[fastest] * share
        return rates

    def _rate(self, seen: WorkerView) -> float:
        visits, seconds = self._work.get(seen.id, (0.0, 0.0))
        return visits / seconds if seconds > 0 else seen.rate

    def _price(self, job: JobState, membership: Membership, wanted: ActiveWorkers) -> float:
        """Seconds that sending workers to rest takes: as measured the last time, else an estimate."""
        rules = active().resting
        known = [i.resumed - i.at for i in membership.incidents if i.kind == "rest" and i.resumed is not None and i.at]
        if known:
            return known[-1]
        moving = sum(job.view.workers[w].points for w in wanted.resting if w in job.view.workers)
        barriers = rules.first_change_barriers * self._costs.at(len(self._members))
        return barriers + rules.first_change_seconds_each_point * moving


def _fits(job: JobState, wanted: ActiveWorkers) -> bool:
    """Whether the workers that should train have memory for all points, as far as their memory is known."""
    rooms = [job.view.workers[w].room for w in wanted.working if w in job.view.workers]
    return not all(rooms) or sum(rooms) >= job.points
