"""Whether a job of this host trains by one team of threads or by several workers, and why. Starts nothing.

A team visits the points of one shard by threads of one process (`flegel/runtime/backends/numba/team.py`): rows are in
one place, a round needs no message, and a busy core takes fewer points. Several workers are for what a team cannot do.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from flegel.algorithm import Algorithm, visit_hooks
from flegel.configuration.active import active
from flegel.datasets import Dataset
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import defines
from flegel.job import Job
from flegel.loading.class_source import is_built_in
from flegel.params.ledger import sums_alone
from flegel.runtime.job.request import Request, pass_work
from flegel.runtime.system.processors import computing_threads
from flegel.sync import model_of
from flegel.wording import counted

_lock = threading.Lock()
_in_use = 0
"""Threads that train for jobs of this process now, and processes with a thread each."""


class TeamChoice(NamedTuple):
    """Threads of the team, 0 for none; and why there is none, for people."""

    threads: int
    reason: str = ""
    if_compiled: bool = False
    """The team is for compiled hooks alone, and whether they compile is seen when that is tried."""


class NotCompiled(Exception):
    """Hooks of a class that was to train by a team do not compile."""

    def __init__(self, note: str) -> None:
        """`note`: why, as the compiler says it."""
        super().__init__(note)
        self.note = note

    def sentence(self, name: str, workers: int) -> str:
        """What the user is told of a class of this name, which so many workers train instead."""
        return f"{counted(workers, 'worker')}: hooks of {name} do not compile, and interpreted ones take turns"


def obstacle(algorithm: Algorithm) -> str:
    """Why threads cannot visit points of this class together; empty where they can."""
    name = type(algorithm).__name__
    if algorithm.kernels.backend:
        return f"{name} trains with a library that has threads of its own"
    if not sums_alone(algorithm):
        return f"{name} merges statistics in its own way"
    if defines(algorithm, KernelHooks.localParameter) and not _sees_theta_itself(algorithm):
        return f"{name} changes its parameters between two points"
    return ""


def _sees_theta_itself(algorithm: Algorithm) -> bool:
    """A class may define `localParameter` for some of its solvers only. A hand-written kernel trains on a copy of θ by
    what was gathered since the barrier; where no field of the statistics is used up at a barrier there is no copy."""
    return defines(algorithm, KernelHooks.kernel) and not algorithm.statistics.spent


def team_for(job: Job, algorithm: Algorithm, data: Dataset) -> TeamChoice:
    """The team of a job that was given no number of workers. Several workers where a class, a model or an option is
    about them; then the reason says so."""
    model = model_of(job.sync)
    about_workers = {
        "topologies": job.topology != "coordinator",
        "gates": job.sites.gates_workers,
        "partitions": job.partition != "shuffle",
        "keys": job.keep_together is not None,
    }
    if reason := _needs_single_threads(job, algorithm):
        return TeamChoice(0, reason)
    if not model.all_report:
        return TeamChoice(0, f"{job.sync.name} is about several workers")
    for name, given in about_workers.items():
        if given:
            return TeamChoice(0, f"{name} are about several workers")
    own = not is_built_in(algorithm)
    if own and (reason := own_obstacle(job, algorithm)):
        return TeamChoice(0, f"{type(algorithm).__name__} {reason}")
    return TeamChoice(job.threads or threads_for(algorithm, data), if_compiled=own)


def _needs_single_threads(job: Job, algorithm: Algorithm) -> str:
    """Why workers of this job are no teams unless that is asked for, wherever they are; empty where they may be."""
    if reason := obstacle(algorithm):
        return reason
    if job.expensive != "fail":
        return "a visit that may be abandoned has a thread of its own"
    about_workers = {
        "stragglers": job.straggler,
        "devices": job.device or job.gpus,
        "servers": str(job.servers) != "0",
        "groups": job.sites.group or job.sites.bucket,
    }
    return next((f"{name} are about several workers" for name, given in about_workers.items() if given), "")


def team_per_host(job: Job, algorithm: Algorithm) -> bool:
    """Whether a job of a cluster has one team on each of its hosts: its owner gave no numbers, and threads may visit
    the points. A class of the user's has a process for each slot: whether its hooks compile is known when it runs."""
    chosen = job.workers is not None or job.threads is not None
    return not chosen and is_built_in(algorithm) and not _needs_single_threads(job, algorithm)


def own_obstacle(job: Job, algorithm: Algorithm) -> str:
    """Why a class of the user's trains by several processes unless a team is asked for; empty where it does not."""
    cls = type(algorithm)
    own_kernel: Any = getattr(cls, "kernel", None)
    if own_kernel is not None and not own_kernel.__module__.startswith("flegel."):
        return "has a kernel of its own, which may not be made for threads"
    if any("random" in function.__code__.co_names for function in visit_hooks(cls)):
        return "draws random numbers at visits, which each thread would do in its own way"
    if job.checkpoint is not None:
        return "keeps checkpoints: of several processes a crash costs one"
    return ""


def threads_for(algorithm: Algorithm, data: Dataset) -> int:
    """One for each processor that no other team of this process uses, fewer where a pass is short."""
    with _lock:
        free = computing_threads() - _in_use
    return int(max(min(pass_work(algorithm, data) / active().processors.work_per_thread, free, data.rows), 1))


@contextmanager
def in_use(threads: int, least: int | None = None) -> Iterator[int]:
    """A job trains with so many threads, or where `least` is given with no more than others leave, but `least`; other
    jobs of this process have fewer meanwhile. Of jobs that begin at the same time none takes what another one took."""
    global _in_use
    with _lock:
        taken = threads if least is None else max(min(threads, computing_threads() - _in_use), least)
        _in_use += taken
    try:
        yield taken
    finally:
        with _lock:
            _in_use -= taken


def _forget() -> None:
    """In a forked process, where no job of its parent trains."""
    global _lock, _in_use
    _lock, _in_use = threading.Lock(), 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def with_processors(request: Request) -> Iterator[Request]:
    """The job as it trains, and the processors for it, from its first stage on: a team that was given no number of
    threads has no more than other jobs of this process leave by now."""
    job = request.job
    if job.device or job.gpus:
        yield request
    elif request.workers > 1 or job.threads is None:
        with in_use(request.workers * (job.threads or 1)):
            yield request
    else:
        with in_use(job.threads, least=1 if request.threads_are_chosen else None) as threads:
            same = threads == job.threads
            yield request if same else replace(request, job=msgspec.structs.replace(job, threads=threads))
