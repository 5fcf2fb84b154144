"""Rows for benchmarks: named sets, read by several threads, and kept in files for the next program. Trains nothing."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets import Dataset, open_data
from flegel.datasets.rows.arrays import ArraySource, open_npy
from flegel.datasets.rows.sparse_arrays import SparseSource
from flegel.runtime.processes.host import cores

PIECES = 8  # that each thread makes, so that none is done long before the others


def load(name: str, threads: int | None = None) -> Dataset:
    """All rows of a set in memory; generators release the GIL, so threads help."""
    data = open_data(name)
    edges = data.source.edges()
    if data.in_memory or edges is None:
        features, labels = data.load()
    else:
        count = threads or len(cores())
        pieces = list(_pieces(edges, data.rows, -(-data.rows // (PIECES * count))))
        with ThreadPoolExecutor(count) as pool:
            features, labels = _sparse(data, pieces, pool) if data.sparse else _dense(data, pieces, pool)
    return _held(data, features, labels)


def _pieces(edges: np.ndarray, rows: int, size: int) -> Iterator[tuple[int, int]]:
    """Runs of whole blocks, of about `size` rows."""
    begin = 0
    for edge in [*edges[(edges > 0) & (edges < rows)].tolist(), rows]:
        if edge - begin >= size or edge == rows:
            yield begin, edge
            begin = edge


def _dense(data: Dataset, pieces: list[tuple[int, int]], pool: ThreadPoolExecutor) -> tuple[Any, Any]:
    features = np.empty((data.rows, data.columns), data.dtype)
    labels = np.empty(data.rows) if data.labelled else None

    def fill(piece: tuple[int, int]) -> None:
        begin, end = piece
        data.source.fill(np.array([piece]), features[begin:end], None if labels is None else labels[begin:end])

    list(pool.map(fill, pieces))
    return features, labels


def _sparse(data: Dataset, pieces: list[tuple[int, int]], pool: ThreadPoolExecutor) -> tuple[Any, Any]:
    parts = list(pool.map(lambda piece: data.source.take(np.array([piece])), pieces))
    rows = [part.features for part in parts]
    ends = np.cumsum([0, *(len(r.indices) for r in rows)])
    indptr = np.concatenate([[0], *(r.indptr[1:] + end for r, end in zip(rows, ends, strict=False))])
    found = Sparse(
        indptr, np.concatenate([r.indices for r in rows]), np.concatenate([r.values for r in rows]), data.columns
    )
    return found, np.concatenate([p.labels for p in parts]) if data.labelled else None


def _held(data: Dataset, features: Any, labels: Any) -> Dataset:
    held = open_data((features, labels) if labels is not None else features)
    held.name, held.stand_in, held.note = data.name, data.stand_in, data.note
    return held


class DataCache:
    """Rows and targets that several comparisons, and several programs of one run, use. Rows lie in files of which every
    worker reads its own part, so that a run costs no copy of the whole set.

    The folder belongs to whoever made it; where none is given, `close` removes the cache's own.
    """

    def __init__(self, folder: Path | None) -> None:
        self._own = None if folder else tempfile.TemporaryDirectory(prefix="flegel-cache-")
        self.folder = folder or Path(self._own.name if self._own else "")

    def close(self) -> None:
        if self._own:
            self._own.cleanup()

    def clear(self) -> None:
        """Make room: what lies here is not needed any more."""
        for entry in self.folder.iterdir():
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()

    def rows(self, name: str) -> Dataset:
        place = self.folder / name.replace(":", "-").replace("/", "_")
        if not (place / "dataset.json").exists():
            self._put(place, load(name))
        facts = json.loads((place / "dataset.json").read_text())
        paths = [place / f"{key}.npy" for key in facts["arrays"]]
        marks = place / "labels.npy" if facts["labelled"] else None
        labels = open_npy(marks) if marks else None
        known = [*map(str, paths), str(marks) if marks else None]
        arrays = [open_npy(path) for path in paths]
        source: ArraySource | SparseSource
        if facts["columns"]:
            source = SparseSource(Sparse(*arrays, facts["columns"]), labels, origin=facts["name"], paths=known)
        else:
            kind = arrays[0].dtype.name
            source = ArraySource(arrays[0], labels, origin=facts["name"], dtype=kind, paths=(known[0], known[1]))
        return Dataset(facts["name"], source, source.rows, facts["stand_in"], facts["note"])

    def _put(self, place: Path, held: Dataset) -> None:
        features, labels = held.load()
        place.mkdir(parents=True, exist_ok=True)
        sparse = isinstance(features, Sparse)
        arrays = dict(zip(SPARSE, features, strict=False)) if sparse else {"features": features}
        for key, array in (arrays | ({"labels": labels} if labels is not None else {})).items():
            np.save(place / f"{key}.npy", array)
        facts = {
            "name": held.name, "stand_in": held.stand_in, "note": held.note, "arrays": list(arrays),
            "labelled": labels is not None, "columns": features.columns if sparse else 0,
        }  # fmt: skip
        (place / "dataset.json").write_text(json.dumps(facts))

    def target(self, key: str) -> tuple[float, str] | None:
        found = self._targets().get(key)
        return (found[0], found[1]) if found else None

    def keep_target(self, key: str, target: float, note: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        scratch = self.folder / f".targets.{os.getpid()}"
        scratch.write_text(json.dumps(self._targets() | {key: [target, note]}))
        scratch.replace(self.folder / "targets.json")

    def _targets(self) -> dict[str, list[Any]]:
        path = self.folder / "targets.json"
        return json.loads(path.read_text()) if path.exists() else {}


SPARSE = ("indptr", "indices", "values")
