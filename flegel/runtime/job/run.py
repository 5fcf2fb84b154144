"""One job from request to result: data in place, θ(0), kernel compiled once, workers loaded, trained, collected.

Everything that a job needs is prepared here in the order in which it can fail cheaply: names and types first, data
next, processes last. The decisions during training are the coordinator's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from flegel.configuration.active import using
from flegel.core import pytree
from flegel.core.parallel_sums import add_fields
from flegel.core.precision import rounding
from flegel.core.pytree import Array, Tree
from flegel.datasets.rows import scale
from flegel.declarations.hidden_state import StateHooks
from flegel.declarations.optional import hook
from flegel.errors import Interrupted, OutOfReach, StorageError, UsageError
from flegel.job import AlgorithmRef, Job
from flegel.loading.class_source import is_built_in, plain_hyper, reference
from flegel.machine.audit.audit import Audit
from flegel.machine.audit.part import AuditPart
from flegel.machine.balance.part import BalancePart
from flegel.machine.checkpoint.part import CheckpointsPart
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.coordinator.observation import metrics_of, observe
from flegel.machine.coordinator.part import CoordinatorPart
from flegel.machine.resting.part import RestingPart
from flegel.machine.scaling_moments import MomentsCollector
from flegel.messages import FrameSpec, LoadShard, MeasureMoments
from flegel.params import hook_values
from flegel.params.hooks import call_hook
from flegel.params.local import LocalStore
from flegel.params.protocol import ParameterStore
from flegel.params.replicated import ReplicatedStore
from flegel.params.tree_layout import form_of
from flegel.plan.devices import parse_devices
from flegel.plan.stragglers import parse_stragglers
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.results.prediction import TrainingRows
from flegel.results.result import Result, sections, utilization, worker_rows
from flegel.runtime import clock
from flegel.runtime.backends.numba.kernels import Built
from flegel.runtime.backends.registry import library_of
from flegel.runtime.group.of_job import group_of, summary_of
from flegel.runtime.job.column_advice import column_advice
from flegel.runtime.job.driver import drive
from flegel.runtime.job.hook_watch import HookWatch
from flegel.runtime.job.model_remarks import description, never_predicted
from flegel.runtime.job.observers import Observation
from flegel.runtime.job.placement import PASSES, JobCluster, balance_control, compiler_for, has_servers, resting_control
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, check_data, check_numbers, default_workers, may_rest
from flegel.runtime.job.validation import Validation
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.blas_threads import by_one_thread
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.system.signals import Signals
from flegel.runtime.transport import process_memory
from flegel.runtime.worker.row_sources import SharedRows
from flegel.runtime.worker.rows_in_place import lend_rows, suits
from flegel.sync import balance_mode, check_topology, make_policy

if TYPE_CHECKING:
    from flegel.machine.server.care import ServerCare
    from flegel.runtime.group.link import GroupLink
    from flegel.runtime.group.session import GroupSession


def execute(request: Request) -> Result:
    """Train and return; leaves nothing behind but workers that wait for the next job. Observers hear how it ended."""
    observation = Observation(request.observers, request.say)
    try:
        with using(request.job.settings):
            result = _execute(request, observation)
    except BaseException as error:
        observation.finish(None, error)
        raise
    observation.finish(result, None)
    return result


def _execute(request: Request, observation: Observation) -> Result:
    began = clock.now()
    check_numbers(request)
    if has_servers(request.job):
        from flegel.runtime.server.job_servers import check_servers_fit

        check_servers_fit(request)
    make_policy(request.job.sync)  # refuses switches that the model does not have
    check_topology(request.job.sync, request.job.topology)
    parse_stragglers(request.job.straggler, request.workers)
    session = request.session
    for device in (*parse_devices(request.job.device, request.job.gpus, request.workers).values(), "cpu"):
        fork_server.preload(library_of(device, request.algorithm.kernels.backend))
    if "numba" in sys.modules or not is_built_in(request.algorithm):  # kernels of ours come without it
        fork_server.preload("numba")
    with contextlib.ExitStack() as ending:
        place = ending.enter_context(JobCluster(request))
        if place.choice is None or place.choice.kind == "threads":  # a small job: threads of a library only disturb it
            ending.enter_context(by_one_thread())
        ending.enter_context(HookWatch(request.algorithm, request.job.hook_timeout))
        if session is not None:
            ending.callback(session.close)
        check_data(request)
        compiler = compiler_for(request)
        if compiler is not None:
            ending.callback(compiler.close)
        if session is not None:
            session.note_hyper(request.algorithm)
            if session.stored is not None:
                place.start_early()  # a resumed job goes on sooner: processes come up while data are opened
        group = group_of(request.job, request.algorithm)
        request.phase("reading", "")
        scaling, prepared = _prepared(request, place, group)
        prepared.compiler = compiler
        held = request.data.held_out
        validation = None if held is None else Validation(request.algorithm, held, scaling)
        if group is not None:
            ending.callback(group.close)
            group.start(prepared.parameter, prepared.zero)
        _tell_about_data(request, prepared)  # not before everything that could be wrong has been looked at
        parts = _stored_parts(request, prepared)
        place.start_early()  # processes come up while the kernel is compiled
        request.phase("compiling", "")
        built = (prepared.compile_beside(ending) if place.choice is not None else None) or prepared.compile()
        cluster = place.get(lambda: PASSES * prepared.pass_seconds(built) / min(request.workers, default_workers()))
        place.say()
        request.phase("loading", "")
        cluster.start()
        lent = _rows_in_place(request, parts, cluster, ending) if request.data.in_memory else None
        copied = partial(_shared_rows, request, parts, cluster, ending)
        source = lent or (copied() if request.data.in_memory else _own_parts(request))
        request.control.bind(cluster)
        observation.begin(_described(request), request.control)
        cluster.wait_ready()
        link = group.link if group is not None else None

        def train(source: dict[str, Any]) -> tuple[Coordinator, float]:
            machine = _coordinator(request, prepared, scaling, built, source, parts, cluster, group)
            if session is not None:
                shift = _drive_with_checkpoints(
                    request, observation, machine, prepared, scaling, parts, cluster, link, validation
                )
                return machine, shift
            watch = _watching(request, observation, machine, cluster, validation=validation)
            drive(machine, cluster, watch, ended=request.control.why, group=link)
            return machine, 0.0

        alone = session is None and group is None
        machine, shift = _trained(request, train, source, copied if alone else None) if lent else train(source)
        if group is not None and machine.verdict is not None and machine.verdict.outcome not in FAILED_OUTCOMES:
            group.ended = "finished"
        with by_one_thread():  # hooks of the end, too
            loaded = machine.state.ready_at - shift - began
            kind = place.choice.kind if place.choice else "processes"
            sites = summary_of(group, machine) if group is not None else {}
            return _result(request, prepared, machine, built, loaded, scaling, kind, sites, validation)


def _trained(
    request: Request,
    train: Callable[[dict[str, Any]], tuple[Coordinator, float]],
    source: dict[str, Any],
    copied: Callable[[], dict[str, Any]] | None,
) -> tuple[Coordinator, float]:
    """Train with rows in place. Workers notice values that are not finite; here the first of all is named. Where they
    cannot read the rows after all, these are `copied`."""
    try:
        return train(source)
    except UsageError:
        request.data.read()
        raise
    except OutOfReach:
        process_memory.remember_refusal()
        if copied is None:
            raise
    return train(copied())


def _prepared(
    request: Request, place: JobCluster, group: GroupSession | None
) -> tuple[scale.Scaling | None, PreparedJob]:
    """How columns are scaled, and θ(0); those of the first group, where there are several."""
    if group is not None:
        group.join(request.data)
    while True:
        scaling = group.scaling() if group is not None else None
        if scaling is None and scale.check_method(request.job.scale) != "none":
            scaling = _scaling(request, place)
        first = group.parameter() if group is not None else None
        starts = partial(group.joint_sample, waits=partial(_waits, request)) if group is not None else None
        prepared = PreparedJob(request, scaling, first, starts)
        if group is None or group.publish(prepared.parameter, scaling, request.data):
            return scaling, prepared


def _waits(request: Request, why: str) -> None:
    """Before training: the phase of a job is what its status shows."""
    request.phase(why, "")
    request.say(f"this group {why}")


def _stored_parts(request: Request, prepared: PreparedJob) -> list[WorkerState]:
    """What workers had in the checkpoint that the job goes on from; nothing without one."""
    session, algorithm = request.session, request.algorithm
    if session is None:
        return []
    if balance_mode(request.job.sync, request.workers) != "off" and may_rest(request.job):
        session.keep_active_workers(request.workers)
    parts = session.parts(algorithm, request.workers, request.data.columns, request.job.seed)
    session.check_forms(algorithm, prepared.parameter, prepared.zero, prepared.state, parts)
    session.check_points(hook(algorithm, StateHooks.stateLimits)(prepared.parameter), request.data.rows, parts)
    return parts


def _rows_in_place(
    request: Request, parts: list[WorkerState], cluster: Cluster, ending: contextlib.ExitStack
) -> dict[str, Any] | None:
    """How workers read rows that only this process has, where they are, until the job ends; None where the rows have to
    be copied. Workers of a resumed job have those that they had, in any order."""
    data = request.data
    if parts or data.sparse or not suits(data.rows, data.columns, data.dtype.itemsize, request.partition):
        return None
    found = data.in_place()
    rows = data.read() if found is None else found
    rows = rows._replace(labels=request.algorithm.accepts.kept_labels(rows.labels))
    lent = lend_rows(rows, request.partition, cluster.lend_array)
    if lent is None:
        return None
    ending.callback(lent.close)
    return lent.describe()


def _shared_rows(
    request: Request, parts: list[WorkerState], cluster: Cluster, ending: contextlib.ExitStack
) -> dict[str, Any]:
    """How workers read rows that only this process has: copied, until the job ends."""
    whole = request.data.read()
    labels = request.algorithm.accepts.kept_labels(whole.labels)
    owned = [part.ids for part in parts] or request.data.owners(request.workers, request.partition, request.job.seed)
    rows = SharedRows(whole.features, labels, owned, cluster.new_array, whole.weights)
    ending.callback(rows.close)
    return rows.describe()


def _coordinator(
    request: Request,
    prepared: PreparedJob,
    scaling: scale.Scaling | None,
    built: Built,
    source: dict[str, Any],
    parts: list[WorkerState],
    cluster: Cluster,
    group: GroupSession | None = None,
) -> Coordinator:
    """The machine that decides, with what it tells each worker to load."""
    algorithm, job, session = request.algorithm, request.job, request.session
    servers, forms = _servers(request, prepared, cluster)
    ref, devices = reference(algorithm), parse_devices(job.device, job.gpus, request.workers)
    alone = group is None and servers is None and request.works_alone
    loads = {
        index: LoadShard(
            algorithm=ref,
            source=source,
            index=index,
            count=request.workers,
            seed=job.seed,
            parameter=form_of(pytree.without(prepared.parameter, algorithm.placement.unsent)),
            statistics=form_of(prepared.zero),
            interpret=built.kind == "interpreted",
            straggler=job.straggler,
            scaled=scaling is not None,
            elapsed=session.seconds if session else 0.0,
            kept=parts[index].kept if parts else None,
            audit=job.audit != "off",
            lend=balance_mode(job.sync, request.workers) != "off",
            device=devices.get(index, "cpu"),
            version=0 if servers is not None else -1,
            forms=forms,
            replicated=job.topology == "allreduce",
            alone=alone and index not in devices,
            growing=request.begins_with_part,
        )
        for index in range(request.workers)
    }
    plugged: list[CoordinatorPart] = []
    if servers is not None:
        from flegel.machine.server.part import ServersPart

        plugged.append(ServersPart(servers))
    elif group is not None:
        from flegel.machine.group.part import GroupPart

        plugged.append(GroupPart(group.exchange()))
    if (resting := resting_control(request)) is not None:
        plugged.append(RestingPart(resting))
    if (audit := _audit(request)) is not None:
        plugged.append(AuditPart(audit))
    if (balance := balance_control(request, cluster.crowded(request.workers))) is not None:
        plugged.append(BalancePart(balance))
    if session is not None:
        plugged.append(CheckpointsPart(session.schedule()))
    return Coordinator(
        algorithm=algorithm,
        policy=make_policy(job.sync),
        criteria=job.criteria,
        store=servers.group if servers is not None else _store(request, prepared),
        loads=loads,
        collect=job.collect_state or algorithm.state.kept,
        scaling=tuple(scaling or ()),
        debug=bool(os.environ.get("FLEGEL_DEBUG")),
        parts=plugged,
        attribute=job.attribute,
        shards={index: part.frames() for index, part in enumerate(parts)},
        timeouts=_timeouts(request),
        rows=request.data.rows,
        replace=job.replace,
        rounding=rounding(request.data.dtype),
    )


def _servers(
    request: Request, prepared: PreparedJob, cluster: Cluster
) -> tuple[ServerCare | None, tuple[FrameSpec, ...]]:
    """Who looks after parameter servers, and forms of what the coordinator does not send; most jobs have none."""
    if not has_servers(request.job):
        return None, ()
    from flegel.runtime.server.job_servers import server_care, unsent_forms

    care = server_care(request, prepared, cluster, _timeouts(request))
    return care, unsent_forms(request, prepared) if care is not None else ()


def _store(request: Request, prepared: PreparedJob) -> ParameterStore:
    """Where θ and the statistics live."""
    if request.job.topology == "allreduce":
        return ReplicatedStore(request.algorithm, prepared.parameter, prepared.zero)
    return LocalStore(request.algorithm, prepared.parameter, prepared.zero, add_fields, request.job.attribute)


def _described(request: Request) -> Job:
    """The job with its algorithm by name and without its source, for observers."""
    return msgspec.structs.replace(
        request.job,
        algorithm=AlgorithmRef(reference(request.algorithm).name, plain_hyper(request.algorithm)),
        workers=request.workers,
    )


def _watching(
    request: Request,
    observation: Observation,
    machine: Coordinator,
    cluster: Cluster,
    shift: float = 0.0,
    validation: Validation | None = None,
) -> Callable[[], None]:
    def watch() -> None:
        if request.session is not None:
            request.session.warn()
        if validation is not None:
            validation.look(machine)
        followed = {} if validation is None else validation.latest
        if request.watch is not None:
            request.watch(observe(machine, followed=followed))
        observation.look(machine, shift, cluster.hosts(), followed)

    return watch


def _drive_with_checkpoints(
    request: Request,
    observation: Observation,
    machine: Coordinator,
    prepared: PreparedJob,
    scaling: scale.Scaling | None,
    parts: list[WorkerState],
    cluster: Cluster,
    link: GroupLink | None = None,
    validation: Validation | None = None,
) -> float:
    """Train with checkpoints, from where the job stood; returns how far its clock is ahead of this host's."""
    session = request.session
    assert session is not None
    session.restore(machine, parts)
    forms = (form_of(prepared.parameter), form_of(prepared.zero))
    session.begin(request.job, request.algorithm, request.data.summary(), machine, prepared.fingerprint, scaling, forms)
    shift = session.shift
    with Signals() as signals:
        watch = _watching(request, observation, machine, cluster, shift, validation)
        ended = request.control.why
        drive(machine, cluster, watch, keeper=session, suspended=signals, ended=ended, shift=shift, group=link)
        if signals.why and machine.verdict is None:
            session.close()
            raise Interrupted(session.interruption(signals.why, machine), signals.exit_code)
    return shift


def _audit(request: Request) -> Audit | None:
    wanted, resumed = request.job.audit, request.session is not None and request.session.stored is not None
    return None if wanted == "off" else Audit(int(wanted) if wanted.isdigit() else None, resumed)


def _timeouts(request: Request) -> Timeouts:
    return Timeouts(silence=request.job.worker_timeout, hook=request.job.hook_timeout)


def _scaling(request: Request, place: JobCluster) -> scale.Scaling:
    """How to scale, from the moments of all rows; workers compute those of their own parts."""
    if request.session is not None and request.session.stored and request.session.stored.record.scaling:
        kept = scale.Scaling(*(np.array(column) for column in request.session.stored.record.scaling))
        if any(column.shape != (request.data.columns,) or not np.isfinite(column).all() for column in kept):
            raise StorageError(
                f"The checkpoint in {request.session.store.place} scales other columns than the "
                f"{request.data.columns} of {request.data.name}; begin a new job."
            )
        return kept
    if request.data.in_memory:
        found = scale.scaling(scale.moments(request.data.load()[0]), request.job.scale)
        return scale.keep(found, request.data.treatment.unscaled())
    cluster = place.get()
    cluster.start()
    cluster.wait_ready()
    source = _own_parts(request)
    working = set(range(request.workers)) - set(request.deal.resting)
    orders = {i: MeasureMoments(source, i, request.workers, request.job.seed) for i in working}
    collector = MomentsCollector(orders, _timeouts(request), request.job.replace)
    drive(collector, cluster, last=False)
    total = scale.empty_moments(request.data.columns)
    for worker in sorted(collector.moments):
        total = scale.merge(total, scale.ColumnMoments(*collector.moments[worker]))
    return scale.keep(scale.scaling(total, request.job.scale), request.data.treatment.unscaled())


def _tell_about_data(request: Request, prepared: PreparedJob) -> None:
    """Whether the rows stand in for others, what became of each column, and advice about scaling."""
    how = request.data.treatment
    advice = None
    if request.job.scale == "none":
        advice = scale.advice(prepared.sample.features, how.feature_names, how.unscaled())
    odd = column_advice(prepared.sample.features, prepared.sample.labels, how.feature_names)
    for line in (request.data.note, *request.data.source.report, how.advice(), *odd, advice):
        if line:
            request.say(line)


def _own_parts(request: Request) -> dict[str, Any]:
    """Workers read their own parts; no process holds the whole."""
    return {"kind": "dataset", "description": request.data.describe(), "partition": request.partition}


def _result(
    request: Request,
    prepared: PreparedJob,
    machine: Coordinator,
    built: Built,
    load_seconds: float,
    scaling: scale.Scaling | None,
    placement: str,
    sites: dict[str, Any],
    validation: Validation | None = None,
) -> Result:
    algorithm, data = request.algorithm, request.data
    assert machine.verdict is not None
    request.phase("result", "warnings")
    workers = worker_rows(machine)
    values = (row.estimate for row in reversed(machine.trace))
    found = machine.state.final_count.objective if machine.state.final_count is not None else None
    if found is None and sites:
        found = machine.state.objective  # θ of the last result of all groups, which no line of the trace has
    if found is None and machine.verdict.outcome == "diverged":
        found = machine.step_back.value
    parameter = pytree.present(machine.commits.final_parameter())
    metrics, followed = _metrics(machine, prepared, parameter), {}
    if validation is not None and machine.trace and pytree.is_finite(parameter):
        followed = validation.finish(machine, parameter)
        metrics |= validation.latest
    whole = data if data.held_out is None else data.held_out.whole
    return Result(
        algorithm=algorithm,
        name=type(algorithm).__name__.lower() if is_built_in(algorithm) else type(algorithm).__name__,
        dataset=data.summary(),
        sync=request.job.sync.name,
        workers=request.workers,
        placement=placement,
        seed=request.job.seed,
        converged=machine.verdict.converged,
        reason=machine.verdict.reason,
        outcome=machine.verdict.outcome,
        objective=found if found is not None else next((value for value in values if value is not None), None),
        iterations=machine.iteration,
        seconds=machine.state.seconds,
        load_seconds=load_seconds,
        rows=[vars(row) for row in machine.trace],
        worker=workers,
        utilization=utilization(workers),
        staleness=dict(sorted(machine.commits.staleness.items())),
        parameter=parameter,
        kernel=built.kind,
        warnings=[*remarks(machine), *never_predicted(algorithm, prepared.sample, parameter), *about_groups(sites)],
        description=description(algorithm, machine.store.statistics, machine.parameter),
        classes=data.classes,
        metrics=metrics,
        validation=followed,
        scaling=None if scaling is None else (scaling.shift, scaling.factor),
        treatment=data.treatment.scaled_by(scaling),
        state=_in_data_order(machine) if machine.collection.states else None,
        incidents=[vars(incident) for incident in machine.membership.incidents],
        sites=sites,
        training=TrainingRows(whole, scaling),
        **sections(machine),
    )


def about_groups(sites: dict[str, Any]) -> list[str]:
    """Groups that were lost, and groups whose rows are in θ and not in the objective."""
    lost = list(sites.get("without", ()))
    missing = sorted(set(sites.get("groups", ())) - set(sites.get("objective_of", ())))
    if not missing:
        return lost
    return [
        *lost,
        f"the objective is that of the rows of {', '.join(sites['objective_of'])}: the model also holds statistics of "
        f"{', '.join(missing)}, which did not evaluate this θ",
    ]


def _metrics(machine: Coordinator, prepared: PreparedJob, parameter: Tree) -> dict[str, float]:
    """Figures beside the objective: of the statistics of the last pass, and, where they need rows, of the sample."""
    state, algorithm = machine.state, machine.state.algorithm
    counted = state.final_count.counted if state.final_count is not None else None
    found = metrics_of(state, machine.store.statistics if counted is None else counted, parameter)
    if algorithm.figures.shown and pytree.is_finite(parameter):
        rows = prepared.sample
        evaluation = call_hook(algorithm, "the end", "evaluate", rows.features, rows.labels, parameter)
        told = hook_values.figures(evaluation.metrics, "evaluate", "the end") if evaluation is not None else {}
        found |= {name: told[name] for name in algorithm.figures.shown if name in told}
    return found


def remarks(machine: Coordinator) -> list[str]:
    """What a user should read beside the figures."""
    said = call_hook(machine.state.algorithm, "the end", "warnings", machine.store.statistics, machine.parameter)
    found = hook_values.texts(said, "warnings")
    if machine.verdict is not None and machine.verdict.outcome in FAILED_OUTCOMES:
        found = [machine.verdict.reason, *found]
    for part in machine.parts:
        found = [*found, *part.remarks()]
    unseen = sum(w.unseen for w in machine.view.workers.values())
    if unseen and machine.trace and machine.trace[-1].estimate is not None:
        found = [*found, f"the objective is an estimate: {unseen} of {machine.state.points} points were never visited"]
    return found


def _in_data_order(machine: Coordinator) -> Array:
    """Workers own the rows in shuffled order; users know them in the order of the data."""
    states, numbers = zip(*machine.collection.states.values(), strict=True)
    shuffled, ids = np.concatenate(states), np.concatenate(numbers)
    restored = np.empty_like(shuffled)
    restored[ids] = shuffled
    return restored
