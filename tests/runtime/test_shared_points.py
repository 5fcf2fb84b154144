"""Points that are lent: one memory, two processes, nothing copied but states; what cannot be seen is not used."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from flegel.core.shard import TILE, Shard, Sparse, make_shard
from flegel.errors import DecodeError
from flegel.machine.worker.point_store import PointStore
from flegel.messages import SharedMemoryRef, SharedPointsRef
from flegel.runtime.transport import shared_memory
from flegel.runtime.worker.shared_points import PointSharing, make_shareable

pytestmark = pytest.mark.skipif(not shared_memory.ANONYMOUS, reason="memory without a name is Linux's")
KINDS = ["rows", "tiles", "sparse"]


def shard(kind: str, points: int = 6 * TILE, first: int = 0) -> Shard:
    rng, ids = np.random.default_rng(first), np.arange(first, first + points)
    state = np.full((points, 2), -1, np.int32)
    if kind == "sparse":
        indptr = np.concatenate([[0], np.cumsum(rng.integers(0, 6, size=points))])
        rows: np.ndarray | Sparse = Sparse(indptr, rng.integers(9, size=indptr[-1]), rng.random(indptr[-1]), 9)
    else:
        rows = rng.random((points, 9)).astype(np.float32)
    layout = "tiles" if kind == "tiles" else "rows"
    made = make_shard(rows, ids * 0.5, state, layout, ids, shared_memory.empty, weights=ids + 0.25)
    make_shareable(made)
    return made


def arrays_of(part: Shard) -> list[np.ndarray]:
    f = part.features
    assert part.weights is not None
    return [*(f[:3] if isinstance(f, Sparse) else (f,)), part.labels, part.ids, part.weights]


@pytest.mark.parametrize("inside", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_borrowed_share_is_the_same_memory_with_states_of_its_own(kind: str, inside: bool) -> None:
    theirs, mine = shard(kind), shard(kind, first=5000)
    lent = PointSharing(shared_memory.place_here if inside else shared_memory.place_of).offer(theirs, 2 * TILE)
    assert lent is not None
    borrowed = PointSharing().borrow(lent, mine)
    for ours, original in zip(arrays_of(borrowed), arrays_of(theirs), strict=True):
        assert np.array_equal(ours, original)
        assert (ours.dtype, ours.ndim, ours.flags.writeable) == (
            original.dtype,
            original.ndim,
            original.flags.writeable,
        )
    borrowed.state[...] = 7
    assert (theirs.state == -1).all()
    values = borrowed.features.values if isinstance(borrowed.features, Sparse) else borrowed.features
    original = theirs.features.values if isinstance(theirs.features, Sparse) else theirs.features
    original.flags.writeable = True  # a view that refuses writes
    original.flat[0] = 123.0
    assert values.flat[0] == 123.0, "it is one memory, not two"


@pytest.mark.parametrize("kind", KINDS)
def test_windows_that_are_lent_arrive_whole_and_can_be_lent_on(kind: str) -> None:
    a, b, c = (PointStore(shard(kind, first=5000 * i)) for i in range(3))
    lenders = [PointSharing() for _ in range(3)]
    a.schedule.begin()

    def carry(source: PointStore, target: PointStore, from_: int, to: int, transfer: tuple[int, int]) -> int:
        window = source.cut(transfer, 2 * TILE, to)
        assert window is not None
        body, arrays = window.frames(False, lenders[from_].offer(window.whole, window.start))
        assert body.lent is not None
        lent = None if body.copied else lenders[to].borrow(body.lent, target.shards[0])
        states = lenders[to].states(body.lent, body.points, target.shards[0])
        target.lay_aside(body, (*states, *(np.array(x) for x in arrays)), from_, lent)
        source.settle((transfer,), ())
        target.settle((), (transfer,))
        return sum(x.nbytes for x in arrays)

    sizes = [carry(a, b, 0, 1, (1, n)) for n in range(2)]
    assert max(sizes) == 0, "nobody voted to halt, and all the rest can be seen"
    assert len(b.shards) == 2 and b.schedule.owned == 10 * TILE, "windows of one lender lie in one share"
    moved = b.schedule.segments[-1]
    while b.schedule.copy_of(moved.block) is None:  # type: ignore[arg-type]
        carry(b, c, 1, 2, (2, len(c.shards) + c.schedule.owned))
    states, ids = (np.concatenate(x) for x in zip(*(h.collect() for h in (a, b, c)), strict=True))
    assert sorted(ids) == [*range(6 * TILE), *range(5000, 5000 + 6 * TILE), *range(10_000, 10_000 + 6 * TILE)]
    assert (states == -1).all()


@pytest.mark.parametrize("kind", KINDS)
def test_states_are_those_of_the_moment_when_the_window_came(kind: str) -> None:
    """And a window that is called off leaves the copy as it was that the target had of its points."""
    a, b = (PointStore(shard(kind, first=5000 * i)) for i in range(2))
    lenders = [PointSharing(), PointSharing()]

    def lay_aside(source: PointStore, target: PointStore, from_: int, transfer: tuple[int, int]) -> None:
        window = source.cut(transfer, 2 * TILE, 1 - from_)
        assert window is not None
        body, arrays = window.frames(False, lenders[from_].offer(window.whole, window.start))
        assert body.lent is not None
        lent = None if body.copied else lenders[1 - from_].borrow(body.lent, target.shards[0])
        states = lenders[1 - from_].states(body.lent, body.points, target.shards[0])
        target.lay_aside(body, (*states, *arrays), from_, lent)

    lay_aside(a, b, 0, (1, 0))
    a.shards[0].state[...] = 5
    a.settle(((1, 0),), ())
    b.settle((), ((1, 0),))
    assert (b.collect()[0] == -1).all(), "what became of the lender's memory later does not matter"
    b.shards[1].state[...] = 8
    lay_aside(b, a, 1, (2, 0))
    assert (a.shards[0].state == 5).all(), "the copy is as it was until the window changes hands"
    b.settle(((2, 0),), ())
    a.settle((), ((2, 0),))
    assert sorted(np.unique(a.collect()[0])) == [5, 8]


def test_states_of_another_kind_are_not_read() -> None:
    theirs = shard("rows")
    lent = PointSharing().offer(theirs, 0)
    assert lent is not None and lent.state is not None
    with pytest.raises(DecodeError, match="another kind"):
        PointSharing().states(lent, TILE, replace(shard("rows"), state=np.zeros((6 * TILE, 3), np.int32)))
    with pytest.raises(DecodeError, match="1000 points"):
        PointSharing().states(lent, 1000, shard("rows"))


def test_memory_outlives_the_process_that_made_it(tmp_path: Path) -> None:
    """The lender ends; whoever has the memory open keeps it, and others cannot open it any more."""
    code = (
        "import numpy as np, sys, msgspec\n"
        "from flegel.runtime.transport import shared_memory as memory\n"
        "a = memory.empty((1000,), 'f8'); a[:] = np.arange(1000)\n"
        "sys.stdout.buffer.write(msgspec.json.encode(memory.place_of(a)) + b'\\n'); sys.stdout.flush()\n"
        "sys.stdin.read()\n"
    )
    import msgspec

    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stdin is not None
        place = msgspec.json.decode(process.stdout.readline(), type=SharedMemoryRef)
        seen = shared_memory.open_place(place, writable=False)
        process.stdin.close()
        process.wait(timeout=600)
    assert seen.sum() == 999 * 500
    shared_memory._open.clear()
    with pytest.raises(OSError):
        shared_memory.open_place(place, writable=False)
    assert seen[999] == 999


def test_a_place_that_now_holds_something_else_is_not_believed() -> None:
    place = shared_memory.place_of(shared_memory.empty((10,), "f8"))
    assert place is not None
    other = shared_memory.place_of(kept := shared_memory.empty((10,), "f8"))
    assert other is not None and kept.size
    with pytest.raises(OSError, match="not there any more"):
        shared_memory.open_place(replace_place(other, name=place.name), writable=False)


def replace_place(place: SharedMemoryRef, **changes: object) -> SharedMemoryRef:
    import msgspec

    return msgspec.structs.replace(place, **changes)


@pytest.mark.parametrize(
    "changes",
    [{"offset": -8}, {"offset": 8}, {"offset": 1, "shape": (1,)}, {"shape": (2**40, 2**40)}, {"dtype": "O"}],
)
def test_a_place_outside_of_its_memory_is_refused(changes: dict[str, object]) -> None:
    array = shared_memory.empty((512,), "f8")
    place = shared_memory.place_of(array)
    assert place is not None
    with pytest.raises(DecodeError):
        shared_memory.open_place(replace_place(place, **changes), writable=False)


def test_points_of_another_kind_are_not_borrowed() -> None:
    theirs = shard("rows")
    lent = PointSharing().offer(theirs, 0)
    assert lent is not None
    for native in (shard("sparse"), replace(shard("rows"), features=np.zeros((4, 3), np.float32))):
        with pytest.raises(DecodeError):
            PointSharing().borrow(lent, native)
    beyond = SharedPointsRef(10**6, lent.points, lent.ids, lent.features, lent.labels)
    with pytest.raises(DecodeError):
        PointSharing().borrow(beyond, shard("rows"))


def test_private_memory_is_not_lent() -> None:
    plain = make_shard(np.zeros((TILE, 2)), None, np.zeros((TILE, 1)), "rows")
    assert PointSharing().offer(plain, 0) is None
    assert shared_memory.place_of(shared_memory.empty((4, 4), "f8")[:, 1:3]) is None


def test_room_keeps_what_is_written_while_it_is_prepared() -> None:
    array = shared_memory.room((1 << 18,), "f8")
    array[:] = 1.0
    assert array.sum() == 1 << 18


def test_arrays_of_this_process_are_found_by_name_as_long_as_they_are_there() -> None:
    array = np.arange(6.0).reshape(2, 3)
    place = shared_memory.place_here(array)
    assert place is not None and shared_memory.place_here(array.T) is None
    assert np.shares_memory(shared_memory.open_place(place, writable=False), array)
    with pytest.raises(DecodeError, match="not what was described"):
        shared_memory.open_place(msgspec.structs.replace(place, shape=(3, 2)), writable=False)
    with pytest.raises(FileNotFoundError):
        shared_memory.open_place(msgspec.structs.replace(place, pid=place.pid + 1), writable=False)
    del array
    with pytest.raises(FileNotFoundError):
        shared_memory.open_place(place, writable=False)
