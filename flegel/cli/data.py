"""`flegel data`: list, info, show, fetch, generate, path.

Only parses options and prints; the work is done in `flegel.datasets`.
"""

from __future__ import annotations

import json as json_module
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.cli import completion
from flegel.cli.options import Categorical, Categories, Columns, Drop, Format, Missing
from flegel.errors import UsageError
from flegel.terminal.reporting import errors_as_sentences

app = typer.Typer(help="Data sets by name: what there is, where it comes from, and getting it.", no_args_is_help=True)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="A data set's name; `flegel data list` shows them.",
        autocompletion=completion.data_sets,
    ),
]


def _console(stderr: bool = False) -> Any:
    """Made when it is needed: importing rich here would make `flegel --help` 20 ms slower."""
    from rich.console import Console

    return Console(stderr=stderr)


@app.command("list")
def list_sets(json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """All data sets by name."""
    from flegel.datasets.catalog.sets import ENTRIES

    infos = [entry.info() for entry in ENTRIES]
    if json:
        typer.echo(json_module.dumps(infos, indent=2))
        return
    typer.echo(f"{'name':13} {'rows':>10} {'columns':>7}  {'here':9}  suits")
    for entry, info in zip(ENTRIES, infos, strict=True):
        here = "generated" if entry.generated else "real" if info["in_cache"] else "stand-in"
        typer.echo(f"{entry.name:13} {entry.rows:>10,} {entry.columns:>7,}  {here:9}  {', '.join(entry.suits)}")
        typer.echo(f"    {entry.title}")


@app.command()
def info(name: Name, json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False) -> None:
    """Where a data set comes from, its licence, its shape, and what stands in for it."""
    from flegel.datasets.catalog.registry import entry

    with errors_as_sentences():
        found = entry(name).info()
    if json:
        typer.echo(json_module.dumps(found, indent=2))
        return
    for key, value in found.items():
        if key == "files":
            for file in value:
                _line("file", f"{file['url']} ({file['checksum'] or 'no checksum published'})")
        elif value is not None:
            _line(
                key,
                ", ".join(value) if isinstance(value, list) else f"{value:,}" if isinstance(value, int) else value,
            )


def _line(key: str, value: Any) -> None:
    _console().print(f"[bold]{key.replace('_', ' '):<12}[/bold] {value}", highlight=False, soft_wrap=True)


@app.command()
def show(
    data: Annotated[str, typer.Argument(metavar="NAME|PATH", help="A data set's name, a file, a folder or a pattern.")],
    label: Annotated[str | None, typer.Option(help="Label column, by name or number.")] = None,
    columns: Columns = None,
    drop: Drop = None,
    categorical: Categorical = "auto",
    categories: Categories = None,
    missing: Missing = "error",
    format: Format = None,
) -> None:
    """What a job would make of a table: its rows, its columns and what becomes of each. Trains nothing.

    For example:

        flegel data show penguins.csv --label species --missing drop
    """
    from flegel.datasets import open_data
    from flegel.datasets.resolve import may_be_rated
    from flegel.datasets.tables.report import plain_report
    from flegel.job import parse_names

    with errors_as_sentences():
        found = open_data(
            data,
            label=label,
            columns=parse_names(columns) if columns else None,
            drop=parse_names(drop) if drop else None,
            categorical=categorical,
            categories=parse_names(categories) if categories else None,
            missing=missing,
            format=format,
        )
        lines = found.source.report or plain_report(
            found.name, found.rows, found.columns, found.names, found.sparse, found.classes
        )
        chosen = label or columns or drop or format
        if not (chosen or found.source.report) and may_be_rated(data):
            rated = "  nmf reads them as user, item and rating; --format ratings shows how, --format table prevents"
            lines = [*lines, rated]
    for line in [*([found.note] if found.note else []), *lines]:
        typer.echo(line)


@app.command()
def fetch(name: Name) -> None:
    """Download a data set into the cache folder; goes on where an earlier try ended."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TaskID, TextColumn, TransferSpeedColumn

    from flegel.datasets.catalog.fetch import fetch_entry
    from flegel.datasets.catalog.registry import entry

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=_console(stderr=True))
    tasks: dict[str, TaskID] = {}

    def show(file: str, size: int, total: int | None) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(file)
        bar.update(tasks[file], completed=size, total=total)

    with errors_as_sentences():
        known = entry(name)
        with bar:
            folder = fetch_entry(known, show)
    typer.echo(str(folder))


@app.command()
def generate(
    name: Name,
    rows: Annotated[int | None, typer.Option(min=1, help="How many rows (ratings for `ratings`).")] = None,
    out: Annotated[Path | None, typer.Option(help="A .csv, .npy or .parquet file.")] = None,
) -> None:
    """Write a generated set, or the stand-in of a real one, to a file.

    For example:

        flegel data generate higgs --rows 100000 --out higgs.csv
    """
    from flegel.datasets.catalog.registry import entry
    from flegel.datasets.dataset import Dataset
    from flegel.datasets.export import write

    with errors_as_sentences():
        known = entry(name)
        source = known.stand_in(rows or known.default_rows)
        data = Dataset(name, source, source.rows, stand_in=not known.generated)
        path = out or Path(f"{name}-{rows or known.default_rows}{'.csv' if data.sparse else '.npy'}")
        if path.exists():
            raise UsageError(f"{path} exists already; give another --out, or remove it first.")
        write(data, path)
    if data.stand_in:
        _console(stderr=True).print(
            f"These are {data.rows:,} generated rows in the shape of {name}, not the real ones.",
            soft_wrap=True,
        )
    typer.echo(str(path))


@app.command()
def path(name: Name) -> None:
    """Where the real file of a data set lies in the cache folder; exit code 1 where it does not."""
    from flegel.datasets.catalog.registry import entry

    with errors_as_sentences():
        known = entry(name)
    found = known.real_path()
    if found is None:
        _console(stderr=True).print(
            f"{name} is not in the cache; it belongs into {known.folder()}.", highlight=False, soft_wrap=True
        )
        raise typer.Exit(1)
    typer.echo(str(found))
