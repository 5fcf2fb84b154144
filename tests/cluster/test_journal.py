"""The journal: what was acknowledged is there after any crash, torn tails are removed, damage is reported."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from simulated_cluster import SimulatedCluster

from flegel.cluster.master import journal as journals
from flegel.cluster.master.facts import Ended, JobTable, Placed, Submitted
from flegel.cluster.master.journal import JOURNAL_HEADER, Journal, frame, read
from flegel.cluster.transport.protocol import ClusterJob
from flegel.errors import StorageError, UsageError
from flegel.job import AlgorithmRef


def submitted(number: int) -> Submitted:
    spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {"k": number}), "blobs")
    return Submitted(f"job-{number}", float(number), f"ticket-{number}", "ann", spec)


def write(journal: Journal, *facts: Submitted | Placed | Ended) -> None:
    for fact in facts:
        journal.table.apply(fact)
    journal.append(facts)


def reopened(path: Path) -> JobTable:
    journal = Journal(path)
    journal.close()
    return journal.table


def test_facts_come_back_in_order(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    write(journal, submitted(1), submitted(2))
    write(journal, Placed("job-1", 5.0, 1, "s0", "boot", {"s0": 2}))
    write(journal, Ended("job-1", 9.0, 1, "done", "converged"))
    journal.close()
    table = reopened(tmp_path / "journal")
    assert table == journal.table
    assert [(j.id, j.state) for j in table.jobs.values()] == [("job-1", "done"), ("job-2", "queued")]


def history() -> tuple[bytes, list[int]]:
    """The bytes of a busy journal, and where each record begins."""
    simulated = SimulatedCluster(slaves=2, slots=2)
    for number in range(4):
        simulated.submit(f"ticket-{number}", 2, "ann")
    simulated.settle()
    content, offsets = simulated.disk, []
    offset = len(JOURNAL_HEADER)
    while offset < len(content):
        offsets.append(offset)
        offset = journals._next(content, offset)[1]
    return content, offsets


CONTENT, OFFSETS = history()


@given(st.integers(0, len(CONTENT)))
def test_a_crash_after_any_byte_keeps_every_whole_record(cut: int) -> None:
    table, good = read(CONTENT[:cut])
    whole = [p for p in [*OFFSETS, len(CONTENT)] if p <= cut]
    assert good == (whole[-1] if whole else 0)
    assert table == read(CONTENT[:good])[0]


@given(st.integers(0, len(CONTENT) - 1), st.integers(1, 255))
def test_a_flipped_byte_is_found(place: int, change: int) -> None:
    damaged = CONTENT[:place] + bytes([CONTENT[place] ^ change]) + CONTENT[place + 1 :]
    try:
        _, good = read(damaged)
    except StorageError:
        return
    assert good <= place, "a record that was damaged does not count"


def test_a_torn_tail_is_cut_and_the_next_record_follows_it(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    write(journal, submitted(1))
    journal.close()
    whole = path.read_bytes()
    path.write_bytes(whole + frame(submitted(2))[:-3])
    again = Journal(path)
    assert again.cut and list(again.table.jobs) == ["job-1"]
    write(again, submitted(3))
    again.close()
    assert list(reopened(path).jobs) == ["job-1", "job-3"]


def test_damage_in_the_middle_is_refused_with_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(JOURNAL_HEADER + frame(submitted(1))[:-1] + b"?" + frame(submitted(2)))
    with pytest.raises(StorageError, match=r"damaged at byte .* Restore it from a copy"):
        Journal(path)
    path.write_bytes(b"something else entirely")
    with pytest.raises(StorageError, match="no journal"):
        Journal(path)


def test_compaction_changes_nothing_but_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journals, "COMPACT_ABOVE_BYTES", 2000)
    journal = Journal(tmp_path / "journal")
    sizes = []
    write(journal, submitted(1), submitted(2))
    for number in range(60):
        write(journal, Placed("job-1", float(number), number, "s0", "boot", {"s0": 2}))
        sizes.append((tmp_path / "journal").stat().st_size)
    journal.close()
    assert any(later < earlier for earlier, later in itertools.pairwise(sizes)), "it was compacted"
    assert reopened(tmp_path / "journal") == journal.table
    assert sorted(p.name for p in tmp_path.iterdir()) == ["journal", "journal.lock"]


def test_a_journal_of_an_older_version_says_what_to_do(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(b"flegel journal 1\n" + frame(submitted(1)))
    with pytest.raises(StorageError, match=r"has format 1, .* reads format 2 only; finish its jobs with the version"):
        Journal(path)
    assert path.read_bytes().startswith(b"flegel journal 1\n"), "it is left as it was"


def test_two_masters_cannot_share_a_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    with pytest.raises(UsageError, match="Another master uses"):
        Journal(tmp_path / "journal")
    journal.close()
    reopened(tmp_path / "journal")


@pytest.mark.parametrize("failing", ["pwrite", "fsync"])
def test_a_write_that_fails_is_never_acknowledged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    journal = Journal(tmp_path / "journal")
    write(journal, submitted(1))

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, failing, full)
    with pytest.raises(StorageError, match="No space left"):
        write(journal, submitted(2))
    monkeypatch.undo()
    with pytest.raises(StorageError, match="must be started again"):
        write(journal, submitted(3))
    journal.close()
    assert "job-1" in reopened(tmp_path / "journal").jobs
    assert "job-3" not in reopened(tmp_path / "journal").jobs
