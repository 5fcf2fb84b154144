"""docs/results/papers.md and its summary: every figure of the papers, what they say, and what records of a run say.

Draws nothing and measures nothing: sentences of records beside the facts of `paper_figures.py`.
"""

from __future__ import annotations

import json
import shlex
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.common.paper_figures import FIGURES, PAPERS, PaperFigure
from bench.common.record import Bench, read
from flegel.compare.comparison import run_environment
from flegel.errors import StorageError

PAGE_WIDTH = 120  # letters of a line of prose in docs/
MOST_SENTENCES = 4  # of a figure on the page; its record has all of them
HEAD = """# Figures and tables of the papers, by name

`flegel bench list` names every figure and table of the five papers, what is reproduced and what differs;
`flegel bench run 004-fig7` runs one of them, `flegel bench run all` every program. This page is written by a run:
`flegel bench run all --scale {scale} --page docs/results/papers.md`. Summary: [papers.json](papers.json).

{about}
"""
ABOUT = {
    "smoke": "This run is of scale `smoke`: one small case of each figure on two cores that other programs use, "
    "too. It shows that each figure can be made, and says nothing about speed: jobs end after tens of milliseconds.",
}


def records(folder: Path) -> dict[str, Bench]:
    """The benchmarks of a folder by name; files of another format are left alone."""
    found: dict[str, Bench] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            item = read(path)
        except StorageError:
            continue
        if isinstance(item, Bench):
            found[item.name] = item
    return found


def outcome(figure: PaperFigure, record: Bench | None) -> list[str]:
    """What a run says about a figure, or why it says nothing."""
    if not figure.program:
        return []
    if record is None:
        return ["not run"]
    if record.by_figure:
        told = record.by_figure.get(figure.name, [])
    else:
        told = [text for text in record.answer if not text.startswith("The paper")]
    if told:
        return told
    if record.skipped:
        return [f"left out: {what} ({why})" for what, why in record.skipped]
    return [record.unfinished or "measured; its record has charts and tables, no sentence"]


def summary(found: Mapping[str, Bench], scale: str, command: str) -> dict[str, Any]:
    """All that the page shows of this run."""
    about = run_environment()
    return {
        "title": "Figures and tables of the papers, by name",
        "command": command,
        "commit": about.commit[:12],
        "machine": ", ".join(f"{name} {what}" for name, what in about.machine.items()),
        "scale": scale,
        "figures": {
            f.name: {
                "shows": f.shows,
                "paper": f.said,
                "run": outcome(f, found.get(f.program))[:MOST_SENTENCES],
                "differs": f.differs,
            }
            for f in FIGURES
            if f.program
        },
        "seconds": {name: round(record.seconds, 1) for name, record in found.items()},
    }


def page(made: Mapping[str, Any]) -> str:
    """The page, as Markdown."""
    scale = str(made["scale"])
    about = ABOUT.get(scale, f"This run is of scale `{scale}`.")
    about = f"Machine: {made['machine']}. {about} The last column leads to runs at length, where there are any."
    lines = [HEAD.format(scale=scale, about=textwrap.fill(about, PAGE_WIDTH))]
    for number, title in PAPERS.items():
        lines += [
            f"## {number}: {title}",
            "",
            "| name | the paper shows | the paper says | this run | differs | longer |",
        ]
        lines.append("|---|---|---|---|---|---|")
        for figure in (f for f in FIGURES if f.paper == number and f.program):
            longer = f"[{figure.page}]({figure.page}.md)" if figure.page else "–"
            facts = made["figures"][figure.name]
            told = "; ".join(text.rstrip(".") for text in facts["run"])
            cells = [f"`{figure.name}`", facts["shows"], facts["paper"] or "–", told, facts["differs"], longer]
            lines.append("| " + " | ".join(cell.replace("|", "/") for cell in cells) + " |")
        plain = [f"{f.label} ({f.shows})" for f in FIGURES if f.paper == number and not f.program]
        if plain:
            lines += ["", textwrap.fill(f"Nothing is measured in {', '.join(plain)}.", PAGE_WIDTH)]
        lines.append("")
    return "\n".join(lines).rstrip() + "\n"


def write_page(folder: Path, out: Path, scale: str) -> Path:
    """The page and, beside it, its summary, from the records of a folder."""
    command = shlex.join(["python", "-m", "bench.run_suite", *sys.argv[1:]])
    made = summary(records(folder), scale, command)
    out.with_suffix(".json").write_text(json.dumps(made, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    out.write_text(page(made), encoding="utf-8")
    return out
