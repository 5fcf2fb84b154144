"""Where the workers of a job run, in threads or processes. Trains nothing.

Processes isolate: a crash or an endless hook ends a worker, not the program that called `flegel.run`. Starting them
takes about a second, though, and a small job is over before. Such a job runs in threads, if its code is one of ours:
the kernel is timed on a part of the sample, and training is taken to be `processors.expected_passes` over all rows.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from flegel.configuration.active import active
from flegel.core import code_folder
from flegel.declarations.kernels import KernelHooks
from flegel.declarations.optional import hook
from flegel.loading.class_source import is_built_in
from flegel.runtime.job.request import Request, default_workers
from flegel.runtime.job.warm_clusters import Kind, warm_clusters
from flegel.runtime.processes.cluster_protocol import Cluster


class Choice(NamedTuple):
    """The kind of workers, and why, for people; without a reason there was no choice."""

    kind: Kind
    reason: str = ""


def choose(training_seconds: float, starting_seconds: float) -> Choice:
    """Threads where training is expected to be over before processes have started."""
    if training_seconds < starting_seconds:
        return Choice(
            "threads",
            f"{_seconds(training_seconds)} of training are expected, processes take {_seconds(starting_seconds)}",
        )
    return Choice("processes")


def early_choice(request: Request, needed: Kind | None = None) -> Choice | None:
    """What can be said before anything was timed; None: the kernel has to be timed first. `needed`: by some part."""
    wanted = request.job.processes
    if wanted is not None:
        return Choice("processes" if wanted else "threads")
    if needed is not None or not is_built_in(request.algorithm):
        return Choice(needed or "processes")
    seconds = rough_seconds(request)
    # The guess is rough: clearly longer than to start processes.
    if seconds > 4 * active().processors.cold_start_seconds:
        return Choice("processes")
    return None if has_code(request) else Choice("threads")  # these read their rows while something compiles


def has_code(request: Request) -> bool:
    """Some kernel of the algorithm is in the cache of compiled code; perhaps not the one that this job needs."""
    return code_folder.has_code_of(Path(inspect.getfile(type(request.algorithm))).resolve().parent)


def rough_seconds(request: Request) -> float:
    """Seconds of training, from the size of the data alone."""
    work = request.data.rows * hook(request.algorithm, KernelHooks.work)(request.data.columns)
    rules = active().processors
    return rules.expected_passes * work / rules.assumed_speed / min(request.workers, default_workers())


class JobCluster:
    """The cluster of one job; the choice is made when the first worker is needed."""

    def __init__(self, request: Request, needed: Kind | None = None) -> None:
        """`needed`: some part of the job works with this kind only."""
        self._request = request
        self._leased = contextlib.ExitStack()
        self.choice = Choice("processes") if request.cluster is not None else early_choice(request, needed)
        self._cluster = request.cluster
        self._began_at = 0.0

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
                rules = active().processors
                self.choice = choose(seconds, rules.warm_start_seconds if waiting else rules.cold_start_seconds)
            user_code = not is_built_in(self._request.algorithm)
            lease = warm_clusters.lease(self._leased_kind(), self._request.workers, renew=user_code)
            self._cluster = self._leased.enter_context(lease)
        return self._cluster

    @property
    def in_this_process(self) -> bool:
        return self.choice is not None and self.choice.kind != "processes"

    def _leased_kind(self) -> Kind:
        """The only worker of this process is called without messages, unless somebody else has to reach it."""
        assert self.choice is not None
        job, kind = self._request.job, self.choice.kind
        reached = job.topology != "coordinator" or str(job.servers) != "0"
        return "inline" if kind == "threads" and self._request.workers == 1 and not reached else kind

    def say(self) -> None:
        """Why it is threads, where that was decided here."""
        if self.choice is not None and self.choice.reason:
            self._request.observers.say(f"workers run in threads of this process: {self.choice.reason} to start")


def _seconds(value: float) -> str:
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.1f} s"
