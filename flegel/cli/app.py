"""The Typer app, and what all commands share: errors become one sentence and an exit code. Knows no command.

Exit codes: 0 done, 1 failed, 2 wrong use, 3 trained but the model is not as good as asked for, 130 interrupted, 143
terminated.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from flegel.errors import AlgorithmError, FlegelError, Interrupted

app = typer.Typer(
    name="flegel",
    help="Train models on unequal machines: flexible barriers by time, nobody waits for a straggler.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
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


NOT_AS_ASKED = 3  # exit code of a job that diverged, stalled or ended with a useless model
WORKERS_STOPPED = "; all workers were stopped and nothing was saved"
CHECKPOINTS_KEPT = "; all workers were stopped, and its checkpoints are as they were"


@contextmanager
def errors_as_sentences(left: str = "") -> Iterator[None]:
    """Errors as people should see them; `left` says what Ctrl-C leaves behind."""
    try:
        yield
    except FlegelError as error:
        if isinstance(error, AlgorithmError) and error.trace:
            print(error.trace.rstrip(), file=sys.stderr)
        print(f"flegel: {error}", file=sys.stderr)
        raise typer.Exit(error.exit_code) from None
    except Interrupted as stop:
        print(f"flegel: {stop}", file=sys.stderr)
        raise typer.Exit(stop.exit_code) from None
    except KeyboardInterrupt:
        print(f"flegel: interrupted{left}.", file=sys.stderr)
        raise typer.Exit(130) from None
    except SystemExit as stop:
        if stop.code == 143:
            print(f"flegel: terminated{left}.", file=sys.stderr)
        raise
    except MemoryError:
        print("flegel: not enough memory; use fewer rows, or float32 data.", file=sys.stderr)
        raise typer.Exit(1) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"flegel: {where}{error.strerror or error}; fix this and retry.", file=sys.stderr)
        raise typer.Exit(1) from None


def say(text: str) -> None:
    """A remark for people, on standard error."""
    if text:
        print(f"flegel: {text}", file=sys.stderr)
