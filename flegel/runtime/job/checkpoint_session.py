"""A job's record in its vault: what it is, where it stood, how it goes on. Ties a request to checkpoints.

`run.py` asks it for θ and shares before training, has it put the coordinator into its former state, and closes it at
the end. Decides what a job goes on from: the newest complete checkpoint, or a newer commit.
"""

from __future__ import annotations

import hashlib
import math
import os
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from flegel.algorithm import Algorithm, Sample
from flegel.core import pytree
from flegel.core.pytree import Array, Tree
from flegel.core.shard import Sparse
from flegel.errors import StorageError, UsageError
from flegel.machine.checkpoint import shard_states, snapshot
from flegel.machine.checkpoint.plain_data import GeneratorState
from flegel.machine.checkpoint.resume import NewerCommit, continue_from, restore
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.checkpoint_schedule import CheckpointSchedule
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit
from flegel.messages import TreeLayout
from flegel.runtime import clock
from flegel.runtime.checkpoint.reader import StoredJob, holds_job
from flegel.runtime.checkpoint.store import CheckpointStore, open_store
from flegel.runtime.checkpoint.writer import FORMAT, Checkpointer, DataRef, JobRecord
from flegel.runtime.job.class_source import in_json, plain_hyper, reference
from flegel.runtime.job.find_algorithm import home_of
from flegel.runtime.worker.trainer import build

if TYPE_CHECKING:
    from flegel.runtime.job.run import Request

EVERY = 30.0  # seconds between two checkpoints, where nobody says otherwise


class CheckpointWarning(UserWarning):
    """A checkpoint is not as it should be; training goes on."""


@dataclass
class CheckpointSession:
    """`found`: the job goes on from there; `exact`: from the checkpoint itself, even where a newer θ is known."""

    vault: CheckpointStore
    every: float = EVERY
    spec: str | None = None
    label: str | int | None = None
    found: StoredJob | None = None
    exact: bool = True
    given: dict[str, Any] = field(default_factory=dict)
    """Hyper-parameters before any hook ran."""
    _writer: Checkpointer | None = field(default=None, repr=False)

    def note(self, algorithm: Algorithm) -> None:
        """Before any hook runs."""
        self.given = self.found.job.given if self.found else {k: in_json(v) for k, v in plain_hyper(algorithm).items()}

    # -- before training -----------------------------------------------------------------------------------

    @property
    def newer(self) -> bool:
        """A commit after the newest checkpoint is to be gone on from."""
        found = self.found
        if found is None or found.commit is None:
            return False
        return found.manifest is None or (not self.exact and found.commit.iteration > found.manifest.iteration)

    @property
    def shift(self) -> float:
        """What the job's clock is ahead of this host's."""
        return float(self.found.state["now"]) - clock.now() if self.found and self.found.manifest else 0.0

    def parameter(self, algorithm: Algorithm) -> Tree | None:
        """θ to go on with; None where the job begins anew."""
        found = self.found
        if found is None or (found.manifest is None and found.commit is None):
            return None
        if self.newer and found.commit is not None:
            arrays = found.commit.parameter
        else:
            arrays = snapshot.parameter_of(found.state)
        form = found.job.parameter
        if form.fields and reference(algorithm).builtin:  # of classes that are not, the code itself was compared
            own = getattr(sys.modules[type(algorithm).__module__], form.name, None)
            known = dict.fromkeys(getattr(own, "_fields", ()))
            if why := _difference("θ", dict.fromkeys(form.fields), known):
                raise self.outdated(algorithm, why)
        return build(form, tuple(arrays), algorithm)

    def check_forms(self, algorithm: Algorithm, zero: Tree, state: Array, parts: list[WorkerState]) -> None:
        """Statistics and states that were kept must be such as the algorithm has now: compiled code trusts in that."""
        found = self.found
        if found is None or found.manifest is None:
            return
        kept = [a.shape for a in snapshot.statistics_of(found.state)]
        old = dict(zip(found.job.statistics.fields or pytree.names(kept), kept, strict=True))
        new = dict(zip(pytree.names(zero), [a.shape for a in pytree.flatten(zero)], strict=True))
        if why := _difference("the statistics", old, new):
            raise self.outdated(algorithm, why)
        for part in parts:
            if part.state.shape[1:] != state.shape[1:]:  # the type may differ: it follows that of the rows
                size, now = part.state.shape[1], state.shape[1]
                raise self.outdated(algorithm, f"a point's state has {size} numbers there, and {now} here")

    def outdated(self, algorithm: Algorithm, why: str) -> UsageError:
        return outdated(self.vault.place, type(algorithm).__name__, why)

    def parts(self, request: Request) -> list[WorkerState]:
        """What each worker is to hold; nothing where no states were kept."""
        if self.found is None or self.found.manifest is None:
            return []
        parts, algorithm = self.found.parts, request.algorithm
        if self.redealt(request.workers):
            parts = shard_states.redeal(parts, request.workers)
        if self.newer and algorithm.remakes_state:
            rng, columns = np.random.default_rng(request.seed), request.data.columns
            parts = [shard_states.unvisited(p, algorithm.initState(p.points, columns, rng)) for p in parts]
        return parts

    def redealt(self, workers: int) -> bool:
        """Another crew than that of the checkpoint: points are dealt anew."""
        return self.found is not None and snapshot.workers_of(self.found.state) != tuple(range(workers))

    def check(self, fingerprint: str, data: str) -> None:
        if self.found is not None and self.found.job.data.fingerprint != fingerprint:
            raise UsageError(
                f"{data} is not the data of the checkpoint in {self.vault.place} (other rows or values); resume with "
                "the same data, or begin a new job."
            )

    # -- training ------------------------------------------------------------------------------------------

    def schedule(self) -> CheckpointSchedule:
        return CheckpointSchedule(self.every, self.found.number if self.found else 0)

    def restore(self, machine: Coordinator, parts: list[WorkerState]) -> None:
        """Put the coordinator where the job stood."""
        found = self.found
        if found is None:
            return
        newer = None
        if self.newer and found.commit is not None:
            c = found.commit
            newer = NewerCommit(c.round, c.iteration, c.seconds, machine.parameter)
        if found.manifest is not None:
            _remember(machine.state.algorithm, snapshot.algorithm_of(found.state))
            held = dict(enumerate(parts))
            restore(machine, found.state, held, newer, redealt=self.redealt(len(parts)))
            machine.trace.extend(found.rows)
            if machine.state.criteria != found.job.criteria:
                machine.state.verdict = None
        elif newer is not None:
            continue_from(machine, newer, clock.now(), started=False)

    def begin(
        self,
        request: Request,
        machine: Coordinator,
        fingerprint: str,
        scaling: Any,
        forms: tuple[TreeLayout, TreeLayout],
    ) -> None:
        """Write what the job is; from now on its state is kept."""
        ref = reference(request.algorithm)
        job = JobRecord(
            format=FORMAT,
            epoch=self.found.epoch + 1 if self.found else 0,
            algorithm=msgspec.structs.replace(ref, hyper={k: in_json(v) for k, v in ref.hyper.items()}),
            given=self.given,
            word=home_of(type(request.algorithm)),
            data=DataRef(self.spec, self.label, fingerprint, request.data.summary()),
            workers=request.workers,
            sync=request.sync,
            criteria=request.criteria,
            seed=request.seed,
            straggler=request.straggler,
            partition=request.partition,
            scale=request.scale,
            scaling=None if scaling is None else tuple(tuple(map(float, column)) for column in scaling),  # type: ignore[arg-type]
            collect_state=request.collect_state,
            attribute=request.attribute,
            every=self.every,
            parameter=forms[0],
            statistics=forms[1],
        )
        self._writer = Checkpointer(self.vault, job, machine.trace, self.found)
        try:
            self._writer.start()
        except OSError as error:
            raise StorageError(
                f"Checkpoints cannot be written to {self.vault.place} ({error.strerror or error}); choose another."
            ) from None

    def take(self, command: BeginCheckpoint | SaveCheckpointPart | SaveCommit) -> None:
        assert self._writer is not None
        self._writer.take(command)

    def tell(self) -> None:
        """Warn of what went wrong in the background."""
        for text in self._writer.troubles() if self._writer else ():
            warnings.warn(text, CheckpointWarning, stacklevel=2)

    def close(self) -> None:
        """Wait for what is being written, then let the place go."""
        if self._writer is not None:
            if not self._writer.close():
                text = f"the last checkpoint is not written yet; {self.vault.place} is slow"
                warnings.warn(text, CheckpointWarning, stacklevel=2)
            self.tell()
        self.vault.release()

    def last_words(self, why: str, machine: Coordinator) -> str:
        """For people whose job was stopped."""
        written = self._writer.written if self._writer else None
        state = "nothing was kept yet, it would begin anew"
        if written is not None:
            state = f"its checkpoint is of iteration {written.iteration}"
            if written.iteration < machine.iteration:
                state += f" (it had come to {machine.iteration})"
        return f"{why}; all workers were stopped, {state}; go on with: flegel resume {self.vault.place}"


def new_session(
    place: str | os.PathLike[str], every: float, spec: object, label: str | int | None
) -> CheckpointSession:
    """For a job that begins: the place must be free."""
    if not every > 0 or not math.isfinite(every):
        raise UsageError(f"The time between checkpoints must be more than 0 seconds, not {every:g}.")
    vault = open_store(place)
    try:
        taken = holds_job(vault)
        holder = vault.lock()
    except OSError as error:
        raise UsageError(f"{vault.place} cannot be used for checkpoints ({error.strerror or error}).") from None
    if holder is not None:
        raise UsageError(f"{vault.place} is in use by {holder}; choose another place.")
    if taken:
        vault.release()
        raise UsageError(
            f"{vault.place} holds checkpoints of a job already; go on with `flegel resume {vault.place}`, or choose "
            "another place."
        )
    return CheckpointSession(vault, every, whereabouts(spec), label)


def whereabouts(spec: object) -> str | None:
    """A name or path that finds the same data from any folder; None for rows that only Python has."""
    if not isinstance(spec, str | Path):
        return None
    path = Path(spec).expanduser()
    return str(path.absolute()) if "://" not in str(spec) and path.exists() else str(spec)


def fingerprint(sample: Sample) -> str:
    """Of the rows that a job looks at first: all where they are few, else many drawn evenly over the data."""
    sha = hashlib.sha256(f"{sample.points} {sample.columns}".encode())
    features = sample.features
    parts = list(features[:3]) if isinstance(features, Sparse) else [features]
    for array in (*parts, *([] if sample.labels is None else [sample.labels])):
        sha.update(f"{array.dtype.str} {array.shape}".encode())
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def outdated(place: str, name: str, why: str) -> UsageError:
    """What was kept is not for this algorithm as it is now."""
    return UsageError(
        f"The checkpoint in {place} is of another version of {name} ({why}); resume it with the version of Flegel that "
        "wrote it, or begin a new job."
    )


def _difference(what: str, there: dict[str, Any], here: dict[str, Any]) -> str:
    """What is another by name, order or shape; nothing where nothing is."""
    for name in [*here, *there]:
        if name not in there:
            return f"{what} had no {name} there"
        if name not in here:
            return f"{what} had {name} there"
        if there[name] != here[name]:
            return f"{name} of {what} had the shape {there[name]} there, and has {here[name]} here"
    return "" if list(there) == list(here) else f"{what} had {', '.join(there)} there, in another order"


def _remember(algorithm: Algorithm, memory: dict[str, Any]) -> None:
    """What the algorithm held beside its hyper-parameters; dice go on where they lay."""
    for name, value in memory.items():
        if isinstance(value, GeneratorState):
            kind = getattr(np.random, str(value.state.get("bit_generator")), None)
            if not (isinstance(kind, type) and issubclass(kind, np.random.BitGenerator)):
                raise StorageError(f"The checkpoint holds dice of an unknown kind in {name}.")
            bits = kind()
            bits.state = value.state
            value = np.random.Generator(bits)
        vars(algorithm)[name] = value
