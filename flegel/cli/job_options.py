"""The options of a job as flags of the command line, derived from `flegel.job.Job`. Runs nothing.

A command takes `**options` and is decorated; Typer then sees one parameter for each option in its place.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from flegel.cli import completion
from flegel.errors import UsageError
from flegel.job import PANELS, Job
from flegel.options import NamedOption, options_of

METAVARS = {int: "N", float: "X", str: "TEXT", bool: None}
Command = TypeVar("Command", bound=Callable[..., None])

FLAGS = {name: option for name, option in options_of(Job).items() if option.about.command_line}


def for_submit(command: Command) -> Command:
    """Every option of a job, with its default."""
    return _with_flags(command, [_flag(o, o.about.help, default_of(o)) for o in FLAGS.values()])


def for_resume(command: Command) -> Command:
    """The options that may change when a job goes on; None is unchanged."""
    return _with_flags(command, [_flag(o, o.about.resume, None) for o in FLAGS.values() if o.about.resume])


OF_TRAINING = frozenset(
    (
        "group",
        "bucket",
        "group_key",
        "outer",
        "outliers",
        "fragments",
        "quorum",
        "scale",
        "missing",
        "new_training",
        "topology",
        "servers",
        "server_load",
        "server_count",
    )
)
"""Options that `flegel join` has in another form, that the training decides, or that groups cannot have."""


def for_join(command: Command) -> Command:
    """Every option that a group chooses by itself; `every` is that of the training where it is not given."""
    chosen = [option for name, option in FLAGS.items() if name not in OF_TRAINING]
    as_trained = " By default as the training says."
    return _with_flags(
        command,
        [_flag(o, o.about.help + (as_trained if o.name == "every" else ""), default_of(o)) for o in chosen],
    )


def given(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options without those that were left out and have no default of their own."""
    return {name: value for name, value in options.items() if value is not None}


def for_cluster(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of a job on a cluster; refuses those that work on one host only."""
    for name, option in FLAGS.items():
        if not option.about.cluster and options[name] != default_of(option):
            raise UsageError(option.about.refusal or f"{option.flag} works on this host only; omit it for a cluster.")
    return {name: value for name, value in given(options).items() if FLAGS[name].about.cluster}


def for_this_host(options: Mapping[str, Any], detach: bool) -> dict[str, Any]:
    """Options of a job on this host; refuses those that only a cluster has."""
    remote = [option for option in FLAGS.values() if not option.about.local]
    if detach or any(options[option.name] != default_of(option) for option in remote):
        *most, last = ["--detach", *(option.flag for option in remote)]
        raise UsageError(f"{', '.join(most)} and {last} are for a cluster: give --master.")
    return {name: value for name, value in given(options).items() if FLAGS[name].about.local}


def default_of(option: NamedOption) -> Any:
    """On the command line. Text that is parsed later has none: None says that it was left out."""
    return None if option.about.parse is not None else option.default


def _flag(option: NamedOption, text: str, default: Any) -> inspect.Parameter:
    """The parameter that Typer reads for an option of a job, with this help text and this default."""
    import typer

    about = option.about
    shown = about.default if about.default and default is None and text == about.help else default is not None
    info = typer.Option(
        option.flags,
        help=text,
        rich_help_panel=about.panel,
        metavar=about.metavar or METAVARS[option.word_type],
        show_default=shown,
        autocompletion=completion.values_of(option.name, about.metavar),
    )
    kind = option.word_type | None if default is None else option.word_type
    return inspect.Parameter(
        option.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _with_flags(command: Command, flags: list[inspect.Parameter]) -> Command:
    """Typer reads `__signature__`, and calls the command by keyword."""
    signature = inspect.signature(command, eval_str=True)
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    required = [p for p in own if p.default is p.empty]
    optional = [p for p in own if p.default is not p.empty]
    ordered = sorted([*required, *flags, *optional], key=_panel)
    command.__signature__ = signature.replace(parameters=ordered)  # type: ignore[attr-defined]
    command.__annotations__ = {"return": None}
    return command


def _panel(parameter: inspect.Parameter) -> int:
    """Its place among the headings of `--help`; arguments come first."""
    panel = parameter.annotation.__metadata__[0].rich_help_panel
    return PANELS.index(panel) if panel is not None else -1
