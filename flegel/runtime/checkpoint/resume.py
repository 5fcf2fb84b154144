"""Resume a job from its checkpoints. Called by people (`flegel resume`) and by supervisors (`replace`).

What may change: the options that `flegel.job.Job` lets change, such as the number of workers and what ends the job.
Algorithm and data must be those of the checkpoint.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from flegel.algorithm import Algorithm
from flegel.errors import StorageError, UsageError
from flegel.job import AlgorithmRef, Job
from flegel.loading.class_source import instantiate, plain_hyper, same_code, with_hyper
from flegel.loading.code_gate import CHANGED, Consent, lies_inside, why_not_own
from flegel.messages import CLASS_MODULE_CODE
from flegel.options import with_options
from flegel.results.result import Result
from flegel.runtime.checkpoint.format import JobRecord, StoredJob
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.session import CheckpointSession, CheckpointWarning, outdated
from flegel.runtime.checkpoint.store import CheckpointStore, FolderStore, open_store
from flegel.runtime.job.find_algorithm import file_hash, find_algorithm, from_file
from flegel.runtime.job.observers import Functions, Observer, Observers
from flegel.runtime.job.request import Request
from flegel.runtime.job.run import execute
from flegel.runtime.job.training_data import data_location, open_training_data
from flegel.sync import models
from flegel.wording import option

if TYPE_CHECKING:
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.runtime.processes.cluster_protocol import Cluster


def replace(
    place: str | os.PathLike[str],
    *,
    workers: int | None = None,
    threads: int | None = None,
    servers: int | str | None = None,
    cluster: Cluster | None = None,
    watch: Callable[[JobSnapshot], None] | None = None,
    say: Callable[[str], None] | None = None,
    observers: Iterable[Observer] = (),
) -> Result:
    """A new coordinator in place of one that is lost: from the last commit, with everything as it was submitted.

    For supervisors. Takes the place over even if the old process still holds it (it may be stopped, not dead): whatever
    that one writes afterwards is refused by its epoch. The class of a job that was submitted as code is run from the
    record, because it was trusted when it was submitted.
    """
    given = {"workers": workers, "threads": threads, "servers": servers}
    changes = {name: value for name, value in given.items() if value is not None}
    return resume(
        place,
        changes,
        cluster=cluster,
        observers=Observers([Functions(watch, say), *observers]),
        exact=False,
        trust_code=True,
        take_over=True,
        begin_anew=True,
    )


def resume(
    place: str | os.PathLike[str],
    changes: Mapping[str, Any],
    *,
    algorithm: Algorithm | type[Algorithm] | str | None = None,
    data: Any = None,
    label: str | int | None = None,
    exact: bool | None = None,
    trust_code: bool = False,
    cluster: Cluster | None = None,
    take_over: bool = False,
    begin_anew: bool = False,
    observers: Observers | None = None,
) -> Result:
    """Continue a job from the checkpoints in `place`, with other values for the options in `changes`.

    `algorithm`, `data`, `label`: given again, where the record does not have them or they lie elsewhere now. `exact`:
    continue from the last checkpoint, so that the result has the same bits as without the interruption; False: from the
    last commit, which is newer, and statistics are made by one pass; None: as the synchronization model allows.
    `trust_code`: code in the checkpoint may be run. `take_over`: also where another process holds the place.
    `begin_anew`: from the start where everything that was kept is damaged.
    """
    observers = observers or Observers()
    store = open_store(place)
    stored = read(store)
    locked_by = store.lock()
    if locked_by is not None and not take_over:
        raise UsageError(f"{store.place} is in use by {locked_by}; the job runs already.")
    try:
        _check_usable(stored, store, begin_anew)
        for text in stored.skipped:
            warnings.warn(text, CheckpointWarning, stacklevel=2)
        observers.phase("init", CLASS_MODULE_CODE)
        chosen = same_algorithm(stored, algorithm, trust_code, store)
        observers.phase("reading")
        dataset, location, label = job_data(stored.record.job, data, label, store.place, chosen)
        job = msgspec.structs.replace(changed(stored.record.job, changes), data=location, label=label)
        exact = exact if exact is not None else models()[job.sync.model].repeatable
        session = CheckpointSession(store, job.checkpoint_every, stored, exact)
        observers.say(starting_point(session))
        return execute(Request(chosen, dataset, job, cluster, session, observers=observers))
    finally:
        store.release()


def changed(job: Job, changes: Mapping[str, Any]) -> Job:
    """The job with other values for these options. Threads of a team that becomes several workers are those workers:
    each of them has one, unless `threads` is given as well."""
    made = with_options(job, changes)
    several = job.workers == 1 and (made.workers or 1) > 1
    return msgspec.structs.replace(made, threads=None) if several and "threads" not in changes else made


def _check_usable(stored: StoredJob, store: CheckpointStore, begin_anew: bool) -> None:
    """Where everything that was kept is damaged, a person decides: it may be possible to repair it."""
    if stored.manifest is not None or stored.commit is not None or not stored.damaged:
        return
    if not begin_anew:
        raise StorageError(
            f"Everything that was kept in {store.place} is damaged ({'; '.join(stored.skipped)[:500]}); nothing was "
            f"changed there. Restore the files from a copy, or begin anew with {option('begin_anew', True)}, "
            "which sets them aside."
        )
    for name in stored.damaged:
        with contextlib.suppress(FileNotFoundError):
            store.put(f"damaged-{name}"[:100], [store.get(name)])
            store.drop(name)


def starting_point(session: CheckpointSession) -> str:
    """What a job goes on from, in a line."""
    stored = session.stored
    assert stored is not None
    if session.newer and stored.commit is not None:
        states = f"states of iteration {stored.manifest.iteration}" if stored.manifest else "all points unvisited"
        return f"going on from the commit of iteration {stored.commit.iteration} ({states}, statistics by one pass)"
    if stored.manifest is not None:
        return f"going on from the checkpoint of iteration {stored.manifest.iteration}"
    return "nothing was kept yet; beginning anew"


def same_algorithm(
    stored: StoredJob, given: Algorithm | type[Algorithm] | str | None, trust_code: bool, store: CheckpointStore
) -> Algorithm:
    """The same algorithm as before; refuses another one. Nothing that came with the checkpoint is run or imported,
    unless that was allowed."""
    record, place = stored.record, store.place
    ref = record.job.algorithm
    if given is None:
        if ref.builtin or trust_code:
            return _with_its_hyper(ref, None, place, trust_code)
        given = _recorded_class(record, store)
    elif isinstance(given, str):
        given = _named_class(given, store, trust_code)
    cls = type(given) if isinstance(given, Algorithm) else given
    if not same_code(cls, ref):
        known = ref.name.rpartition(":")[2]
        what = (
            f"The code of {known} has changed since" if cls.__name__ == known else f"{cls.__name__} is not {known} of"
        )
        raise UsageError(f"{what} the checkpoint; resume with the same class, or begin a new job.")
    if record.class_sha256 and file_hash(cls) not in ("", record.class_sha256):
        text = f"the file of {cls.__name__} has changed since the checkpoint, outside of what the class uses by name"
        warnings.warn(text, CheckpointWarning, stacklevel=3)
    before = record.submitted_hyper
    now = plain_hyper(given) if isinstance(given, Algorithm) else before
    for name, value in before.items():
        if now.get(name) != value:
            raise UsageError(
                f"{name} is {value!r} in the checkpoint and {now.get(name)!r} now; hyper-parameters cannot change when "
                "a job is resumed."
            )
    return _with_its_hyper(ref, cls, place, trust_code)


def _recorded_class(record: JobRecord, store: CheckpointStore) -> type[Algorithm]:
    """The class of the file that the record names, where that is this user's own and the same as ever. Its mark
    (`code_gate.mark_of`) shows that: a keyed hash of path and content, which only who has this user's key can make."""
    name = record.job.algorithm.name
    file, _, cls = (record.class_file or "").rpartition(":")
    why = why_not_own(file, record.class_sha256, record.class_mark, _folder(store)) if file else ""
    if file and not why:
        return from_file(Path(file), cls, Consent.MARKED, record.class_sha256)
    if why == CHANGED:
        raise UsageError(
            f"{file} {why} the checkpoint; give it again ({option('algorithm', f'{file}:{cls}')}) if the "
            "algorithm is the same, or begin a new job."
        )
    told = f" (its file {file[:200]} was not imported: it {why})" if why else ""
    raise UsageError(
        f"This job's class {name} is code inside the checkpoint{told}; give it again "
        f"({option('algorithm', f'file.py:{name}')}), or pass {option('trust_code', True)} if you know where it comes "
        "from."
    )


def _named_class(given: str, store: CheckpointStore, trust_code: bool) -> type[Algorithm]:
    """The class that the caller has named; a file inside the checkpoint's own folder is not the caller's."""
    file, folder = given.rpartition(":")[0], _folder(store)
    if file.endswith(".py") and folder is not None and not trust_code and lies_inside(file, folder):
        raise UsageError(
            f"{file} lies inside {store.place}, so it came with the checkpoint; pass {option('trust_code', True)} if "
            "you know where it comes from."
        )
    return find_algorithm(given)


def _folder(store: CheckpointStore) -> Path | None:
    return store.path if isinstance(store, FolderStore) else None


def _with_its_hyper(ref: AlgorithmRef, cls: type[Algorithm] | None, place: str, trusted: bool) -> Algorithm:
    """The algorithm with the hyper-parameters as they were submitted; an error where a built-in one has changed
    since."""
    try:
        return instantiate(ref, Consent.TRUSTED if trusted else None) if cls is None else with_hyper(cls, ref)
    except (UsageError, ImportError, AttributeError) as error:
        if not ref.builtin:
            raise
        raise outdated(place, ref.name.rpartition(":")[2], str(error).rstrip(".")) from error


class ResumedData(NamedTuple):
    """The rows of a job that continues."""

    dataset: Any
    location: str
    """The name or path by which they can be opened again; empty for rows in memory."""
    label: str | int | None
    """The label column."""


def job_data(job: Job, given: Any, label: str | int | None, place: str, algorithm: Algorithm) -> ResumedData:
    """Open the rows of a job again: the given ones, else those that the record names."""
    label = job.label if label is None else label
    asked = msgspec.structs.replace(job, label=label)
    if given is not None:
        return ResumedData(open_training_data(asked, given, algorithm), data_location(given), label)
    if not job.data:
        raise UsageError(f"The rows of the job in {place} came from Python; pass them again with data=….")
    return ResumedData(open_training_data(asked, job.data, algorithm), job.data, label)
