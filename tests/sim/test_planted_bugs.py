"""Does the fault simulation find bugs? Each of these is planted into the engine, and must be found within some seeds.

`make faults` runs the same seeds without the bugs, so it is the bug that is found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from bench.faults.faulty_job import Violation, run
from bench.faults.reliable_channel import Packet, ReliableChannel
from bench.faults.scenarios import Scenario, anything, losing
from flegel.core import pytree
from flegel.machine.coordinator.commits import Commits
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Send
from flegel.machine.coordinator.membership import Membership
from flegel.machine.coordinator.orders import WorkerOrders
from flegel.machine.coordinator.redistribution import Redistribution
from flegel.machine.fencing import Fence
from flegel.machine.migration.endpoints import MigrationTarget
from flegel.machine.migration.migrations import Migrations
from flegel.machine.worker import reassignment
from flegel.machine.worker.point_store import PointStore
from flegel.machine.worker.visit_schedule import VisitSchedule
from flegel.messages import ResetPoints, Train
from flegel.params import ledger
from flegel.params.ledger import Ledger
from flegel.sync.policy import View

Patch = pytest.MonkeyPatch

WITHIN = 60  # seeds


def lossy(seed: int) -> Scenario | None:
    return losing(seed)


def moving(seed: int) -> Scenario | None:
    scenario = anything(seed)
    return scenario if scenario.random_moves and not scenario.faults else None


def crowded(seed: int) -> Scenario | None:
    """Many messages under way at once, and many lost."""
    scenario = anything(seed)
    return scenario if scenario.random_moves and scenario.drop == 0.3 else None


def mixed(seed: int) -> Scenario | None:
    """Workers die after points have moved."""
    scenario = anything(seed)
    return scenario if scenario.random_moves and any(m.kind == "killed" for m in scenario.faults) else None


def deadly(seed: int) -> Scenario | None:
    scenario = anything(seed)
    return scenario if any(m.kind in ("killed", "crashed") for m in scenario.faults) else None


def undead(seed: int) -> Scenario | None:
    """Workers that are taken for dead and come back."""
    scenario = anything(seed)
    return scenario if any(m.seconds > 2 for m in scenario.faults) and scenario.replace else None


# -- the bugs ----------------------------------------------------------------------------------------------


def acknowledges_what_it_has_not_heard(patch: Patch) -> None:
    """A lost message is never sent again, because a later one was acknowledged in its place."""

    def packet(self: ReliableChannel, number: int, item: Any = None) -> Packet:
        self._owed_at = float("inf")
        return Packet(self.session, number, max(self._early, default=self.heard), item)

    patch.setattr(ReliableChannel, "_packet", packet)


def acknowledgement_off_by_one(patch: Patch) -> None:
    """One message more than was acknowledged is forgotten."""
    acknowledge = ReliableChannel._acknowledge
    patch.setattr(
        ReliableChannel,
        "_acknowledge",
        lambda self, heard, now: acknowledge(self, heard + (0 < heard < self.sent), now),
    )


def doubles_are_applied(patch: Patch) -> None:
    """Nobody notices that a report came twice."""
    hear, on_report = ReliableChannel._hear, Coordinator._on_report

    def again(self: ReliableChannel, packet: Packet, now: float) -> list[Any]:
        return hear(self, packet, now) or ([packet.item] if packet.number <= self.heard else [])

    def report(self: Coordinator, worker: int, body: Any, arrays: Any, now: float) -> None:
        held = self.commits.held.get(worker)
        on_report(self, worker, body, arrays, now)
        if held is not None and worker in self.commits.held:
            pytree.add(held, pytree.unflatten(held, arrays))

    patch.setattr(ReliableChannel, "_hear", again)
    patch.setattr(Fence, "refuse", lambda self, envelope: None)
    patch.setattr(Coordinator, "_on_report", report)


def a_former_life_speaks(patch: Patch) -> None:
    """Neither session nor incarnation is looked at."""
    take = ReliableChannel.take

    def anybody(self: ReliableChannel, packet: Packet, now: float) -> Any:
        return take(self, msgspec.structs.replace(packet, session=self.session), now)

    patch.setattr(ReliableChannel, "take", anybody)
    patch.setattr(Fence, "refuse", lambda self, envelope: None)


def points_in_flight_are_trained(patch: Patch) -> None:
    """Ownership race: the source does not lock the window that it sends."""
    cut = VisitSchedule.cut

    def unlocked(self: VisitSchedule, *args: Any) -> Any:
        segment = cut(self, *args)
        if segment is not None:
            segment.status = "active"
        return segment

    patch.setattr(VisitSchedule, "cut", unlocked)


def both_own_a_window(patch: Patch) -> None:
    """Ownership race: the target is told that a window is its own, the source is not."""
    settle = Migrations.settle

    def halfway(self: Migrations, committed: Any, now: float) -> Any:
        changes, orders = settle(self, committed, now)
        return changes, {w: msgspec.structs.replace(order, given=()) for w, order in orders.items()}

    patch.setattr(Migrations, "settle", halfway)


def a_copy_is_not_refreshed(patch: Patch) -> None:
    """Points that come back have the states that they had when they left."""
    refresh = PointStore._refresh

    def stale(self: PointStore, segment: Any, incoming: Any) -> None:
        if not incoming.window.copied:
            refresh(self, segment, incoming)

    patch.setattr(PointStore, "_refresh", stale)


def a_copy_is_revived_twice(patch: Patch) -> None:
    """A window that comes twice is kept and told twice, and counted twice."""

    def came(self: MigrationTarget, number: int, usable: bool) -> Any:
        self.kept.discard(number)
        return original(self, number, usable)

    original = MigrationTarget.came
    answer = Migrations.answer

    def twice(self: Migrations, worker: int, body: Any, now: float) -> Any:
        move = self.open.get(body.move)
        if move is not None and hasattr(body, "number"):
            move.settled.discard(body.number)
        return answer(self, worker, body, now)

    patch.setattr(MigrationTarget, "came", came)
    patch.setattr(Migrations, "answer", twice)


def a_commit_is_dropped_before_it_is_posted(patch: Patch) -> None:
    """Somebody is lost while the accounts lag behind the total, and what they lack is never made up."""
    detach = Ledger.detach

    def broken(self: Ledger, owner: int) -> int:
        self._not_in_accounts = ledger.NOTHING
        return detach(self, owner)

    patch.setattr(Ledger, "detach", broken)


def a_lost_account_stays(patch: Patch) -> None:
    """The statistics of a lost worker are not subtracted."""
    patch.setattr(Ledger, "_rebuild", lambda self: None)


def partners_do_not_begin_again(patch: Patch) -> None:
    """Who shared an account with the lost worker is not told that its points count as unvisited."""
    closed = Membership.accounts_closed

    def silent(self: Any, again: set[int], now: float) -> Any:
        found = closed(self, again, now)
        job = self._job
        job.out[:] = [c for c in job.out if not (isinstance(c, Send) and isinstance(c.body, ResetPoints))]
        return found

    patch.setattr(Membership, "accounts_closed", silent)


def a_lost_workers_report_counts(patch: Patch) -> None:
    """What a fenced worker reported last is folded in all the same."""
    forget = Commits.forget

    def kept(self: Any, worker: int) -> int:
        change = self.held.get(worker)
        visits = forget(self, worker)
        others = sorted(w for w in self._job.view.workers if w != worker)
        if change is not None and others and others[0] in self.held:
            pytree.add(self._job.store.statistics, change)
        return visits

    patch.setattr(Commits, "forget", kept)


def orphans_are_forgotten(patch: Patch) -> None:
    """Points of a lost worker get no new owner."""
    patch.setattr(Redistribution, "_place_orphans", lambda self, view: [])


def adopted_points_keep_old_labels(patch: Patch) -> None:
    """Points that count as unvisited enter with states."""
    adopt = reassignment.adopt

    def visited(store: Any, shard: Any, passes: int) -> None:
        shard.state[:] = 0
        adopt(store, shard, passes)

    patch.setattr(reassignment, "adopt", visited)


def theta_of_the_round_before(patch: Patch) -> None:
    """One worker gets the θ of the round before."""
    train = WorkerOrders.train

    def late(self: Any, action: Any, now: float) -> None:
        out = self._job.out
        before = len(out)
        train(self, action, now)
        old = getattr(self, "_old", None)
        self._old = tuple(pytree.flatten(self._job.store.parameter))
        last = len(out) - 1
        if old is not None and last > before and isinstance(out[last].body, Train):
            out[last] = msgspec.structs.replace(out[last], arrays=old)

    patch.setattr(WorkerOrders, "train", late)


def a_barrier_without_one(patch: Patch) -> None:
    """The barrier is over when all but one have reported."""
    patch.setattr(View, "all_reported", lambda self: len(self.reported()) >= len(self.workers) - 1)


def a_resend_timer_that_stops(patch: Patch) -> None:
    """What was sent again once is never sent again."""
    tick = ReliableChannel.tick

    def once(self: ReliableChannel, now: float) -> Any:
        packets = tick(self, now)
        if self.again:
            self._resend_at = float("inf")
        return packets

    patch.setattr(ReliableChannel, "tick", once)


PLANTED: list[tuple[Callable[[Patch], None], Callable[[int], Scenario | None]]] = [
    (acknowledges_what_it_has_not_heard, crowded),
    (acknowledgement_off_by_one, lossy),
    (a_resend_timer_that_stops, lossy),
    (doubles_are_applied, lossy),
    (theta_of_the_round_before, lossy),
    (a_barrier_without_one, lossy),
    (points_in_flight_are_trained, moving),
    (both_own_a_window, moving),
    (a_copy_is_not_refreshed, moving),
    (a_copy_is_revived_twice, moving),
    (a_former_life_speaks, undead),
    (a_commit_is_dropped_before_it_is_posted, deadly),
    (a_lost_account_stays, deadly),
    (partners_do_not_begin_again, mixed),
    (a_lost_workers_report_counts, deadly),
    (orphans_are_forgotten, deadly),
    (adopted_points_keep_old_labels, deadly),
]


@pytest.mark.parametrize(("plant", "kind"), PLANTED, ids=[plant.__name__ for plant, _ in PLANTED])
def test_a_planted_bug_is_found(
    plant: Callable[[Patch], None], kind: Callable[[int], Scenario | None], monkeypatch: Patch
) -> None:
    scenarios = [s for seed in range(8 * WITHIN) if (s := kind(seed)) is not None][:WITHIN]
    plant(monkeypatch)
    for tried, scenario in enumerate(scenarios, 1):
        try:
            run(scenario)
        except Violation as found:
            print(f"{plant.__name__}: seed {scenario.seed}, the {tried}. that was tried: {found}")
            return
    pytest.fail(f"{len(scenarios)} scenarios ran without a complaint")
