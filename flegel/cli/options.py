"""Options and arguments that several commands share, each described once. Decides nothing."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

from flegel.cli import completion
from flegel.job import CLUSTER, DATA, OUTPUT, SYNCHRONIZATION, TRAINING

HyperParameters = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="NAME=VALUE",
        help="A hyper-parameter as name=value; repeatable.",
        rich_help_panel=TRAINING,
        autocompletion=completion.hyper_parameters,
    ),
]
Label = Annotated[str | None, typer.Option(help="Label column of a file, by name or number.", rich_help_panel=DATA)]
Columns = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Columns that are features, as in submit: a,b,c.", rich_help_panel=DATA),
]
Drop = Annotated[
    str | None,
    typer.Option(metavar="NAMES", help="Columns that are left out, as in submit: a,b,c.", rich_help_panel=DATA),
]
Categorical = Annotated[
    str, typer.Option(help="What text becomes: auto, onehot, ordinal or drop.", rich_help_panel=DATA)
]
Categories = Annotated[
    str | None,
    typer.Option(
        metavar="NAMES", help="Columns of numbers that are categories, as in submit: a,b.", rich_help_panel=DATA
    ),
]
Missing = Annotated[
    str, typer.Option(help="What gaps become: error, drop, mean, median or indicator.", rich_help_panel=DATA)
]
NewMissing = Annotated[
    str | None,
    typer.Option(
        "--missing",
        metavar="error|drop|mean|median|indicator|keep",
        help="What gaps become, in place of what they became in training.",
    ),
]
Format = Annotated[
    str | None,
    typer.Option(help="Format of the data: csv, tsv, parquet, svmlight, ratings, table, …", rich_help_panel=DATA),
]
Partition = Annotated[str, typer.Option(help="Who owns which rows, as in submit.", rich_help_panel=DATA)]
Target = Annotated[
    float | None,
    typer.Option(help="Objective to reach; 0.1 % short of what bsp converges to by default.", rich_help_panel=TRAINING),
]
Within = Annotated[
    float, typer.Option(help="How far the default target may be from what bsp finds.", rich_help_panel=TRAINING)
]
Tolerance = Annotated[
    float, typer.Option(help="When bsp has converged, for the default target.", rich_help_panel=TRAINING)
]


Published = Annotated[
    bool,
    typer.Option(
        "--published",
        help="Beside each candidate the form that its paper prints, where ours differs: fsp, fsp:published.",
        rich_help_panel=SYNCHRONIZATION,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ComparisonOptions:
    """What `flegel compare` and `flegel simulate` are both told about training and data."""

    settings: HyperParameters = None
    target: Target = None
    within: Within = 0.001
    tolerance: Tolerance = 1e-4
    label: Label = None
    columns: Columns = None
    drop: Drop = None
    categorical: Categorical = "auto"
    categories: Categories = None
    missing: Missing = "error"
    format: Format = None
    partition: Partition = "shuffle"
    published: Published = False


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
Command = TypeVar("Command", bound=Callable[..., None])


def from_record(record: Any) -> Callable[[Command], Command]:
    """The fields of a dataclass as options of a command, which takes them as `**words`. For a command with so many
    options that a list of arguments hides what it does."""

    def decorate(command: Command) -> Command:
        """Give the command a signature with one keyword for each field of the record, which is what the command line is
        built from."""
        signature, kinds = inspect.signature(command, eval_str=True), get_type_hints(record, include_extras=True)
        own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
        fields = [
            inspect.Parameter(
                field.name,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if field.default is MISSING else field.default,
                annotation=kinds[field.name],
            )
            for field in dataclasses.fields(record)
        ]
        command.__signature__ = signature.replace(parameters=[*own, *fields])  # type: ignore[attr-defined]
        command.__annotations__ = {"return": None}
        return command

    return decorate
