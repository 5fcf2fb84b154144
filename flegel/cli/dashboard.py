"""`flegel dashboard`, and the dashboard of `flegel submit --dashboard`. Starts servers, shows nothing itself."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flegel.cli.options import DEFAULT_MASTER, Insecure, MaybeMaster
from flegel.errors import UsageError, require
from flegel.runtime.system.signals import raise_lost_signal
from flegel.terminal.reporting import errors_as_sentences, say

if TYPE_CHECKING:
    from flegel.dashboard.local_job import JobDashboard

DEFAULT_PLACE = "127.0.0.1:8787"
Listen = Annotated[str, typer.Option(metavar="HOST:PORT", help="Where to serve; another port where this one is taken.")]


def dashboard(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[RUN]...", help="Saved runs (folders, or JSON of results); without any, a cluster."),
    ] = None,
    master: MaybeMaster = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Deprecated: flegel report RUN… --out FILE writes such a page.")
    ] = None,
    listen: Listen = DEFAULT_PLACE,
    allow_host: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Also answer under this name; repeatable.")
    ] = None,
    read_only: Annotated[bool, typer.Option("--read-only", help="No buttons for anybody.")] = False,
    insecure: Insecure = False,
) -> None:
    """Watch a cluster, or replay saved runs, in a browser.

    For example, two runs over each other:

        flegel dashboard runs/kmeans-higgs-001 runs/kmeans-higgs-002

    `flegel report` makes a file of runs, for a colleague.
    """
    with errors_as_sentences(), ExitStack() as stack:
        if save is not None:
            _save(runs or [], save)
            return
        require("starlette", "dashboard")
        require("uvicorn", "dashboard")
        from flegel.dashboard.hub import Hub
        from flegel.dashboard.server import Actions, DashboardServer

        hub = Hub()
        actions: Actions | None = None
        if runs:
            from flegel.dashboard.saved_runs import read_run

            for path in runs:
                hub.add(read_run(path))
        else:
            from flegel.dashboard.cluster_jobs import ClusterDashboard

            cluster = ClusterDashboard(hub, master or DEFAULT_MASTER, insecure)
            stack.callback(cluster.close)
            actions = cluster if cluster.may_act and not read_only else None
        server = DashboardServer(hub, actions, _place(listen), tuple(allow_host or ()))
        stack.callback(server.close)
        raise_lost_signal()
        say(f"dashboard at {server.link}")
        server.wait()


def _save(runs: list[Path], target: Path) -> None:
    """Write saved runs as one page (deprecated in favour of `flegel report`)."""
    from flegel.report.write import load, render, save
    from flegel.runtime.job.result_store import check_file

    if not runs:
        raise UsageError("--save writes runs that are saved: name their folders.")
    check_file(target, "--save")
    say(f"--save is deprecated; use flegel report {' '.join(map(str, runs))} --out {target}.")
    say(f"saved to {save(render([load(path) for path in runs]), target)}")


def serve_job(stack: ExitStack, title: str, listen: str) -> JobDashboard:
    """The dashboard of a job on this host; it ends with the stack."""
    require("starlette", "dashboard")
    require("uvicorn", "dashboard")
    from flegel.dashboard.hub import Hub
    from flegel.dashboard.local_job import JobDashboard
    from flegel.dashboard.server import DashboardServer

    hub = Hub()
    job = JobDashboard(hub, title)
    server = DashboardServer(hub, job, _place(listen))
    stack.callback(server.close)
    say(f"dashboard at {server.link}")
    print(f"flegel: to look only: {server.access.link('read')}", file=sys.stderr)
    return job


def _place(listen: str) -> tuple[str, int]:
    """The address; another port where that of the default is taken."""
    import socket

    from flegel.options import parse_address

    host, port = parse_address(listen, "--listen")
    if listen == DEFAULT_PLACE:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                port = 0
    return host, port
