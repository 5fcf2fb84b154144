"""A cluster behind a master, for Python: `run`, `submit`, and jobs that can be waited for. Places and decides nothing.

`flegel.connect` makes one for a master that runs already; a launched cluster (`flegel.cluster.launch`) is one too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from flegel.algorithm import Algorithm
from flegel.cluster.client import (
    JOB_POLL_SECONDS,
    Client,
    checkpoint_name,
    data_name,
    gate_name,
    own_address,
    pack,
    raise_unless_done,
)
from flegel.cluster.fetched_result import read_result
from flegel.cluster.master.facts import OVER
from flegel.cluster.staging import large_arrays, stage_arrays, stage_rows
from flegel.cluster.transport.framing import host_of, is_loopback
from flegel.cluster.transport.protocol import ClusterJob, JobView, SlaveView
from flegel.configuration.sources import changes_outside
from flegel.datasets import Dataset
from flegel.datasets.lazy.parts import write_parts, writer_of
from flegel.errors import FlegelError, UsageError, nearest, warn
from flegel.job import Job
from flegel.loading.class_source import reference
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.options import check_options, deprecations, options_of, with_options
from flegel.plan.stragglers import parse_stragglers
from flegel.results.result import Result
from flegel.runtime import clock
from flegel.runtime.job import result_store
from flegel.runtime.job.find_algorithm import resolve
from flegel.runtime.job.observers import Functions, JobSeen, Observer, Observers
from flegel.runtime.job.request import open_job_data, with_category_places
from flegel.runtime.job.teams import team_per_host
from flegel.sync import make_policy


class ConnectedCluster:
    """`with flegel.connect("tcp://head:7077") as cluster: cluster.run(KMeans(k=10), "higgs")`."""

    def __init__(self, client: Client, staging: str | os.PathLike[str] | None = None) -> None:
        """`staging` is a folder that every slave sees under the same path, for rows that are in this process."""
        self._client, self._lock = client, threading.Lock()
        self.staging = None if staging is None else Path(staging)
        self.address = client.address

    # -- jobs ------------------------------------------------------------------------------------------------------

    def run(
        self,
        algorithm: Algorithm | type[Algorithm] | str,
        data: Any,
        *,
        out: str | os.PathLike[str] | None = None,
        watch: Callable[[JobSnapshot], None] | None = None,
        say: Callable[[str], None] | None = None,
        observers: Iterable[Observer] = (),
        **options: Any,
    ) -> Result:
        """Train on this cluster; arguments and result are those of `flegel.run`. Ctrl-C cancels the job. `observers`
        hear remarks and see snapshots."""
        told = Observers([Functions(watch, say), *observers])
        if out is not None:
            result_store.check_target(out)
        job = self.submit(algorithm, data, **options)
        said = ""
        try:
            for view in job.views():
                text = f"{view.state}: {view.reason}" if view.state == "queued" else view.state
                if text != said and view.state not in OVER:
                    told.say(f"job {job.name} is {text}")
                    said = text
                if view.snapshot and view.state == "running":
                    told.tell(JobSeen(msgspec.convert(view.snapshot, JobSnapshot)))
        except (KeyboardInterrupt, SystemExit):
            job.cancel()
            raise
        result = job.result()
        if out is not None:
            result_store.save_or_rescue(result, out)
        return result

    def submit(self, algorithm: Algorithm | type[Algorithm] | str, data: Any, **options: Any) -> SubmittedJob:
        """Queue a job and return at once. Options are those of `flegel.run`, with `name`, `priority`, `memory` and
        `retries`."""
        chosen = resolve(algorithm)
        job = with_options(Job(), _for_cluster(options))
        check_options(job)
        rows, whole = None, reference(chosen, whole=True)
        large = large_arrays(chosen)
        from_python = not isinstance(data, str | os.PathLike)
        folder = self._staging_folder() if from_python or large else None
        try:
            if folder is not None and large:
                files = stage_arrays(large, folder)
                whole = msgspec.structs.replace(whole, hyper={**whole.hyper, **files})
            if folder is not None and from_python:
                (folder / "rows").mkdir()
                rows, place, options = self._hand_over(data, job, chosen, folder / "rows", options)
                placed = chosen if rows is None else with_category_places(chosen, rows)
                if placed is not chosen:
                    chosen, whole = placed, reference(placed, whole=True)
            else:
                place = data_name(os.fspath(data))
            ref, code, source = pack(whole)
            spec = with_options(ClusterJob(ref, place, code=code), _for_cluster(options))
            settings = {**changes_outside(), **spec.settings}
            places = {"checkpoint": checkpoint_name(spec.checkpoint), "sites": gate_name(spec.sites)}
            team = team_per_host(spec, chosen)
            spec = msgspec.structs.replace(spec, **places, settings=settings, team_per_host=team)
            make_policy(spec.sync)
            if spec.straggler and spec.workers:
                parse_stragglers(spec.straggler, spec.workers)
            for text in deprecations(spec, options):
                warn(text)
            name = self.ask(lambda client: client.submit(spec, source))
        except BaseException:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return SubmittedJob(self, name, chosen, rows, folder)

    def _hand_over(
        self, data: Any, job: Job, algorithm: Algorithm, folder: Path, options: Mapping[str, Any]
    ) -> tuple[Dataset | None, str, dict[str, Any]]:
        """Rows in the folder. Those of a distributed collection are written by the workers that have them."""
        if writer_of(data) is None:
            rows = open_job_data(job, data, algorithm)
            return rows, *stage_rows(rows, folder, options)
        label = write_parts(data, folder)
        if label is not None and options.get("label") is not None:
            raise UsageError("Labels are given twice; give them either as the second of the pair or as label=.")
        return None, str(folder), {**options, **({} if label is None else {"label": label})}

    def jobs(self) -> tuple[JobView, ...]:
        """All jobs that the master knows."""
        found: tuple[JobView, ...] = self.ask(lambda client: client.jobs())
        return found

    # -- hosts -----------------------------------------------------------------------------------------------------

    def slaves(self) -> tuple[SlaveView, ...]:
        """All slaves that have registered."""
        found: tuple[SlaveView, ...] = self.ask(lambda client: client.slaves())
        return found

    @property
    def workers(self) -> int:
        """How many workers can run at a time."""
        return sum(slave.slots for slave in self.slaves() if slave.state == "here")

    def ask(self, question: Callable[[Client], Any]) -> Any:
        """One conversation at a time, from any thread."""
        with self._lock:
            return question(self._client)

    def _staging_folder(self) -> Path:
        """A new folder that this cluster's slaves can read; they can read any where all of them are on this host."""
        own = {own_address(self.address), "127.0.0.1", "::1"}
        here = is_loopback(host_of(self.address)) or {slave.address for slave in self.slaves()} <= own
        if self.staging is None and not here:
            raise UsageError(
                f"Rows or arrays are in this process, and slaves of {self.address} on other hosts cannot read them; "
                "give a path that they can read, or staging=FOLDER that all of them see."
            )
        if self.staging is not None:
            self.staging.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix="flegel-rows-", dir=self.staging))

    def close(self) -> None:
        """End the conversation; jobs that were submitted continue."""
        with self._lock:
            self._client.close()

    def __enter__(self) -> ConnectedCluster:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} at {self.address}>"


class SubmittedJob:
    """A job of a cluster, like a future: `result`, `done`, `cancel`, and what it does meanwhile."""

    def __init__(
        self, cluster: ConnectedCluster, name: str, algorithm: Algorithm, rows: Dataset | None, folder: Path | None
    ) -> None:
        self.name = name
        self._cluster, self._algorithm, self._rows, self._folder = cluster, algorithm, rows, folder
        self._result: Result | None = None

    def view(self) -> JobView:
        """The job as the master sees it now."""
        found: JobView = self._cluster.ask(lambda client: client.job(self.name))
        if found.state in OVER:
            self._drop_rows()
        return found

    def views(self, timeout: float | None = None) -> Iterator[JobView]:
        """Views of the job, one each `JOB_POLL_SECONDS`; raises `TimeoutError` where it has not ended in time."""
        until = None if timeout is None else clock.now() + timeout
        while True:
            view = self.view()
            yield view
            if view.state in OVER:
                return
            if until is not None and clock.now() >= until:
                raise TimeoutError(f"Job {self.name} is still {view.state} after {timeout:g} s.")
            clock.sleep(JOB_POLL_SECONDS)

    @property
    def state(self) -> str:
        """`queued`, `running`, `done`, `failed` or `cancelled`."""
        return self.view().state

    def done(self) -> bool:
        """Whether it has ended: with a result, with an error, or cancelled."""
        return self.state in OVER

    def result(self, timeout: float | None = None) -> Result:
        """Wait for the result; raises what the job failed with, or `TimeoutError`."""
        if self._result is None:
            *_, view = self.views(timeout)
            raise_unless_done(view)
            with _scratch_folder() as folder:
                self._cluster.ask(lambda client: client.fetch(view, folder))
                self._result = read_result(folder, self._algorithm, self._rows)
        return self._result

    def exception(self, timeout: float | None = None) -> FlegelError | None:
        """Wait until the job has ended; returns the error that it failed with, None where it has a result."""
        try:
            self.result(timeout)
        except FlegelError as error:
            return error
        return None

    def cancel(self) -> bool:
        """End it, whether it waits or runs; False where it had ended already."""
        if self.done():
            return False
        self._cluster.ask(lambda client: client.cancel(self.name))
        return True

    def suspend(self) -> None:
        """Stop it at its next barrier, with a checkpoint; one that does not train yet is cancelled."""
        self._cluster.ask(lambda client: client.suspend(self.name))

    def progress(self) -> JobSnapshot | None:
        """Its last snapshot: iteration, objective, workers; None before training begins."""
        snapshot = self.view().snapshot
        return msgspec.convert(snapshot, JobSnapshot) if snapshot else None

    def logs(self) -> list[str]:
        """Lines that its processes have written so far."""
        lines: list[str] = self._cluster.ask(lambda client: list(client.log(self.name)))
        return lines

    def scale(self, workers: int | None = None, servers: int | None = None) -> None:
        """Have so many workers, or parameter servers, from now on."""
        self._cluster.ask(lambda client: client.scale(self.name, workers, servers))

    def _drop_rows(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None

    def __repr__(self) -> str:
        return f"<job {self.name} at {self._cluster.address}>"


def connect(address: str, *, insecure: bool = False, staging: str | os.PathLike[str] | None = None) -> ConnectedCluster:
    """A cluster whose master listens at `tcp://HOST:PORT`; keys are those of this user's folder."""
    host_of(address)
    client = Client(address, insecure=insecure)
    try:
        client.slaves()
    except BaseException:
        client.close()
        raise
    return ConnectedCluster(client, staging)


def _for_cluster(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `flegel.run` for a job on a cluster; refuses those that work on one host only."""
    known = options_of(Job)
    for name, value in options.items():
        if name not in known:
            raise TypeError(f"A job on a cluster has no option {name!r}{nearest(name, list(known))}")
        about = known[name].about
        if not about.cluster and value != known[name].default:
            raise UsageError(about.refusal or f"{name}= works on this host only; omit it for a cluster.")
    return {name: value for name, value in options.items() if known[name].about.cluster}


@contextmanager
def _scratch_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="flegel-result-") as folder:
        yield Path(folder) / "result"
