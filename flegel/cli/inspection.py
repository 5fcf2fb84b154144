"""`flegel algorithms`, `models`, `settings`, `check`, `warm`, `version`: what there is, whether a class works.

Keeps no model.
"""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from flegel.cli import completion
from flegel.cli.local_job import make_algorithm, open_rows
from flegel.cli.options import Categorical, Categories, Columns, Drop, Format, HyperParameters, Label, Missing
from flegel.errors import UsageError
from flegel.terminal.reporting import errors_as_sentences

MAX_CHECKED_ROWS = 1000  # of given data: hooks are called point by point, and a check should take seconds


def algorithms(
    name: Annotated[
        str | None, typer.Argument(help="Show this one's hyper-parameters.", autocompletion=completion.algorithms)
    ] = None,
) -> None:
    """List the built-in algorithms, or the hyper-parameters of one (also of file.py:Class)."""
    with errors_as_sentences():
        from flegel.algorithms import BUILTINS
        from flegel.runtime.job.find_algorithm import find_algorithm

        if name is None:
            for each in BUILTINS:
                print(f"{each:8} {_summary(find_algorithm(each))}")
            return
        cls = find_algorithm(name)
        print(f"{name}: {_summary(cls)}\n")
        for parameter in cls.hyper_parameters().values():
            print(f"  --set {parameter.name}={_shown(parameter.default):14} {parameter.description}")


def _summary(cls: type) -> str:
    return (cls.__doc__ or "").strip().splitlines()[0] if cls.__doc__ else ""


def _shown(value: Any) -> str:
    return "…" if type(value) is object else str(value)


def models() -> None:
    """List the synchronization models."""
    with errors_as_sentences():
        from flegel import sync

        for name, model in sync.models().items():
            print(f"{name:11} {model.summary}")


def settings(
    subject: Annotated[str | None, typer.Argument(help="Only those of a subject, such as interval.")] = None,
) -> None:
    """List the tuned numbers of the engine: value, unit, and what each decides.

    Values are those of a job that would start now: FLEGEL_SETTINGS counts. Change some for a job with --settings.

    For example:

        flegel settings interval

        flegel submit kmeans --data higgs --settings interval.shortest_seconds=0.001
    """
    with errors_as_sentences():
        import textwrap

        from flegel.configuration.active import DEFAULTS, all_settings, using
        from flegel.configuration.sources import changes_outside
        from flegel.errors import nearest

        subjects = list(vars(DEFAULTS))
        if subject is not None and subject not in subjects:
            raise UsageError(f"No settings are called {subject!r}{nearest(subject, subjects)}")
        print("Numbers that were chosen by measurements; most jobs need no other ones.\n")
        with using(changes_outside()) as found:
            for name, each in all_settings().items():
                owner, _, short = name.partition(".")
                if subject not in (None, owner):
                    continue
                value = getattr(getattr(found, owner), short)
                changed = f" (default {each.default:g})" if value != each.default else ""
                print(f"{name} = {value:g} {each.about.unit}{changed}")
                print(textwrap.indent(textwrap.fill(each.about.meaning, 96), "    "))


def check(
    algorithm: Annotated[
        str, typer.Argument(help="file.py:Class, or a built-in name.", autocompletion=completion.algorithms)
    ],
    settings: HyperParameters = None,
    data: Annotated[str | None, typer.Option("--data", help="Rows to check it on: networks need some.")] = None,
    label: Label = None,
    columns: Columns = None,
    drop: Drop = None,
    categorical: Categorical = "auto",
    categories: Categories = None,
    missing: Missing = "error",
    format: Format = None,
) -> None:
    """Check that an algorithm keeps its promises: block equals per-point, statistics conserve, θ serializes.

    Then train it on data as it comes (constant columns, duplicates, 1e12, one row, …); a line that begins with
    "warning" says what went wrong there, one that begins with "speed" what keeps the class slow.

    For example:

        flegel check my.py:Spherical --set k=12

        flegel check net.py:Net --data fashion-mnist
    """
    with errors_as_sentences():
        from flegel.checks.conformance import kept_promises
        from flegel.checks.hard_data import tried_tables
        from flegel.checks.speed_advice import speed_advice

        subject = make_algorithm(algorithm, settings)
        rows: tuple[Any, Any] = (None, None)
        if data is not None:
            opened = open_rows(
                subject,
                data,
                label=label,
                columns=columns,
                drop=drop,
                categorical=categorical,
                categories=categories,
                missing=missing,
                format=format,
            )
            rows = opened.load() if opened.rows <= MAX_CHECKED_ROWS else opened.sample(MAX_CHECKED_ROWS, 0)
        print(f"checking {type(subject).__name__}; compiling takes some seconds", file=sys.stderr, flush=True)
        for line in kept_promises(subject, *rows):
            print(f"ok  {line}", flush=True)
        failed = []
        for works, line in tried_tables(subject) if not subject.kernels.backend else ():
            if works:
                print(f"ok  {line}", flush=True)
            else:
                failed.append(line)
        for line in failed:
            print(f"warning  {line}", flush=True)
        for line in speed_advice(subject):
            print(f"speed  {line}")


def warm(
    names: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[ALGORITHM]...",
            help="Built-in names or file.py:Class; all by default.",
            autocompletion=completion.algorithms,
        ),
    ] = None,
    settings: HyperParameters = None,
    dtype: Annotated[str | None, typer.Option(help="float32 or float64; both by default.")] = None,
    weights: Annotated[bool, typer.Option("--weights", help="Also for rows with weights.")] = False,
) -> None:
    """Compile kernels now, into the cache, so that the first job starts at once; for images, too.

    Code is kept by its content and by the processor, in `~/.cache/flegel` or where FLEGEL_CACHE says: what is there is
    not compiled again.

    For example:

        flegel warm kmeans gmm

        flegel warm kmeans --set k=20 --dtype float32
    """
    with errors_as_sentences():
        from flegel.runtime.job import warm_code

        if dtype not in (None, *warm_code.DTYPES):
            raise UsageError(f"--dtype {dtype} is not known; use float32 or float64.")
        dtypes = (dtype,) if dtype else warm_code.DTYPES
        for name in names or warm_code.own_kernels():
            chosen = [make_algorithm(name, settings)] if settings else warm_code.variants(name)
            for title, cases in warm_code.groups(name, chosen, dtypes, weights):
                print(f"{title}: ", end="", flush=True)
                print(f"{sum(map(warm_code.compile_case, cases)):.1f} s", flush=True)


def version() -> None:
    """Print the version."""
    from flegel import __version__

    print(__version__)
