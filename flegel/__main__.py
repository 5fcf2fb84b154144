"""The program `flegel`, and `python -m flegel` where no console script was installed.

Only imports and calls the command line: a Ctrl-C meanwhile ends it with one sentence, as it does later. On a terminal
it says so while it imports, because that takes half a second, and longer on a busy machine or a cold disk.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys


def leave_current_folder() -> None:
    """`python -m` looks for modules in the current folder first, where a file may have the name of a package that is
    needed here. Not where this package itself lies there: then it is a working copy."""
    here = os.path.realpath(os.getcwd())  # noqa: PTH109 - pathlib may be one of those files
    own = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))  # noqa: PTH120
    if not sys.flags.safe_path and os.path.realpath(sys.path[0]) == here != own:
        del sys.path[0]


def main() -> None:
    """The entry point of `flegel` and `python -m flegel`: whoever has pressed Ctrl-C does not wait for Python, which
    takes up to 0.6 s to take the modules of a compiler apart."""
    try:
        run()
    except SystemExit as end:
        if end.code not in (130, 143):
            raise
        atexit._run_exitfuncs()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(end.code)


def run() -> None:
    """Run the command line."""
    from flegel.runtime.system.signals import imports_are_over, imports_begin

    imports_begin()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started this program; its number must not go to another file
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    waiting = sys.argv[1:2] in (["submit"], ["resume"]) and sys.stderr.isatty()
    try:
        if waiting:
            print("starting …", end="", file=sys.stderr, flush=True)
        if sys.argv[1:2] == ["submit"]:
            from flegel.cli.quick import main as submit

            if submit(waiting):
                return
        from flegel.cli.main import main as command_line

        if waiting:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        imports_are_over()
        command_line()
    except KeyboardInterrupt:
        print("flegel: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
    finally:
        imports_are_over()


if __name__ == "__main__":
    leave_current_folder()
    main()
