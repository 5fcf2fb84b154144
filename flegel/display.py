"""What a person sees while a job runs: a live table on a terminal, plain lines elsewhere. Never touches the job.

It is called from the coordinator's own loop, so it redraws at most a few times a second.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any, Protocol

from flegel.runtime import clock

if TYPE_CHECKING:
    from flegel.machine.coordinator import Coordinator
    from flegel.result import Result


class Display(Protocol):
    def __enter__(self) -> Display: ...
    def __exit__(self, *args: object) -> None: ...
    def say(self, text: str) -> None: ...
    def watch(self, machine: Coordinator) -> None: ...
    def finish(self, result: Result) -> None: ...


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


def summary(result: Result) -> list[str]:
    """The last words about a job."""
    lines = [
        f"{'converged' if result.converged else 'stopped'}: {result.reason}",
        f"objective {number(result.objective)} after {result.iterations} iterations, {duration(result.seconds)} of "
        f"training ({duration(result.load_seconds)} of loading), utilization {result.utilization:.0%}",
    ]
    if result.model:
        lines.append(f"saved to {result.model}; use it with: flegel predict {result.model} --data …")
    return lines


class _News:
    """What happened to the crew since the last look."""

    def __init__(self) -> None:
        self._told = 0

    def look(self, machine: Coordinator) -> list[str]:
        lines = []
        for incident in machine.crew.incidents[self._told :]:
            if incident.resumed is None:
                break
            self._told += 1
            anew = f", {count(incident.unvisited)} points are visited anew" if incident.unvisited else ""
            took = duration(incident.resumed - incident.at)
            lines.append(f"worker {incident.worker} {incident.why}; training went on after {took}{anew}")
        return lines


class _Rate:
    """Points a second since the last look."""

    def __init__(self) -> None:
        self._visits, self._at, self.value = 0, 0.0, 0.0

    def look(self, machine: Coordinator, now: float) -> float:
        visits = sum(w.visits for w in machine.view.workers.values())
        if self._at and now > self._at and visits > self._visits:
            self.value = (visits - self._visits) / (now - self._at)
        if visits != self._visits or not self._at:
            self._visits, self._at = visits, now
        return self.value


class PlainDisplay:
    """One line now and then: for logs, pipes and CI."""

    def __init__(self, stream: IO[str], every: float = 1.0) -> None:
        self._stream, self._every = stream, every
        self._next, self._rate, self._news = 0.0, _Rate(), _News()

    def __enter__(self) -> PlainDisplay:
        return self

    def __exit__(self, *args: object) -> None:
        pass

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def watch(self, machine: Coordinator) -> None:
        now = clock.now()
        for text in self._news.look(machine):
            self.say(text)
        if machine.phase == "loading" or not machine.trace or now < self._next:
            return
        self._next = now + self._every
        last = machine.trace[-1]
        self.say(
            f"{last.seconds:8.2f} s  iteration {last.iteration:5d}  objective {number(last.estimate)}  "
            f"{count(self._rate.look(machine, now))} points/s  interval {duration(last.interval)}"
        )

    def finish(self, result: Result) -> None:
        for line in summary(result):
            self.say(line)


class LiveDisplay:
    """A table that redraws itself: the job in a line, then a line per worker."""

    def __init__(self, stream: IO[str], every: float = 0.25) -> None:
        from rich.console import Console
        from rich.live import Live

        self._console = Console(file=stream)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        self._every, self._next, self._rate, self._news = every, 0.0, _Rate(), _News()

    def __enter__(self) -> LiveDisplay:
        self._live.__enter__()
        return self

    def __exit__(self, *args: object) -> None:
        self._live.__exit__(None, None, None)

    def say(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)

    def watch(self, machine: Coordinator) -> None:
        now = clock.now()
        for text in self._news.look(machine):
            self.say(text)
        if now < self._next:
            return
        self._next = now + self._every
        self._live.update(self._table(machine, now), refresh=True)

    def _table(self, machine: Coordinator, now: float) -> Any:
        from rich.console import Group
        from rich.table import Table

        if not machine.trace:
            loaded = len(machine.loaded)
            return f"loading: {loaded} of {len(machine.loads)} workers ready"
        last = machine.trace[-1]
        moving = f", {count(last.in_flight)} points moving" if last.in_flight else ""
        headline = (
            f"{type(machine.algorithm).__name__} under {machine.policy.name}: objective {number(last.estimate)}, "
            f"{count(self._rate.look(machine, now))} points/s, interval {duration(last.interval)}, "
            f"{last.iteration} barriers, {last.seconds:.1f} s{moving}"
        )
        table = Table(box=None)
        attributed = ("Δf",) if machine.attribute else ()
        for heading in ("worker", "points", "passes", "points/s", "computing", "waiting", "responding", *attributed):
            table.add_column(heading, justify="right")
        for w in list(machine.view.workers.values())[:40]:
            whole = max(w.compute + w.wait + w.respond, 1e-12)
            shares = (f"{part / whole:.0%}" for part in (w.compute, w.wait, w.respond))
            gain = (number(w.gain),) if machine.attribute else ()
            table.add_row(str(w.id), count(w.points), f"{w.passes:.1f}", count(w.rate), *shares, *gain)
        return Group(headline, table)

    def finish(self, result: Result) -> None:
        for line in summary(result):
            self.say(line)
