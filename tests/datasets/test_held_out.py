"""Rows that are held out of training: the same ones in every process, and never among those that are trained on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from flegel.core.shard import Sparse
from flegel.datasets import Rows, hold_out, open_data, read_shard
from flegel.datasets.rows.kept_rows import held_out_ids
from flegel.errors import DataError

ROWS = np.arange(4000.0).reshape(1000, 4)


def first_numbers(rows: Rows) -> list[int]:
    """Of each row: its number times 4 tells which one it is."""
    features = rows.features
    if isinstance(features, Sparse):
        features = csr_matrix((features.values, features.indices, features.indptr)).toarray()
    return [round(value) // 4 for value in np.asarray(features)[:, -1].tolist()]


def opened(kind: str, folder: Path) -> Any:
    if kind == "array":
        return ROWS
    if kind == "sparse":
        return csr_matrix(ROWS)
    if kind == "weights":
        return ROWS, None, np.ones(len(ROWS))
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, ROWS)
    elif kind == "csv":
        np.savetxt(path, ROWS, delimiter=",", fmt="%g")
    else:
        import pandas

        pandas.DataFrame(ROWS, columns=list("abcd")).to_parquet(path, row_group_size=130)
    return str(path)


@pytest.mark.parametrize("kind", ["array", "sparse", "weights", "npy", "csv", "parquet"])
@pytest.mark.parametrize("part", [0.1, 0.7])
def test_training_and_held_out_rows_are_all_rows_once(kind: str, part: float, tmp_path: Path) -> None:
    data = hold_out(open_data(opened(kind, tmp_path)), part, seed=3)
    assert data.held_out is not None
    held, kept = first_numbers(data.held_out.read()), first_numbers(data.read())
    assert len(held) == round(part * 1000) and len(kept) == data.rows == 1000 - len(held)
    assert sorted(held + kept) == list(range(1000))
    assert held == held_out_ids(1000, part, 3).tolist()  # in the order of the data, by number and seed alone
    assert sorted(first_numbers(data.draw(50))) == first_numbers(data.draw(50))
    assert set(first_numbers(data.draw(50))) <= set(kept)


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
@pytest.mark.parametrize("partition", ["shuffle", "contiguous", "sorted-by 2"])
def test_workers_that_read_their_own_rows_never_see_a_held_out_one(kind: str, partition: str, tmp_path: Path) -> None:
    data = hold_out(open_data(opened(kind, tmp_path)), 0.2, seed=0)
    parts = [read_shard(data.describe(), index, 3, partition, seed=1) for index in range(3)]
    assert sorted(np.concatenate([part.ids for part in parts]).tolist()) == list(range(800))
    seen = [number for part in parts for number in first_numbers(part)]
    assert sorted(seen) == sorted(first_numbers(data.read()))
    assert data.held_out is not None and not set(seen) & set(first_numbers(data.held_out.read()))


@pytest.mark.parametrize("kind", ["npy", "csv", "parquet"])
def test_classes_are_those_of_the_rows_that_are_trained_on(kind: str, tmp_path: Path) -> None:
    data = hold_out(open_data(opened(kind, tmp_path), label=0), 0.1, seed=3)
    known, labels = data.label_values(1000), data.read().labels
    assert known is not None and labels is not None and known.tolist() == labels.tolist()


def test_some_of_the_held_out_rows_are_spread_over_all(tmp_path: Path) -> None:
    data = hold_out(open_data(ROWS), 0.5, seed=0)
    assert data.held_out is not None
    some = first_numbers(data.held_out.read(10))
    assert len(some) == 10 and some[0] < 10 and some[-1] > 990


def test_another_seed_holds_other_rows_out() -> None:
    assert held_out_ids(1000, 0.1, 0).tolist() != held_out_ids(1000, 0.1, 1).tolist()


def test_a_part_that_leaves_nothing_to_train_on_is_refused() -> None:
    with pytest.raises(DataError, match="none left to train on"):
        hold_out(open_data(ROWS[:1]), 0.5, 0)
