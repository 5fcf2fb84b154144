"""What users call from Python: `run` and `resume`. Their options are those of `flegel.job.Job`; decides nothing itself.

`python -m tests.reference_tables` writes the two records of options below anew after a change of `Job`.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import sys
import textwrap
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict, Unpack

import msgspec

from flegel.algorithm import Algorithm
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.core.pytree import Tree
from flegel.datasets import Dataset
from flegel.errors import UsageError, nearest, warn
from flegel.job import PANELS, Job
from flegel.loading.class_source import is_built_in
from flegel.options import NamedOption, check_options, deprecations, options_of, with_options
from flegel.results.result import Result
from flegel.runtime.job import background_compiler
from flegel.runtime.job.background_job import BackgroundJob
from flegel.runtime.job.find_algorithm import resolve
from flegel.runtime.job.observers import Functions, Observer, Observers
from flegel.runtime.job.request import EarlierRun, Request, workers_for
from flegel.runtime.job.run import execute
from flegel.runtime.job.running_jobs import announced_as_running
from flegel.runtime.job.teams import team_for
from flegel.runtime.job.training_data import data_location, open_training_data
from flegel.runtime.job.warm_clusters import warm_clusters
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.processes.local_cluster import HostCluster
from flegel.wording import counted

if TYPE_CHECKING:
    from typing_extensions import TypeIs

    from flegel.callbacks.callback import Callback
    from flegel.cluster.connected import ConnectedCluster
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.terminal.progress_line import ProgressLine

RUN_OPTIONS = {name: option for name, option in options_of(Job).items() if option.about.local}
RESUME_OPTIONS = {name: option for name, option in RUN_OPTIONS.items() if option.about.resume}


# generated from flegel.job.Job: begin
class RunOptions(TypedDict, total=False):
    """Options of `flegel.run`; what is left out has the default of `flegel.job.Job`."""

    workers: int | None
    threads: int | None
    max_iterations: int | None
    max_passes: float | None
    target: float | None
    tolerance: float | None
    max_seconds: float | None
    seed: int
    sync: str
    interval: float | str | None
    coordination: str | None
    staleness: int | None
    barrier_timeout: float | str | None
    batches: int | None
    factor: float | None
    balance: str | None
    matching: str | None
    probes: str | None
    timers: str | None
    round_end: str | None
    search: str | None
    counts: str | None
    waiting: str | None
    published: bool
    topology: str
    device: str
    gpus: int
    resting: str
    straggler: str
    format: str | None
    label: str | int | None
    columns: list[str | int] | str | None
    drop: list[str | int] | str | None
    categorical: str
    categories: list[str | int] | str | None
    missing: str
    weight: str | int | None
    partition: str
    keep_together: str | int | None
    scale: str
    validate: float
    processes: bool | str | None
    servers: int | str
    replicas: int
    server_load: str
    server_count: str
    worker_timeout: float | str
    hook_timeout: float | str
    expensive: str
    replace: bool
    audit: str
    checkpoint: str | os.PathLike[str] | None
    checkpoint_every: float | str
    attribute: bool
    settings: dict[str, float] | str | os.PathLike[str]
    collect_state: bool
    group: str
    bucket: str
    new_training: bool
    every: str | None
    groups: int
    quorum: int | str
    grace: str
    group_timeout: float | str
    group_barrier: str
    outer: str
    outliers: str
    fragments: int
    wire: str
    least_rows: int
    gate: str
    gate_data: str
    gate_of: str
    gate_failures: int
    group_key: str
    group_listen: str


class ResumeOptions(TypedDict, total=False):
    """Options of `flegel.resume`; what is left out stays as it was."""

    workers: int | None
    threads: int | None
    max_iterations: int | None
    max_passes: float | None
    target: float | None
    tolerance: float | None
    max_seconds: float | None
    checkpoint_every: float | str


# generated from flegel.job.Job: end


def run(
    algorithm: Algorithm | type[Algorithm] | str,
    data: Any,
    y: Any = None,
    *,
    out: str | os.PathLike[str] | None = None,
    cluster: Cluster | ConnectedCluster | None = None,
    progress: bool | None = None,
    start: Result | Tree | None = None,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] | None = None,
    phase: Callable[[str, str], None] | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
    **options: Unpack[RunOptions],
) -> Result:
    """Train `algorithm` on `data` and return the result.

    `data` is an array, a frame, a path or the name of a data set; labels are `y` (an array, a list, a Series), or the
    second of a pair (X, y) or of a triple (X, y or None, weights). `progress`: a line with objective, rounds and who
    waits; by default in terminals and notebooks, unless `watch` is given. The first of `target`, `tolerance`,
    `max_iterations`, `max_passes` and `max_seconds` ends the job. `out` is a folder for model, result and trace.
    Workers stay warm between runs until this process ends, or until `flegel.shutdown()`; those of a `LocalCluster`
    belong to you, and `cluster.scale(n)` from another thread changes their number while a job runs. `cluster` may
    also be one behind a master: `flegel.connect(…)`, or one that was launched on Ray, Slurm, …. With `start`, a
    result or its θ, training goes on from there, on these data. `callbacks` (`flegel.callbacks`) hear of every barrier
    in threads of their own, and may end the job; `observers` see all events of the job in its own thread
    (docs/callbacks.md). For one function each: `watch` is called several times a second with a `JobSnapshot`, `say`
    with remarks, `phase` with what happens before training (reading, compiling, …).

    With `checkpoint`, Ctrl-C and SIGTERM write a last checkpoint before `KeyboardInterrupt` is raised, and
    `flegel.resume` goes on from there.
    """
    job = _with_known(Job(), options, RUN_OPTIONS, "run")
    check_options(job)
    options["settings"] = {**changes_outside(), **job.settings}
    job = msgspec.structs.replace(job, settings=options["settings"])
    chosen = resolve(algorithm)
    _check_arguments(out, cluster, watch, say, phase, callbacks, observers)
    data = data if y is None else _with_labels(data, y)
    with _progress_line(progress, watch is None, job, data) as line:
        seeing = [*([] if line is None else [line]), Functions(watch, say, phase)]
        if cluster is not None and is_behind_master(cluster):
            if start is not None or callbacks or observers:
                raise UsageError("start=, callbacks= and observers= work with workers of this host only; omit them.")
            return cluster.run(chosen, data, out=out, observers=seeing, **options)
        for text in deprecations(job, options):
            warn(text)
        seeing += _with_callbacks(callbacks, observers)
        return _run_here(chosen, data, job, cluster, _start(start, chosen), out, seeing)


def join(
    place: str,
    data: Any,
    *,
    y: Any = None,
    trust_code: bool = False,
    out: str | os.PathLike[str] | None = None,
    **options: Unpack[RunOptions],
) -> Result:
    """Take part, as `group`, in the training of groups in the bucket `place`; algorithm and settings come from there.

    A class that the training brings along runs only where the key file (`group_key`) trusts its signer, or with
    `trust_code`. All other options are those of `run`.
    """
    from flegel.runtime.group.joining import find_training

    found = find_training(place, options.get("group", ""), options.get("group_key", ""), trust_code)
    given: Any = {**found.options, **options, "bucket": place}
    return run(found.algorithm, data, y=y, out=out, **given)


def _progress_line(
    wanted: bool | None, unwatched: bool, job: Job, data: Any
) -> contextlib.AbstractContextManager[ProgressLine | None]:
    """The line that shows progress: where it is `wanted`, or, where nothing was said and no function watches the job,
    in a terminal or a notebook."""
    if wanted is False or not (wanted or unwatched):
        return contextlib.nullcontext()
    from flegel.terminal.progress_line import ProgressLine, progress_stream

    stream = sys.stderr if wanted else progress_stream()
    if stream is None:
        return contextlib.nullcontext()
    return ProgressLine(stream, job.criteria, data if isinstance(data, str) else "rows")


def _run_here(
    chosen: Algorithm,
    data: Any,
    job: Job,
    cluster: Cluster | None,
    theta0: Tree | None,
    out: str | os.PathLike[str] | None,
    observers: Sequence[Observer],
) -> Result:
    """Train on workers of this host: those of `cluster`, or ones that this process keeps. `theta0`: θ(0), where it is
    given."""
    from flegel.runtime.job import result_store

    if out is not None:
        result_store.check_target(out)
    if cluster is not None and (job.workers or 1) > cluster.workers:
        raise UsageError(
            f"The job asks for {counted(job.workers or 1, 'worker')}, but the cluster has {cluster.workers}."
        )
    dataset = open_training_data(job, data, chosen)
    with using(job.settings):
        workers, threads, why, workers_if_interpreted = _staff(job, chosen, dataset, cluster)
    chosen_here = job.workers is None and job.threads is None
    job = msgspec.structs.replace(job, data=data_location(data), workers=workers, threads=threads)
    job_if_interpreted = (
        msgspec.structs.replace(job, workers=workers_if_interpreted, threads=None)
        if workers_if_interpreted > 1
        else None
    )
    session = None if job.checkpoint is None else _checkpoints(job.checkpoint, job.checkpoint_every)
    if is_built_in(chosen):
        background_compiler.start()
    with announced_as_running(type(chosen).__name__.lower(), job.data, workers) as note:
        request = Request(
            chosen, dataset, job, cluster, session, theta0, Observers([*observers, note]), job_if_interpreted,
            threads_are_chosen=chosen_here,
        )  # fmt: skip
        if why:
            request.observers.say(why)
        result = execute(request)
    if out is not None:
        result_store.save_or_rescue(result, out)
    return result


class Staff(NamedTuple):
    """Workers of a job on this host, the threads of each, why there are several workers that nobody asked for, and how
    many workers there are where hooks do not compile (0: as many)."""

    workers: int
    threads: int | None
    reason: str = ""
    workers_if_interpreted: int = 0


def _staff(job: Job, chosen: Algorithm, dataset: Dataset, cluster: Cluster | None) -> Staff:
    """Where nothing is said one team of threads, if it can."""
    if job.workers is not None:
        return Staff(job.workers, job.threads)
    if cluster is not None:
        return Staff(cluster.workers, job.threads)
    team = team_for(job, chosen, dataset)
    if team.threads:
        several = workers_for(job, chosen, dataset) if team.if_compiled and not job.threads else 0
        return Staff(1, team.threads, workers_if_interpreted=several)
    count = 1 if job.threads else workers_for(job, chosen, dataset)
    return Staff(count, job.threads, f"{counted(count, 'worker')}: {team.reason}" if team.reason and count > 1 else "")


def resume(
    place: str | os.PathLike[str],
    *,
    algorithm: Algorithm | type[Algorithm] | str | None = None,
    data: Any = None,
    label: str | int | None = None,
    exact: bool | None = None,
    trust_code: bool = False,
    begin_anew: bool = False,
    out: str | os.PathLike[str] | None = None,
    cluster: Cluster | None = None,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] | None = None,
    phase: Callable[[str, str], None] | None = None,
    callbacks: Sequence[Callback] = (),
    observers: Sequence[Observer] = (),
    **changes: Unpack[ResumeOptions],
) -> Result:
    """Go on with a job from its checkpoints in `place`, and keep further ones there.

    What is not given stays as it was. Algorithm and data must be those of the checkpoint, and are compared with it.
    Data that came from Python are passed again as `data`; so is a class of your own as `algorithm`, unless it can be
    found in its file or you trust the code inside the checkpoint (`trust_code`).

    With `exact` the job goes on from the newest complete checkpoint: under `bsp` it then takes the same course, to the
    last bit, as if it had never stopped (the default there). Otherwise it goes on from the last commit, where that is
    newer: one pass under its θ makes the statistics anew.

    Where everything that was kept is damaged, the job begins from the start only with `begin_anew`; the damaged files
    are then set aside, not replaced.
    """
    from flegel.runtime.checkpoint.resume import resume as resume_job
    from flegel.runtime.job import result_store

    check_options(_with_known(Job(), given := _given(changes), RESUME_OPTIONS, "resume"))
    _check_arguments(out, cluster, watch, say, phase, callbacks, observers)
    if out is not None:
        result_store.check_target(out)
    with announced_as_running("resumed", str(place), given.get("workers")) as note:
        all_observers = [Functions(watch, say, phase), *_with_callbacks(callbacks, observers), note]
        result = resume_job(
            place,
            given,
            algorithm=algorithm,
            data=data,
            label=label,
            exact=exact,
            trust_code=trust_code,
            begin_anew=begin_anew,
            cluster=cluster,
            observers=Observers(all_observers),
        )
    if out is not None:
        result_store.save_or_rescue(result, out)
    return result


class LocalCluster(HostCluster):
    """`with LocalCluster(workers=4) as cluster: cluster.run(KMeans(k=10), X)`: workers of this host, kept warm."""

    def __init__(self, workers: int = 4) -> None:
        super().__init__(workers)
        self._one_job, self._submitted = threading.Lock(), 0

    def run(
        self,
        algorithm: Algorithm | type[Algorithm] | str,
        data: Any,
        y: Any = None,
        *,
        out: str | os.PathLike[str] | None = None,
        progress: bool | None = None,
        watch: Callable[[JobSnapshot], None] | None = None,
        say: Callable[[str], None] | None = None,
        **options: Unpack[RunOptions],
    ) -> Result:
        """Train on these workers; arguments and result are those of `flegel.run`."""
        return run(algorithm, data, y, out=out, cluster=self, progress=progress, watch=watch, say=say, **options)

    def submit(
        self, algorithm: Algorithm | type[Algorithm] | str, data: Any, **options: Unpack[RunOptions]
    ) -> BackgroundJob:
        """Start a job without waiting for it; the returned job has `.result()`, `.cancel()` and `.progress()`. Jobs run
        one after the other."""
        chosen = resolve(algorithm)

        def execute_here(observer: Observer) -> Result:
            with self._one_job:
                return run(chosen, data, cluster=self, progress=False, observers=[observer], **options)

        self._submitted += 1
        return BackgroundJob(f"{type(chosen).__name__.lower()}-{self._submitted}", execute_here)


def shutdown() -> None:
    """End the workers that wait for the next `flegel.run`. Happens by itself when this process ends."""
    warm_clusters.close()


def _check_arguments(out: Any, cluster: Any, watch: Any, say: Any, phase: Any, callbacks: Any, observers: Any) -> None:
    """Arguments that are no options of a job: raise `UsageError` where one is of another type."""
    if out is not None and not isinstance(out, str | os.PathLike):
        raise UsageError(f"out={out!r} must be the path of a folder.")
    if cluster is not None and not (hasattr(cluster, "workers") or is_behind_master(cluster)):
        raise UsageError(f"cluster={cluster!r} must be a LocalCluster, or what flegel.connect(…) returned.")
    for name, function in (("watch", watch), ("say", say), ("phase", phase)):
        if function is not None and not callable(function):
            raise UsageError(f"{name}={function!r} must be a function.")
    for name, listed in (("callbacks", callbacks), ("observers", observers)):
        if not isinstance(listed, Sequence) or isinstance(listed, str):
            raise UsageError(f"{name}= must be a list of them, such as [{type(listed).__name__}(…)].")
    if other := [observer for observer in observers if not isinstance(observer, Observer)]:
        raise UsageError(f"{other[0]!r} is no observer; give instances of flegel.runtime.job.observers.Observer.")


def _with_callbacks(callbacks: Sequence[Callback], observers: Sequence[Observer]) -> list[Observer]:
    if not callbacks:
        return list(observers)
    from flegel.callbacks.runner import CallbackRunner

    return [CallbackRunner(callbacks), *observers]


def is_behind_master(cluster: Cluster | ConnectedCluster) -> TypeIs[ConnectedCluster]:
    from flegel.cluster.connected import ConnectedCluster  # a job on this host needs no client of a master

    return isinstance(cluster, ConnectedCluster)


def _with_labels(data: Any, labels: Any) -> Any:
    if isinstance(data, str | os.PathLike):
        raise UsageError("Labels of a file are one of its columns; name it with label= instead of passing y.")
    if isinstance(data, tuple) and not hasattr(data, "indptr"):
        raise UsageError("Labels are given twice; give them either in the tuple or as y.")
    return data, labels


def _checkpoints(place: str, every: float) -> EarlierRun:
    """Where checkpoints of a new job are kept."""
    from flegel.runtime.checkpoint.session import new_session  # most jobs keep none

    return new_session(place, every)


def _start(start: Result | Tree | None, algorithm: Algorithm) -> Tree | None:
    """The θ that a job begins from."""
    if not isinstance(start, Result):
        return start
    if type(start.algorithm) is not type(algorithm):
        raise UsageError(f"start= is a result of {start.name}, not of {type(algorithm).__name__}.")
    if start.scaling is not None:
        raise UsageError("start= is a result for scaled rows; scale the rows yourself to go on from it.")
    return start.parameter


def _given(changes: Any) -> dict[str, Any]:
    """None switches a criterion off; for all other options it says that nothing changes."""
    return {
        k: v
        for k, v in changes.items()
        if v is not None or k not in RESUME_OPTIONS or RESUME_OPTIONS[k].path[0] == "criteria"
    }


def _with_known(job: Job, given: Any, known: dict[str, NamedOption], function: str) -> Job:
    for name in given:
        if name not in known:
            raise TypeError(f"flegel.{function} has no option {name!r}{nearest(name, list(known))}")
    return with_options(job, given)


def _describe(function: Any, known: dict[str, NamedOption], absent: bool) -> None:
    """Signature and docstring with the options in place of `**options`; with `absent`, left out means unchanged."""
    signature = inspect.signature(function)
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    keyword = inspect.Parameter.KEYWORD_ONLY
    derived = [
        inspect.Parameter(name, keyword, default=... if absent else o.default, annotation=o.python_type)
        for name, o in known.items()
    ]
    function.__signature__ = signature.replace(parameters=[*own, *derived])
    lines = []
    for panel in PANELS:
        listed = [o for o in known.values() if o.about.panel == panel]
        lines += [f"\n{panel}:", *(f"    {o.name}: {o.about.resume if absent else o.about.help}" for o in listed)]
        lines = lines[:-1] if not listed else lines
    function.__doc__ = f"{inspect.cleandoc(function.__doc__)}\n{textwrap.dedent(chr(10).join(lines))}\n"


def _notebook_picture(result: Result) -> str:
    from flegel.report.notebook import notebook_picture

    return notebook_picture(result)


Result.notebook_picture = staticmethod(_notebook_picture)
_describe(run, RUN_OPTIONS, absent=False)
_describe(resume, RESUME_OPTIONS, absent=True)
