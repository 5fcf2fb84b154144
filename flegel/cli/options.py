"""Options and arguments that several commands share, each described once. Decides nothing."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from flegel.errors import UsageError
from flegel.job import CLUSTER, OUTPUT, TRAINING

Settings = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A hyper-parameter as name=value; repeatable.", rich_help_panel=TRAINING
    ),
]
Label = Annotated[str | None, typer.Option(help="Label column of a file, by name or number.")]
Partition = Annotated[str, typer.Option(help="Who owns which rows, as in submit.")]
Target = Annotated[
    float | None, typer.Option(help="Objective to reach; 0.1 % short of what bsp converges to by default.")
]
Within = Annotated[float, typer.Option(help="How far the default target may be from what bsp finds.")]
Tolerance = Annotated[float, typer.Option(help="When bsp has converged, for the default target.")]
MaybeMaster = Annotated[
    str | None,
    typer.Option(
        "--master",
        envvar="FLEGEL_MASTER",
        help="The cluster of this master; `local` for this host alone.",
        rich_help_panel=CLUSTER,
    ),
]
Insecure = Annotated[
    bool,
    typer.Option(
        "--insecure",
        envvar="FLEGEL_INSECURE",
        help="Without keys: everybody who can reach it may.",
        rich_help_panel=CLUSTER,
    ),
]
Verbose = Annotated[
    bool,
    typer.Option(
        "--verbose",
        "-v",
        help="Log every barrier and every decision, with time, job and worker.",
        rich_help_panel=OUTPUT,
    ),
]
LogJson = Annotated[bool, typer.Option("--log-json", help="Log as JSON, one object a line.", rich_help_panel=OUTPUT)]
DEFAULT_MASTER = "tcp://127.0.0.1:7077"
Master = Annotated[
    str,
    typer.Option(
        "--master",
        envvar="FLEGEL_MASTER",
        help="Address of the master, tcp://HOST:PORT.",
        rich_help_panel=CLUSTER,
    ),
]


def make_algorithm(word: str, settings: list[str] | None) -> Any:
    """The algorithm that a word names, with the hyper-parameters of `--set`."""
    from flegel.loading.input_files import absolute, files_of
    from flegel.runtime.job.find_algorithm import find_algorithm

    cls = find_algorithm(word)
    hyper: dict[str, str] = {}
    for setting in settings or []:
        name, equals, value = setting.partition("=")
        if not equals or not name:
            raise UsageError(f"--set {setting!r} is not of the form name=value.")
        hyper[name.strip()] = value.strip()
    markers = {name: known.file for name, known in cls.hyper_parameters().items() if known.file is not None}
    for name, path in files_of(markers, hyper).items():
        if Path(path).expanduser().exists():  # otherwise the algorithm says what is wrong with the word as it was typed
            hyper[name] = absolute(path)
    return cls(**hyper)


def start_logging(verbose: bool, as_json: bool, level: int = logging.WARNING) -> None:
    """Records of `flegel.*` go to standard error; processes that are started later do the same."""
    from flegel.runtime import logs

    logs.announce(verbose, as_json)
    logs.configure(level=level)
