"""Checkpoints of a job (`--checkpoint`), and what a resumed job goes on from, tied to the stages of a job."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from flegel.algorithm import Sample
from flegel.core.pytree import Tree
from flegel.datasets.rows import scale
from flegel.datasets.rows.scale import Scaling
from flegel.declarations.hidden_state import StateHooks
from flegel.declarations.optional import hook
from flegel.errors import AlgorithmError, FlegelError, Interrupted, StorageError
from flegel.loading.class_source import is_built_in
from flegel.machine.checkpoint.events import BeginCheckpoint, SaveCheckpointPart, SaveCommit, Suspend
from flegel.machine.checkpoint.part import CheckpointsPart
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.events import Event
from flegel.params.tree_layout import form_of
from flegel.runtime.checkpoint.session import CheckpointSession, fingerprint
from flegel.runtime.job.part import JobRun, Part
from flegel.runtime.job.request import may_rest
from flegel.runtime.job.warm_clusters import Kind
from flegel.runtime.system.signals import Signals
from flegel.sync import balance_mode


class CheckpointsOfJob(Part):
    """The state of the job is kept; one that goes on takes over what was kept."""

    forbids_retraining = True

    def __init__(self, running: JobRun) -> None:
        super().__init__(running)
        assert isinstance(self.request.session, CheckpointSession)
        self._session = self.request.session
        self._fingerprint = ""
        self._restored = False
        """θ comes from a checkpoint."""
        self._held: list[WorkerState] = []
        """What workers had in the checkpoint that the job goes on from; nothing without one."""
        self._signals = Signals()
        self._suspended = False

    @contextlib.contextmanager
    def around(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._session.close()

    def workers_in(self) -> Kind:
        return "processes"

    def open(self) -> None:
        self._session.note_hyper(self.request.algorithm)

    # -- θ(0) ----------------------------------------------------------------------------------------------

    def scaling(self) -> Scaling | None:
        """Shift and factor of each column as the checkpoint has them; None where columns are not scaled, or none were
        stored."""
        session, data = self._session, self.request.data
        if scale.check_method(self.request.job.scale) == "none" or not session.stored:
            return None
        if not session.stored.record.scaling:
            return None
        kept = Scaling(*(np.array(column) for column in session.stored.record.scaling))
        if any(column.shape != (data.columns,) or not np.isfinite(column).all() for column in kept):
            raise StorageError(
                f"The checkpoint in {session.store.place} scales other columns than the {data.columns} of {data.name}; "
                "begin a new job."
            )
        return kept

    def sampled(self, sample: Sample) -> None:
        self._fingerprint = fingerprint(sample)
        self._session.check(self._fingerprint, self.request.data.name)

    def former_parameter(self) -> Tree | None:
        found = self._session.parameter(self.request.algorithm)
        self._restored = found is not None
        return found

    def check_parameter(self, parameter: Tree, fresh: Callable[[], Tree]) -> None:
        if self._restored:
            self._session.check_parameter(self.request.algorithm, parameter, fresh())

    def explain(self, error: FlegelError) -> FlegelError | None:
        """A built-in algorithm accepted its own θ when it made it: another version refuses it now."""
        algorithm = self.request.algorithm
        if not self._restored or not is_built_in(algorithm) or not isinstance(error, AlgorithmError):
            return None
        return self._session.outdated(algorithm, str(error).removesuffix(" (before training)"))

    def started(self) -> None:
        """What workers had is checked: somebody else may have written the checkpoint."""
        request, prepared, session, running = self.request, self.running.prepared, self._session, self.running
        algorithm = request.algorithm
        if balance_mode(request.job.sync, request.workers) != "off" and may_rest(request.job):
            session.keep_active_workers(request.workers)
        keys = request.data.keys() if request.data.source.keyed and request.resumed else None
        held = session.parts(algorithm, request.workers, request.data.columns, request.job.seed, keys)
        session.check_forms(algorithm, prepared.parameter, prepared.zero, prepared.state, held)
        limits = hook(algorithm, StateHooks.stateLimits)(prepared.parameter)
        session.check_points(limits, request.data.rows, held)
        self._held = held
        running.owners = [part.ids for part in held]
        running.shards = {worker: part.frames() for worker, part in enumerate(held)}
        running.resting = session.active_workers

    # -- training ------------------------------------------------------------------------------------------

    def load_options(self, worker: int) -> dict[str, Any]:
        return {"elapsed": self._session.seconds, "kept": self._held[worker].kept if self._held else None}

    def machine(self) -> CheckpointsPart:
        return CheckpointsPart(self._session.schedule())

    @contextlib.contextmanager
    def training(self) -> Iterator[None]:
        """Restore the coordinator to where the job stood, and, while it trains, have the first Ctrl-C suspend the job
        instead of ending it."""
        running, request, session, prepared = self.running, self.request, self._session, self.running.prepared
        machine = running.machine
        session.restore(machine, self._held)
        forms = (form_of(prepared.parameter), form_of(prepared.zero))
        summary = request.data.summary()
        session.begin(request.job, request.algorithm, summary, machine, self._fingerprint, running.scaling, forms)
        running.shift = session.shift
        with self._signals as signals:
            yield
            if signals.why and machine.verdict is None:
                session.close()
                raise Interrupted(session.interruption(signals.why, machine), signals.exit_code)

    def commands(self) -> Mapping[type, Callable[[Any], None]]:
        return dict.fromkeys((BeginCheckpoint, SaveCheckpointPart, SaveCommit), self._session.take)

    def asks(self) -> Iterable[Event]:
        if self._suspended or not self._signals.why:
            return ()
        self._suspended = True
        return [Suspend(self._signals.why)]

    def look(self) -> None:
        self._session.warn()
