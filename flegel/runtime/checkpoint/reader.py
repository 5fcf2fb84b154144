"""Checkpoints, read and checked: sizes, checksums, formats. Never writes, never trains.

The newest complete checkpoint is taken. Whatever is damaged or missing is named, and an older one takes its place.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import msgpack
import msgspec
import numpy as np

from flegel.core.pytree import Array
from flegel.errors import UNDECODABLE, StorageError, UsageError, in_words
from flegel.loading.damage import damage_as
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.checkpoint.state_limits import check_position, check_runs, check_state
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.plain_data import thaw, unpack
from flegel.runtime.checkpoint.format import (
    CHECKPOINT_FILE,
    CHECKPOINT_FORMAT,
    KEPT_CHECKPOINTS,
    CheckpointManifest,
    JobRecord,
    StoredCommit,
    StoredJob,
    header_of,
    read_part,
    stem,
    unseal,
)
from flegel.runtime.checkpoint.store import CheckpointStore

COMMIT_FILES = ("commit-0", "commit-1")
"""Files that hold the last commits, in turn."""
_manifest_decoder, _record_decoder = msgspec.json.Decoder(CheckpointManifest), msgspec.json.Decoder(JobRecord)
"""Made here, once: msgspec crashes where two threads decode a record with records in it for the first time."""


def holds_job(store: CheckpointStore) -> bool:
    names = store.names()
    return "job" in names or any(name.endswith(".manifest") for name in names)


def read(store: CheckpointStore) -> StoredJob:
    """The newest complete checkpoint; whatever is damaged is named in `skipped`."""
    try:
        names = store.names()
    except OSError as error:
        raise StorageError(f"{store.place} cannot be read ({error.strerror or error}).") from None
    skipped: list[str] = []
    manifests = _manifests(store, names, skipped)
    record = _record(store, names, manifests, skipped)
    stored = StoredJob(record, skipped=skipped, epoch=record.epoch)
    for name in names:
        if match := CHECKPOINT_FILE.fullmatch(name):
            stored.number, stored.epoch = max(stored.number, int(match[1])), max(stored.epoch, int(match[2]))
    for at, manifest in enumerate(manifests):
        try:
            with damage_as("its content cannot be interpreted"):
                _fill(stored, store, manifest)
        except (StorageError, OSError) as error:
            skipped.append(f"checkpoint {stem(manifest.number, manifest.epoch)} was skipped: {in_words(error)}")
            continue
        stored.history = manifests[at : at + KEPT_CHECKPOINTS]
        break
    stored.commit = _last_commit(store, names, skipped)
    kept = [name for name in names if name in COMMIT_FILES or CHECKPOINT_FILE.fullmatch(name)]
    if (
        stored.manifest is None
        and stored.commit is None
        and any(n in COMMIT_FILES or n.endswith(".manifest") for n in kept)
    ):
        stored.damaged = kept  # without a manifest or a commit nothing was ever complete
    return stored


def _manifests(store: CheckpointStore, names: list[str], skipped: list[str]) -> list[CheckpointManifest]:
    """Newest first. Raises where all of them have another format."""
    found: list[CheckpointManifest] = []
    others: set[int] = set()
    for name in names:
        match = CHECKPOINT_FILE.fullmatch(name)
        if match is None or match[3] != "manifest":
            continue
        try:
            content = unseal(store.get(name))
            if (version := header_of(content).format) != CHECKPOINT_FORMAT:
                others.add(version)
                raise StorageError(f"it has format {version}, this version reads {CHECKPOINT_FORMAT}")
            manifest = _manifest_decoder.decode(content)
            if manifest.name != name:
                raise StorageError(f"it is that of {manifest.name}")
            found.append(manifest)
        except (StorageError, OSError, *UNDECODABLE) as error:
            which, why = name.removesuffix(".manifest"), in_words(error)
            skipped.append(f"checkpoint {which} was skipped: its manifest cannot be used ({why})")
    if others and not found:
        raise _other_format(store, max(others))
    return sorted(found, key=lambda m: (m.epoch, m.number), reverse=True)


def _record(
    store: CheckpointStore, names: list[str], manifests: list[CheckpointManifest], skipped: list[str]
) -> JobRecord:
    """The description of the job: from its own file, or where that cannot be used from the newest manifest."""
    problem = "it is missing"
    if "job" in names:
        try:
            content = unseal(store.get("job"))
            if (version := header_of(content).format) == CHECKPOINT_FORMAT:
                return _record_decoder.decode(content)
            if not manifests:
                raise _other_format(store, version)
            problem = f"it has format {version}, this version reads {CHECKPOINT_FORMAT}"
        except UsageError:
            raise
        except (StorageError, OSError, *UNDECODABLE) as error:
            problem = in_words(error)
    elif not manifests:
        raise UsageError(f"{store.place} holds no checkpoints of a job.")
    if not manifests:
        raise StorageError(f"The description of the job in {store.place} cannot be used: {problem}.")
    skipped.append(f"the file job was skipped: {problem}; the newest manifest says the same")
    return manifests[0].record


def _other_format(store: CheckpointStore, version: int) -> UsageError:
    return UsageError(
        f"The checkpoints in {store.place} have format {version}, this version of Flegel reads {CHECKPOINT_FORMAT}; "
        "resume the job with the version that wrote them, or begin a new one."
    )


def _fill(stored: StoredJob, store: CheckpointStore, manifest: CheckpointManifest) -> None:
    """Read all files of a checkpoint; raises `StorageError` unless all are whole. Lines of the trace may be lost."""

    def get(name: str) -> bytes:
        """The content of a file of the checkpoint, if size and checksum are those of the manifest."""
        size, sha = manifest.files[name]
        try:
            content = store.get(name)
        except FileNotFoundError:
            raise StorageError(f"{name} is missing") from None
        if len(content) != size:
            raise StorageError(f"{name} has {len(content)} bytes instead of {size}")
        if hashlib.sha256(content).hexdigest() != sha:
            raise StorageError(f"{name} is damaged (its checksum is wrong)")
        return content

    state = unpack(get(manifest.state))
    parts: list[WorkerState] = []
    for name, numbers in manifest.workers:
        kept, (hidden, votes, *pending) = read_part(get(name))
        _, (ids,) = read_part(get(numbers))
        check_runs(kept.runs, kept.visits, kept.compute)
        _check_part(kept.runs, ids, hidden, votes)
        parts.append(WorkerState(kept, ids.astype(np.int64), hidden, votes, tuple(pending)))
    check_position(manifest.round, manifest.iteration, manifest.seconds)
    check_state(state, [part.points for part in parts])
    stored.manifest, stored.state, stored.parts = manifest, state, parts
    for name in manifest.trace:
        try:
            stored.rows.extend(_rows(get(name)))
        except (StorageError, OSError, TypeError, ValueError, msgpack.UnpackException) as error:  # not for training
            stored.whole_trace = False
            stored.skipped.append(f"some lines of the trace are lost: {in_words(error)}")


def _check_part(runs: tuple[tuple[int, int], ...], ids: Array, hidden: Array, votes: Array) -> None:
    """Numbers, states and votes are those of the same points."""
    kinds = ids.dtype.kind in "iu" and hidden.dtype.kind in "fiub" and votes.dtype.kind in "iub"
    if not kinds or ids.ndim != 1 or hidden.ndim != 2 or votes.ndim != 1:
        raise StorageError("its points are of a kind that cannot be")
    if not len(ids) == len(hidden) == len(votes) == sum(points for points, _ in runs):
        raise StorageError("its numbers, states and votes are not of the same points")


def _rows(content: bytes) -> Iterable[TraceRow]:
    unpacker = msgpack.Unpacker(raw=False, max_buffer_size=0)
    unpacker.feed(content)
    for values in unpacker:
        row = TraceRow(*values)
        row.spans = [tuple(span) for span in row.spans]  # type: ignore[misc]
        yield row


def _commit(record: dict[str, Any]) -> StoredCommit:
    """A commit record, checked: its format, θ and position."""
    if record["format"] != CHECKPOINT_FORMAT:
        raise StorageError(f"it has format {record['format']}")
    del record["format"]
    parameter = thaw(record.pop("parameter"))
    if not isinstance(parameter, list) or not all(isinstance(array, np.ndarray) for array in parameter):
        raise StorageError("its θ is no list of arrays")
    commit = StoredCommit(**record, parameter=parameter)
    if not isinstance(commit.epoch, int):
        raise StorageError("its epoch is no number")
    check_position(commit.round, commit.iteration, commit.seconds)
    if not all(a.dtype.kind in "fiub" and np.isfinite(a).all() for a in parameter):
        raise StorageError("its θ holds numbers that are not finite")
    return commit


def _last_commit(store: CheckpointStore, names: list[str], skipped: list[str]) -> StoredCommit | None:
    """The newest commit record that can be read; what is wrong with others is added to `skipped`."""
    found: list[StoredCommit] = []
    for name in COMMIT_FILES:
        if name not in names:
            continue
        try:
            with damage_as("its content cannot be interpreted"):
                found.append(_commit(unpack(unseal(store.get(name)))))
        except (StorageError, OSError) as error:
            skipped.append(f"{name} was skipped: {in_words(error)}")
    return max(found, key=lambda c: (c.epoch, c.iteration), default=None)
