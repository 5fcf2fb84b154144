"""Where the workers of a job run, in threads or processes, how points move, and who rests at first. Trains nothing.

Processes isolate: a crash or an endless hook ends a worker, not the program that called `flegel.run`. Starting them
takes about a second, though, and a small job is over before. Such a job runs in threads, if its code is one of ours:
the kernel is timed on a part of the sample, and training is taken to be `PASSES` passes over all rows.
"""

from __future__ import annotations

import contextlib
import inspect
import json
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from flegel.algorithms import BUILTINS
from flegel.configuration.active import active
from flegel.core import code_folder
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.job import Job
from flegel.loading.class_source import is_built_in, reference
from flegel.machine.balance.balance_control import BalanceControl
from flegel.machine.resting.resting_control import RestingControl
from flegel.plan.balance.planner import Balance
from flegel.plan.devices import parse_devices, relative_speeds
from flegel.runtime.backends.numba.compiler_process import CompilerProcess
from flegel.runtime.job.request import Request, default_workers, may_rest
from flegel.runtime.job.warm_clusters import Kind, warm_clusters
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.sync import balance_mode

PASSES = 20  # of training, where nothing is known: k-means and LR take 5 to 30 on the tables of bench/micro/small_jobs
COLD_START = 1.2  # seconds until the first processes have loaded their shards; 0.9 to 2.4 were measured
WARM_START = 0.1  # seconds that waiting processes take for loading; 0.03 to 0.3 were measured
LARGE = 1 << 20  # numbers of all rows: reading more takes as long as a process takes to import the compiler
ASSUMED_SPEED = 1e9  # multiplications a second of one worker, before a kernel was timed; kernels reach 1e9 to 2e10


class Choice(NamedTuple):
    """The kind of workers, and why, for people; without a reason there was no choice."""

    kind: Kind
    reason: str = ""


def choose(training: float, starting: float) -> Choice:
    """Threads where training is expected to be over before processes have started."""
    if training < starting:
        return Choice("threads", f"{_seconds(training)} of training are expected, processes take {_seconds(starting)}")
    return Choice("processes")


def has_servers(job: Job) -> bool:
    """θ is kept by parameter servers."""
    return job.servers not in (0, "0")


def early_choice(request: Request) -> Choice | None:
    """What can be said before anything was timed; None: the kernel has to be timed first."""
    wanted = request.job.processes
    if has_servers(request.job):
        return Choice("processes")
    if wanted is not None:
        return Choice("processes" if wanted else "threads")
    if not is_built_in(request.algorithm) or request.session is not None or request.job.straggler:
        return Choice("processes")
    seconds = rough_seconds(request)
    if seconds > 4 * COLD_START:
        return Choice("processes")
    return None if has_code(request) else Choice("threads")  # these read their rows while something compiles


def has_code(request: Request) -> bool:
    """Some kernel of the algorithm is in the cache of compiled code; perhaps not the one that this job needs."""
    return code_folder.has_code_of(Path(inspect.getfile(type(request.algorithm))).resolve().parent)


def compiler_for(request: Request) -> CompilerProcess | None:
    """A process that compiles the kernel of this job, where none is in the cache and the rows take a while to read."""
    data, ref = request.data, reference(request.algorithm)
    large = data.rows * data.columns >= LARGE and sys.platform == "linux"
    if not large or not ref.builtin or request.algorithm.kernels.backend or has_code(request):
        return None
    name = next((name for name, home in BUILTINS.items() if home == ref.name), None)
    if name is None:
        return None
    try:
        return CompilerProcess(
            json.dumps([name, request.algorithm.hyper(), data.dtype.name, data.sparse, data.weighted])
        )
    except (TypeError, OSError):  # a hyper-parameter is an array, or there is no room for a process
        return None


def rough_seconds(request: Request) -> float:
    """Seconds of training, from the size of the data alone."""
    work = request.data.rows * hook(request.algorithm, KernelHooks.work)(request.data.columns)
    return PASSES * work / ASSUMED_SPEED / min(request.workers, default_workers())


class JobCluster:
    """The cluster of one job; the choice is made when the first worker is needed."""

    def __init__(self, request: Request) -> None:
        self._request = request
        self._leased = contextlib.ExitStack()
        self.choice = Choice("processes") if request.cluster is not None else early_choice(request)
        self._cluster = request.cluster
        self._began = 0.0

    def __enter__(self) -> JobCluster:
        self._leased.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._leased.__exit__(*error)  # type: ignore[arg-type]

    def start_early(self) -> None:
        """Processes come up while something else is done; nothing where the choice is not made yet."""
        if self.choice is not None:
            self.get().start()

    def get(self, training: Callable[[], float] | None = None) -> Cluster:
        """The cluster. `training` tells how many seconds training takes, by measurement; roughly otherwise."""
        if self._cluster is None:
            if self.choice is None:
                waiting = warm_clusters.waiting("processes") >= self._request.workers
                seconds = training() if training is not None else rough_seconds(self._request)
                self.choice = choose(seconds, WARM_START if waiting else COLD_START)
            user_code = not is_built_in(self._request.algorithm)
            lease = warm_clusters.lease(self.choice.kind, self._request.workers, renew=user_code)
            self._cluster = self._leased.enter_context(lease)
        return self._cluster

    def say(self) -> None:
        """Why it is threads, where that was decided here."""
        if self.choice is not None and self.choice.reason:
            self._request.say(f"workers run in threads of this process: {self.choice.reason} to start")


def balance_control(request: Request, crowded: bool) -> BalanceControl | None:
    """How points move; None: not at all. Of networks nothing is kept of a point between its visits, so lost passes need
    not be made up: rows move until shares are as speeds are."""
    mode, algorithm = balance_mode(request.job.sync, request.workers), request.algorithm
    if mode == "off" or request.balance is not None:
        return request.balance
    criteria = request.job.criteria.resolved(algorithm.learning.tolerance)
    if algorithm.kernels.backend:
        # Gradient methods keep nothing of a point between its visits: rows should be visited equally often over a job,
        # not over a pass. A perceptron, 12,000 rows, speeds 1 : 2 : 3, 10 s: 11 and 15 moves of 19,000 rows with the
        # usual rules, 3 moves of 3,000 and 7,000 rows with these.
        rules = replace(active().balance_sparing, epsilon=1.0)
        return BalanceControl(mode, criteria, plan=Balance(rules, rules), crowded=crowded, past=False)
    return BalanceControl(mode, criteria, crowded=crowded)


def resting_control(request: Request) -> RestingControl | None:
    """Who trains and who rests: as when a job that goes on stopped, else as the rows were dealt."""
    job, session = request.job, request.session
    if balance_mode(job.sync, request.workers) == "off" or not may_rest(job):
        return None
    stored = session is not None and session.stored is not None and session.stored.manifest is not None
    first = session.active_workers if session is not None and stored else request.deal.active_workers
    devices = parse_devices(job.device, job.gpus, request.workers)
    return RestingControl(
        job.sync.interval, first, relative_speeds(devices, request.workers, bool(request.algorithm.kernels.backend))
    )


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"
