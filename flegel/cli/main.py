"""The command line: all commands, in the order in which `flegel --help` lists them. Does nothing itself."""

from __future__ import annotations

import contextlib
import signal
import sys
from typing import NoReturn

from flegel.cli.app import app
from flegel.cli.bench import bench_app, compare, report
from flegel.cli.cluster_daemons import cluster_app, group_slave, master, slave
from flegel.cli.cluster_jobs import attach, cancel, jobs, logs, scale, status, suspend
from flegel.cli.dashboard import dashboard
from flegel.cli.data import app as data_app
from flegel.cli.export import export
from flegel.cli.inspection import algorithms, check, models, settings, version, warm
from flegel.cli.keys import app as keys_app
from flegel.cli.launch.commands import launch_app
from flegel.cli.predict import predict
from flegel.cli.simulate import simulate
from flegel.cli.submit import SubmitCommand, resume, submit
from flegel.cli.top import top
from flegel.errors import ExitCode, Terminated
from flegel.runtime.system.descendants import ended_with_this_block
from flegel.runtime.system.standard_streams import protect

__all__ = ["app", "main"]

COMMANDS = (
    submit,
    resume,
    predict,
    export,
    algorithms,
    models,
    settings,
    check,
    warm,
    version,
    compare,
    report,
    simulate,
    dashboard,
    top,
    master,
    slave,
    group_slave,
    jobs,
    status,
    logs,
    attach,
    cancel,
    suspend,
    scale,
)
GROUPS = {"data": data_app, "bench": bench_app, "cluster": cluster_app, "launch": launch_app, "keys": keys_app}

for command in COMMANDS:
    app.command(cls=SubmitCommand if command is submit else None)(command)
for name, group in GROUPS.items():
    app.add_typer(group, name=name)


def main() -> None:
    """Entry point."""
    protect("stdout", "stderr")
    signal.signal(signal.SIGTERM, _terminated)
    one_job = sys.argv[1:2] in (["submit"], ["resume"])  # this process exists for it alone
    with ended_with_this_block() if one_job else contextlib.nullcontext():
        app()


def _terminated(*_: object) -> NoReturn:
    raise Terminated(ExitCode.TERMINATED)


if __name__ == "__main__":
    main()
