"""What a person sees while a job runs: a live table on a terminal, plain lines elsewhere. Never touches the job.

It is called from the coordinator's own loop, so it redraws at most a few times a second.
"""

from __future__ import annotations

import math
from typing import IO, TYPE_CHECKING, Any

from flegel.algorithm import predicts
from flegel.loading.class_source import is_built_in
from flegel.machine.coordinator.observation import FOLLOWED_AT, JobSnapshot
from flegel.plan.termination import FAILED_OUTCOMES
from flegel.runtime import clock
from flegel.runtime.job.observers import JobEvent, JobSeen, Observer, RemarkMade

if TYPE_CHECKING:
    from typing import Self

    from flegel.results.result import Result

LONG_START_SECONDS = 1.0  # below that a start gets no advice: it is short for a person
LONG_START_RATIO = 5.0  # of starting to training time, from which advice is given
WAIT_SAID_EVERY = 30.0  # seconds between two lines about one wait: a wait of ten minutes takes 20 lines


def make_display(stream: IO[str]) -> Display:
    return LiveDisplay(stream) if stream.isatty() else PlainDisplay(stream)


def number(value: float | None) -> str:
    return "–" if value is None else f"{value:.6g}"


def count(value: float) -> str:
    for size, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.0f}"


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "–"
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"


def objective(seen: JobSnapshot) -> str:
    """The objective; while points are unseen, its estimate and how large the part is that it comes from: where
    rows are sorted, such a part tells little about the others."""
    value = number(seen.estimate)
    if seen.estimate is None or not seen.unseen:
        return value
    return f"{value} (estimated from {part_seen(seen)} of the points)"


def part_seen(seen: JobSnapshot) -> str:
    """The part of the points that was visited, in words that never say all or none of them."""
    return f"{min(max(1.0 - seen.unseen / max(seen.points, 1), 0.01), 0.99):.0%}"


def figures(metrics: dict[str, float], after: str) -> str:
    """Figures beside the objective, each followed by `after`; the last one has the barrier of held-out ones."""
    known = [f"{name} {value:.4g}" for name, value in metrics.items() if name != FOLLOWED_AT]
    if FOLLOWED_AT in metrics and known:
        known[-1] += f" (iteration {metrics[FOLLOWED_AT]:.0f})"
    return "".join(f"{text}{after}" for text in known)


def ending(result: Result) -> str:
    """How the job ended: `converged` only where it did, and no word that the reason begins with anyway."""
    return (
        "converged"
        if result.converged
        else "warning: not converged"
        if result.outcome in FAILED_OUTCOMES
        else "stopped"
    )


def summary(result: Result, own_class: bool | None = None) -> list[str]:
    """What is said at the end of a job. `own_class`: the saved model holds code of the user; the result of a job that
    ran here tells it by itself."""
    lines = [
        f"{ending(result)}: {result.reason}",
        f"objective {number(result.objective)}, {figures(result.metrics, ', ')}"
        f"after {result.iterations} iterations, {duration(result.seconds)} of "
        f"training ({duration(result.load_seconds)} of loading), utilization {result.utilization:.0%}",
    ]
    lines += getattr(result, "description", [])  # figures of a job that an earlier version ran have none
    if abandoned := getattr(result, "abandoned", 0):
        lines.append(f"{abandoned} visit{'s' * (abandoned > 1)} of expensive points abandoned")
    if resting := sum(bool(worker.get("resting")) for worker in result.worker):
        lines.append(f"{resting} of {len(result.worker)} workers rested at the end: the job is faster without them")
    if result.model:
        holds_code = own_class if own_class is not None else not is_built_in(result.algorithm)
        own = " --trust-code" if holds_code else ""
        applied = f"use it with: flegel predict {result.model} --data …{own}"
        if own_class is None and not predicts(result.algorithm):
            applied = (
                f"{type(result.algorithm).__name__} defines no predict; flegel.load({result.model!r}).parameters is θ"
            )
        lines.append(f"saved to {result.model}; {applied}")
    return lines


def start_advice(seconds: float, load_seconds: float, placement: str) -> str:
    """What to do where starting took much longer than training; empty otherwise. Of jobs that `submit` runs on this
    host: a cluster and `resume` have no `--processes`."""
    if load_seconds < LONG_START_SECONDS or load_seconds < LONG_START_RATIO * seconds:
        return ""
    took = f"starting took {duration(load_seconds)} for {duration(seconds)} of training"
    if placement == "threads":
        return f"{took}: reading, and compiling, which is done once for an algorithm and a shape of data"
    return f"{took}: --processes no runs a job like this in one process, and `flegel.run` in Python keeps workers warm"


class _Incidents:
    """What happened to the workers since the last look."""

    def __init__(self) -> None:
        self._told_incidents = 0

    def look(self, seen: JobSnapshot) -> list[str]:
        """Lines about workers that were lost, joined or rested since the last look."""
        lines = []
        for incident in seen.incidents[self._told_incidents :]:
            self._told_incidents += 1
            anew = f", {count(incident.unvisited)} points are visited anew" if incident.unvisited else ""
            took = f"; training went on after {duration(incident.seconds)}" if incident.seconds > 0 else ""
            who = f"worker {incident.worker} " if incident.worker >= 0 else ""
            lines.append(f"{who}{incident.why}{took}{anew}")
        return lines


class _Announcements:
    """News about other groups, and whom this one waits for, once in `groups.wait_reported_every_seconds`."""

    def __init__(self) -> None:
        self._told_news, self._next_wait_line_at = 0, -math.inf

    def look(self, seen: JobSnapshot, now: float) -> list[str]:
        lines = list(seen.news[self._told_news :])
        self._told_news = max(self._told_news, len(seen.news))
        if seen.waits_for and now >= self._next_wait_line_at:
            self._next_wait_line_at = now + WAIT_SAID_EVERY
            lines.append(f"this group {seen.waits_for}")
        return lines


class _Rate:
    """Points a second since the last look, as text that ends in `after`; empty until two looks have shown progress."""

    def __init__(self, after: str) -> None:
        self._visits, self._at, self.value, self._text_after = 0, 0.0, 0.0, after

    def look(self, visits: int, now: float) -> str:
        if self._at and now > self._at and visits > self._visits:
            self.value = (visits - self._visits) / (now - self._at)
        if visits != self._visits or not self._at:
            self._visits, self._at = visits, now
        return f"{count(self.value)} points/s{self._text_after}" if self.value else ""


class Display(Observer):
    """What plain lines and the live table have in common: remarks, incidents, news of groups, the end."""

    def __init__(self, every: float, after_rate: str) -> None:
        self._every, self._next_draw_at = every, 0.0
        self._rate, self._incidents, self._announcements = _Rate(after_rate), _Incidents(), _Announcements()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def see(self, event: JobEvent) -> None:
        """Print remarks and incidents, and show the latest snapshot."""
        match event:
            case RemarkMade(text):
                self.say(text)
            case JobSeen(seen):
                for text in self._incidents.look(seen):
                    self.say(text)
                self.show(seen)

    def show(self, seen: JobSnapshot) -> None:
        """News and figures of a job; not the incidents of its workers."""
        now = clock.now()
        for text in self._announcements.look(seen, now):
            self.say(text)
        if now >= self._next_draw_at and self._draw(seen, now):
            self._next_draw_at = now + self._every

    def finish(self, result: Result) -> None:
        for line in summary(result):
            self.say(line)

    def say(self, text: str) -> None:
        raise NotImplementedError

    def _draw(self, seen: JobSnapshot, now: float) -> bool:
        """Show the figures; False where there is nothing new in them."""
        raise NotImplementedError


class PlainDisplay(Display):
    """One line now and then: for logs, pipes and CI."""

    def __init__(self, stream: IO[str], every: float = 1.0) -> None:
        super().__init__(every, "  ")
        self._stream, self._told_iteration = stream, 0

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _draw(self, seen: JobSnapshot, now: float) -> bool:
        """Print a line of figures, where there was a barrier since the last one; whether it was printed."""
        if seen.phase == "loading" or seen.iteration == self._told_iteration:
            return False  # without a barrier since the last line, the same figures would be said again
        self._told_iteration = seen.iteration
        self.say(
            f"{seen.seconds:8.2f} s  iteration {seen.iteration:5d}  objective {objective(seen)}  "
            f"{figures(seen.metrics, '  ')}"
            f"{self._rate.look(seen.visits, now)}interval {duration(seen.interval)}"
        )
        return True


class LiveDisplay(Display):
    """A table that redraws itself: the job in a line, then a line per worker."""

    def __init__(self, stream: IO[str], every: float = 0.25) -> None:
        from rich.console import Console
        from rich.live import Live

        super().__init__(every, ", ")
        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def _draw(self, seen: JobSnapshot, now: float) -> bool:
        self._live.update(self._table(seen, now), refresh=True)
        return True

    def _table(self, seen: JobSnapshot, now: float) -> Any:
        """The job in a line and its workers in a table; before training, how many workers have loaded their rows."""
        from rich.console import Group
        from rich.table import Table

        if not seen.workers:
            return f"loading: {seen.loaded} of {seen.loads} workers ready"
        waiting = f"; {seen.waits_for}" if seen.waits_for else ""
        moving = f", {count(seen.in_flight)} points moving" if seen.in_flight else ""
        headline = (
            f"{seen.algorithm} under {seen.policy}: objective {objective(seen)}, "
            f"{figures(seen.metrics, ', ')}"
            f"{self._rate.look(seen.visits, now)}interval {duration(seen.interval)}, "
            f"{seen.iteration} barriers, {seen.seconds:.1f} s{moving}{waiting}"
        )
        table = Table(box=None)
        attributed = ("Δf",) if seen.attribute else ()
        for heading in ("worker", "points", "passes", "points/s", "computing", "waiting", "responding", *attributed):
            table.add_column(heading, justify="right")
        for w in seen.workers:
            whole = max(w.compute + w.wait + w.respond, 1e-12)
            shares = (f"{part / whole:.0%}" for part in (w.compute, w.wait, w.respond))
            gained = (number(w.gain),) if seen.attribute else ()
            table.add_row(str(w.id), count(w.points), f"{w.passes:.1f}", count(w.rate), *shares, *gained)
        return Group(headline, table)
