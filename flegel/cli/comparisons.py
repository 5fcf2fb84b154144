"""`flegel compare` and `flegel report`: options to comparisons and pages. Decides and draws nothing."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from flegel.cli import completion
from flegel.cli.help_pages import ShortHelpCommand, with_help_all
from flegel.cli.local_job import make_algorithm, rows_as_told
from flegel.cli.options import ComparisonOptions, from_record
from flegel.errors import FlegelError, UsageError
from flegel.job import DATA, OUTPUT, SYNCHRONIZATION, TRAINING
from flegel.terminal.reporting import WORKERS_STOPPED, errors_as_sentences, say

if TYPE_CHECKING:
    from flegel.compare.record import Comparison

AlgorithmWord = Annotated[
    str, typer.Argument(help="A built-in name or file.py:Class.", autocompletion=completion.algorithms)
]
Data = Annotated[
    str, typer.Option("--data", help="A data set's name (higgs, higgs:200000) or a path.", rich_help_panel=DATA)
]
Candidates = Annotated[
    str,
    typer.Option(
        help="Candidates with commas between; with switches as fsp:coordination=centralized.",
        rich_help_panel=SYNCHRONIZATION,
    ),
]
Straggler = Annotated[
    str, typer.Option(help="Slow workers on purpose, such as 0-3:8x or 0-3:32ms/1000.", rich_help_panel=SYNCHRONIZATION)
]
Workers = Annotated[int | None, typer.Option(help="Worker processes; one a core by default.", rich_help_panel=TRAINING)]
Repeat = Annotated[int, typer.Option(help="Runs of each candidate; they take turns.", rich_help_panel=TRAINING)]
MaxSeconds = Annotated[float | None, typer.Option(help="Give a run up after so long.", rich_help_panel=TRAINING)]
Seed = Annotated[
    int, typer.Option(help="Decides initial parameters and the order of the data.", rich_help_panel=TRAINING)
]
Weight = Annotated[
    str | None, typer.Option(help="Column of the rows' weights, by name or number.", rich_help_panel=DATA)
]
Json = Annotated[
    str | None, typer.Option("--json", help="Write everything as JSON; - is standard output.", rich_help_panel=OUTPUT)
]
Out = Annotated[Path | None, typer.Option(help="Folder for report.html and compare.json.", rich_help_panel=OUTPUT)]


@dataclass(frozen=True, kw_only=True)
class CompareOptions(ComparisonOptions):
    """The options of `flegel compare`, as they were typed."""

    algorithm: AlgorithmWord
    data: Data
    sync: Candidates = "bsp,bsp-mini,ssp,asp,fsp-binary,fsp,psp"
    straggler: Straggler = ""
    workers: Workers = None
    repeat: Repeat = 3
    max_seconds: MaxSeconds = None
    seed: Seed = 0
    weight: Weight = None
    json_to: Json = None
    out: Out = None


class CompareCommand(ShortHelpCommand):
    """`flegel compare`."""

    shown = frozenset(
        {
            "--data",
            "--label",
            "--set",
            "--sync",
            "--straggler",
            "--workers",
            "--repeat",
            "--target",
            "--max-seconds",
            "--out",
        }
    )


@with_help_all
@from_record(CompareOptions)
def compare(**words: Any) -> None:
    """Compare synchronization models: same data, same start, same target, taking turns.

    For example:

        flegel compare kmeans --data higgs --sync bsp,fsp,psp --straggler 0:8x --workers 4 --out runs/compare
    """
    options = CompareOptions(**words)
    with errors_as_sentences(WORKERS_STOPPED):
        from flegel.compare import compare as run_comparison
        from flegel.compare.candidate import parse_candidates

        check_places(options.json_to, options.out)
        chosen = make_algorithm(options.algorithm, options.settings)
        rows = rows_as_told(chosen, options.data, options)
        found = run_comparison(
            chosen,
            rows,
            parse_candidates(options.sync, options.published),
            workers=options.workers,
            repeat=options.repeat,
            straggler=options.straggler,
            target=options.target,
            within=options.within,
            tolerance=options.tolerance,
            max_seconds=options.max_seconds,
            seed=options.seed,
            partition=options.partition,
            log=say,
            command=_command(),
        )
        show_comparison(found, options.json_to, options.out)
        if all(attempt.outcome == "failed" for attempt in found.attempts):
            raise FlegelError(f"Every run failed, the last one so: {found.attempts[-1].reason}")


def report(
    sources: Annotated[
        list[Path], typer.Argument(metavar="RESULT…", help="Folders of saved runs, JSON of results or comparisons.")
    ],
    out: Annotated[Path, typer.Option(help="The HTML file to write.")] = Path("report.html"),
    title: Annotated[str, typer.Option(help="Headline of the page.")] = "",
) -> None:
    """Make one HTML page, which needs nothing else, from saved runs and comparisons.

    For example:

        flegel report runs/kmeans-higgs-001 --out report.html

        flegel report runs/compare/compare.json runs/simulated/compare.json --title "Two clusters"
    """
    with errors_as_sentences():
        from flegel.report.write import load, render, save

        print(save(render([load(path) for path in sources], title), out))


def bench(
    words: Annotated[list[str] | None, typer.Argument(help="list, run NAME…, or report [DIR].")] = None,
    suite: Annotated[
        Path | None, typer.Option("--suite", envvar="FLEGEL_BENCH", help="The folder bench of a checkout of Flegel.")
    ] = None,
) -> None:
    """Run the benchmarks of a checkout: every figure and table of the papers by name.

    For example:

        flegel bench list

        flegel bench run 004-fig7 002-table2 --scale small --out runs/bench

        flegel bench run all --scale smoke

    Options of run: --scale smoke, laptop, small (default) or paper; --workers N (one a core); --repeat N runs of each
    candidate; --seed N; --only ALGORITHM,…; --budget SECONDS for everything; --out DIR (runs/bench); --page FILE of
    all figures. Options of report: --out FILE, --title TEXT.
    """
    with errors_as_sentences():
        _run_in_checkout(suite_folder(suite), *(words or []))


def suite_folder(given: Path | None = None) -> Path:
    """Where the suite lies: as told, or beside the package in a checkout. Its programs are run, so one that happens to
    lie in the current folder does not count."""
    import flegel

    place = given if given is not None else Path(flegel.__file__).resolve().parents[1] / "bench"
    if (place / "run_suite.py").is_file():
        return place.resolve()
    if given is not None:
        raise UsageError(f"{given} holds no benchmark suite; give the folder bench of a checkout of Flegel.")
    raise UsageError(
        "The benchmark suite comes with a checkout of Flegel, not with the package; name its folder with --suite, or "
        "in the environment as FLEGEL_BENCH."
    )


def _run_in_checkout(suite: Path, *words: str) -> NoReturn:
    """This process becomes `python -m bench.run_suite` of the checkout: its signals and its exit code are the suite's
    own."""
    root = str(suite.parent)
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH", "")]))
    sys.stdout.flush()
    os.execve(
        sys.executable,
        [sys.executable, "-P", "-m", "bench.run_suite", *words],
        {**os.environ, "PYTHONPATH": path},
    )


def show_comparison(found: Comparison, json_to: str | None, out: Path | None) -> None:
    """Show the notes of a comparison, then a table and a verdict, or JSON; write the record and the page where files
    were asked for."""
    import msgspec

    from flegel.compare import write
    from flegel.compare.table import text, verdict
    from flegel.report.write import render, save

    for note in found.notes:
        say(f"note: {note}")
    print(msgspec.json.encode(found).decode() if json_to == "-" else f"{text(found)}\n{verdict(found)}")
    if json_to is not None and json_to != "-":
        write(found, Path(json_to))
    if out is not None:
        write(found, out / "compare.json")
        say(f"report: {save(render([found]), out / 'report.html')}")


def check_places(json_to: str | None, out: Path | None) -> None:
    """Check, before a comparison runs, that its record and its page can be written."""
    from flegel.runtime.job import result_store

    if json_to not in (None, "-"):
        result_store.check_file(json_to, "--json")  # type: ignore[arg-type]
    if out is not None:
        result_store.check_folder(out)


def _command() -> str:
    return shlex.join(["flegel", *sys.argv[1:]])
