"""A slave that chooses its group: it follows loads and ways, hands over before it moves, and never leaves one empty."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flegel.cluster.group_slave import GroupSlave, round_trip
from flegel.cluster.transport.protocol import JobView, SlaveView
from flegel.errors import FlegelError
from flegel.machine.group.records import MEMBERS, MemberBeat, encode
from flegel.runtime import clock
from flegel.runtime.group.bucket import FolderBucket
from flegel.runtime.group.keys import PlainObjects


class PretendedProcess:
    """A slave process that ends when it is asked to."""

    def __init__(self, master: PretendedMaster) -> None:
        self._master, self.returncode = master, None
        master.slots["roam"] = 1

    returncode: int | None

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.returncode = 0
        del self._master.slots["roam"]

    def wait(self) -> int | None:
        return self.returncode


class PretendedMaster:
    """Slots by slave, and one job."""

    def __init__(self, workers: int) -> None:
        self.slots, self.workers = {f"own{i}": 1 for i in range(workers)}, workers
        self.loading = False
        self.socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self.socket.getsockname()[1]}"

    def jobs(self) -> tuple[JobView, ...]:
        return (JobView("kmeans-1", "me", "running", "kmeans", "rows", 0, self.workers, 0.0),)

    def slaves(self) -> tuple[SlaveView, ...]:
        return tuple(SlaveView(name, "here", n, n, 0.0, 1, "here") for name, n in self.slots.items())

    def scale(self, name: str, workers: int) -> str:
        if self.loading:
            raise FlegelError(f"Job {name} is loading; try again when it trains.")
        self.workers = workers
        return "is scaled"


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    masters = {"paris": PretendedMaster(4), "lyon": PretendedMaster(1)}
    by_address = {master.address: master for master in masters.values()}
    bucket, now = FolderBucket(tmp_path), [100.0]
    monkeypatch.setattr(clock, "now", lambda: now[0])
    monkeypatch.setattr("flegel.cluster.group_slave.round_trip", lambda address: 0.01)

    def beats() -> None:
        now[0] += 15.0
        for name, master in masters.items():
            beat = MemberBeat(name, 1, int(now[0]), "training", 1, workers=master.workers, load=float(master.workers))
            bucket.put(MEMBERS + name, PlainObjects().seal(MEMBERS + name, encode(beat)))

    slave = GroupSlave(
        {name: master.address for name, master in masters.items()}, bucket, PlainObjects(), "roam", 1,
        lambda address: PretendedProcess(by_address[address]),  # type: ignore[arg-type,return-value]
        lambda address: contextlib.nullcontext(by_address[address]),
    )  # fmt: skip
    yield slave, masters, beats
    for master in masters.values():
        master.socket.close()


def test_it_moves_to_the_lighter_group_once_and_both_jobs_follow(groups: Any) -> None:
    slave, masters, beats = groups
    slave.begin("paris")
    assert masters["paris"].workers == 5
    for _ in range(40):
        beats()
        slave.look()
    assert [(a, b) for a, b, _ in slave.moves] == [("paris", "lyon")]
    assert (masters["paris"].workers, masters["lyon"].workers) == (4, 2)


def test_a_job_that_was_loading_when_it_came_gets_its_slots_at_the_next_look(groups: Any) -> None:
    slave, masters, beats = groups
    masters["lyon"].workers = 20  # so that it stays
    masters["paris"].loading = True
    slave.begin("paris")
    beats()
    slave.look()
    assert masters["paris"].workers == 4
    masters["paris"].loading = False
    slave.look()
    assert masters["paris"].workers == 5
    masters["paris"].workers = 2  # a user scales the job down
    slave.look()
    assert masters["paris"].workers == 2, "its slots are offered once"


def test_another_group_above_the_largest_load_is_not_considered(groups: Any) -> None:
    slave, _, beats = groups
    slave._largest_load = 1.0  # that of lyon
    slave.begin("paris")
    beats()
    assert set(slave.seen()) == {"paris"} and "no group is" in slave.look() and slave.group == "paris"
    slave._largest_load = 1.5
    beats()
    assert set(slave.seen()) == {"paris", "lyon"}


def test_it_looks_after_each_update_of_its_group(groups: Any) -> None:
    slave, _, _ = groups
    slave.begin("paris")

    def says(beat: int, commits: int) -> None:
        content = encode(MemberBeat("paris", 1, beat, "training", 1, commits=commits, workers=4, load=4.0))
        slave._bucket.put(MEMBERS + "paris", PlainObjects().seal(MEMBERS + "paris", content))

    asked = []
    for beat, commits in ((1, 5), (2, 5), (3, 6), (4, 6)):
        says(beat, commits)
        asked.append(slave.updated())
    assert asked == [True, False, True, False]


def test_the_last_worker_of_a_group_stays(groups: Any) -> None:
    slave, masters, beats = groups
    masters["lyon"].slots.clear()
    slave.begin("lyon")
    masters["paris"].workers = 0
    beats()
    assert "no other workers" in slave.look() and slave.group == "lyon"


def test_a_group_that_is_silent_is_left(groups: Any) -> None:
    slave, _, beats = groups
    slave.begin("lyon")
    beats()
    slave.look()
    (Path(slave._bucket.place) / MEMBERS / "lyon").unlink()
    for _ in range(8):
        beats()
        silent = PlainObjects().seal(MEMBERS + "lyon", encode(MemberBeat("lyon", 1, 1, "training", 1)))
        (Path(slave._bucket.place) / MEMBERS / "lyon").write_bytes(silent)
        slave.look()
    assert slave.group == "paris"


def test_ways_are_measured_by_connections() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        found = round_trip(f"tcp://127.0.0.1:{server.getsockname()[1]}")
    assert found is not None and found > 0
    assert round_trip("tcp://127.0.0.1:1") is None
