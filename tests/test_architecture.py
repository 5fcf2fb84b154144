"""The shape of the code, proven by reading it: who imports whom, who may read a clock, how long a file may be."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_trees import nodes, parse

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flegel"

LAYERS = [
    {"errors", "wording"},
    {
        "configuration",
        "core",
        "algorithm",
        "declarations",
        "group_options",
        "job",
        "loading",
        "messages",
        "options",
        "server_messages",
    },
    {"sync", "plan", "params"},
    {"machine"},
    {"runtime", "sim", "results"},
    {"cluster"},
    {
        "api",
        "callbacks",
        "cli",
        "__main__",
        "compare",
        "report",
        "checks",
        "dashboard",
        "metrics",
        "sklearn",
        "terminal",
        "torch",
        "__init__",
    },
]
"""Lowest first. A module imports from its own layer or from lower ones; siblings of a layer may know each other only
where PEERS says so."""

PEERS = {
    "plan": set(),
    "params": set(),
    "sync": {"plan"},
    "sim": set(),
    "runtime": {"results"},
    "results": set(),
}
BESIDE = {"algorithms": 1, "datasets": 1}
"""Layer up to which the two folders beside the engine may reach (errors, and the records that they fill)."""

OUTSIDE_WORLD = {
    "time", "datetime", "threading", "asyncio", "concurrent", "multiprocessing", "socket", "select", "selectors",
    "zmq", "subprocess", "signal", "random", "secrets", "os", "io", "pathlib", "tempfile", "shutil",
}  # fmt: skip

FILES = sorted(PACKAGE.rglob("*.py"))
EVERYWHERE = [*FILES, *sorted((ROOT / "algorithms").rglob("*.py")), *sorted((ROOT / "datasets").rglob("*.py"))]


def checked_only(path: Path) -> set[ast.AST]:
    """Nodes inside `if TYPE_CHECKING:`, which never run."""
    guarded: set[ast.AST] = set()
    for node in nodes(path):
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING":
            guarded.update(inner for child in node.body for inner in ast.walk(child))
    return guarded


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that a file imports at run time, wherever the statement stands."""
    skipped = checked_only(path)
    for node in nodes(path):
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are written in full"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def room(path: Path) -> str:
    """The part of the engine that a file belongs to."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def level(name: str) -> int:
    return next(i for i, layer in enumerate(LAYERS) if name in layer)


def test_every_module_has_a_place_in_the_order() -> None:
    placed = set().union(*LAYERS)
    assert {room(path) for path in FILES} <= placed, "a new module needs a place in LAYERS and in ARCHITECTURE.md"


def test_the_order_is_that_of_the_page() -> None:
    """ARCHITECTURE.md shows the same layers: {a, b} ← {c} ← …"""
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("## Dependency direction")[2]
    shown = [set(layer.split(", ")) for layer in re.findall(r"\{([^}]*)\}", " ".join(text.split("\n\n")[1].split()))]
    assert shown == [layer - {"__main__", "__init__"} for layer in LAYERS]


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_point_down(path: Path) -> None:
    here = room(path)
    for line, name in imports(path):
        parts = name.split(".")
        if parts[0] != "flegel" or len(parts) < 2:
            continue
        there = parts[1]
        where = f"{path.relative_to(ROOT)}:{line} imports {name}"
        if there in BESIDE:
            assert level(here) >= level("runtime"), f"{where}; only the runtime and above know algorithms and data"
        elif there in set().union(*LAYERS) and there != here:
            assert level(there) <= level(here), f"{where}, which stands above it"
            if level(there) == level(here) and here in PEERS:
                assert there in PEERS[here], f"{where}, its sibling"


@pytest.mark.parametrize("folder", BESIDE)
def test_algorithms_and_data_know_only_the_vocabulary_of_the_engine(folder: str) -> None:
    for path in sorted((ROOT / folder).rglob("*.py")):
        for line, name in imports(path):
            parts = name.split(".")
            if parts[0] != "flegel" or parts[1] in BESIDE:
                continue
            allowed = level(parts[1]) <= BESIDE[folder]
            assert allowed, f"{path.relative_to(ROOT)}:{line} imports {name}"


@pytest.mark.parametrize("folder", ["sync", "plan", "params", "machine"])
def test_decisions_have_no_clock_no_thread_no_socket_and_no_random_numbers(folder: str) -> None:
    for path in sorted((PACKAGE / folder).rglob("*.py")):
        for line, name in imports(path):
            assert name.split(".")[0] not in OUTSIDE_WORLD, f"{path.relative_to(ROOT)}:{line} imports {name}"
        text = path.read_text(encoding="utf-8")
        assert "np.random" not in text and "default_rng" not in text, f"{path} draws random numbers"


PURE_MASTER = (
    "actions", "client_requests", "facts", "job_lifecycle", "master", "message_budget", "placement", "state", "views",
    "worker_staffing",
)  # fmt: skip
PURE_FILES = [
    *(path for folder in ("sync", "plan", "params", "machine") for path in sorted((PACKAGE / folder).rglob("*.py"))),
    *(PACKAGE / f"cluster/master/{name}.py" for name in PURE_MASTER),
    PACKAGE / "cluster/slave/coordinator_deadlines.py",
]
IMPURE = {
    "time", "datetime", "threading", "asyncio", "concurrent", "multiprocessing", "socket", "select", "selectors",
    "zmq", "subprocess", "random", "secrets",
}  # fmt: skip


def module_files(name: str) -> list[Path]:
    """The files of the package that importing this name runs: the module itself, or the package that defines it."""
    parts = name.split(".")[1:]
    for upto in range(len(parts), 0, -1):
        place = PACKAGE.joinpath(*parts[:upto])
        if place.with_suffix(".py").is_file():
            return [place.with_suffix(".py")]
        if (place / "__init__.py").is_file():
            return [place / "__init__.py"]
    return []


def test_nothing_that_decisions_import_reaches_a_clock_a_thread_a_socket_or_random_numbers() -> None:
    """Transitively: the way from a pure file to the import that is not is shown. `flegel/__init__.py` imports nothing
    before a name is used, so it is left out."""
    way: dict[Path, list[Path]] = {path: [path] for path in PURE_FILES}
    left = list(PURE_FILES)
    wrong: list[str] = []
    while left:
        path = left.pop()
        for line, name in imports(path):
            if name.split(".")[0] in IMPURE:
                shown = " → ".join(str(step.relative_to(ROOT)) for step in way[path])
                wrong.append(f"{shown}:{line} imports {name}")
            elif name.startswith("flegel."):
                for found in module_files(name):
                    if found not in way:
                        way[found] = [*way[path], found]
                        left.append(found)
    assert not wrong, "\n".join(wrong)


CLOCKS = {
    "time", "monotonic", "perf_counter", "process_time", "thread_time", "clock_gettime", "time_ns", "monotonic_ns",
    "perf_counter_ns", "sleep", "gmtime", "localtime", "now", "utcnow", "today",
}  # fmt: skip


def clock_readings(path: Path) -> Iterator[str]:
    for node in nodes(path):
        match node:
            case ast.Import(names=names):
                yield from (f"import {a.name}" for a in names if a.name in ("time", "datetime"))
            case ast.ImportFrom(module="time" | "datetime", names=names):
                yield from (f"from {node.module} import {a.name}" for a in names)
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time" | "datetime"), attr=attr)) if attr in CLOCKS:
                yield f"time.{attr}()"


def test_only_one_file_reads_a_clock() -> None:
    readers = {str(p.relative_to(PACKAGE)): found for p in FILES if (found := list(clock_readings(p)))}
    assert set(readers) == {"runtime/clock.py"}, readers


def test_nothing_is_pickled_anywhere() -> None:
    banned = {"pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib"}
    for path in EVERYWHERE:
        for line, name in imports(path):
            if path == PACKAGE / "sklearn" / "base.py" and name == "joblib":
                continue  # asks whether it runs inside one of joblib's workers; sends nothing
            assert name.split(".")[0] not in banned, f"{path.relative_to(ROOT)}:{line} imports {name}"
        for node in nodes(path):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                assert isinstance(node.value, ast.Constant) and node.value.value is False, f"{path}:{node.value.lineno}"


def test_numpy_files_are_read_without_pickle() -> None:
    for path in EVERYWHERE:
        for node in nodes(path):
            match node:
                case ast.Call(func=ast.Attribute(value=ast.Name(id="np" | "numpy"), attr="load" | "save" | "savez")):
                    given = {keyword.arg for keyword in node.keywords}
                    assert "allow_pickle" in given, f"{path.relative_to(ROOT)}:{node.lineno}: say allow_pickle=False"


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(p.relative_to(ROOT)) for p in EVERYWHERE if not ast.get_docstring(parse(p))]
    assert not silent


def test_the_engine_knows_no_algorithm_by_name() -> None:
    classes = {
        node.name
        for path in (ROOT / "algorithms").rglob("*.py")
        for node in parse(path).body
        if isinstance(node, ast.ClassDef) and any(getattr(b, "id", "") == "Algorithm" for b in node.bases)
    }
    assert classes, "there are built-in algorithms"
    for path in FILES:
        if room(path) == "sklearn":
            continue  # an estimator is the interface of one algorithm
        used = {n.id for n in nodes(path) if isinstance(n, ast.Name)}
        used |= {n.attr for n in nodes(path) if isinstance(n, ast.Attribute)}
        used |= {n.value for n in nodes(path) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
        assert not used & classes, f"{path.relative_to(ROOT)} names {used & classes}"


SAYS_NO_COMPILER = re.compile(r"imports? no compiler|without importing the compiler", re.IGNORECASE)


def test_modules_that_say_so_import_no_compiler() -> None:
    """A job whose code is in the cache starts without numba, which takes a second; all in one process, by name."""
    names = []
    for folder in (PACKAGE, ROOT / "algorithms"):
        for path in sorted(folder.rglob("*.py")):
            if SAYS_NO_COMPILER.search(ast.get_docstring(parse(path)) or ""):
                parts = path.relative_to(ROOT).with_suffix("").parts
                names.append(".".join(parts if folder is PACKAGE else ("flegel", *parts)))
    assert "flegel.algorithms.kmeans.wide" in names
    program = (
        "import importlib, sys\n"
        f"for name in {names!r}:\n"
        "    importlib.import_module(name)\n"
        "    assert 'numba' not in sys.modules, name\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
