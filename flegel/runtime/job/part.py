"""A job on its way to its result, and the interface of what plugs into it. Decides nothing.

A job is a list of stages: check → place → read → start → compile → load → train → collect (`run.py`). What it can do
without, such as checkpoints, parameter servers or validation, is a part: one class that overrides the hooks at which it
acts, one line in the registry (`parts.py`). Parts are asked in the order of the registry. A part knows the job by
`JobRun` and no other part; a job that does not want a part never imports it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

from flegel.algorithm import Sample
from flegel.core.pytree import Array, Tree
from flegel.datasets.rows.scale import Scaling
from flegel.errors import FlegelError
from flegel.job import Job
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Event, Timeouts
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.params.protocol import ParameterStore
from flegel.plan.active_workers import ActiveWorkers
from flegel.results.result import Result
from flegel.runtime.backends.numba.kernels import Built
from flegel.runtime.job.placement import JobCluster
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request
from flegel.runtime.job.warm_clusters import Kind
from flegel.runtime.processes.cluster_protocol import Cluster

Found = TypeVar("Found")


def first(found: Iterable[Found | None]) -> Found | None:
    """The first that is there; later ones are not even made."""
    return next((each for each in found if each is not None), None)


@dataclass
class JobRun:
    """What is known of a job so far: each stage fills some of it, and parts read it."""

    request: Request
    began: float
    """When the job was asked for, on this process's clock."""
    parts: tuple[Part, ...] = ()
    ending: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """What is closed when the job is over, however it ends."""
    job_cluster: JobCluster = field(init=False)
    """Stage place: where the workers run."""
    scaling: Scaling | None = None
    """Stage start: how columns are scaled."""
    prepared: PreparedJob = field(init=False)
    """Stage start: θ(0) and empty statistics."""
    built: Built = field(init=False)
    """Stage compile: the kernel."""
    cluster: Cluster = field(init=False)
    """Stage load: the workers."""
    source: dict[str, Any] = field(default_factory=dict)
    """Stage load: how workers read their rows."""
    keys: Array | None = None
    """Stage load: the key of each row, where rows of one key stay together."""
    owners: list[Array] = field(default_factory=list)
    """Numbers of the rows of each worker, where an earlier run decided that."""
    resting: ActiveWorkers | None = None
    """Who worked and who rested when an earlier run stopped."""
    shards: dict[int, tuple[Array, ...]] = field(default_factory=dict)
    """What workers held in an earlier run, as frames that follow their loads."""
    machine: Coordinator = field(init=False)
    """Stage train: the coordinator."""
    shift: float = 0.0
    """Seconds by which the clock of a resumed job is ahead of this host's."""
    followed: dict[str, float] = field(default_factory=dict)
    """Figures beside those of the machine that observers see, such as those of held-out rows."""
    result: Result | None = None

    @property
    def timeouts(self) -> Timeouts:
        job = self.request.job
        # A worker that may abandon a visit does so by itself after `hook_timeout`, and has time to go on.
        hook = job.hook_timeout if job.expensive == "fail" else 3 * job.hook_timeout
        return Timeouts(silence=job.worker_timeout, hook=hook)


class Part:
    """A part without any effect; subclasses override what they need."""

    forbids_retraining: ClassVar[bool] = False
    """Training cannot begin a second time in the same run, because others have seen it."""

    def __init__(self, running: JobRun) -> None:
        self.running, self.request = running, running.request

    # -- check, place --------------------------------------------------------------------------------------

    @staticmethod
    def check_job(job: Job) -> None:
        """Refuse options that cannot work, before the data are opened. Asked where the registry says so."""

    def around(self) -> contextlib.AbstractContextManager[object]:
        """Entered before anything else is done, left when the job is over; sees its error."""
        return contextlib.nullcontext()

    def check(self) -> None:
        """Refuse what cannot work in one sentence. Nothing is opened, nothing is read."""

    def workers_in(self) -> Kind | None:
        """Whether workers must be processes or threads; None: as it is faster."""
        return None

    def open(self) -> None:
        """The shape of the data fits: open what takes time while rows are read."""

    # -- read, start ---------------------------------------------------------------------------------------

    def read(self) -> None:
        """The rows are about to be read."""

    def scaling(self) -> Scaling | None:
        """How columns are scaled; the first part that knows decides."""
        return None

    def sampled(self, sample: Sample) -> None:
        """The rows from which θ(0) is made, as they are in the data."""

    def former_parameter(self) -> Tree | None:
        """θ(0) from elsewhere; None: the algorithm makes one. Asked from the last part to the first, and the first that
        knows decides: what a job had in its checkpoint is newer than what groups began with."""
        return None

    def joint_sample(self, sample: Sample) -> Sample:
        """The rows from which the algorithm makes θ(0)."""
        return sample

    def check_parameter(self, parameter: Tree, fresh: Callable[[], Tree]) -> None:
        """Refuse a θ(0) from elsewhere that does not fit; `fresh` makes one as a new job would have it."""

    def explain(self, error: FlegelError) -> FlegelError | None:
        """A hook has refused θ(0): a better error, where this part knows the reason."""
        return None

    def place_parameter(self, parameter: Tree) -> Tree:
        """θ(0) where it is to lie in memory."""
        return parameter

    def agrees(self) -> bool:
        """Scaling and θ(0) are those to train with; False: they are made again."""
        return True

    def started(self) -> None:
        """θ(0) is known; nothing has been compiled or loaded."""

    # -- load, train ---------------------------------------------------------------------------------------

    def source(self) -> dict[str, Any] | None:
        """How workers read rows that only this process has; None: as usual. The first part that knows decides."""
        return None

    def loading(self) -> None:
        """The workers are about to load."""

    def store(self) -> ParameterStore | None:
        """Where θ and the statistics live; None: in the coordinator. The first part that knows decides."""
        return None

    def load_options(self, worker: int) -> Mapping[str, Any]:
        """Fields of the `LoadShard` of this worker."""
        return {}

    def machine(self) -> CoordinatorPart | None:
        """What this part adds to the coordinator."""
        return None

    def training(self) -> contextlib.AbstractContextManager[object]:
        """Entered when the coordinator is made, left when it is done."""
        return contextlib.nullcontext()

    def commands(self) -> Mapping[type, Callable[[Any], None]]:
        """Commands of the coordinator that this part carries out; each call returns at once."""
        return {}

    def arrivals(self) -> Iterable[Event]:
        """Events that have come in since the last call; asked whenever the job's loop wakes up."""
        return ()

    def asks(self) -> Iterable[Event]:
        """Events for the coordinator; asked ten times a second."""
        return ()

    def look(self) -> None:
        """Ten times a second and at milestones, from the last part to the first: look at the coordinator."""

    def recovers(self, error: FlegelError) -> bool:
        """Training has failed; True: this part has changed something, and it can begin again."""
        return False

    # -- collect -------------------------------------------------------------------------------------------

    def section(self) -> Mapping[str, Any]:
        """Fields of the result. Of several parts mappings are merged, and lists follow each other."""
        return {}
