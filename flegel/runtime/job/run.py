"""One job from request to result: a walk through stages, in the order in which they can fail cheaply.

    check     options and the shape of the data, before anything is read or started
    place     where the workers run
    read      parts open what they need while the rows are read
    start     how columns are scaled, θ(0), empty statistics
    compile   the kernel, while the processes of the workers come up
    load      how workers read their rows
    train     the coordinator and its workers, to the end of training
    collect   the result

A stage fills fields of `JobRun`; what a job can do without hangs itself onto stages (`part.py`, `parts.py`), and
nothing here knows a part by name. Decisions during training are the coordinator's.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

from flegel.configuration.active import active, using
from flegel.configuration.compiled import check_compiled
from flegel.datasets.rows import scale
from flegel.errors import FlegelError
from flegel.loading.class_source import is_built_in
from flegel.machine.coordinator.events import EndJob, Event
from flegel.plan.devices import parse_devices
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.backends.registry import library_of
from flegel.runtime.job.collected_result import collected
from flegel.runtime.job.column_advice import column_advice
from flegel.runtime.job.coordinator_of_job import make_coordinator
from flegel.runtime.job.driver import Ports, drive
from flegel.runtime.job.part import JobRun, Part, first
from flegel.runtime.job.parts import parts_of
from flegel.runtime.job.placement import JobCluster
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, check_data, check_numbers, default_workers
from flegel.runtime.job.rows_of_job import partition_source, shared_rows, with_keys
from flegel.runtime.job.teams import NotCompiled, with_processors
from flegel.runtime.processes import fork_server
from flegel.runtime.processes.blas_threads import by_one_thread
from flegel.runtime.system.signals import raise_lost_signal
from flegel.sync import check_topology, make_policy


def execute(request: Request) -> Result:
    """Train and return; leaves nothing behind but workers that wait for the next job."""
    try:
        return _execute(request)
    except NotCompiled as tried:
        assert request.otherwise is not None
        request.observers.say(tried.sentence(type(request.algorithm).__name__, request.otherwise.workers or 1))
        return _execute(replace(request, job=request.otherwise, otherwise=None, interpreted=tried.note))


def _execute(request: Request) -> Result:
    with using(request.job.settings), with_processors(request) as staffed:
        return _walk(JobRun(staffed, clock.now()))


def _walk(running: JobRun) -> Result:
    """All stages; what they opened is closed at the end."""
    with running.ending:
        running.parts = parts_of(running)
        for part in running.parts:
            running.ending.enter_context(part.around())
        for stage in STAGES:
            if stage is not collect:
                raise_lost_signal()
            stage(running)
    assert running.result is not None
    return running.result


def check(running: JobRun) -> None:
    """What can be seen to be wrong without opening anything."""
    request = running.request
    check_numbers(request)
    check_compiled()
    make_policy(request.job.sync)  # refuses switches that the model does not have
    check_topology(request.job.sync, request.job.topology)
    for part in running.parts:
        part.check()


def place(running: JobRun) -> None:
    """Threads or processes, where that can be said already; libraries that their processes will need."""
    request, ending = running.request, running.ending
    for device in (*parse_devices(request.job.device, request.job.gpus, request.workers).values(), "cpu"):
        fork_server.preload(library_of(device, request.algorithm.kernels.backend))
    if "numba" in sys.modules or not is_built_in(request.algorithm):  # kernels of ours come without it
        fork_server.preload("numba")
    running.job_cluster = ending.enter_context(JobCluster(request, first(part.workers_in() for part in running.parts)))
    choice = running.job_cluster.choice
    if choice is None or choice.kind == "threads":  # a small job: threads of a library only disturb it
        ending.enter_context(by_one_thread())


def read(running: JobRun) -> None:
    """The shape of the data fits the job; what takes time is opened while rows are read."""
    check_data(running.request)
    for part in running.parts:
        part.open()
    if running.request.resumed:
        running.job_cluster.start_early()  # a resumed job goes on sooner: processes come up while data are opened
    running.request.observers.phase("reading")
    for part in running.parts:
        part.read()


def start(running: JobRun) -> None:
    """How columns are scaled, and θ(0); made again where other sites were first."""
    while True:
        running.scaling = first(part.scaling() for part in running.parts)
        running.prepared = PreparedJob(running.request, running.scaling, running.parts)
        if all(part.agrees() for part in running.parts):
            break
    for part in running.parts:
        part.started()
    _tell_about_data(running)  # not before everything that could be wrong has been looked at


def compile_kernel(running: JobRun) -> None:
    """The kernel is compiled while processes come up."""
    prepared, decided = running.prepared, running.job_cluster.choice is not None
    running.job_cluster.start_early()
    running.request.observers.phase("compiling")
    running.built = (prepared.compile_beside(running.ending) if decided else None) or prepared.compile()


def load(running: JobRun) -> None:
    """Workers are there, and know how to read their rows."""
    request, prepared, built = running.request, running.prepared, running.built
    processors = min(request.workers, default_workers())
    running.cluster = running.job_cluster.get(
        lambda: active().processors.expected_passes * prepared.pass_seconds(built) / processors
    )
    running.job_cluster.say()
    request.observers.phase("loading")
    running.cluster.start()
    source = first(part.source() for part in running.parts)
    if source is None:
        source = shared_rows(running) if request.data.in_memory else partition_source(request)
    running.source = with_keys(running, source)
    request.control.bind(running.cluster, request.job.servers)
    for part in running.parts:
        part.loading()
    running.cluster.wait_ready(request.job.worker_timeout, request.observers.say)


def train(running: JobRun) -> None:
    """Train to the end; again whenever a part has removed the cause of an error."""
    while True:
        try:
            return _train_once(running)
        except FlegelError as error:
            recovered = any(part.recovers(error) for part in running.parts)
            if not recovered or any(part.forbids_retraining for part in running.parts):
                raise


def _train_once(running: JobRun) -> None:
    """Build the coordinator, enter all parts, and drive it to its end."""
    running.machine = make_coordinator(running)
    parts, control = running.parts, running.request.control

    def asked_to_end() -> Iterable[Event]:
        """At each look: while workers change, or load, it has no effect yet."""
        return [EndJob(control.why())] if control.why() else []

    def look() -> None:
        for part in reversed(parts):
            part.look()

    with contextlib.ExitStack() as training:
        for part in parts:
            training.enter_context(part.training())
        ports = Ports(
            commands={kind: take for part in parts for kind, take in part.commands().items()},
            arrivals=tuple(part.arrivals for part in parts if type(part).arrivals is not Part.arrivals),
            asks=(*(part.asks for part in parts), asked_to_end),
        )
        drive(running.machine, running.cluster, look, ports=ports, shift=running.shift)


def collect(running: JobRun) -> None:
    """The result of the job."""
    with by_one_thread():  # hooks of the end, too
        running.result = collected(running)


STAGES: tuple[Callable[[JobRun], None], ...] = (
    check,
    place,
    read,
    start,
    compile_kernel,
    load,
    train,
    collect,
)
"""In their order; the first one that raises ends the job."""


def _tell_about_data(running: JobRun) -> None:
    """Whether the rows stand in for others, what became of each column, and advice about scaling."""
    data, sample = running.request.data, running.prepared.sample
    how = data.treatment
    advice = None
    if running.request.job.scale == "none":
        advice = scale.advice(sample.features, how.feature_names, how.unscaled())
    odd = column_advice(sample.features, sample.labels, how.feature_names)
    for line in (data.note, *data.source.report, how.advice(), *odd, advice):
        if line:
            running.request.observers.say(line)
