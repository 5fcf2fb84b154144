"""Resume a job from its vault. The entry point for people (`flegel resume`) and for supervisors (`replace`).

What may change: the number of workers, and what ends the job. Algorithm and data must be those of the checkpoint.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flegel.algorithm import Algorithm
from flegel.errors import UsageError
from flegel.job import AlgorithmRef
from flegel.result import Result
from flegel.runtime.checkpoint.reader import StoredJob, read
from flegel.runtime.checkpoint.store import open_store
from flegel.runtime.checkpoint.writer import JobRecord
from flegel.runtime.job.checkpoint_session import CheckpointSession, CheckpointWarning, outdated, whereabouts
from flegel.runtime.job.class_source import in_json, instantiate, made, plain_hyper, same_code
from flegel.runtime.job.find_algorithm import find_algorithm
from flegel.runtime.job.run import HOOK_TIMEOUT, WORKER_TIMEOUT, Request, execute
from flegel.runtime.worker.current_hook import MODULE
from flegel.sync import models

if TYPE_CHECKING:
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.runtime.processes.cluster_protocol import Cluster

UNSET: Any = object()


def replace(
    place: str | os.PathLike[str],
    *,
    workers: int | None = None,
    cluster: Cluster | None = None,
    worker_timeout: float = WORKER_TIMEOUT,
    hook_timeout: float = HOOK_TIMEOUT,
    hire_again: bool = True,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    phase: Callable[[str, str], None] = lambda name, hook: None,
) -> Result:
    """A new coordinator in place of one that is lost: from the last commit, with everything as it was submitted.

    For supervisors. Takes the place over even if the old process still holds it (it may be stopped, not dead): whatever
    that one writes afterwards is refused by its epoch. The class of a job that was submitted as code is run from the
    record, because it was trusted when it was submitted.
    """
    return resume(
        place, workers=workers, cluster=cluster, worker_timeout=worker_timeout, hook_timeout=hook_timeout,
        hire_again=hire_again, watch=watch, say=say, phase=phase, exact=False, trust_code=True, take_over=True,
    )  # fmt: skip


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
    checkpoint_every: float | None = None,
    cluster: Cluster | None = None,
    worker_timeout: float = WORKER_TIMEOUT,
    hook_timeout: float = HOOK_TIMEOUT,
    hire_again: bool = True,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] = lambda text: None,
    phase: Callable[[str, str], None] = lambda name, hook: None,
    take_over: bool = False,
) -> Result:
    """Go on with a job; see `flegel.resume`."""
    vault = open_store(place)
    found = read(vault)
    job = found.job
    holder = vault.lock()
    if holder is not None and not take_over:
        raise UsageError(f"{vault.place} is in use by {holder}; the job runs already.")
    try:
        for text in found.skipped:
            warnings.warn(text, CheckpointWarning, stacklevel=2)
        phase("init", MODULE)
        chosen = _algorithm(found, algorithm, trust_code, vault.place)
        phase("reading", "")
        dataset, spec, label = _data(job, data, label, vault.place)
        given = {"target": target, "tolerance": tolerance, "max_iterations": max_iterations, "max_seconds": max_seconds}
        criteria = msgspec.structs.replace(job.criteria, **{k: v for k, v in given.items() if v is not UNSET})
        precise = exact if exact is not None else models()[job.sync.name].repeatable
        record = CheckpointSession(vault, checkpoint_every or job.every, spec, label, found, precise)
        request = Request(
            algorithm=chosen,
            data=dataset,
            workers=job.workers if workers is None else workers,
            sync=job.sync,
            criteria=criteria,
            seed=job.seed,
            straggler=job.straggler,
            partition=job.partition,
            attribute=job.attribute,
            scale=job.scale,
            collect_state=job.collect_state,
            worker_timeout=worker_timeout,
            hook_timeout=hook_timeout,
            replace=hire_again,
            cluster=cluster,
            record=record,
            watch=watch,
            say=say,
            phase=phase,
        )
        say(story(record))
        return execute(request)
    finally:
        vault.release()


def story(record: CheckpointSession) -> str:
    """Where a job goes on from, in a line."""
    found = record.found
    assert found is not None
    if record.newer and found.commit is not None:
        states = f"states of iteration {found.manifest.iteration}" if found.manifest else "all points unvisited"
        return f"going on from the commit of iteration {found.commit.iteration} ({states}, statistics by one pass)"
    if found.manifest is not None:
        return f"going on from the checkpoint of iteration {found.manifest.iteration}"
    return "nothing was kept yet; beginning anew"


def _algorithm(
    found: StoredJob, given: Algorithm | type[Algorithm] | str | None, trust_code: bool, place: str
) -> Algorithm:
    """The same algorithm as before; refuses another one."""
    stored = found.job.algorithm
    if given is None:
        word = found.job.word
        if stored.builtin or trust_code:
            return _with_its_hyper(stored, None, place)
        if word is None or not Path(word.rpartition(":")[0]).is_file():
            raise UsageError(
                f"This job's class {stored.name} is code inside the checkpoint; give it again (--algorithm "
                f"file.py:{stored.name}), or pass --trust-code (trust_code=True) if you know where it comes from."
            )
        given = find_algorithm(word)
    if isinstance(given, str):
        given = find_algorithm(given)
    cls = type(given) if isinstance(given, Algorithm) else given
    if not same_code(cls, stored):
        known = stored.name.rpartition(":")[2]
        what = (
            f"The code of {known} has changed since" if cls.__name__ == known else f"{cls.__name__} is not {known} of"
        )
        raise UsageError(f"{what} the checkpoint; resume with the same class, or begin a new job.")
    now = {k: in_json(v) for k, v in plain_hyper(given).items()} if isinstance(given, Algorithm) else found.job.given
    for name, value in found.job.given.items():
        if now.get(name) != value:
            raise UsageError(
                f"{name} is {value!r} in the checkpoint and {now.get(name)!r} now; hyper-parameters cannot change when "
                "a job is resumed."
            )
    return _with_its_hyper(stored, cls, place)


def _with_its_hyper(stored: AlgorithmRef, cls: type[Algorithm] | None, place: str) -> Algorithm:
    """As it was submitted; a built-in one may have become another since."""
    try:
        return instantiate(stored) if cls is None else made(cls, stored)
    except (UsageError, ImportError, AttributeError) as error:
        if not stored.builtin:
            raise
        raise outdated(place, stored.name.rpartition(":")[2], str(error).rstrip(".")) from error


def _data(job: JobRecord, given: Any, label: str | int | None, place: str) -> tuple[Any, str | None, str | int | None]:
    from flegel.datasets import open_data

    label = job.data.label if label is None else label
    if given is not None:
        return open_data(given, label=label), whereabouts(given), label
    if job.data.spec is None:
        raise UsageError(f"The rows of the job in {place} came from Python; pass them again with data=….")
    return open_data(job.data.spec, label=label), job.data.spec, label
