"""Each row goes to exactly one worker, whatever the partition; shuffled shards look alike, skewed ones do
not.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flegel.datasets import open_data, plan_rows
from flegel.datasets.rows.row_ranges import compress, cut, expand, group
from flegel.errors import DataError, UsageError
from tests.datasets.helpers import check_shards

partitions = st.sampled_from(
    ["shuffle", "shuffle:0=50,3-4=7", "contiguous", "sorted-by 0", "dirichlet:0.2", "dirichlet:100"]
)


@given(rows=st.integers(1, 6000), count=st.integers(1, 12), partition=partitions, seed=st.integers(-5, 2**70))
def test_shards_cover_every_row_once(rows: int, count: int, partition: str, seed: int) -> None:
    if rows < count:
        with pytest.raises(UsageError, match="workers need at least"):
            plan_rows(rows, 0, count, partition, seed)
        return
    values = np.random.default_rng(rows).integers(0, 4, rows).astype(float)
    parts = [plan_rows(rows, i, count, partition, seed, column=lambda _: values) for i in range(count)]
    ids = np.concatenate([expand(part) for part in parts])
    assert np.array_equal(np.sort(ids), np.arange(rows))
    assert all(len(expand(part)) for part in parts)


@given(
    sizes=st.lists(st.integers(0, 50), min_size=1, max_size=200),
    count=st.integers(1, 5),
    seed=st.integers(0, 9),
)
def test_natural_blocks_are_dealt_whole(sizes: list[int], count: int, seed: int) -> None:
    edges = np.concatenate(([0], np.cumsum(sizes)))
    rows = int(edges[-1])
    if rows < count:
        return
    parts = [plan_rows(rows, i, count, "shuffle", seed, edges=edges) for i in range(count)]
    assert np.array_equal(np.sort(np.concatenate([expand(p) for p in parts])), np.arange(rows))
    if len(sizes) >= 8 * count:
        blocks = {(int(a), int(b)) for a, b in itertools.pairwise(edges)}
        assert all((int(a), int(b)) in blocks for part in parts for a, b in part)


@given(st.lists(st.integers(0, 60), max_size=80))
def test_ranges_and_row_numbers_say_the_same(ids: list[int]) -> None:
    assert expand(compress(np.array(ids, np.int64))).tolist() == ids


def test_ranges_are_cut_where_blocks_begin() -> None:
    edges = np.array([0, 10, 20, 30])
    assert cut(np.array([[5, 25], [10, 20]]), edges).tolist() == [[5, 10], [10, 20], [20, 25], [10, 20]]


def test_shuffled_shards_of_a_sorted_file_have_the_same_labels() -> None:
    labels = np.repeat([0.0, 1.0], [30_000, 10_000])
    for count in (2, 3, 8):
        for index in range(count):
            mine = labels[expand(plan_rows(len(labels), index, count, "shuffle", 1))]
            assert abs(mine.mean() - 0.25) < 0.01


def test_the_order_within_a_shuffled_shard_is_mixed_too() -> None:
    ids = expand(plan_rows(40_000, 0, 2, "shuffle", 1))
    assert abs(ids[:2000].mean() - 20_000) < 2500


def test_sorted_by_gives_each_worker_a_range_of_values() -> None:
    data = open_data("blobs:9000")
    shards = check_shards(data, 3, "sorted-by 2")
    tops = [(float(s.features[:, 2].min()), float(s.features[:, 2].max())) for s in shards]
    assert tops[0][1] <= tops[1][0]
    assert tops[1][1] <= tops[2][0]
    by_label = check_shards(data, 2, "sorted-by label")
    assert by_label[0].labels.max() <= by_label[1].labels.min()


def test_a_small_alpha_skews_labels_and_a_large_one_does_not() -> None:
    data = open_data("blobs:20000")

    def spread(alpha: float) -> float:
        shards = check_shards(data, 4, f"dirichlet:{alpha}", seed=2)
        table = np.array([np.bincount(s.labels.astype(int), minlength=10) / len(s.ids) for s in shards])
        return float(table.std(axis=0).mean())

    assert spread(0.1) > 5 * spread(1000)


def test_another_seed_gives_other_shards_and_the_same_seed_the_same() -> None:
    data = open_data("blobs:5000")
    first, again, other = (data.shard(0, 2, "shuffle", seed) for seed in (1, 1, 2))
    assert np.array_equal(first.ids, again.ids)
    assert not np.array_equal(first.ids, other.ids)


@pytest.mark.parametrize("text", ["random", "dirichlet:0", "dirichlet:x", "dirichlet:-1", "sorted-by", ""])
def test_a_wrong_partition_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        plan_rows(10, 0, 2, text)


def test_a_partition_by_label_needs_labels() -> None:
    data = open_data(np.random.default_rng(0).random((50, 3)))
    with pytest.raises(DataError, match="no labels"):
        data.shard(0, 2, "dirichlet:0.5")
    with pytest.raises(DataError, match="column"):
        data.shard(0, 2, "sorted-by 9")


@pytest.mark.parametrize("seed", range(60))
def test_ranges_in_groups_keep_their_rows_and_their_order(seed: int) -> None:
    rng = np.random.default_rng(seed)
    starts = rng.integers(0, 60, rng.integers(0, 12))
    ranges = np.stack([starts, starts + rng.integers(0, 15, len(starts))], axis=1).astype(np.int64)
    edges = np.unique(rng.integers(0, 80, rng.integers(0, 10))).astype(np.int64)
    rows = int(rng.integers(1, 20))
    pieces = cut(ranges, edges)
    assert np.array_equal(expand(pieces), expand(ranges))
    assert all(np.searchsorted(edges, a, "right") == np.searchsorted(edges, b - 1, "right") for a, b in pieces)
    for exact in (True, False):
        groups = list(group(pieces, rows, exact))
        sizes = [int((g[:, 1] - g[:, 0]).sum()) for g in groups]
        assert np.array_equal(expand(np.concatenate([*groups, ranges[:0]])), expand(ranges))
        assert all(size == rows if exact else size >= rows for size in sizes[:-1])
        shorter = [size - int(g[-1, 1] - g[-1, 0]) for size, g in zip(sizes, groups, strict=True)]
        assert all(size < rows for size in shorter)


def test_shards_are_as_large_as_their_shares() -> None:
    sizes = [len(expand(plan_rows(100_000, i, 4, "shuffle:0=5,2=2", 1))) for i in range(4)]
    assert np.allclose(np.array(sizes) / 100_000, np.array([5, 1, 2, 1]) / 9, atol=0.01)
    whole = open_data(np.arange(9000.0)[:, None])
    assert [len(ids) for ids in whole.owners(4, "shuffle:0=5,2=2", 1)] == [5000, 1000, 2000, 1000]
    assert [len(ids) for ids in whole.owners(4, "shuffle:0=2,1=none,3=none", 1)] == [6000, 0, 3000, 0]
    for text in ("shuffle:", "shuffle:0", "shuffle:0=0", "shuffle:a=2", "shuffle:0=1e999"):
        with pytest.raises(UsageError, match="needs shares"):
            plan_rows(100, 0, 4, text)
