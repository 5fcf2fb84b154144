"""Parameter servers under faults on virtual time: the laws hold, and planted bugs are found.

`python -m bench.chaos.simulate --kind served` runs them by the thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from bench.faults.faulty_job import Violation
from bench.faults.scenarios import Fault, Scenario, scaled, served
from bench.faults.served_job import ServedJob, run_served
from flegel.machine.server.care import FIRST_SERVER, ServerCare
from flegel.machine.server.client import SliceClient
from flegel.machine.server.fold_progress import OpProgress
from flegel.machine.server.group import ServerGroup
from flegel.machine.server.paced_answers import PacedAnswers
from flegel.machine.server.report_inbox import ReportInbox
from flegel.machine.server.server import ParameterServer, ToWorker
from flegel.machine.server.slice_state import SliceState
from flegel.server_messages import FoldSlices, ParameterSlices

Patch = pytest.MonkeyPatch

WITHIN = 60  # seeds


def test_laws_hold_whatever_happens_to_servers() -> None:
    # 77: asked for θ before the map is there; 249: a replaced server wakes and confirms a report; 284: starts fail, and
    # two kills; 1997: a worker is lost that had not pushed its report again after a takeover
    for seed in (*range(18), 77, 249, 284, 1997):
        run_served(served(seed))


def test_laws_hold_while_servers_join_and_leave() -> None:
    # 764610006: between two folds a slice is taken over, and a worker is lost that has pushed its report before
    for seed in (*range(10), 764610006):
        run_served(scaled(seed))


def test_a_server_that_never_starts_ends_the_job_in_a_sentence() -> None:
    assert run_served(scaled(380055952)).error == "Server 0 could not be started, 5 times in a row."


def test_θ_of_a_slice_leaves_when_all_workers_have_pushed_it_and_not_again_with_the_fold(monkeypatch: Patch) -> None:
    """Push and pull of different slices overlap (003, Section 3.1): a link carries both directions at once."""
    early, with_the_fold = [], []
    pushed, ordered = ParameterServer.hear_worker, ParameterServer.order

    def sent(commands: list[Any]) -> list[ParameterSlices]:
        return [c.body for c in commands if isinstance(c, ToWorker) and isinstance(c.body, ParameterSlices)]

    def hear_worker(self: ParameterServer, *given: Any) -> list[Any]:
        commands = pushed(self, *given)
        early.extend(body for body in sent(commands) if body.early)
        return commands

    def order(self: ParameterServer, body: Any, arrays: Any) -> list[Any]:
        commands = ordered(self, body, arrays)
        with_the_fold.extend(sent(commands) if isinstance(body, FoldSlices) else [])
        return commands

    monkeypatch.setattr(ParameterServer, "hear_worker", hear_worker)
    monkeypatch.setattr(ParameterServer, "order", order)
    job = ServedJob(Scenario(7, servers=2, slices=4, iterations=20))
    job.run()
    assert len(early) == job.scenario.workers * job.care.group.cuts.count * job.scenario.iterations
    assert not with_the_fold


def test_servers_that_join_and_leave_change_no_bit() -> None:
    """`run_served` compares with the same job without servers and faults."""
    changes = tuple(Fault(0.02 * at, servers, "servers") for at, servers in enumerate((3, 1, 2, 3, 1), 1))
    for replicas in (0, 1):
        job = ServedJob(Scenario(7, servers=2, slices=3, replicas=replicas, iterations=40, faults=changes))
        job.run()
        assert [number - FIRST_SERVER for number in job.care.wanted] == [0]
        assert list(job.care._live) == [FIRST_SERVER], "who has left has no process"
        run_served(job.scenario)


def test_θ_is_cut_anew_so_that_each_server_has_a_slice_and_no_bit_changes() -> None:
    changes = Fault(0.02, 3, "servers"), Fault(0.06, 2, "servers")
    job = ServedJob(Scenario(7, servers=1, iterations=40, faults=changes))
    job.run()
    assert job.care.group.cuts.count == 2 and job.care.group.cut_version > 1
    assert job.care.most == 3, "three clusters"
    run_served(job.scenario)
    for victim in range(3):
        for late in (0.001, 0.003, 0.006):
            killed = Fault(0.02 + late, FIRST_SERVER + victim, "killed")
            run_served(Scenario(7, servers=1, iterations=12, faults=(*changes, killed)))


@pytest.mark.parametrize("victim", range(3))
@pytest.mark.parametrize("servers", [1, 3])
def test_a_server_may_be_killed_at_any_time_of_a_move(servers: int, victim: int) -> None:
    for late in (0.0, 0.002, 0.004, 0.01):
        faults = Fault(0.03, servers, "servers"), Fault(0.03 + late, FIRST_SERVER + victim, "killed")
        run_served(Scenario(3, servers=2, slices=3, iterations=12, faults=faults))


# -- the bugs ----------------------------------------------------------------------------------------------


def folds_before_all_have_pushed(patch: Patch) -> None:
    patch.setattr(ReportInbox, "has", lambda self, worker, rounds, number: True)


def adds_in_order_of_arrival(patch: Patch) -> None:
    """A worker's report is added to the slice as soon as it comes, too."""
    plain = ReportInbox.put

    def put(self: Any, worker: int, round_: int, rest: Any, parts: Any) -> None:
        plain(self, worker, round_, rest, {n: [a * 1.0000001 for a in part] for n, part in parts.items()})

    patch.setattr(ReportInbox, "put", put)


def counts_a_round_twice(patch: Patch) -> None:
    """What was folded already is accepted again, and stays for the next fold of another round."""
    plain = SliceState.commit

    def commit(self: Any, workers: Any, changes: Any) -> None:
        plain(self, workers, changes)
        if self.op > 2:
            plain(self, workers[:1], changes[:1])

    patch.setattr(SliceState, "commit", commit)


def uses_early_slices_whatever_is_ordered(patch: Patch) -> None:
    plain = SliceClient._take_slices
    patch.setattr(
        SliceClient, "_take_slices",
        lambda self, body, arrays: plain(self, msgspec.structs.replace(body, early=False), arrays),
    )  # fmt: skip


def gives_an_announced_version_to_another_fold(patch: Patch) -> None:
    def next_version(self: Any) -> None:
        self.version += 1
        self._reserved = self.version

    patch.setattr(ServerGroup, "_next_version", next_version)


def forgets_reports_that_are_not_stable(patch: Patch) -> None:
    plain = SliceClient._take_slices

    def take(self: Any, body: Any, arrays: Any) -> None:
        plain(self, body, arrays)
        for round_ in [r for r in self._kept_reports if r not in self._reports]:
            del self._kept_reports[round_]

    patch.setattr(SliceClient, "_take_slices", take)


def does_not_push_again_after_a_takeover(patch: Patch) -> None:
    plain = SliceClient.use_map

    def use_map(self: Any, fresh: Any) -> Any:
        first = self._map is None
        found = plain(self, fresh)
        for report in self._kept_reports.values() if not first else ():
            report.stored = dict.fromkeys(range(len(fresh.slices)), 0)
        return found if first else []

    patch.setattr(SliceClient, "use_map", use_map)


def mixes_versions_of_slices(patch: Patch) -> None:
    """θ counts as complete with the second message, whatever is missing."""
    plain = SliceClient._take_slices

    def take(self: Any, body: Any, arrays: Any) -> None:
        plain(self, body, arrays)
        if body.version in self._assemblies:
            self._assemblies[body.version].missing.clear()

    patch.setattr(SliceClient, "_take_slices", take)


def takes_an_old_copy_for_a_new_one(patch: Patch) -> None:
    plain = ServerCare._repeat
    patch.setattr(ServerCare, "_repeat", lambda self, to, number, op: plain(self, to, number, op + 1))


def backups_keep_the_first_copy(patch: Patch) -> None:
    plain = ParameterServer._store_replicas

    def store(self: Any, sender: int, body: Any, arrays: Any) -> None:
        kept = dict(self._replicas)
        plain(self, sender, body, arrays)
        for number, copy in kept.items():
            if number in self._replicas:
                copy.op = self._replicas[number].op
                self._replicas[number] = copy

    patch.setattr(ParameterServer, "_store_replicas", store)


def loses_the_totals_of_a_taken_slice(patch: Patch) -> None:
    plain = SliceState.__init__

    def init(self: Any, algorithm: Any, number: int, span: Any, parameter: Any, total: Any, *rest: Any) -> None:
        plain(self, algorithm, number, span, parameter, total, *rest)
        if rest[-1] is None:
            self.ledger.total = type(total)(*[np.zeros_like(a) for a in total])

    patch.setattr(SliceState, "__init__", init)


def serves_a_slice_that_was_given_away(patch: Patch) -> None:
    plain = ParameterServer._new_map

    def new_map(self: Any, fresh: Any) -> None:
        mine = dict(self.slices)
        plain(self, fresh)
        self.slices = {**mine, **self.slices}

    patch.setattr(ParameterServer, "_new_map", new_map)


def tells_the_fold_is_done_too_early(patch: Patch) -> None:
    plain = OpProgress.took

    def took(self: Any, body: Any, arrays: Any) -> bool:
        plain(self, body, arrays)
        return True

    patch.setattr(OpProgress, "took", took)


def keeps_accounts_that_copies_do_not_have(patch: Patch) -> None:
    """After a takeover a lost worker is subtracted from nothing."""
    patch.setattr(ServerGroup, "share", lambda self: None)
    patch.setattr(SliceState, "change", lambda self, kind, owners: "")


def trains_under_the_form_of_θ(patch: Patch) -> None:
    """A new worker does not wait for θ and takes the zeros that stand for it."""
    begin = SliceClient.__init__
    patch.setattr(SliceClient, "__init__", lambda self, parameter, version: begin(self, parameter, max(version, 0)))


def lets_no_further_answer_leave(patch: Patch) -> None:
    """Acknowledgements of the coordinator are ignored: folds of slices behind the first two never end."""
    patch.setattr(PacedAnswers, "seen", lambda self: None)


BUGS: list[Callable[[Patch], None]] = [
    folds_before_all_have_pushed,
    adds_in_order_of_arrival,
    counts_a_round_twice,
    uses_early_slices_whatever_is_ordered,
    gives_an_announced_version_to_another_fold,
    forgets_reports_that_are_not_stable,
    does_not_push_again_after_a_takeover,
    mixes_versions_of_slices,
    takes_an_old_copy_for_a_new_one,
    backups_keep_the_first_copy,
    loses_the_totals_of_a_taken_slice,
    serves_a_slice_that_was_given_away,
    tells_the_fold_is_done_too_early,
    keeps_accounts_that_copies_do_not_have,
    trains_under_the_form_of_θ,
    lets_no_further_answer_leave,
]


@pytest.mark.slow
@pytest.mark.parametrize("plant", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(plant: Callable[[Patch], None], monkeypatch: Patch) -> None:
    plant(monkeypatch)
    for seed in range(WITHIN):
        try:
            run_served(served(seed))
        except (Violation, AssertionError, LookupError, ValueError):
            return
    pytest.fail(f"{WITHIN} seeds did not find it")
