"""The pages against the tree and the program: links lead somewhere, commands exist, and none is left out."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from flegel.cli import reference
from flegel.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
REFERENCE = ROOT / "docs" / "cli.md"
INDEX = ROOT / "docs" / "README.md"
LINK = re.compile(r"\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    """Headings as links name them."""
    titles = re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def relative_links(page: Path) -> Iterator[tuple[str, str]]:
    """Path and anchor of every link that stays inside the project."""
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            yield path, anchor


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in relative_links(page):
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{named(page)} links to {path}, which is not there"
        assert there.is_relative_to(ROOT), f"{named(page)} links to {path}, outside of the project"
        assert not anchor or anchor in anchors(there), f"{named(page)} links to #{anchor}, no heading of {there.name}"


def test_the_index_lists_every_page() -> None:
    listed = {(INDEX.parent / path).resolve() for path, _ in relative_links(INDEX)}
    missing = [named(p) for p in PAGES if p.is_relative_to(INDEX.parent) and p != INDEX and p not in listed]
    assert not missing, f"docs/README.md does not list {missing}"


@cache
def commands() -> dict[str, Any]:
    """Every command of the program by its words, such as `keys add`; groups as well."""
    found: dict[str, Any] = {}

    def walk(words: str, command: Any) -> None:
        for name, inner in getattr(command, "commands", {}).items():
            found[f"{words} {name}".strip()] = inner
            walk(f"{words} {name}".strip(), inner)

    walk("", typer.main.get_command(app))
    return found


def options(command: Any) -> list[set[str]]:
    """Each option with all its spellings."""
    return [set(p.opts + p.secondary_opts) for p in command.params if p.param_type_name == "option"]


def shown_commands(page: Path) -> Iterator[list[str]]:
    """What a page tells people to type after `flegel`, as words: in blocks line by line, and in the running text."""
    text = page.read_text(encoding="utf-8")
    blocks = [line for block in FENCE.findall(text) for line in block.splitlines()[1:]]
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    for line in blocks + spans:
        typed = re.match(r"(?:\w+\$ +)?(?:\.venv/bin/)?flegel +(\S.*)", line)
        if typed:
            lexer = shlex.shlex(typed[1].replace("\\|", "|"), posix=True, punctuation_chars=False)
            lexer.whitespace_split = True
            yield list(lexer)


@pytest.mark.parametrize("page", [p for p in PAGES if any(True for _ in shown_commands(p))], ids=named)
def test_commands_that_pages_show_exist_with_their_options(page: Path) -> None:
    for words in shown_commands(page):
        if words[0].isupper() or words[0] == "…":
            continue  # a place for a command
        group = getattr(commands().get(words[0]), "commands", None)
        name = " ".join(words[:2]) if group and len(words) > 1 else words[0]
        assert name in commands(), f"{named(page)} shows `flegel {' '.join(words)}`; there is no such command"
        known = set().union({"--help"}, *options(commands()[name]))
        used = {o for w in words for o in OPTION.findall(w.partition("=")[0]) if w.startswith(("-", "[-"))}
        assert used <= known, f"{named(page)}: `flegel {name}` has no {', '.join(sorted(used - known))}"
        bare = [w for w in words[1:] if w.endswith(".py")]
        assert not bare, f"{named(page)}: `flegel {name}` needs a class of {', '.join(bare)}, as file.py:Class"


def described(name: str) -> str:
    """What the reference says about a command: sections with it in their heading, and rows of tables that begin so."""
    mentioned = re.compile(rf"`?flegel {name}(?![\w-])")
    sections = re.split(r"^(?=## )", REFERENCE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    own = [s for s in sections if s.startswith("## ") and mentioned.search(s.splitlines()[0])]
    rows = [r for s in sections for r in s.splitlines() if r.startswith("|") and mentioned.search(r.split(" | ")[0])]
    return "\n".join(own + rows)


@pytest.mark.parametrize("name", commands())
def test_the_reference_has_every_command_with_every_option(name: str) -> None:
    text = described(name)
    assert text, f"docs/cli.md says nothing about `flegel {name}`"
    words = set(OPTION.findall(text))
    missing = [" or ".join(sorted(o)) for o in options(commands()[name]) if not o & words and "--help" not in o]
    assert not missing, f"docs/cli.md does not tell of {', '.join(missing)} of `flegel {name}`"


def test_the_reference_has_no_options_that_are_gone() -> None:
    everywhere = [typer.main.get_command(app), *commands().values()]
    known = set().union({"--help"}, *(o for command in everywhere for o in options(command)))
    told = set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", REFERENCE.read_text(encoding="utf-8")))
    assert told <= known, f"docs/cli.md tells of {', '.join(sorted(told - known))}"


@pytest.mark.parametrize("page", reference.pages(), ids=named)
def test_what_is_derived_from_the_description_of_a_job_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == reference.pages()[page], (
        f"{named(page)} differs from flegel/job.py; run `{reference.COMMAND}` to bring it up to date"
    )


MAP = ROOT / "ARCHITECTURE.md"
ROOMS = ["flegel/machine", "flegel/runtime", "flegel/cluster", "flegel/sim", "flegel/compare", "bench/chaos"]


@pytest.mark.parametrize("room", ROOMS)
def test_the_map_has_every_file(room: str) -> None:
    sections = re.split(r"^##+ ", MAP.read_text(encoding="utf-8"), flags=re.MULTILINE)
    own = next(s for s in sections if f"{room.removeprefix('flegel/')}/" in s.partition(":")[0])
    listed = {name.rpartition("/")[2] for name in re.findall(r"`([\w/]+)`", own)}
    there = {path.stem for path in (ROOT / room).glob("[!_]*.py")}
    assert there, f"{room} is no folder of code"
    assert there <= listed, f"ARCHITECTURE.md does not say what {sorted(there - listed)} of {room} are for"


def test_the_map_has_no_files_that_are_gone() -> None:
    named_files = set(re.findall(r"`([\w/]+\.py)`", MAP.read_text(encoding="utf-8")))
    gone = [n for n in named_files if "/" in n and not any((base / n).exists() for base in (ROOT, ROOT / "flegel"))]
    assert named_files and not gone, f"ARCHITECTURE.md speaks of {gone}"
