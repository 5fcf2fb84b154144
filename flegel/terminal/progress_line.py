"""One line that is drawn over while `flegel.run` trains in a terminal or a notebook. Never touches the job.

It appears after half a second, so that short jobs show nothing, and is removed at the end.
"""

from __future__ import annotations

import sys
from typing import IO

from flegel.job import Criteria
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.runtime import clock
from flegel.runtime.job.observers import JobEvent, JobSeen, Observer, PhaseBegan
from flegel.terminal.display import PlainDisplay, duration, figures, objective
from flegel.terminal.reporting import PhaseLine

APPEARANCE_SECONDS = 0.5
"""From the start of a job: a line that disappears sooner cannot be read."""
REDRAW_SECONDS = 0.2
"""Between two drawings of the line."""
BAR_CHARACTERS = 20
"""Of the bar itself, without figures."""
MAX_LINE_CHARACTERS = 100
"""A longer line would be wrapped by narrow terminals, and could not be drawn over."""
LEAST_SHOWN_WAITING = 0.1
"""Part of a worker's time that it waits, from which the line names it."""


def progress_stream() -> IO[str] | None:
    """Where progress is shown by default: a terminal or a notebook; None elsewhere, as in scripts whose output is a
    file."""
    if _in_notebook():
        return sys.stdout
    return sys.stderr if sys.stderr is not None and sys.stderr.isatty() else None


def _in_notebook() -> bool:
    shell = sys.modules.get("IPython")
    found = shell.get_ipython() if shell is not None and hasattr(shell, "get_ipython") else None
    return type(found).__name__ == "ZMQInteractiveShell"


class ProgressLine(Observer):
    """Plain lines where the stream cannot be drawn over."""

    def __init__(self, stream: IO[str], limits: Criteria, data: str = "rows") -> None:
        self._stream, self._limits = stream, limits
        self._can_draw_over = stream.isatty() or _in_notebook()
        self._phases = PhaseLine(stream, data, after=APPEARANCE_SECONDS)
        self._plain_display = PlainDisplay(stream)
        self._next_draw_at, self._width = clock.now() + APPEARANCE_SECONDS, 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *_: object) -> None:
        self._phases.stop()
        self._draw("")

    def see(self, event: JobEvent) -> None:
        """Redraw one line in a terminal or notebook, at most every `REDRAW_SECONDS`; elsewhere print plain lines."""
        match event:
            case PhaseBegan() if self._can_draw_over:
                self._phases.see(event)
            case JobSeen() if not self._can_draw_over:
                self._plain_display.see(event)
            case JobSeen(seen):
                self._phases.see(event)
                if seen.iteration and clock.now() >= self._next_draw_at:
                    self._next_draw_at = clock.now() + REDRAW_SECONDS
                    self._draw(line(seen, self._limits))

    def _draw(self, text: str) -> None:
        if not text and not self._width:
            return
        text = text if len(text) <= MAX_LINE_CHARACTERS else text[: MAX_LINE_CHARACTERS - 1] + "…"
        end = "" if text else "\r"
        print(f"\r{text.ljust(self._width)}{end}", end="", file=self._stream, flush=True)
        self._width = len(text)


def line(seen: JobSnapshot, limits: Criteria) -> str:
    """Progress to the nearest limit, the objective, and the worker that waits most."""
    waits = {w.id: w.wait / max(w.compute + w.wait + w.respond, 1e-12) for w in seen.workers}
    most = max(waits, key=lambda worker: waits[worker], default=None)
    waiting = (
        f"  worker {most} waits {waits[most]:.0%}" if most is not None and waits[most] >= LEAST_SHOWN_WAITING else ""
    )
    waiting = f"  {seen.waits_for}" if seen.waits_for else waiting
    done = part_done(seen, limits)
    bar = "" if done is None else f"[{'#' * round(BAR_CHARACTERS * done):<{BAR_CHARACTERS}}] {done:.0%}  "
    passes = seen.visits / seen.points if seen.points else 0.0
    return (
        f"{bar}{seen.algorithm}  objective {objective(seen)}  {figures(seen.metrics, '  ')}"
        f"round {seen.iteration}, {passes:.1f} passes, {duration(seen.seconds)}{waiting}"
    )


def part_done(seen: JobSnapshot, limits: Criteria) -> float | None:
    """How far the job is towards its nearest limit, from 0 to 1; None where only convergence ends it."""
    passes = seen.visits / seen.points if seen.points else 0.0
    reached = (
        (seen.iteration, limits.max_iterations),
        (passes, limits.max_passes),
        (seen.seconds, limits.max_seconds),
    )
    parts = [value / limit for value, limit in reached if limit]
    return min(1.0, max(parts)) if parts else None
