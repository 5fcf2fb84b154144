"""A joiner needs the bucket alone: algorithm and settings come from the package, foreign code runs past the gate only,
and one that does not fit leaves without a trace."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.core.pytree import Array
from flegel.datasets.rows import memory
from flegel.errors import UsageError
from flegel.machine.group.records import PACKAGE_POINTER, Package, PackageRef, decode, digest_of, encode
from flegel.runtime.group.keys import PlainObjects
from flegel.runtime.group.package_store import GROUP_FORMAT
from flegel.runtime.job.find_algorithm import find_algorithm
from tests.joined_class import SUMS

ROWS = np.arange(60.0).reshape(20, 3)
QUICK: dict[str, Any] = {"workers": 1, "processes": False, "sync": "bsp", "every": "1"}


def listing(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def begun(bucket: Path, algorithm: Any = None, rows: Array = ROWS, **options: Any) -> flegel.Result:
    """A first group that has trained and finished."""
    return flegel.run(algorithm or KMeans(k=2), rows, group="a", bucket=str(bucket), **{**QUICK, **options})


def changed(bucket: Path, side_effect: str = "", **fields: Any) -> None:
    """Write another package, as somebody would who may write to the bucket."""
    (old,) = (bucket / "package").glob("*")
    package, arrays = decode(PlainObjects().open(f"package/{old.name}", old.read_bytes()), Package)
    if side_effect:
        source = json.dumps({"postponed": False, "pieces": [["sums.py", 1, side_effect + SUMS]]})
        fields = {"algorithm": "Sums", "source": source, "hyper": {}, "submitted": {}, **fields}
    content = encode(msgspec.structs.replace(package, **fields), arrays)
    pointer = encode(PackageRef(digest_of(content), GROUP_FORMAT))
    for key, plain in ((PACKAGE_POINTER, pointer), (f"package/{digest_of(content)}", content)):
        (bucket / key).write_bytes(PlainObjects().seal(key, plain))


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_joiner_needs_the_bucket_and_a_name(tmp_path: Path, scheme: str) -> None:
    begun(tmp_path, scale="standard")
    result = flegel.join(scheme + str(tmp_path), ROWS + 1.0, group="b", workers=1, processes=False)
    assert result.sites["groups"] == ["a", "b"] and len(result.parameter.centroids) == 2


def test_a_class_of_the_training_is_not_run_without_trust(tmp_path: Path) -> None:
    bucket, marker = tmp_path / "bucket", tmp_path / "ran"
    begun(bucket)
    changed(bucket, f"open({str(marker)!r}, 'w').close()\n")
    before = listing(bucket)
    with pytest.raises(UsageError, match=r"brings its own class Sums, and it is not signed, so nothing of it was run"):
        flegel.join(str(bucket), ROWS, group="b", **QUICK)
    assert not marker.exists() and listing(bucket) == before
    with pytest.raises(flegel.FlegelError):  # its θ is that of k-means; but by then it has run
        flegel.join(str(bucket), ROWS, group="b", trust_code=True, **QUICK)
    assert marker.exists()


def test_a_trusted_class_trains_with_its_hyper_parameters(tmp_path: Path) -> None:
    file, bucket = tmp_path / "sums.py", tmp_path / "bucket"
    file.write_text(SUMS)
    begun(bucket, find_algorithm(f"{file}:Sums")(rows=7))
    file.unlink()
    result = flegel.join(str(bucket), ROWS, group="b", trust_code=True, **QUICK)
    assert result.sites["groups"] == ["a", "b"] and result.algorithm.rows == 7
    np.testing.assert_allclose(result.parameter, 2.0 * ROWS.sum(axis=0))


def test_a_joiner_that_does_not_fit_is_told_why_and_leaves_no_trace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket, marker = tmp_path / "bucket", tmp_path / "ran"
    begun(bucket)
    before = listing(bucket)

    def refused(why: str, rows: Any = ROWS, **options: Any) -> None:
        with pytest.raises(UsageError, match=why):
            flegel.join(str(bucket), rows, group="b", **{**QUICK, **options})

    refused("have 3 columns, and this group has 2", ROWS[:, :2])
    refused("are float64, and those of this group float32", ROWS.astype(np.float32))
    refused("--scale none, and this group --scale standard", scale="standard")
    monkeypatch.setattr(memory, "available", lambda: 100)
    refused(r"needs about 0\.0 GB for θ and the statistics of 2 groups")
    monkeypatch.undo()
    assert listing(bucket) == before
    changed(bucket, f"import no_such_library\nopen({str(marker)!r}, 'w').close()\n")
    refused("needs no_such_library, which is not installed here", trust_code=True)
    pointer = encode(PackageRef("0" * 64, GROUP_FORMAT + 1, "9.9"))
    (bucket / PACKAGE_POINTER).write_bytes(PlainObjects().seal(PACKAGE_POINTER, pointer))
    refused(f"use Flegel 9.9 with objects of format {GROUP_FORMAT + 1}, and this one is")
    assert not marker.exists() and (bucket / "members").exists() and not (bucket / "members" / "b").exists()


def test_there_is_nothing_to_join(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="There is no folder"):
        flegel.join(str(tmp_path / "none"), ROWS, group="b")
    assert not (tmp_path / "none").exists()
    with pytest.raises(UsageError, match=r"There is no training in .*; `flegel submit … --group b"):
        flegel.join(str(tmp_path), ROWS, group="b")
    with pytest.raises(UsageError, match="names this site"):
        flegel.join(str(tmp_path), ROWS)


KILLED_JOINER = """
import os
import signal
import sys

import numpy as np

import flegel
from flegel.runtime.group import joining
from flegel.runtime.group.bucket import FolderBucket

bucket, moment = sys.argv[1:]
read, put = joining.find_training, FolderBucket.put


def read_and_die(*given):
    read(*given)
    os.kill(os.getpid(), signal.SIGKILL)


def put_and_die(self, key, *given, **more):
    tag = put(self, key, *given, **more)
    if key.startswith(moment):
        os.kill(os.getpid(), signal.SIGKILL)
    return tag


FolderBucket.put = put_and_die
if moment == "package":
    joining.find_training = read_and_die
rows = np.arange(60.0).reshape(20, 3)
flegel.join(bucket, rows, group="b", trust_code=True, workers=1, processes=False, sync="bsp", every="1")
"""


@pytest.mark.processes
@pytest.mark.parametrize("moment", ["package", "members/b", "rounds/"])
def test_the_rows_of_a_joiner_that_is_killed_while_it_joins_leave_the_model(tmp_path: Path, moment: str) -> None:
    """It dies when it has read the package, shown itself, or contributed; the group that is there trains on alone."""
    file, program, bucket = tmp_path / "sums.py", tmp_path / "joiner.py", tmp_path / "bucket"
    file.write_text(SUMS)
    program.write_text(KILLED_JOINER)
    joiners: list[subprocess.Popen[bytes]] = []
    rounds: list[int] = []

    class Joining(flegel.Callback):
        def after_barrier(self, snapshot: Any) -> str | None:
            now = len(list((bucket / "rounds").glob("*/result")))
            if not joiners and now >= 2:
                joiners.append(subprocess.Popen([sys.executable, str(program), str(bucket), moment]))
            seen = snapshot.sites.sites if snapshot.sites is not None else ()
            others = [site for site in seen if site.group == "b" and not (site.silent and site.age is None)]
            if joiners and joiners[0].poll() is not None and not others:
                rounds.append(now)
            return "it trains alone" if rounds and now >= rounds[0] + 3 else None

    result = flegel.run(
        find_algorithm(f"{file}:Sums")(), ROWS, group="a", bucket=str(bucket), **QUICK, tolerance=0, group_timeout=3.0,
        max_iterations=1_000_000, straggler="all:20ms/20", callbacks=[Joining()],
    )  # fmt: skip
    assert joiners[0].returncode == -signal.SIGKILL and result.reason == "it trains alone"
    assert result.sites["groups"] == ["a"]
    np.testing.assert_array_equal(result.parameter, ROWS.sum(axis=0))
