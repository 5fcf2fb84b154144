"""Code that comes with data is not run: one gate, every loader behind it, and a file that tells when it is imported."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import flegel
from flegel.algorithm import Algorithm
from flegel.cli.comparisons import suite_folder
from flegel.cli.main import app
from flegel.compare.replay import Recorded
from flegel.dashboard.saved_runs import read_run
from flegel.datasets import open_data
from flegel.errors import FlegelError, UsageError
from flegel.job import AlgorithmRef, Criteria, Job, SyncSpec
from flegel.loading import code_gate
from flegel.loading.class_source import instantiate, reference
from flegel.loading.code_gate import Consent
from flegel.machine.group.data_form import DataForm
from flegel.machine.group.records import PACKAGE_POINTER, Package, PackageRef, digest_of, encode
from flegel.messages import TreeLayout
from flegel.report.write import load as load_report
from flegel.runtime.checkpoint.format import CHECKPOINT_FORMAT, JobRecord, seal
from flegel.runtime.group.keys import PlainObjects
from flegel.runtime.group.package_store import GROUP_FORMAT
from flegel.runtime.group.session import GroupSession
from flegel.runtime.job.find_algorithm import find_algorithm
from tests.source_trees import nodes

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "flegel"
OWN = '''
import numpy as np
from flegel import Algorithm
{above}
class Own(Algorithm):
    """Means of columns."""

    def initParameter(self, sample, rng):
        return np.zeros(sample.columns)

    def initState(self, points, columns, rng):
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        return new

    def updateParameter(self, aggregator, oldParameter):
        return aggregator

    def objective(self, aggregator, parameter):
        return -float(parameter[0] + aggregator[0])
'''


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Keys of this test."""
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


# -- the gate itself -----------------------------------------------------------------------------------------


def test_without_a_reason_nothing_is_run(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--trust-code"):
        code_gate.import_file("canary", tmp_path / "x.py", b"1 / 0", None)
    with pytest.raises(UsageError, match="--trust-code"):
        code_gate.execute(ast.parse("1 / 0"), "x.py", {}, None)
    ref = AlgorithmRef("Own", {}, json.dumps({"postponed": False, "pieces": [["x.py", 1, "1 / 0"]]}))
    with pytest.raises(UsageError, match="--trust-code"):
        instantiate(ref, None)
    with pytest.raises(ZeroDivisionError):
        instantiate(ref, Consent.TRUSTED)


def test_a_path_that_leads_into_the_folder_lies_inside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "job"
    (folder / "sub").mkdir(parents=True)
    inside, outside = folder / "sub" / "note.py", tmp_path / "mine.py"
    inside.touch(), outside.touch()
    (tmp_path / "link.py").symlink_to(inside)
    (tmp_path / "alias").symlink_to(folder)
    (folder / "mine.py").symlink_to(outside)
    monkeypatch.chdir(folder)
    for path in (
        inside, "sub/note.py", "./sub/../sub/note.py", "../job/sub/note.py", tmp_path / "link.py",
        tmp_path / "alias/sub/note.py", folder / "mine.py", tmp_path / "x/../job/sub/note.py",
    ):  # fmt: skip
        assert code_gate.lies_inside(path, folder), path
        assert code_gate.lies_inside(path, tmp_path / "alias"), path
        assert code_gate.lies_inside(path, "."), path
    for path in (outside, "../mine.py", tmp_path / "job2" / "note.py", folder / ".." / "mine.py"):
        assert not code_gate.lies_inside(path, folder), path


def test_a_mark_holds_for_one_file_one_content_and_one_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, folder = tmp_path / "mine.py", tmp_path / "job"
    path.write_text("a = 1")
    sha = hashlib.sha256(b"a = 1").hexdigest()
    mark = code_gate.mark_of(str(path), sha)
    assert code_gate.why_not_own(str(path), sha, mark, folder) == ""
    shutil.copy(path, tmp_path / "other.py")
    assert "not made" in code_gate.why_not_own(str(tmp_path / "other.py"), sha, mark, folder)
    assert "not made" in code_gate.why_not_own(str(path), sha, "", folder)
    assert "not made" in code_gate.why_not_own(str(path), "0" * 64, mark, folder)
    assert "lies inside" in code_gate.why_not_own(str(path), sha, mark, tmp_path)
    path.write_text("a = 2")
    assert "changed" in code_gate.why_not_own(str(path), sha, mark, folder)
    path.write_text("a = 1")
    secret = tmp_path / "home" / "keys" / "class-files.secret"
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.chmod(0o644)
    assert "not made" in code_gate.why_not_own(str(path), sha, mark, folder), "a key that others can read is none"
    monkeypatch.setenv("FLEGEL_HOME", str(tmp_path / "another"))
    assert "not made" in code_gate.why_not_own(str(path), sha, mark, folder)


def test_what_is_run_is_what_was_read(tmp_path: Path) -> None:
    """A compiled copy beside a file may hold anything; Python itself would run it."""
    import py_compile

    path = tmp_path / "mine.py"
    path.write_text("value = 'evil'")
    py_compile.compile(str(path), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)
    path.write_text("value = 'good'")
    module = code_gate.import_file("canary_read", path, code_gate.read_source(path), Consent.NAMED)
    assert module.value == "good"
    with pytest.raises(UsageError, match="has changed"):
        code_gate.read_source(path, "0" * 64)


# -- resuming with one's own file ----------------------------------------------------------------------------


def submitted(tmp_path: Path, place: Path, points: np.ndarray) -> Path:
    """A job of a class in a file of the user."""
    path = tmp_path / "own.py"
    path.write_text(OWN.format(above=""))
    flegel.run(f"{path}:Own", points[:50], workers=1, processes=False, max_iterations=2, tolerance=0, checkpoint=place)
    return path


def go_on(place: Path, points: np.ndarray, **more: Any) -> int:
    return flegel.resume(place, data=points[:50], max_iterations=3, **more).iterations


def test_a_job_goes_on_with_the_file_that_its_user_named(tmp_path: Path, points: np.ndarray) -> None:
    submitted(tmp_path, tmp_path / "job", points)
    assert go_on(tmp_path / "job", points) == 3


def test_changed_code_at_the_top_of_the_file_is_noticed(tmp_path: Path, points: np.ndarray) -> None:
    path = submitted(tmp_path, tmp_path / "job", points)
    path.write_text(OWN.format(above="Algorithm.initState = None  # nothing that the class uses by name"))
    with pytest.raises(UsageError, match=r"own\.py has changed since the checkpoint"):
        go_on(tmp_path / "job", points)
    path.write_text(OWN.format(above="# a remark"))
    with pytest.warns(UserWarning, match="has changed since the checkpoint"):
        assert go_on(tmp_path / "job", points, algorithm=f"{path}:Own") == 3


def test_a_file_beside_the_checkpoints_is_not_the_users_own(tmp_path: Path, points: np.ndarray) -> None:
    place = tmp_path / "job"
    submitted(tmp_path, place, points).rename(place / "own.py")
    with pytest.raises(UsageError, match="is not there"):
        go_on(place, points)
    with pytest.raises(UsageError, match="lies inside"):
        go_on(place, points, algorithm=f"{place}/own.py:Own")
    assert go_on(place, points, algorithm=f"{place}/own.py:Own", trust_code=True) == 3


# -- foreign folders -----------------------------------------------------------------------------------------

CANARY = """
import pathlib
pathlib.Path({marker!r}).open("a").write("imported ")
""" + OWN.format(above="")


class Foreign:
    """A folder with a checkpoint, a model, a result, a bucket and a benchmark suite, all of which name a canary."""

    def __init__(self, base: Path) -> None:
        self.base, self.folder, self.marker = base, base / "foreign", base / "imported"
        self.folder.mkdir()
        self.note = self.folder / "note.py"
        text = CANARY.format(marker=str(self.marker))
        for name in ("note.py", "sitecustomize.py", "conftest.py", "flegel_plugin.py"):
            (self.folder / name).write_text(text)
        (base / "beside.py").write_text(text)
        self.source = json.dumps({"postponed": False, "pieces": [[str(self.note), 1, text]]})
        (self.folder / "bench").mkdir()
        (self.folder / "bench" / "run_suite.py").write_text(text)

    def ref(self, how: str) -> AlgorithmRef:
        """The class as source, or a name that stands for a file."""
        names = {
            "source": ("Own", self.source), "file": (f"{self.note}:Own", ""), "relative": ("note.py:Own", ""),
            "module": ("note:Own", ""), "builtin": ("flegel.algorithms.note:Own", ""),
            "climbing": ("flegel.algorithms...note:Own", ""),
        }  # fmt: skip
        name, source = names[how]
        return AlgorithmRef(name, {}, source)

    def checkpoint(self, ref: AlgorithmRef, class_file: str | None, mark: str = "") -> None:
        file = Path((class_file or "").rpartition(":")[0])
        sha = hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
        job = Job(ref, "points.npy", workers=1, sync=SyncSpec("bsp"), criteria=Criteria(max_iterations=1))
        record = JobRecord(
            CHECKPOINT_FORMAT, 0, job, {}, class_file, "f" * 64, {"name": "points.npy"}, None, TreeLayout("array", ()),
            TreeLayout("array", ()), sha, mark,
        )  # fmt: skip
        (self.folder / "job").write_bytes(seal(msgspec.json.encode(record)))

    def model(self, ref: AlgorithmRef) -> None:
        manifest = {
            "format": 1, "algorithm": msgspec.to_builtins(ref), "parameter": {"name": "array", "fields": []},
            "dataset": {"columns": 3}, "objective": 1.0,
        }  # fmt: skip
        (self.folder / "model.json").write_text(json.dumps(manifest))
        np.savez(self.folder / "model.npz", value=np.zeros(3))

    def result(self, name: str) -> None:
        told = {
            "algorithm": name, "dataset": {"name": "x", "rows": 3, "columns": 3}, "workers": 1, "hyperparameters": {},
            "sync": "bsp", "trace": [], "worker": [], "seed": 0, "objective": 1.0, "seconds": 1.0, "iterations": 1,
            "reason": "over", "utilization": 1.0, "load_seconds": 0.0, "staleness": {},
        }  # fmt: skip
        (self.folder / "result.json").write_text(json.dumps(told))
        (self.folder / "trace.msgpack").write_bytes(msgspec.msgpack.encode({"seconds": 0.1, "iteration": 1}))

    def bucket(self, ref: AlgorithmRef) -> None:
        form = DataForm(3, (), (), "float64", "none", "")
        package = Package(GROUP_FORMAT, ref.name, ref.source, {}, {}, ("array", ()), form, "statistics", "", "3", "a")
        content = encode(package, [np.zeros(3)])
        pointer = encode(PackageRef(digest_of(content), GROUP_FORMAT))
        place = self.folder / "bucket"
        for key, plain in ((PACKAGE_POINTER, pointer), (f"package/{digest_of(content)}", content)):
            (place / key).parent.mkdir(parents=True, exist_ok=True)
            (place / key).write_bytes(PlainObjects().seal(key, plain))


@pytest.fixture
def foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Foreign]:
    made = Foreign(tmp_path)
    monkeypatch.chdir(made.folder)
    np.save(made.folder / "points.npy", np.ones((4, 3)))
    yield made


def refused(call: Callable[[], Any]) -> str:
    """The sentence with which a loader refuses; empty where it had nothing to run."""
    try:
        call()
    except FlegelError as error:
        return str(error)
    return ""


def commanded(*words: str) -> None:
    done = CliRunner().invoke(app, list(words))
    assert "Traceback" not in done.output and (done.exception is None or isinstance(done.exception, SystemExit))


WAYS = ("source", "file", "relative", "module", "builtin", "climbing")


def test_a_hundred_foreign_folders_are_loaded_and_nothing_is_imported(
    foreign: Foreign, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loads, become = foreign.folder, 0, list[str]()
    (foreign.base / "alias").symlink_to(folder)
    code_gate.mark_of("/elsewhere.py", "0" * 64)  # a mark of this user's, for another file
    stolen = code_gate.mark_of(str(foreign.base / "mine.py"), "0" * 64)
    files = [
        None, f"{foreign.note}:Own", "note.py:Own", "./note.py:Own", "../foreign/note.py:Own", "foreign/note.py:Own",
        f"{foreign.base}/alias/note.py:Own", f"{folder}/x/../note.py:Own", f"{foreign.base}/beside.py:Own",
        "../beside.py:Own", f"file://{foreign.note}:Own", f"{foreign.note}:Missing",
    ]  # fmt: skip
    for at in (folder, foreign.base):  # inside of the folder, and above
        monkeypatch.chdir(at)
        for way in WAYS:
            for class_file in files if way == "source" else files[:2]:
                for mark in ("", stolen) if way == "source" else ("",):
                    foreign.checkpoint(foreign.ref(way), class_file, mark)
                    for place in (str(folder), "file://" + str(folder)):
                        assert refused(lambda place=place: flegel.resume(place)), (way, class_file)  # type: ignore[misc]
                        loads += 1
        commanded("resume", str(folder))
        named = refused(lambda: flegel.resume(folder, algorithm=f"{foreign.note}:Own"))
        assert "lies inside" in named
        loads += 2
        for way in WAYS:
            foreign.model(foreign.ref(way))
            refused(lambda: flegel.load(folder).predict(np.ones((1, 3))))
            commanded("predict", str(folder), "--data", str(folder / "points.npy"))
            commanded("export", str(folder), str(foreign.base / "out.onnx"))
            foreign.result(foreign.ref(way).name)
            refused(lambda: Recorded(folder).algorithm(None))
            commanded("simulate", "--replay", str(folder), "--sync", "bsp")
            refused(lambda: load_report(folder))
            refused(lambda: read_run(folder))
            foreign.bucket(foreign.ref(way))
            refused(lambda: joined(folder / "bucket"))
            refused(lambda: flegel.join(str(folder / "bucket"), np.ones((4, 3)), group="b"))
            commanded("join", str(folder / "bucket"), "--group", "b", "--data", str(folder / "points.npy"))
            loads += 10
        refused(suite_folder)
        with monkeypatch.context() as patched:  # the process would become that of the suite
            patched.setattr("os.execve", lambda program, words, environment: become.append(environment["PYTHONPATH"]))
            commanded("bench", "list")
        assert become and not become[-1].startswith(str(foreign.base))
        loads += 2
    assert not foreign.marker.exists(), f"{foreign.marker.read_text().count('imported')} imports of foreign code"
    assert loads >= 100
    with pytest.raises(FlegelError):  # the canary does sing
        flegel.resume(folder, algorithm=f"{foreign.note}:Own", trust_code=True)
    assert foreign.marker.exists()


@pytest.mark.processes
def test_a_file_in_the_current_folder_does_not_pass_for_an_installed_package(foreign: Foreign) -> None:
    for name in ("typer", "numpy", "msgspec", "numba", "msgpack"):
        shutil.copy(foreign.note, foreign.folder / f"{name}.py")
    done = subprocess.run(
        [sys.executable, "-m", "flegel", "report", "."], cwd=foreign.folder, capture_output=True, text=True,
        timeout=300, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert not foreign.marker.exists() and done.returncode in (1, 2), done.stderr


def joined(bucket: Path) -> None:
    job = msgspec.json.decode(b"{}", type=Job)
    sites = msgspec.structs.replace(job.sites, group="b", bucket=str(bucket))
    session = GroupSession(msgspec.structs.replace(job, sites=sites), find_algorithm("kmeans")(k=2))
    session.join(open_data(np.ones((4, 3))))


# -- no other way in -----------------------------------------------------------------------------------------

RUNNING = {"exec", "eval", "compile", "__import__", "execfile"}
LOADING = {
    "spec_from_file_location", "spec_from_loader", "module_from_spec", "exec_module", "load_module", "run_path",
    "run_module", "SourceFileLoader", "SourcelessFileLoader", "ExtensionFileLoader",
}  # fmt: skip
READING = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "runpy", "imp", "code"}
BY_NAME = {
    "__init__.py": "names of the public API",
    "algorithms/__init__.py": "built-in algorithms",
    "core/entry_point.py": "compiled functions of this package",
    "runtime/backends/registry.py": "back ends of this package",
    "runtime/backends/torch/backend.py": "the program that a class of this process names",
    "loading/class_source.py": "built-in algorithms, by a prefix",
    "runtime/job/find_algorithm.py": "built-in algorithms, and the adapter of networks",
    "runtime/job/parts.py": "parts of a job, by the registry in the same file",
    "runtime/processes/fork_server.py": "libraries of a fixed list",
    "sklearn/__init__.py": "names of the public API",
    "sync/__init__.py": "the synchronization models of this package",
    "torch/__init__.py": "names of the public API",
}
"""Files that import modules by a computed name, and what these are: never a name out of a record alone."""
GATE = PACKAGE / "loading" / "code_gate.py"
REASONS = {
    "NAMED": {"runtime/job/find_algorithm.py"},
    "TRUSTED": {"runtime/checkpoint/resume.py", "runtime/group/joining.py", "runtime/job/result_store.py"},
    "SIGNED": {"runtime/group/joining.py"},
    "MARKED": {"runtime/checkpoint/resume.py"},
    "SUBMITTED": {"runtime/server/shell.py", "runtime/worker/trainer.py", "cluster/slave/coordinator_process.py"},
    "PRESENT": {
        "checks/conformance.py", "runtime/backends/numba/calls_ahead.py", "runtime/backends/numba/compiler.py",
        "torch/adapter.py",
    },
}  # fmt: skip
"""Who gives which reason at the gate. A new place here is a new way for code into a process: think twice."""
NAMING = {
    "api/jobs.py", "cli/completion.py", "cli/demo.py", "cli/inspection.py", "cli/local_job.py", "cli/submit.py",
    "cluster/connected.py", "compare/comparison.py", "runtime/job/find_algorithm.py", "runtime/checkpoint/resume.py",
}  # fmt: skip
"""Who may import a file by what the user has named; completion looks for built-in algorithms only."""


def files() -> list[Path]:
    found = [path for part in ("flegel", "algorithms", "datasets") for path in sorted((ROOT / part).rglob("*.py"))]
    return [path for path in found if path != GATE]


def inside(path: Path) -> str:
    return str(path.relative_to(PACKAGE if path.is_relative_to(PACKAGE) else ROOT))


def called(node: ast.AST) -> str:
    match node:
        case ast.Call(func=ast.Name(id=name)):
            return name
        case ast.Call(func=ast.Attribute(attr=name)):
            return name
    return ""


def test_no_other_module_runs_text_or_loads_files() -> None:
    for path in files():
        for node in nodes(path):
            why = ""
            match node:
                case ast.Call(func=ast.Name(id=name)) if name in RUNNING:
                    why = f"{name} runs text"
                case ast.Import(names=names):
                    why = ", ".join({alias.name.partition(".")[0] for alias in names} & READING)
                case ast.ImportFrom(module=str(module), names=names):
                    why = module if module.partition(".")[0] in READING else ""
                    if module != "flegel.loading.class_source":  # which goes to the gate
                        why = why or ", ".join({alias.name for alias in names} & LOADING)
                case ast.Attribute(attr=name) if name in LOADING:
                    why = name
            assert not why, f"{inside(path)}:{getattr(node, 'lineno', 0)}: {why}; that is the gate's business"


def test_modules_are_imported_by_computed_names_in_known_places_only() -> None:
    found = {
        inside(path)
        for path in files()
        for node in nodes(path)
        if called(node) == "import_module" and isinstance(node, ast.Call) and not isinstance(node.args[0], ast.Constant)
    }
    assert found - {"algorithms/estimators.py"} == set(BY_NAME)


def test_everybody_at_the_gate_is_known() -> None:
    found: dict[str, set[str]] = {reason.name: set() for reason in Consent}
    for path in files():
        for node in nodes(path):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "Consent":
                found[node.attr].add(inside(path))
    assert found == REASONS


def test_files_are_imported_by_what_the_user_has_named() -> None:
    found = {
        inside(path)
        for path in files()
        for node in nodes(path)
        if called(node) in ("find_algorithm", "from_file")
        or (
            called(node) == "resolve"
            and isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and "find_algorithm" in path.read_text()
        )
    }
    assert found == NAMING


def test_a_class_of_this_process_is_referred_to_without_running_anything() -> None:
    class_ = find_algorithm("kmeans")
    assert issubclass(class_, Algorithm) and reference(class_(k=2)).builtin
