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

import flegel
from flegel import __version__
from flegel.cli.main import app
from tests import reference_tables

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
            words = list(lexer)
            at = words.index("--") if "--" in words else len(words)  # `flegel launch … -- submit …` shows two commands
            yield words[:at]
            if words[at + 1 :]:
                yield words[at + 1 :]


@pytest.mark.parametrize("page", [p for p in PAGES if any(True for _ in shown_commands(p))], ids=named)
def test_commands_that_pages_show_exist_with_their_options(page: Path) -> None:
    for words in shown_commands(page):
        if words[0].isupper() or words[0] == "…":
            continue  # a place for a command
        group = getattr(commands().get(words[0]), "commands", None)
        name = " ".join(words[:2]) if group and len(words) > 1 else words[0]
        assert name in commands(), f"{named(page)} shows `flegel {' '.join(words)}`; there is no such command"
        if commands()[name].context_settings.get("ignore_unknown_options"):
            continue  # its options are those of the program that it becomes
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


PAGES_WITH_TABLES = reference_tables.pages()


@pytest.mark.parametrize("page", PAGES_WITH_TABLES, ids=named)
def test_what_is_derived_from_the_code_is_up_to_date(page: Path) -> None:
    assert page.read_text(encoding="utf-8") == PAGES_WITH_TABLES[page], (
        f"{named(page)} differs from the code; run `{reference_tables.COMMAND}` to bring it up to date"
    )


MAP = ROOT / "ARCHITECTURE.md"
TOPS = ["flegel", "algorithms", "datasets", "bench", "tests"]


def folders() -> set[str]:
    """Every folder with Python files in it."""
    files = (path for top in TOPS for path in (ROOT / top).rglob("*.py"))
    return {str(path.parent.relative_to(ROOT)) for path in files}


def mapped_folders() -> dict[str, str]:
    """Every folder of the tree in ARCHITECTURE.md with its purpose. Indentation by two is one level."""
    tree = next(block for block in FENCE.findall(MAP.read_text(encoding="utf-8")) if "\nflegel/" in block)
    found: dict[str, str] = {}
    above: list[str] = []
    for line in tree.splitlines():
        entry = re.match(r"( *)((?:[\w-]+/ )*[\w-]+/)  +(\S.*)", line)
        if entry:
            above = above[: len(entry[1]) // 2]
            names = [name.rstrip("/") for name in entry[2].split()]
            found.update({"/".join([*above, name]): entry[3] for name in names})
            above.append(names[-1])
    return found


def test_the_map_has_every_folder_with_its_purpose() -> None:
    known = mapped_folders()
    missing = sorted(folders() - set(known))
    assert not missing, f"ARCHITECTURE.md does not say what {missing} are for"
    gone = sorted(name for name in known if not (ROOT / name).is_dir())
    assert not gone, f"ARCHITECTURE.md maps {gone}, which do not exist"


CODE_PAGES = [page for page in PAGES if page.name != "CHANGELOG.md" and page.parent.name != "results"]
CODE_PATH = re.compile(r"(?<![\w./-])((?:flegel|bench|tests|datasets|algorithms|packaging|docs)/[\w./-]*\w)")
DOTTED = re.compile(r"(?<![\w./-])((?:flegel|bench)(?:\.\w+)+)")
FOLDER_OF = {"flegel.algorithms": "algorithms", "flegel.datasets": "datasets"}
"""Packages that lie beside the engine."""
OUTSIDE = {"flegel/code"}
"""Folders of a user's cache, which are not paths of the project."""
FILE_ENDINGS = (".py", ".md", ".json")


def test_the_pages_name_only_files_that_exist() -> None:
    for page in CODE_PAGES:
        named_paths = set(CODE_PATH.findall(page.read_text(encoding="utf-8")))
        gone = sorted(n for n in named_paths - OUTSIDE if not (ROOT / n).exists())
        assert not gone, f"{named(page)} names {gone}, which do not exist"


def exists(dotted: str) -> bool:
    """A module, or a name that is defined in one."""
    for package, folder in FOLDER_OF.items():
        if dotted == package or dotted.startswith(f"{package}."):
            dotted = folder + dotted.removeprefix(package)
    parts = dotted.split(".")
    place = ROOT / parts[0]
    for at, part in enumerate(parts[1:], 1):
        if (place / part).is_dir():
            place /= part
        elif (file := place / f"{part}.py").is_file():
            names = parts[at + 1 :]
            return all(re.search(rf"\b{name}\b", file.read_text(encoding="utf-8")) for name in names)
        else:
            return bool(re.search(rf"\b{part}\b", (place / "__init__.py").read_text(encoding="utf-8")))
    return True


def test_the_pages_name_only_modules_classes_and_functions_that_exist() -> None:
    for page in CODE_PAGES:
        names = set(DOTTED.findall(page.read_text(encoding="utf-8")))
        gone = sorted(n for n in names if not n.endswith(FILE_ENDINGS) and not exists(n))
        assert not gone, f"{named(page)} names {gone}, which do not exist"


VARIABLE = re.compile(r"\bFLEGEL_[A-Z_]+\b")


def test_the_pages_name_only_environment_variables_that_are_read() -> None:
    sources = [path for top in TOPS for path in (ROOT / top).rglob("*.py") if path != Path(__file__).resolve()]
    known = {name for path in sources for name in VARIABLE.findall(path.read_text(encoding="utf-8"))}
    for page in CODE_PAGES:
        gone = sorted(set(VARIABLE.findall(page.read_text(encoding="utf-8"))) - known)
        assert not gone, f"{named(page)} names {gone}, which nothing reads"


LONGEST_LINE = 120


def long_lines(text: str) -> Iterator[str]:
    """Lines over the limit that could be broken: outside of code, tables and links without a blank."""
    for line in FENCE.sub("", text).splitlines():
        breakable = " " in line.strip().removeprefix("- ")[:LONGEST_LINE]
        if len(line) > LONGEST_LINE and breakable and not line.startswith(("|", "    ", "![", "<")):
            yield line


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_lines_are_wrapped(page: Path) -> None:
    found = [line[:60] for line in long_lines(page.read_text(encoding="utf-8"))]
    assert not found, f"{named(page)} has lines over {LONGEST_LINE} characters: {found}"


@pytest.mark.parametrize("line", ["word " * 30, "- item " + "word " * 30, "1. item " + "word " * 30])
def test_a_long_line_is_noticed(line: str) -> None:
    assert list(long_lines(f"# Title\n\n{line}\n"))
    assert not list(long_lines(f"```\n{line}\n```\n| {line} |\n"))


def test_the_reference_of_the_python_interface_has_every_public_name() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    assert [name for name in flegel.__all__ if not re.search(rf":: (?:flegel\.)?{name}$", page, re.MULTILINE)] == []


def test_the_chart_for_kubernetes_has_the_version_of_the_package() -> None:
    text = (ROOT / "packaging" / "helm" / "flegel" / "Chart.yaml").read_text(encoding="utf-8")
    stated = dict(re.findall(r"^(version|appVersion): \"?([^\"\n]+)", text, re.MULTILINE))
    assert stated == {"version": __version__, "appVersion": __version__}
