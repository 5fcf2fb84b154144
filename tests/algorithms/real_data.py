"""Real data sets for tests, read from a folder beside the project; a test that finds none is skipped."""

from __future__ import annotations

import gzip
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flegel.core.shard import Sparse

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(os.environ.get("FLEGEL_TEST_DATA", ROOT.parent / "shared" / "data"))


def find(name: str) -> Path:
    path = FOLDER / name
    if not path.exists():
        pytest.skip(f"{name} is not in {FOLDER}; set FLEGEL_TEST_DATA to the folder that has it")
    return path


def higgs() -> tuple[Any, Any]:
    """20,474 rows of 28 physical quantities, labels 0 and 1."""
    with np.load(find("higgs/higgs_real_combined.npz")) as archive:
        arrays = [archive[name] for name in archive.files]
    if len(arrays) == 1:
        return arrays[0][:, 1:], arrays[0][:, 0]
    rows = next(a for a in arrays if a.ndim == 2)
    return rows, next(a for a in arrays if a.ndim == 1)


def skin() -> tuple[Any, Any]:
    """245,057 colours (B, G, R) in file order, that is sorted by label; labels 1 and 2."""
    with gzip.open(find("skin/Skin_NonSkin.txt.gz"), "rt") as file:
        table = np.loadtxt(file)
    return table[:, :3], table[:, 3]


def a9a() -> tuple[Sparse, Any]:
    """32,561 rows of 123 binary features, labels −1 and 1."""
    indptr, indices, values, labels = [0], [], [], []
    with gzip.open(find("libsvm/a9a.gz"), "rt") as file:
        for line in file:
            label, *pairs = line.split()
            labels.append(float(label))
            for pair in pairs:
                index, value = pair.split(":")
                indices.append(int(index) - 1)
                values.append(float(value))
            indptr.append(len(indices))
    rows = Sparse(np.array(indptr), np.array(indices, np.int32), np.array(values, np.float32), 123)
    return rows, np.array(labels)


def movielens() -> Sparse:
    """610 users × 9,724 films, 100,836 ratings from 0.5 to 5."""
    with gzip.open(find("movielens/ml-latest-small/ratings.csv.gz"), "rt") as file:
        table = np.loadtxt(file, delimiter=",", skiprows=1)
    user = np.unique(table[:, 0], return_inverse=True)[1]
    films, film = np.unique(table[:, 1], return_inverse=True)
    order = np.argsort(user, kind="stable")
    indptr = np.concatenate([[0], np.cumsum(np.bincount(user))])
    return Sparse(indptr, film[order].astype(np.int32), table[order, 2].astype(np.float32), len(films))


def jester() -> Any:
    """24,983 people × 100 jokes as a matrix; a joke that was not rated is NaN."""
    import pandas as pd

    with zipfile.ZipFile(find("jester/jester-data-1.zip")) as archive:
        (name,) = [n for n in archive.namelist() if n.endswith((".xls", ".csv"))]
        with archive.open(name) as file:
            try:
                table = pd.read_excel(file, header=None) if name.endswith(".xls") else pd.read_csv(file, header=None)
            except ImportError as missing:
                pytest.skip(f"reading {name} needs another package: {missing}")
    ratings = table.to_numpy(dtype=np.float64)[:, 1:]
    return np.where(ratings == 99, np.nan, ratings)
