"""Folders with checkpoints of a small simulated job, and disks that fail on purpose."""

from __future__ import annotations

import errno
import os
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core import pytree
from flegel.job import AlgorithmRef, Criteria, Job, SyncSpec
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart
from flegel.machine.coordinator.events import TraceRow
from flegel.messages import TreeLayout
from flegel.runtime.checkpoint.format import CHECKPOINT_FORMAT, JobRecord, StoredJob
from flegel.runtime.checkpoint.store import CheckpointStore, DiskCalls
from flegel.runtime.checkpoint.writer import Checkpointer
from tests.checkpoint.simulated_jobs import Shelf, job

RECORD = JobRecord(
    format=CHECKPOINT_FORMAT, epoch=0,
    job=Job(
        AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {"k": 5}), "points.npy", workers=2, sync=SyncSpec("bsp")
    ),
    submitted_hyper={"k": 5}, class_file=None, fingerprint="f" * 64, dataset={"name": "points.npy"}, scaling=None,
    parameter=TreeLayout("array", ()), statistics=TreeLayout("array", ()), class_sha256="", class_mark="",
)  # fmt: skip


@cache
def history() -> tuple[Shelf, list[TraceRow]]:
    """A job of two workers with a checkpoint at many barriers."""
    shelf = Shelf()
    done = job("bsp", every=1e-6, workers=2, shelf=shelf, criteria=Criteria(max_iterations=14, tolerance=0))
    return shelf, done.trace


def commands(at: int, first: bool) -> tuple[BeginCheckpoint, list[SaveCheckpointPart]]:
    """Checkpoint number `at` of that job, as the coordinator hands it on; numbers of points come with the first."""
    shelf, _ = history()
    save = shelf.saves[at]
    parts = shelf.parts[save.number]
    return save, [
        SaveCheckpointPart(w, p.kept, (p.state, p.halted, p.ids if first else p.ids[:0], *p.pending))
        for w, p in parts.items()
    ]


class Writer:
    """A checkpointer that is waited for."""

    def __init__(self, store: CheckpointStore, found: StoredJob | None = None, record: JobRecord = RECORD) -> None:
        self.writer = Checkpointer(store, record, history()[1], found)
        self._first = True

    def start(self) -> Writer:
        self.writer.start()
        return self

    def write(self, at: int) -> None:
        self._hand_over(at)
        assert self.writer.settle(30)

    def _hand_over(self, at: int) -> None:
        save, parts = commands(at, self._first)
        self._first = False
        for command in (save, *parts):
            self.writer.take(command)

    def write_here(self, at: int) -> None:
        """In this thread, so that a crash is seen."""
        self._hand_over(at)
        work = self.writer.next_checkpoint()
        assert work is not None
        work()

    def commit(self, at: int) -> None:
        self.writer.take(history()[0].commits[at])
        assert self.writer.settle(30)


def check_state(found: StoredJob, at: int) -> None:
    """What was read is checkpoint `at`, whole."""
    shelf, trace = history()
    save = shelf.saves[at]
    assert found.manifest is not None and found.manifest.iteration == save.iteration
    assert found.state == shelf.stored(save)
    assert [vars(r) for r in found.rows] == [vars(r) for r in trace[: save.rows]]
    for mine, other in zip(found.parts, shelf.parts[save.number].values(), strict=True):
        assert mine.kept == other.kept
        assert all(np.array_equal(a, b) for a, b in zip(mine.frames(), other.frames(), strict=True))


def same_parameter(found: StoredJob, at: int) -> bool:
    commit = history()[0].commits[at]
    assert found.commit is not None
    pairs = zip(found.commit.parameter, pytree.flatten(commit.parameter), strict=True)
    return found.commit.iteration == commit.iteration and all(np.array_equal(a, b) for a, b in pairs)


class Crash(BaseException):
    """The process is gone: nothing that follows happens."""


class HastyDisk(DiskCalls):
    """Does not wait for the disk: tests of what is written need not."""

    def sync(self, file: int) -> None:
        pass


class FaultyDisk(HastyDisk):
    """Lets the nth system call fail, with an error or with the death of the process."""

    def __init__(self, nth: int, fault: int | None) -> None:
        self.nth, self.fault = nth, fault
        self.calls = 0
        self.dead = False
        self.hit = ""

    def _count(self, name: str) -> None:
        if self.dead:
            raise Crash
        self.calls += 1
        if self.calls == self.nth:
            self.hit = name
            if self.fault is None:
                self.dead = True
                raise Crash
            raise OSError(self.fault, os.strerror(self.fault))

    def make_folder(self, path: Path) -> None:
        self._count("mkdir")
        super().make_folder(path)

    def open(self, path: Path, flags: int) -> int:
        self._count("open")
        return super().open(path, flags)

    def write(self, file: int, content: Any) -> int:
        if self.fault is None and self.calls + 1 == self.nth:
            super().write(file, content[: len(content) // 2])  # dies in the middle
        self._count("write")
        return super().write(file, content)

    def sync(self, file: int) -> None:
        self._count("fsync")
        super().sync(file)

    def close(self, file: int) -> None:
        os.close(file)  # whatever happens, so that tests do not run out of files
        self._count("close")

    def rename(self, old: Path, new: Path) -> None:
        self._count("rename")
        super().rename(old, new)

    def unlink(self, path: Path) -> None:
        self._count("unlink")
        super().unlink(path)


FAULTS = {"EIO": errno.EIO, "ENOSPC": errno.ENOSPC, "crash": None}


def three(store: CheckpointStore) -> None:
    """Checkpoints 0, 1 and 2, and commits."""
    writer = Writer(store).start()
    for at in range(3):
        writer.write(at)
    writer.commit(0)
    writer.commit(1)
    assert writer.writer.close()
    assert not writer.writer.errors()
