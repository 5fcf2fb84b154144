"""What checkpoints look like on disk: records, names of files, checksums. Opens no file; used by reader and writer.

Files of checkpoint 12 of epoch 0 (a job's epoch grows each time it is resumed):

    00000012-e0.state       the coordinator's side (machine/checkpoint/snapshot.py)
    00000012-e0.worker-3    states and votes of the points of worker 3
    00000012-e0.ids-3       their numbers in the data (workers send them only when they change)
    00000012-e0.trace       lines of the trace, in pieces that later checkpoints share; a damaged one costs lines only
    00000012-e0.manifest    written last: names, sizes and checksums of all of these; only now the checkpoint exists
    job                     what the job is, and its epoch
    commit-0, commit-1      θ after a recent commit, in turns, without waiting for the disk
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.errors import StorageError
from flegel.job import Job
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.plain_data import pack, unpack
from flegel.messages import CheckpointPart, TreeLayout
from flegel.runtime.checkpoint.store import Buffer

CHECKPOINT_FORMAT = 5
"""Of all files together; it changes with any of them. Other formats are refused with a sentence."""
KEPT_CHECKPOINTS = 3  # complete checkpoints
CHECKPOINT_FILE = re.compile(r"(\d{8})-e(\d{1,6})\.(state|trace|manifest|worker-\d+|ids-\d+)")
DIGEST_MARK = b"\nsha256 "
FileEntry = tuple[int, str]
"""Size and SHA-256 of a file."""


class JobRecord(msgspec.Struct, forbid_unknown_fields=True):
    """Everything that a resumed job needs besides its state: its description, and what became known when it began."""

    format: int
    epoch: int
    job: Job
    """With the hyper-parameters that the algorithm has learned from the data."""
    submitted_hyper: dict[str, Any]
    """Hyper-parameters as they were submitted."""
    class_file: str | None
    """`file.py:Class`, where the class came from a file; imported past `flegel.loading.code_gate` only."""
    fingerprint: str
    """Of the rows (`session.fingerprint`)."""
    dataset: dict[str, Any]
    scaling: tuple[tuple[float, ...], tuple[float, ...]] | None
    parameter: TreeLayout
    statistics: TreeLayout
    class_sha256: str
    """Of that whole file, as it was imported."""
    class_mark: str
    """Made with the key of the user who trained: this file, with this content, was his own."""


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
    files: dict[str, FileEntry]
    record: JobRecord

    @property
    def name(self) -> str:
        return f"{stem(self.number, self.epoch)}.manifest"


class RecordHeader(msgspec.Struct):
    """What the `job` file and the manifests of every format have."""

    format: int
    epoch: int


@dataclass(frozen=True)
class StoredCommit:
    """θ after a commit."""

    epoch: int
    round: int
    iteration: int
    seconds: float
    objective: float | None
    parameter: list[Array]


@dataclass
class StoredJob:
    """What a store holds of a job: the newest complete checkpoint, the newest commit, and what had to be skipped."""

    record: JobRecord
    manifest: CheckpointManifest | None = None
    state: dict[str, Any] = field(default_factory=dict)
    parts: list[WorkerState] = field(default_factory=list)
    rows: list[TraceRow] = field(default_factory=list)
    commit: StoredCommit | None = None
    skipped: list[str] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """Files of checkpoints and commits that are there and cannot be used."""
    history: list[CheckpointManifest] = field(default_factory=list)
    whole_trace: bool = True
    epoch: int = 0
    """The highest that was seen."""
    number: int = 0
    """The highest number of a checkpoint, complete or not."""


def stem(number: int, epoch: int) -> str:
    return f"{number:08d}-e{epoch}"


def header_of(content: bytes) -> RecordHeader:
    """Format and epoch of a `job` file or a manifest; raises one of `UNDECODABLE` where it is neither."""
    return msgspec.json.decode(content, type=RecordHeader)


def seal(content: bytes) -> bytes:
    """The content with its own checksum appended."""
    return content + DIGEST_MARK + hashlib.sha256(content).hexdigest().encode() + b"\n"


def unseal(sealed: bytes) -> bytes:
    content, mark, rest = sealed[:-73], sealed[-73:-65], sealed[-65:]
    if mark != DIGEST_MARK or rest != hashlib.sha256(content).hexdigest().encode() + b"\n":
        raise StorageError("its checksum is wrong")
    return content


def part_content(kept: CheckpointPart, arrays: Iterable[Array]) -> list[Buffer]:
    """A worker's part: a short head, then its arrays as they lie in memory."""
    ready = [np.asarray(a, order="C") for a in arrays]
    shapes = [[a.dtype.str, list(a.shape)] for a in ready]
    head = pack([list(map(list, kept.runs)), kept.visits, kept.compute, kept.version, kept.number, shapes])
    raw: list[Buffer] = [a.reshape(-1).view(np.uint8).data for a in ready if a.nbytes]
    return [len(head).to_bytes(8, "little"), head, *raw]


def read_part(content: bytes) -> tuple[CheckpointPart, list[Array]]:
    """A worker's part of a checkpoint from a file: a header, then the bytes of its arrays one after the other."""
    at = 8 + int.from_bytes(content[:8], "little")
    runs, visits, compute, version, number, shapes = unpack(content[8:at])
    arrays: list[Array] = []
    for dtype, shape in shapes:
        kind = np.dtype(dtype)
        count = int(np.prod(shape, dtype=np.int64))
        arrays.append(np.frombuffer(content, kind, count, at).reshape(shape))
        at += count * kind.itemsize
    return CheckpointPart(number, tuple((int(a), int(b)) for a, b in runs), visits, compute, version), arrays


def digest(content: Iterable[Buffer]) -> FileEntry:
    size, sha = 0, hashlib.sha256()
    for piece in content:
        sha.update(piece)
        size += memoryview(piece).nbytes
    return size, sha.hexdigest()
