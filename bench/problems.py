"""Rows for benchmarks: named sets, read by several threads, and kept on a shelf for the next script. Trains nothing."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from flegel.datasets import Dataset, open_data
from flegel.runtime.host import cores
from flegel.share import Sparse

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


class Shelf:
    """Rows and targets that several scripts of one run use; a folder that whoever made it removes."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def rows(self, name: str) -> Dataset:
        if self.folder is None:
            return load(name)
        place = self.folder / name.replace(":", "-").replace("/", "_")
        if (place / "told.json").exists():
            return self._taken(place)
        held = load(name)
        features, labels = held.load()
        place.mkdir(parents=True, exist_ok=True)
        arrays = dict(zip(SPARSE, features, strict=True)) if isinstance(features, Sparse) else {"features": features}
        for key, array in (arrays | ({"labels": labels} if labels is not None else {})).items():
            np.save(place / f"{key}.npy", array)
        told = {"name": held.name, "stand_in": held.stand_in, "note": held.note, "arrays": list(arrays)}
        (place / "told.json").write_text(json.dumps(told))
        return held

    def _taken(self, place: Path) -> Dataset:
        told = json.loads((place / "told.json").read_text())
        arrays = [np.load(place / f"{key}.npy") for key in told["arrays"]]
        features: Any = arrays[0] if len(arrays) == 1 else Sparse(*arrays[:3], int(arrays[3]))
        labels = np.load(place / "labels.npy") if (place / "labels.npy").exists() else None
        held = open_data((features, labels) if labels is not None else features)
        held.name, held.stand_in, held.note = told["name"], told["stand_in"], told["note"]
        return held

    def target(self, key: str) -> tuple[float, str] | None:
        found = self._targets().get(key)
        return (found[0], found[1]) if found else None

    def keep_target(self, key: str, target: float, note: str) -> None:
        if self.folder is not None:
            self.folder.mkdir(parents=True, exist_ok=True)
            scratch = self.folder / f".targets.{os.getpid()}"
            scratch.write_text(json.dumps(self._targets() | {key: [target, note]}))
            scratch.replace(self.folder / "targets.json")

    def _targets(self) -> dict[str, list[Any]]:
        path = self.folder / "targets.json" if self.folder else None
        return json.loads(path.read_text()) if path and path.exists() else {}


SPARSE = ("indptr", "indices", "values", "columns")
