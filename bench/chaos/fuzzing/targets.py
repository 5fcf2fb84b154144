"""Everything that reads foreign bytes, each as a function of one input: models, checkpoints, journals, traces, data,
wire; `record_targets` and `message_targets` hold the others. Each may return, or raise an error of ours; anything else
is a finding."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import random
import shutil
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np

from bench.chaos import decoder
from bench.chaos.fuzzing.message_targets import message_targets
from bench.chaos.fuzzing.mutation import change_bytes, change_json, change_zip
from bench.chaos.fuzzing.record_targets import record_targets
from bench.chaos.fuzzing.target import ROWS, Change, Target, accepted, change_packed
from flegel.cluster.master import journal
from flegel.cluster.master.facts import Begun, Ended, JobTable, Placed, Submitted, snapshot
from flegel.cluster.transport.protocol import ClusterJob
from flegel.datasets import open_data
from flegel.datasets.formats.cifar import CifarStream
from flegel.job import AlgorithmRef
from flegel.loading.documents import read_json, read_records
from flegel.runtime.checkpoint.format import seal, unseal
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.job import result_store
from flegel.runtime.job.find_algorithm import find_algorithm

LOADING = tuple(
    f"flegel/loading/{name}.py" for name in ("array_files", "damage", "documents", "regular_files", "code_gate")
)
MODEL = ("flegel/runtime/job/result_store.py", "flegel/results/prediction.py", *LOADING[:4])
CHECKPOINT = (
    "flegel/runtime/checkpoint/reader.py", "flegel/runtime/checkpoint/format.py",
    "flegel/machine/plain_data.py", "flegel/machine/checkpoint/snapshot.py",
)  # fmt: skip
JOURNAL = ("flegel/cluster/master/journal.py",)
FORMATS = "datasets/formats"
CIFAR = (f"{FORMATS}/cifar.py",)
TABLES = tuple(f"datasets/tables/{name}.py" for name in ("open_table", "survey", "decide", "columns", "stream"))


def targets(folder: Path) -> list[Target]:
    """All of them; files are written below `folder`."""
    found = [*_models(folder), _checkpoint(folder), _journal(), _trace(folder), *_data(folder), *_wire()]
    return [*found, *record_targets(folder), *message_targets()]


# -- models ------------------------------------------------------------------------------------------------


def _models(folder: Path) -> list[Target]:
    import flegel

    found = []
    for name, labels in (("kmeans", None), ("gmm", None), ("lr", (ROWS[:, 0] > 0).astype(float))):
        data = ROWS if labels is None else (ROWS, labels)
        hyper: dict[str, Any] = {} if name == "lr" else {"k": 2}
        made = find_algorithm(name)(**hyper)
        path = folder / name
        flegel.run(made, data, workers=1, max_iterations=2, out=path)
        for file, change in (("model.json", _json), ("model.npz", change_zip)):
            found.append(Target(f"{name}/{file}", [(path / file).read_bytes()], change, _model(path, file), MODEL))
    return found


def _json(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    return change_json(data, rng) if rng.random() < 0.7 else change_bytes(data, rng, others)


def _model(path: Path, file: str) -> Callable[[bytes], None]:
    def run(content: bytes) -> None:
        (path / file).write_bytes(content)
        accepted(lambda: result_store.load(path).predict(ROWS[:5]))

    return run


# -- checkpoints, journals, traces -------------------------------------------------------------------------


def _checkpoint(folder: Path) -> Target:
    """Any file of a checkpoint is changed; checksums are made right again, as somebody could do on purpose."""
    import flegel

    place = folder / "job"
    flegel.run("kmeans", ROWS, workers=1, max_iterations=3, checkpoint=place, sync="bsp")
    whole = {p.name: p.read_bytes() for p in place.iterdir() if p.name != "lock"}
    names = sorted(whole)

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        name = rng.choice(names)
        content = whole[name]
        sealed = name == "job" or name.endswith(".manifest") or name.startswith("commit-")
        inner = unseal(content) if sealed else content
        if name == "job" or name.endswith(".manifest"):
            inner = change_json(inner, rng)
        elif rng.random() < 0.6:
            inner = change_packed(inner, rng)
        else:
            inner = change_bytes(inner, rng, others)
        return msgpack.packb([name, seal(inner) if sealed and rng.random() < 0.95 else inner, rng.random() < 0.9])

    def run(content: bytes) -> None:
        try:
            name, changed, right = msgpack.unpackb(content)
        except (ValueError, TypeError, msgpack.UnpackException):
            return
        if name not in names or not isinstance(changed, bytes):
            return  # made by a mutator that knows nothing of files
        files = {**whole, name: changed}
        if right:
            _rehash(files, name)
        for each, data in files.items():
            (place / each).write_bytes(data)
        accepted(lambda: read(FolderStore(place)))

    return Target("checkpoint", [msgpack.packb([names[0], whole[names[0]], True])], change, run, CHECKPOINT)


def _rehash(files: dict[str, bytes], name: str) -> None:
    """The manifests name the changed file with its new size and checksum."""
    for other in [n for n in files if n.endswith(".manifest") and n != name]:
        manifest = json.loads(unseal(files[other]))
        if name in manifest["files"]:
            manifest["files"][name] = [len(files[name]), hashlib.sha256(files[name]).hexdigest()]
            files[other] = seal(json.dumps(manifest).encode())


def _journal() -> Target:
    spec = ClusterJob(AlgorithmRef("flegel.algorithms.kmeans.kmeans:KMeans", {"k": 2}), "blobs")
    facts = [Submitted("j", 1.0, "ticket-1", "ann", spec), Placed("j", 2.0, 1, "s", "b", {"s": 2}), Begun("j", 3.0, 1)]
    table = JobTable()
    for fact in facts:
        table.apply(fact)
    records = [*facts, Ended("j", 4.0, 1, "done", "converged"), snapshot(table)]
    seeds = [
        journal.JOURNAL_HEADER + b"".join(map(journal.frame, records)),
        journal.JOURNAL_HEADER + journal.frame(records[-1]),
    ]

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        if rng.random() < 0.4:
            return change_bytes(data, rng, others)
        framed = journal.JOURNAL_HEADER
        for record in rng.sample(records, rng.randrange(1, len(records) + 1)):
            body = msgspec.msgpack.encode(record)
            if rng.random() < 0.7:
                body = change_packed(body, rng)
            framed += struct.pack("<II", len(body), zlib.crc32(body)) + body
        return framed

    return Target("journal", seeds, change, lambda content: accepted(lambda: journal.read(content)), JOURNAL)


def _trace(folder: Path) -> Target:
    rows = [{"seconds": 0.1, "iteration": i, "objective": None, "interval": 0.5, "reason": "é"} for i in range(3)]
    seed, path = b"".join(msgpack.packb(row) for row in rows), folder / "trace.msgpack"

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        if rng.random() < 0.5:
            return change_bytes(data, rng, others)
        return b"".join(change_packed(msgpack.packb(row), rng) for row in rows)

    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: read_records(path))
        accepted(lambda: read_json(path))

    return Target("trace", [seed], change, run, LOADING[1:4])


# -- data and wire -----------------------------------------------------------------------------------------


def _data(folder: Path) -> list[Target]:
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, ROWS)
    np.savez(npz, X=ROWS, y=ROWS[:, 0])
    text = "\n".join(",".join(f"{v:.3g}" for v in row) for row in ROWS).encode()
    svm = "\n".join("1 " + " ".join(f"{i + 1}:{v:.3g}" for i, v in enumerate(row)) for row in ROWS).encode()
    idx = b"\0\0\x08\x02" + struct.pack(">II", 4, 3) + bytes(range(12))
    words = b"name,when,size,kind\n" + b"".join(
        f'"a {i % 4}",2024-01-{i + 1:02d},{i * 0.5},{"xyz"[i % 3]}\n'.encode() for i in range(9)
    )
    ratings = "".join(f"{i % 7}::{i % 5}::{i % 4 + 1}::97830{i}\n" for i in range(30)).encode()
    batch, cifar = b"".join(bytes([i]) + bytes([i * 20]) * 3072 for i in range(3)), io.BytesIO()
    with tarfile.open(fileobj=cifar, mode="w") as archive:
        member = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
        member.size = len(batch)
        archive.addfile(member, io.BytesIO(batch))
    text_files = tuple(
        f"{FORMATS}/text_{part}.py" for part in ("blocks", "dialect", "parse", "source", "stream", "table")
    )
    packed = (f"{FORMATS}/packed_arrays.py",)
    made: list[tuple[str, bytes, Change, tuple[str, ...]]] = [
        ("rows.csv", b"a,b,c\n" + text, change_bytes, text_files),
        ("words.csv", words, change_bytes, (*text_files, *TABLES)),
        ("rows.npy", npy.getvalue(), change_bytes, ("datasets/rows/arrays.py",)),
        ("rows.npz", npz.getvalue(), change_zip, packed),
        ("rows.svm", svm, change_bytes, (f"{FORMATS}/svmlight.py", f"{FORMATS}/svmlight_lines.py")),
        ("x-images-idx3-ubyte", idx, change_bytes, packed),
        ("rows.csv.gz", gzip.compress(text), change_bytes, (f"{FORMATS}/compressed.py", *text_files)),
        ("ratings.dat", ratings, change_bytes, ("datasets/tables/ratings.py", f"{FORMATS}/text_table.py")),
    ]
    found = [Target(name, [seed], change, _file(folder / name), modules) for name, seed, change, modules in made]
    arrow = (f"{FORMATS}/arrow_tables.py",)
    found += [Target(name, seeds, change_bytes, _file(folder / name), arrow) for name, seeds in _arrow_files()]
    return [*found, Target("cifar.tar", [cifar.getvalue()], change_bytes, _cifar(folder / "cifar.tar"), CIFAR)]


def _cifar(path: Path) -> Callable[[bytes], None]:
    """An archive that the catalogue has fetched."""

    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: [chunk.features.sum() for chunk in CifarStream(path, None).chunks()])

    return run


def _arrow_files() -> list[tuple[str, list[bytes]]]:
    """Parquet and Arrow, with text and without, where pyarrow is installed."""
    try:
        import pyarrow as arrow
        from pyarrow import feather, parquet
    except ImportError:
        return []
    plain = {"a": ROWS[:, 0], "b": ROWS[:, 1]}
    found = []
    for name, write in (("rows.parquet", parquet.write_table), ("rows.feather", feather.write_feather)):
        seeds = []
        for columns in (plain, {**plain, "c": ["x", "y"] * 20}):
            target = io.BytesIO()
            write(arrow.table(columns), target)
            seeds.append(target.getvalue())
        found.append((name, seeds))
    return found


def _file(path: Path) -> Callable[[bytes], None]:
    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: open_data(path).load())

    return run


def _wire() -> list[Target]:
    pools = decoder.seeds(random.Random(0))
    made = []
    for name, pool, decode, module in (
        ("wire of jobs", pools[0], decoder.jobs_decoder, "flegel/runtime/transport/codec.py"),
        ("wire of the cluster", pools[1], decoder.server_decoder, "flegel/cluster/transport/framing.py"),
    ):

        def change(data: bytes, rng: random.Random, others: list[bytes], pool: Any = pool, name: str = name) -> bytes:
            return bytes(msgpack.packb(decoder.make(rng, pool, name != "wire of jobs")))

        def run(content: bytes, decode: Any = decode) -> None:
            try:
                frames = msgpack.unpackb(content)
            except (ValueError, msgpack.UnpackException):
                return
            if isinstance(frames, list) and frames and all(isinstance(f, bytes) for f in frames):
                decode(frames)

        made.append(Target(name, [msgpack.packb(each) for each in pool], change, run, (module,)))
    return made


def scratch() -> Path:
    """A folder of its own, in memory where that is possible."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(tempfile.mkdtemp(prefix="flegel-fuzz-", dir=base))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)


def modules_of_readers() -> dict[str, tuple[str, ...]]:
    """The files of each reader."""
    folder = scratch()
    try:
        return {target.name: target.modules for target in targets(folder)}
    finally:
        remove(folder)
