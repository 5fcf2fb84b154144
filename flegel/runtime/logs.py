"""How records of `logging` look and where they go: text or JSON lines on standard error, with job and worker in each.

The loggers are named `flegel.*`. A process that belongs to Flegel (a command, a daemon, a worker, a coordinator) calls
`configure`; a user's program that calls `flegel.run` configures `logging` as it likes, and nothing here touches it.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from typing import IO, Any

from flegel.runtime import clock

VARIABLE = "FLEGEL_LOG"
"""Environment variable by which processes of a job inherit the settings: words out of `verbose` and `json`."""
_STANDARD = frozenset(vars(logging.makeLogRecord({})))


class LogContext(logging.Filter):
    """Adds job and worker to every record that has none of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.job = self.worker = ""

    def filter(self, record: logging.LogRecord) -> bool:
        for name in ("job", "worker"):
            if not hasattr(record, name):
                setattr(record, name, getattr(self, name))
        return True


context = LogContext()
"""Of this process."""


class TextFormatter(logging.Formatter):
    """`PREFIX: text`; when verbose also the time, the level, the logger, job and worker."""

    def __init__(self, prefix: str, verbose: bool) -> None:
        super().__init__()
        self._prefix, self._verbose = prefix, verbose

    def format(self, record: logging.LogRecord) -> str:
        text = record.getMessage()
        if record.exc_info:
            text = f"{text}\n{self.formatException(record.exc_info)}"
        if not self._verbose:
            return f"{self._prefix}{text}"
        fields = "".join(f" {k}={v}" for k in ("job", "worker") if (v := getattr(record, k, "")) != "")
        return f"{timestamp(record.created)} {record.levelname.lower()} {record.name}{fields}: {text}"


class JsonFormatter(logging.Formatter):
    """One JSON object a line. Fields given as `extra` are kept, as text where JSON has no such type."""

    def format(self, record: logging.LogRecord) -> str:
        found: dict[str, Any] = {
            "time": timestamp(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "job": getattr(record, "job", ""),
            "worker": getattr(record, "worker", ""),
            "message": record.getMessage(),
        }
        found.update((k, v) for k, v in vars(record).items() if k not in _STANDARD and k not in found)
        if record.exc_info:
            found["exception"] = self.formatException(record.exc_info)
        return json.dumps(found, default=str, ensure_ascii=False)


def timestamp(at: float) -> str:
    """UTC with milliseconds."""
    return f"{clock.wall(at)[:-1]}.{int(at % 1 * 1000):03d}Z"


def announce(verbose: bool, as_json: bool) -> None:
    """Processes that this one starts inherit these settings."""
    words = [word for word, wanted in (("verbose", verbose), ("json", as_json)) if wanted]
    if words:
        os.environ[VARIABLE] = ",".join(words)


def configure(
    prefix: str = "flegel: ",
    *,
    job: str = "",
    worker: str = "",
    level: int = logging.WARNING,
    everything: bool = False,
    stream: IO[str] | None = None,
) -> None:
    """Send records to standard error. `everything`: also those of other loggers, from INFO on; this process is ours.

    `level` is that of `flegel.*` unless the environment says `verbose`, which is DEBUG.
    """
    words = os.environ.get(VARIABLE, "").split(",")
    verbose, as_json = "verbose" in words, "json" in words
    context.job, context.worker = job, worker
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonFormatter() if as_json else TextFormatter(prefix, verbose))
    handler.addFilter(context)
    handler.setLevel(logging.DEBUG if verbose else logging.INFO if everything else level)
    ours, root = logging.getLogger("flegel"), logging.getLogger()
    ours.setLevel(logging.DEBUG if verbose else level)
    target = root if everything else ours
    for old in [h for h in target.handlers if getattr(h, "of_flegel", False)]:
        target.removeHandler(old)
    handler.of_flegel = True  # type: ignore[attr-defined]
    target.addHandler(handler)
    ours.propagate = everything
    if everything:
        root.setLevel(logging.INFO)
