"""The shape of the package, measured: import cycles, class names used twice, packages, numbers, messages."""

from __future__ import annotations

import ast
import builtins
import re
import tomllib
from collections import defaultdict
from pathlib import Path

import pytest

from tests.module_numbers import KINDS, all_numbers, kinds_of, numbers_of
from tests.slowest import slow_files
from tests.source_trees import nodes, parse

ROOT = Path(__file__).resolve().parents[1]
SYSTEM_ERRORS = {"OSError", "PermissionError", "ConnectionError", "TimeoutError"}
"""What a handler may name that catches errors with a number of the system."""
TOPS = ("flegel", "algorithms", "datasets")
SOURCES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "flegel" else ("flegel", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in SOURCES if path.name != "__init__.py"}


def imported_modules(path: Path) -> set[str]:
    """Modules of the package that a file names in an import, also inside functions and for types alone."""
    found: set[str] = set()
    for node in nodes(path):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
            found.add(node.module)
    return found & set(MODULES)


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """Strongly connected components of more than one node (Tarjan's algorithm)."""
    number: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        number[node] = low[node] = len(number)
        stack.append(node)
        for other in graph[node]:
            if other not in number:
                visit(other)
                low[node] = min(low[node], low[other])
            elif other in stack:
                low[node] = min(low[node], number[other])
        if low[node] == number[node]:
            at = stack.index(node)
            component = stack[at:]
            del stack[at:]
            if len(component) > 1:
                found.append(sorted(component))

    for node in graph:
        if node not in number:
            visit(node)
    return found


def test_a_cycle_is_found() -> None:
    assert cycles({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}) == [["a", "b", "c"]]
    assert cycles({"a": {"b"}, "b": set()}) == []


def test_files_do_not_import_each_other_in_a_circle() -> None:
    assert not cycles({name: imported_modules(path) for name, path in MODULES.items()})


def folder_of(module: str) -> str:
    return module.rpartition(".")[0]


def test_folders_of_data_sets_import_one_way() -> None:
    """A reader of one of them needs to know only what it stands on."""
    arrows = {
        (folder_of(name), folder_of(other))
        for name, path in MODULES.items()
        for other in imported_modules(path)
        if name.startswith("flegel.datasets.") and other.startswith("flegel.datasets.")
    }
    assert not [(a, b) for a, b in arrows if a < b and (b, a) in arrows]


def test_no_two_folders_import_each_other() -> None:
    """But with the files at the top of the package, which are foundation and face at once."""
    arrows = {(folder_of(name), folder_of(other)) for name, path in MODULES.items() for other in imported_modules(path)}
    assert not [(a, b) for a, b in arrows if a < b and (b, a) in arrows and "flegel" not in (a, b)]


MOST_LINES_OF_A_FUNCTION = 60
"""What fits on a screen."""
KERNELS_IN_ONE_LOOP = {"algorithms/kmeans/wide_kernel.py": {"build", "train"}}
"""One compiled loop over blocks of points whose steps are functions already; what is left are its buffers."""


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
        and node.name not in KERNELS_IN_ONE_LOOP.get(str(path.relative_to(ROOT)), ())
    ]
    assert not long, f"functions of more than {MOST_LINES_OF_A_FUNCTION} lines: {long}"


def test_no_class_name_is_used_twice() -> None:
    homes: dict[str, list[str]] = defaultdict(list)
    for name, path in MODULES.items():
        if name.startswith("flegel.sklearn."):
            continue  # estimators have scikit-learn's names on purpose
        for node in parse(path).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


@pytest.mark.parametrize("top", TOPS)
def test_every_package_and_its_files_are_installed(top: str) -> None:
    """A folder of data is listed as a package, too: setuptools warns at length where it is not."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["setuptools"]
    files = [path for path in (ROOT / top).rglob("*") if path.is_file() and path.parent.name != "__pycache__"]
    folders = {module_name(path.parent / "__init__.py") for path in files}
    assert folders <= set(tool["packages"]), f"pyproject.toml does not list {sorted(folders - set(tool['packages']))}"
    left_out = [
        path.relative_to(ROOT)
        for path in files
        if path.suffix != ".py"
        and not any(map(path.match, tool["package-data"].get(module_name(path.parent / "__init__.py"), [])))
    ]
    assert not left_out, f"no package-data of pyproject.toml matches {left_out}"


CLASS_NAME = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)*)[`(.]")


def test_docstrings_name_only_what_exists() -> None:
    """A class in backticks in a docstring is an identifier somewhere in the package."""
    known: set[str] = set()
    for path in SOURCES:
        for node in nodes(path):
            if isinstance(node, ast.Name):
                known.add(node.id)
            elif isinstance(node, ast.Attribute):
                known.add(node.attr)
            elif isinstance(node, ast.ClassDef | ast.FunctionDef):
                known.add(node.name)
            elif isinstance(node, ast.Import | ast.ImportFrom):
                known.update(alias.name.split(".")[-1] for alias in node.names)
    known |= set(dir(builtins))
    texts = {
        (path.relative_to(ROOT), node.value)
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    gone = sorted({(str(path), name) for path, text in texts for name in CLASS_NAME.findall(text) if name not in known})
    assert not gone


def test_files_that_are_started_first_exist() -> None:
    assert slow_files() and not [path for path in slow_files() if not (ROOT / path).is_file()]


def test_a_number_at_the_top_of_a_module_is_found_with_its_explanation() -> None:
    text = 'A, B = 1, 2.5  # seconds\nC = -(1 << 4)\n"""Bytes."""\nD = A * 3\nE = f(3)\nsmall = 4\n# ranks\nG = 4\n'
    found = numbers_of("m.py", text, ast.parse(text))
    assert [(number.name, number.explained) for number in found] == [
        ("A", True),
        ("B", True),
        ("C", True),
        ("D", False),
        ("G", True),
    ]


def test_every_number_at_the_top_of_a_module_has_a_kind() -> None:
    unsorted = [f"{number.file}: {number.name}" for number in all_numbers() if len(kinds_of(number)) != 1]
    assert not unsorted, (
        "Make a tuned number a setting of its subject (flegel/configuration), read by active(). One of another kind "
        f"goes under that kind in tests/module_numbers.toml: {unsorted}"
    )


def test_every_number_at_the_top_of_a_module_is_explained() -> None:
    silent = [f"{number.file}: {number.name}" for number in all_numbers() if not number.explained]
    assert not silent, f"Say beside each what it is and in which unit: {silent}"


def test_the_list_of_kinds_names_only_numbers_that_exist() -> None:
    known = {(number.file, number.name) for number in all_numbers()}
    listed = {
        (file, name) for about in KINDS.values() for file, names in about["files"].items() for name in names.split()
    }
    assert not listed - known, "Remove from tests/module_numbers.toml what is gone."


def told_with_its_number(handler: ast.ExceptHandler) -> bool:
    """Whether a handler of an error of the system writes it into a text as it is, "[Errno 2] …" and all."""
    named = {node.id for node in ast.walk(handler.type or handler) if isinstance(node, ast.Name)}
    if handler.name is None or handler.type is None or not SYSTEM_ERRORS & named:
        return False
    for node in (inner for statement in handler.body for inner in ast.walk(statement)):
        match node:
            case ast.FormattedValue(value=ast.Name(id=name)) if name == handler.name:
                return True
            case ast.Call(func=ast.Name(id="str"), args=[ast.Name(id=name)]) if name == handler.name:
                return True
    return False


def test_messages_say_in_words_what_the_system_refused() -> None:
    places = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in SOURCES
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler) and told_with_its_number(node)
    ]
    assert not places, f"Write in_words(error) of flegel.errors into the message: {places}"
