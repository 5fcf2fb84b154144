"""A group killed (-9) in the middle of the rounds, as a real process, with a folder for a bucket: others go on without
it, and a new life of it takes its place."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import numpy as np
import flegel
from flegel.algorithms.kmeans import KMeans

if __name__ == "__main__":
    at, folder = int(sys.argv[1]), sys.argv[2]
    rows = np.load(folder + "/rows.npy")[at::3]
    result = flegel.run(
        KMeans(k=12), rows, workers=1, group=f"site{at}", bucket=folder + "/bucket", groups=3, every="2", sync="bsp",
        tolerance=0, max_seconds=float(sys.argv[3]), group_timeout=3.0,
    )
    np.save(f"{folder}/theta{at}.npy", result.parameter.centroids)
    print(result.iterations, result.reason)
"""


def rounds(folder: Path) -> int:
    return len(list((folder / "bucket" / "rounds").glob("*/result")))


def wait_for(folder: Path, number: int, seconds: float = 60.0) -> None:
    until = time.monotonic() + seconds
    while rounds(folder) < number:
        assert time.monotonic() < until, f"there are {rounds(folder)} rounds, not {number}"
        time.sleep(0.05)


@pytest.mark.parametrize("again", [False, True], ids=["stays away", "comes back"])
def test_a_group_is_killed_between_rounds(tmp_path: Path, again: bool) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(3000, 4)) for c in rng.normal(size=(12, 4))])
    np.save(tmp_path / "rows.npy", rows.astype(np.float32))
    (tmp_path / "program.py").write_text(PROGRAM)

    def start(at: int, seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, str(tmp_path / "program.py"), str(at), str(tmp_path), str(seconds)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    groups = [start(at, 30.0) for at in range(3)]
    try:
        wait_for(tmp_path, 4)
        groups[2].kill()
        groups[2].wait(600)
        before = rounds(tmp_path)
        if again:
            groups[2] = start(2, 15.0)
        wait_for(tmp_path, before + 4)
        said = [group.communicate(timeout=600)[0] for group in groups]
    finally:
        for group in groups:
            group.kill()
    assert [group.returncode for group in groups] == [0, 0, 0 if again else -9], said
    found = [np.load(tmp_path / f"theta{at}.npy") for at in range(2)]
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
