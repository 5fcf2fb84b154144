"""The master machine with lost messages, crashes and killed slaves: no job is lost, none runs twice."""

from __future__ import annotations

from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from simulated_cluster import SimulatedCluster

from flegel.cluster.master.actions import Caller, SendTo
from flegel.cluster.master.facts import CANCELLED, DONE, FAILED, QUEUED, RUNNING
from flegel.cluster.transport.protocol import (
    COORDINATOR,
    Accepted,
    CancelJob,
    Denied,
    ProcessStatus,
    ResumeJob,
    ScaleJob,
    StopAtBarrier,
    SubmitJob,
    SuspendJob,
)
from flegel.cluster.transport.protocol import ClusterJob as Spec
from flegel.configuration.active import active
from flegel.job import AlgorithmRef

slave_names = st.sampled_from(["s0", "s1", "s2"])
crashes = st.none() | st.integers(0, 10_000)
picks = st.integers(0, 10)


class AnyHistory(RuleBasedStateMachine):
    """Whatever happens, in whatever order, the table is right; when the faults stop, all jobs end."""

    def __init__(self) -> None:
        super().__init__()
        self.simulated = SimulatedCluster(slaves=3, slots=2)

    @rule(
        ticket=st.integers(0, 6), workers=st.none() | st.integers(1, 5), owner=st.sampled_from("abc"), crash=crashes,
        priority=st.integers(-1, 1), retries=st.integers(0, 1), threads=st.sampled_from((None, None, 1, 2)),
    )  # fmt: skip
    def submit(
        self,
        ticket: int,
        workers: int | None,
        owner: str,
        crash: int | None,
        priority: int,
        retries: int,
        threads: int | None,
    ) -> None:
        team = workers is None and threads is None and priority == 0
        self.simulated.submit(
            f"ticket-{ticket}", min(workers, 3) if workers and threads else workers, owner, crash,
            priority=priority, retries=retries, threads=threads, team_per_host=team,
        )  # fmt: skip

    @rule(name=slave_names, crash=crashes)
    def beat(self, name: str, crash: int | None) -> None:
        self.simulated.beat(name, crash)

    @rule(count=st.integers(1, 6), lose=st.booleans(), twice=st.booleans())
    def deliver(self, count: int, lose: bool, twice: bool) -> None:
        for _ in range(count):
            self.simulated.deliver(lose, twice)

    @rule(seconds=st.floats(0.01, 10.0), crash=crashes)
    def tick(self, seconds: float, crash: int | None) -> None:
        self.simulated.tick(seconds, crash)

    @rule(name=slave_names, pick=picks)
    def finish(self, name: str, pick: int) -> None:
        self.simulated.finish(name, pick)

    @rule(name=slave_names, pick=picks, fault=st.booleans())
    def kill_process(self, name: str, pick: int, fault: bool) -> None:
        self.simulated.kill_process(name, pick, fault)

    @rule(name=slave_names)
    def kill_slave(self, name: str) -> None:
        self.simulated.kill_slave(name)

    @rule(name=slave_names)
    def start_slave(self, name: str) -> None:
        self.simulated.start_slave(name)

    @rule(name=slave_names)
    def drain(self, name: str) -> None:
        self.simulated.slaves[name].draining = True

    @rule(seconds=st.sampled_from((1.0, 9.0, 20.0, 60.0, 3600.0)))
    def freeze_master(self, seconds: float) -> None:
        self.simulated.freeze_master(seconds)

    @rule(name=slave_names)
    def freeze_or_wake_slave(self, name: str) -> None:
        self.simulated.slaves[name].frozen = not self.simulated.slaves[name].frozen

    @rule()
    def kill_master(self) -> None:
        self.simulated.restart()

    @precondition(lambda self: self.simulated.tickets)
    @rule(pick=picks, crash=crashes)
    def cancel(self, pick: int, crash: int | None) -> None:
        jobs = list(self.simulated.tickets.values())
        self.simulated.cancel(jobs[pick % len(jobs)], crash)

    @precondition(lambda self: self.simulated.tickets)
    @rule(pick=picks)
    def resume(self, pick: int) -> None:
        jobs = list(self.simulated.tickets.values())
        self.simulated.resume(jobs[pick % len(jobs)])

    @invariant()
    def the_table_is_right(self) -> None:
        self.simulated.check()

    def teardown(self) -> None:
        self.simulated.settle()


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(stateful_step_count=40)


# -- single decisions --------------------------------------------------------------------------------------


def settled_cluster(jobs: int = 1, workers: int | None = 2, slots: int = 2, **more: Any) -> SimulatedCluster:
    """So many jobs, submitted and, as far as there is room, running with all their workers."""
    simulated = SimulatedCluster(slaves=2, slots=slots)
    for name in simulated.slaves:
        simulated.beat(name)
    for number in range(jobs):
        simulated.submit(f"ticket-{number}", workers, "ann", **more)
    turn(simulated)
    return simulated


def turn(simulated: SimulatedCluster, times: int = 4) -> None:
    for _ in range(times):
        for name in simulated.slaves:
            simulated.beat(name)
        while simulated.wire:
            simulated.deliver()
        simulated.tick(0.5)


def states(simulated: SimulatedCluster) -> list[str]:
    return [job.state for job in simulated.master.table.jobs.values()]


def test_jobs_that_do_not_fit_wait_and_say_for_what() -> None:
    simulated = settled_cluster(jobs=3)
    assert states(simulated) == [RUNNING, RUNNING, QUEUED]
    waiting = simulated.master.view(list(simulated.master.table.jobs.values())[2])
    assert waiting.reason == "waits for 2 free slots; 0 of 4 are free"
    for name in simulated.slaves:
        simulated.finish(name, 0)
    turn(simulated)
    assert states(simulated).count(RUNNING) == 1 and states(simulated).count(DONE) == 2


def test_a_job_too_large_for_the_cluster_says_so_and_lets_others_pass() -> None:
    simulated = settled_cluster(jobs=1, workers=9)
    simulated.submit("ticket-9", 1, "bob")
    turn(simulated)
    assert states(simulated) == [QUEUED, RUNNING]
    assert "needs 9 slots, but the cluster has 4" in simulated.master.view(simulated.master.find("kmeans-1")).reason


def test_priority_goes_first_and_users_take_turns() -> None:
    simulated = settled_cluster(jobs=1, workers=4)
    for number in range(3):
        simulated.submit(f"ann-ticket-{number}", 4, "ann")
    simulated.submit("bob-ticket", 4, "bob")
    simulated.submit("low-ticket", 4, "cyd", priority=-5)
    simulated.submit("top-ticket", 4, "ann", priority=5)
    order = []
    for _ in range(7):
        running = [j for j in simulated.master.table.jobs.values() if j.state == RUNNING]
        order += [j.ticket for j in running if j.ticket not in order]
        for name in simulated.slaves:
            simulated.finish(name, 0)
        turn(simulated)
    assert order == [
        "ticket-0", "top-ticket", "bob-ticket", "ann-ticket-0", "ann-ticket-1", "ann-ticket-2", "low-ticket",
    ]  # fmt: skip


def test_a_master_that_was_killed_finds_running_jobs_as_they_are() -> None:
    simulated = settled_cluster(jobs=2)
    before = {name: set(slave.living()) for name, slave in simulated.slaves.items()}
    simulated.restart()
    turn(simulated, times=8)
    assert {name: set(slave.living()) for name, slave in simulated.slaves.items()} == before, (
        "nothing ended, nothing new"
    )
    assert states(simulated) == [RUNNING, RUNNING]
    assert all(j.attempt == 1 for j in simulated.master.table.jobs.values())


def test_a_killed_slave_costs_its_jobs_an_attempt_and_the_others_nothing() -> None:
    simulated = settled_cluster(jobs=2)
    victim = next(n for n, s in simulated.slaves.items() if any(p[2] == -1 for p in s.living()))
    simulated.kill_slave(victim)
    simulated.tick(active().cluster.slave_silence_seconds + 1)
    lost = [j for j in simulated.master.table.jobs.values() if j.attempt == 1 and j.state == QUEUED]
    assert lost and all("is lost" in j.why for j in lost)
    simulated.start_slave(victim)
    simulated.settle()
    assert set(states(simulated)) == {DONE}


def test_code_that_crashes_fails_at_once_unless_it_is_to_be_tried_again() -> None:
    for retries, attempts in ((0, 1), (2, 3)):
        simulated = settled_cluster(jobs=1, retries=retries)
        for _ in range(5):
            for slave in simulated.slaves.values():
                for name in slave.living():
                    if name[2] == -1:
                        slave.end(name, "lost", "was killed by SIGSEGV", fault=True)
            turn(simulated)
        job = simulated.master.find("kmeans-1")
        assert (job.state, job.attempt) == (FAILED, attempts)
        assert "SIGSEGV" in job.why


def test_a_job_whose_coordinator_is_killed_by_others_is_started_again_a_few_times() -> None:
    simulated = settled_cluster(jobs=1)
    for _ in range(8):
        for slave in simulated.slaves.values():
            for name in slave.living():
                if name[2] == -1:
                    slave.end(name, "lost", "was killed by SIGKILL")
        turn(simulated)
    job = simulated.master.find("kmeans-1")
    assert (job.state, job.attempt) == (FAILED, 4)


def given_threads(simulated: SimulatedCluster) -> dict[str, list[int]]:
    """By slave the threads of its workers."""
    return {
        name: sorted(slave.threads[process] for process in slave.living() if process[2] != COORDINATOR)
        for name, slave in simulated.slaves.items()
    }


def test_a_job_without_numbers_has_one_team_on_each_slave_with_all_its_slots() -> None:
    simulated = settled_cluster(workers=None, slots=4, team_per_host=True)
    assert given_threads(simulated) == {"s0": [4], "s1": [4]}
    assert simulated.master.view(simulated.master.find("kmeans-1")).workers == 2
    simulated.settle()
    assert set(states(simulated)) == {DONE}


def test_the_largest_team_is_the_first_worker_so_that_rows_go_by_threads() -> None:
    simulated = SimulatedCluster(slaves=3, slots=2)
    simulated.slaves["s1"].slots, simulated.slaves["s2"].slots = 7, 4
    for name in simulated.slaves:
        simulated.beat(name)
    simulated.submit("ticket-0", None, "ann", team_per_host=True)
    turn(simulated)
    job = simulated.master.table.jobs["kmeans-1"]
    threads = {key[2]: slave.threads[key] for slave in simulated.slaves.values() for key in slave.threads}
    assert job.team_threads == (7, 4, 2)
    assert [threads[worker] for worker in range(3)] == [7, 4, 2]


def test_a_team_that_is_lost_with_its_slave_comes_back_with_it() -> None:
    simulated = settled_cluster(workers=None, slots=4, team_per_host=True)
    other = next(name for name in simulated.slaves if name != simulated.master.find("kmeans-1").slave)
    simulated.kill_slave(other)
    simulated.tick(active().cluster.slave_silence_seconds + 1)
    turn(simulated)
    assert simulated.master.find("kmeans-1").state == RUNNING and given_threads(simulated)[other] == []
    simulated.start_slave(other)
    turn(simulated)
    assert given_threads(simulated) == {"s0": [4], "s1": [4]}
    simulated.settle()
    assert set(states(simulated)) == {DONE}


def test_threads_that_were_asked_for_take_a_slot_each() -> None:
    simulated = settled_cluster(jobs=2, workers=2, slots=4, threads=2)
    assert given_threads(simulated) == {"s0": [2, 2], "s1": [2, 2]} and states(simulated) == [RUNNING, RUNNING]
    assert all(slave.slots_in_use() == slave.slots for slave in simulated.slaves.values())
    simulated.submit("ticket-more", 1, "bob", threads=3)
    turn(simulated)
    waiting = simulated.master.view(list(simulated.master.table.jobs.values())[2])
    assert waiting.reason == "waits for 3 free slots, 3 of one slave for each worker; 0 of 8 are free"


def test_a_job_of_teams_is_scaled_by_hosts() -> None:
    simulated = settled_cluster(workers=None, slots=4, team_per_host=True)
    job = simulated.master.table.jobs["kmeans-1"]
    slave = simulated.slaves[job.slave]
    key = ("kmeans-1", job.attempt)
    slave.coordinators[key] = msgspec.structs.replace(slave.coordinators[key], elastic=True)
    turn(simulated)

    def ask(workers: int) -> Any:
        return simulated.do(
            simulated.master.request_received(Caller("ann"), ScaleJob("kmeans-1", workers), simulated.now)
        )

    denied = ask(3)
    assert isinstance(denied, Denied) and "free slots of 1 slave more" in denied.text
    assert isinstance(ask(1), Accepted)
    leaving = next(p for n, s in simulated.slaves.items() if n != job.slave for p in s.living())
    slave.coordinators[key] = msgspec.structs.replace(slave.coordinators[key], wanted={1 - leaving[2]: 0})
    turn(simulated)
    assert job.slots == {job.slave: 4} and given_threads(simulated)[job.slave] == [4]


def test_only_the_owner_cancels() -> None:
    simulated = settled_cluster(jobs=1)
    denied = simulated.do(simulated.master.request_received(Caller("bob"), CancelJob("kmeans-1"), simulated.now))
    assert isinstance(denied, Denied) and "belongs to ann" in denied.text
    allowed = simulated.do(simulated.master.request_received(Caller("ann"), CancelJob("kmeans-1"), simulated.now))
    assert isinstance(allowed, Accepted)
    turn(simulated)
    assert states(simulated) == [CANCELLED]
    assert not any(s.living() for s in simulated.slaves.values())


def test_a_suspended_job_is_told_to_stop_at_a_barrier_and_can_be_resumed() -> None:
    simulated = settled_cluster(jobs=1)
    job = simulated.master.table.jobs["kmeans-1"]
    slave = simulated.slaves[job.slave]
    key = ("kmeans-1", job.attempt)
    slave.coordinators[key] = msgspec.structs.replace(slave.coordinators[key], elastic=True)
    turn(simulated)
    answers = simulated.master.request_received(Caller("ann"), SuspendJob("kmeans-1"), simulated.now)
    assert StopAtBarrier("kmeans-1", job.attempt) in [each.order for each in answers if isinstance(each, SendTo)]
    name = ("kmeans-1", job.attempt, COORDINATOR, 0)
    slave.processes[name] = ProcessStatus(*name, alive=False, outcome="suspended", why="its checkpoint is of 7")
    turn(simulated)
    assert job.state == CANCELLED and job.why == "its checkpoint is of 7"
    again = simulated.master.request_received(Caller("ann"), ResumeJob("kmeans-1"), simulated.now)
    assert isinstance(simulated.do(again), Accepted) and job.state == RUNNING and job.attempt == 2


def test_bad_requests_get_a_sentence() -> None:
    simulated = settled_cluster(jobs=1)
    spec = Spec(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {}), "blobs")
    for request, words in [
        (CancelJob("kmeans-7"), "There is no job 'kmeans-7'; did you mean 'kmeans-1'?"),
        (SubmitJob("ticket-x1", Spec(spec.algorithm, "d", name="../etc")), "no name for a job"),
        (SubmitJob("ticket-x2", Spec(spec.algorithm, "d", name="kmeans-1")), "There is a job kmeans-1 already"),
        (SubmitJob("ticket-x3", Spec(spec.algorithm, "d", workers=0)), "--workers 0 must be 1 to 1024"),
        (SubmitJob("short", spec), "A ticket has 8 to 128 characters"),
        (ScaleJob("kmeans-1", 0), "1 to 1024 workers"),
        (ScaleJob("kmeans-1"), "Give a number of workers, --servers N, or both."),
        (ScaleJob("kmeans-1", servers=2), "This job has no parameter servers; start it with"),
    ]:
        answer = simulated.do(simulated.master.request_received(Caller("ann"), request, simulated.now))
        assert isinstance(answer, Denied) and words in answer.text, answer
