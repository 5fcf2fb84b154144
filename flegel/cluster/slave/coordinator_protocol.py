"""What a job's coordinator process and its slave tell each other, one JSON record a line. Nothing here acts."""

from __future__ import annotations

from typing import Any

import msgspec

from flegel.cluster.transport.protocol import ClusterJob, DrainWorkers, ResizeJob, WorkerEnded


class _Line(msgspec.Struct, forbid_unknown_fields=True, tag=True):
    """Tagged, no field that is not declared."""


class JobAssignment(_Line):
    """To the coordinator, first of all: the job, and where things lie."""

    job: str
    attempt: int
    spec: ClusterJob
    source: str
    """File with the source of its class; empty for a built-in one."""
    workers: int
    host: str
    """The address of this host for workers elsewhere."""
    result: str
    """Folder to be made for the result."""
    checkpoints: str
    resume: bool


class WorkersWanted(_Line):
    """These workers (→ life) should run, and what each that is not there yet must be told at its start."""

    wants: dict[int, int]
    births: dict[int, str]
    trouble: str = ""
    """How the last worker was lost."""


class PhaseChanged(_Line):
    """What the job does now; `elastic`: workers may join and leave from now on."""

    name: str
    elastic: bool = False
    hook: str = ""
    """The hook that is entered now, in the phase before training."""


class ProgressSeen(_Line):
    """For people who watch."""

    glance: dict[str, Any]


class ProgressSaved(_Line):
    """The job has got on since the last time; what was reached is kept."""


class JobFinished(_Line):
    """The last words: the result lies in its folder, or why there is none."""

    done: bool
    why: str
    trace: str = ""
    usage: bool = False


Up = WorkersWanted | PhaseChanged | ProgressSeen | ProgressSaved | JobFinished
Down = WorkerEnded | ResizeJob | DrainWorkers

encode = msgspec.json.Encoder().encode
read_up = msgspec.json.Decoder(Up).decode
read_down = msgspec.json.Decoder(Down).decode
