"""Points travel whole: features, labels, weights, states, votes, numbers, passes; a way back sends next to nothing."""

from __future__ import annotations

import numpy as np
import pytest

from flegel.core.shard import TILE, Shard, Sparse, make_shard
from flegel.errors import DecodeError
from flegel.machine.worker.point_store import OutgoingWindow, PointStore
from flegel.machine.worker.window_codec import take_states
from flegel.messages import Window

KINDS = ["rows", "tiles", "sparse"]


def shard(kind: str, points: int = 10 * TILE, first: int = 0, columns: int = 28) -> Shard:
    rng = np.random.default_rng(first)
    ids = np.arange(first, first + points)
    state = np.full((points, 2), -1, np.int32)
    if kind == "sparse":
        lengths = rng.integers(0, 6, size=points)
        indptr = np.concatenate([[0], np.cumsum(lengths)])
        rows = Sparse(indptr, rng.integers(columns, size=indptr[-1]), rng.random(indptr[-1]), columns)
        return make_shard(rows, ids * 0.5, state, "rows", ids, weights=ids + 0.25)
    dense = rng.random((points, columns)).astype(np.float32)
    return make_shard(dense, ids * 0.5, state, kind, ids, weights=ids + 0.25)


def carry(
    source: PointStore, target: PointStore, transfer: tuple[int, int], points: int, peers: tuple[int, int]
) -> int:
    """One window from source to target and its settlement; returns the bytes that travelled."""
    window = source.cut(transfer, points, peers[1])
    assert window is not None
    body, arrays = window.frames(full=False)
    if not target.usable(body):
        body, arrays = window.frames(full=True)
    target.prepare(transfer[0], points)
    target.lay_aside(body, tuple(np.array(a) for a in arrays), peers[0])
    source.settle((transfer,), ())
    target.settle((), (transfer,))
    return sum(a.nbytes for a in arrays)


def rows_of(store: PointStore) -> dict[int, tuple[object, ...]]:
    """Everything about each owned point, by its number."""
    found: dict[int, tuple[object, ...]] = {}
    for s in store.schedule.held():
        part = store.shards[s.shard]
        state = take_states(part, np.arange(part.points))
        for i in range(s.start, s.end):
            if isinstance(part.features, Sparse):
                cut = slice(part.features.indptr[i], part.features.indptr[i + 1])
                data: object = (tuple(part.features.indices[cut]), tuple(part.features.values[cut]))
            elif part.layout == "tiles":
                data = tuple(part.features[i // TILE, :, i % TILE])
            else:
                data = tuple(part.features[i])
            assert part.weights is not None
            assert part.weights.reshape(-1)[i] == part.ids[i] + 0.25
            found[int(part.ids[i])] = (data, part.labels[i], tuple(state[i]), part.halted[i], s.passes)
    return found


def visit(store: PointStore, mark: int, points: int = 10**9) -> None:
    store.schedule.begin()
    while points > 0 and (run := store.schedule.next(points)):
        part = store.shards[run.shard]
        lanes = np.arange(run.start, run.end)
        if part.layout == "tiles":
            part.state[lanes // TILE, :, lanes % TILE] = mark
        else:
            part.state[lanes] = mark
        part.halted[run.start : run.end : 7] = 1
        store.schedule.advance(run, run.end)
        points -= run.end - run.start


@pytest.mark.parametrize("kind", KINDS)
def test_everything_about_a_point_arrives(kind: str) -> None:
    here, there = PointStore(shard(kind)), PointStore(shard(kind, first=5000))
    visit(here, 3, 4 * TILE)
    before = rows_of(here) | rows_of(there)
    for number in range(3):
        carry(here, there, (1, number), 2 * TILE, (0, 1))
    assert rows_of(here) | rows_of(there) == before
    assert here.schedule.owned == 4 * TILE and there.schedule.owned == 16 * TILE
    assert here.halted + there.halted == sum(1 for row in before.values() if row[3])


@pytest.mark.parametrize("kind", KINDS)
def test_arrivals_look_to_compiled_code_like_natives(kind: str) -> None:
    native = shard(kind)
    if kind == "rows":
        native.features.flags.writeable = False  # type: ignore[union-attr]
    here, there = PointStore(shard(kind, first=5000)), PointStore(native)
    carry(here, there, (1, 0), 2 * TILE, (0, 1))
    came = there.shards[1]
    ours = native.features if isinstance(native.features, Sparse) else (native.features,)
    theirs = came.features if isinstance(came.features, Sparse) else (came.features,)
    pairs = list(zip(ours, theirs, strict=True))[:3]
    pairs += [(native.state, came.state), (native.labels, came.labels), (native.halted, came.halted)]
    for a, b in pairs:
        assert (a.dtype, a.ndim, a.flags.writeable, a.flags.c_contiguous, a.flags.aligned) == (
            b.dtype, b.ndim, b.flags.writeable, b.flags.c_contiguous, b.flags.aligned,
        )  # fmt: skip


@pytest.mark.parametrize("kind", ["rows", "tiles"])
def test_windows_of_a_move_lie_side_by_side(kind: str) -> None:
    here, there = PointStore(shard(kind)), PointStore(shard(kind, first=5000))
    there.prepare(1, 6 * TILE)
    for number in range(3):
        window = here.cut((1, number), 2 * TILE, 1)
        assert window is not None
        body, arrays = window.frames(False)
        there.lay_aside(body, tuple(np.array(a) for a in arrays), 0)
    there.settle((), ((1, 0), (1, 1), (1, 2)))
    there.schedule.begin()
    assert len(there.shards) == 2
    run = there.schedule.next(10**6)
    assert run is not None
    there.schedule.advance(run, run.end)
    after = there.schedule.next(10**6)
    assert after is not None and (after.shard, after.start, after.end) == (1, 0, 6 * TILE)


@pytest.mark.parametrize("kind", KINDS)
def test_the_way_back_sends_only_what_changed(kind: str) -> None:
    """< 1 % of the bytes where states are as they were; the copy's stale states are refreshed where they are not."""
    here, there = PointStore(shard(kind, columns=120)), PointStore(shard(kind, first=5000, columns=120))
    visit(here, 3)
    there_before = carry(here, there, (1, 0), 8 * TILE, (0, 1))
    back = carry(there, here, (2, 0), 8 * TILE, (1, 0))
    if kind != "sparse":  # a sparse point is hardly larger than its state
        assert back < 0.01 * there_before
    assert here.schedule.owned == 10 * TILE
    carry(here, there, (3, 0), 8 * TILE, (0, 1))
    visit(there, 9)
    before = rows_of(here) | rows_of(there)
    carry(there, here, (4, 0), 8 * TILE, (1, 0))
    assert rows_of(here) | rows_of(there) == before
    assert any(row[2] == (9, 9) for row in rows_of(here).values())


def test_a_stale_copy_is_refreshed_after_a_detour() -> None:
    """A gives to B, B to C, C back to A: A's copy is older than C knows, so the whole state is sent."""
    a, b, c = (PointStore(shard("tiles", first=5000 * i)) for i in range(3))
    carry(a, b, (1, 0), 2 * TILE, (0, 1))
    visit(b, 4)
    moved = next(iter(b._origins))
    while b.schedule.copy_of(moved) is None:
        carry(b, c, (2, len(b.shards) + len(c.shards)), 2 * TILE, (1, 2))
    visit(c, 5)
    before = rows_of(a) | rows_of(b) | rows_of(c)
    number = 0
    while a.schedule.copy_of(moved) is not None:
        carry(c, a, (3, number), 2 * TILE, (2, 0))
        number += 1
    assert rows_of(a) | rows_of(b) | rows_of(c) == before


def test_a_target_without_the_copy_says_so() -> None:
    store = PointStore(shard("rows"))
    assert not store.usable(Window(1, 0, (0, 0), TILE, 1, copied=True))
    assert store.usable(Window(1, 0, (0, 0), TILE, 1))


def test_a_damaged_window_is_refused() -> None:
    here, there = PointStore(shard("rows")), PointStore(shard("rows", first=5000))
    window = here.cut((1, 0), 2 * TILE, 1)
    assert isinstance(window, OutgoingWindow)
    body, arrays = window.frames(False)
    there.prepare(1, 2 * TILE)
    for wrong in ([], arrays[:3], [*arrays[:3], arrays[3][:5], *arrays[4:]], [*arrays[:4], arrays[4][:, :3]]):
        with pytest.raises(DecodeError):
            there.lay_aside(body, tuple(wrong), 0)
    there.drop(1)
    assert there.schedule.owned == 10 * TILE
