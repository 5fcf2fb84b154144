"""`flegel demo`: one job with a slow worker, under barriers by workload and by time, and who waited for whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from flegel.terminal.reporting import errors_as_sentences
from flegel.wording import counted

if TYPE_CHECKING:
    from flegel.results.result import Result

CLUSTERS = 20  # of the points that the demo draws and trains on
WIDTH = 48  # characters of a worker's bar


def demo(
    seconds: Annotated[float, typer.Option(help="The most that one of the two jobs may take.", min=0.5)] = 8.0,
    slow: Annotated[int, typer.Option(help="How many times slower worker 0 is.", min=1)] = 8,
    workers: Annotated[
        int | None, typer.Option(help="Worker processes; by default one for each core, 2 to 4.", min=2, max=16)
    ] = None,
    data: Annotated[str, typer.Option(help="The rows.")] = "higgs:1000000",
) -> None:
    """Train k-means twice with one slow worker, under bsp and under fsp, and show who waited; about 20 seconds.

    Worker 0 is slowed down on purpose. Under bsp all others wait for it in every pass. Under fsp barriers come by time,
    and points move to the others, until fsp has the objective that bsp reached.
    """
    with errors_as_sentences():
        import flegel
        from flegel.runtime.job.find_algorithm import find_algorithm
        from flegel.runtime.system.processors import available_processors

        workers = workers or min(max(available_processors(), 2), 4)
        chosen = find_algorithm("kmeans")(k=CLUSTERS)
        print(f"k-means on {data}, k={CLUSTERS}, {counted(workers, 'worker')}; worker 0 is {slow} times slower.\n")
        options: dict[str, Any] = {"workers": workers, "straggler": f"0:{slow}x", "seed": 0, "max_seconds": seconds}
        waited = flegel.run(chosen, data, sync="bsp", **options)
        _show("bsp: everybody waits for the slowest", waited)
        assert waited.objective is not None
        flexible = flegel.run(chosen, data, sync="fsp", target=waited.objective, **options)
        _show("fsp: barriers by time", flexible)
        _compare(waited, flexible)


def _show(title: str, result: Result) -> None:
    """A bar for each worker: what it computed, and what it waited."""
    print(f"{title}: {result.seconds:.2f} s, objective {result.objective:.6g}")
    for worker in result.worker:
        busy = min(worker["compute_seconds"] / max(result.seconds, 1e-9), 1.0)
        filled = round(busy * WIDTH)
        bar = "█" * filled + "·" * (WIDTH - filled)
        print(f"  worker {worker['id']:2} {bar} {busy:4.0%} busy, {worker['visits']:>11,} visits")
    print()


def _compare(waited: Result, flexible: Result) -> None:
    """Print how much sooner fsp reached the objective of bsp."""
    visits = [sum(w["visits"] for w in r.worker) / r.seconds for r in (waited, flexible)]
    if flexible.objective is not None and waited.objective is not None and flexible.objective <= waited.objective:
        print(f"fsp had the objective of bsp after {flexible.seconds:.2f} s instead of {waited.seconds:.2f} s,")
    else:
        print(f"fsp did not reach the objective of bsp in {flexible.seconds:.2f} s,")
    print(f"with {visits[1] / max(visits[0], 1e-9):.1f} times as many visits a second.")
    print("Next: flegel submit kmeans --data higgs, and docs/getting-started.md.")
