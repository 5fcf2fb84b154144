"""Checkpoints in a vault, written in the background: training never waits for the disk. Read by `recall.py`.

Files of checkpoint 12 of epoch 0 (a job's epoch grows each time it is resumed):

    00000012-e0.state       the coordinator's side (machine/checkpoint/snapshot.py)
    00000012-e0.worker-3    states and votes of the points of worker 3
    00000012-e0.ids-3       their numbers in the data (workers send them only when they change)
    00000012-e0.trace       lines of the trace, in pieces that later checkpoints share; a damaged one costs lines only
    00000012-e0.manifest    written last: names, sizes and checksums of all of these; only now the checkpoint exists
    job                     what the job is, and its epoch
    commit-0, commit-1      θ after a recent commit, in turns, without waiting for the disk

Whatever goes wrong while writing, the older checkpoint stays, training goes on, and the trouble is told.
"""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from flegel.core import pytree
from flegel.core.pytree import Array
from flegel.errors import StorageError
from flegel.job import AlgorithmRef, Criteria, SyncSpec
from flegel.machine.checkpoint.plain_data import freeze, pack, unpack
from flegel.machine.coordinator.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit, TraceRow
from flegel.messages import CheckpointPart, TreeLayout
from flegel.runtime import clock
from flegel.runtime.checkpoint.store import Buffer, CheckpointStore

if TYPE_CHECKING:
    from flegel.runtime.checkpoint.reader import StoredJob

FORMAT = 1
KEPT = 3  # complete checkpoints
FILE = re.compile(r"(\d{8})-e(\d{1,6})\.(state|trace|manifest|worker-\d+|ids-\d+)")
SEAL = b"\nsha256 "
Entry = tuple[int, str]
"""Size and SHA-256 of a file."""


class DataRef(msgspec.Struct, forbid_unknown_fields=True):
    """The data: where they are, if that can be told, and what they look like."""

    spec: str | None
    label: str | int | None
    fingerprint: str
    summary: dict[str, Any]


class JobRecord(msgspec.Struct, forbid_unknown_fields=True):
    """What a job is; everything that a resumed one needs besides its state."""

    format: int
    epoch: int
    algorithm: AlgorithmRef
    given: dict[str, Any]
    """Hyper-parameters as they were submitted; some algorithms learn further ones from the data."""
    word: str | None
    """`file.py:Class`, where the class came from a file."""
    data: DataRef
    workers: int
    sync: SyncSpec
    criteria: Criteria
    seed: int
    straggler: str
    partition: str
    scale: str
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None
    collect_state: bool
    attribute: bool
    every: float
    parameter: TreeLayout
    statistics: TreeLayout


class CheckpointManifest(msgspec.Struct, forbid_unknown_fields=True):
    """What belongs to one checkpoint."""

    format: int
    number: int
    epoch: int
    iteration: int
    round: int
    seconds: float
    objective: float | None
    written: str
    state: str
    workers: tuple[tuple[str, str], ...]
    """Of each worker: its part, and the numbers of its points."""
    trace: tuple[str, ...]
    files: dict[str, Entry]
    job: JobRecord

    @property
    def name(self) -> str:
        return f"{stem(self.number, self.epoch)}.manifest"


def stem(number: int, epoch: int) -> str:
    return f"{number:08d}-e{epoch}"


# -- bytes -------------------------------------------------------------------------------------------------


def seal(content: bytes) -> bytes:
    """With its own checksum behind it."""
    return content + SEAL + hashlib.sha256(content).hexdigest().encode() + b"\n"


def unseal(sealed: bytes) -> bytes:
    content, mark, rest = sealed[:-73], sealed[-73:-65], sealed[-65:]
    if mark != SEAL or rest != hashlib.sha256(content).hexdigest().encode() + b"\n":
        raise StorageError("its checksum is wrong")
    return content


def part_content(kept: CheckpointPart, arrays: Iterable[Array]) -> list[Buffer]:
    """A worker's part: a short head, then its arrays as they lie in memory."""
    ready = [np.ascontiguousarray(a) for a in arrays]
    shapes = [[a.dtype.str, list(a.shape)] for a in ready]
    head = pack([list(map(list, kept.runs)), kept.visits, kept.compute, kept.version, kept.number, shapes])
    raw: list[Buffer] = [a.reshape(-1).view(np.uint8).data for a in ready if a.nbytes]
    return [len(head).to_bytes(8, "little"), head, *raw]


def read_part(content: bytes) -> tuple[CheckpointPart, list[Array]]:
    at = 8 + int.from_bytes(content[:8], "little")
    runs, visits, compute, version, number, shapes = unpack(content[8:at])
    arrays: list[Array] = []
    for dtype, shape in shapes:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, kind, count, at).reshape(shape))
        at += count * kind.itemsize
    return CheckpointPart(number, tuple((int(a), int(b)) for a, b in runs), visits, compute, version), arrays


def digest(content: Iterable[Buffer]) -> Entry:
    size, sha = 0, hashlib.sha256()
    for piece in content:
        sha.update(piece)
        size += memoryview(piece).nbytes
    return size, sha.hexdigest()


# -- writing -----------------------------------------------------------------------------------------------


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
    """Call `take` with the machine's commands; two threads of its own write. `troubles` tells what went wrong."""

    def __init__(
        self, vault: CheckpointStore, job: JobRecord, rows: list[TraceRow], found: StoredJob | None = None
    ) -> None:
        self.vault, self.job = vault, job
        self.written: CheckpointManifest | None = found.manifest if found else None
        self._rows = rows
        """The live trace; lines are only ever added."""
        self._history: list[CheckpointManifest] = list(found.history) if found else []
        self._pieces: list[tuple[str, Entry]] = []
        self._traced = 0
        if found and found.manifest and found.whole_trace:
            self._pieces = [(name, found.manifest.files[name]) for name in found.manifest.trace]
            self._traced = len(found.rows)
        self._numbers: dict[int, Array] = {}
        self._drafts: dict[int, PendingCheckpoint] = {}
        self._ready: PendingCheckpoint | None = None
        self._commit: SaveCommit | None = None
        self._turn = 0
        self._closing = self._replaced = self._left_out = False
        self._troubles: list[str] = []
        self._bell = threading.Condition()
        self._busy = 0
        self._threads = [
            threading.Thread(target=self._loop, args=(work,), name=name, daemon=True)
            for work, name in ((self._next_draft, "checkpoints"), (self._next_commit, "commits"))
        ]

    def start(self) -> None:
        """Raises `OSError` where not even the job's description can be written."""
        self.vault.put("job", [seal(msgspec.json.format(msgspec.json.encode(self.job)))])
        for thread in self._threads:
            thread.start()

    def take(self, command: BeginCheckpoint | SaveCheckpointPart | SaveCommit) -> None:
        """From the coordinator's loop; returns at once."""
        with self._bell:
            if self._replaced:
                return
            match command:
                case BeginCheckpoint(number=number):
                    self._drafts = {number: PendingCheckpoint(command)}
                case SaveCheckpointPart():
                    self._add(command)
                case SaveCommit():
                    self._commit = command
            self._bell.notify_all()

    def _add(self, part: SaveCheckpointPart) -> None:
        ids = part.arrays[2]
        if len(ids):
            self._numbers[part.worker] = ids.astype(np.uint32 if ids.max() < 1 << 32 else np.uint64)
        draft = self._drafts.get(part.kept.number)
        if draft is None:
            return
        draft.parts[part.worker] = (part, self._numbers.get(part.worker, ids))
        if draft.whole:
            del self._drafts[part.kept.number]
            if self._ready is not None and not self._left_out:
                self._left_out = True
                self._troubles.append("some checkpoints are left out: writing takes longer than --checkpoint-every")
            self._ready = draft

    def troubles(self) -> list[str]:
        """What went wrong since the last question."""
        with self._bell:
            told, self._troubles = self._troubles, []
        return told

    def settle(self, patience: float = 60.0) -> bool:
        """Wait until everything that is whole has been tried; False where that took too long."""
        with self._bell:
            return self._bell.wait_for(lambda: not (self._ready or self._commit or self._busy), patience)

    def close(self, patience: float = 60.0) -> bool:
        """Finish what is whole, end the threads; False where that took too long."""
        deadline = clock.now() + patience
        idle = self.settle(patience)
        with self._bell:
            self._closing = True
            self._bell.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(deadline - clock.now(), 0.1))
        return idle

    # -- in the background ---------------------------------------------------------------------------------

    def _loop(self, choose: Callable[[], Callable[[], None] | None]) -> None:
        while True:
            with self._bell:
                work = choose()
                while work is None:
                    if self._closing:
                        return
                    self._bell.wait()
                    work = choose()
                self._busy += 1
            try:
                work()
            except CoordinatorReplaced:
                self._give_up()
            except OSError as error:
                self._complain(f"a checkpoint could not be written to {self.vault.place} ({error.strerror or error})")
            finally:
                with self._bell:
                    self._busy -= 1
                    self._bell.notify_all()

    def _next_draft(self) -> Callable[[], None] | None:
        draft, self._ready = self._ready, None
        return None if draft is None or self._replaced else lambda: self._write(draft)

    def _next_commit(self) -> Callable[[], None] | None:
        commit, self._commit = self._commit, None
        return None if commit is None or self._replaced else lambda: self._write_commit(commit)

    def _complain(self, text: str) -> None:
        older = (
            f"the last complete one is of iteration {self.written.iteration}" if self.written else "there is none yet"
        )
        with self._bell:
            self._troubles.append(f"{text}; training goes on, and {older}")

    def _give_up(self) -> None:
        with self._bell:
            if not self._replaced:
                self._troubles.append(f"another coordinator has taken over {self.vault.place}; nothing more is written")
            self._replaced = True

    def _check_epoch(self) -> None:
        try:
            now = msgspec.json.decode(unseal(self.vault.get("job")), type=JobRecord).epoch
        except (OSError, StorageError, msgspec.DecodeError):
            return  # unreadable is not replaced
        if now > self.job.epoch:
            raise CoordinatorReplaced

    def _write(self, draft: PendingCheckpoint) -> None:
        self._check_epoch()
        save, mark = draft.save, stem(draft.save.number, self.job.epoch)
        files: dict[str, Entry] = {}

        def put(name: str, content: list[Buffer]) -> str:
            files[name] = digest(content)
            self.vault.put(name, content)
            return name

        state = put(f"{mark}.state", [pack(save.state)])
        workers: list[tuple[str, str]] = []
        for worker in save.workers:
            part, numbers = draft.parts[worker]
            votes_and_state = [part.arrays[0], part.arrays[1], *part.arrays[3:]]
            name = put(f"{mark}.worker-{worker}", part_content(part.kept, votes_and_state))
            own = put(f"{mark}.ids-{worker}", part_content(part.kept, [numbers]))
            workers.append((name, own))
        pieces = self._trace(mark, save.rows, put)
        files.update(pieces)
        manifest = CheckpointManifest(
            FORMAT, save.number, self.job.epoch, save.iteration, save.round, save.seconds, save.objective,
            clock.wall(), state, tuple(workers), tuple(name for name, _ in pieces), files, self.job,
        )  # fmt: skip
        self._check_epoch()
        self.vault.put(manifest.name, [seal(msgspec.json.format(msgspec.json.encode(manifest)))])
        self._pieces, self._traced = pieces, save.rows
        self.written = manifest
        self._history = [manifest, *self._history][:KEPT]
        self._clean()

    def _trace(self, mark: str, rows: int, put: Callable[[str, list[Buffer]], str]) -> list[tuple[str, Entry]]:
        """New lines as a piece of their own; pieces that are not larger than what comes behind them are joined."""
        pieces = list(self._pieces)
        fresh = b"".join(pack(list(vars(row).values())) for row in self._rows[self._traced : rows])
        while pieces and pieces[-1][1][0] <= 2 * len(fresh):
            content = self.vault.get(pieces[-1][0])
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
        for name in self.vault.names():
            match = FILE.fullmatch(name)
            if match and name not in used and (int(match[2]), int(match[1])) <= (newest.epoch, newest.number):
                self.vault.drop(name)

    def _write_commit(self, commit: SaveCommit) -> None:
        self._check_epoch()
        record = {
            "format": FORMAT,
            "epoch": self.job.epoch,
            "round": commit.round,
            "iteration": commit.iteration,
            "seconds": commit.seconds,
            "objective": commit.objective,
            "parameter": freeze(pytree.flatten(commit.parameter)),
        }
        self.vault.put(f"commit-{self._turn}", [seal(pack(record))], durable=False)
        self._turn = 1 - self._turn
