"""`flegel simulate`: options to a comparison on a simulated cluster, shown as by `flegel compare`. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flegel.cli.bench import check_places, show_comparison
from flegel.cli.local_job import make_algorithm, open_rows
from flegel.cli.options import (
    Categorical,
    Columns,
    Drop,
    Format,
    HyperParameters,
    Label,
    Missing,
    Partition,
    Target,
    Tolerance,
    Within,
)
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.errors import UsageError
from flegel.terminal.reporting import errors_as_sentences, say

if TYPE_CHECKING:
    from flegel.compare.simulation import ClusterModel
    from flegel.machine.coordinator.observation import JobSnapshot

SECONDS_BETWEEN_LINES = 2.0  # about a long run
DEFAULT_DATA = "higgs:65536"  # to learn from where no data are named
CLUSTER_OPTIONS = (
    "workers",
    "pass_time",
    "spread",
    "drift",
    "spot",
    "latency",
    "jitter",
    "bandwidth",
    "hub",
    "racks",
    "rack_latency",
    "uplink",
    "size",
    "within",
    "tolerance",
    "repeat",
    "seed",
)  # what a recorded run has already


READING_OPTIONS = ("columns", "drop", "categorical", "missing", "format")  # a recorded run names rows, not a table


def simulate(
    context: typer.Context,
    algorithm: Annotated[
        str | None, typer.Argument(help="A built-in name or file.py:Class; with --replay that of the trace.")
    ] = None,
    workers: Annotated[int, typer.Option(help="Simulated workers, up to 200,000.")] = 1000,
    sync: Annotated[
        str, typer.Option(help="Candidates with commas between; with switches as fsp:coordination=semi.")
    ] = "fsp,bsp,ssp",
    data: Annotated[
        str, typer.Option("--data", help="Rows to learn from: a data set's name or a path; 65,536 of higgs by default.")
    ] = "",
    replay: Annotated[
        Path | None,
        typer.Option(help="Folder of a real run: simulate its workers, with their recorded speeds, under --sync."),
    ] = None,
    stragglers: Annotated[
        str,
        typer.Option(
            "--stragglers",
            "--straggler",
            help="Who is slow: 5% (eight times), 5%:4x, 5%:8x~10s (others every 10 s), 0-3:8x.",
        ),
    ] = "",
    pass_time: Annotated[
        str, typer.Option("--pass", help="What the typical worker needs for a pass over its shard.")
    ] = "1s",
    spread: Annotated[
        str, typer.Option(help="Unequal workers: equal, lognormal:0.3, uniform:0.5-2 or tiers:1x0.7+0.25x0.3.")
    ] = "equal",
    drift: Annotated[str, typer.Option(help="Speeds that wander: 0.2~10s is by 20 % every 10 s.")] = "",
    spot: Annotated[str, typer.Option(help="Workers that vanish for a while: 0.5/h:30s.")] = "",
    latency: Annotated[str, typer.Option(help="One way to the coordinator; 80us by default.")] = "",
    jitter: Annotated[str, typer.Option(help="Mean of a random addition to it.")] = "",
    bandwidth: Annotated[str, typer.Option(help="Of a worker's link, such as 1Gbit.")] = "",
    hub: Annotated[str, typer.Option(help="Of the coordinator's link, such as 10Gbit.")] = "",
    racks: Annotated[int, typer.Option(help="Racks; the coordinator stands in the first.")] = 1,
    rack_latency: Annotated[str, typer.Option(help="Additional way between racks.")] = "",
    uplink: Annotated[str, typer.Option(help="Of a rack's uplink, such as 40Gbit.")] = "",
    size: Annotated[str, typer.Option(help="Of θ and of a report, such as 64MB; the algorithm's by default.")] = "",
    learning: Annotated[
        str, typer.Option(help="real: train every row; curve: progress fitted to real training; auto: real up to 256.")
    ] = "auto",
    settings: HyperParameters = None,
    target: Target = None,
    within: Within = 0.001,
    tolerance: Tolerance = 1e-4,
    max_seconds: Annotated[float | None, typer.Option(help="Give a run up after so many virtual seconds.")] = None,
    repeat: Annotated[int, typer.Option(help="Runs of each candidate, each with another seed.")] = 1,
    seed: Annotated[int, typer.Option(help="Decides data, start, speeds and stragglers.")] = 0,
    label: Label = None,
    columns: Columns = None,
    drop: Drop = None,
    categorical: Categorical = "auto",
    missing: Missing = "error",
    format: Format = None,
    partition: Partition = "shuffle",
    json_to: Annotated[
        str | None, typer.Option("--json", help="Write everything as JSON; the same seed gives the same bytes.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for report.html, compare.json and a saved run of each candidate.")
    ] = None,
) -> None:
    """Try synchronization models on machines that you do not have, on virtual time.

    Coordinator, workers, policies, interval and balance are those of a real job; speeds, network and the
    coordinator's own work are models. For example:

        flegel simulate kmeans --workers 10000 --sync fsp,bsp,ssp --stragglers 5%

        flegel simulate kmeans --workers 64 --spread lognormal:0.5 --spot 2/h:30s --pass 10s --out runs/sim

        flegel simulate --replay runs/kmeans-higgs-001 --sync bsp,ssp

    See docs/simulate.md for what the models leave out.
    """
    with errors_as_sentences(), using(changes_outside()):
        from flegel.compare.candidate import parse_candidates
        from flegel.runtime.job import result_store

        check_places(json_to, out)
        if out is not None:
            for candidate in parse_candidates(sync):
                result_store.check_target(_run_folder(out, candidate.label))
        slow = _stragglers(stragglers)
        if replay is not None:
            _only_recorded(context)
            from flegel.compare.replay import replay as again

            chosen = make_algorithm(algorithm, settings) if algorithm else None
            found, held = again(
                replay,
                sync,
                algorithm=chosen,
                data=data,
                label=label,
                partition=partition,
                straggler=slow,
                learning="real" if learning == "auto" else learning,
                target=target,
                max_seconds=max_seconds,
                log=say,
                watch=_watch,
            )
        else:
            from flegel.compare.comparison import in_memory
            from flegel.compare.simulation import SimulationSettings, simulation_runner

            if algorithm is None:
                raise UsageError("Name an algorithm, such as kmeans, or a recorded run with --replay FOLDER.")
            model = _cluster_model(
                pass_time,
                spread,
                drift,
                spot,
                latency,
                jitter,
                bandwidth,
                hub,
                racks,
                rack_latency,
                uplink,
                size,
                learning,
            )
            chosen = make_algorithm(algorithm, settings)
            rows = in_memory(
                open_rows(
                    chosen,
                    data or DEFAULT_DATA,
                    label=label,
                    columns=columns,
                    drop=drop,
                    categorical=categorical,
                    missing=missing,
                    format=format,
                )
            )
            held = simulation_runner(
                SimulationSettings(
                    algorithm=chosen,
                    data=rows,
                    candidates=parse_candidates(sync),
                    workers=workers,
                    repeat=repeat,
                    straggler=slow,
                    target=target,
                    within=within,
                    tolerance=tolerance,
                    max_seconds=max_seconds,
                    seed=seed,
                    partition=partition,
                    log=say,
                    model=model,
                    watch=_watch,
                    title=f"{type(chosen).__name__} on {rows.name}, {workers:,} simulated workers",
                )
            )
            found = held.run()
        if out is not None:
            for name, result in held.runs.items():
                result_store.save(result, _run_folder(out, name), model=False)
        show_comparison(found, json_to, out)


def _only_recorded(context: typer.Context) -> None:
    """Speeds and network are in the trace; an option that says otherwise would have no effect, so it is refused."""
    spelled = {p.name: p.opts[0] for p in context.command.params}
    for names, what in ((CLUSTER_OPTIONS, "workers, speeds and network"), (READING_OPTIONS, "its rows")):
        for name in names:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                raise UsageError(f"--replay takes {what} from the recorded run; omit {spelled[name]}.")


def _run_folder(out: Path, candidate: str) -> Path:
    return out / "".join(c if c.isalnum() or c in "-_=." else "-" for c in candidate)


def _stragglers(text: str) -> str:
    """`5%` alone is eight times slower."""
    return ",".join(f"{part.strip()}:8x" if part.strip().endswith("%") else part for part in text.split(",") if part)


def _cluster_model(
    pass_time: str,
    spread: str,
    drift: str,
    spot: str,
    latency: str,
    jitter: str,
    bandwidth: str,
    hub: str,
    racks: int,
    rack_latency: str,
    uplink: str,
    size: str,
    learning: str,
) -> ClusterModel:
    from dataclasses import replace

    from flegel.compare.simulation import ClusterModel
    from flegel.options import parse_seconds
    from flegel.sim.coordinator_cost import MEASURED
    from flegel.sim.network import NetworkSpec
    from flegel.sim.speeds import Speeds, parse_drift, parse_spot, parse_spread

    if racks < 1:
        raise UsageError(f"--racks {racks} must be 1 or more.")
    parse_spread(spread)
    way = parse_seconds(latency) if latency else MEASURED.message
    network = NetworkSpec(
        latency=way,
        jitter=parse_seconds(jitter) if jitter else 0.0,
        racks=racks,
        bandwidth=_bytes_per_second(bandwidth),
        hub=_bytes_per_second(hub),
        uplink=_bytes_per_second(uplink),
        rack_latency=parse_seconds(rack_latency) if rack_latency else 0.0,
    )
    speeds = Speeds(spread, parse_drift(drift) if drift else None, parse_spot(spot) if spot else None)
    costs = replace(MEASURED, message=way)
    return ClusterModel(parse_seconds(pass_time), speeds, network, costs, learning, _bytes(size) if size else None)


def _bytes_per_second(text: str) -> float:
    """`1Gbit` or `125MB`, a second."""
    if not text:
        return float("inf")
    units = {"kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    return _quantity(text, units, "a bandwidth; write for instance 1Gbit or 125MB (a second)")


def _bytes(text: str) -> int:
    return int(_quantity(text, {"kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0, "": 1.0}, "a size; write for instance 64MB"))


def _quantity(text: str, units: dict[str, float], what: str) -> float:
    stripped = text.strip()
    for unit, factor in units.items():
        if stripped.endswith(unit):
            try:
                value = float(stripped[: len(stripped) - len(unit)]) * factor
            except ValueError:
                continue
            if 0 < value < float("inf"):
                return value
    raise UsageError(f"{text!r} is not {what}.")


def _watch(label: str) -> Callable[[JobSnapshot], None]:
    """A line now and then, so that nobody thinks it hangs."""
    from flegel.runtime import clock

    next_at = [clock.now() + SECONDS_BETWEEN_LINES]

    def look(seen: JobSnapshot) -> None:
        now = clock.now()
        if now >= next_at[0] and seen.iteration:
            next_at[0] = now + SECONDS_BETWEEN_LINES
            value = "–" if seen.estimate is None else f"{seen.estimate:.6g}"
            say(f"{label}: {seen.seconds:.4g} virtual seconds, {seen.iteration} updates of θ, objective {value}")

    return look
