"""Records of finished jobs, comparisons and clusters, sources of classes, and jobs that are resumed, for the fuzzing
program: what commands such as report, dashboard, simulate and resume read."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack
import msgspec

from bench.chaos.fuzzing.mutation import change_bytes, change_json
from bench.chaos.fuzzing.target import ROWS, Target, accepted, change_packed
from flegel.algorithms.kmeans import KMeans
from flegel.cluster import fetched_result
from flegel.cluster.launch import kept
from flegel.cluster.launch.processes.ticket import SlaveTicket
from flegel.cluster.slave import coordinator_protocol
from flegel.cluster.transport import keys
from flegel.compare import record as compare_record
from flegel.compare.picture import picture
from flegel.compare.record import Attempt, Comparison
from flegel.compare.replay import Recorded, recorded_attempt
from flegel.core import native_code
from flegel.dashboard import saved_runs
from flegel.errors import UNDECODABLE
from flegel.job import AlgorithmRef
from flegel.loading import class_source
from flegel.loading.damage import damage_as
from flegel.report import write as report
from flegel.runtime.checkpoint.format import seal, unseal
from flegel.runtime.checkpoint.reader import read
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.job import resume
from flegel.runtime.transport.curve import new_key_pair
from flegel.sim.replay import progress
from flegel.sim.replay import record as recorded_cluster

RESULTS = (
    "flegel/report/saved_run.py", "flegel/dashboard/saved_runs.py", "flegel/dashboard/frames.py",
    "flegel/compare/picture.py", "flegel/compare/replay.py", "flegel/sim/replay.py", "flegel/cluster/fetched_result.py",
)  # fmt: skip
COMPARISONS = ("flegel/compare/record.py", "flegel/report/write.py", "flegel/report/comparison.py")


def record_targets(folder: Path) -> list[Target]:
    """Files are written below `folder`."""
    import flegel

    run = folder / "run"
    done = flegel.run("kmeans", ROWS, workers=2, processes=False, max_iterations=4, out=run)
    return [
        *_results(run),
        _comparison(folder / "comparison.json", done.rows, done.worker),
        _class_source(),
        _resume(folder / "resumed"),
        _native_code(),
        *_small_records(folder),
    ]


def _json(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
    return change_json(data, rng) if rng.random() < 0.8 else change_bytes(data, rng, others)


# -- results and comparisons -------------------------------------------------------------------------------


def _results(run: Path) -> list[Target]:
    """The two files of a saved run, each read by everybody who reads runs."""
    whole = {name: (run / name).read_bytes() for name in ("result.json", "trace.msgpack")}

    def rows(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        unpacker = msgpack.Unpacker(raw=False, strict_map_key=False)
        unpacker.feed(whole["trace.msgpack"])
        records = [msgpack.packb(row) for row in unpacker]
        at = rng.randrange(len(records))
        records[at] = change_packed(records[at], rng)
        return b"".join(records) if rng.random() < 0.8 else change_bytes(data, rng, others)

    def reader(name: str) -> Callable[[bytes], None]:
        def read_all(content: bytes) -> None:
            for each, sound in whole.items():
                (run / each).write_bytes(content if each == name else sound)
            accepted(lambda: report.render([report.load(run)]))
            accepted(lambda: saved_runs.read_run(run))
            accepted(lambda: _replayed(run))
            accepted(lambda: fetched_result.read_result(run, KMeans(k=2)))
            if name == "result.json":
                accepted(lambda: report.render([report.load(run / name)]))
                accepted(lambda: saved_runs.read_run(run / name))

        return read_all

    return [
        Target("result.json", [whole["result.json"]], _json, reader("result.json"), RESULTS),
        Target("rows of a trace", [whole["trace.msgpack"]], rows, reader("trace.msgpack"), RESULTS),
    ]


def _replayed(run: Path) -> None:
    """What `flegel simulate --replay` reads before it simulates."""
    found = Recorded(run)
    found.algorithm(None)
    with damage_as(found.damage):
        recorded_cluster(found.rows, min(found.result["workers"], 64))
        recorded_attempt(found, 1.0, False)
        picture(found.rows, found.result["worker"], found.result.get("staleness", {}))
        progress(found.rows, found.result["dataset"]["rows"], False)


def _comparison(path: Path, rows: list[dict[str, Any]], workers: list[dict[str, Any]]) -> Target:
    attempts = [
        Attempt(candidate=name, round=n, outcome="reached", reason="", reached=1.0 + n, seconds=2.0, objective=3.0)
        for name in ("bsp", "fsp")
        for n in range(2)
    ]
    made = Comparison(
        title="bsp beside fsp", algorithm="kmeans", hyperparameters={"k": 2}, dataset={"rows": 40, "columns": 3},
        workers=2, straggler="", seed=0, maximize=False, target=3.0, target_note="given", limit=9.0,
        candidates=["bsp", "fsp"], attempts=attempts, pictures={"bsp": picture(rows, workers, {})},
    )  # fmt: skip

    def run(content: bytes) -> None:
        path.write_bytes(content)
        accepted(lambda: compare_record.read(path))
        accepted(lambda: report.render([report.load(path)]))

    return Target("comparison", [msgspec.json.encode(made)], _json, run, COMPARISONS)


# -- classes and jobs that go on ---------------------------------------------------------------------------


def _class_source() -> Target:
    source = json.dumps({"postponed": True, "pieces": [["own.py", 3, "class Own:\n    pass\n"]]}).encode()

    def run(content: bytes) -> None:
        ref = AlgorithmRef("Own", {}, content.decode("utf-8", "replace") or "x")
        accepted(lambda: class_source.same_code(KMeans, ref))
        accepted(lambda: class_source.instantiate(ref, None))
        accepted(lambda: class_source.instantiate(AlgorithmRef(ref.source, {"k": 2}), None))

    return Target("source of a class", [source], _json, run, ("flegel/loading/class_source.py",))


def _resume(place: Path) -> Target:
    """The record of a job is changed, and the job resumed up to the point at which it would train."""
    import flegel

    flegel.run("kmeans", ROWS, workers=1, processes=False, max_iterations=3, checkpoint=place, sync="bsp")
    for manifest in place.glob("*.manifest"):
        manifest.unlink()
    whole = unseal((place / "job").read_bytes())

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        tree = json.loads(whole)
        if rng.random() < 0.3:
            tree["class_file"] = rng.choice(
                (f"{place}/job:Own", "note.py:Own", ":", "\0:x", "/dev/zero:Own", "x" * 5000)
            )
            tree["job"]["algorithm"]["source"] = rng.choice(("{}", "x", json.dumps({"postponed": 1, "pieces": []})))
            return json.dumps(tree).encode()
        return change_json(whole, rng)

    def run(content: bytes) -> None:
        (place / "job").write_bytes(seal(content))
        accepted(lambda: _until_training(place))

    modules = ("flegel/runtime/job/resume.py", "flegel/loading/code_gate.py", "flegel/runtime/checkpoint/reader.py")
    return Target("job that is resumed", [whole], change, run, modules)


def _until_training(place: Path) -> None:
    from flegel.runtime.job.checkpoint_session import CheckpointSession

    store = FolderStore(place)
    stored = read(store)
    chosen = resume.same_algorithm(stored, None, False, store)
    resume.job_data(stored.record.job, ROWS, None, store.place, chosen)
    session = CheckpointSession(store, 1.0, stored, True)
    resume.starting_point(session)
    session.parameter(chosen)


def _native_code() -> Target:
    """Of the user's own cache; the digest is made right again."""
    body = json.dumps(["wrapper", [["environment", [1, None, {"dtype": "<f8"}]]]]).encode()

    def file(header: bytes, size: int, content: bytes = b"\x7fELF") -> bytes:
        inner = size.to_bytes(8, "little") + header + content
        return native_code.NATIVE_CODE_HEADER + hashlib.sha256(inner).digest() + inner

    def change(data: bytes, rng: random.Random, others: list[bytes]) -> bytes:
        header = _json(body, rng, [])
        size = len(header) if rng.random() < 0.8 else rng.choice((0, 1, 2**32, 2**64 - 1))
        return file(header, size) if rng.random() < 0.8 else change_bytes(data, rng, others)

    def run(content: bytes) -> None:
        native_code.decode(content)

    return Target("compiled code", [file(body, len(body))], change, run, ("flegel/core/native_code.py",))


# -- small records -----------------------------------------------------------------------------------------


def _small_records(folder: Path) -> list[Target]:
    """Key files, entries of keys, tickets of slaves, clusters that are held, lines of a job's processes. The last three
    are decoded by msgspec alone: there are no lines to reach."""
    pair, where = new_key_pair(), folder / "keys"
    (where / "allowed").mkdir(parents=True)
    own, entry = where / "own.key", where / "allowed" / f"{pair.public}.json"

    def key_file(content: bytes) -> None:
        own.unlink(missing_ok=True)
        keys.write_file(own, pair)
        own.write_bytes(content)
        accepted(lambda: keys.load_file(own))
        accepted(lambda: keys.own_pairs(where))

    def key_entry(content: bytes) -> None:
        entry.write_bytes(content)
        accepted(lambda: keys.KeyRegistry(where).find(pair.public))

    def line(content: bytes) -> None:
        for decode in (coordinator_protocol.decode_report, coordinator_protocol.decode_command):
            try:
                decode(content)
            except UNDECODABLE:
                continue

    def ticket(content: bytes) -> None:
        for kind in (SlaveTicket, kept.KeptCluster):
            try:
                msgspec.json.decode(content, type=kind)
            except UNDECODABLE:
                continue

    report = coordinator_protocol.encode(coordinator_protocol.JobFinished(True, "converged"))
    held = msgspec.json.encode(kept.KeptCluster("name", "ssh", "tcp://127.0.0.1:1", 1, 2))
    registry = msgspec.json.encode(keys.KeyEntry(pair.public, "submit", "ann"))
    return [
        Target("key file", [msgspec.json.encode(pair)], _json, key_file, ("flegel/cluster/transport/keys.py",)),
        Target("entry of a key", [registry], _json, key_entry, ("flegel/cluster/transport/keys.py",)),
        Target("line of a job", [report], _json, line, ()),
        Target("ticket of a slave", [held], _json, ticket, ()),
    ]
