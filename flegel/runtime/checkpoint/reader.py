"""Checkpoints read with every doubt: sizes, checksums, formats. Never writes, never trains.

The newest complete checkpoint is taken; whatever is damaged or missing is named, and what is older takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import msgpack
import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.errors import StorageError, UsageError
from flegel.machine.checkpoint import snapshot
from flegel.machine.checkpoint.plain_data import thaw, unpack
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.events import TraceRow
from flegel.runtime.checkpoint.store import CheckpointStore
from flegel.runtime.checkpoint.writer import FILE, FORMAT, KEPT, CheckpointManifest, JobRecord, read_part, stem, unseal


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
    """What a vault holds of a job: the newest complete checkpoint, the newest commit, and what had to be skipped."""

    job: JobRecord
    manifest: CheckpointManifest | None = None
    state: dict[str, Any] = field(default_factory=dict)
    parts: list[WorkerState] = field(default_factory=list)
    rows: list[TraceRow] = field(default_factory=list)
    commit: StoredCommit | None = None
    skipped: list[str] = field(default_factory=list)
    history: list[CheckpointManifest] = field(default_factory=list)
    whole_trace: bool = True
    epoch: int = 0
    """The highest that was seen."""
    number: int = 0
    """The highest number of a checkpoint, complete or not."""


def holds_job(vault: CheckpointStore) -> bool:
    names = vault.names()
    return "job" in names or any(name.endswith(".manifest") for name in names)


def read(vault: CheckpointStore) -> StoredJob:
    """The newest complete checkpoint; whatever is damaged is named in `skipped`."""
    try:
        names = vault.names()
    except OSError as error:
        raise StorageError(f"{vault.place} cannot be read ({error.strerror or error}).") from None
    skipped: list[str] = []
    manifests = _manifests(vault, names, skipped)
    job = _job(vault, names, manifests, skipped)
    found = StoredJob(job, skipped=skipped, epoch=job.epoch)
    for name in names:
        if match := FILE.fullmatch(name):
            found.number, found.epoch = max(found.number, int(match[1])), max(found.epoch, int(match[2]))
    for at, manifest in enumerate(manifests):
        try:
            _fill(found, vault, manifest)
        except (StorageError, OSError) as error:
            why = str(error) if isinstance(error, StorageError) else error.strerror or str(error)
            skipped.append(f"checkpoint {stem(manifest.number, manifest.epoch)} was skipped: {why}")
            continue
        found.history = manifests[at : at + KEPT]
        break
    found.commit = _last_commit(vault, names, skipped)
    return found


def _manifests(vault: CheckpointStore, names: list[str], skipped: list[str]) -> list[CheckpointManifest]:
    """Newest first."""
    found: list[CheckpointManifest] = []
    for name in names:
        match = FILE.fullmatch(name)
        if match is None or match[3] != "manifest":
            continue
        try:
            manifest = msgspec.json.decode(unseal(vault.get(name)), type=CheckpointManifest)
            if manifest.format != FORMAT or manifest.name != name:
                raise StorageError(f"it has format {manifest.format}, this version reads {FORMAT}")
            found.append(manifest)
        except (StorageError, OSError, msgspec.DecodeError) as error:
            skipped.append(
                f"checkpoint {name.removesuffix('.manifest')} was skipped: its manifest is damaged ({error})"
            )
    return sorted(found, key=lambda m: (m.epoch, m.number), reverse=True)


def _job(
    vault: CheckpointStore, names: list[str], manifests: list[CheckpointManifest], skipped: list[str]
) -> JobRecord:
    trouble = "it is not there"
    if "job" in names:
        try:
            job = msgspec.json.decode(unseal(vault.get("job")), type=JobRecord)
            if job.format == FORMAT:
                return job
            trouble = f"it has format {job.format}, this version reads {FORMAT}"
        except (StorageError, OSError, msgspec.DecodeError) as error:
            trouble = str(error)
    elif not manifests:
        raise UsageError(f"{vault.place} holds no checkpoints of a job.")
    if not manifests:
        raise StorageError(f"The description of the job in {vault.place} cannot be used: {trouble}.")
    skipped.append(f"the file job was skipped: {trouble}; the newest manifest says the same")
    return manifests[0].job


def _fill(found: StoredJob, vault: CheckpointStore, manifest: CheckpointManifest) -> None:
    def get(name: str) -> bytes:
        size, sha = manifest.files[name]
        try:
            content = vault.get(name)
        except FileNotFoundError:
            raise StorageError(f"{name} is missing") from None
        if len(content) != size:
            raise StorageError(f"{name} has {len(content)} bytes instead of {size}")
        if hashlib.sha256(content).hexdigest() != sha:
            raise StorageError(f"{name} is damaged (its checksum is wrong)")
        return content

    state = snapshot.check(unpack(get(manifest.state)))
    parts: list[WorkerState] = []
    for name, numbers in manifest.workers:
        kept, (hidden, votes, *pending) = read_part(get(name))
        _, (ids,) = read_part(get(numbers))
        parts.append(WorkerState(kept, ids.astype(np.int64), hidden, votes, tuple(pending)))
    found.manifest, found.state, found.parts = manifest, state, parts
    for name in manifest.trace:
        try:
            found.rows.extend(_rows(get(name)))
        except (StorageError, OSError) as error:  # a loss for the report, not for training
            found.whole_trace = False
            found.skipped.append(f"some lines of the trace are lost: {error}")


def _rows(content: bytes) -> Iterable[TraceRow]:
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=0)
    unpacker.feed(content)
    for values in unpacker:
        row = TraceRow(*values)
        row.spans = [tuple(span) for span in row.spans]  # type: ignore[misc]
        yield row


def _last_commit(vault: CheckpointStore, names: list[str], skipped: list[str]) -> StoredCommit | None:
    found: list[StoredCommit] = []
    for name in ("commit-0", "commit-1"):
        if name not in names:
            continue
        try:
            record = unpack(unseal(vault.get(name)))
            if record["format"] != FORMAT:
                raise StorageError(f"it has format {record['format']}")
            parameter = thaw(record.pop("parameter"))
            del record["format"]
            found.append(StoredCommit(**record, parameter=parameter))
        except (StorageError, OSError) as error:
            skipped.append(f"{name} was skipped: {error}")
    return max(found, key=lambda c: (c.epoch, c.iteration), default=None)
