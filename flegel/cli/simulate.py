"""`flegel simulate`: options to a comparison on a simulated cluster, shown as by `flegel compare`. Decides nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flegel.cli.comparisons import check_places, show_comparison
from flegel.cli.help_pages import ShortHelpCommand, with_help_all
from flegel.cli.local_job import make_algorithm, rows_as_told
from flegel.cli.options import ComparisonOptions, from_record
from flegel.configuration.active import using
from flegel.configuration.sources import changes_outside
from flegel.errors import UsageError
from flegel.job import DATA, OUTPUT, TRAINING
from flegel.terminal.display import objective
from flegel.terminal.reporting import errors_as_sentences, say

if TYPE_CHECKING:
    from flegel.compare.record import Comparison
    from flegel.compare.simulation import ClusterModel, SimulationRunner
    from flegel.machine.coordinator.observation import JobSnapshot

PROGRESS_LINE_SECONDS = 2.0  # between two lines about a long run
DEFAULT_DATA = "higgs:65536"  # where no data are named: enough rows for 256 workers that train for real
MACHINES, NETWORK = "Machines", "Network"
"""Headings of options."""
CLUSTER_OPTIONS = (
    "workers",
    "pass_time",
    "threads",
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


READING_OPTIONS = ("columns", "drop", "categorical", "categories", "missing", "format")
"""A recorded run names rows, not a table."""


@dataclass(frozen=True, kw_only=True)
class SimulateOptions(ComparisonOptions):
    """The options of `flegel simulate`, as they were typed."""

    algorithm: Annotated[
        str | None, typer.Argument(help="A built-in name or file.py:Class; with --replay that of the trace.")
    ] = None
    workers: Annotated[int, typer.Option(help="Simulated workers, up to 200,000.", rich_help_panel=MACHINES)] = 1000
    sync: Annotated[
        str,
        typer.Option(
            help="Candidates with commas between; with switches as fsp:coordination=semi.", rich_help_panel=TRAINING
        ),
    ] = "fsp,bsp,ssp"
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Rows to learn from: a data set's name or a path; 65,536 of higgs by default.",
            rich_help_panel=DATA,
        ),
    ] = ""
    replay: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a real run: simulate its workers, with their recorded speeds, under --sync.",
            rich_help_panel=MACHINES,
        ),
    ] = None
    stragglers: Annotated[
        str,
        typer.Option(
            "--stragglers",
            "--straggler",
            help="Who is slow: 5% (eight times), 5%:4x, 5%:8x~10s (others every 10 s), 0-3:8x.",
            rich_help_panel=MACHINES,
        ),
    ] = ""
    pass_time: Annotated[
        str,
        typer.Option(
            "--pass", help="What the typical worker needs for a pass over its shard.", rich_help_panel=MACHINES
        ),
    ] = "1s"
    threads: Annotated[
        int,
        typer.Option(
            min=1, help="Threads of each worker: teams, so many times as fast as --pass.", rich_help_panel=MACHINES
        ),
    ] = 1
    spread: Annotated[
        str,
        typer.Option(
            help="Unequal workers: equal, lognormal:0.3, uniform:0.5-2 or tiers:1x0.7+0.25x0.3.",
            rich_help_panel=MACHINES,
        ),
    ] = "equal"
    drift: Annotated[
        str, typer.Option(help="Speeds that wander: 0.2~10s is by 20 % every 10 s.", rich_help_panel=MACHINES)
    ] = ""
    spot: Annotated[str, typer.Option(help="Workers that vanish for a while: 0.5/h:30s.", rich_help_panel=MACHINES)] = (
        ""
    )
    latency: Annotated[
        str, typer.Option(help="One way to the coordinator; 80us by default.", rich_help_panel=NETWORK)
    ] = ""
    jitter: Annotated[str, typer.Option(help="Mean of a random addition to it.", rich_help_panel=NETWORK)] = ""
    bandwidth: Annotated[str, typer.Option(help="Of a worker's link, such as 1Gbit.", rich_help_panel=NETWORK)] = ""
    hub: Annotated[str, typer.Option(help="Of the coordinator's link, such as 10Gbit.", rich_help_panel=NETWORK)] = ""
    racks: Annotated[int, typer.Option(help="Racks; the coordinator stands in the first.", rich_help_panel=NETWORK)] = 1
    rack_latency: Annotated[str, typer.Option(help="Additional way between racks.", rich_help_panel=NETWORK)] = ""
    uplink: Annotated[str, typer.Option(help="Of a rack's uplink, such as 40Gbit.", rich_help_panel=NETWORK)] = ""
    size: Annotated[
        str,
        typer.Option(help="Of θ and of a report, such as 64MB; the algorithm's by default.", rich_help_panel=NETWORK),
    ] = ""
    learning: Annotated[
        str,
        typer.Option(
            help="real: train every row; curve: progress fitted to real training; auto: real up to 256.",
            rich_help_panel=TRAINING,
        ),
    ] = "auto"
    max_seconds: Annotated[
        float | None, typer.Option(help="Give a run up after so many virtual seconds.", rich_help_panel=TRAINING)
    ] = None
    repeat: Annotated[
        int, typer.Option(help="Runs of each candidate, each with another seed.", rich_help_panel=TRAINING)
    ] = 1
    seed: Annotated[int, typer.Option(help="Decides data, start, speeds and stragglers.", rich_help_panel=TRAINING)] = 0
    json_to: Annotated[
        str | None,
        typer.Option(
            "--json", help="Write everything as JSON; the same seed gives the same bytes.", rich_help_panel=OUTPUT
        ),
    ] = None
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder for report.html, compare.json and a saved run of each candidate.", rich_help_panel=OUTPUT
        ),
    ] = None


class SimulateCommand(ShortHelpCommand):
    """`flegel simulate`."""

    shown = frozenset(
        {
            "--workers",
            "--sync",
            "--data",
            "--set",
            "--replay",
            "--stragglers",
            "--spread",
            "--pass",
            "--bandwidth",
            "--out",
        }
    )


@with_help_all
@from_record(SimulateOptions)
def simulate(context: typer.Context, **words: Any) -> None:
    """Try synchronization models on machines that you do not have, on virtual time.

    Coordinator, workers, policies, interval and balance are those of a real job; speeds, network and the
    coordinator's own work are models. For example:

        flegel simulate kmeans --workers 10000 --sync fsp,bsp,ssp --stragglers 5%

        flegel simulate kmeans --workers 64 --spread lognormal:0.5 --spot 2/h:30s --pass 10s --out runs/sim

        flegel simulate --replay runs/kmeans-higgs-001 --sync bsp,ssp

    See docs/simulate.md for what the models leave out.
    """
    options = SimulateOptions(**words)
    with errors_as_sentences(), using(changes_outside()):
        from flegel.compare.candidate import parse_candidates
        from flegel.runtime.job import result_store

        check_places(options.json_to, options.out)
        if options.out is not None:
            for candidate in parse_candidates(options.sync, options.published):
                result_store.check_target(_run_folder(options.out, candidate.label))
        if options.replay is not None:
            _only_recorded(context)
            found, held = _replayed(options, options.replay)
        else:
            held = _simulated(options)
            found = held.run()
        if options.out is not None:
            for name, result in held.runs.items():
                result_store.save(result, _run_folder(options.out, name), model=False)
        show_comparison(found, options.json_to, options.out)


def _replayed(options: SimulateOptions, folder: Path) -> tuple[Comparison, SimulationRunner]:
    """The candidates on the workers and the network of a recorded run."""
    from flegel.compare.candidate import with_published
    from flegel.compare.replay import replay

    return replay(
        folder,
        with_published(options.sync) if options.published else options.sync,
        algorithm=make_algorithm(options.algorithm, options.settings) if options.algorithm else None,
        data=options.data,
        label=options.label,
        partition=options.partition,
        straggler=_stragglers(options.stragglers),
        learning="real" if options.learning == "auto" else options.learning,
        target=options.target,
        max_seconds=options.max_seconds,
        log=say,
        watch=_watch,
    )


def _simulated(options: SimulateOptions) -> SimulationRunner:
    """The candidates on machines and a network that the options describe."""
    from flegel.compare.candidate import parse_candidates
    from flegel.compare.comparison import in_memory
    from flegel.compare.simulation import SimulationSettings, simulation_runner

    if options.algorithm is None:
        raise UsageError("Name an algorithm, such as kmeans, or a recorded run with --replay FOLDER.")
    model = _cluster_model(options)
    chosen = make_algorithm(options.algorithm, options.settings)
    rows = in_memory(rows_as_told(chosen, options.data or DEFAULT_DATA, options))
    return simulation_runner(
        SimulationSettings(
            algorithm=chosen,
            data=rows,
            candidates=parse_candidates(options.sync, options.published),
            workers=options.workers,
            repeat=options.repeat,
            straggler=_stragglers(options.stragglers),
            target=options.target,
            within=options.within,
            tolerance=options.tolerance,
            max_seconds=options.max_seconds,
            seed=options.seed,
            partition=options.partition,
            log=say,
            model=model,
            watch=_watch,
            title=f"{type(chosen).__name__} on {rows.name}, {options.workers:,} simulated workers",
        )
    )


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


def _cluster_model(options: SimulateOptions) -> ClusterModel:
    """The options that describe machines and network, parsed and checked; raises `UsageError` for a wrong one."""
    from dataclasses import replace

    from flegel.compare.simulation import ClusterModel
    from flegel.options import parse_seconds
    from flegel.sim.coordinator_cost import MEASURED
    from flegel.sim.network import NetworkSpec
    from flegel.sim.speeds import Speeds, parse_drift, parse_spot, parse_spread

    if options.racks < 1:
        raise UsageError(f"--racks {options.racks} must be 1 or more.")
    parse_spread(options.spread)
    way = parse_seconds(options.latency) if options.latency else MEASURED.message
    network = NetworkSpec(
        latency=way,
        jitter=parse_seconds(options.jitter) if options.jitter else 0.0,
        racks=options.racks,
        bandwidth=_bytes_per_second(options.bandwidth),
        hub=_bytes_per_second(options.hub),
        uplink=_bytes_per_second(options.uplink),
        rack_latency=parse_seconds(options.rack_latency) if options.rack_latency else 0.0,
    )
    speeds = Speeds(
        options.spread,
        parse_drift(options.drift) if options.drift else None,
        parse_spot(options.spot) if options.spot else None,
    )
    costs = replace(MEASURED, message=way)
    return ClusterModel(
        parse_seconds(options.pass_time),
        speeds,
        network,
        costs,
        options.learning,
        _bytes(options.size) if options.size else None,
        threads=options.threads,
    )


def _bytes_per_second(text: str) -> float:
    """`1Gbit` or `125MB`, a second."""
    if not text:
        return float("inf")
    units = {"kbit": 125.0, "Mbit": 125e3, "Gbit": 125e6, "kB": 1e3, "MB": 1e6, "GB": 1e9}
    return _quantity(text, units, "a bandwidth; write for instance 1Gbit or 125MB (a second)")


def _bytes(text: str) -> int:
    return int(_quantity(text, {"kB": 1e3, "MB": 1e6, "GB": 1e9, "B": 1.0, "": 1.0}, "a size; write for instance 64MB"))


def _quantity(text: str, units: dict[str, float], what: str) -> float:
    """A positive number with one of these units, in the base unit; `what`: for the error, what was expected."""
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
    """Prints a line each `PROGRESS_LINE_SECONDS`, so that a long simulation does not look as if it hung."""
    from flegel.runtime import clock

    next_at = [clock.now() + PROGRESS_LINE_SECONDS]

    def look(seen: JobSnapshot) -> None:
        now = clock.now()
        if now >= next_at[0] and seen.iteration:
            next_at[0] = now + PROGRESS_LINE_SECONDS
            done = f"{seen.seconds:.4g} virtual seconds, {seen.iteration} updates of θ"
            say(f"{label}: {done}, objective {objective(seen)}")

    return look
