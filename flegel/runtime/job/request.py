"""A job together with what only this process has of it: algorithm, rows, processes, displays. Starts nothing.

Checks here need no processes and read no rows, so that wrong use is told at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

from flegel.algorithm import Algorithm, visit_hooks
from flegel.configuration.active import active
from flegel.core.pytree import Tree
from flegel.datasets import Dataset, open_data
from flegel.datasets.rows.memory import configured_limit
from flegel.datasets.rows.partition import parse
from flegel.declarations.check import check_complete
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.learning import LearningHooks
from flegel.declarations.optional import defines, hook
from flegel.errors import DataError, UsageError
from flegel.job import Job
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.options import check_options
from flegel.plan.devices import (
    FirstPartition,
    Work,
    first_partition,
    parse_devices,
    partition_by_threads,
    relative_speeds,
    workers_of_gpus,
)
from flegel.runtime.job.observers import JobControl, Observers
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.processes.worker_cluster import MAX_WORKERS
from flegel.runtime.system.device_memory import rows_on_devices
from flegel.runtime.system.processors import processors_for_processes
from flegel.sync import balance_mode, make_policy
from flegel.wording import counted, listener, option


class EarlierRun(Protocol):
    """Where the state of a job is kept, as far as every job has to know of it."""

    @property
    def former_job(self) -> Job | None:
        """The job as it was begun, where this one goes on from there."""
        ...


@dataclass
class Request:
    """A job as it is to be executed here."""

    algorithm: Algorithm
    data: Dataset
    job: Job = field(default_factory=Job)
    cluster: Cluster | None = None
    """Processes that are up already; the job starts and ends its own otherwise."""
    session: EarlierRun | None = None
    """Where its state is kept, and what it goes on from."""
    start: Tree | None = None
    """θ of an earlier job to begin from."""
    observers: Observers = field(default_factory=Observers)
    """All who are shown what the job does: terminals, callbacks, metrics, the dashboard."""
    otherwise: Job | None = None
    """The job as it trains where hooks do not compile; None: as it is."""
    interpreted: str = ""
    """Why hooks do not compile, where that was tried before."""
    threads_are_chosen: bool = False
    """Nobody has asked for the job's number of threads."""
    team_threads: tuple[int, ...] = ()
    """Of each worker, where workers are teams of different hosts."""
    balance: CoordinatorPart | None = None
    """What moves points, in place of what the job's options ask for: by a script, or watched."""

    def __post_init__(self) -> None:
        self.control = JobControl(self.observers)

    @property
    def workers(self) -> int:
        return workers_for(self.job, self.algorithm, self.data)

    @property
    def resumed(self) -> bool:
        """The job goes on from an earlier run."""
        return self.session is not None and self.session.former_job is not None

    @cached_property
    def first_partition(self) -> FirstPartition:
        """Who owns which rows at first, and who rests: as the job says, or said when it was begun. By default a GPU
        beside processors gets a share like its speed, where balance can correct that, and a team one like its
        threads."""
        former = self.session.former_job if self.session is not None else None
        job = self.job if former is None else former
        workers, algorithm = job.workers or self.workers, self.algorithm
        if job.partition == "shuffle" and len(set(self.team_threads)) > 1:
            return FirstPartition(partition_by_threads(self.team_threads))
        if job.partition == "shuffle" and algorithm.statistics.constant and not self.data.source.keyed:
            return FirstPartition("contiguous")  # the order of visits changes nothing, and rows are copied in one piece
        if job.partition != "shuffle" or balance_mode(job.sync, workers) == "off":
            return FirstPartition(job.partition)
        devices = parse_devices(job.device, job.gpus, workers)
        speeds = relative_speeds(devices, workers, bool(algorithm.kernels.backend))
        work_per_visit = 0.0 if algorithm.kernels.backend else hook(algorithm, KernelHooks.work)(self.data.columns)
        work = float(self.data.rows * work_per_visit)
        rooms = rows_on_devices(devices, self.data.columns) if len(set(speeds.values())) > 1 else {}
        return first_partition(speeds, Work(self.data.rows, work, rooms, job.sync.interval), may_rest(job))

    @property
    def partition(self) -> str:
        return self.first_partition.partition

    @property
    def works_alone(self) -> bool:
        """The only worker may make θ anew between flexible barriers."""
        return self.workers == 1 and self._updates_are_free

    @property
    def begins_with_part(self) -> bool:
        """Workers may begin with a part of their points: their order is random, and no limit ends the job before all of
        them were visited."""
        limits = self.job.criteria
        enough = 2.0 * (active().training.max_passes_over_parts + 1.0)
        limited = limits.max_iterations or (limits.max_passes or math.inf) < enough
        return self._updates_are_free and parse(self.partition).kind == "shuffle" and not limited

    @property
    def _updates_are_free(self) -> bool:
        """Workers may choose when θ is made and which points come first; not of a job that goes on, whose earlier
        statistics they do not have, and not where the user set the interval between updates."""
        job, policy = self.job, make_policy(self.job.sync)
        flexible = policy.flexible and policy.all_report and job.sync.interval is None
        able = self.algorithm.learning.local_updates and flexible
        able = able and not self.data.source.keyed  # θ is not made anew in the middle of a key
        return able and not self.resumed and job.topology == "coordinator"


def open_job_data(job: Job, data: Any, algorithm: Algorithm) -> Dataset:
    """The rows of a job, read as its options say; `data` is a name, a path, an address or rows from Python."""
    known = algorithm.accepts.categories
    named = [each for each in getattr(algorithm, known) or [] if isinstance(each, str)] if known else []
    return open_data(
        data,
        label=job.label,
        weight=job.weight,
        keep_together=job.keep_together,
        columns=job.columns,
        drop=job.drop,
        categorical=job.categorical,
        categories=[*(job.categories or []), *named] or None,
        missing=job.missing,
        format=job.format,
        sparse=algorithm.accepts.sparse,
        ratings=algorithm.accepts.ratings,
        codes=bool(known),
    )


def with_category_places(algorithm: Algorithm, data: Dataset) -> Algorithm:
    """The algorithm with its columns of categories by number, for rows that travel without the names of their
    columns."""
    known, how = algorithm.accepts.categories, data.source.treatment
    if not known or how is None or not how.columns:
        return algorithm
    names, given = list(how.feature_names or ()), getattr(algorithm, known)
    exact = given is not None and all(isinstance(each, int) for each in given)
    named = [names.index(each) for each in given or [] if each in names]
    places = given if exact else sorted({*how.category_places, *named})
    return type(algorithm)(**{**algorithm.hyper(), known: places}) if places else algorithm


def default_workers() -> int:
    """One for each core that this process may use."""
    return processors_for_processes()


def workers_for(job: Job, algorithm: Algorithm, data: Dataset) -> int:
    """As many as the job asks for, by default one for each core, fewer where a pass is so short that barriers would
    cost more than it, and one for each GPU that is named.

    Depends on sizes alone, never on measurements: the number of workers decides the result's last digits.
    """
    if job.workers is not None:
        return job.workers
    if gpus := workers_of_gpus(job.device):
        return gpus
    return int(
        max(min(pass_work(algorithm, data) / active().processors.work_per_worker, default_workers(), data.rows), 1)
    )


def pass_work(algorithm: Algorithm, data: Dataset) -> float:
    """Multiplications of a pass over all rows, as far as they are known; infinite otherwise."""
    columns = min(data.columns, active().processors.sparse_columns) if data.sparse else data.columns
    return data.rows * hook(algorithm, KernelHooks.work)(columns)


def may_rest(job: Job) -> bool:
    """Workers of this job may rest; not with replicas of θ or parameter servers, which count on the same workers."""
    return job.resting == "auto" and job.topology == "coordinator" and str(job.servers) == "0"


def check_numbers(request: Request) -> None:
    """What can be seen to be wrong without opening anything."""
    if not 1 <= request.workers <= MAX_WORKERS:
        raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {request.workers}.")
    check_options(request.job)
    if str(request.job.servers) == "0" and request.job.server_load != "network":
        shown = option("server_load", request.job.server_load)
        raise UsageError(f"{shown} divides θ among parameter servers; give {option('servers')} too.")
    if str(request.job.servers) == "0" and request.job.server_count != "fixed":
        shown = option("server_count", request.job.server_count)
        raise UsageError(f"{shown} changes the number of parameter servers; give {option('servers')} too.")
    configured_limit()
    cls = type(request.algorithm)
    check_complete(cls, Algorithm)
    halts = any("voteToHalt" in function.__code__.co_names for function in visit_hooks(cls))
    halts = halts or cls.terminationCheck is not Algorithm.terminationCheck
    halts = halts or defines(request.algorithm, LearningHooks.finished) or request.algorithm.statistics.constant
    request.job.criteria.check(has_objective=cls.objective is not Algorithm.objective, halts=halts)


def _check_targets(name: str, targets: int, data: Dataset) -> None:
    """Of a model whose last columns are what it predicts."""
    if not targets:
        return
    last = "the last column" if targets == 1 else f"the last {targets} columns"
    if data.labelled:
        raise UsageError(f"{name} predicts {last} (targets={targets}), but {data.name} has labels; omit one of both.")
    if data.columns <= targets:
        there = counted(data.columns, "column")
        raise UsageError(
            f"{name} predicts {last} (targets={targets}) of {there}; none is left to predict from, so name more."
        )


def check_data(request: Request) -> None:
    """The shape of the data against what the algorithm and the number of workers need, before anything is read."""
    data, algorithm = request.data, request.algorithm
    name = type(algorithm).__name__
    if data.rows == 0:
        raise DataError(f"{data.name} has no rows; there is nothing to train on.")
    if data.sparse and not algorithm.accepts.sparse:
        raise DataError(f"{name} takes dense rows, but {data.name} is sparse.")
    if data.weighted and not algorithm.accepts.weighted:
        raise UsageError(
            f"The rows of {data.name} have weights, which {name} ignores; count each point dataPoint.weight times in "
            "updateDataPoint and declare `accepts = Accepts(weighted=True)` on the class, or omit the weights."
        )
    if request.job.missing == "keep" and not algorithm.accepts.gaps:
        raise UsageError(
            f"{name} does not know gaps; use {option('missing', 'mean')}, or an algorithm that does: gapkmeans, "
            "gapgmm, gappca or nmf."
        )
    if request.job.missing == "keep" and request.job.scale != "none":
        raise UsageError(f"Columns with gaps that are kept cannot be scaled; leave {option('scale')} out.")
    _check_targets(name, algorithm.accepts.targets, data)
    if algorithm.accepts.supervised and not data.labelled:
        given = "give them as the third argument, run(algorithm, X, y), or " if listener() == "python" else ""
        advice = f"{given}name their column with {option('label')}"
        raise DataError(f"{name} needs labels, but {data.name} has none; {advice}.")
    if data.source.keyed and parse(request.job.partition).kind != "shuffle":
        shown = option("partition", request.job.partition)
        raise UsageError(f"{shown} and {option('keep_together')} both say who owns which rows; omit one of them.")
    if any(share == 0 for _, share in parse(request.job.partition).shares):
        raise UsageError(f"{option('partition', request.job.partition)}: every worker needs rows; leave `none` out.")
    if request.workers > data.rows:
        raise UsageError(
            f"{counted(request.workers, 'worker')} are more than the {counted(data.rows, 'point')} of {data.name}; use "
            "fewer."
        )
