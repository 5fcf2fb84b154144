"""Every class of the pages and of docs/examples, by every way that a user has to train it."""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel import Algorithm, LocalCluster
from flegel.cli.main import app
from tests.models import MODELS

sys.path.append(str(Path(__file__).parent / "cluster"))
from daemon_cluster import DaemonCluster

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "docs" / "examples"
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
DEFINITION = re.compile(r"^class (\w+)\(Algorithm\):\n(?:[ \t].*\n|\n)+", re.MULTILINE)
VISIT = re.compile("def (updateDataPoint|contribution|hidden)")
ROWS = 240


def definitions(text: str) -> dict[str, str]:
    """Algorithms that are defined in full: their text by name, without comments and docstrings."""
    found = {match[1]: match[0] for match in DEFINITION.finditer(text)}
    return {name: body.strip() for name, body in found.items() if VISIT.search(body)}


EXAMPLE_OF = {name: path for path in sorted(EXAMPLES.glob("*.py")) for name in definitions(path.read_text("utf-8"))}


def one_of_each_form() -> Iterator[Any]:
    """The examples, of which commands and clusters train the first of each way to say what a visit does; others at
    night."""
    seen: set[str] = set()
    for name, path in EXAMPLE_OF.items():
        forms = VISIT.findall(definitions(path.read_text("utf-8"))[name])
        yield pytest.param(name, marks=[pytest.mark.slow] if seen.issuperset(forms) else [])
        seen.update(forms)


@cache
def of_example(name: str) -> type[Algorithm]:
    spec = importlib.util.spec_from_file_location(f"documented_{name.lower()}", EXAMPLE_OF[name])
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    found: type[Algorithm] = getattr(module, name)
    return found


def hyper(name: str) -> dict[str, int]:
    """Hyperparameters for the examples that have clusters."""
    return {"k": 3} if hasattr(of_example(name), "k") else {}


def hyper_words(name: str) -> list[str]:
    return [word for key, value in hyper(name).items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where commands are typed: with rows in a file."""
    made = tmp_path_factory.mktemp("classes")
    rng = np.random.default_rng(1)
    centres = rng.normal(scale=4.0, size=(4, 3))
    np.savetxt(made / "points.csv", centres[rng.integers(4, size=ROWS)] + rng.normal(size=(ROWS, 3)), delimiter=",")
    return made


@pytest.fixture(scope="module")
def daemons(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaemonCluster]:
    with DaemonCluster(tmp_path_factory.mktemp("daemons"), slaves=1) as cluster:
        yield cluster


def typed(folder: Path, *words: str, environment: dict[str, str] | None = None) -> str:
    """What a command prints, in this process."""
    with contextlib.chdir(folder):
        done = CliRunner().invoke(app, words, env=environment)
    assert done.exit_code == 0, f"flegel {' '.join(words)}: {done.output}"
    return done.output


def test_there_are_examples() -> None:
    assert set(EXAMPLE_OF) >= {"Spherical", "Clusters", "Directions", "Means"}


def test_classes_of_the_pages_are_those_of_the_examples() -> None:
    """So that whatever holds for the examples holds for what a reader copies from a page."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text("utf-8")):
            for name, text in definitions(block).items():
                assert name in EXAMPLE_OF, f"{page.name} defines {name}; put it into docs/examples as well"
                example = definitions(EXAMPLE_OF[name].read_text("utf-8"))[name]
                assert text == example, f"{page.name}: {name} differs from docs/examples/{EXAMPLE_OF[name].name}"


@pytest.mark.parametrize("name", EXAMPLE_OF)
def test_a_documented_class_keeps_its_promises(name: str, folder: Path) -> None:
    said = typed(folder, "check", f"{EXAMPLE_OF[name]}:{name}", *hyper_words(name))
    assert "ok  statistics conserve (float32)" in said and "interpreted" not in said


@pytest.mark.processes
@pytest.mark.parametrize("name", list(one_of_each_form()))
def test_a_documented_class_is_trained_by_a_command(name: str, folder: Path) -> None:
    words = ("submit", f"{EXAMPLE_OF[name]}:{name}", "--data", "points.csv", *hyper_words(name), "--workers", "2")
    assert f"saved to runs/{name}-points-001" in typed(folder, *words)


@pytest.mark.processes
@pytest.mark.parametrize("sync", MODELS)
@pytest.mark.parametrize("name", EXAMPLE_OF)
def test_a_documented_class_is_trained_under_every_model(
    name: str, sync: str, cluster: LocalCluster, folder: Path
) -> None:
    chosen = of_example(name)(**hyper(name))
    data = folder / "points.csv"
    result = flegel.run(chosen, str(data), sync=sync, workers=2, cluster=cluster, max_passes=4)
    blocks = hasattr(chosen, "contributions")  # operations on arrays, which nobody compiles
    assert result.kernel == ("hand-written" if blocks else "compiled") and result.iterations > 0
    assert all(np.isfinite(part).all() for part in result.parameters.values())
    assert blocks or (result.objective is not None and np.isfinite(result.objective))


@pytest.mark.processes
@pytest.mark.parametrize("name", list(one_of_each_form()))
def test_a_documented_class_is_trained_on_a_cluster(name: str, folder: Path, daemons: DaemonCluster) -> None:
    words = ("submit", f"{EXAMPLE_OF[name]}:{name}", "--data", "points.csv", *hyper_words(name), "--workers", "2")
    said = typed(folder, *words, "--out", f"{name}-cluster", environment=daemons.environment)
    assert (folder / f"{name}-cluster" / "model.npz").is_file(), said
