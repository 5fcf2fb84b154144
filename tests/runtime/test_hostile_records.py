"""A corpus of hostile records, made here: objects of groups, windows of points, results. Errors of ours alone."""

from __future__ import annotations

import json
import random
import socket
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest

from bench.chaos.fuzzing.message_targets import KINDS, message_targets
from bench.chaos.fuzzing.record_targets import record_targets
from flegel.algorithms.kmeans.kmeans import Centroids, KMeans
from flegel.core.shard import TILE, Sparse, make_shard
from flegel.errors import DecodeError, StorageError, UsageError
from flegel.machine.checkpoint.shard_states import WorkerState
from flegel.machine.group import records
from flegel.machine.group.contributions import Contributions
from flegel.machine.group.records import Contribution, Entry, decode, digest_of
from flegel.machine.worker import window_codec
from flegel.messages import CheckpointPart, Window
from flegel.report import write as report
from flegel.runtime.checkpoint.session import CheckpointSession
from flegel.runtime.checkpoint.store import FolderStore
from flegel.runtime.group.keys import PlainObjects
from flegel.runtime.group.peers import GroupMessenger, parse_listen

ROOT = Path(__file__).resolve().parents[2]

# -- objects of groups ---------------------------------------------------------------------------------------

HEADER = {"group": "lyon", "life": 7, "round": 2, "fields": 1, "visits": 1.0, "points": 3, "settled": False}


def made(header: Any, frames: Any, body: bytes = b"", size: int | None = None) -> bytes:
    head = msgpack.packb([header, frames])
    return records.RECORD_MARK + (len(head) if size is None else size).to_bytes(4, "little") + head + body


CORPUS = {
    "nothing": b"",
    "magic alone": records.RECORD_MARK,
    "another magic": b"FLGX" + bytes(60),
    "header beyond the end": made(HEADER, [], size=1000),
    "header of 4 GiB": made(HEADER, [], size=2**32 - 1),
    "an empty array whose other side is 2**63": made(HEADER, [["<f8", [0, 2**63]]]),
    "an empty array of 2**40 by 2**40": made(HEADER, [["<f8", [0, 2**40, 2**40]]]),
    "a side of 2**64 - 1": made(HEADER, [["<f8", [2**64 - 1]]]),
    "sides whose product wraps around to 0": made(HEADER, [["<f8", [2**32, 2**32]]]),
    "sides whose product wraps around to 8": made(HEADER, [["|u1", [2**61 + 1, 8]]], bytes(8)),
    "a negative side": made(HEADER, [["<f8", [-1]]]),
    "two negative sides": made(HEADER, [["<f8", [-1, -1]]], bytes(8)),
    "nine dimensions": made(HEADER, [["<f8", [1] * 9]], bytes(8)),
    "objects": made(HEADER, [["|O8", [1]]], bytes(8)),
    "a record type": made(HEADER, [["(1000000,)f8", [1]]], bytes(8)),
    "no type": made(HEADER, [["", [1]]], bytes(8)),
    "less than announced": made(HEADER, [["<f8", [3]]], bytes(23)),
    "more than announced": made(HEADER, [["<f8", [3]]], bytes(25)),
    "a million arrays": made(HEADER, [["<f8", [0, 2**62]]] * 1000),
    "no frames": made(HEADER, None),
    "no header": made(None, []),
    "a header of another kind": made({"round": 4, "more": 1}, []),
    "text that is not UTF-8": made(HEADER, []).replace(b"lyon", b"\xff\xfe\xfd\xfc"),
    "nested": records.RECORD_MARK + (100_000).to_bytes(4, "little") + b"\x91" * 100_000,
    "a map of four billion": records.RECORD_MARK + (5).to_bytes(4, "little") + b"\xdf\xff\xff\xff\xff",
    "numbers that do not fit": made({**HEADER, "life": 2**64 - 1, "round": -(2**63)}, []),
}


@pytest.mark.parametrize("name", CORPUS)
def test_a_hostile_object_is_refused_with_a_sentence(name: str) -> None:
    content = CORPUS[name]
    for kind, _ in KINDS:
        try:
            decode(content, kind)
        except DecodeError as error:
            assert str(error)
        else:
            assert kind is Contribution and name == "numbers that do not fit"
    told = Contributions([(3,)]).accept(Entry("lyon", 7, "k", digest_of(content), 2), content)
    assert told, "the thread that synchronizes goes on"


def test_sound_objects_are_read() -> None:
    for kind, content in KINDS:
        header, _ = decode(content, kind)
        assert type(header) is kind


# -- windows of points ---------------------------------------------------------------------------------------

POINTS = 2 * TILE


def shard(layout: str = "rows") -> Any:
    state = np.zeros((POINTS, 2))
    if layout == "sparse":
        entries = Sparse(np.arange(POINTS + 1), np.arange(POINTS) % 3, np.ones(POINTS), 3)
        return make_shard(entries, None, state, "rows")
    return make_shard(np.ones((POINTS, 3)), None, state, layout)


def place(native: Any, window: Window, arrays: list[Any]) -> None:
    incoming = window_codec.unpack(window, tuple(arrays), 1)
    window_codec.check_states(incoming, native)
    if not window.copied:
        window_codec.MoveBuffer(native, POINTS).place(window, tuple(arrays))


@pytest.mark.parametrize("layout", ["rows", "tiles", "sparse"])
def test_windows_that_do_not_fit_are_refused(layout: str) -> None:
    native = shard(layout)
    whole = Window(1, 0, (0, 1), POINTS, 1)
    arrays = window_codec.pack(native)
    place(native, whole, arrays)
    strange = [np.zeros(()), np.zeros(0), np.zeros((1, 1)), np.zeros((POINTS + 1, 2)), np.zeros(POINTS - 1)]
    for at in range(len(arrays)):
        for other in strange:
            changed = [*arrays[:at], other, *arrays[at + 1 :]]
            if other.shape == (0,) and at in (1, 2):
                continue  # votes and labels that are all zero are left out
            with pytest.raises(DecodeError):
                place(native, whole, changed)
    for points in (-1, 0, POINTS - 1, POINTS + 1, 2**62):
        with pytest.raises(DecodeError):
            place(native, Window(1, 0, (0, 1), points, 1), arrays)


def test_sparse_rows_that_would_lead_compiled_code_astray_are_refused() -> None:
    native, window = shard("sparse"), Window(1, 0, (0, 1), POINTS, 1)
    arrays = window_codec.pack(native)
    backwards = np.arange(POINTS + 1)
    backwards[3] = POINTS
    for at, other in (
        (4, backwards),
        (4, np.arange(POINTS + 1) + 1),
        (5, np.full(POINTS, 3)),
        (5, np.full(POINTS, -1)),
    ):
        with pytest.raises(DecodeError):
            place(native, window, [*arrays[:at], other, *arrays[at + 1 :]])


def test_changed_states_of_another_kind_are_refused() -> None:
    native, window = shard("rows"), Window(1, 0, (0, 1), POINTS, 1, True, True)
    bits = np.zeros(POINTS // 8, np.uint8)
    bits[0] = 128
    place(native, window, [bits, np.zeros((1, 2)), np.zeros(0)])
    for one, rows in (
        (bits, np.zeros((1, 3))), (bits, np.zeros((2, 2))), (bits, np.zeros(1)), (bits[:-1], np.zeros((1, 2))),
        (bits.astype(float), np.zeros((1, 2))), (bits[:, None], np.zeros((1, 2))),
    ):  # fmt: skip
        with pytest.raises(DecodeError):
            place(native, window, [one, rows, np.zeros(0)])


# -- some fuzzing of every small reader ----------------------------------------------------------------------


def test_changed_records_and_messages_raise_errors_of_ours_alone(tmp_path: Path) -> None:
    """The long run of this is `python -m bench.chaos.fuzz`."""
    rng = random.Random(7)
    for target in [*record_targets(tmp_path), *message_targets()]:
        assert all((ROOT / module).is_file() for module in target.modules), target.name
        for seed in target.seeds:
            target.run(seed)
        for _ in range(40):
            target.run(target.change(rng.choice(target.seeds), rng, target.seeds))


def test_a_report_of_a_strange_result_is_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    for content in ("[]", "{}", "1", '{"kind": "compare"}', '{"kind": "bench", "format": []}', "[" * 100_000):
        path.write_text(content)
        with pytest.raises((StorageError, UsageError)):
            report.load(path)
    path.write_text(json.dumps({"algorithm": 1, "trace": [[1, 2, 3, 4]], "worker": [], "dataset": None}))
    with pytest.raises(StorageError, match="cannot be shown"):
        report.render([report.load(path)])


# -- small doors ---------------------------------------------------------------------------------------------


def test_a_group_listens_at_the_address_that_was_given_and_no_other() -> None:
    listener = GroupMessenger("127.0.0.1:0", PlainObjects(), lambda content: None)
    try:
        port = int(listener.address.split()[0].rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port), timeout=60):
            pass
        with socket.socket() as other:
            other.bind(("127.0.0.2", port))  # taken, if it listened at all addresses
    finally:
        listener.close()


def test_where_a_group_listens_and_where_others_send_may_be_told_apart() -> None:
    assert parse_listen("paris.example.org:7700") == ("paris.example.org", 7700, "paris.example.org")
    assert parse_listen("10.0.0.5/paris.example.org:7700") == ("paris.example.org", 7700, "10.0.0.5")
    assert parse_listen("0.0.0.0/paris:0") == ("paris", 0, "0.0.0.0")
    for wrong in ("0.0.0.0:7700", "[::]:7700", "7700", ":7700", "paris", "paris:99999", "10.0.0.5/:7700"):
        with pytest.raises(UsageError, match="group_listen="):
            parse_listen(wrong)
    with pytest.raises(UsageError, match="say ADDRESS/"):
        GroupMessenger("192.0.2.1:7700", PlainObjects(), lambda content: None)  # an address that no host has


# -- checkpoints -------------------------------------------------------------------------------------------------


def test_points_of_a_checkpoint_that_compiled_code_could_not_use_are_refused(tmp_path: Path) -> None:
    """A cluster number beyond the centroids was a place in an array, and ended the process."""
    session = CheckpointSession(FolderStore(tmp_path), 1.0)
    limits = KMeans(k=3).stateLimits(Centroids(np.zeros((3, 2)), np.zeros(2)))

    def part(ids: list[int], states: list[int]) -> WorkerState:
        kept = CheckpointPart(0, ((len(ids), 1),))
        return WorkerState(kept, np.array(ids), np.array(states, np.int32)[:, None], np.zeros(len(ids), np.uint8))

    session.check_points(limits, 4, [part([2, 0], [-1, 2]), part([1, 3], [0, 1])])
    for states in ([0, 3], [-2, 0], [2**31 - 1, 0]):
        with pytest.raises(StorageError, match="states of points"):
            session.check_points(limits, 2, [part([0, 1], states)])
    for ids in ([0, 0], [0, 2], [-1, 0], [0]):
        with pytest.raises(StorageError, match="each of the 2 points once"):
            session.check_points(None, 2, [part(ids, [0] * len(ids))])
