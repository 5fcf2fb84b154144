"""The registry of parts: what a job can do without, one line each, in the order in which parts are asked.

A line names the class by its module, which is imported only where the job wants the part. To add a part: one class, one
line here. To remove one: delete its line and its folder; the heart of a job (`run.py`) does not notice.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import NamedTuple

from flegel.group_options import GroupSpec
from flegel.job import Job
from flegel.runtime.job.part import JobRun, Part
from flegel.runtime.job.request import Request, may_rest
from flegel.sync import balance_mode, models


class PartLine(NamedTuple):
    """One part."""

    name: str
    place: str
    """Module and class."""
    wanted: Callable[[Request], bool]
    """Whether this job has the part; asked before the options are checked."""
    early: Callable[[Job], bool] | None = None
    """Whether its options are to be checked before the data are opened."""
    folders: tuple[str, ...] = ()
    """Packages and modules of this part besides `place`; no job that does without the part imports them."""


def _always(request: Request) -> bool:
    return True


def _balances(request: Request) -> bool:
    """Points move; a model that does not exist is refused later."""
    if request.job.sites.gates_workers:  # it judges each worker by points of its own
        return False
    return request.job.sync.model in models() and balance_mode(request.job.sync, request.workers) != "off"


PARTS = (
    PartLine("observers", "flegel.runtime.parts.observers:ObserversPart", _always),
    PartLine("passes", "flegel.runtime.parts.passes:EndsOfPasses", lambda r: any(o.passes for o in r.observers)),
    PartLine("hook watch", "flegel.runtime.parts.hook_watch:HookWatchPart", _always),
    PartLine("all-reduce", "flegel.runtime.parts.all_reduce:AllReduce", lambda r: r.job.topology == "allreduce"),
    PartLine(
        "servers",
        "flegel.runtime.server.part:ServersOfJob",
        lambda r: str(r.job.servers) != "0",
        folders=("flegel.runtime.server", "flegel.machine.server"),
    ),
    PartLine(
        "groups",
        "flegel.runtime.group.part:GroupOfJob",
        lambda r: bool(r.job.sites.group or r.job.sites.bucket),
        early=lambda job: job.sites != GroupSpec(),
        folders=("flegel.runtime.group", "flegel.machine.group"),
    ),
    PartLine(
        "gate of workers",
        "flegel.runtime.parts.worker_gate:GateOfWorkers",
        lambda r: r.job.sites.gates_workers,
        folders=("flegel.machine.worker_gate", "flegel.params.gated"),
    ),
    PartLine(
        "expensive points",
        "flegel.runtime.parts.expensive_points:ExpensivePoints",
        lambda r: r.job.expensive != "fail",
    ),
    PartLine("stragglers", "flegel.runtime.parts.stragglers:SlowWorkers", lambda r: bool(r.job.straggler)),
    PartLine(
        "checkpoints",
        "flegel.runtime.checkpoint.part:CheckpointsOfJob",
        lambda r: r.session is not None,
        folders=("flegel.runtime.checkpoint", "flegel.machine.checkpoint"),
    ),
    PartLine(
        "scaling",
        "flegel.runtime.parts.scaling:ScaledColumns",
        lambda r: r.job.scale != "none",
        folders=("flegel.machine.scaling_moments",),
    ),
    PartLine("validation", "flegel.runtime.parts.validation:HeldOutRows", lambda r: r.data.held_out is not None),
    PartLine("compiler", "flegel.runtime.parts.compile_ahead:CompileAhead", _always),
    PartLine(
        "rows beyond memory", "flegel.runtime.parts.rows_beyond_memory:RowsBeyondMemory", lambda r: not r.data.in_memory
    ),
    PartLine("rows in place", "flegel.runtime.parts.lent_rows:LentRows", lambda r: r.data.in_memory),
    PartLine(
        "resting",
        "flegel.runtime.parts.resting:Resting",
        lambda r: _balances(r) and may_rest(r.job),
        folders=("flegel.machine.resting",),
    ),
    PartLine(
        "audit",
        "flegel.runtime.parts.audit:Audits",
        # neither statistics without abandoned visits nor those without withheld reports are what all points say
        lambda r: r.job.audit != "off" and r.job.expensive == "fail" and not r.job.sites.gates_workers,
        folders=("flegel.machine.audit",),
    ),
    PartLine(
        "balance",
        "flegel.runtime.parts.balance:BalancedPoints",
        lambda r: _balances(r) or r.balance is not None,
        folders=("flegel.machine.balance",),
    ),
    PartLine(
        "threads",
        "flegel.runtime.parts.team:ThreadsOfWorkers",
        lambda r: r.job.threads is not None,
        folders=("flegel.runtime.backends.numba.team", "flegel.runtime.backends.numba.team_threads"),
    ),
)


def parts_of(running: JobRun) -> tuple[Part, ...]:
    """The parts that this job wants."""
    return tuple(_load(line)(running) for line in PARTS if line.wanted(running.request))


def check_early(job: Job) -> None:
    """Refuse options of parts that cannot work, before minutes of reading."""
    for line in PARTS:
        if line.early is not None and line.early(job):
            _load(line).check_job(job)


def _load(line: PartLine) -> type[Part]:
    module, _, name = line.place.partition(":")
    found: type[Part] = getattr(importlib.import_module(module), name)
    return found
