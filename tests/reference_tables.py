"""Writes what is derived from `flegel.job.Job` as text: the options in flegel/api/jobs.py, the tables of docs/cli.md.
Also the table of docs/settings.md, from `flegel.configuration`, and those of docs/metrics.md and docs/messages.md.

`python -m tests.reference_tables` brings all up to date; tests/test_docs.py fails where they are not. Changes
nothing outside of the marked parts.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from flegel.api.jobs import RESUME_OPTIONS, RUN_OPTIONS
from flegel.cli.job_options import FLAGS
from flegel.cli.main import app
from flegel.configuration.active import all_settings
from flegel.job import PANELS
from flegel.options import NamedOption
from tests.reference_figures import message_tables, metric_rows

COMMAND = "python -m tests.reference_tables"
ROOT = Path(__file__).resolve().parents[1]
MARK = "generated from flegel.job.Job"


def pages() -> dict[Path, str]:
    """Each file with generated parts, and what it should hold."""
    api, manual = ROOT / "flegel" / "api" / "jobs.py", ROOT / "docs" / "cli.md"
    records = "\n\n".join(
        [
            _record(
                "RunOptions",
                "Options of `flegel.run`; what is left out has the default of `flegel.job.Job`.",
                RUN_OPTIONS,
            ),
            _record("ResumeOptions", "Options of `flegel.resume`; what is left out stays as it was.", RESUME_OPTIONS),
        ]
    )
    text = _put(api.read_text(encoding="utf-8"), f"# {MARK}: begin\n", f"{records}\n\n", f"# {MARK}: end\n")
    table = manual.read_text(encoding="utf-8")
    for name in ("submit", "resume", "join"):
        begin, end = f"<!-- {MARK}, {name}: begin -->\n", f"<!-- {MARK}, {name}: end -->\n"
        table = _put(table, begin, "\n".join(_table(name)) + "\n", end)
    found = {api: text, manual: table}
    for name, source, lines in (
        ("settings", "flegel.configuration", _settings()),
        ("metrics", "flegel.metrics.families", metric_rows()),
        ("messages", "the classes of the messages", message_tables()),
    ):
        page = ROOT / "docs" / f"{name}.md"
        begin, end = f"<!-- generated from {source}: begin -->\n", f"<!-- generated from {source}: end -->\n"
        found[page] = _put(page.read_text(encoding="utf-8"), begin, "\n".join(lines) + "\n", end)
    return found


def _settings() -> Iterator[str]:
    """A row for each setting, by subject."""
    yield "| setting | default | unit | what it decides |"
    yield "|---|---|---|---|"
    for name, each in all_settings().items():
        yield f"| `{name}` | {each.default:g} | {_cell(each.about.unit)} | {_cell(each.about.meaning)} |"


def _put(text: str, begin: str, content: str, end: str) -> str:
    before, _, rest = text.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"there is no {begin.strip()!r} with its end")
    return f"{before}{begin}{content}{end}{after}"


def _record(name: str, text: str, options: dict[str, NamedOption]) -> str:
    fields = "".join(f"    {option.name}: {option.python_type}\n" for option in options.values())
    return f'class {name}(TypedDict, total=False):\n    """{text}"""\n\n{fields}'


def _table(command: str) -> Iterator[str]:
    """A row for each option of a command, by panel."""
    parameters = typer.main.get_command(app).commands[command].params  # type: ignore[attr-defined]
    yield "| option | meaning | default |"
    yield "|---|---|---|"
    for panel in (None, *PANELS):
        own = [p for p in parameters if getattr(p, "rich_help_panel", None) == panel and p.name != "help"]
        if own and panel is not None:
            yield f"| **{panel}** | | |"
        yield from (_row(p) for p in own)


def _row(parameter: Any) -> str:
    about = FLAGS[parameter.name].about if parameter.name in FLAGS else None
    if parameter.param_type_name == "argument":
        return f"| `{parameter.name.upper()}` | {_cell(parameter.help)} | |"
    flags = [f"{parameter.opts[0]} {parameter.metavar or ''}".strip(), *parameter.secondary_opts]
    meaning = parameter.help.rstrip(".")
    if about is not None and not about.cluster:
        meaning += "; not on a cluster"
    if about is not None and about.see:
        meaning += f"; see [{about.see.removesuffix('.md').replace('-', ' ').capitalize()}]({about.see})"
    spelled = ", ".join(f"`{_cell(flag)}`" for flag in flags)
    default = f"`{_default(parameter)}`" if _default(parameter) else ""
    return f"| {spelled} | {_cell(meaning)} | {default} |"


def _default(parameter: Any) -> str:
    """In words where the option has some; nothing where there is no default."""
    if parameter.envvar:
        return str(parameter.envvar)
    if isinstance(parameter.show_default, str):
        return parameter.show_default
    if parameter.secondary_opts and parameter.default is not None:
        return str(parameter.opts[0] if parameter.default else parameter.secondary_opts[0])
    absent = parameter.required or parameter.default is None or parameter.default is False
    return "" if absent else str(parameter.default)


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


def main() -> None:
    for path, text in pages().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
