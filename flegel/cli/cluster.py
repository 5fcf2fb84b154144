"""The cluster on the command line: master, slave, jobs, status, logs, attach, cancel, scale, resume.

Only shows and asks; jobs are decided in `flegel.cluster`.
"""

from __future__ import annotations

import json as json_module
import os
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from flegel.errors import AlgorithmError, FlegelError, UsageError

if TYPE_CHECKING:
    from flegel.cluster.client import Client
    from flegel.cluster.transport.protocol import JobView

DEFAULT = "tcp://127.0.0.1:7077"
Master = Annotated[
    str, typer.Option("--master", envvar="FLEGEL_MASTER", help="Address of the master, tcp://HOST:PORT.")
]
MaybeMaster = Annotated[
    str | None,
    typer.Option("--master", envvar="FLEGEL_MASTER", help="The cluster of this master; `local` for this host alone."),
]
OpenToAll = Annotated[
    bool, typer.Option("--insecure", help="Without keys: everybody who can reach it may. Has to be typed.")
]
Insecure = Annotated[
    bool, typer.Option("--insecure", envvar="FLEGEL_INSECURE", help="Without keys: everybody who can reach it may.")
]
JobName = Annotated[str, typer.Argument(metavar="JOB", help="A job's name; `flegel jobs` lists them.")]
HostsFile = Annotated[Path, typer.Argument(metavar="HOSTS", help="A file with a host a line, such as `node1 slots=4`.")]
Ssh = Annotated[str | None, typer.Option(envvar="FLEGEL_SSH", help="The ssh command, with its options.")]
cluster_app = typer.Typer(help="Slaves on many hosts, over SSH.", no_args_is_help=True)
AsJson = Annotated[bool, typer.Option("--json", help="As JSON.")]


def mount(app: typer.Typer, sentences: Callable[[], Any]) -> None:
    """Add the commands to the program."""

    def guarded(function: Callable[..., None]) -> Callable[..., None]:
        import functools

        @functools.wraps(function)
        def inner(*args: Any, **more: Any) -> None:
            with sentences():
                function(*args, **more)

        return inner

    app.add_typer(cluster_app, name="cluster")
    for hosts_function in (up, down):
        cluster_app.command()(guarded(hosts_function))
    for function in (master, slave, jobs, status, logs, attach, cancel, scale):
        app.command()(guarded(function))


# -- daemons -----------------------------------------------------------------------------------------------


def master(
    listen: Annotated[str, typer.Option(help="Where to listen: this host alone, unless you say otherwise.")] = DEFAULT,
    folder: Annotated[Path | None, typer.Option(help="Where the journal and results are kept.")] = None,
    insecure: OpenToAll = False,
) -> None:
    """Run the master of a cluster: it queues jobs and places them on slaves.

    The first start makes keys. For example, on the head node, for all hosts of the network:

        flegel master --listen tcp://0.0.0.0:7077
    """
    from flegel.cluster.master.daemon import MasterDaemon
    from flegel.cluster.transport import keys, secure_server
    from flegel.cluster.transport.protocol import RIGHTS
    from flegel.runtime.processes.malloc_settings import share_heap

    share_heap()
    pair = None if insecure else keys.first_start()
    registry = None if insecure else keys.KeyRegistry()
    with secure_server.listen(listen, RIGHTS, pair=pair, registry=registry, insecure=insecure) as server:
        MasterDaemon(server, folder or _home() / "master").run()


def slave(
    master: Master = DEFAULT,
    slots: Annotated[int | None, typer.Option(min=1, max=256, help="Workers at a time; one a core by default.")] = None,
    name: Annotated[str | None, typer.Option(help="Name in the cluster; the host's by default.")] = None,
    address: Annotated[
        str | None, typer.Option(help="This host as others reach it; the way to the master by default.")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(help="Limit of each process, such as 2G; an even part of this host's by default.")
    ] = None,
    folder: Annotated[Path | None, typer.Option(help="Where logs, results and checkpoints are kept.")] = None,
    data: Annotated[
        list[Path] | None, typer.Option(help="Folder that jobs may read files from; repeatable; all by default.")
    ] = None,
    drain: Annotated[float, typer.Option(help="Seconds that jobs get to end or move away after SIGTERM.")] = 30.0,
    insecure: Insecure = False,
) -> None:
    """Offer this host to a cluster: starts and supervises the workers that the master places here.

    For example:

        flegel slave --master tcp://head:7077 --slots 4
    """
    from flegel.cluster.client import own_address
    from flegel.cluster.slave.daemon import SlaveDaemon
    from flegel.cluster.slave.settings import SlaveSettings
    from flegel.cluster.slave.slave_folder import default_folder
    from flegel.cluster.transport import keys
    from flegel.cluster.transport.framing import host_of
    from flegel.cluster.transport.protocol import TO_SLAVE, check_name
    from flegel.cluster.transport.secure_client import SecureClient, dial
    from flegel.runtime.processes.host import cores
    from flegel.runtime.processes.malloc_settings import share_heap

    share_heap()
    host_of(master)
    called = check_name(name or socket.gethostname().split(".")[0], "slave")
    count = slots or len(cores())
    if insecure:

        def call() -> SecureClient:
            return dial(master, TO_SLAVE, insecure=True)

        call().close()
    else:
        pair, server = keys.ensure("slave"), keys.KeyRegistry().master(master)

        def call() -> SecureClient:
            return dial(master, TO_SLAVE, pair=pair, server=server)

    settings = SlaveSettings(
        called, count, address or own_address(master), folder or default_folder(called),
        parse_bytes(memory) if memory else _memory() // max(count, 1), drain,
        tuple(data or ()),
    )  # fmt: skip
    SlaveDaemon(settings, call).run()


def up(
    hosts: HostsFile,
    master: Master = DEFAULT,
    ssh: Ssh = None,
    wait: Annotated[float, typer.Option(help="Seconds until all slaves must have registered.")] = 60.0,
    insecure: Insecure = False,
) -> None:
    """Start a slave on each host of a file; run it where the master runs, so that it can exchange keys.

    For example:

        flegel cluster up hosts.txt --master tcp://head:7077
    """
    from flegel.cluster.launch import ssh as remote
    from flegel.runtime import clock

    listed = remote.read_hosts(hosts)
    with _client(master, insecure) as client:
        client.slaves()
        wrong = {name: why for name, why in remote.up(listed, master, ssh or remote.SSH, insecure).items() if why}
        until = clock.now() + wait
        missing = {host.name for host in listed} - set(wrong)
        while missing and clock.now() < until:
            missing -= {slave.name for slave in client.slaves() if slave.state == "here"}
            clock.sleep(0.2)
    wrong.update(dict.fromkeys(missing, f"did not register within {wait:.0f} s; see its log"))
    for host in listed:
        print(f"{host.name:20} {wrong.get(host.name, 'is here')}")
    if wrong:
        raise FlegelError(f"{len(wrong)} of {len(listed)} slaves did not come up.")


def down(hosts: HostsFile, ssh: Ssh = None) -> None:
    """Stop the slaves that `up` has started; each drains first."""
    from flegel.cluster.launch import ssh as remote

    wrong = {name: why for name, why in remote.down(remote.read_hosts(hosts), ssh or remote.SSH).items() if why}
    for name, why in wrong.items():
        print(f"{name:20} {why}")
    if wrong:
        raise FlegelError(f"{len(wrong)} slaves may still run.")


def _home() -> Path:
    home = os.environ.get("FLEGEL_HOME")
    return Path(home) if home else Path.home() / ".local" / "share" / "flegel"


def _memory() -> int:
    return int(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))


def parse_bytes(text: str) -> int:
    """'2G', '512M', '1.5GiB' or a bare number of bytes."""
    units = {"K": 10, "M": 20, "G": 30, "T": 40}
    word = text.strip().upper().removesuffix("IB").removesuffix("B")
    shift = units.get(word[-1:], 0)
    try:
        value = int(float(word[:-1] if shift else word) * (1 << shift))
    except (ValueError, OverflowError):
        value = 0
    if not 64 << 20 <= value < 1 << 60:
        raise UsageError(f"{text!r} is no limit of memory; write for instance 512M or 2G (at least 64M).")
    return value


# -- jobs --------------------------------------------------------------------------------------------------


def _client(address: str, insecure: bool) -> Client:
    from flegel.cluster.client import Client
    from flegel.cluster.transport.framing import host_of

    host_of(address)
    return Client(address, insecure=insecure)


def submit_to(
    address: str, insecure: bool, chosen: Any, options: dict[str, Any], extra: dict[str, Any],
    folder: Path | None, json_to: str | None, detach: bool,
) -> None:  # fmt: skip
    """`flegel submit --master`: send the job, then watch it unless `detach`."""
    from flegel.cluster.client import data_name, pack
    from flegel.cluster.transport.protocol import ClusterJob
    from flegel.job import Criteria, SyncSpec, parse_seconds
    from flegel.plan.stragglers import parse_stragglers
    from flegel.runtime.job.class_source import reference
    from flegel.sync import make_policy

    def seconds(value: str | None) -> float | None:
        return parse_seconds(value) if value is not None else None

    sync = SyncSpec(
        options["sync"], seconds(options["interval"]), seconds(options["first_interval"]), options["coordination"],
        options["staleness"], options["batches"], options["factor"], options["balance"],
    )  # fmt: skip
    make_policy(sync)
    if options["straggler"] and options["workers"]:
        parse_stragglers(options["straggler"], options["workers"])
    criteria = Criteria(
        options["max_iterations"], options["target"], options["tolerance"], options["max_seconds"]
    )  # fmt: skip
    algorithm, code, source = pack(reference(chosen))
    spec = ClusterJob(
        algorithm=algorithm, data=data_name(options["data"]), code=code, label=options["label"],
        name=extra["name"] or "", workers=options["workers"], sync=sync, criteria=criteria, seed=options["seed"],
        partition=options["partition"], scale=options["scale"], straggler=options["straggler"],
        worker_timeout=parse_seconds(options["worker_timeout"]),
        hook_timeout=parse_seconds(options["hook_timeout"]), replace=options["replace"],
        priority=extra["priority"], memory=parse_bytes(extra["memory"]) if extra["memory"] else None,
        retries=extra["retries"],
    )  # fmt: skip
    with _client(address, insecure) as client:
        job = client.submit(spec, source)
        if detach:
            print(job)
            return
        print(f"flegel: job {job} is submitted", file=sys.stderr)
        _follow(client, job, folder, json_to)


def _follow(client: Client, job: str, folder: Path | None, json_to: str | None) -> None:
    from flegel.cli.display import make_display, summary
    from flegel.machine.coordinator.observation import JobSnapshot

    display = make_display(sys.stderr)
    said = ""
    try:
        with display:
            for view in client.watch(job):
                text = f"{view.state}: {view.reason}" if view.state == "queued" else view.state
                if text != said and view.state in ("queued", "running"):
                    display.say(f"job {job} is {text}")
                    said = text
                if view.glance and view.state == "running":
                    display.show(msgspec.convert(view.glance, JobSnapshot))
    except KeyboardInterrupt:
        print(f"\nflegel: detached; the job goes on. Come back with: flegel attach {job}", file=sys.stderr)
        raise typer.Exit(130) from None
    _raise_unless_done(view)
    figures = client.fetch(view, folder) if folder is not None else client.figures(view)
    if json_to == "-":
        print(json_module.dumps(figures, indent=1))
    elif json_to is not None:
        Path(json_to).write_text(json_module.dumps(figures, indent=1) + "\n", encoding="utf-8")
    for text in figures["warnings"]:
        display.say(f"note: {text}")
    for line in summary(SimpleNamespace(**figures)):  # type: ignore[arg-type]
        display.say(line)


def _raise_unless_done(view: JobView) -> None:
    if view.state == "done":
        return
    if view.state == "cancelled":
        raise FlegelError(f"Job {view.job} was cancelled.")
    if view.usage:
        raise UsageError(f"Job {view.job} failed: {view.reason}")
    raise AlgorithmError(f"Job {view.job} failed: {view.reason}", view.trace)


def attach(
    job: JobName,
    out: Annotated[Path | None, typer.Option(help="Folder for the result; runs/JOB by default.")] = None,
    save: Annotated[bool, typer.Option("--save/--no-save", help="Bring the result here when it is done.")] = True,
    master: Master = DEFAULT,
    insecure: Insecure = False,
) -> None:
    """Watch a job as if it ran here; Ctrl-C detaches, and the job goes on."""
    folder = (out or Path("runs") / job) if save else None
    if folder is not None:
        from flegel.runtime.job import result_store

        result_store.check_target(folder)
    with _client(master, insecure) as client:
        _follow(client, job, folder, None)


def jobs(json: AsJson = False, master: Master = DEFAULT, insecure: Insecure = False) -> None:
    """List the jobs of the cluster, the newest last."""
    from rich.console import Console
    from rich.table import Table

    with _client(master, insecure) as client:
        views = client.jobs()
    if json:
        print(json_module.dumps([_plain(v) for v in views], indent=1))
        return
    table = Table(box=None)
    for heading in ("job", "owner", "state", "priority", "workers", "data", "what"):
        table.add_column(heading, overflow="fold" if heading == "what" else "ellipsis")
    for v in views:
        workers = "–" if v.workers is None else str(v.workers)
        what = v.reason if len(v.reason) <= 80 else f"{v.reason[:79]}…"
        table.add_row(v.job, v.owner, v.state, str(v.priority), workers, v.data, what)
    Console().print(table if views else "No jobs yet; `flegel submit … --master ADDRESS` makes one.")


def status(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="A job; the whole cluster without it.")] = None,
    json: AsJson = False,
    master: Master = DEFAULT,
    insecure: Insecure = False,
) -> None:
    """What a job does, or how the cluster is: slaves, slots and jobs."""
    from rich.console import Console
    from rich.table import Table

    with _client(master, insecure) as client:
        if job is not None:
            view = _plain(client.job(job))
            if json:
                print(json_module.dumps(view, indent=1))
                return
            for key, value in view.items():
                if value not in (None, "", (), {}, []) and key not in ("glance", "trace", "usage"):
                    print(f"{key:10} {_for_people(key, value)}")
            if view["trace"]:
                print(view["trace"].rstrip())
            return
        slaves, views = client.slaves(), client.jobs()
    if json:
        import msgspec

        print(json_module.dumps({"slaves": msgspec.to_builtins(slaves), "jobs": [_plain(v) for v in views]}, indent=1))
        return
    table = Table("slave", "address", "slots", "used", "load", "memory", "state", box=None)
    for s in slaves:
        size = f"{s.memory / 2**30:.1f} GiB"
        table.add_row(s.name, s.address, str(s.slots), str(s.used), f"{s.load:.2f}", size, s.state)
    Console().print(table if slaves else "No slave has registered; start one with `flegel slave --master ADDRESS`.")
    counts = {state: sum(v.state == state for v in views) for state in ("queued", "running", "done", "failed")}
    print(", ".join(f"{n} {state}" for state, n in counts.items()))


def _for_people(key: str, value: Any) -> str:
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
    master: Master = DEFAULT,
    insecure: Insecure = False,
) -> None:
    """Print what the processes of a job have written, with the time and who it was.

    For example, until the job is over:

        flegel logs kmeans-1 -f
    """
    with _client(master, insecure) as client:
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


def cancel(job: JobName, master: Master = DEFAULT, insecure: Insecure = False) -> None:
    """End a job, waiting or running; its processes end within seconds."""
    with _client(master, insecure) as client:
        print(f"{job} {client.cancel(job)}")


def scale(
    job: JobName,
    workers: Annotated[int, typer.Argument(help="How many workers it should have.")],
    master: Master = DEFAULT,
    insecure: Insecure = False,
) -> None:
    """Give a job more or fewer workers, also while it trains.

    For example:

        flegel scale kmeans-1 8
    """
    with _client(master, insecure) as client:
        print(f"{job} {client.scale(job, workers)}")


def resume(job: str, master: str, insecure: bool) -> None:
    """For `flegel resume`: let a job that failed or was cancelled go on from its last commit."""
    with _client(master, insecure) as client:
        print(f"{job} {client.resume(job)}")
