"""Options and arguments that several commands share, each described once. Decides nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from flegel.job import CLUSTER, OUTPUT, TRAINING

HyperParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="NAME=VALUE", help="A hyper-parameter as name=value; repeatable.", rich_help_panel=TRAINING
    ),
]
Label = Annotated[str | None, typer.Option(help="Label column of a file, by name or number.")]
Columns = Annotated[str | None, typer.Option(metavar="NAMES", help="Columns that are features, as in submit: a,b,c.")]
Drop = Annotated[str | None, typer.Option(metavar="NAMES", help="Columns that are left out, as in submit: a,b,c.")]
Categorical = Annotated[str, typer.Option(help="What text becomes: auto, onehot, ordinal or drop.")]
Missing = Annotated[str, typer.Option(help="What gaps become: error, drop, mean, median or indicator.")]
Format = Annotated[str | None, typer.Option(help="Format of the data: csv, tsv, parquet, svmlight, ratings, table, …")]
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
