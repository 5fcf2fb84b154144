"""The coordinator's side of balancing: measures speeds, asks the plan, records the migrations. Pure.

Called at each barrier, when every worker has committed: `settle` and `note` before anybody trains again, `plan` when
everybody does, because planning takes a good part of a barrier. Decides nothing about synchronization and touches no
data; what it wants is told as orders to workers, and every plan carries its reason.
"""

from __future__ import annotations

from collections.abc import Collection

from flegel.configuration.active import active
from flegel.configuration.balance import BalanceSettings
from flegel.job import Criteria
from flegel.machine.coordinator.events import SetTimer, Timer
from flegel.machine.coordinator.state import JobState
from flegel.machine.migration.migrations import Migrations, OwnershipChange
from flegel.machine.plain_data import register
from flegel.messages import MoveReady, MoveRefused, MoveSent, Order, WindowArrived
from flegel.params.protocol import ParameterStore
from flegel.plan.balance.pairs import PairedBalance
from flegel.plan.balance.planner import Balance, MoveCost
from flegel.plan.balance.remaining_time import ProgressSample, RemainingTime
from flegel.plan.balance.speed_estimate import DecayingMean, DutyCycle, Speed
from flegel.plan.balance.target_passes import WorkerLoad
from flegel.plan.termination import Progress
from flegel.sync.policy import Updated, View

Orders = list[tuple[int, Order]]
MoveAnswer = MoveReady | MoveRefused | WindowArrived | MoveSent
Round = tuple[int, int, float, bool]
"""Of a worker: its number, visits, seconds of training, and whether it ran out of points."""

NO_ROOM = "the memory of its device is full"


class BalanceControl:
    """`async`: points move while everybody trains. `sync`: everybody waits until they have moved, the paper's rival."""

    def __init__(
        self,
        mode: str,
        criteria: Criteria,
        rules: BalanceSettings | None = None,
        timeout: float = 60.0,
        plan: Balance | None = None,
        crowded: bool = False,
        past: bool = True,
        matching: str = "level",
    ) -> None:
        """`crowded`: there are more workers than processors for them. `past`: passes so far are to become equal, not
        only those to come. `matching`: one level of passes for all workers, or the paper's `pairs` and linear T."""
        self.mode = mode
        self._look_from = 0.0
        self._crowded, self._past = crowded, past
        self.migrations = Migrations(timeout)
        self.reason = ""
        usual = active().balance_sparing if crowded or mode == "sync" else active().balance
        paired = matching == "pairs"
        self._balance: Balance | PairedBalance = plan or (PairedBalance if paired else Balance)(rules or usual)
        self._horizon = RemainingTime(criteria, linear=paired)
        self._speeds: dict[int, Speed] = {}
        self._duties: dict[int, DutyCycle] = {}
        self._now = 0.0
        self._round = 0.0
        """Seconds from barrier to barrier."""
        self._barriers = 0
        self._rounds: list[tuple[float, list[Round]]] = []
        """When they ended and what workers reported, until `plan` uses it; no reports where it was no round."""
        self._told: set[str] = set()
        """The kind of the last plan that was noted: another one like it is not."""
        self._waiting: Updated | None = None
        """What the model will hear when points have moved, where no worker trains meanwhile."""

    def start(self, view: View, now: float) -> None:
        self._speeds = {w: Speed(self._balance.rules) for w in view.workers}
        self._now = now
        self._look_from = now + (active().moves.crowded_seconds if self._crowded else 0.0)

    def go_on(self, now: float) -> None:
        """Until now no worker was to train: points moved, workers came or went, a job was resumed. That says nothing
        about anybody's speed."""
        self._rounds.append((now, []))

    def waits(self) -> bool:
        """No worker trains while points move (balance=sync)."""
        return self.mode == "sync" and bool(self.migrations.open)

    def settle(self, view: View, store: ParameterStore, committed: Collection[int], now: float) -> Orders:
        """Windows change owner between workers that have both committed: points, passes, accounts, in one step."""
        waited = self.waits()
        changes, settles = self.migrations.settle(committed, now)
        if waited and not self.waits():
            self.go_on(now)
        for change in changes:
            _hand_over(view, change)
            store.join(change.source, change.target)
        return list(settles.items())

    # -- events of the job ---------------------------------------------------------------------------------

    def after_commit(
        self, job: JobState, updated: Updated, workers: tuple[int, ...], progress: Progress, now: float
    ) -> bool:
        """Between commit and the next order windows change owner. New moves begin when everybody trains again, unless
        no worker is to train while points move: then True, and `updated` waits until they have moved."""
        job.send_all(self.settle(job.view, job.store, workers, now))
        if len(workers) < len(job.view.workers):  # between single reports passes differ by the order of the reports
            return False
        self.note(job.view, now, progress.seconds, progress.iteration, job.trace[-1].estimate, progress.slowest_pass)
        if self.mode == "sync":
            self.plan_moves(job, now)
        else:
            job.out.append(SetTimer(now, Timer("balance")))
        if not self.waits():
            return False
        self._waiting = updated
        return True

    def plan_moves(self, job: JobState, now: float) -> None:
        """Begin new moves where the plan wants some; the reason enters the trace."""
        job.send_all(self.plan(job.view, now))
        if self.reason:
            job.reason = "; ".join(filter(None, (job.reason, f"balance: {self.reason}")))

    def on_answer(self, job: JobState, worker: int, body: MoveAnswer, now: float) -> Updated | None:
        """What a worker says about a move. Where everybody waited and all points have moved: what the model hears."""
        job.send_all(self.migrations.answer(worker, body, now))
        if self._waiting is None:
            return None
        job.send_all(self.settle(job.view, job.store, tuple(job.view.workers), now))
        return self._released()

    def check_deadlines(self, job: JobState, now: float) -> Updated | None:
        """Cancel what is late. Where everybody waited for that only: what the model hears."""
        job.send_all(self.migrations.late(now))
        return self._released()

    def _released(self) -> Updated | None:
        if self.waits():
            return None
        event, self._waiting = self._waiting, None
        return event

    def abandon(self, job: JobState, why: str) -> None:
        """Cancel every migration; what has not changed owner stays where it was."""
        self._waiting = None
        told = [order for number in sorted(self.migrations.open) for order in self.migrations.cancel(number, why)]
        job.send_all([(worker, order) for worker, order in told if worker in job.view.workers])

    # -- windows and plans ---------------------------------------------------------------------------------

    def note(
        self, view: View, now: float, seconds: float, iteration: int, objective: float | None, slowest_pass: float
    ) -> None:
        """What the round that just ended says about speeds and about the time that is left."""
        self._barriers += 1
        self._horizon.note(seconds, iteration, objective, slowest_pass)
        said = [(w.id, w.last_visits, w.last_compute, w.exhausted) for w in view.workers.values()]
        self._rounds.append((now, said))

    def _learn(self, workers: Collection[int]) -> None:
        """Speeds and duties from the rounds that were noted."""
        rules = self._balance.rules
        self._speeds = {w: self._speeds.get(w) or Speed(rules) for w in workers}
        self._duties = {w: self._duties.get(w) or DutyCycle(rules) for w in workers}
        for ended, said in self._rounds:
            took, self._now = ended - self._now, ended
            longest = max((compute for _, _, compute, _ in said), default=0.0)
            for worker, visits, compute, exhausted in said:
                if worker not in self._speeds:
                    continue
                self._speeds[worker].note(visits, compute)
                if took > 0:
                    self._duties[worker].note(took, longest if exhausted else compute)
            if took > 0 and said:
                keep = rules.short_memory
                self._round = keep * self._round + (1 - keep) * took if self._round else took
        self._rounds = []

    def plan(self, view: View, now: float) -> Orders:
        """Begin new moves where the plan wants some; `reason` says why or why not."""
        self.reason = ""
        self._learn(view.workers)
        if self._barriers < active().moves.warm_up_barriers or now < self._look_from or not self._balance.due(now):
            return []
        left = self._horizon.remaining()
        plan = self._balance.plan(self._loads(view), left, now, self._move_cost())
        kind = "".join(c for c in plan.reason if not c.isdigit())
        if plan.proposals or kind not in self._told:
            self.reason = f"{plan.reason} (T by {left.why})"
        self._told = {kind}
        orders: Orders = []
        for proposal in plan.proposals:
            orders += self.migrations.begin(proposal, now)
            self.migrations.notes.append(
                f"move {self.migrations.count - 1}: {proposal.points} points from worker {proposal.source} "
                f"to {proposal.target}: {proposal.reason}"
            )
        return orders

    def _move_cost(self) -> MoveCost:
        """Before the first move is over, as if it took a round, because windows change owner at barriers, and two where
        whoever carries them has to wait for a processor."""
        known = self.migrations.cost
        return known if known.lag or known.each else MoveCost(lag=(2 if self._crowded else 1) * self._round)

    def _loads(self, view: View) -> list[WorkerLoad]:
        """V is what a point takes of the time that passes: computing, stretched by what barriers cost that worker."""
        busy = self.migrations.busy()
        return [
            WorkerLoad(
                worker=w.id,
                points=w.points,
                seconds_per_point=self._speeds[w.id].seconds / max(self._duties[w.id].value, 1e-3),
                passes=w.passes if self._past else 0.0,
                relative_error=self._speeds[w.id].relative_error,
                busy=w.id in busy,
                refusal=self.migrations.full.get(w.id, "") or (NO_ROOM if 0 < w.room <= w.points else ""),
            )
            for w in view.workers.values()
        ]


register(
    {
        BalanceControl: ("_crowded", "_past", "_waiting"),
        Migrations: ("open",),
        Balance: ("rules", "even"),
        PairedBalance: ("rules",),
        RemainingTime: ("_criteria", "_linear"),
        ProgressSample: (),
        Speed: (),
        DutyCycle: (),
        DecayingMean: (),
        MoveCost: (),
        BalanceSettings: (),
    }
)
"""For checkpoints. Points under way stay with their source; criteria may change when a job is resumed; what a migration
costs depends on the host on which the job continues."""


def _hand_over(view: View, change: OwnershipChange) -> None:
    """Change the view of both workers after points changed owner: points, passes, halting votes and unseen points."""
    source, target = view.workers[change.source], view.workers[change.target]
    arrived = change.arrived
    source.points -= arrived.points
    target.points += arrived.points
    source.carried -= arrived.points * arrived.passes
    target.carried += arrived.points * arrived.passes
    source.halted -= arrived.halted
    target.halted += arrived.halted
    if not arrived.passes:
        source.unseen -= arrived.points
        target.unseen += arrived.points
