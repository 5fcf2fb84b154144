"""Compiled code is found by content: an edit anywhere below a kernel is another folder; foreign code is not found."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from flegel.algorithms.kmeans.shapes import WIDE_COLUMNS, WIDE_K, kernel_sizes
from flegel.algorithms.simd.registers import group_sizes, tile_shape
from flegel.cli.main import app
from flegel.core import code_cache, code_folder, pytree
from flegel.job import Job
from flegel.runtime.backends.numba import compile_turns
from flegel.runtime.backends.numba.compile_turns import processor_time, turn
from flegel.runtime.job import warm_code
from flegel.runtime.job.prepared_job import PreparedJob
from flegel.runtime.job.request import Request, open_job_data


def forget() -> None:
    for remembered in (code_folder._text, code_folder._files, code_folder.content_key):
        remembered.cache_clear()
    code_folder._found.clear()


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working copy: a kernel, the helper that it imports, the helper's constants, and a module beside them."""
    texts = {
        "algorithms/one/kernel.py": "from flegel.algorithms.helper import add\n",
        "algorithms/helper.py": "import os\nfrom flegel.core import constants\n",
        "flegel/core/constants.py": "WIDTH = 4\n",
        "algorithms/other.py": "WIDTH = 4\n",
    }
    for name, text in texts.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(code_folder, "PACKAGE", tmp_path / "flegel")
    forget()
    yield tmp_path
    forget()


@pytest.mark.parametrize(
    ("changed", "another"),
    [
        ("algorithms/one/kernel.py", True),
        ("algorithms/helper.py", True),
        ("flegel/core/constants.py", True),
        ("algorithms/other.py", False),
    ],
)
def test_code_belongs_to_the_text_of_everything_that_went_into_it(package: Path, changed: str, another: bool) -> None:
    kernel = package / "algorithms/one/kernel.py"
    before = code_folder.content_key(kernel)
    (package / changed).write_text((package / changed).read_text() + "MORE = 1\n")
    forget()
    assert (code_folder.content_key(kernel) != before) == another


class Named:
    """Types that are called alike."""

    def __init__(self, field: str) -> None:
        self.field = field

    def __repr__(self) -> str:
        return "Point(float64, float64)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Named) and other.field == self.field

    def __hash__(self) -> int:
        return hash(self.field)


def test_code_for_other_types_of_the_same_name_and_damaged_code_are_not_found(tmp_path: Path) -> None:
    files = code_cache._Files(tmp_path, "train")
    files.save((Named("x"),), "code")
    assert files.load((Named("x"),)) == "code"
    assert files.load((Named("y"),)) is None
    for file in tmp_path.iterdir():
        file.write_bytes(b"damaged")
    assert files.load((Named("x"),)) is None


def test_only_a_few_contents_of_a_module_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_folder, "code_folder", lambda: tmp_path)
    kernel = tmp_path / "kernel.py"
    for number in range(code_cache.KEPT_CODE_FOLDERS + 3):
        kernel.write_text(f"A = {number}\n")
        forget()
        code_cache._Place(forget, str(kernel)).ensure_cache_path()
    assert len(list(tmp_path.glob("*.kernel-*"))) == code_cache.KEPT_CODE_FOLDERS + 1
    forget()


def test_whether_something_of_a_package_is_compiled(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code_folder, "code_folder", lambda: package / "cache")
    kernel = package / "algorithms/one/kernel.py"
    assert not code_folder.has_code_of(kernel.parent)
    code_folder.folder_of(kernel).mkdir(parents=True)
    assert code_folder.has_code_of(kernel.parent) and not code_folder.has_code_of(package / "algorithms")
    kernel.write_text("changed = 1\n")
    forget()
    assert not code_folder.has_code_of(kernel.parent)


def test_a_second_process_waits_for_its_turn_but_not_for_ever(tmp_path: Path) -> None:
    order = []
    with turn(tmp_path / "lock"):
        with turn(tmp_path / "lock", patience=0.05):
            order.append("patience ran out")
        order.append("first")
    with turn(tmp_path / "lock", patience=1e9):
        order.append("second")
    assert order == ["patience ran out", "first", "second"]


def test_a_compiler_that_gets_on_is_waited_for_and_one_that_stands_still_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host a kernel takes longer than patience; every process that gave up would compile it as well."""
    time, asked = [0.0], set()

    def sleep(seconds: float) -> None:
        time[0] += seconds

    def computes(pid: int) -> float:
        asked.add(pid)
        return time[0]

    monkeypatch.setattr(compile_turns, "clock", SimpleNamespace(now=lambda: time[0], sleep=sleep))
    with turn(tmp_path / "lock"), turn(tmp_path / "lock", patience=60.0, most=600.0, computed=computes):  # type: ignore[arg-type]
        assert asked == {os.getpid()} and time[0] >= 600.0
    time[0] = 0.0
    with turn(tmp_path / "lock"), turn(tmp_path / "lock", patience=60.0, most=600.0, computed=lambda pid: 7):
        assert 60.0 <= time[0] < 61.0
    assert sys.platform != "linux" or processor_time(os.getpid()) is not None
    assert processor_time(2**30) is None


def test_sweeping_k_compiles_few_shapes() -> None:
    shapes = {tile_shape("float32", k) for k in range(1, 500)}
    assert {group for _, group in shapes} == set(group_sizes()) and len(shapes) == len(group_sizes())
    for k in range(1, 500):
        _, group = tile_shape("float64", k)
        assert -(-k // group) * group < 1.6 * k + 3, "few rows are fillers"


def test_warm_compiles_each_kernel_of_an_algorithm(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[warm_code.Case] = []
    monkeypatch.setattr(warm_code, "compile_case", lambda case: seen.append(case) or 0.0)
    run = CliRunner().invoke(app, ["warm", "kmeans", "lr", "--weights"])
    assert run.exit_code == 0, run.output
    assert {c.algorithm.k for c in seen if c.name.startswith("kmeans")} == {*kernel_sizes(), WIDE_K}
    assert {c.columns for c in seen if c.name == f"kmeans k={WIDE_K}"} == {warm_code.WIDE} == {WIDE_COLUMNS}
    assert len(run.output.splitlines()) == 16 and "k=" not in run.output, "a line for each kind of rows"
    kinds = {(c.dtype, c.sparse, c.weighted) for c in seen}
    assert kinds == {(d, s, w) for d in warm_code.DTYPES for s in (False, True) for w in (False, True)}
    one = CliRunner().invoke(app, ["warm", "kmeans", "--set", "k=7", "--dtype", "float32"])
    assert one.output.splitlines() == ["kmeans k=7 float32: 0.0 s", "kmeans k=7 float32 sparse: 0.0 s"]
    assert CliRunner().invoke(app, ["warm", "--dtype", "float16"]).exit_code == 2


NAMED_ONCE = """
import os, sys
from flegel.core.code_cache import njit

def maker(columns):
    @njit()
    def loop(x):
        return x * columns
    return loop

def name(columns):
    function = maker(columns)
    function(2.0)
    return function.overloads[function.signatures[0]].fndesc.mangled_name

print(name(3), flush=True)
child = os.fork()
if child:
    os.waitpid(child, 0)
print(name(6 if child else 9), flush=True)
"""


def test_no_two_processes_give_compiled_functions_the_same_name(tmp_path: Path) -> None:
    """The same lines with other constants, in processes that start alike and in forks: a process that loads the code of
    several would take one for the other."""
    (tmp_path / "named.py").write_text(NAMED_ONCE)
    names = [
        name
        for _ in range(2)
        for name in subprocess.run(
            [sys.executable, "named.py"], cwd=tmp_path, capture_output=True, text=True, check=True
        ).stdout.split()
    ]
    assert len(names) == 6
    assert len(set(names)) == 6, names


def test_a_class_of_fewer_fields_is_the_same_in_every_process() -> None:
    """Compiled code is kept under the class: numba's cache pickles it, by reference where it can be found again."""
    made = pytree.bundle_type("Factors", ("factors", "scale"))
    assert made is pytree.bundle_type("Factors", ("factors", "scale"))
    assert made.__name__ == "Factors"
    stored = pickle.dumps(made)
    assert pickle.loads(stored) is made
    command = "import pickle, sys; print(pickle.loads(sys.stdin.buffer.read())._fields)"
    found = subprocess.run([sys.executable, "-c", command], input=stored, capture_output=True, check=True).stdout
    assert found.decode().strip() == "('factors', 'scale')"
    with pytest.raises(AttributeError):
        pytree.no_such_name  # noqa: B018


@pytest.mark.parametrize("name", warm_code.own_kernels())
def test_every_built_in_algorithm_takes_the_rows_by_which_it_is_compiled(name: str) -> None:
    """`flegel warm` would end at the first one that refuses them, and compile nothing of those behind it."""
    for case in warm_code.cases(name, warm_code.variants(name)[:1], ("float64",), weights=False):
        job = Job(workers=1)
        data = open_job_data(job, warm_code.example_rows(case), case.algorithm)
        PreparedJob(Request(case.algorithm, data, job), None)
