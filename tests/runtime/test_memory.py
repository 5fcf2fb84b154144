"""Shared arrays: seen by others without a copy, and never left behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flegel.core.shard import Sparse
from flegel.runtime.transport import shared_memory
from flegel.runtime.transport.shared_memory import SharedArray, open_shared
from flegel.runtime.worker.row_sources import SharedRows, open_rows, reorder


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir())) if Path("/proc/self/fd").exists() else 0


def test_what_one_writes_another_reads() -> None:
    shared = SharedArray((3, 2), np.dtype("f4"))
    shared.array[...] = np.arange(6).reshape(3, 2)
    seen = open_shared(shared.describe())
    np.testing.assert_array_equal(seen, np.arange(6).reshape(3, 2))
    shared.array[0, 0] = 42.0
    assert seen[0, 0] == 42.0, "the same memory, not a copy"
    with pytest.raises(ValueError, match="read-only"):
        seen[0, 0] = 1.0
    shared.close()


def test_a_reader_keeps_what_the_owner_closed() -> None:
    shared = SharedArray((4,), np.dtype("f8"))
    shared.array[...] = 7.0
    seen = open_shared(shared.describe())
    shared.close()
    np.testing.assert_array_equal(seen, np.full(4, 7.0))


def test_closing_gives_everything_back() -> None:
    before, names = descriptors(), set(Path("/dev/shm").iterdir()) if Path("/dev/shm").exists() else set()
    for _ in range(5):
        shared = SharedArray((1000,), np.dtype("f8"))
        open_shared(shared.describe())
        shared.close()
        shared.close()
    assert descriptors() == before
    if names:
        assert set(Path("/dev/shm").iterdir()) == names


def test_an_empty_array_is_an_array() -> None:
    shared = SharedArray((0, 3), np.dtype("f8"))
    assert open_shared(shared.describe()).shape == (0, 3)
    shared.close()


def test_a_process_that_is_killed_leaves_no_memory_behind(tmp_path: Path) -> None:
    script = (
        "import os, signal, numpy as np\n"
        "from flegel.runtime.transport.shared_memory import SharedArray\n"
        "a = SharedArray((1000,), np.dtype('f8'))\n"
        "print(a.describe()['path'], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=240, check=False,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )  # fmt: skip
    assert done.stdout.strip()
    assert not Path(done.stdout.strip()).exists()


@pytest.mark.parametrize("count", [1, 3, 7])
def test_workers_together_see_every_row_once(count: int) -> None:
    rows, labels, weights = np.arange(40.0).reshape(20, 2), np.arange(20.0), np.arange(20.0) / 4
    owners = np.array_split(np.random.default_rng(3).permutation(20), count)
    shared = SharedRows(rows, labels, owners, weights=weights)
    parts = [open_rows(shared.describe(), index, count, 3) for index in range(count)]
    ids = np.concatenate([part.ids for part in parts])
    np.testing.assert_array_equal(np.sort(ids), np.arange(20))
    for part in parts:
        np.testing.assert_array_equal(part.features, rows[part.ids])
        np.testing.assert_array_equal(part.labels, labels[part.ids])
        np.testing.assert_array_equal(part.weights, weights[part.ids])
    shared.close()


def test_sparse_rows_are_shared_like_dense_ones() -> None:
    rng = np.random.default_rng(0)
    dense = rng.normal(size=(11, 5)) * (rng.random((11, 5)) < 0.4)
    indptr = np.concatenate([[0], np.cumsum((dense != 0).sum(axis=1))])
    sparse = Sparse(indptr, np.nonzero(dense)[1], dense[dense != 0], 5)

    def whole(s: Sparse) -> np.ndarray:
        full = np.zeros((len(s.indptr) - 1, s.columns))
        for i in range(len(full)):
            part = slice(s.indptr[i], s.indptr[i + 1])
            full[i, s.indices[part]] = s.values[part]
        return full

    np.testing.assert_array_equal(whole(reorder(sparse, np.arange(11)[::-1])), dense[::-1])
    shared = SharedRows(sparse, None, np.array_split(np.random.default_rng(1).permutation(11), 3))
    for index in range(3):
        features, labels, ids, weights = open_rows(shared.describe(), index, 3, 1)
        assert labels is None and weights is None
        np.testing.assert_array_equal(whole(features), dense[ids])
    shared.close()


def test_memory_may_be_told_with_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEGEL_MEMORY", "4G")
    assert shared_memory.free() == 4 << 30
    monkeypatch.delenv("FLEGEL_MEMORY")
    assert shared_memory.free() > 0
