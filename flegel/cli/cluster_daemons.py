"""`flegel master`, `slave`, `cluster up` and `cluster down`: start and stop a cluster. Decides nothing."""

from __future__ import annotations

import logging
import math
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flegel.cli.cluster_jobs import open_client
from flegel.cli.help_pages import ShortHelpCommand, with_help_all
from flegel.cli.local_job import start_logging
from flegel.cli.options import DEFAULT_MASTER, Insecure, LogJson, Master, Verbose
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.errors import FlegelError, UsageError
from flegel.options import parse_bytes
from flegel.runtime.system.signals import raise_lost_signal
from flegel.terminal.reporting import errors_as_sentences, say

if TYPE_CHECKING:
    from flegel.cluster.transport.secure_client import SecureClient

Publish = Callable[[Sequence[Any], Sequence[Any]], None]
OpenToAll = Annotated[
    bool, typer.Option("--insecure", help="Accept every client that can connect, without keys. Command line only.")
]
HostsFile = Annotated[Path, typer.Argument(metavar="HOSTS", help="A file with a host a line, such as `node1 slots=4`.")]
Ssh = Annotated[str | None, typer.Option(envvar="FLEGEL_SSH", help="The ssh command, with its options.")]
ISOLATION_MODES = ("auto", "namespace", "strict", "none")
cluster_app = typer.Typer(help="Slaves on many hosts, over SSH.", no_args_is_help=True)


def master(
    listen: Annotated[
        str, typer.Option(help="Where to listen: this host alone, unless you say otherwise.")
    ] = DEFAULT_MASTER,
    folder: Annotated[Path | None, typer.Option(help="Where the journal and results are kept.")] = None,
    metrics: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="Serve figures for Prometheus on this port of 127.0.0.1, or at HOST:PORT."),
    ] = None,
    insecure: OpenToAll = False,
    verbose: Verbose = False,
    log_json: LogJson = False,
) -> None:
    """Run the master of a cluster: it queues jobs and places them on slaves.

    The first start makes keys. For example, on the head node, for all hosts of the network:

        flegel master --listen tcp://0.0.0.0:7077
    """
    start_logging(verbose, log_json, logging.INFO)
    with errors_as_sentences(), using(changes_outside()):
        from flegel.cluster.master.daemon import MasterDaemon
        from flegel.cluster.slave.slave_folder import data_home
        from flegel.cluster.transport import keys
        from flegel.cluster.transport.protocol import RIGHTS
        from flegel.cluster.transport.secure_server import listen as listen_on
        from flegel.runtime.system.malloc_settings import share_heap
        from flegel.runtime.system.private_files import keep_private

        share_heap()
        pair = None if insecure else keys.first_start()
        registry = None if insecure else keys.KeyRegistry()
        with listen_on(listen, RIGHTS, pair=pair, registry=registry, insecure=insecure) as server:
            place = folder or data_home() / "master"
            keep_private(place)
            daemon = MasterDaemon(server, place)
            with _cluster_metrics(metrics) as publish:
                daemon.run(publish)


@contextmanager
def _cluster_metrics(address: str | None) -> Iterator[Publish]:
    """A function that publishes jobs and slaves as metrics; without an address it does nothing."""
    if address is None:
        yield lambda jobs, slaves: None
        return
    from flegel.metrics.endpoint import MetricsEndpoint
    from flegel.metrics.families import cluster_families

    endpoint = MetricsEndpoint(address)
    say(f"metrics at {endpoint.url}")
    try:
        yield lambda jobs, slaves: endpoint.publish(cluster_families(jobs, slaves))
    finally:
        endpoint.close()


Slots = Annotated[int | None, typer.Option(min=1, max=256, help="Workers at a time; one a core by default.")]
SlaveName = Annotated[str | None, typer.Option(help="Name in the cluster; the host's by default.")]
OwnAddress = Annotated[str | None, typer.Option(help="This host as others reach it; the way to the master by default.")]
Memory = Annotated[
    str | None, typer.Option(help="Limit of each process, such as 2G; an even part of this host's by default.")
]
SlaveFolder = Annotated[Path | None, typer.Option(help="Where logs, results and checkpoints are kept.")]
ReadableFolders = Annotated[
    list[Path] | None, typer.Option(help="Folder that jobs may read files from; repeatable; all by default.")
]
Isolation = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Of jobs from keys and each other: `namespace`, `strict` or `none`; `auto`: namespaces if possible.",
    ),
]
WritableFolders = Annotated[
    list[Path] | None, typer.Option(help="Folder that jobs may write to under strict isolation; repeatable.")
]
DrainSeconds = Annotated[float, typer.Option(help="Seconds that jobs get to end or move away after SIGTERM.")]


class SlaveCommand(ShortHelpCommand):
    """`flegel slave`."""

    shown = frozenset(
        {
            "--master",
            "--slots",
            "--name",
            "--memory",
            "--data",
            "--isolation",
        }
    )


@with_help_all
def slave(
    master: Master = DEFAULT_MASTER,
    slots: Slots = None,
    name: SlaveName = None,
    address: OwnAddress = None,
    memory: Memory = None,
    folder: SlaveFolder = None,
    data: ReadableFolders = None,
    isolation: Isolation = "auto",
    write: WritableFolders = None,
    drain: DrainSeconds = 30.0,
    insecure: Insecure = False,
    verbose: Verbose = False,
    log_json: LogJson = False,
) -> None:
    """Offer this host to a cluster: starts and supervises the workers that the master places here.

    For example:

        flegel slave --master tcp://head:7077 --slots 4
    """
    start_logging(verbose, log_json, logging.INFO)
    with errors_as_sentences(), using(changes_outside()):
        from flegel.cluster.client import own_address
        from flegel.cluster.slave.daemon import SlaveDaemon
        from flegel.cluster.slave.settings import SlaveSettings
        from flegel.cluster.slave.slave_folder import default_folder
        from flegel.cluster.transport.framing import host_of
        from flegel.cluster.transport.protocol import check_name
        from flegel.runtime.processes.host import cores, host_memory
        from flegel.runtime.system.malloc_settings import share_heap
        from flegel.runtime.system.private_files import keep_private

        share_heap()
        host_of(master)
        called = check_name(name or socket.gethostname().split(".")[0], "slave")
        count = slots or len(cores())
        settings = SlaveSettings(
            called,
            count,
            address or own_address(master),
            folder or default_folder(called),
            parse_bytes(memory) if memory else host_memory() // max(count, 1),
            drain,
            tuple(data or ()),
            isolation=_isolation(isolation, bool(write)),
            write=tuple(write or ()),
        )
        keep_private(settings.folder)
        SlaveDaemon(settings, _dialer(master, insecure)).run()


def _dialer(master: str, insecure: bool) -> Callable[[], SecureClient]:
    """Opens a connection to the master, with the keys of this host. A master of this host may be starting, and is
    waited for; otherwise missing keys are an error at once."""
    from flegel.cluster.client import MASTER_START_SECONDS, await_key_of_master
    from flegel.cluster.transport import keys
    from flegel.cluster.transport.protocol import TO_SLAVE
    from flegel.cluster.transport.secure_client import dial

    if insecure:
        dial(master, TO_SLAVE, insecure=True).close()
        return lambda: dial(master, TO_SLAVE, insecure=True)
    pair = keys.ensure("slave")
    await_key_of_master(master, MASTER_START_SECONDS, say)
    server = keys.KeyRegistry().master(master)
    return lambda: dial(master, TO_SLAVE, pair=pair, server=server)


def _by_group(master: list[str], start: str) -> dict[str, str]:
    """Addresses of masters by group."""
    masters = dict(word.split("=", 1) for word in master if "=" in word)
    if len(masters) < len(master) or (start or next(iter(masters))) not in masters:
        raise UsageError("--master takes GROUP=ADDRESS, once for each group, and --start one of these groups.")
    return masters


def group_slave(
    bucket: Annotated[str, typer.Option(help="Where the groups of the job meet.")],
    master: Annotated[
        list[str], typer.Option(metavar="GROUP=ADDRESS", help="Master of each group, as paris=tcp://paris:7077.")
    ],
    start: Annotated[
        str, typer.Option(metavar="GROUP", help="The group to begin with; the first one by default.")
    ] = "",
    slots: Annotated[int, typer.Option(min=1, max=256, help="Workers at a time.")] = 1,
    name: Annotated[str | None, typer.Option(help="Name in each cluster; the host's by default.")] = None,
    look: Annotated[
        str, typer.Option(metavar="DURATION|update", help="Look at loads and ways so often, or after each update of θ.")
    ] = "30s",
    largest_load: Annotated[
        float, typer.Option(min=0.0, help="Consider other groups only while their load average is below this.")
    ] = math.inf,
    group_key: Annotated[str, typer.Option(metavar="FILE", help="Key file of a group, where beats are signed.")] = "",
    insecure: Insecure = False,
    verbose: Verbose = False,
    log_json: LogJson = False,
) -> None:
    """Offer this host to the group with the least load × round-trip time, and change it while groups train.

    For example:

        flegel group-slave --bucket s3://models/job7 --master paris=tcp://p:7077 --master lyon=tcp://l:7077
    """
    start_logging(verbose, log_json, logging.INFO)
    with errors_as_sentences(), using(changes_outside()):
        from flegel.cluster.group_slave import GroupSlave
        from flegel.options import parse_seconds
        from flegel.runtime import clock
        from flegel.runtime.group.bucket import open_bucket
        from flegel.runtime.group.keys import read_key_file

        masters = _by_group(master, start)
        called = name or socket.gethostname().split(".")[0]
        every = parse_seconds("1s" if look == "update" else look)  # groups tell of their updates once a second
        more = ["--insecure"] if insecure else []

        def begin(address: str) -> subprocess.Popen[bytes]:
            words = ["slave", "--master", address, "--name", called, "--slots", str(slots), *more]
            return subprocess.Popen([sys.executable, "-P", "-m", "flegel.cli.main", *words], start_new_session=True)

        place, seal, client = open_bucket(bucket), read_key_file(group_key, ""), partial(open_client, insecure=insecure)
        moving = GroupSlave(masters, place, seal, called, slots, begin, client, largest_load=largest_load)
        try:
            moving.begin(start or next(iter(masters)))
            while True:
                raise_lost_signal()
                clock.sleep(every)
                if look != "update" or moving.updated():
                    say(f"{moving.group}: {moving.look()}")
        finally:
            moving.close()


@cluster_app.command()
def up(
    hosts: HostsFile,
    master: Master = DEFAULT_MASTER,
    ssh: Ssh = None,
    wait: Annotated[float, typer.Option(help="Seconds until all slaves must have registered.")] = 60.0,
    insecure: Insecure = False,
) -> None:
    """Start a slave on each host of a file; run it where the master runs, so that it can exchange keys.

    For example:

        flegel cluster up hosts.txt --master tcp://head:7077
    """
    with errors_as_sentences():
        from flegel.cluster.launch import ssh as remote
        from flegel.runtime import clock

        listed = remote.read_hosts(hosts)
        with open_client(master, insecure) as client:
            client.slaves()  # fails here, before any SSH, if the master cannot be reached
            wrong = {
                name: why for name, why in remote.up(listed, master, ssh or remote.SSH_COMMAND, insecure).items() if why
            }
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


@cluster_app.command()
def down(hosts: HostsFile, ssh: Ssh = None) -> None:
    """Stop the slaves that `up` has started; each drains first."""
    with errors_as_sentences():
        from flegel.cluster.launch import ssh as remote

        wrong = {
            name: why for name, why in remote.down(remote.read_hosts(hosts), ssh or remote.SSH_COMMAND).items() if why
        }
        for name, why in wrong.items():
            print(f"{name:20} {why}")
        if wrong:
            raise FlegelError(f"{len(wrong)} slaves may still run.")


def _isolation(wanted: str, write: bool) -> str:
    """How this host isolates jobs: as wanted, or an error; under `auto` as far as possible, with a sentence."""
    from flegel.runtime.system.confinement import why_impossible

    if wanted not in ISOLATION_MODES:
        raise UsageError(f"--isolation is one of {', '.join(ISOLATION_MODES)}, not {wanted!r}.")
    if write and wanted != "strict":
        raise UsageError("--write is for --isolation strict; otherwise jobs write wherever this user can.")
    why = why_impossible(wanted == "strict") if wanted != "none" else ""
    if why and wanted != "auto":
        raise UsageError(f"--isolation {wanted} is not possible on this host: {why}")
    if why:
        say(f"jobs can read the keys of this user and each other's files, because isolation is not possible: {why}")
    return "none" if why else "namespace" if wanted == "auto" else wanted
