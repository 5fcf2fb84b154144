"""Any rows of a data set in any order: what a share is after points have moved, whatever kind of file holds them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel.core.shard import Sparse
from flegel.datasets import open_data
from flegel.errors import DataError
from flegel.runtime.worker.row_sources import open_ids, open_rows

ROWS = np.random.default_rng(0).normal(size=(500, 4)).round(3)


def written(kind: str, folder: Path) -> Any:
    path = folder / f"rows.{kind}"
    if kind == "npy":
        np.save(path, ROWS)
    elif kind == "csv":
        np.savetxt(path, ROWS, delimiter=",", fmt="%.3f")
    else:
        lines = (" ".join(["1", *(f"{i + 1}:{v:.3f}" for i, v in enumerate(row) if v > 0)]) for row in ROWS)
        path.write_text("\n".join(lines) + "\n")
    return open_data(path)


@pytest.mark.parametrize("kind", ["npy", "csv", "svm"])
def test_rows_come_in_the_order_of_their_numbers(kind: str, tmp_path: Path) -> None:
    ids = np.random.default_rng(1).permutation(500)[:123]
    rows = open_ids({"kind": "dataset", "description": written(kind, tmp_path).describe()}, ids)
    assert np.array_equal(rows.ids, ids)
    features = rows.features
    if isinstance(features, Sparse):
        dense = np.zeros((len(ids), features.columns))
        for i in range(len(ids)):
            part = slice(features.indptr[i], features.indptr[i + 1])
            dense[i, features.indices[part]] = features.values[part]
        features, wanted = dense, np.maximum(ROWS, 0)[ids]
    else:
        wanted = ROWS[ids]
    np.testing.assert_allclose(features, wanted, atol=1e-6)


def test_a_share_that_is_not_the_one_of_the_checkpoint_is_refused(tmp_path: Path) -> None:
    source = {"kind": "dataset", "description": written("npy", tmp_path).describe(), "partition": "shuffle"}
    own = open_rows(source, 0, 2, 0).ids
    assert np.array_equal(open_rows(source, 0, 2, 0, own).ids, own)
    with pytest.raises(DataError, match="the data have changed"):
        open_rows(source, 0, 2, 0, own[::-1].copy())
