"""The coordinator of a job that is ready to train, with its parts and with what it tells each worker to load."""

from __future__ import annotations

import os

import msgspec

from flegel.configuration.active import active_changes
from flegel.core import pytree
from flegel.core.parallel_sums import add_fields
from flegel.core.precision import rounding
from flegel.loading.class_source import reference
from flegel.machine.coordinator.coordinator import Coordinator
from flegel.messages import LoadShard
from flegel.params.local import LocalStore
from flegel.params.tree_layout import form_of
from flegel.plan.devices import devices_in_turn, parse_devices
from flegel.runtime.job.part import JobRun, first
from flegel.sync import make_policy


def make_coordinator(running: JobRun) -> Coordinator:
    """The machine that decides; parts say where θ lives and what they add."""
    request, prepared = running.request, running.prepared
    algorithm, job = request.algorithm, request.job
    machines = [part.machine() for part in running.parts]
    store = first(part.store() for part in running.parts)
    if store is None:
        store = LocalStore(algorithm, prepared.parameter, prepared.zero, add_fields, job.attribute)
    return Coordinator(
        algorithm=algorithm,
        policy=make_policy(job.sync),
        criteria=job.criteria,
        store=store,
        loads=_loads(running),
        parts=[machine for machine in machines if machine is not None],
        collect=job.collect_state or algorithm.state.kept,
        scaling=tuple(running.scaling or ()),
        debug=bool(os.environ.get("FLEGEL_DEBUG")),
        attribute=job.attribute,
        shards=running.shards,
        timeouts=running.timeouts,
        rows=request.data.rows,
        keys=running.keys,
        replace_lost_workers=job.replace,
        rounding=rounding(request.data.dtype),
        devices=devices_in_turn(job.device),
    )


def _loads(running: JobRun) -> dict[int, LoadShard]:
    """What each worker is told to load."""
    request, prepared = running.request, running.prepared
    devices = parse_devices(request.job.device, request.job.gpus, request.workers)
    common = LoadShard(
        algorithm=reference(request.algorithm),
        source=running.source,
        index=0,
        count=request.workers,
        seed=request.job.seed,
        parameter=form_of(pytree.without(prepared.parameter, request.algorithm.placement.unsent)),
        statistics=form_of(prepared.zero),
        interpret=running.built.kind == "interpreted",
        scaled=running.scaling is not None,
        settings=active_changes(),
    )
    alone, growing = request.works_alone, request.begins_with_part
    loads = {}
    for worker in range(request.workers):
        here = worker not in devices
        own = {
            "index": worker,
            "device": devices.get(worker, "cpu"),
            "alone": alone and here,
            "growing": growing and here,
        }
        for part in running.parts:
            own |= part.load_options(worker)
        loads[worker] = msgspec.structs.replace(common, **own)
    return loads
