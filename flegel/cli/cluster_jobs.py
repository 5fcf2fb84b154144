"""Jobs of a cluster on the command line: submit, attach, jobs, status, logs, cancel, suspend, scale, resume.

Only shows and asks; jobs are decided in `flegel.cluster`.
"""

from __future__ import annotations

import json as json_module
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flegel.cli.options import DEFAULT_MASTER, Insecure, Master
from flegel.errors import ExitCode, StorageError, Terminated
from flegel.runtime.system.signals import raise_lost_signal
from flegel.terminal.reporting import errors_as_sentences, print_all, say

if TYPE_CHECKING:
    from flegel.cluster.client import Client
    from flegel.cluster.transport.protocol import JobView

JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's name; `flegel jobs` lists them.")]
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def open_client(address: str, insecure: bool, start_seconds: float = 0.0) -> Client:
    """`start_seconds`: that a master of this host may take to start."""
    from flegel.cluster.client import Client
    from flegel.cluster.transport.framing import host_of

    host_of(address)
    raise_lost_signal()
    return Client(address, insecure=insecure, start_seconds=start_seconds, say=say)


def submit_to(
    address: str,
    insecure: bool,
    chosen: Any,
    data: str,
    options: dict[str, Any],
    folder: Path | None,
    json_to: str | None,
    detach: bool,
    cancel_on_interrupt: bool = False,
) -> None:
    """`flegel submit --master`: send the job, then watch it unless `detach`."""
    import msgspec

    from flegel.cluster.client import MASTER_START_SECONDS, checkpoint_name, data_name, gate_name, pack
    from flegel.cluster.transport.protocol import ClusterJob
    from flegel.configuration.sources import changes_outside
    from flegel.loading.class_source import reference
    from flegel.options import deprecations, with_options
    from flegel.plan.stragglers import parse_stragglers
    from flegel.runtime.job.teams import team_per_host
    from flegel.sync import make_policy

    algorithm, code, source = pack(reference(chosen, whole=True))
    job = with_options(ClusterJob(algorithm, data_name(data), code=code), options)
    settings = {**changes_outside(), **job.settings}
    places = {"checkpoint": checkpoint_name(job.checkpoint), "sites": gate_name(job.sites)}
    job = msgspec.structs.replace(job, **places, settings=settings, team_per_host=team_per_host(job, chosen))
    make_policy(job.sync)
    if job.straggler and job.workers:
        parse_stragglers(job.straggler, job.workers)
    for text in deprecations(job, options):
        say(f"warning: {text}")
    with open_client(address, insecure, MASTER_START_SECONDS) as client:
        name = client.submit(job, source)
        if detach:
            print(name)
            return
        print(f"flegel: job {name} is submitted", file=sys.stderr)
        _follow(client, name, folder, json_to, cancel_on_interrupt)


def _follow(client: Client, job: str, folder: Path | None, json_to: str | None, cancel: bool = False) -> None:
    """Show a job of a cluster until it ends, then fetch its result. Ctrl-C and SIGTERM end this process and leave the
    job to the cluster; with `cancel` Ctrl-C cancels the job. SIGUSR1 suspends it."""
    import msgspec

    from flegel.cluster.client import raise_unless_done
    from flegel.machine.coordinator.observation import JobSnapshot
    from flegel.results.result import exit_code
    from flegel.runtime.job.result_store import read_manifest
    from flegel.terminal.display import make_display, summary

    display = make_display(sys.stderr)
    said, suspension = "", Suspension()
    try:
        with display, suspension:
            for view in client.watch(job):
                if suspension.due():
                    display.say(f"job {job} {client.suspend(job)}")
                text = f"{view.state}: {view.reason}" if view.state == "queued" else view.state
                if text != said and view.state in ("queued", "running"):
                    display.say(f"job {job} is {text}")
                    said = text
                if view.snapshot and view.state == "running":
                    display.show(msgspec.convert(view.snapshot, JobSnapshot))
    except KeyboardInterrupt:
        if cancel:
            client.cancel(job)
            print(f"\nflegel: interrupted; job {job} was cancelled.", file=sys.stderr)
            raise typer.Exit(ExitCode.INTERRUPTED) from None
        print(f"\nflegel: detached; the job goes on. Come back with: flegel attach {job}", file=sys.stderr)
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Terminated:
        print(f"\nflegel: terminated; the job goes on. Come back with: flegel attach {job}", file=sys.stderr)
        raise SystemExit(ExitCode.TERMINATED) from None
    if suspension.was_asked and view.state == "cancelled":
        print(f"flegel: job {job} was stopped: {view.reason}", file=sys.stderr)
        raise typer.Exit(ExitCode.SUSPENDED)
    raise_unless_done(view)
    try:
        figures = client.fetch(view, folder) if folder is not None else client.figures(view)
    except StorageError as error:
        raise StorageError(f"{error} The master has the result: flegel attach {job} --out ELSEWHERE.") from None
    if json_to == "-":
        print_all(json_module.dumps(figures, indent=1))
    elif json_to is not None:
        Path(json_to).write_text(json_module.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if figures["dataset"].get("stand_in"):
        name = figures["dataset"]["name"]
        display.say(figures["dataset"].get("note") or f"note: the rows are a stand-in for {name}, not the set itself")
    for text in figures["warnings"]:
        if text != figures["reason"]:  # which is said at the end
            display.say(f"note: {text}")
    own_class = folder is not None and not read_manifest(folder).algorithm.builtin
    for line in summary(SimpleNamespace(**figures), own_class):  # type: ignore[arg-type]
        display.say(line)
    if code := exit_code(figures["outcome"]):
        raise typer.Exit(code)


class Suspension:
    """`with Suspension() as suspension:` SIGUSR1 asks for the job's suspension, as batch systems do before a limit."""

    def __init__(self) -> None:
        self.was_asked = self._was_told = False
        self._former_handler: Any = None

    def due(self) -> bool:
        """True once, after the signal."""
        due, self._was_told = self.was_asked and not self._was_told, self.was_asked
        return due

    def _ask(self, *_: object) -> None:
        self.was_asked = True

    def __enter__(self) -> Suspension:
        self._former_handler = signal.signal(signal.SIGUSR1, self._ask)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGUSR1, self._former_handler)


def attach(
    job: JobName,
    out: Annotated[Path | None, typer.Option(help="Folder for the result; runs/JOB by default.")] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Bring the result here when it is done.")] = True,
    master: Master = DEFAULT_MASTER,
    insecure: Insecure = False,
) -> None:
    """Watch a job as if it ran here; Ctrl-C detaches, and the job goes on."""
    with errors_as_sentences():
        folder = (out or Path("runs") / job) if save else None
        if folder is not None:
            from flegel.runtime.job import result_store

            result_store.check_target(folder)
        with open_client(master, insecure) as client:
            _follow(client, job, folder, None)


def jobs(json: AsJson = False, master: Master = DEFAULT_MASTER, insecure: Insecure = False) -> None:
    """List the jobs of the cluster, the newest last."""
    with errors_as_sentences():
        from rich.console import Console

        with open_client(master, insecure) as client:
            views = client.jobs()
        if json:
            print(json_module.dumps([_plain(v) for v in views], indent=1))
            return
        table = jobs_table(views)
        Console().print(table if views else "No jobs yet; `flegel submit … --master ADDRESS` makes one.")


def jobs_table(views: Sequence[JobView]) -> Any:
    """A line for each job; names are whole, because other commands take them, and the rest is cut where it is long."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), expand=True)
    longest = max((len(v.job) for v in views), default=0)
    for heading in ("job", "owner", "state", "prio", "workers", "data", "what"):
        side: Any = "right" if heading in ("prio", "workers") else "left"
        widest = {"owner": 12, "data": 16}.get(heading)
        least = longest if heading == "job" else 9 if heading == "state" else len(heading)
        share = 1 if heading == "what" else None  # takes what the others leave
        table.add_column(
            heading, no_wrap=True, overflow="ellipsis", justify=side, min_width=least, max_width=widest, ratio=share
        )
    for v in views:
        workers = "–" if v.workers is None else str(v.workers)
        data = v.data if len(v.data) <= 16 else f"…{v.data[-15:]}"  # the end of a path tells more than its beginning
        cells = (v.job, v.owner, v.state, str(v.priority), workers, data, " ".join(v.reason.split()))
        table.add_row(*map(Text, cells))
    return table


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="A job; the whole cluster without it.")] = None,
    json: AsJson = False,
    master: Master = DEFAULT_MASTER,
    insecure: Insecure = False,
) -> None:
    """What a job does, or how the cluster is: slaves, slots and jobs."""
    with errors_as_sentences():
        from rich.console import Console
        from rich.table import Table

        from flegel.plan.placement.snapshot import lines

        with open_client(master, insecure) as client:
            if job is not None:
                view = _plain(client.job(job))
                if json:
                    print(json_module.dumps(view, indent=1))
                    return
                for key, value in view.items():
                    if value not in (None, "", (), {}, []) and key not in ("glance", "trace", "usage"):
                        print(f"{key:10} {_for_people(key, value)}")
                for key, text in lines(view["glance"].get("servers")):
                    print(f"{key:10} {text}")
                if view["trace"]:
                    print(view["trace"].rstrip())
                return
            slaves, views = client.slaves(), client.jobs()
        if json:
            import msgspec

            print(
                json_module.dumps({"slaves": msgspec.to_builtins(slaves), "jobs": [_plain(v) for v in views]}, indent=1)
            )
            return
        table = Table("slave", "address", "slots", "used", "load", "memory", "state", box=None)
        for s in slaves:
            size = f"{s.memory / 2**30:.1f} GiB"
            table.add_row(s.name, s.address, str(s.slots), str(s.used), f"{s.load:.2f}", size, s.state)
        Console().print(table if slaves else "No slave has registered; start one with `flegel slave --master ADDRESS`.")
        counts = {state: sum(v.state == state for v in views) for state in ("queued", "running", "done", "failed")}
        print(", ".join(f"{n} {state}" for state, n in counts.items()))


def _for_people(key: str, value: Any) -> str:
    """A value of a job as text: times of day, slots by slave, lists joined."""
    if key in ("submitted", "started", "ended"):
        from flegel.runtime import clock

        return clock.wall(value)
    if key == "slots":
        return ", ".join(f"{count} on {slave}" for slave, count in sorted(value.items()))
    return ", ".join(value) if isinstance(value, list) else str(value)


def _plain(view: Any) -> dict[str, Any]:
    import msgspec

    found: dict[str, Any] = msgspec.to_builtins(view)
    return found


def logs(
    job: JobName,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until the job is over.")] = False,
    master: Master = DEFAULT_MASTER,
    insecure: Insecure = False,
) -> None:
    """Print what the processes of a job have written, with the time and who it was.

    For example, until the job is over:

        flegel logs kmeans-1 -f
    """
    with errors_as_sentences(), open_client(master, insecure) as client:
        try:
            line = ""
            for line in client.log(job, follow):
                print(line, flush=follow)
            if not line:
                print(f"flegel: the processes of {job} have printed nothing yet.", file=sys.stderr)
        except BrokenPipeError:
            sys.stderr.close()
        except KeyboardInterrupt:
            raise typer.Exit(130) from None


def cancel(job: JobName, master: Master = DEFAULT_MASTER, insecure: Insecure = False) -> None:
    """End a job, waiting or running; its processes end within seconds."""
    with errors_as_sentences(), open_client(master, insecure) as client:
        print(f"{job} {client.cancel(job)}")


def suspend(job: JobName, master: Master = DEFAULT_MASTER, insecure: Insecure = False) -> None:
    """Stop a job at its next barrier, with a checkpoint; `flegel resume JOB` lets it go on."""
    with errors_as_sentences(), open_client(master, insecure) as client:
        print(f"{job} {client.suspend(job)}")


def scale(
    job: JobName,
    workers: Annotated[int | None, typer.Argument(help="How many workers it should have.")] = None,
    servers: Annotated[int | None, typer.Option(help="How many parameter servers it should have.")] = None,
    master: Master = DEFAULT_MASTER,
    insecure: Insecure = False,
) -> None:
    """Give a job more or fewer workers, or parameter servers, also while it trains.

    For example:

        flegel scale kmeans-1 8
        flegel scale kmeans-1 --servers 6
    """
    with errors_as_sentences(), open_client(master, insecure) as client:
        print(f"{job} {client.scale(job, workers, servers)}")


def resume(job: str, master: str, insecure: bool) -> None:
    """For `flegel resume`: let a job that failed or was cancelled go on from its last commit."""
    with open_client(master, insecure) as client:
        print(f"{job} {client.resume(job)}")
