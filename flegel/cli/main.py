"""The command line: all commands, in the order in which `flegel --help` lists them. Does nothing itself."""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable

from flegel.cli import help_pages
from flegel.cli.app import app
from flegel.cli.bucket_groups import groups
from flegel.cli.cluster_daemons import SlaveCommand, cluster_app, group_slave, master, slave
from flegel.cli.cluster_jobs import attach, cancel, jobs, logs, scale, status, suspend
from flegel.cli.comparisons import CompareCommand, bench, compare, report
from flegel.cli.dashboard import dashboard
from flegel.cli.data import app as data_app
from flegel.cli.ddp import ddp_report, ddp_store
from flegel.cli.demo import demo
from flegel.cli.doctor import doctor
from flegel.cli.evaluate import evaluate
from flegel.cli.export import export
from flegel.cli.help_pages import ShortHelpCommand
from flegel.cli.inspection import algorithms, check, models, settings, version, warm
from flegel.cli.keys import app as keys_app
from flegel.cli.launch.commands import launch_app
from flegel.cli.predict import predict
from flegel.cli.simulate import SimulateCommand, simulate
from flegel.cli.submit import JoinCommand, ResumeCommand, SubmitCommand, join, resume, submit
from flegel.cli.top import top
from flegel.runtime.system.descendants import ended_with_this_block
from flegel.runtime.system.signals import terminate
from flegel.runtime.system.standard_streams import protect

__all__ = ["app", "main"]

COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    help_pages.TRAIN: (submit, resume, join, predict, evaluate, export),
    help_pages.LIST: (algorithms, models, settings, doctor, version),
    help_pages.WRITE: (check, warm),
    help_pages.MEASURE: (demo, compare, report, simulate),
    help_pages.WATCH: (dashboard, top, groups, ddp_report),
    help_pages.CLUSTER: (master, slave, group_slave, ddp_store),
    help_pages.CLUSTER_JOBS: (jobs, status, logs, attach, cancel, suspend, scale),
}
"""Commands by subject."""
GROUPS = {
    "data": (data_app, help_pages.LIST),
    "cluster": (cluster_app, help_pages.CLUSTER),
    "launch": (launch_app, help_pages.CLUSTER),
    "keys": (keys_app, help_pages.CLUSTER),
}
"""Commands of several words, and their subject."""
SHORT_HELP: dict[Callable[..., None], type[ShortHelpCommand]] = {
    submit: SubmitCommand,
    resume: ResumeCommand,
    join: JoinCommand,
    simulate: SimulateCommand,
    compare: CompareCommand,
    slave: SlaveCommand,
}
"""Commands with so many options that `--help` shows some of them only."""

for subject, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=SHORT_HELP.get(command), rich_help_panel=subject)(command)
app.command(rich_help_panel=help_pages.MEASURE, context_settings={"ignore_unknown_options": True})(bench)
for name, (group, subject) in GROUPS.items():
    app.add_typer(group, name=name, rich_help_panel=subject)


def main() -> None:
    """Entry point."""
    protect("stdout", "stderr")
    signal.signal(signal.SIGTERM, terminate)
    one_job = sys.argv[1:2] in (["submit"], ["resume"], ["join"])  # this process exists for it alone
    with ended_with_this_block() if one_job else contextlib.nullcontext():
        app()


if __name__ == "__main__":
    main()
