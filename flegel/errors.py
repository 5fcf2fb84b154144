"""Every error that Flegel raises on purpose, and every exit code. Never imports anything of the project.

`UsageError` means that the caller can fix it; every other `FlegelError` means that the work failed. A message is one
sentence that says what happened and what to do.
"""

from __future__ import annotations

import difflib
import importlib.util
import sys
import traceback
import warnings
from enum import IntEnum
from pathlib import Path

import msgspec

UNDECODABLE = (msgspec.MsgspecError, UnicodeError, RecursionError)
"""What msgspec raises for bytes of somebody else: not what was asked for, text that is not UTF-8, nested too deeply."""

_HERE = str(Path(__file__).parent / "_").removesuffix("_")


class ExitCode(IntEnum):
    """Exit codes of all commands; docs/cli.md has the same table."""

    DONE = 0
    FAILED = 1
    """Something failed: a hook, a worker, a disk, a connection. Nothing usable was made, or the text says where."""
    USAGE = 2
    """The request is wrong: an option, a name, a file."""
    NOT_AS_ASKED = 3
    """Training ended with a model that is not what was asked for: diverged, stalled short of the target, stuck, worse
    than a trivial model, or of a group that ended without the others. The best that there is was saved."""
    SUSPENDED = 75
    """A job on a cluster was told to stop and has written a checkpoint; the same command continues it."""
    INTERRUPTED = 130
    TERMINATED = 143


class FlegelWarning(UserWarning):
    """Something that works, but not as well as it could."""


class FlegelError(Exception):
    """Something failed; the text is fit to be shown to a person as it is."""

    exit_code = ExitCode.FAILED


class UsageError(FlegelError):
    """The request itself is wrong: a name, a type, a file, a combination of options."""

    exit_code = ExitCode.USAGE


class DataError(UsageError):
    """The data cannot be used as they are."""


class AlgorithmError(FlegelError):
    """A hook of an algorithm raised; carries the user's own traceback."""

    def __init__(self, message: str, trace: str = "") -> None:
        super().__init__(message)
        self.trace = trace


class ConformanceError(FlegelError):
    """`check_algorithm` found a broken promise."""


class WorkerLost(FlegelError):
    """A worker process died or fell silent; `why` is the predicate of that sentence."""

    def __init__(self, message: str, why: str = "is lost") -> None:
        super().__init__(message)
        self.why = why


class ProtocolError(FlegelError):
    """A peer sent what it must not send, or not in time."""


class DecodeError(ProtocolError):
    """Bytes that are no message of ours. The decoder raises nothing else."""


class PeerSlow(FlegelError):
    """A peer has not acknowledged as much as may be under way; nothing was sent."""


class PeerRefused(FlegelError):
    """A peer does not let this key in, or not for this."""


class GroupReplaced(FlegelError):
    """Another process takes part in the training of several groups under this group's name."""


class OutOfReach(FlegelError):
    """A worker cannot read rows where they are in the memory of the process that started the job."""

    where = "reading rows in place"
    """What a worker says it was doing."""


class StorageError(FlegelError):
    """A model, result or trace could not be written or read."""


class Interrupted(KeyboardInterrupt):
    """A job that keeps checkpoints was told to stop, and did; the text says how to go on."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class Terminated(SystemExit):
    """SIGTERM, told from a `sys.exit` of user code."""


class HookTimeout(BaseException):
    """Raised inside a hook that does not return; no `except Exception` of the hook catches it."""

    def __init__(self, seconds: float = 0.0) -> None:
        super().__init__(f"no return after {seconds:.0f} s" if seconds else "no return in time")
        self.seconds = seconds


MAX_NAMES_LISTED = 30
"""Of what may be meant by a name: more than the built-in algorithms, less than a screen."""


def nearest(word: str, known: list[str], otherwise: str | None = None) -> str:
    """A suffix such as '; did you mean kmeans?'; where nothing comes near, `otherwise`, or else the list, cut where it
    is long."""
    swapped = [name for name in known if sorted(name) == sorted(word)]
    close = swapped or difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"; did you mean {close[0]!r}?"
    if otherwise is not None:
        return otherwise
    left = len(known) - MAX_NAMES_LISTED
    shown = sorted(known)[: MAX_NAMES_LISTED if left > 1 else None]
    return f"; known are: {', '.join(shown)}" + (f" and {left} more" if left > 1 else "")


def in_words(error: BaseException) -> str:
    """What an exception says: an `OSError` without its number and its path ("No such file or directory"), others
    whole; its kind where it says nothing."""
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(said.split()).rstrip(".") or type(error).__name__


def warn(text: str) -> None:
    """A warning that shows the line of the user's that led to it, not one of this package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "flegel":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, stacklevel=level)


def require(module: str, extra: str) -> None:
    """Raise `UsageError` where an optional library is absent; nothing is imported."""
    if importlib.util.find_spec(module) is None:
        raise UsageError(f"This needs the package {module}: pip install 'flegel[{extra}]'.")


def own_traceback(error: BaseException) -> str:
    """The traceback as the user should see it: without the lines of this package."""
    frames = traceback.extract_tb(error.__traceback__)
    users = [f for f in frames if not f.filename.startswith(_HERE)]
    shown = traceback.format_list(users or frames)
    return (
        "Traceback (most recent call last):\n"
        + "".join(shown)
        + "".join(traceback.format_exception_only(type(error), error))
    )


def own_place(error: BaseException) -> str:
    """File and line of the user's that the error came from, neither of this package nor of a library: "my.py:12"; empty
    where there is none."""
    if isinstance(error, AlgorithmError) and error.__cause__ is not None:
        return own_place(error.__cause__)
    import sysconfig  # only where something has failed

    not_own = (_HERE, "<", f"{sysconfig.get_path('stdlib')}/", f"{sysconfig.get_path('platstdlib')}/")
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(not_own)]
    own = [f for f in frames if "site-packages" not in f.filename]
    if not own:
        return ""
    path, here = Path(own[-1].filename), Path.cwd()
    return f"{path.relative_to(here) if path.is_relative_to(here) else path}:{own[-1].lineno}"
