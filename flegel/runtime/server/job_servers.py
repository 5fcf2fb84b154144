"""The parameter servers of a job, as its options ask for them. Starts nothing; the coordinator does."""

from __future__ import annotations

import os
from functools import partial

from flegel.configuration.active import active, active_changes
from flegel.core import pytree
from flegel.core.pytree import Tree
from flegel.errors import UsageError
from flegel.job import parse_server_count
from flegel.loading.class_source import reference
from flegel.machine.coordinator.events import Timeouts
from flegel.machine.server.care import MAX_SERVERS, ServerCare
from flegel.machine.server.cutting import Cutting
from flegel.machine.server.group import ServerGroup
from flegel.machine.server.network_plan import NetworkPlan
from flegel.messages import FrameSpec
from flegel.params.sharded import cuts_for, sharding_of
from flegel.params.tree_layout import form_of, forms_of
from flegel.plan.placement.server_count import CountByLoad, CountByPlan, ServerCount
from flegel.plan.placement.slice_size import SliceRule
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request
from flegel.runtime.processes.cluster_protocol import Cluster
from flegel.runtime.processes.worker_cluster import MAX_WORKERS
from flegel.runtime.server.file_arrays import FILE_ARRAY_FROM_BYTES, FileArrays
from flegel.runtime.system.freed_memory import return_freed_memory
from flegel.server_messages import ServeJob
from flegel.wording import counted, option


def check_servers_fit(request: Request) -> None:
    """What servers cannot do is refused before anything is read."""
    job = request.job
    if job.servers == "colocated" and job.server_count != "fixed":
        raise UsageError(
            f"{option('servers', 'colocated')} has one server on each host of workers; use {option('servers', 'N')} "
            f"together with {option('server_count', job.server_count)}."
        )
    sharding_of(request.algorithm)  # raises where the class declares no sharding
    if job.topology != "coordinator":
        raise UsageError(
            f"{option('topology', job.topology)} keeps θ on the workers, {option('servers')} on servers; choose one."
        )
    if job.sites.group:
        raise UsageError(
            f"Groups keep their statistics with the coordinator; use {option('servers', 0)} together with "
            f"{option('group')}."
        )
    if job.attribute:
        raise UsageError(f"{option('attribute')} needs θ and the statistics in one place; use {option('servers', 0)}.")
    if job.processes is False:
        raise UsageError(
            f"Parameter servers are processes of their own; omit {option('processes', False)}, or use "
            f"{option('servers', 0)}."
        )
    most = MAX_WORKERS - MAX_SERVERS
    if request.workers > most:
        raise UsageError(f"With parameter servers a job has at most {counted(most, 'worker')}.")


def server_care(request: Request, prepared: PreparedJob, cluster: Cluster, timeouts: Timeouts) -> ServerCare:
    """The state machine that looks after the parameter servers of a job."""
    job, algorithm = request.job, request.algorithm
    hosts = {worker: cluster.hosts().get(worker, "") for worker in range(request.workers)}
    beside = job.servers == "colocated"
    count = len(set(hosts.values())) if beside else int(job.servers)
    arrays = pytree.flatten(prepared.parameter)
    parameters, size = sum(a.size for a in arrays), sum(a.nbytes for a in arrays)
    measured = job.server_load != "even" and 2 * size >= active().placement.least_bytes
    make = partial(cuts_for, algorithm, prepared.parameter, prepared.zero)
    cutting = Cutting(SliceRule(parameters, job.server_load, measured), make)
    cuts = cutting.cut(count, request.workers)
    count = min(count, cuts.count)
    debug = bool(os.environ.get("FLEGEL_DEBUG"))
    group = ServerGroup(algorithm, prepared.parameter, prepared.zero, cuts, storage=FileArrays())
    large = size >= FILE_ARRAY_FROM_BYTES
    if large:
        return_freed_memory()
    serve = ServeJob(
        reference(algorithm), _form(prepared.parameter), _form(prepared.zero), debug, large, active_changes()
    )
    network = None
    if job.server_load != "even":
        network = NetworkPlan(
            cuts.sizes, beside, hosts, job.server_load, size / max(parameters, 1), parameters=parameters
        )
    rule = _count_rule(job.server_count)
    return ServerCare(group, serve, count, job.replicas, timeouts, job.replace, network, cutting, rule)


def _count_rule(word: str) -> ServerCount | None:
    match parse_server_count(word):
        case None:
            return None
        case (int(least), int(most)):
            return CountByLoad(least, most)
        case list(steps):
            return CountByPlan(steps)
    raise AssertionError("a word of the option has one of three forms")


def unsent_forms(request: Request, prepared: PreparedJob) -> tuple[FrameSpec, ...]:
    """Types and shapes of θ and of the statistics where the coordinator does not send them to workers: servers do. A
    recount of points by the audit needs θ(0), so there the coordinator sends it."""
    parameter = pytree.without(prepared.parameter, request.algorithm.placement.unsent)
    counted = request.algorithm.state.memoryless and request.job.audit != "off"
    if counted or sum(a.nbytes for a in pytree.flatten(parameter)) < FILE_ARRAY_FROM_BYTES:
        return ()
    return forms_of(parameter, prepared.zero)


def _form(bundle: Tree) -> tuple[str, tuple[str, ...]]:
    layout = form_of(bundle)
    return layout.name, layout.fields
