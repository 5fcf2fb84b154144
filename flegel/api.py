"""What users call from Python: `run`, `resume`, and the cluster that keeps workers warm."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from flegel.algorithm import Algorithm
from flegel.errors import UsageError
from flegel.job import Criteria, SyncSpec, parse_seconds
from flegel.result import Result
from flegel.runtime.job.checkpoint_session import EVERY, new_session
from flegel.runtime.job.resume import UNSET
from flegel.runtime.job.resume import resume as resume_job
from flegel.runtime.job.run import HOOK_TIMEOUT, WORKER_TIMEOUT, Request, default_workers, execute
from flegel.runtime.processes.cluster_protocol import Cluster

if TYPE_CHECKING:
    from flegel.machine.coordinator.observation import JobSnapshot


def run(
    algorithm: Algorithm | type[Algorithm] | str,
    data: Any,
    *,
    workers: int | None = None,
    sync: str = "fsp",
    interval: float | str | None = None,
    target: float | None = None,
    tolerance: float = 1e-4,
    max_iterations: int | None = None,
    max_seconds: float | None = None,
    first_interval: float | str | None = None,
    coordination: str | None = None,
    staleness: int | None = None,
    batches: int | None = None,
    factor: float | None = None,
    balance: str | None = None,
    straggler: str = "",
    seed: int = 0,
    label: str | int | None = None,
    partition: str = "shuffle",
    scale: str = "none",
    collect_state: bool = False,
    worker_timeout: float | str = WORKER_TIMEOUT,
    hook_timeout: float | str = HOOK_TIMEOUT,
    replace: bool = True,
    attribute: bool = False,
    out: str | os.PathLike[str] | None = None,
    checkpoint: str | os.PathLike[str] | None = None,
    checkpoint_every: float | str = EVERY,
    cluster: Cluster | None = None,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Train `algorithm` on `data` and return the result.

    `data` is an array, a pair (X, y), a frame, a path or the name of a data set; `partition` says who owns which
    rows: shuffle, contiguous, "sorted-by COLUMN" or dirichlet:ALPHA; `scale` is none, standard or minmax.

    `sync` is the synchronization model; `interval` (seconds, or text such as "200ms") fixes the time between two
    barriers, which `fsp` finds by itself otherwise.
    Further switches of the models: `first_interval` (where the search begins), `coordination` ("semi" or
    "centralized"), `staleness`, `batches` (a pass), `factor` (λ), `balance` ("async", "sync" or "off": points
    move to faster workers so that all data are traversed equally often). `straggler` slows workers on purpose, such
    as "0-3:8x" (see docs/sync-models.md).

    The first of `target`, `tolerance` (relative change of the objective over a full pass; 0 switches it off),
    `max_iterations` and `max_seconds` ends the job. `attribute` keeps what each worker's reports did for the objective
    (`gain`; it costs an evaluation of the objective per report). `out` is a folder for model, result and trace.
    `watch` is called several times a second with a `JobSnapshot`, `say` with remarks. With a `LocalCluster` workers
    stay warm between runs, and `cluster.scale(n)` from another thread changes their number while a job runs.

    A worker that dies, or gives no sign of life for `worker_timeout`, is replaced by a new process; without `replace`
    the others take its points over (see docs/faults.md). A hook that does not return within `hook_timeout`, or a point
    that takes longer, ends the job.

    `checkpoint` is a folder, or an address such as s3://bucket/job, where the state of the job is kept, every
    `checkpoint_every` (seconds, or text such as "30s"); `flegel.resume` goes on from there. Ctrl-C and SIGTERM then
    write a last checkpoint before `KeyboardInterrupt` is raised.
    """
    from flegel.datasets import open_data
    from flegel.runtime.job import result_store

    chosen = resolve(algorithm)
    if out is not None:
        result_store.check_target(out)
    count = workers if workers is not None else cluster.workers if cluster else default_workers()
    if cluster is not None and count > cluster.workers:
        raise UsageError(f"{count} workers were asked for, but the cluster has {cluster.workers}.")
    dataset = open_data(data, label=label)
    record = None
    if checkpoint is not None:
        record = new_session(checkpoint, _seconds(checkpoint_every) or 0.0, data, label)
    result = execute(
        Request(
            record=record,
            algorithm=chosen,
            data=dataset,
            workers=count,
            sync=SyncSpec(
                sync, _seconds(interval), _seconds(first_interval), coordination, staleness, batches, factor, balance
            ),
            criteria=Criteria(max_iterations, target, tolerance, max_seconds),
            seed=seed,
            partition=partition,
            scale=scale,
            straggler=straggler,
            collect_state=collect_state,
            worker_timeout=_seconds(worker_timeout) or 0.0,
            hook_timeout=_seconds(hook_timeout) or 0.0,
            replace=replace,
            attribute=attribute,
            cluster=cluster,
            watch=watch,
            say=say,
        )
    )
    if out is not None:
        result_store.save(result, out)
    return result


def resume(
    place: str | os.PathLike[str],
    *,
    workers: int | None = None,
    target: float | None = UNSET,
    tolerance: float = UNSET,
    max_iterations: int | None = UNSET,
    max_seconds: float | None = UNSET,
    algorithm: Algorithm | type[Algorithm] | str | None = None,
    data: Any = None,
    label: str | int | None = None,
    exact: bool | None = None,
    trust_code: bool = False,
    checkpoint_every: float | str | None = None,
    out: str | os.PathLike[str] | None = None,
    cluster: Cluster | None = None,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Result:
    """Go on with a job from its checkpoints in `place`, and keep further ones there.

    `workers` and what ends the job may be changed; algorithm and data must be those of the checkpoint, and are
    compared with it. Data that came from Python are passed again as `data`; so is a class of your own as `algorithm`,
    unless it can be found in its file or you trust the code inside the checkpoint (`trust_code`).

    With `exact` the job goes on from the newest complete checkpoint: under `bsp` it then takes the same course, to the
    last bit, as if it had never stopped (the default there). Otherwise it goes on from the last commit, where that is
    newer: one pass under its θ makes the statistics anew.
    """
    from flegel.runtime.job import result_store

    if out is not None:
        result_store.check_target(out)
    result = resume_job(
        place, workers=workers, target=target, tolerance=tolerance, max_iterations=max_iterations,
        max_seconds=max_seconds, algorithm=algorithm, data=data, label=label, exact=exact, trust_code=trust_code,
        checkpoint_every=_seconds(checkpoint_every), cluster=cluster, watch=watch, say=say,
    )  # fmt: skip
    if out is not None:
        result_store.save(result, out)
    return result


def _seconds(value: float | str | None) -> float | None:
    return parse_seconds(value) if isinstance(value, str) else value


def resolve(algorithm: Algorithm | type[Algorithm] | str) -> Algorithm:
    """An instance from an instance, a class, a built-in name or `file.py:Class`."""
    if isinstance(algorithm, Algorithm):
        return algorithm
    if isinstance(algorithm, str):
        from flegel.runtime.job.find_algorithm import find_algorithm

        algorithm = find_algorithm(algorithm)
    if isinstance(algorithm, type) and issubclass(algorithm, Algorithm):
        return algorithm()
    raise UsageError(f"{algorithm!r} is no algorithm; give a subclass of flegel.Algorithm, or a name.")
