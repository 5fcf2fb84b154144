"""One job from request to result: data in place, θ(0), kernel compiled once, workers loaded, trained, collected.

Everything that a job needs is prepared here in the order in which it can fail cheaply: names and types first, data
next, processes last. The decisions during training are the coordinator's.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flegel import tree
from flegel.algorithm import Algorithm, Sample
from flegel.datasets import Dataset, scale
from flegel.errors import AlgorithmError, DataError, FlegelError, Interrupted, UsageError, own_traceback
from flegel.machine.balancing import Balancing
from flegel.machine.coordinator import Coordinator
from flegel.machine.events import Patience
from flegel.machine.ledger import Ledger
from flegel.machine.snapshot import Part
from flegel.machine.survey import Surveyor
from flegel.messages import Load, Survey
from flegel.plan.straggler import parse_stragglers
from flegel.result import Result, balance_row, utilization, worker_rows
from flegel.runtime import clock
from flegel.runtime.code import reference
from flegel.runtime.compile import Built, build_kernel, fold_change
from flegel.runtime.driver import drive
from flegel.runtime.local import MAX_WORKERS, LocalCluster
from flegel.runtime.record import Record, fingerprint
from flegel.runtime.rows import SharedRows
from flegel.runtime.signals import Signals
from flegel.runtime.trainer import form_of
from flegel.share import Sparse, check_state, make_share
from flegel.spec import Criteria, SyncSpec, check_seed
from flegel.sync import balance_mode, make_policy
from flegel.tree import Array, Tree

SAMPLE_ROWS = 100_000
HEAD_ROWS = 1024
PROBE_ROWS = 256
WORKER_TIMEOUT = 10.0
HOOK_TIMEOUT = 30.0
LEAST_TIMEOUT = 2.0  # two beats


class FlegelWarning(UserWarning):
    """Something that works, but not as well as it could."""


@dataclass
class Request:
    """A job as the caller asks for it."""

    algorithm: Algorithm
    data: Dataset
    workers: int
    sync: SyncSpec = field(default_factory=SyncSpec)
    criteria: Criteria = field(default_factory=Criteria)
    seed: int = 0
    straggler: str = ""
    partition: str = "shuffle"
    attribute: bool = False
    """Keep each worker's share of the progress of the objective."""
    worker_timeout: float = WORKER_TIMEOUT
    """Seconds without a sign of life after which a worker counts as lost."""
    hook_timeout: float = HOOK_TIMEOUT
    """Seconds in one call of a hook (in training: in one point) after which it counts as endless."""
    replace: bool = True
    """Start another process in place of a lost worker; otherwise the others take its points over."""
    scale: str = "none"
    collect_state: bool = False
    cluster: LocalCluster | None = None
    record: Record | None = None
    """Where its state is kept, and what it goes on from."""
    watch: Callable[[Coordinator], None] | None = None
    say: Callable[[str], None] = lambda text: None
    phase: Callable[[str, str], None] = lambda name, hook: None
    """Told what the job does now: reading, init (and which hook), compiling, loading, training."""


def default_workers() -> int:
    """One for each core that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def execute(request: Request) -> Result:
    """Train and return; leaves nothing behind, whatever happens."""
    began = clock.now()
    check_numbers(request)
    algorithm = request.algorithm
    policy = make_policy(request.sync)
    parse_stragglers(request.straggler, request.workers)
    own_cluster = request.cluster is None
    cluster = request.cluster or LocalCluster(request.workers)
    record = request.record
    rows: SharedRows | None = None
    try:
        check_data(request)
        if record is not None:
            record.note(algorithm)
            if record.found is not None:
                cluster.start()  # somebody waits for this job to go on: processes come up while data are opened
        scaling = _scaling(request, cluster) if scale.check_method(request.scale) != "none" else None
        request.phase("reading", "")
        plan = Plan(request, scaling)
        if request.data.note:  # not before everything that could be wrong has been looked at
            request.say(request.data.note)
        parts = record.parts(request) if record else []
        if record is not None:
            record.check_forms(algorithm, plan.zero, plan.state, parts)
        cluster.start()  # processes come up while the kernel is compiled
        request.phase("compiling", "")
        built = plan.compile()
        request.phase("loading", "")
        if request.data.in_memory:
            features, labels = request.data.load()
            owners = [part.ids for part in parts]
            owners = owners or request.data.owners(request.workers, request.partition, request.seed)
            rows = SharedRows(features, labels if algorithm.supervised else None, owners, cluster.new_array)
            del features, labels
        source = rows.describe() if rows else _own_parts(request)
        cluster.wait_ready()
        ref = reference(algorithm)
        loads = {
            index: Load(
                algorithm=ref,
                source=source,
                index=index,
                count=request.workers,
                seed=request.seed,
                parameter=form_of(plan.parameter),
                statistics=form_of(plan.zero),
                interpret=built.kind == "interpreted",
                straggler=request.straggler,
                scaled=scaling is not None,
                elapsed=record.found.manifest.seconds if record and record.found and record.found.manifest else 0.0,
                kept=parts[index].kept if parts else None,
                lend=balance_mode(request.sync, request.workers) != "off",
            )
            for index in range(request.workers)
        }
        machine = Coordinator(
            algorithm=algorithm,
            policy=policy,
            criteria=request.criteria,
            parameter=plan.parameter,
            ledger=Ledger(algorithm, plan.zero),
            loads=loads,
            collect=request.collect_state or algorithm.keep_state,
            scaling=tuple(scaling or ()),
            debug=bool(os.environ.get("FLEGEL_DEBUG")),
            balancing=_balancing(request, cluster.crowded(request.workers)),
            attribute=request.attribute,
            keeping=record.keeping() if record else None,
            parts={index: part.frames() for index, part in enumerate(parts)},
            patience=_patience(request),
            rows=request.data.rows,
            replace=request.replace,
        )
        shift = 0.0
        if record is None:
            drive(machine, cluster, _watching(request, machine))
        else:
            shift = _drive_and_keep(request, record, machine, plan, scaling, parts, cluster)
        return _result(request, machine, built, machine.ready_at - shift - began, scaling)
    finally:
        if record is not None:
            record.close()
        if rows is not None:
            rows.close()
        if own_cluster:
            cluster.close()


def _watching(request: Request, machine: Coordinator) -> Callable[[], None]:
    def watch() -> None:
        if request.record is not None:
            request.record.tell()
        if request.watch is not None:
            request.watch(machine)

    return watch


def _drive_and_keep(
    request: Request,
    record: Record,
    machine: Coordinator,
    plan: Plan,
    scaling: scale.Scaling | None,
    parts: list[Part],
    cluster: LocalCluster,
) -> float:
    """Train with checkpoints, from where the job stood; returns how far its clock is ahead of this host's."""
    record.restore(machine, parts)
    forms = (form_of(plan.parameter), form_of(plan.zero))
    record.begin(request, machine, plan.fingerprint, scaling, forms)
    shift = record.shift
    with Signals() as signals:
        watch = _watching(request, machine)
        drive(machine, cluster, watch, keeper=record, suspended=signals, shift=shift)
        if signals.why and machine.verdict is None:
            record.close()
            raise Interrupted(record.last_words(signals.why, machine), signals.exit_code)
    return shift


def _balancing(request: Request, crowded: bool) -> Balancing | None:
    mode = balance_mode(request.sync, request.workers)
    return None if mode == "off" else Balancing(mode, request.criteria, crowded=crowded)


def _patience(request: Request) -> Patience:
    return Patience(silence=request.worker_timeout, hook=request.hook_timeout)


def check_numbers(request: Request) -> None:
    """What can be seen to be wrong without opening anything."""
    if not 1 <= request.workers <= MAX_WORKERS:
        raise UsageError(f"The number of workers must be 1 to {MAX_WORKERS}, not {request.workers}.")
    if not LEAST_TIMEOUT <= request.worker_timeout < 86400:
        raise UsageError(
            f"--worker-timeout {request.worker_timeout:g} must be {LEAST_TIMEOUT:g} seconds or more, less than a day."
        )
    if not LEAST_TIMEOUT <= request.hook_timeout < 86400:
        raise UsageError(
            f"--hook-timeout {request.hook_timeout:g} must be {LEAST_TIMEOUT:g} seconds or more, less than a day."
        )
    check_seed(request.seed)
    cls = type(request.algorithm)
    halts = "voteToHalt" in cls.updateDataPoint.__code__.co_names
    halts = halts or cls.terminationCheck is not Algorithm.terminationCheck
    request.criteria.check(has_objective=cls.objective is not Algorithm.objective, halts=halts)


def check_data(request: Request) -> None:
    """The shape of the data against what the algorithm and the number of workers need, before anything is read."""
    data, algorithm = request.data, request.algorithm
    name = type(algorithm).__name__
    if data.rows == 0:
        raise DataError(f"{data.name} has no rows; there is nothing to train on.")
    if data.sparse and not algorithm.sparse:
        raise DataError(f"{name} takes dense rows, but {data.name} is sparse.")
    if algorithm.supervised and not data.labelled:
        raise DataError(f"{name} needs labels, but {data.name} has none; name their column with --label.")
    if request.workers > data.rows:
        raise UsageError(f"{request.workers} workers are more than the {data.rows} points of {data.name}; use fewer.")


def _scaling(request: Request, cluster: LocalCluster) -> scale.Scaling:
    """How to scale, from the moments of all rows; workers compute those of their own parts."""
    if request.record is not None and request.record.found and request.record.found.job.scaling:
        return scale.Scaling(*(np.array(column) for column in request.record.found.job.scaling))
    if request.data.in_memory:
        return scale.scaling(scale.moments(request.data.load()[0]), request.scale)
    cluster.start()
    cluster.wait_ready()
    source = _own_parts(request)
    orders = {i: Survey(source, i, request.workers, request.seed) for i in range(request.workers)}
    surveyor = Surveyor(orders, _patience(request), request.replace)
    drive(surveyor, cluster, last=False)
    total = scale.nothing(request.data.columns)
    for worker in sorted(surveyor.moments):
        total = scale.merge(total, scale.Moments(*surveyor.moments[worker]))
    return scale.scaling(total, request.scale)


def _own_parts(request: Request) -> dict[str, Any]:
    """Workers read their own parts; nobody holds the whole."""
    return {"kind": "dataset", "description": request.data.describe(), "partition": request.partition}


class Plan:
    """θ(0), the statistics of nothing, and a compiled kernel."""

    def __init__(self, request: Request, scaling: scale.Scaling | None) -> None:
        self.request, self.algorithm = request, request.algorithm
        rng = np.random.default_rng(request.seed)
        self.sample = take_sample(request.data, request.seed)
        record, self.fingerprint = request.record, ""
        if record is not None:
            self.fingerprint = fingerprint(self.sample)
            record.check(self.fingerprint, request.data.name)
        if scaling is not None:
            rows = self.sample.features
            own = rows if isinstance(rows, Sparse) else rows.copy()
            self.sample = self.sample._replace(features=scale.apply(own, scaling))
        request.phase("init", "validate")
        self.algorithm.validate(self.sample)
        former = record.parameter(self.algorithm) if record is not None else None
        self._former = former is not None
        """θ was not made here."""
        fresh = self._hook("initParameter", self.sample, rng) if former is None else former
        self.parameter: Tree = tree.as_float64(fresh)
        if not tree.is_finite(self.parameter):
            raise AlgorithmError("initParameter returned numbers that are not finite.")
        presented = tree.present(self.parameter)
        count = min(PROBE_ROWS, self.sample.points)
        self.state: Array = self._hook("initState", count, self.sample.columns, np.random.default_rng(0))
        check_state(self.state, count)
        default = type(self.algorithm).initAggregator is Algorithm.initAggregator
        hook = "updateDataPoint" if default else "initAggregator"  # the default looks at one point's change
        request.phase("init", hook)
        made = self._guard(hook, lambda: self.algorithm.initAggregator(self.sample, presented))
        self.zero: Tree = tree.zeros_like(made)
        request.phase("init", "aggregate")
        self._guard("aggregate", lambda: fold_change(self.algorithm, tree.copy(self.zero), self.zero))

    def compile(self) -> Built:
        """In this process first, so that workers find the code in the cache; a job that goes on has left it there."""
        features, labels = self.sample.features, self.sample.labels
        count = min(PROBE_ROWS, self.sample.points)
        labels = labels[:count] if labels is not None and self.algorithm.supervised else None
        if isinstance(features, Sparse):
            end = features.indptr[count]
            few: Array | Sparse = Sparse(
                features.indptr[: count + 1], features.indices[:end], features.values[:end], features.columns
            )
        else:
            few = features[:count]
        share = make_share(few, labels, self.state, self.algorithm.layout)
        cold = self.request.record is not None and self.request.record.found is not None
        built: Built = self._guard(
            "updateDataPoint", lambda: build_kernel(self.algorithm, share, self.parameter, self.zero, cold=cold)
        )
        if built.kind == "interpreted":
            name = type(self.algorithm).__name__
            warnings.warn(
                f"{name}.updateDataPoint runs interpreted, many times slower, because numba cannot compile it: "
                f"{built.note}",
                FlegelWarning,
                stacklevel=2,
            )
        return built

    def _hook(self, name: str, *args: Any) -> Any:
        self.request.phase("init", name)
        return self._guard(name, lambda: getattr(self.algorithm, name)(*args))

    def _guard(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except FlegelError:
            raise
        except Exception as error:
            what, record = f"{name} raised {type(error).__name__}: {error}", self.request.record
            if record is not None and self._former and reference(self.algorithm).builtin:  # it was content with its own
                raise record.outdated(self.algorithm, what) from error
            raise AlgorithmError(f"{what} (before training)", own_traceback(error)) from error


def take_sample(data: Dataset, seed: int) -> Sample:
    """All rows in their order where they are few; else the first `HEAD_ROWS`, then others drawn evenly."""
    if data.rows <= SAMPLE_ROWS:
        features, labels = data.load() if data.in_memory else data.sample(data.rows, seed)
        return Sample(features, labels, data.rows, data.columns)
    head = data.source.take(np.array([[0, HEAD_ROWS]]))
    features, labels = data.sample(SAMPLE_ROWS - HEAD_ROWS, seed)
    if labels is not None and head.labels is not None:
        labels = np.concatenate([head.labels, labels])
    return Sample(_stack(head.features, features), labels, data.rows, data.columns)


def _stack(a: Array | Sparse, b: Array | Sparse) -> Array | Sparse:
    if isinstance(a, Sparse) and isinstance(b, Sparse):
        return Sparse(
            np.concatenate([a.indptr, b.indptr[1:] + a.indptr[-1]]),
            np.concatenate([a.indices, b.indices]),
            np.concatenate([a.values, b.values]),
            a.columns,
        )
    return np.concatenate([a, b])  # type: ignore[arg-type, unused-ignore]


def _result(
    request: Request, machine: Coordinator, built: Built, load_seconds: float, scaling: scale.Scaling | None
) -> Result:
    algorithm, data = request.algorithm, request.data
    assert machine.verdict is not None
    request.phase("result", "warnings")
    workers = worker_rows(machine)
    values = (row.estimate for row in reversed(machine.trace))
    return Result(
        algorithm=algorithm,
        name=type(algorithm).__name__.lower() if reference(algorithm).builtin else type(algorithm).__name__,
        dataset=data.summary(),
        sync=request.sync.name,
        workers=request.workers,
        seed=request.seed,
        converged=machine.verdict.converged,
        reason=machine.verdict.reason,
        objective=next((value for value in values if value is not None), None),
        iterations=machine.iteration,
        seconds=machine.seconds,
        load_seconds=load_seconds,
        rows=[vars(row) for row in machine.trace],
        worker=workers,
        utilization=utilization(workers),
        staleness=dict(sorted(machine.staleness.items())),
        parameter=tree.present(machine.final_parameter()),
        kernel=built.kind,
        warnings=remarks(machine),
        classes=data.classes,
        scaling=tuple(scaling) if scaling is not None else None,
        state=_in_data_order(machine) if machine.states else None,
        balance=balance_row(machine),
        incidents=[vars(incident) for incident in machine.crew.incidents],
    )


def remarks(machine: Coordinator) -> list[str]:
    """What a user should read beside the figures."""
    found = machine.algorithm.warnings(tree.present(machine.ledger.total), tree.present(machine.parameter))
    unseen = sum(w.unseen for w in machine.view.workers.values())
    if unseen and machine.trace and machine.trace[-1].estimate is not None:
        found = [*found, f"the objective is an estimate: {unseen} of {machine.points} points were never visited"]
    return found


def _in_data_order(machine: Coordinator) -> Array:
    """Workers own the rows in shuffled order; users know them in the order of the data."""
    states, numbers = zip(*machine.states.values(), strict=True)
    shuffled, ids = np.concatenate(states), np.concatenate(numbers)
    restored = np.empty_like(shuffled)
    restored[ids] = shuffled
    return restored
