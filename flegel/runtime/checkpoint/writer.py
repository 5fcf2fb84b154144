"""Checkpoints, written in the background: training never waits for the disk. `format.py` says what they look like.

Whatever goes wrong while writing, the older checkpoint stays, training goes on, and the error is reported. Decides
neither when a checkpoint is made nor what belongs to it: that is the coordinator's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.errors import UNDECODABLE, StorageError
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.plain_data import freeze, pack
from flegel.runtime import clock
from flegel.runtime.checkpoint.format import (
    CHECKPOINT_FILE,
    CHECKPOINT_FORMAT,
    KEPT_CHECKPOINTS,
    CheckpointManifest,
    FileEntry,
    JobRecord,
    StoredJob,
    digest,
    header_of,
    part_content,
    seal,
    stem,
    unseal,
)
from flegel.runtime.checkpoint.store import Buffer, CheckpointStore
from flegel.wording import option


@dataclass
class PendingCheckpoint:
    """A checkpoint whose parts are coming in."""

    save: BeginCheckpoint
    parts: dict[int, tuple[SaveCheckpointPart, Array]] = field(default_factory=dict)
    """With the numbers of its points."""

    @property
    def whole(self) -> bool:
        return len(self.parts) == len(self.save.workers)


class CoordinatorReplaced(Exception):
    """Another coordinator has taken this job over."""


class Checkpointer:
    """Call `take` with the machine's commands; two threads of its own write. `errors` tells what went wrong."""

    def __init__(
        self, store: CheckpointStore, record: JobRecord, rows: list[TraceRow], stored: StoredJob | None = None
    ) -> None:
        """Start the threads that write checkpoints and commits. `rows`: of the trace; `stored`: the checkpoint from
        which the job continues."""
        self.store, self.record = store, record
        self.written: CheckpointManifest | None = stored.manifest if stored else None
        """The newest checkpoint that is complete."""
        self._rows = rows
        """The live trace; lines are only ever added."""
        self._history: list[CheckpointManifest] = list(stored.history) if stored else []
        self._trace_pieces: list[tuple[str, FileEntry]] = []
        self._rows_written = 0
        if stored and stored.manifest and stored.whole_trace:
            self._trace_pieces = [(name, stored.manifest.files[name]) for name in stored.manifest.trace]
            self._rows_written = len(stored.rows)
        self._ids: dict[int, Array] = {}
        """By worker: the rows that it owns, as it told them last."""
        self._pending: dict[int, PendingCheckpoint] = {}
        """By number: checkpoints that parts of some workers are missing from."""
        self._ready: PendingCheckpoint | None = None
        """The last checkpoint that is whole and that no thread has begun to write."""
        self._commit: SaveCommit | None = None
        """The last commit that no thread has begun to write."""
        self._next_slot = 0
        self._closing = self._another_writes = self._skipped_one = False
        """No more commands will come; another coordinator writes to this place now, and this one must not; it was
        reported that checkpoints are left out."""
        self._errors: list[str] = []
        self._work_changed = threading.Condition()
        self._files_under_way = 0
        self._threads = [
            threading.Thread(target=self._loop, args=(work,), name=name, daemon=True)
            for work, name in ((self.next_checkpoint, "checkpoints"), (self._next_commit, "commits"))
        ]

    def start(self) -> None:
        """Raises `OSError` where not even the job's description can be written."""
        self.store.put("job", [seal(msgspec.json.format(msgspec.json.encode(self.record)))])
        for thread in self._threads:
            thread.start()

    def take(self, command: BeginCheckpoint | SaveCheckpointPart | SaveCommit) -> None:
        """Called from the coordinator's loop; returns at once."""
        with self._work_changed:
            if self._another_writes:
                return
            match command:
                case BeginCheckpoint(number=number):
                    self._pending = {number: PendingCheckpoint(command)}
                case SaveCheckpointPart():
                    self._add(command)
                case SaveCommit():
                    self._commit = command
            self._work_changed.notify_all()

    def _add(self, part: SaveCheckpointPart) -> None:
        """A worker's part of the checkpoint under way; numbers of points that did not change are the last ones."""
        ids = part.arrays[2]
        if len(ids):
            self._ids[part.worker] = ids.astype(np.uint32 if ids.max() < 1 << 32 else np.uint64)
        pending = self._pending.get(part.kept.number)
        if pending is None:
            return
        pending.parts[part.worker] = (part, self._ids.get(part.worker, ids))
        if pending.whole:
            del self._pending[part.kept.number]
            if self._ready is not None and not self._skipped_one:
                self._skipped_one = True
                self._errors.append(
                    f"some checkpoints are left out: writing takes longer than {option('checkpoint_every')}"
                )
            self._ready = pending

    def errors(self) -> list[str]:
        """What went wrong since the last question."""
        with self._work_changed:
            told, self._errors = self._errors, []
        return told

    def settle(self, timeout: float = 60.0) -> bool:
        """Wait until everything that is whole has been tried; False where that took too long."""
        with self._work_changed:
            return self._work_changed.wait_for(
                lambda: not (self._ready or self._commit or self._files_under_way), timeout
            )

    def close(self, timeout: float = 60.0) -> bool:
        """Finish what is whole, end the threads; False where that took too long."""
        deadline = clock.now() + timeout
        idle = self.settle(timeout)
        with self._work_changed:
            self._closing = True
            self._work_changed.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - clock.now(), 0.1))
        return idle

    # -- in the background ---------------------------------------------------------------------------------

    def _loop(self, choose: Callable[[], Callable[[], None] | None]) -> None:
        """Thread: carries out what `choose` returns, until closed. Errors are told by `errors` and end nothing."""
        while True:
            with self._work_changed:
                work = choose()
                while work is None:
                    if self._closing:
                        return
                    self._work_changed.wait()
                    work = choose()
                self._files_under_way += 1
            try:
                work()
            except CoordinatorReplaced:
                self._stop_writing()
            except OSError as error:
                self._report(f"a checkpoint could not be written to {self.store.place} ({error.strerror or error})")
            finally:
                with self._work_changed:
                    self._files_under_way -= 1
                    self._work_changed.notify_all()

    def next_checkpoint(self) -> Callable[[], None] | None:
        """What writes the checkpoint that is whole; None: there is none. A thread asks, once `start` was called."""
        pending, self._ready = self._ready, None
        return None if pending is None or self._another_writes else lambda: self._write(pending)

    def _next_commit(self) -> Callable[[], None] | None:
        commit, self._commit = self._commit, None
        return None if commit is None or self._another_writes else lambda: self._write_commit(commit)

    def _report(self, text: str) -> None:
        older = (
            f"the last complete one is of iteration {self.written.iteration}" if self.written else "there is none yet"
        )
        with self._work_changed:
            self._errors.append(f"{text}; training goes on, and {older}")

    def _stop_writing(self) -> None:
        with self._work_changed:
            if not self._another_writes:
                self._errors.append(f"another coordinator has taken over {self.store.place}; nothing more is written")
            self._another_writes = True

    def _check_epoch(self) -> None:
        try:
            now = header_of(unseal(self.store.get("job"))).epoch
        except (OSError, StorageError, *UNDECODABLE):
            return  # unreadable is not replaced
        if now > self.record.epoch:
            raise CoordinatorReplaced

    def _write(self, pending: PendingCheckpoint) -> None:
        """All files first, the manifest last: without it none of them counts. Then old checkpoints are removed."""
        self._check_epoch()
        save, mark = pending.save, stem(pending.save.number, self.record.epoch)
        files: dict[str, FileEntry] = {}

        def put(name: str, content: list[Buffer]) -> str:
            files[name] = digest(content)
            self.store.put(name, content)
            return name

        state = put(f"{mark}.state", [pack(save.state)])
        workers: list[tuple[str, str]] = []
        for worker in save.workers:
            part, numbers = pending.parts[worker]
            votes_and_state = [part.arrays[0], part.arrays[1], *part.arrays[3:]]
            name = put(f"{mark}.worker-{worker}", part_content(part.kept, votes_and_state))
            own = put(f"{mark}.ids-{worker}", part_content(part.kept, [numbers]))
            workers.append((name, own))
        pieces = self._trace(mark, save.rows, put)
        files.update(pieces)
        manifest = CheckpointManifest(
            CHECKPOINT_FORMAT,
            save.number,
            self.record.epoch,
            save.iteration,
            save.round,
            save.seconds,
            save.objective,
            clock.wall(),
            state,
            tuple(workers),
            tuple(name for name, _ in pieces),
            files,
            self.record,
        )
        self._check_epoch()
        self.store.put(manifest.name, [seal(msgspec.json.format(msgspec.json.encode(manifest)))])
        self._trace_pieces, self._rows_written = pieces, save.rows
        self.written = manifest
        self._history = [manifest, *self._history][:KEPT_CHECKPOINTS]
        self._clean()

    def _trace(self, mark: str, rows: int, put: Callable[[str, list[Buffer]], str]) -> list[tuple[str, FileEntry]]:
        """New lines as a piece of their own; pieces that are not larger than what comes behind them are joined."""
        pieces = list(self._trace_pieces)
        fresh = b"".join(pack(list(vars(row).values())) for row in self._rows[self._rows_written : rows])
        while pieces and pieces[-1][1][0] <= 2 * len(fresh):
            content = self.store.get(pieces[-1][0])
            if digest([content]) != pieces[-1][1]:
                break  # damaged; leave it alone, so that reading says so
            fresh = content + fresh
            pieces.pop()
        if fresh:
            name = put(f"{mark}.trace", [fresh])
            pieces.append((name, digest([fresh])))
        return pieces

    def _clean(self) -> None:
        """Remove what belongs to none of the checkpoints that are kept."""
        used = {m.name for m in self._history} | {name for m in self._history for name in m.files}
        newest = self._history[0]
        for name in self.store.names():
            match = CHECKPOINT_FILE.fullmatch(name)
            if match and name not in used and (int(match[2]), int(match[1])) <= (newest.epoch, newest.number):
                self.store.drop(name)

    def _write_commit(self, commit: SaveCommit) -> None:
        """Write a commit record, θ and progress without the points' states, into one of two files in turn."""
        self._check_epoch()
        record = {
            "format": CHECKPOINT_FORMAT,
            "epoch": self.record.epoch,
            "round": commit.round,
            "iteration": commit.iteration,
            "seconds": commit.seconds,
            "objective": commit.objective,
            "parameter": freeze(pytree.flatten(commit.parameter)),
        }
        self.store.put(f"commit-{self._next_slot}", [seal(pack(record))], durable=False)
        self._next_slot = 1 - self._next_slot
