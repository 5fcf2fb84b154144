"""Sparse matrices and arrays in `.npz` files: what is read, and what is refused before a kernel sees it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flegel.core.shard import Sparse
from flegel.datasets import open_data
from flegel.errors import DataError
from tests.needs import library

DENSE = np.array([[0.0, 2.0, 1.0], [3.0, 0.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, 4.0]])
CSR = {
    "format": np.array(b"csr"),
    "shape": np.array([4, 3]),
    "indptr": np.array([0, 2, 3, 3, 5], np.int32),
    "indices": np.array([1, 2, 0, 0, 2], np.int32),
    "data": np.array([2.0, 1.0, 3.0, 1.0, 4.0]),
}


def saved(folder: Path, **changed: np.ndarray | None) -> Path:
    members = {name: value for name, value in {**CSR, **changed}.items() if value is not None}
    np.savez(folder / "matrix.npz", **members)
    return folder / "matrix.npz"


def dense(path: Path) -> np.ndarray:
    rows, _ = open_data(path).load()
    assert isinstance(rows, Sparse)
    found = np.zeros((len(rows.indptr) - 1, rows.columns))
    for row in range(len(found)):
        part = slice(rows.indptr[row], rows.indptr[row + 1])
        assert (np.diff(rows.indices[part]) > 0).all()
        found[row, rows.indices[part]] = rows.values[part]
    return found


def test_entries_that_are_given_twice_are_added_as_scipy_does(tmp_path: Path) -> None:
    indptr, indices = np.array([0, 4, 5, 5, 7]), np.array([1, 2, 1, 2, 0, 2, 0])
    data = np.array([0.5, 0.25, 1.5, 0.75, 3.0, 4.0, 1.0])
    assert np.array_equal(dense(saved(tmp_path, indptr=indptr, indices=indices, data=data)), DENSE)


def test_room_behind_the_entries_and_unsigned_numbers_are_read(tmp_path: Path) -> None:
    longer = {"indices": np.append(CSR["indices"], [9, 9]), "data": np.append(CSR["data"], [7.0, 7.0])}
    assert np.array_equal(dense(saved(tmp_path, **longer, indptr=CSR["indptr"].astype(np.uint64))), DENSE)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"indices": np.array([1, 7, 0, 0, 2])}, "entries outside of its 3 columns"),
        ({"indices": np.array([1, -2, 0, 0, 2])}, "entries outside of its 3 columns"),
        ({"indices": np.array([1.0, 2, 0, 0, 2])}, "indices is no list of whole numbers"),
        ({"indptr": np.array([0, 3, 2, 3, 5])}, "indptr does not ascend"),
        ({"indptr": np.array([0, 2, 3, 5])}, "indptr has 4 numbers for 4 rows"),
        ({"indptr": np.array([0, 2, 3, 3, 9])}, "announces 9 entries and has 5"),
        ({"data": np.array([2.0, 1.0])}, "announces 5 entries and has 2"),
        ({"data": CSR["data"] + 1j}, "data holds complex128"),
        ({"data": CSR["data"].reshape(-1, 1)}, "in 2 dimensions"),
        ({"shape": np.array([4])}, "shape has 1 numbers"),
    ],
)
def test_arrays_that_are_no_matrix_are_refused(tmp_path: Path, changed: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(DataError, match=said):
        open_data(saved(tmp_path, **changed))


@pytest.mark.parametrize("form", ["coo", "dia", "csc", "bsr"])
def test_other_sparse_forms_are_no_dense_rows(tmp_path: Path, form: str) -> None:
    sparse = library("scipy.sparse")
    sparse.save_npz(tmp_path / "matrix.npz", getattr(sparse.csr_matrix(DENSE), f"to{form}")())
    with pytest.raises(DataError, match="a sparse matrix that is not CSR"):
        open_data(tmp_path / "matrix.npz")


def test_rows_are_not_guessed_among_several_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "several.npz", means=DENSE[:, 0], table=DENSE)
    with pytest.raises(DataError, match=r"arrays means, table, and none has a usual name; save the rows as X"):
        open_data(tmp_path / "several.npz")
    np.savez(tmp_path / "one.npz", table=DENSE, y=np.arange(4))
    rows, labels = open_data(tmp_path / "one.npz").load()
    assert np.array_equal(rows, DENSE)
    assert labels is not None and labels.tolist() == [0, 1, 2, 3]
    np.savez(tmp_path / "none.npz")
    with pytest.raises(DataError, match="has no arrays; save the rows as X"):
        open_data(tmp_path / "none.npz")
