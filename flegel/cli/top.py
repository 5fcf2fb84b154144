"""`flegel top`: jobs of this host and of a cluster in a terminal, redrawn every second. Only asks and shows.

What it draws is made of the same views that `flegel dashboard` shows; it fits 80 columns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from flegel.cli.options import DEFAULT_MASTER, Insecure, Master
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime.system.signals import raise_lost_signal
from flegel.terminal.display import count, duration, number, part_seen
from flegel.terminal.reporting import errors_as_sentences

if TYPE_CHECKING:
    from flegel.cluster.transport.protocol import JobView, SlaveView
    from flegel.runtime.job.running_jobs import RunningJob

MAX_JOB_LINES = 20  # of jobs, running ones first: a terminal has 24 lines


def top(
    every: Annotated[float, typer.Option(min=0.2, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Print one look and end.")] = False,
    master: Master = DEFAULT_MASTER,
    insecure: Insecure = False,
) -> None:
    """Watch your jobs on this host, and a cluster: slaves, running jobs, what waits; Ctrl-C ends it.

    Without a terminal it prints one look. Where no master listens at the default address, jobs of this host are all.

    For example:

        flegel top

        flegel top --master tcp://head:7077
    """
    with errors_as_sentences(), ExitStack() as stack:
        from rich.console import Console
        from rich.live import Live

        from flegel.runtime import clock

        console, look = Console(), _looks(master, insecure, stack)
        if once or not console.is_terminal:
            console.print(look())
            return
        with Live(console=console, auto_refresh=False, screen=True) as live:
            try:
                while True:
                    raise_lost_signal()
                    live.update(look(), refresh=True)
                    clock.sleep(every)
            except KeyboardInterrupt:
                return


def _looks(master: str, insecure: bool, stack: ExitStack) -> Callable[[], Any]:
    """What makes one look; it asks a master that was named, or that listens where masters do by default."""
    from rich.console import Group

    from flegel.cli.cluster_jobs import open_client
    from flegel.cluster.client import listens
    from flegel.runtime.job.running_jobs import running

    if master == DEFAULT_MASTER and not listens(master):
        return lambda: host_screen(running(), f"no cluster: nothing listens at {master}")
    client = stack.enter_context(open_client(master, insecure))
    return lambda: Group(host_screen(running()), screen(client.jobs(), client.slaves()))


def host_screen(jobs: Sequence[RunningJob], note: str = "") -> Any:
    """Jobs that this user runs on this host, each named after its process; a note below them."""
    from rich.console import Group

    running = f"{len(jobs)} job{'s' if len(jobs) > 1 else ''}" if jobs else "no jobs"
    table = [_jobs([_view(job) for job in jobs])] if jobs else []
    return Group(f"{running} of yours on this host", *table, *([note] if note else []))


def _view(job: RunningJob) -> JobView:
    from flegel.cluster.transport.protocol import JobView

    snapshot = msgspec.to_builtins(job.seen) if job.seen is not None else {}
    return JobView(job.name, "", job.phase, job.algorithm, job.data, 0, job.workers, 0.0, snapshot=snapshot)


def screen(jobs: Sequence[JobView], slaves: Sequence[SlaveView]) -> Any:
    """One look at a cluster."""
    from rich.console import Group

    states = {state: sum(job.state == state for job in jobs) for state in ("running", "queued", "done", "failed")}
    used, slots = sum(slave.used for slave in slaves), sum(slave.slots for slave in slaves)
    summary = ", ".join(f"{n} {state}" for state, n in states.items())
    return Group(f"{len(slaves)} slaves, {used} of {slots} slots used; jobs: {summary}", _slaves(slaves), _jobs(jobs))


def _slaves(slaves: Sequence[SlaveView]) -> Any:
    table = _table(("slave", ""), ("used", "right"), ("slots", "right"), ("load", "right"), ("state", ""))
    for slave in slaves:
        table.add_row(_text(slave.name), str(slave.used), str(slave.slots), f"{slave.load:.2f}", _text(slave.state))
    return table


def _jobs(jobs: Sequence[JobView]) -> Any:
    """A line for each job: running ones first, then queued ones, the newest first; at most `MAX_JOB_LINES`."""
    table = _table(
        ("job", ""),
        ("state", ""),
        ("workers", "right"),
        ("barriers", "right"),
        ("objective", "right"),
        ("interval", "right"),
        ("busy", "right"),
        ("points/s", "right"),
        ("time", "right"),
    )
    order = {"running": 0, "queued": 1}
    newest = list(reversed(jobs))
    shown = sorted(newest, key=lambda job: order.get(job.state, 2))[:MAX_JOB_LINES]
    for job in shown:
        workers = "–" if job.workers is None else str(job.workers)
        table.add_row(_text(job.job), _text(job.state), workers, *figures(job))
    return table


def figures(job: JobView) -> tuple[str, ...]:
    """Barriers, objective, interval, share of computing, points a second and seconds; empty where nothing is known."""
    if not job.snapshot:
        return ("",) * 6
    seen = msgspec.convert(job.snapshot, JobSnapshot)
    spent = seen.compute + seen.wait + seen.respond
    rate = seen.visits / seen.seconds if seen.seconds > 0 else 0.0
    of_part = f" of {part_seen(seen)}" if seen.estimate is not None and seen.unseen else ""
    return (
        str(seen.iteration),
        number(seen.estimate) + of_part,
        duration(seen.interval),
        f"{seen.compute / spent:.0%}" if spent > 0 else "",
        count(rate),
        duration(seen.seconds),
    )


def _table(*columns: tuple[str, Any]) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
    for heading, side in columns:
        table.add_column(heading, justify=side or "left", no_wrap=True, overflow="ellipsis", min_width=4)
    return table


def _text(value: str) -> Any:
    """The value as plain text: names may look like markup."""
    from rich.text import Text

    return Text("".join(c if c.isprintable() else "�" for c in value))
