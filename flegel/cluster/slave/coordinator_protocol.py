"""Messages between a job's coordinator process and its slave, one JSON record a line. Nothing here acts."""

from __future__ import annotations

from typing import Any

import msgspec

from flegel.cluster.transport.protocol import ClusterJob, DrainWorkers, ResizeJob, StopAtBarrier, WorkerEnded


class _Line(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """Tagged, no field that is not declared."""


class JobAssignment(_Line):
    """To the coordinator, first of all: the job, and where its files are."""

    job: str
    attempt: int
    spec: ClusterJob
    source: str
    """File with the source of its class; empty for a built-in one."""
    workers: int
    host: str
    """The address of this host for workers elsewhere."""
    result: str
    """Folder to create for the result."""
    checkpoints: str
    resume: bool
    team_threads: tuple[int, ...] = ()
    """Of each worker, where workers are teams."""


class WorkersWanted(_Line):
    """These workers (→ incarnation) should run, and the configuration of each that is not ready yet."""

    wanted: dict[int, int]
    configs: dict[int, str]
    last_loss: str = ""
    """How the last worker was lost."""


class PhaseChanged(_Line):
    """A phase has begun; `elastic`: workers may join and leave from now on."""

    name: str
    elastic: bool = False
    hook: str = ""
    """The hook that is entered now, in the phase before training."""


class ProgressSeen(_Line, rename={"snapshot": "glance"}):
    """For people who watch the job."""

    snapshot: dict[str, Any]


class ProgressSaved(_Line):
    """The job has made progress since the last such report, and a checkpoint has it."""


class JobFinished(_Line):
    """The last report: the result is in its folder, or why there is none."""

    done: bool
    why: str
    trace: str = ""
    usage: bool = False
    suspended: bool = False
    """It was told to stop, and its last checkpoint is written."""


Report = WorkersWanted | PhaseChanged | ProgressSeen | ProgressSaved | JobFinished
Command = WorkerEnded | ResizeJob | StopAtBarrier | DrainWorkers

encode = msgspec.json.Encoder().encode
decode_report = msgspec.json.Decoder(Report).decode
decode_command = msgspec.json.Decoder(Command).decode
