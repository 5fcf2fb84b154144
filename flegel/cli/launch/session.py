"""One launch on the command line: start the cluster, run a command on it, end it; or keep it. Places nothing itself."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Annotated, Any, NamedTuple, NoReturn

import typer

from flegel.errors import ExitCode, UsageError
from flegel.options import parse_bytes
from flegel.runtime.system.signals import raise_lost_signal
from flegel.terminal.reporting import errors_as_sentences, say

LAUNCH_PANEL = "Launch"
Slaves = Annotated[int, typer.Option(min=1, help="How many slaves to start.", rich_help_panel=LAUNCH_PANEL)]
Slots = Annotated[int, typer.Option(min=1, max=256, help="Workers on each slave.", rich_help_panel=LAUNCH_PANEL)]
Memory = Annotated[
    str | None,
    typer.Option(help="Limit of each process, such as 2G.", rich_help_panel=LAUNCH_PANEL, show_default=False),
]
Timeout = Annotated[
    float, typer.Option(metavar="SECONDS", help="Until all slaves must be up.", rich_help_panel=LAUNCH_PANEL)
]
HostName = Annotated[
    str | None,
    typer.Option("--host", help="This host as slaves reach it.", rich_help_panel=LAUNCH_PANEL, show_default=False),
]
Keep = Annotated[
    bool,
    typer.Option(
        "--keep", help="Leave the cluster for many jobs; `launch stop` ends it.", rich_help_panel=LAUNCH_PANEL
    ),
]
Words = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="-- COMMAND…", help="What to run there, such as `-- submit kmeans --data higgs`.", show_default=False
    ),
]
HOLDER_VARIABLE = "FLEGEL_LAUNCH_HOLDER"
"""Environment variable that tells a process which kept cluster it holds."""


class LaunchRequest(NamedTuple):
    """What all systems have in common."""

    system: str
    slaves: int
    slots: int
    memory: str | None
    timeout: float
    host: str | None
    keep: bool
    words: list[str]

    def options(self) -> dict[str, Any]:
        """The arguments of `LaunchedCluster` that the command line gave."""
        return {
            "slaves": self.slaves,
            "slots": self.slots,
            "timeout": self.timeout,
            "host": self.host,
            "say": say,
            "memory": parse_bytes(self.memory) if self.memory else None,
        }


def launch(request: LaunchRequest, make: Callable[..., Any]) -> None:
    """Start a cluster, run the command on it and end it, with the exit code of that command. With --keep a second
    process holds the cluster, and this one ends; that process runs the same command line, and knows by
    `HOLDER_VARIABLE` that it is the holder. `make` takes the options of a launch and gives the cluster."""
    with errors_as_sentences():
        holder = os.environ.pop(HOLDER_VARIABLE, "")
        if holder:
            _hold(request, make, holder)
        elif request.keep:
            _keep(request)
        elif not request.words:
            raise UsageError("Say what to run after --, such as `-- submit kmeans --data higgs`, or give --keep.")
        else:
            signal.signal(signal.SIGUSR1, _suspended)
            with make(**request.options()) as cluster:
                code = _run(request.words, cluster.environment())
            raise typer.Exit(code)


def _keep(request: LaunchRequest) -> None:
    """The same command in a process of its own, which holds the cluster."""
    from flegel.cluster.launch import kept

    name = f"{request.system}-{secrets.token_hex(2)}"
    given = sys.argv[1 : sys.argv.index("--")] if "--" in sys.argv else sys.argv[1:]
    words = [word for word in given if word != "--keep"]
    found = kept.start_holder(
        name, [sys.executable, "-P", "-m", "flegel", *words], {HOLDER_VARIABLE: name}, request.timeout + 60.0
    )
    if request.words:
        environment = {**os.environ, "FLEGEL_HOME": str(kept.folder_of(name)), "FLEGEL_MASTER": found.address}
        code = _run(request.words, environment)
    else:
        code = 0
    print(f"{name} is kept at {found.address}")
    say(f"use it with: export FLEGEL_MASTER={found.address}")
    say(f"end it with: flegel launch stop {name}")
    raise typer.Exit(code)


def _hold(request: LaunchRequest, make: Callable[..., Any], name: str) -> None:
    """Start the cluster and hold it until it is told to end; runs in a process of its own."""
    from flegel.cluster.launch import kept

    folder = kept.folder_of(name)
    with (
        make(**request.options(), home=folder) as cluster,
        kept.held(cluster, name, request.system, request.slaves),
    ):
        kept.wait_for_end()


def _suspended(*_: object) -> NoReturn:
    """SIGUSR1 before the job was submitted: exit as suspended, so that the same command starts it later."""
    raise SystemExit(ExitCode.SUSPENDED)


def _run(words: list[str], environment: dict[str, str]) -> int:
    """A command of flegel on the cluster. Ctrl-C reaches it too; it cancels its job and ends."""
    environment = {**environment, "FLEGEL_CANCEL_ON_INTERRUPT": "1"}
    command = subprocess.Popen([sys.executable, "-P", "-m", "flegel", *words], env=environment)
    signal.signal(signal.SIGUSR1, lambda *_: command.send_signal(signal.SIGUSR1))
    try:
        raise_lost_signal()
        code = command.wait()
        return ExitCode.SUSPENDED if code == -signal.SIGUSR1 else code
    except KeyboardInterrupt:
        _end(command)
        raise
    except BaseException:
        command.terminate()
        _end(command)
        raise


def _end(command: subprocess.Popen[bytes]) -> None:
    try:
        command.wait(20.0)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        command.kill()
        command.wait()
