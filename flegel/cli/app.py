"""The Typer app. Knows no command."""

from __future__ import annotations

from typing import Annotated

import typer

from flegel.cli.help_pages import SubjectGroup

app = typer.Typer(
    name="flegel",
    cls=SubjectGroup,
    help="Train models on unequal machines: barriers by time, so that no worker waits for a straggler.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from flegel import __version__

        print(__version__)
        raise typer.Exit


@app.callback()
def _every_command(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass
