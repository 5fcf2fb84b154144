"""Where processes go and whose turn it is; names that cannot leave their folders; sizes in words."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.cluster.master.facts import RUNNING, JobEntry
from flegel.cluster.master.placement import SlaveCapacity, allocate, place, queue_order
from flegel.cluster.master.views import job_view
from flegel.cluster.master.worker_size import WorkerSize
from flegel.cluster.transport.protocol import ClusterJob, CoordinatorStatus, check_name
from flegel.errors import UsageError
from flegel.job import AlgorithmRef
from flegel.options import parse_bytes

capacities = st.lists(
    st.builds(
        lambda number, slots, used, load: SlaveCapacity(f"s{number}", slots, max(slots - used, 0), load),
        st.integers(0, 30), st.integers(1, 8), st.integers(0, 8), st.floats(0, 4),
    ),
    max_size=6,
    unique_by=lambda slave: slave.name,
)  # fmt: skip


def job(
    name: str, owner: str = "ann", workers: int | None = 1, priority: int = 0, at: float = 0.0, **more: Any
) -> JobEntry:
    spec = ClusterJob(AlgorithmRef("X", {}), "blobs", workers=workers, priority=priority, **more)
    return JobEntry(name, f"ticket-{name}", owner, spec, at)


@given(capacities, st.integers(1, 20))
def test_slots_are_all_found_or_none_and_never_too_many(found: list[SlaveCapacity], workers: int) -> None:
    slots = allocate(workers, found)
    if slots is None:
        assert sum(slave.free for slave in found) < workers
    else:
        assert sum(slots.values()) == workers
        assert all(slots.get(slave.name, 0) <= slave.free for slave in found)


@given(capacities, st.none() | st.integers(1, 20))
def test_a_job_is_placed_or_says_what_it_waits_for(found: list[SlaveCapacity], workers: int | None) -> None:
    answer = place(job("a", workers=workers), found, 2)
    assert (answer.slots is None) == bool(answer.why)
    if answer.slots is not None:
        assert answer.slave in answer.slots, "the coordinator is where some of its workers are"


@given(capacities, st.integers(1, 20), st.integers(1, 6))
def test_a_worker_of_several_threads_has_all_its_slots_on_one_slave(
    found: list[SlaveCapacity], workers: int, threads: int
) -> None:
    size = WorkerSize(threads)
    slots = allocate(workers, found, size=size)
    if slots is None:
        assert sum(slave.free // threads for slave in found) < workers
        slots = allocate(workers, found, size=size, partly=True) or {}
        assert size.workers_of(slots) == sum(slave.free // threads for slave in found)
    else:
        assert size.workers_of(slots) == workers
    assert all(count % threads == 0 for count in slots.values())


def test_threads_take_slots() -> None:
    slaves = [SlaveCapacity(name, 8, 8, 0.0) for name in ("a", "b")]
    assert place(job("j", workers=3, threads=4), slaves, 1).slots == {"a": 8, "b": 4}
    assert place(job("j", workers=None, threads=4), slaves, 1).slots == {"a": 8, "b": 8}
    assert "needs 5 slots of one slave for each of 3" in place(job("j", workers=3, threads=5), slaves, 1).why


def test_a_job_without_numbers_is_a_team_on_each_host() -> None:
    slaves = [SlaveCapacity("large", 8, 8, 0.0), SlaveCapacity("small", 4, 4, 0.0), SlaveCapacity("used", 8, 2, 0.0)]
    team = job("j", workers=None, team_per_host=True)
    assert place(team, slaves, 1).slots == {"large": 8, "small": 4, "used": 2}
    assert place(team, slaves, 2).slots == {"large": 8, "small": 2}, "an even part, on as few hosts as possible"
    team.slots = {"large": 8, "small": 4}
    assert (team.places, team.threads_on("large"), team.threads_on("small")) == (2, 8, 4)
    assert team.team_threads == (8, 4) and job("j", workers=3).team_threads == ()
    assert place(team, [SlaveCapacity("full", 8, 0, 0.0)], 1).why == "waits for free slots of 1 slave; 0 of 8 are free"


def test_workers_avoid_hosts_that_others_use() -> None:
    busy, idle = SlaveCapacity("busy", 4, 4, load=2.0), SlaveCapacity("idle", 4, 4, load=0.0)
    assert allocate(3, [busy, idle]) == {"idle": 3}
    assert allocate(6, [busy, idle]) == {"idle": 4, "busy": 2}


def test_large_and_small_slaves_are_filled_evenly() -> None:
    assert allocate(6, [SlaveCapacity("large", 8, 8, 0.0), SlaveCapacity("small", 4, 4, 0.0)]) == {
        "large": 4,
        "small": 2,
    }


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1), st.integers(1, 4)), max_size=12))
def test_the_queue_names_every_waiting_job_once_and_keep_priorities(asked: list[tuple[str, int, int]]) -> None:
    waiting = [job(f"j{n}", owner, workers, priority, float(n)) for n, (owner, priority, workers) in enumerate(asked)]
    order = list(queue_order(waiting, [], {}))
    assert sorted(j.id for j in order) == sorted(j.id for j in waiting)
    priorities = [j.spec.priority for j in order]
    assert priorities == sorted(priorities, reverse=True)


def test_who_holds_fewer_slots_is_next() -> None:
    running = job("r", "ann")
    running.slots = {"s0": 2}
    assert [j.owner for j in queue_order([job("a", "ann"), job("b", "bob", at=9.0)], [running], {})] == ["bob", "ann"]


@given(st.text(max_size=80))
def test_a_name_that_is_let_through_stays_in_its_folder(name: str) -> None:
    try:
        check_name(name, "job")
    except UsageError:
        return
    assert "/" not in name and "\0" not in name and ".." not in name and not name.startswith(".") and name.isascii()


@pytest.mark.parametrize(
    ("text", "value"), [("2G", 2 << 30), ("512M", 512 << 20), ("1.5GiB", 3 << 29), ("100000000", 100_000_000)]
)
def test_sizes_in_words(text: str, value: int) -> None:
    assert parse_bytes(text) == value


@pytest.mark.parametrize("text", ["", "G", "2 apples", "1K", "-3G", "nan", "inf"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no limit of memory"):
        parse_bytes(text)


def test_the_status_of_a_job_says_what_it_waits_for() -> None:
    entry, why = job("j"), "waits for 1 more group of 2"
    entry.state = RUNNING
    status = CoordinatorStatus("j", 1, phase="resting", snapshot={"waits_for": why})
    assert job_view(entry, status, "").reason == f"resting; {why}"
    assert job_view(entry, CoordinatorStatus("j", 1, phase="training"), "").reason == "training"


@pytest.mark.parametrize("seen", [{"servers": {"wanted": 2}}, {}])
def test_the_status_of_a_job_counts_no_parameter_server_as_a_worker(seen: dict[str, Any]) -> None:
    entry = job("j")
    entry.state, entry.slots, entry.servers = RUNNING, {"here": 3, "there": 2}, 2
    assert job_view(entry, CoordinatorStatus("j", 1, phase="training", snapshot=seen), "").workers == 3
    entry.servers = None
    assert job_view(entry, CoordinatorStatus("j", 1, phase="training"), "").workers == 5
