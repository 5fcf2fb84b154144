"""Compiled code in the cache runs without the compiler: the same results, and nothing that does not fit is called."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import llvmlite.binding as llvm
import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.core import code_folder, native_code, overloads
from flegel.core.entry_point import EntryPoint, described, kinds
from flegel.core.native_code import Environment, NativeCode

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="objects are read as ELF")
CPU_NAME, CPU_FEATURES = llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()
FILL = ("flegel.core.tiling", "fill_tiles")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(code_folder, "code_folder", lambda: tmp_path)
    return tmp_path


def tiles(fill: Any) -> np.ndarray:
    rows = np.arange(130.0 * 3).reshape(130, 3)
    packed = np.zeros((3, 3, 64))
    fill(rows, packed)
    assert packed[2, 1, 1] == rows[129, 1] and packed[1, 2, 5] == rows[69, 2]
    return packed


def test_code_is_kept_found_and_made_again_where_it_is_damaged(folder: Path) -> None:
    first = tiles(EntryPoint(*FILL))
    (file,) = folder.rglob("*.native")
    content = file.read_bytes()
    code = native_code.decode(content)
    assert code is not None and native_code.encode(code) == content
    found = EntryPoint(*FILL)
    found.function = lambda: pytest.fail("it is in the cache")  # type: ignore[method-assign]
    assert (tiles(found) == first).all()
    for damaged in (content[:-1], content[:90] + b"?" + content[91:], b""):
        assert native_code.decode(damaged) is None
    file.write_bytes(content[:-1])
    assert (tiles(EntryPoint(*FILL)) == first).all()
    assert file.read_bytes() == content


class Point(NamedTuple):
    x: Any
    y: Any


class Other(NamedTuple):
    x: Any
    y: Any


def arguments() -> list[Any]:
    plain, fixed = np.zeros((4, 4)), np.zeros((4, 4))
    fixed.flags.writeable = False
    arrays = [
        plain,
        fixed,
        plain[:, :2],
        np.asfortranarray(np.zeros((2, 3))),
        np.zeros(4),
        np.zeros((4, 4), np.float32),
    ]
    arrays.append(np.zeros((4, 4), ">f8"))
    return [*arrays, None, 1, 1.0, True, np.int64(1), Point(plain, 1), Other(plain, 1), Point(fixed, 1), (plain, 1)]


def test_code_is_told_apart_by_everything_that_its_types_depend_on() -> None:
    names, keys = [described((value,)) for value in arguments()], [kinds((value,)) for value in arguments()]
    assert None not in names and len(set(names)) == len(names)
    assert len(set(keys)) == len(keys)
    assert described((np.ones((4, 4)),)) == names[0] and kinds((np.ones((4, 4)),)) == keys[0]
    assert described(("text",)) is None and described(((np.zeros(1), {}),)) is None


def test_code_that_needs_more_than_can_be_given_to_it_is_not_kept(folder: Path) -> None:
    tiles(EntryPoint(*FILL))
    code = native_code.decode(next(folder.rglob("*.native")).read_bytes())
    assert code is not None
    own = code.environments[0].name
    assert native_code.encode(code._replace(environments=(Environment(own, (np.dtype("f4"), "text")),))) is not None
    assert native_code.encode(code._replace(environments=(Environment(own, (object(),)),))) is None
    assert (
        native_code.encode(code._replace(content=code.content.replace(b"PyArg_UnpackTuple", b"PyArg_NotThere___")))
        is None
    )
    assert native_code.encode(code._replace(wrapper="missing")) is None
    assert native_code.encode(NativeCode("train", (), b"not an object")) is None


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, (CPU_NAME, CPU_FEATURES)),
        ({"NUMBA_CPU_NAME": "generic"}, ("generic", "")),
        ({"NUMBA_CPU_NAME": "generic", "NUMBA_CPU_FEATURES": "+avx2"}, ("generic", "+avx2")),
        ({"NUMBA_CPU_FEATURES": "+neon"}, (CPU_NAME, "+neon")),
    ],
)
def test_code_belongs_to_the_processor_that_numba_compiles_for(
    monkeypatch: pytest.MonkeyPatch, settings: dict[str, str], expected: tuple[str, str]
) -> None:
    """An image is filled with `generic` code, which is found on every host."""
    for name in ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES", "NUMBA_ENABLE_AVX"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    assert native_code.target.__wrapped__() == expected


def test_declarations_wait_for_the_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(overloads, "_register", [])
    seen: list[Any] = []
    overloads.overload(max)(min)
    overloads.register_with(lambda function: lambda implementation: seen.append((function, implementation)))
    overloads.overload(min)(max)
    assert seen == [(max, min), (min, max)]


LARGE = {"numba", "pandas", "scipy", "rich"}
ROWS = np.random.default_rng(0).normal(size=(3_000, 6)).astype(np.float32)
PROGRAM = """
import json, sys
from tests.runtime.test_native_code import train
print(json.dumps([train(), sorted({name.split(".")[0] for name in sys.modules})]))
"""


def train() -> float:
    return flegel.run(KMeans(k=3), ROWS, workers=2, sync="bsp", max_iterations=3, processes=False).objective


def test_a_second_process_trains_without_the_compiler() -> None:
    """And without other large libraries, which take a tenth of a second each."""
    root, expected = Path(__file__).parents[2], train()
    for first in (True, False):  # this process may have compiled with another folder in force: then the first one does
        ended = subprocess.run([sys.executable, "-c", PROGRAM], cwd=root, capture_output=True, text=True)
        assert ended.returncode == 0, ended.stderr
        objective, modules = json.loads(ended.stdout)
        assert objective == expected
        if LARGE.isdisjoint(modules):
            return
        assert first, sorted(LARGE.intersection(modules))
