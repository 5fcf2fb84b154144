"""A job's record in its store: what it is, where it stood, how it goes on. Ties a request to checkpoints.

`part.py` asks it for θ and each worker's points before training, has it put the coordinator into its former state, and
closes it at the end. Decides what a job goes on from: the newest complete checkpoint, or a newer commit.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.errors import StorageError, UsageError
from flegel.job import Job
from flegel.loading.class_source import in_plain, is_built_in, plain_hyper, reference
from flegel.loading.code_gate import mark_of
from flegel.loading.damage import damage_as
from flegel.machine.checkpoint import shard_states, snapshot
from flegel.machine.checkpoint.checkpoint_schedule import CheckpointSchedule
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit
from flegel.machine.checkpoint.resume import NewerCommit, continue_from, restore
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.plain_data import GeneratorState
from flegel.messages import TreeLayout
from flegel.params.tree_layout import build
from flegel.plan.active_workers import ActiveWorkers
from flegel.runtime import clock
from flegel.runtime.checkpoint.format import CHECKPOINT_FORMAT, JobRecord, StoredJob
from flegel.runtime.checkpoint.reader import holds_job
from flegel.runtime.checkpoint.store import CheckpointStore, open_store
from flegel.runtime.checkpoint.writer import Checkpointer
from flegel.runtime.job.find_algorithm import file_hash, home_of


class CheckpointWarning(UserWarning):
    """A checkpoint is not as it should be; training goes on."""


Arguments = ParamSpec("Arguments")
Found = TypeVar("Found")


def _interpreting(
    method: Callable[Concatenate[CheckpointSession, Arguments], Found],
) -> Callable[Concatenate[CheckpointSession, Arguments], Found]:
    """Of a method that takes the stored state apart: what somebody else has written may be anything."""

    @functools.wraps(method)
    def checked(self: CheckpointSession, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Found:
        with damage_as(f"The checkpoint in {self.store.place} is damaged"):
            return method(self, *args, **kwargs)

    return checked


@dataclass
class CheckpointSession:
    """`stored`: the job goes on from there; `exact`: from the checkpoint itself, even where a newer θ is known."""

    store: CheckpointStore
    every: float
    """Seconds between two checkpoints."""
    stored: StoredJob | None = None
    exact: bool = True
    submitted_hyper: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters before any hook ran."""
    active_workers: ActiveWorkers | None = None
    """Who worked and who rested in the checkpoint, where that goes on."""
    _writer: Checkpointer | None = field(default=None, repr=False)

    def note_hyper(self, algorithm: Algorithm) -> None:
        """Keep the hyper-parameters as they were submitted; called before any hook runs."""
        self.submitted_hyper = self.stored.record.submitted_hyper if self.stored else plain_hyper(algorithm)

    # -- before training -----------------------------------------------------------------------------------

    @property
    def newer(self) -> bool:
        """The job goes on from a commit that is newer than the newest checkpoint."""
        stored = self.stored
        if stored is None or stored.commit is None:
            return False
        return stored.manifest is None or (not self.exact and stored.commit.iteration > stored.manifest.iteration)

    @property
    def former_job(self) -> Job | None:
        """The job as it was begun, where this one goes on from there."""
        return self.stored.record.job if self.stored is not None else None

    @property
    def seconds(self) -> float:
        """Training time until the checkpoint."""
        return self.stored.manifest.seconds if self.stored and self.stored.manifest else 0.0

    @property
    @_interpreting
    def shift(self) -> float:
        """Seconds by which the job's clock is ahead of this host's."""
        return float(self.stored.state["now"]) - clock.now() if self.stored and self.stored.manifest else 0.0

    @_interpreting
    def parameter(self, algorithm: Algorithm) -> Tree | None:
        """θ to go on with; None where the job begins anew."""
        stored = self.stored
        if stored is None or (stored.manifest is None and stored.commit is None):
            return None
        if self.newer and stored.commit is not None:
            arrays = stored.commit.parameter
        else:
            arrays = snapshot.parameter_of(stored.state)
        form = stored.record.parameter
        if form.fields and is_built_in(algorithm):  # of classes that are not, the code itself was compared
            own = getattr(sys.modules[type(algorithm).__module__], form.name, None)
            known = dict.fromkeys(getattr(own, "_fields", ()))
            if why := _difference("θ", dict.fromkeys(form.fields), known):
                raise self.outdated(algorithm, why)
        return build(form, tuple(arrays), algorithm)

    @_interpreting
    def check_parameter(self, algorithm: Algorithm, kept: Tree, fresh: Tree) -> None:
        """θ of the checkpoint must have the form of one that is made `fresh` for these rows."""
        if why := _difference("θ", _forms(kept), _forms(fresh)):
            raise self.outdated(algorithm, why)

    @_interpreting
    def check_forms(
        self, algorithm: Algorithm, parameter: Tree, zero: Tree, state: Array, parts: list[WorkerState]
    ) -> None:
        """Whatever was kept must have the form that the algorithm has now: compiled code relies on it, and somebody
        else may have written the checkpoint."""
        stored = self.stored
        if stored is None or stored.manifest is None:
            return
        kept = snapshot.statistics_of(stored.state)
        names = stored.record.statistics.fields or pytree.names(zero)
        here = _shapes(pytree.names(zero), pytree.flatten(zero))
        if why := _difference("the statistics", _shapes(names, kept), here):
            raise self.outdated(algorithm, why)
        store = snapshot.part_of(stored.state, "store")
        accounts = [*store["accounts"].values(), *store.get("remote", {}).values()]
        pending = [part.pending for part in parts if part.pending]
        for arrays, like in ((store["parameter"], parameter), *((a, zero) for a in (kept, *accounts, *pending))):
            if [(a.shape, a.dtype) for a in arrays] != [(a.shape, a.dtype) for a in pytree.flatten(like)]:
                raise self.outdated(algorithm, "arrays of θ or of workers' statistics have another form there")
        for part in parts:
            if part.state.shape[1:] != state.shape[1:]:  # the type may differ: it follows that of the rows
                size, now = part.state.shape[1], state.shape[1]
                raise self.outdated(algorithm, f"a point's state has {size} numbers there, and {now} here")

    def check_points(self, limits: tuple[float, float] | None, rows: int, parts: list[WorkerState]) -> None:
        """Each row of the data belongs to one worker, with a state within `limits`: somebody else may have written the
        checkpoint, and compiled code does not look twice."""
        if not parts:
            return
        numbers = np.sort(np.concatenate([part.ids for part in parts]))
        if not np.array_equal(numbers, np.arange(rows)):
            raise StorageError(f"The checkpoint in {self.store.place} does not hold each of the {rows} points once.")
        for part in parts if limits is not None else ():
            assert limits is not None
            if part.state.size and not limits[0] <= part.state.min() <= part.state.max() <= limits[1]:
                raise StorageError(f"The checkpoint in {self.store.place} holds states of points that cannot be.")

    def outdated(self, algorithm: Algorithm, why: str) -> UsageError:
        return outdated(self.store.place, type(algorithm).__name__, why)

    def parts(
        self, algorithm: Algorithm, workers: int, columns: int, seed: int, keys: Array | None = None
    ) -> list[WorkerState]:
        """What each worker is to hold; nothing where no states were kept. `keys`: of all rows, where those of one key
        stay together."""
        if self.stored is None or self.stored.manifest is None:
            return []
        parts = self.stored.parts
        if self.redealt(workers):
            parts = shard_states.redeal(parts, workers, keys)
        if self.newer and algorithm.state.remade:
            rng = np.random.default_rng(seed)
            parts = [shard_states.unvisited(p, algorithm.initState(p.points, columns, rng)) for p in parts]
        if self.active_workers is not None:
            held = dict(zip(self.active_workers.working, parts, strict=True))
            parts = [held.get(worker) or shard_states.nothing_of(parts[0]) for worker in range(workers)]
        return parts

    @_interpreting
    def keep_active_workers(self, workers: int) -> None:
        """Who rested in the checkpoint rests again, where the workers are the same."""
        if self.stored is None or self.stored.manifest is None:
            return
        working, resting = snapshot.workers_of(self.stored.state), snapshot.resting_of(self.stored.state)
        if resting and sorted((*working, *resting)) == list(range(workers)):
            self.active_workers = ActiveWorkers(
                working, resting, 0.0, f"{len(resting)} of {workers} workers rest, as when the job stopped"
            )

    @_interpreting
    def redealt(self, workers: int) -> bool:
        """The workers are not those of the checkpoint: points are assigned to workers anew."""
        if self.stored is None or self.active_workers is not None:
            return False
        return snapshot.workers_of(self.stored.state) != tuple(range(workers))

    def check(self, fingerprint: str, data: str) -> None:
        if self.stored is not None and self.stored.record.fingerprint != fingerprint:
            raise UsageError(
                f"{data} is not the data of the checkpoint in {self.store.place} (other rows or values); resume with "
                "the same data, or begin a new job."
            )

    # -- training ------------------------------------------------------------------------------------------

    def schedule(self) -> CheckpointSchedule:
        return CheckpointSchedule(self.every, self.stored.number if self.stored else 0)

    @_interpreting
    def restore(self, machine: Coordinator, parts: list[WorkerState]) -> None:
        """Put the coordinator into the state in which the job stopped."""
        stored = self.stored
        if stored is None:
            return
        newer = None
        if self.newer and stored.commit is not None:
            c = stored.commit
            newer = NewerCommit(c.round, c.iteration, c.seconds, machine.parameter)
        if stored.manifest is not None:
            _restore_attributes(machine.state.algorithm, snapshot.algorithm_of(stored.state))
            held = dict(enumerate(parts))
            restore(machine, stored.state, held, newer, redealt=self.redealt(len(parts)))
            machine.trace.extend(stored.rows)
            before = stored.record.job.criteria.resolved(machine.state.algorithm.learning.tolerance)
            if machine.state.criteria != before:
                machine.state.verdict = None
        elif newer is not None:
            continue_from(machine, newer, clock.now(), started=False)

    def begin(
        self,
        job: Job,
        algorithm: Algorithm,
        dataset: dict[str, Any],
        machine: Coordinator,
        fingerprint: str,
        scaling: Any,
        forms: tuple[TreeLayout, TreeLayout],
    ) -> None:
        """Write what the job is; from now on its state is kept."""
        ref = in_plain(reference(algorithm))
        class_file, class_sha256 = home_of(type(algorithm)), file_hash(type(algorithm))
        record = JobRecord(
            format=CHECKPOINT_FORMAT,
            epoch=self.stored.epoch + 1 if self.stored else 0,
            job=msgspec.structs.replace(job, algorithm=ref, checkpoint=self.store.place, checkpoint_every=self.every),
            submitted_hyper=self.submitted_hyper,
            class_file=class_file,
            fingerprint=fingerprint,
            dataset=dataset,
            scaling=None if scaling is None else tuple(tuple(map(float, column)) for column in scaling),  # type: ignore[arg-type]
            parameter=forms[0],
            statistics=forms[1],
            class_sha256=class_sha256,
            class_mark=mark_of(class_file.rpartition(":")[0], class_sha256) if class_file and class_sha256 else "",
        )
        self._writer = Checkpointer(self.store, record, machine.trace, self.stored)
        try:
            self._writer.start()
        except OSError as error:
            raise StorageError(
                f"Checkpoints cannot be written to {self.store.place} ({error.strerror or error}); choose another."
            ) from None

    def take(self, command: BeginCheckpoint | SaveCheckpointPart | SaveCommit) -> None:
        assert self._writer is not None
        self._writer.take(command)

    def warn(self) -> None:
        """Warn of what went wrong in the background."""
        for text in self._writer.errors() if self._writer else ():
            warnings.warn(text, CheckpointWarning, stacklevel=2)

    def close(self) -> None:
        """Wait for what is being written, then release the store."""
        if self._writer is not None:
            if not self._writer.close():
                text = f"the last checkpoint is not written yet; {self.store.place} is slow"
                warnings.warn(text, CheckpointWarning, stacklevel=2)
            self.warn()
        self.store.release()

    def interruption(self, why: str, machine: Coordinator) -> str:
        """The sentence for people whose job was stopped."""
        written = self._writer.written if self._writer else None
        state = "nothing was kept yet, it would begin anew"
        if written is not None:
            state = f"its checkpoint is of iteration {written.iteration}"
            if written.iteration < machine.iteration:
                state += f" (it had come to {machine.iteration})"
        return f"{why}; all workers were stopped, {state}; go on with: flegel resume {self.store.place}"


def new_session(place: str | os.PathLike[str], every: float) -> CheckpointSession:
    """The session of a job that begins; the place must not be in use, and must not hold another job."""
    store = open_store(place)
    try:
        taken = holds_job(store)
        holder = store.lock()
    except OSError as error:
        raise UsageError(f"{store.place} cannot be used for checkpoints ({error.strerror or error}).") from None
    if holder is not None:
        raise UsageError(f"{store.place} is in use by {holder}; choose another place.")
    if taken:
        store.release()
        raise UsageError(
            f"{store.place} holds checkpoints of a job already; go on with `flegel resume {store.place}`, or choose "
            "another place."
        )
    return CheckpointSession(store, every)


def fingerprint(sample: Sample) -> str:
    """SHA-256 of the rows that a job samples: all where they are few, else many drawn evenly over the data. A
    checkpoint keeps it, so that a job is not resumed with other data than it began with."""
    sha = hashlib.sha256(f"{sample.points} {sample.columns}".encode())
    features = sample.features
    parts = list(features[:3]) if isinstance(features, Sparse) else [features]
    for array in (*parts, *(a for a in (sample.labels, sample.weights) if a is not None)):
        sha.update(f"{array.dtype.str} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def outdated(place: str, name: str, why: str) -> UsageError:
    """The error for a checkpoint that this version of an algorithm cannot use."""
    return UsageError(
        f"The checkpoint in {place} is of another version of {name} ({why}); resume it with the version of Flegel that "
        "wrote it, or begin a new job."
    )


def _difference(what: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """The first difference in name, order or shape; empty where there is none."""
    for name in [*here, *there]:
        if name not in there:
            return f"{what} had no {name} there"
        if name not in here:
            return f"{what} had {name} there"
        if there[name] != here[name]:
            return f"{name} of {what} had the shape {there[name]} there, and has {here[name]} here"
    return "" if list(there) == list(here) else f"{what} had {', '.join(there)} there, in another order"


def _shapes(names: Sequence[str], arrays: Sequence[Array]) -> dict[str, Any]:
    return {name: array.shape for name, array in zip(names, arrays, strict=True)}


def _forms(value: Tree) -> dict[str, Any]:
    """By field: its shape, and its type where that is none of the usual."""
    return {
        name: array.shape if array.dtype == np.float64 else (array.shape, array.dtype.name)
        for name, array in zip(pytree.names(value), pytree.flatten(value), strict=True)
    }


def _restore_attributes(algorithm: Algorithm, attributes: dict[str, Any]) -> None:
    """Attributes of the algorithm besides its hyper-parameters; random generators go on where they stopped. None takes
    the place of a method."""
    for name, value in attributes.items():
        declared = getattr(type(algorithm), name, None)
        if callable(declared) or isinstance(declared, property):
            raise StorageError(f"The checkpoint holds {name} of {type(algorithm).__name__}, which cannot be.")
        if isinstance(value, GeneratorState):
            kind = getattr(np.random, str(value.state.get("bit_generator")), None)
            if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
                raise StorageError(f"The checkpoint holds a random generator of an unknown kind in {name}.")
            bits = kind()
            bits.state = value.state
            value = np.random.Generator(bits)
        vars(algorithm)[name] = value
