"""Rows of one key stay together: dealt, migrated, read from files, handed over after a loss, resumed, and in rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flegel
from flegel import Algorithm, UsageError
from flegel.core.key_borders import borders, nearest_borders, order_by_key
from flegel.core.shard import TILE, make_shard
from flegel.datasets import open_data
from flegel.datasets.rows.keys import deal_keys
from flegel.datasets.rows.partition import parse
from flegel.declarations.statistics import Statistics
from flegel.machine.checkpoint.shard_states import WorkerState, redeal
from flegel.machine.coordinator.redistribution import Redistribution
from flegel.machine.coordinator.roster import Roster
from flegel.machine.worker.point_store import PointStore
from flegel.messages import CheckpointPart

SIZES = st.lists(st.integers(1, 200), min_size=1, max_size=60)


def keys_of(sizes: list[int], seed: int = 0) -> np.ndarray:
    """So many rows of each key, in any order."""
    return np.random.default_rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))


def store_of(keys: np.ndarray, ids: np.ndarray) -> PointStore:
    rows = np.zeros((len(ids), 2))
    shard = make_shard(rows, None, np.zeros((len(ids), 1)), "rows", ids)
    return PointStore(shard, keys=keys)


def owners_of(keys: np.ndarray, ids: np.ndarray) -> set[int]:
    return set(keys[ids].tolist())


@given(SIZES)
def test_rows_of_a_key_lie_side_by_side_and_bundles_of_keys_fill_tiles(sizes: list[int]) -> None:
    keys = keys_of(sizes)
    ordered = keys[order_by_key(keys, np.random.default_rng(1))]
    places = borders(ordered)
    assert len(places) == len(sizes) + 1
    edges = [place for place in places if place % TILE == 0]
    for low, high in zip(edges, [*edges[1:], len(keys)], strict=True):
        assert len(set(ordered[low:high].tolist())) <= TILE  # of 65 partial sums two have the same remainder


@given(SIZES, st.integers(1, 5))
def test_keys_are_dealt_whole_and_every_row_once(sizes: list[int], workers: int) -> None:
    keys = keys_of(sizes)
    if len(sizes) < workers:
        with pytest.raises(UsageError, match=f"at most {len(sizes)} worker"):
            deal_keys(keys, workers, parse("shuffle"), 0)
        return
    dealt = deal_keys(keys, workers, parse("shuffle"), 0)
    assert sorted(np.concatenate(dealt).tolist()) == list(range(len(keys)))
    held = [owners_of(keys, ids) for ids in dealt]
    assert sum(map(len, held)) == len(sizes) and all(held)


def test_shares_of_workers_are_kept_as_far_as_keys_allow() -> None:
    keys = keys_of([10] * 300)
    sizes = [len(ids) for ids in deal_keys(keys, 3, parse("shuffle:0=8,2=none"), 0)]
    assert sizes == [2670, 330, 0]


@given(SIZES, st.integers(TILE, 1000))
def test_windows_of_a_move_are_whole_keys_in_whole_tiles(sizes: list[int], points: int) -> None:
    keys = keys_of(sizes)
    store = store_of(keys, np.arange(len(keys))[order_by_key(keys, np.random.default_rng(2))])
    given_away: set[int] = set()
    for number in range(5):
        window = store.cut((1, number), points, peer=1)
        if window is None:
            break
        assert window.start % TILE == 0 and window.part.points % TILE == 0
        moved = owners_of(keys, window.part.ids)
        assert len(window.part.ids) == sum(sizes[key] for key in moved) and not moved & given_away
        given_away |= moved


@given(SIZES, st.data())
def test_a_worker_that_hands_points_over_gives_whole_keys_and_keeps_one(sizes: list[int], data: Any) -> None:
    keys = keys_of(sizes)
    store = store_of(keys, np.arange(len(keys))[order_by_key(keys, np.random.default_rng(3))])
    most = data.draw(st.integers(1, len(keys)))
    gone = store.schedule.part(most)
    ids = np.concatenate([store.shards[s.shard].ids[s.start : s.end] for s in gone]) if gone else np.zeros(0, int)
    assert len(ids) == sum(sizes[key] for key in owners_of(keys, ids))
    assert store.schedule.owned > 0 or most == len(keys)


@given(SIZES, st.integers(0, 20_000))
def test_a_round_that_was_stopped_among_the_rows_of_a_key_goes_on_to_its_end(sizes: list[int], stop: int) -> None:
    keys = keys_of(sizes)
    store = store_of(keys, np.arange(len(keys))[order_by_key(keys, np.random.default_rng(4))])
    schedule = store.schedule
    schedule.begin()
    run = schedule.next(len(keys))
    assert run is not None
    reached = min(stop, len(keys))
    schedule.advance(run, reached)
    rest = schedule.rest_of_key(run, reached)
    end = reached if rest is None else rest.end
    assert end >= reached and end in borders(keys[store.shards[0].ids])


@given(SIZES, st.lists(st.integers(0, 10_000), max_size=6))
def test_nearest_borders_lie_between_keys(sizes: list[int], wanted: list[int]) -> None:
    keys = np.sort(keys_of(sizes))
    places = np.sort(np.array([min(place, len(keys)) for place in wanted], np.int64))
    found = nearest_borders(keys, places)
    assert set(found.tolist()) <= set(borders(keys).tolist())
    assert (np.diff(found) >= 0).all()


@given(SIZES, st.lists(st.floats(0.1, 5.0), min_size=1, max_size=4))
def test_orphans_are_split_between_keys(sizes: list[int], weights: list[float]) -> None:
    keys = keys_of(sizes)
    redistribution = Redistribution(Roster(), len(keys), keys)
    ids = np.argsort(keys, kind="stable")
    parts = redistribution._split(ids, weights)
    assert np.array_equal(np.concatenate(parts), ids)
    assert sum(len(owners_of(keys, part)) for part in parts) == len(sizes)


@given(SIZES, st.integers(1, 5))
def test_another_number_of_workers_resumes_with_whole_keys(sizes: list[int], workers: int) -> None:
    keys = np.sort(keys_of(sizes))
    ids = np.arange(len(keys))
    part = WorkerState(CheckpointPart(0, ((len(ids), 1),)), ids, np.zeros((len(ids), 1)), np.zeros(len(ids)))
    held = redeal([part], workers, keys)
    assert sum(len(owners_of(keys, each.ids)) for each in held) == len(sizes)
    assert sum(each.points for each in held) == len(ids)


class Visited(NamedTuple):
    by_key: Any
    visits: Any


class WholeKeys(Algorithm):
    """Counts visits by key since the last barrier; θ says whether a barrier ever came between two rows of a key."""

    statistics = Statistics(spent=("by_key", "visits"))
    keys: int = 40
    rows_of_key: int = 150

    def initParameter(self, sample: Any, rng: Any) -> Any:
        return np.zeros(2)

    def contribution(self, dataPoint: Any, parameter: Any) -> Visited:
        by_key = np.zeros(self.keys)
        by_key[int(dataPoint.features[0])] = 1.0
        return Visited(by_key, 1.0)

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        broken = np.count_nonzero(np.asarray(aggregator.by_key) % self.rows_of_key)
        return oldParameter + np.array([broken, 1.0])


def table(folder: Path) -> Path:
    """Rows of forty clips whose names are text, in any order."""
    rng = np.random.default_rng(5)
    keys = rng.permutation(np.repeat(np.arange(40), 150))
    lines = [f"{key},clip-{key:02d},{value:.3f}" for key, value in zip(keys, rng.normal(size=len(keys)), strict=True)]
    path = folder / "clips.csv"
    path.write_text("code,clip,value\n" + "\n".join(lines) + "\n", "utf-8")
    return path


@pytest.mark.parametrize("sync", ["fsp", "asp", "bsp-mini"])
def test_no_barrier_comes_between_rows_of_one_key(tmp_path: Path, sync: str) -> None:
    options: dict[str, Any] = {"interval": 0.002} if sync == "fsp" else {"batches": 7}
    result = flegel.run(
        WholeKeys(),
        table(tmp_path),
        keep_together="clip",
        sync=sync,
        workers=3,
        max_iterations=40,
        processes=False,
        progress=False,
        **options,
    )
    broken, rounds = np.asarray(result.parameter)
    assert broken == 0 and rounds >= 10


def test_the_column_of_keys_is_no_feature(tmp_path: Path) -> None:
    data = open_data(table(tmp_path), keep_together="clip")
    assert data.names == ["code", "value"] and data.columns == 2
    assert np.array_equal(data.keys(), data.read().features[:, 0].astype(int))
    held_out = flegel.datasets.hold_out(data, 0.1, 0)
    assert np.array_equal(held_out.keys(), held_out.read().features[:, 0].astype(int))


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"keep_together": 1}, ["code", "value"]),
        ({"keep_together": "1"}, ["code", "value"]),
        ({"keep_together": "clip", "columns": ["value", "code"]}, ["value", "code"]),
        ({"keep_together": "clip", "columns": ["code"]}, ["code"]),
        ({"keep_together": "clip", "drop": ["clip"]}, ["code", "value"]),
        ({"keep_together": 2, "columns": ["code", "value", "clip"]}, ["code", "value"]),
    ],
)
def test_keys_of_text_are_given_by_number_or_beside_the_chosen_columns(
    tmp_path: Path, options: dict[str, Any], names: list[str]
) -> None:
    data = open_data(table(tmp_path), **options)
    assert data.names == names
    assert np.array_equal(data.keys(), data.read().features[:, names.index("code")].astype(int))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"keep_together": "nobody"}, "no column 'nobody'; known are: clip, code, value"),
        ({"keep_together": "code", "label": "code"}, 'keep_together="code" names the label column; choose another'),
        ({"keep_together": "clip", "drop": ["code", "value"]}, "has no column of features"),
        ({"weight": "clip"}, "Column 'clip' of .* cannot be the weight column: it becomes 40 features"),
        ({"keep_together": "clip", "partition": "contiguous"}, "both say who owns which rows; omit one of them"),
        (
            {"keep_together": "clip", "workers": 41},
            "41 workers need as many keys, and the rows have 40; use at most 40",
        ),
    ],
)
def test_what_cannot_be_kept_together_is_said_in_one_sentence(
    tmp_path: Path, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(flegel.FlegelError, match=sentence) as refused:
        flegel.run(
            WholeKeys(), table(tmp_path), **{"workers": 2, **options}, max_iterations=1, processes=False, progress=False
        )
    assert str(refused.value).count("\n") == 0
