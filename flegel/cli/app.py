"""The Typer app, and what all commands share: errors become one sentence and an exit code. Knows no command.

Exit codes are those of `flegel.errors.ExitCode`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from flegel.errors import AlgorithmError, ExitCode, FlegelError, Interrupted, StorageError, Terminated

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
        raise typer.Exit(ExitCode.INTERRUPTED) from None
    except Terminated:
        print(f"flegel: terminated{left}.", file=sys.stderr)
        raise
    except MemoryError:
        print("flegel: not enough memory; use fewer rows, or float32 data.", file=sys.stderr)
        raise typer.Exit(ExitCode.FAILED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"flegel: {where}{error.strerror or error}; fix this and retry.", file=sys.stderr)
        raise typer.Exit(ExitCode.FAILED) from None


def print_all(text: str) -> None:
    """A result on standard output; an error says so where nobody takes it."""
    from flegel.runtime.system.standard_streams import output_taken

    print(text)
    if not output_taken():
        raise StorageError("Standard output was closed before the result could be written to it.")


def say(text: str) -> None:
    """A remark for people, on standard error."""
    if text:
        print(f"flegel: {text}", file=sys.stderr)
