"""Files with a line for each row, and programs whose output nobody takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flegel.cli import rows_file
from flegel.cli.rows_file import write_rows
from flegel.errors import StorageError


@pytest.mark.parametrize("suffix", [".csv", ".npy"])
def test_a_file_holds_all_rows_or_is_as_it_was(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / f"labels{suffix}"
    write_rows(np.arange(5), ["prediction"], out)
    before = out.read_bytes()

    def full_disk(found: np.ndarray, names: list[str], path: Path) -> None:
        path.write_bytes(b"1\n2\n")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(rows_file, "_write", full_disk)
    with pytest.raises(StorageError, match="No space left"):
        write_rows(np.arange(9), ["prediction"], out)
    assert out.read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == [out.name]


def test_a_program_whose_error_output_is_closed_does_its_work(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.random.default_rng(0).normal(size=(60, 2)))
    command = f"{sys.executable} -m flegel submit pca --data x.npy --set k=1 --no-save --json r.json 2>&-"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, stdout=subprocess.DEVNULL, timeout=300, check=False)
    assert done.returncode == 0
    assert (tmp_path / "r.json").stat().st_size > 0
