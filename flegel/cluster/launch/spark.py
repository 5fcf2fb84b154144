"""Slaves as tasks of barrier stages of Spark, one stage each.

`flegel.spark.Cluster(spark, slaves=2)`. A ticket travels in the stage's own data (a partition), which Spark sends
between its processes, encrypted where `spark.network.crypto.enabled` is set. A task that fails ends its whole stage in
Spark, so a stage has one slave only: an executor that is lost is one lost worker, and the others go on.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flegel.cluster.launch import ticket as tickets
from flegel.cluster.launch.launched_cluster import LaunchedCluster
from flegel.cluster.launch.placer import CLOSE_SECONDS
from flegel.cluster.launch.slave_host import host_slave
from flegel.cluster.launch.ticket import SlaveTicket
from flegel.errors import UsageError


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
        self._session, self._own = session, own
        self._stages: dict[str, threading.Thread] = {}
        self._ended: dict[str, str] = {}
        self._launch = ""

    def address(self) -> str:
        return str(self._session.sparkContext.getConf().get("spark.driver.host"))

    def open(self, folder: Path) -> None:
        try:
            from pyspark.sql import SparkSession
        except ImportError:
            raise UsageError("Spark is not installed here: pip install 'flegel[spark]', and Java 17.") from None
        if self._session is None:
            self._session, self._own = SparkSession.builder.appName("flegel").getOrCreate(), True

    def place(self, ticket: SlaveTicket) -> None:
        self._launch = ticket.launch
        stage = threading.Thread(target=self._run, args=(ticket,), name=ticket.name, daemon=True)
        self._stages[ticket.name] = stage
        stage.start()

    def _run(self, ticket: SlaveTicket) -> None:
        context = self._session.sparkContext
        try:
            context.setJobGroup(_group(ticket), f"slave {ticket.name} of flegel", interruptOnCancel=True)
            stage = context.parallelize([tickets.encode(ticket)], 1).barrier().mapPartitions(host_in_partition)
            self._ended[ticket.name] = str(stage.collect()[0])
        except Exception as error:  # noqa: BLE001 - whatever Spark reports, the slave is over
            self._ended[ticket.name] = f"was ended by Spark: {str(error).strip().splitlines()[0][:200]}"

    def ended(self) -> dict[str, str]:
        found = {}
        for name in list(self._ended):
            found[name] = self._ended.pop(name)
            self._stages.pop(name, None)
        return found

    def remove(self, names: Sequence[str]) -> None:
        """Spark has no signal that a task could answer by draining: the stage is cancelled."""
        for name in names:
            self._cancel(name)

    def _cancel(self, name: str) -> None:
        with contextlib.suppress(Exception):  # a context that is over has no stages either
            self._session.sparkContext.cancelJobGroup(f"flegel-{self._launch}-{name}")

    def close(self) -> None:
        if self._session is None:
            return
        stages, self._stages = self._stages, {}
        for name in stages:
            self._cancel(name)
        for stage in stages.values():
            stage.join(CLOSE_SECONDS)
        if self._own:
            session, self._session = self._session, None
            session.stop()


def _group(ticket: SlaveTicket) -> str:
    return f"flegel-{ticket.launch}-{ticket.name}"


class SparkCluster(LaunchedCluster):
    """`with flegel.spark.Cluster(spark, slaves=2) as cluster: …`."""

    def __init__(self, session: Any = None, slaves: int = 2, *, own: bool = False, **launch: Any) -> None:
        """`session` is a `SparkSession`, and a new one where None; one that is `own` is stopped at the end."""
        super().__init__(SparkPlacer(session, own), slaves, **launch)


def new_session(master: str, settings: Mapping[str, str]) -> Any:
    """A session of Spark with these settings."""
    try:
        from pyspark.sql import SparkSession
    except ImportError:
        raise UsageError("Spark is not installed here: pip install 'flegel[spark]', and Java 17.") from None
    builder = SparkSession.builder.appName("flegel")
    builder = builder.master(master) if master else builder
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


Cluster = SparkCluster
