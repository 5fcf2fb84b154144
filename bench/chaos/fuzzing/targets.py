"""Everything that reads foreign bytes, each as a function of one input: models, checkpoints, journals, traces, data,
wire. Each may return, or raise an error of ours; anything else is a finding."""

from __future__ import annotations

import hashlib
import io
import json
import random
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgpack
import msgspec
import numpy as np

from bench.chaos import decoder
from bench.chaos.fuzzing.mutation import change_bytes, change_json, change_tree, change_zip
from flegel.cluster.master import journal
from flegel.cluster.master.facts import Begun, Ended, JobTable, Placed, Submitted, snapshot
from flegel.cluster.transport.protocol import ClusterJob
from flegel.datasets import open_data
from flegel.errors import FlegelError
from flegel.job import AlgorithmRef
from flegel.loading.documents import read_json, read_records
from flegel.runtime.checkpoint.format import seal, unseal
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.job import result_store
from flegel.runtime.job.find_algorithm import find_algorithm

ROWS = np.random.default_rng(0).normal(size=(40, 3))
Change = Callable[[bytes, random.Random, list[bytes]], bytes]


@dataclass
class Target:
    """`seeds`: valid inputs. `change`: makes another input of one. `run`: interprets it."""

    name: str
    seeds: list[bytes]
    change: Change
    run: Callable[[bytes], None]


def accepted(call: Callable[[], Any]) -> None:
    """An answer, or an error of ours."""
    try:
        call()
    except FlegelError as error:
        assert str(error), "an error without a sentence"


def targets(folder: Path) -> list[Target]:
    """All of them; files are written below `folder`."""
    return [*_models(folder), _checkpoint(folder), _journal(), _trace(folder), *_data(folder), *_wire()]


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
            found.append(Target(f"{name}/{file}", [(path / file).read_bytes()], change, _model(path, file)))
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
            inner = _change_packed(inner, rng)
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

    return Target("checkpoint", [msgpack.packb([names[0], whole[names[0]], True])], change, run)


def _change_packed(inner: bytes, rng: random.Random) -> bytes:
    try:
        return bytes(msgpack.packb(change_tree(msgpack.unpackb(inner, strict_map_key=False), rng)))
    except (ValueError, TypeError, OverflowError, RecursionError, msgpack.UnpackException):
        return change_bytes(inner, rng, [])


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
    seeds = [journal.MAGIC + b"".join(map(journal.frame, records)), journal.MAGIC + journal.frame(records[-1])]

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        if rng.random() < 0.4:
            return change_bytes(data, rng, others)
        framed = journal.MAGIC
        for record in rng.sample(records, rng.randrange(1, len(records) + 1)):
            body = msgspec.msgpack.encode(record)
            if rng.random() < 0.7:
                body = _change_packed(body, rng)
            framed += struct.pack("<II", len(body), zlib.crc32(body)) + body
        return framed

    return Target("journal", seeds, change, lambda content: accepted(lambda: journal.read(content)))


def _trace(folder: Path) -> Target:
    rows = [{"seconds": 0.1, "iteration": i, "objective": None, "interval": 0.5, "reason": "é"} for i in range(3)]
    seed, path = b"".join(msgpack.packb(row) for row in rows), folder / "trace.msgpack"

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        if rng.random() < 0.5:
            return change_bytes(data, rng, others)
        return b"".join(_change_packed(msgpack.packb(row), rng) for row in rows)

    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: read_records(path))
        accepted(lambda: read_json(path))

    return Target("trace", [seed], change, run)


# -- data and wire -----------------------------------------------------------------------------------------


def _data(folder: Path) -> list[Target]:
    npy, npz = io.BytesIO(), io.BytesIO()
    np.save(npy, ROWS)
    np.savez(npz, X=ROWS, y=ROWS[:, 0])
    text = "\n".join(",".join(f"{v:.3g}" for v in row) for row in ROWS).encode()
    svm = "\n".join("1 " + " ".join(f"{i + 1}:{v:.3g}" for i, v in enumerate(row)) for row in ROWS).encode()
    idx = b"\0\0\x08\x02" + struct.pack(">II", 4, 3) + bytes(range(12))
    made: list[tuple[str, bytes, Change]] = [
        ("rows.csv", b"a,b,c\n" + text, change_bytes), ("rows.npy", npy.getvalue(), change_bytes),
        ("rows.npz", npz.getvalue(), change_zip), ("rows.svm", svm, change_bytes),
        ("x-images-idx3-ubyte", idx, change_bytes), ("rows.csv.gz", zlib.compress(text), change_bytes),
    ]  # fmt: skip
    return [Target(name, [seed], change, _file(folder / name)) for name, seed, change in made]


def _file(path: Path) -> Callable[[bytes], None]:
    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: open_data(path).load())

    return run


def _wire() -> list[Target]:
    pools = decoder.seeds(random.Random(0))
    made = []
    for name, pool, decode in (
        ("wire of jobs", pools[0], decoder.jobs_decoder),
        ("wire of the cluster", pools[1], decoder.server_decoder),
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

        made.append(Target(name, [msgpack.packb(each) for each in pool], change, run))
    return made


def scratch() -> Path:
    """A folder of its own, in memory where that is possible."""
    base = "/dev/shm" if Path("/dev/shm").is_dir() else None
    return Path(tempfile.mkdtemp(prefix="flegel-fuzz-", dir=base))


def remove(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
