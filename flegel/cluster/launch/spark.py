"""Slaves as tasks of barrier stages of Spark, one stage each.

`flegel.spark.Cluster(spark, slaves=2)`. A ticket travels in the stage's own data (a partition), which Spark sends
between its processes, encrypted where `spark.network.crypto.enabled` is set. A task that fails ends its whole stage in
Spark, so a stage has one slave only: an executor that is lost is one lost worker, and the others go on. Spark would
start such a stage again with the ticket that it has; that stage is cancelled, because a new slave has a key of its own.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.processes import ticket as tickets
from flegel.cluster.launch.processes.placer import SLAVE_END_SECONDS
from flegel.cluster.launch.processes.slave_host import host_slave
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.errors import UsageError
from flegel.runtime import clock

STAGE_POLL_SECONDS = 0.2
"""Between two attempts to cancel a stage that has not ended."""


def host_in_partition(rows: Iterator[bytes]) -> Iterator[str]:
    """In a task of Spark: run the slave of this partition until it ends."""
    from pyspark import BarrierTaskContext

    context = BarrierTaskContext.get()
    context.barrier()
    for ticket in rows:
        yield host_slave(ticket)


class SparkPlacer:
    """One barrier stage of one task for each slave, so that each can end alone."""

    system = "spark"

    def __init__(self, session: Any, own: bool = False) -> None:
        self._session, self._started_session_here = session, own
        self._stages: dict[str, threading.Thread] = {}
        self._ended_slaves: dict[str, str] = {}
        self._launch = ""

    def address(self) -> str:
        return str(self._session.sparkContext.getConf().get("spark.driver.host"))

    def open(self, folder: Path) -> None:
        if self._session is None:
            self._session, self._started_session_here = new_session("", {}), True

    def place(self, ticket: SlaveTicket) -> None:
        self._launch = ticket.launch
        stage = threading.Thread(target=self._run, args=(ticket,), name=ticket.name, daemon=True)
        self._stages[ticket.name] = stage
        stage.start()

    def _run(self, ticket: SlaveTicket) -> None:
        """In a thread: one stage, until its slave has ended."""
        context = self._session.sparkContext
        try:
            context.setJobGroup(self._group(ticket.name), f"slave {ticket.name} of flegel", interruptOnCancel=True)
            stage = context.parallelize([tickets.encode(ticket)], 1).barrier().mapPartitions(host_in_partition)
            why = str(stage.collect()[0])
        except Exception as error:  # noqa: BLE001 - whatever Spark reports, the slave is over
            why = f"was ended by Spark: {reason_of(str(error))}"
        if ticket.name in self._stages:
            self._ended_slaves[ticket.name] = why

    def ended(self) -> dict[str, str]:
        """Slaves that have ended since the last call, by name, and why. One whose stage Spark began again was lost with
        its executor."""
        for name in set(self._stages) - set(self._ended_slaves):
            if self._was_restarted(name):
                self._cancel(name)
                self._ended_slaves[name] = "was lost with its executor"
        found = {}
        for name in list(self._ended_slaves):
            self._stages.pop(name, None)
            found[name] = self._ended_slaves.pop(name)
        return found

    def _was_restarted(self, name: str) -> bool:
        """Spark has lost its task and has begun another attempt."""
        status = self._session.sparkContext.statusTracker()
        jobs = [status.getJobInfo(each) for each in status.getJobIdsForGroup(self._group(name))]
        stages = [status.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds]
        return any(stage is not None and stage.currentAttemptId > 0 for stage in stages)

    def remove(self, names: Sequence[str]) -> None:
        """Spark has no signal that a task could answer by draining: the stage is cancelled."""
        for name in names:
            self._cancel(name)

    def _cancel(self, name: str) -> None:
        with contextlib.suppress(Exception):  # a context that is over has no stages either
            self._session.sparkContext.cancelJobGroup(self._group(name))

    def close(self) -> None:
        """A stage that its thread is about to submit cannot be cancelled yet, so it is tried until all have ended."""
        if self._session is None:
            return
        stages, self._stages = self._stages, {}
        until = clock.now() + SLAVE_END_SECONDS
        while (left := [name for name, stage in stages.items() if stage.is_alive()]) and clock.now() < until:
            for name in left:
                self._cancel(name)
            stages[left[0]].join(STAGE_POLL_SECONDS)
        if self._started_session_here:
            session, self._session = self._session, None
            session.stop()

    def _group(self, name: str) -> str:
        """Spark's name for the jobs of one slave."""
        return f"flegel-{self._launch}-{name}"


def reason_of(report: str) -> str:
    """The one line of Spark's report that says what was wrong: that of Python's own exception where there is one."""
    lines = [line.strip() for line in report.splitlines() if line.strip()]
    raised = [line for line in lines if re.match(r"[A-Za-z_]+(Error|Exception): ", line)]
    reason = (raised or lines or ["it gave no reason"])[-1 if raised else 0][:200]
    if re.search(r"No module named '(flegel|msgspec|zmq)", reason):
        reason += "; PYSPARK_PYTHON must name a Python with Flegel on the executors before the session starts"
    return reason


class SparkCluster(LaunchedCluster):
    """`with flegel.spark.Cluster(spark, slaves=2) as cluster: …`."""

    def __init__(self, session: Any = None, slaves: int = 2, *, own: bool = False, **launch: Any) -> None:
        """`session` is a `SparkSession`, and a new one where None; one that is `own` is stopped at the end."""
        super().__init__(SparkPlacer(session, own), slaves, **launch)


def new_session(master: str, settings: Mapping[str, str]) -> Any:
    """A session of Spark with these settings; its executors run the interpreter of this process, under the same path,
    unless `PYSPARK_PYTHON` or the setting `spark.pyspark.python` names another."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("Spark is not installed here: pip install 'flegel[spark]', and Java 17.") from None
    os.environ.setdefault("PYSPARK_PYTHON", settings.get("spark.pyspark.python", sys.executable))
    builder = SparkSession.builder.appName("flegel")
    builder = builder.master(master) if master else builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


Cluster = SparkCluster
