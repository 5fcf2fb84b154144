"""Models, checkpoints, journals and arrays that somebody damaged or made on purpose: one sentence, little memory."""

from __future__ import annotations

import io
import json
import os
import random
import re
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_result_store import ROWS, result
from typer.testing import CliRunner

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.cli.local_job import make_algorithm
from flegel.cli.main import app
from flegel.cluster.master import journal
from flegel.cluster.master.facts import Begun
from flegel.cluster.slave import child_processes
from flegel.errors import DataError, StorageError, UsageError
from flegel.loading import array_files
from flegel.loading.array_files import read_npy, read_npz
from flegel.loading.documents import read_json, read_records
from flegel.loading.input_files import FOLDERS_VARIABLE, read_array
from flegel.loading.regular_files import read_regular
from flegel.runtime.job import result_store


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A sound model, and rows to predict."""
    np.save(tmp_path / "rows.npy", ROWS)
    return result_store.save(result(), tmp_path / "model")


def edit_json(change: Callable[[dict[str, Any]], Any]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        content = json.loads((folder / "model.json").read_text())
        change(content)
        (folder / "model.json").write_text(json.dumps(content))

    return apply


def npz(folder: Path, method: int = zipfile.ZIP_STORED, **members: bytes | np.ndarray) -> None:
    """Members of the model, with these in their place."""
    with np.load(folder / "model.npz") as stored:
        whole: dict[str, Any] = {name: stored[name] for name in stored.files} | members
    with zipfile.ZipFile(folder / "model.npz", "w", method) as archive:
        for name, value in whole.items():
            if not isinstance(value, bytes):
                target = io.BytesIO()
                np.save(target, value)
                value = target.getvalue()
            archive.writestr(f"{name}.npy", value)


def patch_zip(offset: int, value: int) -> Callable[[Path], None]:
    """Two bytes of each header of the archive, in the local ones and in the directory."""

    def apply(folder: Path) -> None:
        content = bytearray((folder / "model.npz").read_bytes())
        for mark, shift in ((b"PK\x03\x04", offset), (b"PK\x01\x02", offset + 2)):
            at = content.find(mark)
            while at >= 0:
                struct.pack_into("<H", content, at + shift, value)
                at = content.find(mark, at + 4)
        (folder / "model.npz").write_bytes(content)

    return apply


def deep(folder: Path) -> None:
    (folder / "model.json").write_text('{"format": 1, "dataset": ' + "[" * 200_000)


def fifo(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        os.mkfifo(folder / name)

    return apply


def device(folder: Path) -> None:
    (folder / "model.npz").unlink()
    (folder / "model.npz").symlink_to("/dev/zero")


def sparse(folder: Path) -> None:
    os.truncate(folder / "model.json", 1 << 40)


NAN = np.full((2, 3), np.nan)
CASES: dict[str, tuple[Callable[[Path], None], str]] = {
    "encrypted zip": (patch_zip(6, 1), "encrypted"),
    "unknown compression": (patch_zip(8, 77), "method that is not known|compression"),
    "deep JSON": (deep, "model.json cannot be read"),
    "no columns": (edit_json(lambda c: c["dataset"].pop("columns")), "how many columns"),
    "columns of text": (edit_json(lambda c: c["dataset"].update(columns="3")), "how many columns"),
    "fields that cannot be": (edit_json(lambda c: c["parameter"].update(fields=["a-b", "c"])), "cannot be"),
    "a member that is no array": (lambda f: npz(f, centroids=b"hello"), "no file of arrays"),
    "an array of objects": (lambda f: npz(f, centroids=_objects()), "not real numbers"),
    "a header that lies": (lambda f: npz(f, centroids=_lying()), "ask for"),
    "wrong shape": (lambda f: npz(f, centroids=np.ones((2, 7))), "do not fit|columns"),
    "another dimension": (lambda f: npz(f, centroids=np.ones(3)), "do not fit"),
    "not finite": (lambda f: npz(f, centroids=NAN), "centroids holds numbers that are not finite"),
    "a pipe for JSON": (fifo("model.json"), "is a pipe"),
    "a pipe for arrays": (fifo("model.npz"), "is a pipe"),
    "a device": (device, "is a device"),
    "larger than any document": (sparse, "at most"),
    "a truncated archive": (lambda f: os.truncate(f / "model.npz", 100), "no file of arrays"),
    "a class that is none": (
        edit_json(lambda c: c["algorithm"].update(name="flegel.cli:app")),
        "is no built-in algorithm",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_predict_says_one_sentence(case: str, model: Path) -> None:
    damage, words = CASES[case]
    damage(model)
    done = CliRunner().invoke(app, ["predict", str(model), "--data", str(model.parent / "rows.npy")])
    assert done.exit_code in (1, 2), done.exception
    assert isinstance(done.exception, SystemExit) and "Traceback" not in done.stderr
    said = [line for line in done.stderr.splitlines() if not line.endswith(" …")]  # what takes long is told
    assert len(said) == 1 and said[0].startswith("flegel: ")
    assert re.search(words, done.stderr), done.stderr


def _objects() -> bytes:
    target = io.BytesIO()
    np.save(target, np.array([{}], dtype=object), allow_pickle=True)  # as an attacker would
    return target.getvalue()


def _lying() -> bytes:
    target = io.BytesIO()
    np.save(target, np.ones((2, 3)))
    return target.getvalue().replace(b"(2, 3)", b"(2, 9)")


def test_members_that_nobody_needs_are_not_unpacked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    npz(model, zipfile.ZIP_DEFLATED, bomb=bytes(8 << 20))
    assert flegel.load(model).predict(ROWS).shape == (12,)
    monkeypatch.setattr(array_files, "MAX_UNPACKED_BYTES", 1 << 20)
    npz(model, zipfile.ZIP_DEFLATED, centroids=np.zeros((1 << 17, 3)))
    with pytest.raises(StorageError, match="would unpack to"):
        flegel.load(model)


def test_big_endian_and_fortran_order_are_read_as_they_are_meant(tmp_path: Path) -> None:
    wanted = np.arange(6.0).reshape(2, 3)
    for name, array in (("big", wanted.astype(">f8")), ("fortran", np.asfortranarray(wanted)), ("one", wanted)):
        np.save(tmp_path / f"{name}.npy", array)
        found = read_npy(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(found, wanted)
        assert found.dtype.isnative


@pytest.mark.parametrize("seed", range(12))
def test_changed_arrays_are_arrays_or_a_sentence(seed: int, tmp_path: Path) -> None:
    from bench.chaos.fuzzing.mutation import change_bytes, change_zip

    rng, target = random.Random(seed), io.BytesIO()
    np.savez(target, a=ROWS, b=np.arange(3))
    for change in (change_zip, change_bytes):
        (tmp_path / "x.npz").write_bytes(change(target.getvalue(), rng, []))
        try:
            found = read_npz(tmp_path / "x.npz", ["a"])
        except StorageError:
            continue
        assert found["a"].dtype.kind in "fiub"


# -- data, journals, traces --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rows.csv", "rows.npy", "rows.npz"])
def test_data_are_not_read_from_a_pipe(name: str, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(DataError, match="is a pipe; give a plain file"):
        flegel.datasets.open_data(tmp_path / name)


def test_a_journal_whose_records_contradict_each_other_is_refused() -> None:
    """A fact about a job that was never submitted, with the right checksum."""
    content = journal.JOURNAL_HEADER + journal.frame(Begun("nobody", 1.0, 1))
    with pytest.raises(StorageError, match="does not fit those before it"):
        journal.read(content)
    deep_record = b"\x91" * 100_000
    framed = journal.JOURNAL_HEADER + struct.pack("<II", len(deep_record), zlib.crc32(deep_record)) + deep_record
    assert journal.read(framed)[1] == len(journal.JOURNAL_HEADER), "a record that cannot be read is a torn tail"


@pytest.mark.parametrize("content", [b"\x93\x01\x02", b"\xc1", b"\x01\x02", b"\x81\x01\x02", b"\x91" * 5000])
def test_a_trace_that_is_none_is_one_sentence(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "trace.msgpack").write_bytes(content)
    with pytest.raises(StorageError, match="is no trace"):
        read_records(tmp_path / "trace.msgpack")
    with pytest.raises(StorageError, match="no JSON document"):
        read_json(tmp_path / "trace.msgpack")


def test_a_file_that_is_too_long_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"12345")
    assert read_regular(tmp_path / "x", 5) == b"12345"
    with pytest.raises(StorageError, match="at most 4"):
        read_regular(tmp_path / "x", 4)


# -- files that hyper-parameters name ----------------------------------------------------------------------


def test_hyper_parameters_that_name_files_go_one_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("start.npy", ROWS[:2])
    for name in ("kmeans", "gmm", "fcm"):
        chosen = make_algorithm(name, ["k=2", "init=start.npy"])
        assert chosen.init == str(tmp_path / "start.npy"), "as every slave finds it"
        assert make_algorithm(name, ["k=2", "init=random"]).init == "random"
        assert make_algorithm(name, ["k=2", "init=nowhere.npy"]).init == "nowhere.npy"
    (tmp_path / "allowed").mkdir()
    os.link("start.npy", tmp_path / "allowed" / "start.npy")
    (tmp_path / "allowed" / "link.npy").symlink_to(tmp_path / "start.npy")
    monkeypatch.setenv(FOLDERS_VARIABLE, str(tmp_path / "allowed"))
    np.testing.assert_array_equal(read_array(str(tmp_path / "allowed" / "start.npy"), "KMeans"), ROWS[:2])
    for path in ("start.npy", "allowed/../start.npy", "allowed/link.npy", "/etc/passwd"):
        with pytest.raises(UsageError, match=r"KMeans: files are read from .*allowed only"):
            read_array(str(tmp_path / path), "KMeans")
    with pytest.raises(UsageError, match="files are read from"):
        flegel.run(KMeans(k=2, init=str(tmp_path / "start.npy")), ROWS, workers=1)


def test_a_file_that_is_no_array_is_one_sentence(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.npy")
    (tmp_path / "text.npy").write_text("hello")
    for name in ("pipe.npy", "text.npy", "."):
        with pytest.raises(UsageError, match="KMeans: init="):
            flegel.run(KMeans(k=2, init=str(tmp_path / name)), ROWS, workers=1)


def test_slaves_hand_their_folders_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, str] = {}

    def start(*_: Any, env: dict[str, str], **__: Any) -> Any:
        seen.update(env)
        raise OSError

    monkeypatch.setattr(child_processes.subprocess, "Popen", start)
    with pytest.raises(OSError):
        child_processes.start_spare("worker", "owner", tmp_path, (tmp_path / "data",))
    assert seen[FOLDERS_VARIABLE] == str(tmp_path / "data")


def test_labels_that_are_neither_numbers_nor_words_are_one_sentence(tmp_path: Path) -> None:
    np.savez(tmp_path / "rows.npz", X=ROWS, y=np.zeros(12, "V8"))
    with pytest.raises(DataError, match=r"y holds .* values; save numbers or words|damaged"):
        flegel.datasets.open_data(tmp_path / "rows.npz")


def test_an_array_of_an_own_class_comes_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("start.npy", ROWS[:2])
    (tmp_path / "mine.py").write_text(
        "import numpy as np\nfrom flegel import Algorithm\n\n\nclass Mine(Algorithm):\n    start: np.ndarray\n\n"
        "    def initParameter(self, sample, rng):\n        return self.start * 1.0\n\n"
        "    def contribution(self, dataPoint, parameter):\n        return dataPoint.features\n\n"
        "    def updateParameter(self, aggregator, oldParameter):\n        return oldParameter\n"
    )
    np.testing.assert_array_equal(make_algorithm("mine.py:Mine", ["start=start.npy"]).start, ROWS[:2])
    with pytest.raises(UsageError, match=r"--set start=absent\.npy cannot be read"):
        make_algorithm("mine.py:Mine", ["start=absent.npy"])
    Path("start.npy").write_bytes(b"no array")
    with pytest.raises(UsageError, match=r"start\.npy is no array of numbers"):
        make_algorithm("mine.py:Mine", ["start=start.npy"])
