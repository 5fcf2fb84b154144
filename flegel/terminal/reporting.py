"""What commands tell people: what happens before training, and errors as one sentence and an exit code.

Exit codes are those of `flegel.errors.ExitCode`.
"""

from __future__ import annotations

import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from flegel.errors import AlgorithmError, ExitCode, FlegelError, Interrupted, StorageError, Terminated
from flegel.runtime.job.compiler_thread import end_at_once
from flegel.runtime.job.observers import JobEvent, JobSeen, Observer, PhaseBegan, RemarkMade
from flegel.wording import wording_for

WORKERS_STOPPED = "; all workers were stopped and nothing was saved"
CHECKPOINTS_KEPT = "; all workers were stopped, and its checkpoints are as they were"


@contextmanager
def errors_as_sentences(left_behind: str = "") -> Iterator[None]:
    """Print errors as one sentence on standard error and exit with their code. `left_behind` is said after an
    interruption: what it leaves behind."""
    try:
        with wording_for("command-line"):
            yield
    except FlegelError as error:
        if isinstance(error, AlgorithmError) and error.trace:
            print(error.trace.rstrip(), file=sys.stderr)
        print(f"flegel: {error}", file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except Interrupted as stop:
        print(f"flegel: {stop}", file=sys.stderr)
        end_at_once(stop.exit_code)
        raise SystemExit(stop.exit_code) from None
    except KeyboardInterrupt:
        print(f"flegel: interrupted{left_behind}.", file=sys.stderr)
        end_at_once(ExitCode.INTERRUPTED)
        raise SystemExit(ExitCode.INTERRUPTED) from None
    except Terminated:
        print(f"flegel: terminated{left_behind}.", file=sys.stderr)
        end_at_once(ExitCode.TERMINATED)
        raise
    except MemoryError:
        print("flegel: not enough memory; use fewer rows, or float32 data.", file=sys.stderr)
        raise SystemExit(ExitCode.FAILED) from None
    except OSError as error:
        where = f"{error.filename}: " if error.filename else ""
        print(f"flegel: {where}{error.strerror or error}; fix this and retry.", file=sys.stderr)
        raise SystemExit(ExitCode.FAILED) from None


@contextmanager
def warnings_as_sentences() -> Iterator[None]:
    """Print warnings as one line each on standard error."""
    with warnings.catch_warnings():
        warnings.showwarning = lambda message, *_, **__: print(f"flegel: {message}", file=sys.stderr)
        yield


def print_all(text: str) -> None:
    """Print a result; raises `StorageError` where standard output was closed before all of it was written."""
    from flegel.runtime.system.standard_streams import output_taken

    print(text)
    if not output_taken():
        raise StorageError("Standard output was closed before the result could be written to it.")


def say(text: str) -> None:
    """A remark for people, on standard error."""
    if text:
        print(f"flegel: {text}", file=sys.stderr)


PHASES = {
    "importing": "importing libraries",
    "reading": "reading {data}",
    "init": "choosing the initial parameters",
    "compiling": "compiling: once for an algorithm and a kind of rows, 5 to 30 s of an idle processor",
    "loading": "starting workers, which read their rows; code that is not in the cache is compiled meanwhile",
}


class PhaseLine(Observer):
    """Says what a job does before it trains, where that takes longer than a tenth of a second.

    On a terminal the line is replaced by what comes next. A thread waits meanwhile, because the job is busy.
    """

    shown = 0

    def __init__(self, stream: IO[str], data: str = "", after: float = 0.1) -> None:
        self._stream, self._data, self._delay_seconds = stream, data, after
        self._line_is_shown = False
        self._said: set[str] = set()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None

    def see(self, event: JobEvent) -> None:
        """The line ends with the first look at a job that trains; a remark gets a line of its own."""
        match event:
            case PhaseBegan(name):
                self.begin(name)
            case JobSeen(seen) if self._timer is not None and seen.phase != "loading":
                self.stop()
            case RemarkMade():
                self._remove()

    def begin(self, phase: str) -> None:
        self.stop()
        if phase in PHASES:
            text = PHASES[phase].format(data=self._data) + " …"
            timer = threading.Timer(self._delay_seconds, lambda: self._show(text, timer))
            timer.daemon = True
            self._timer = timer
            timer.start()

    def __enter__(self) -> PhaseLine:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """The phase is over."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        self._remove()

    def _remove(self) -> None:
        with self._lock:
            if self._line_is_shown and self._stream.isatty():
                print("\r\x1b[K", end="", file=self._stream, flush=True)
            self._line_is_shown = False

    def _show(self, text: str, timer: threading.Timer) -> None:
        """Called by the timer's thread. One that was cancelled too late for it to notice shows nothing: the phase is
        over, and what comes next may have been written."""
        with self._lock:
            if self._timer is not timer or (text in self._said and not self._stream.isatty()):
                return  # a log has it already
            self._line_is_shown = True
            self._said.add(text)
            print(text, end="" if self._stream.isatty() else "\n", file=self._stream, flush=True)
