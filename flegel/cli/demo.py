"""`flegel demo`: one job with a slow worker, under barriers by workload and by time, and who waited for whom.

Workers sleep after every thousand points instead of computing for long, so that it looks the same on any number of
cores.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flegel.terminal.reporting import errors_as_sentences
from flegel.wording import counted

if TYPE_CHECKING:
    from flegel.compare.picture import Span
    from flegel.results.result import Result

CLUSTERS = 20  # of the points that the demo draws and trains on
WIDTH = 64  # characters for the time that a job may take
PAUSE_MS = 2.0
"""After 1,000 points, which take 0.05 ms: sixteen workers need less than one core."""


def demo(
    seconds: Annotated[float, typer.Option(help="The most that one of the two jobs may take.", min=0.5)] = 8.0,
    slow: Annotated[int, typer.Option(help="How many times slower worker 0 is.", min=1)] = 8,
    workers: Annotated[int, typer.Option(help="Worker processes; they need no cores of their own.", min=2, max=16)] = 4,
    data: Annotated[str, typer.Option(help="The rows.")] = "higgs:200000",
) -> None:
    """Train k-means twice with one slow worker, under bsp and under fsp, and show who waited; at most 20 seconds.

    All workers sleep after every 1,000 points, worker 0 longer. Under bsp all others wait for it in every pass. Under
    fsp barriers come by time, and points move to the others, until fsp has the objective that bsp reached.
    """
    with errors_as_sentences():
        import flegel
        from flegel.runtime.job.find_algorithm import find_algorithm

        chosen = find_algorithm("kmeans")(k=CLUSTERS)
        print(f"k-means on {data}, k={CLUSTERS}, {counted(workers, 'worker')}; worker 0 is {slow} times slower.")
        print("█ works   · waits for the others\n", flush=True)
        pauses = f"0:{PAUSE_MS * slow}ms/1000,1-{workers - 1}:{PAUSE_MS}ms/1000"
        options: dict[str, Any] = {"workers": workers, "straggler": pauses, "seed": 0, "max_seconds": seconds}
        waited = flegel.run(chosen, data, sync="bsp", **options)
        _show("bsp: everybody waits for the slowest", waited, seconds)
        assert waited.objective is not None
        flexible = flegel.run(chosen, data, sync="fsp", target=waited.objective, **options)
        _show("fsp: barriers by time", flexible, seconds)
        _compare(waited, flexible)


def _show(title: str, result: Result, seconds: float) -> None:
    """A lane for each worker, on the same axis of time in both jobs: who worked when, and who waited."""
    print(f"{title}: {result.seconds:.2f} s, objective {result.objective:.6g}")
    spans = [span for row in result.trace["spans"] for span in row]
    for worker in result.worker:
        drawn = lane([span for span in spans if span[0] == worker["id"]], result.seconds, seconds / WIDTH)
        busy = min(worker["compute_seconds"] / max(result.seconds, 1e-9), 1.0)
        print(f"  worker {worker['id']:2} {drawn} {busy:.0%} busy, {worker['visits']:,} visits")
    print(flush=True)


def lane(spans: Iterable[Span], length: float, step: float) -> str:
    """A character for every `step` seconds of a job of `length` seconds: whether this worker mostly waited."""
    from flegel.compare.picture import segments, shares

    parts = segments(sorted(spans, key=lambda span: span[1]))
    ended = parts[-1][1] if parts else 0.0
    slices = max(1, round(length / step))
    waited = shares([*parts, (ended, max(length, ended), "wait")], length, slices)
    return "".join("·" if wait >= 0.5 else "█" for _, _, wait in waited)


def _compare(waited: Result, flexible: Result) -> None:
    """Print how much sooner fsp reached the objective of bsp."""
    if flexible.objective is not None and waited.objective is not None and flexible.objective <= waited.objective:
        print(f"fsp had the objective of bsp after {flexible.seconds:.2f} s instead of {waited.seconds:.2f} s,")
    else:
        print(f"fsp did not reach the objective of bsp in {flexible.seconds:.2f} s,")
    visits = [sum(w["visits"] for w in r.worker) / r.seconds for r in (waited, flexible)]
    print(f"with {visits[1] / max(visits[0], 1e-9):.1f} times as many visits a second.")
    print("Next: flegel submit kmeans --data higgs, and docs/getting-started.md.")
