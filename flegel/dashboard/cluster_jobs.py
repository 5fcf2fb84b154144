"""A cluster on the dashboard: asks its master once a second and turns the answers into frames. Decides nothing.

The rights of the page's buttons are those of this user's key: the master refuses what it may not do.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

from flegel.cluster.client import Client
from flegel.cluster.master.facts import OVER
from flegel.cluster.transport.protocol import JobView
from flegel.dashboard.frames import RunHistory
from flegel.dashboard.hub import Hub
from flegel.dashboard.server import ActionRequest
from flegel.errors import FlegelError, UsageError
from flegel.machine.coordinator.events import TraceRow
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime import clock

CLUSTER_POLL_SECONDS = 1.0  # between two requests to the master, whose slaves send a heartbeat each second
LOG_POLL_SECONDS = 5.0  # between two requests for the log of a job, which is sent whole
MAX_LISTED_JOBS = 200  # the newest ones; a page draws a line for each
MAX_DETAILED_JOBS = 16  # running ones, the newest: each costs the master a request a second


class ClusterDashboard:
    """Polls one master in a thread; actions use a connection of their own, because a socket has one owner."""

    def __init__(self, hub: Hub, address: str, insecure: bool) -> None:
        """Check that the master at `address` answers, and start the thread that follows its jobs."""
        self._hub, self._address, self._insecure = hub, address, insecure
        self._seen: dict[str, tuple[RunHistory, int, int]] = {}
        """By job: its history, the last iteration and visits."""
        self._logged: dict[str, tuple[float, int]] = {}
        self._stopping = threading.Event()
        with Client(address, insecure=insecure) as client:
            client.slaves()  # raises where there is no master, or no key for it
            self.may_act = client.role != "read"
        self._thread = threading.Thread(target=self._work, name="cluster", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(5.0)

    def act(self, request: ActionRequest) -> str:
        """Cancel or scale a job, with the rights of this user's key."""
        with Client(self._address, insecure=self._insecure) as client:
            if request.action == "cancel":
                return f"{request.run} {client.cancel(request.run)}"
            if request.action == "scale" and request.workers is not None:
                return f"{request.run} {client.scale(request.run, request.workers)}"
        raise UsageError("That action is not known here.")

    def _work(self) -> None:
        """In a thread: ask the master once a second; an error is shown on the page, and the connection is
        opened again."""
        client: Client | None = None
        while not self._stopping.wait(CLUSTER_POLL_SECONDS if client is not None else 0.0):
            try:
                client = client or Client(self._address, insecure=self._insecure)
                self._look(client)
            except FlegelError as error:
                self._hub.publish_cluster({"jobs": [], "slaves": [], "error": str(error)})
                if client is not None:
                    client.close()
                client = None
                self._stopping.wait(CLUSTER_POLL_SECONDS)
        if client is not None:
            client.close()

    def _look(self, client: Client) -> None:
        """Ask for jobs and slaves, for the details of the newest running jobs, and for the results of those that have
        ended."""
        jobs, slaves = client.jobs(), client.slaves()
        listed = [_plain(view) for view in jobs[-MAX_LISTED_JOBS:]]
        self._hub.publish_cluster({"jobs": listed, "slaves": msgspec.to_builtins(slaves), "error": ""})
        running = [view.job for view in jobs if view.state == "running"]
        for name in running[-MAX_DETAILED_JOBS:]:  # one by one: the list has no workers
            view = client.job(name)
            if view.snapshot:
                self._take(view)
                self._log(client, name)
        for view in jobs:
            if view.state in OVER and view.job in self._seen:
                history = self._seen.pop(view.job)[0]
                figures = client.figures(client.job(view.job)) if view.state == "done" else None
                self._log(client, view.job, last=True)
                self._hub.publish(lambda h=history, f=figures, v=view: h.end(f, f"{v.state}: {v.reason}"))  # type: ignore[misc]

    def _take(self, view: JobView) -> None:
        """Add the snapshot of a running job to its history; the first one creates the history."""
        seen = msgspec.convert(view.snapshot, JobSnapshot)
        known = self._seen.get(view.job)
        if known is None:
            about = {
                "title": view.job,
                "algorithm": view.algorithm,
                "sync": seen.policy,
                "workers": view.workers,
                "data": view.data,
                "live": True,
            }
            known = (RunHistory(view.job, about), 0, 0)
            self._hub.add(known[0])
        history, iteration, visits = known
        rows = []
        if seen.iteration > iteration:
            rows.append(_row(seen, seen.visits - visits))
        self._seen[view.job] = (history, seen.iteration, seen.visits)
        self._hub.publish(lambda: history.take(seen, rows))

    def _log(self, client: Client, job: str, last: bool = False) -> None:
        """Show lines of a job's log that are new since the last call; asked at most every `LOG_POLL_SECONDS`, and at
        the end (`last`)."""
        at, told = self._logged.get(job, (0.0, 0))
        history = self._hub.run(job)
        if history is None or (not last and clock.now() < at):
            return
        lines = list(client.log(job))
        new = [(line[:20], line[21:]) for line in lines[told:]]
        self._logged[job] = (clock.now() + LOG_POLL_SECONDS, len(lines))
        self._hub.publish(lambda: history.log(new))


def _row(seen: JobSnapshot, visits: int) -> TraceRow:
    """The last barrier of a look; those between two looks are not told by a master."""
    passes = [w.passes for w in seen.workers if w.points]
    return TraceRow(
        seen.seconds,
        seen.iteration,
        seen.objective,
        seen.interval,
        seen.estimate,
        visits,
        0.0,
        seen.reason,
        passes=passes,
        in_flight=seen.in_flight,
        moved_bytes=seen.moved_bytes,
    )


def _plain(view: JobView) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(view)
    return {k: v for k, v in found.items() if k not in ("glance", "trace", "files", "usage")}
