"""The programs of bench/: each can be imported and says what it is for, none reaches into the engine's private parts,
and what `make faults` and `make smoke` run is tried in small."""

from __future__ import annotations

import ast
import contextlib
import importlib
import io
import runpy
import signal
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bench.chaos.simulate import KINDS, some
from bench.common import suite
from bench.common.phases import PHASES, timed_phases
from bench.common.record import Bench, read
from bench.common.scripted_moves import Script, moves_of, scripted
from bench.common.scripts import choose, scripts
from bench.common.suite_runner import SuiteRunner
from bench.micro import small_jobs
from flegel import LocalCluster

ROOT = Path(__file__).resolve().parents[1]
FILES = sorted((ROOT / "bench").rglob("*.py"))
OF_TUPLES = {"_replace", "_fields", "_asdict", "_make"}
"""Public in spite of their names."""
LARGE = {"torch", "sklearn", "uvicorn", "starlette", "obstore", "ray", "faiss", "lightgbm", "matplotlib", "playwright"}
"""Packages that the tests' environment may lack."""


def dotted(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


MODULES = {dotted(path): path for path in FILES if path.name != "__init__.py"}
PROGRAMS = [name for name, path in MODULES.items() if "\nif __name__ ==" in path.read_text(encoding="utf-8")]


@contextlib.contextmanager
def lacking_packages() -> Iterator[None]:
    """What a program needs beyond the tests' environment is no fault of it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] not in LARGE:
            raise


def test_every_module_of_bench_can_be_imported() -> None:
    for name in MODULES:
        with lacking_packages():
            importlib.import_module(name)


def test_every_program_of_bench_says_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """All in this process: one interpreter for each would take a minute."""
    assert len(PROGRAMS) > 70
    for name in PROGRAMS:
        monkeypatch.setattr(sys, "argv", [name, "--help"])
        said = io.StringIO()
        with lacking_packages(), warnings.catch_warnings(), contextlib.redirect_stdout(said):
            warnings.simplefilter("ignore", RuntimeWarning)  # that it was imported before
            with pytest.raises(SystemExit) as ended:
                runpy.run_module(name, run_name="__main__")
            assert ended.value.code in (0, None), name
            assert said.getvalue().startswith("usage: "), name


@pytest.mark.parametrize("name", MODULES)
def test_benchmarks_use_public_names_only(name: str) -> None:
    """A private name may be gone tomorrow, and nobody who removes it looks here."""
    found = []
    for node in ast.walk(ast.parse(MODULES[name].read_text(encoding="utf-8"))):
        match node:
            case ast.ImportFrom(names=names) if any(_private(n.name) for n in names):
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.Attribute(value=ast.Name(id="self" | "cls")):
                pass
            case ast.Attribute(value=ast.Name(id="os"), attr="_exit"):
                pass
            case ast.Attribute(attr=attribute) if _private(attribute) and attribute not in OF_TUPLES:
                found.append(f"line {node.lineno}: {ast.unparse(node)}")
            case ast.Call(func=ast.Name(id="getattr" | "setattr" | "delattr"), args=[_, ast.Constant(str(word)), *_]):
                if _private(word):
                    found.append(f"line {node.lineno}: {ast.unparse(node)}")
    assert not found, "\n".join(found)


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def test_what_is_timed_by_name_is_public_and_put_back() -> None:
    before = [place.__dict__[name] for _, place, name in PHASES]
    assert not any(_private(name) for _, _, name in PHASES)
    with timed_phases() as seconds:
        assert seconds == {}
    assert [place.__dict__[name] for _, place, name in PHASES] == before


FORMERLY_BROKEN = (("jumping", 39), ("jumping", 46))
"""A clock that jumps by an hour under psp."""


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_of_make_faults(kind: str) -> None:
    """Seeds that no other test runs."""
    _, broken = some(kind, 246, 249)
    assert not broken


@pytest.mark.parametrize(("kind", "seed"), FORMERLY_BROKEN)
def test_seeds_that_once_broke_a_law_hold(kind: str, seed: int) -> None:
    _, broken = some(kind, seed, seed + 1)
    assert not broken


@pytest.mark.processes
def test_points_move_as_a_script_says() -> None:
    """What Table 2 measures, with few rows."""
    rows = np.random.default_rng(0).standard_normal((20_000, 4), dtype=np.float32)
    with LocalCluster(2) as cluster:
        result, watched = scripted(cluster, rows, Script(1, (0, 1, 2_000)), "sync", 120.0, k=3, rounds=60)
    assert moves_of(watched.arrivals, range(1))["points"] >= 1_800
    assert result.outcome == "limit"


@pytest.mark.processes
@pytest.mark.parametrize("figure", ["coordination", "utilization", "passes"])
def test_a_tiny_case_of_the_cheapest_figures(figure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process, and with less than `make smoke` has: most of its time is for starting interpreters."""
    tiny = suite.KMEANS._replace(settings={"k": 3}, rows=suite.rows(1_000, 1_000, 1_000))
    for case in ("KMEANS", "SWEEP"):
        monkeypatch.setattr(suite, case, tiny)
    monkeypatch.setattr(sys, "argv", [figure, "--scale", "smoke", "--out", str(tmp_path)])
    monkeypatch.setattr(suite, "_age", lambda: 0.0)  # this process has other tests behind it
    handler = signal.getsignal(signal.SIGTERM)
    try:
        importlib.import_module(f"bench.figures.{figure}").main()
    finally:
        signal.signal(signal.SIGTERM, handler)
    record = read(tmp_path / f"{figure}.json")
    assert isinstance(record, Bench) and record.charts and not record.unfinished and not record.skipped


@pytest.mark.slow
def test_one_small_case_of_every_figure(tmp_path: Path) -> None:
    """As `make smoke`."""
    chosen, said = choose(scripts(ROOT / "bench"), ["all"]), list[str]()
    assert SuiteRunner(chosen, tmp_path, {"--scale": "smoke"}, say=said.append, complete=True).run() == [], said


def test_small_jobs_never_count_the_call_that_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a long call one further one counts, of others as many as are asked for; the clock is that of the calls."""
    now, made = [0.0], {"long": 0, "short": 0}

    def call(name: str, first: float, later: float) -> str:
        made[name] += 1
        now[0] += first if made[name] == 1 else later
        return f"{name} {made[name]}"

    monkeypatch.setattr(small_jobs.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(small_jobs.time, "process_time", lambda: now[0])
    monkeypatch.setattr(small_jobs, "come_to_rest", lambda: None)
    calls = (lambda: call("long", 10.0, 5.0), lambda: call("short", 10.0, 0.5))
    (long, last), (short, _) = small_jobs.timed(calls, 3, longest=3.0)
    assert (long["median_s"], last, made["long"]) == (5.0, "long 2", 2)
    assert (short["median_s"], short["cpu_s"], made["short"]) == (0.5, 0.5, 4)


def test_a_turn_of_small_jobs_begins_when_the_threads_of_the_last_one_rest() -> None:
    used = iter([0.0, 0.3, 0.3, 0.6, 0.6, 0.6001, 0.7])
    slept: list[float] = []
    small_jobs.come_to_rest(slept.append, lambda: next(used))
    assert len(slept) == 3
