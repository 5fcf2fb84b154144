"""What `--help` shows: commands by subject, and of commands with many options those that most people need.

The others are shown by `--help-all`. Decides nothing else: every option works, whether it is shown or not.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any, ClassVar, TypeVar, cast

import typer
from typer.core import TyperCommand, TyperGroup

TRAIN = "Train and use models"
LIST = "See what there is"
WRITE = "Write an algorithm"
MEASURE = "Compare, measure, simulate"
WATCH = "Watch jobs"
CLUSTER = "Run a cluster"
CLUSTER_JOBS = "Jobs of a cluster"
SUBJECTS = (TRAIN, LIST, WRITE, MEASURE, WATCH, CLUSTER, CLUSTER_JOBS)
"""Headings of `flegel --help`, in this order."""

_ALL_OPTIONS = "flegel: all options"
"""Key of the context under which a running `--help-all` is noted."""
Command = TypeVar("Command", bound=Callable[..., None])


class SubjectGroup(TyperGroup):
    """Lists its commands by subject, those of one subject in the order in which they were added."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        found: Any = super().get_command(ctx, cmd_name)
        for command in () if found is None else (found, *getattr(found, "commands", {}).values()):
            command.help = _wrapping_freely(command.help)
            _without_types_of_flags(command.get_params(typer.Context(command)))
        return found

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types_of_flags(super().get_params(ctx))

    def list_commands(self, ctx: Any) -> list[str]:
        """Typer lists groups of commands first, whatever they are about; headings come in the order of the list."""
        names = super().list_commands(ctx)
        headings = {name: getattr(self.get_command(ctx, name), "rich_help_panel", None) for name in names}
        return sorted(names, key=lambda name: _place(headings[name]))


def _wrapping_freely(text: str | None) -> str | None:
    """Paragraphs in one line each, to be broken at the width of the terminal: Typer keeps the breaks of a docstring and
    adds its own. Indented paragraphs are commands."""
    if not text:
        return text
    paragraphs = inspect.cleandoc(text).split("\n\n")
    return "\n\n".join(p if p.startswith((" ", "\b")) else " ".join(p.split("\n")) for p in paragraphs)


def _without_types_of_flags(parameters: list[Any]) -> list[Any]:
    """Some versions of Typer show `<bool>` behind an option that takes no value."""
    for each in parameters:
        if getattr(each, "is_flag", False) and each.metavar is None:
            each.metavar = ""
    return parameters


def _place(heading: Any) -> int:
    return SUBJECTS.index(heading) if heading in SUBJECTS else len(SUBJECTS)


class ShortHelpCommand(TyperCommand):
    """A command with many options. Subclasses name those that `--help` shows."""

    shown: ClassVar[frozenset[str]] = frozenset()
    """Options in their long form; arguments are always shown."""

    def format_help(self, ctx: Any, formatter: Any) -> None:
        """All options where `--help-all` asks; otherwise those in `shown`, and how many there are besides."""
        if ctx.meta.get(_ALL_OPTIONS):
            super().format_help(ctx, formatter)
            return
        with self._hidden() as count:
            self.epilog = f"{count} more options: {ctx.command_path} --help-all"
            super().format_help(ctx, formatter)

    @contextmanager
    def _hidden(self) -> Iterator[int]:
        """Inside, options that are not in `shown` are hidden; yields how many."""
        others: list[Any] = [
            option
            for option in self.params
            if option.param_type_name == "option"
            and option.name not in ("help", "help_all")
            and not self.shown & {*option.opts, *option.secondary_opts}
        ]
        for option in others:
            option.hidden = True
        try:
            yield len(others)
        finally:
            self.epilog = None
            for option in others:
                option.hidden = False


def with_help_all(command: Command) -> Command:
    """The command with the option `--help-all`, which its function does not get."""

    @functools.wraps(command)
    def without(**words: Any) -> None:
        command(**{name: value for name, value in words.items() if name != "help_all"})

    signature = inspect.signature(command, eval_str=True)
    asked = typer.Option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")
    option = inspect.Parameter(
        "help_all", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Annotated[bool, asked]
    )
    own = [p.replace(kind=p.KEYWORD_ONLY) for p in signature.parameters.values()]
    without.__signature__ = signature.replace(parameters=[*own, option])  # type: ignore[attr-defined]
    without.__annotations__ = {"return": None}
    return cast("Command", without)


def _show_all(context: typer.Context, wanted: bool) -> None:
    if wanted:
        context.meta[_ALL_OPTIONS] = True
        typer.echo(context.get_help())
        raise typer.Exit
