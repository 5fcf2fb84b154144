"""Messages between master, slaves and clients: a closed set of typed records. Nothing here acts.

A slave reports its whole state, not changes: a `SlaveBeat` lists every process that it runs or that has ended without
the master having recorded it, so a lost message is repaired by the next one. Orders may be repeated: (job, attempt,
worker, incarnation) names a process for good.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from flegel.errors import UsageError
from flegel.job import Job

MAX_SOURCE_BYTES = 512 << 10
"""Of the source of a job's class, which travels in one message and is stored by the master."""
FILE_CHUNK_BYTES = 512 << 10
"""Of a file in one message: small beside the largest frame (16 MiB), so that heartbeats are not held up."""
MAX_JOB_SPEC_BYTES = 64 << 10
"""Of a job's description with its hyper-parameters: the journal and each start of the job carry it."""
MAX_NAME_CHARACTERS = 64
"""Of the name of a job, slave, file or key; names become file names."""
COORDINATOR = -1
"""The worker number of a job's coordinator."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def check_name(name: str, what: str) -> str:
    """A name that is safe as a file's name: it cannot leave its folder."""
    if len(name) > MAX_NAME_CHARACTERS or not _NAME.fullmatch(name) or ".." in name:
        shown = name if len(name) <= MAX_NAME_CHARACTERS else f"{name[:MAX_NAME_CHARACTERS]}…"
        raise UsageError(
            f"{shown!r} is no name for a {what}: use letters, digits, '-', '_' and '.', at most {MAX_NAME_CHARACTERS}, "
            "beginning with a letter or digit."
        )
    return name


class _Record(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """Tagged, no field that is not declared."""


class _Request(_Record, kw_only=True):
    """What a client asks; the answer repeats the number."""

    number: int = 0


class _Answer(_Record, kw_only=True):
    number: int = 0


class ClusterJob(Job, frozen=True, forbid_unknown_fields=True):
    """A job as its owner asks for it. Its class is named without source, which travels and lies beside it."""

    code: str = ""
    """SHA-256 of the source; empty for built-in algorithms."""
    team_per_host: bool = False
    """Its owner gave no numbers, and its points may be visited by threads: it has one worker on each host, a team with
    a thread for each slot of the job there."""

    @property
    def description(self) -> Job:
        """Without what only the cluster needs."""
        return Job(**{name: getattr(self, name) for name in Job.__struct_fields__})


def runs_submitted_code(spec: ClusterJob) -> bool:
    """Its class is not a built-in one: slaves do not let its processes change what other jobs run."""
    return bool(spec.code) or not spec.algorithm.name.startswith("flegel.algorithms.")


# -- slave to master ---------------------------------------------------------------------------------------


class ProcessStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One process of a job on a slave: the coordinator or a worker."""

    job: str
    attempt: int
    worker: int
    incarnation: int = 0
    alive: bool = True
    outcome: str = ""
    """Of one that has ended: `done`, `suspended`, `failed` (the job said so itself) or `lost` (the process died)."""
    why: str = ""
    trace: str = ""
    usage: bool = False
    """The request itself was wrong."""
    fault: bool = False
    """Caused by the job itself as far as is known (a crash, a limit); another attempt would not help."""


class CoordinatorStatus(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A running coordinator as its slave sees it: which workers it wants, and its progress."""

    job: str
    attempt: int
    wanted: dict[int, int] = {}
    """Worker → incarnation, each of which should be running."""
    configs: dict[int, str] = {}
    """`WorkerConfig` of those that have not started yet, encoded by their coordinator and not decoded on the way. A
    missing one comes with a later heartbeat."""
    last_loss: str = ""
    """How the last worker was lost."""
    phase: str = "starting"
    saved: int = 0
    """How often this attempt has made progress and saved it."""
    elastic: bool = False
    """Workers may join and leave."""
    snapshot: dict[str, Any] = {}
    """The newest `JobSnapshot` of its coordinator as plain data; empty before there is one."""


class SlaveBeat(_Record):
    """Heartbeat: the whole state of a slave."""

    slave: str
    boot: str
    """Random, chosen at the slave's start: processes of an earlier boot are lost."""
    slots: int
    address: str
    """The address at which others reach this slave."""
    load: float = 0.0
    """Runnable processes per core that are not this cluster's."""
    memory: int = 0
    draining: bool = False
    processes: tuple[ProcessStatus, ...] = ()
    coordinators: tuple[CoordinatorStatus, ...] = ()


class SlaveLeaving(_Record):
    """The slave stops, and with it all that it ran."""

    slave: str
    boot: str


class FileChunk(_Record):
    """Part of a file of a job, beginning at `offset`: the slave's log, or a file of the result. Frame: the bytes."""

    slave: str
    job: str
    attempt: int
    file: str
    """Empty for the log."""
    offset: int


# -- master to slave ---------------------------------------------------------------------------------------


class LaunchCoordinator(_Record):
    """Start the coordinator of a job. Frame: the source of its class, where it brings one."""

    job: str
    attempt: int
    spec: ClusterJob
    workers: int
    resume: bool = False
    team_threads: tuple[int, ...] = ()
    """Of each worker, where workers are teams."""


class LaunchWorker(_Record):
    """Start a worker, with the configuration that its coordinator made."""

    job: str
    attempt: int
    worker: int
    incarnation: int
    config: str
    memory: int | None = None
    data: str = ""
    """What it will read: each slave has its own rules for that."""
    submitted: bool = True
    """See `runs_submitted_code`."""
    threads: int = 0
    """A team has at most so many threads here: the slots that it takes; 0: the worker is no team."""


class EndProcesses(_Record):
    """End every process of an attempt of a job; `worker` names one, None all."""

    job: str
    attempt: int
    worker: int | None = None
    incarnation: int | None = None


class ForgetProcesses(_Record):
    """It is recorded that these have ended: omit them from heartbeats, and remove their files."""

    processes: tuple[tuple[str, int, int, int], ...]


class WorkerEnded(_Record):
    """To a coordinator: this worker has ended."""

    job: str
    attempt: int
    worker: int
    incarnation: int
    why: str
    fault: bool = False


class ResizeJob(_Record):
    """To a coordinator: have so many workers, or parameter servers, from now on; None: as many as now."""

    job: str
    attempt: int
    workers: int | None = None
    servers: int | None = None


class StopAtBarrier(_Record):
    """To a coordinator: write a checkpoint at the next barrier and end."""

    job: str
    attempt: int


class DrainWorkers(_Record):
    """To a coordinator: these workers will end; move their points first."""

    job: str
    attempt: int
    workers: tuple[int, ...]


class FileReceived(_Record):
    """A file has so many bytes here."""

    job: str
    attempt: int
    file: str
    size: int


class SlaveRefused(_Record):
    """The master does not take this slave, and why."""

    why: str


# -- client to master and back -----------------------------------------------------------------------------


class SubmitJob(_Request):
    """A new job. `ticket` is made by the client: the same ticket twice is the same job. Frame: source, if any."""

    ticket: str
    spec: ClusterJob
    user: str = ""
    """Who asks, where the cluster has no keys to tell."""


class CancelJob(_Request):
    job: str
    user: str = ""


class ScaleJob(_Request):
    """Have so many workers, or parameter servers, from now on; None: as many as now."""

    job: str
    workers: int | None = None
    user: str = ""
    servers: int | None = None


class SuspendJob(_Request):
    """Stop a job that trains, at its next barrier, with a checkpoint; `ResumeJob` lets it continue."""

    job: str
    user: str = ""


class ResumeJob(_Request):
    """Put a job that has failed or was cancelled back into the queue; it continues from its last checkpoint."""

    job: str
    user: str = ""


class ShowJobs(_Request):
    """All jobs, or one."""

    job: str = ""


class ListSlaves(_Request):
    """All slaves."""


class ReadFile(_Request):
    """Bytes of a log (no `file`) or of a file of the result."""

    job: str
    file: str = ""
    source: str = ""
    """Whose log; empty asks which there are."""
    offset: int = 0


class JobView(msgspec.Struct, frozen=True, forbid_unknown_fields=True, rename={"snapshot": "glance"}):
    """A job as clients see it."""

    job: str
    owner: str
    state: str
    algorithm: str
    data: str
    priority: int
    workers: int | None
    submitted: float
    reason: str = ""
    started: float | None = None
    ended: float | None = None
    attempt: int = 0
    place: str = ""
    slots: dict[str, int] = {}
    """Slave → slots of this job there."""
    slots_of_worker: int = 1
    """What each worker takes; 0: each slave has one, a team with all slots of the job there."""
    trace: str = ""
    usage: bool = False
    snapshot: dict[str, Any] = {}
    """The newest `JobSnapshot` of its coordinator as plain data; empty before there is one."""
    files: tuple[str, ...] = ()


class SlaveView(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A slave as clients see it."""

    name: str
    address: str
    slots: int
    used: int
    load: float
    memory: int
    state: str


class JobList(_Answer):
    jobs: tuple[JobView, ...]


class SlaveList(_Answer):
    slaves: tuple[SlaveView, ...]


class Accepted(_Answer):
    job: str
    text: str = ""


class Denied(_Answer):
    """The request is refused, and why."""

    text: str
    usage: bool = True


class FileContent(_Answer):
    """How long the file is now, and, as a frame, what was read; `names` where it was asked which there are."""

    size: int
    names: tuple[str, ...] = ()


ToSlave = (
    LaunchCoordinator
    | LaunchWorker
    | EndProcesses
    | ForgetProcesses
    | WorkerEnded
    | ResizeJob
    | StopAtBarrier
    | DrainWorkers
    | FileReceived
    | SlaveRefused
)
FromClient = SubmitJob | CancelJob | ScaleJob | SuspendJob | ResumeJob | ShowJobs | ListSlaves | ReadFile
ToClient = JobList | SlaveList | Accepted | Denied | FileContent

TO_SLAVE = (
    LaunchCoordinator,
    LaunchWorker,
    EndProcesses,
    ForgetProcesses,
    WorkerEnded,
    ResizeJob,
    StopAtBarrier,
    DrainWorkers,
    FileReceived,
    SlaveRefused,
)
TO_CLIENT = (JobList, SlaveList, Accepted, Denied, FileContent)
RIGHTS: dict[type[msgspec.Struct], tuple[str, ...]] = {
    SlaveBeat: ("slave",),
    SlaveLeaving: ("slave",),
    FileChunk: ("slave",),
    SubmitJob: ("submit",),
    CancelJob: ("submit",),
    ScaleJob: ("submit",),
    SuspendJob: ("submit",),
    ResumeJob: ("submit",),
    ShowJobs: ("submit", "read"),
    ListSlaves: ("submit", "read"),
    ReadFile: ("submit", "read"),
}
"""Messages that a master accepts, and the roles that may send them."""
