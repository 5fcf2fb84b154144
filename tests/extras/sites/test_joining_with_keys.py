"""A class that a training brings along runs at a joiner only where a trusted group has signed it; and a joiner as a
real process that is killed between rounds."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("cryptography")

import flegel
from flegel.errors import UsageError
from flegel.machine.group.records import MemberBeat, decode
from flegel.runtime.group.keys import PlainObjects, make_key_files, read_key_file
from flegel.runtime.job.find_algorithm import find_algorithm
from tests.joined_class import marking

ROWS = np.arange(60.0).reshape(20, 3)
QUICK: dict[str, Any] = {"workers": 1, "processes": False, "sync": "bsp", "every": "1"}


def test_code_runs_where_its_signer_is_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, marker, bucket = tmp_path / "sums.py", tmp_path / "ran", str(tmp_path / "bucket")
    file.write_text(marking(str(marker)))
    plain, trusting = tmp_path / "plain", tmp_path / "trusting"
    make_key_files(plain, ["paris", "oslo"], encrypt=True)
    trusting.mkdir()
    for name in ("paris", "oslo"):
        (trusting / f"{name}.json").write_bytes((plain / f"{name}.json").read_bytes())
    make_key_files(trusting, ["lyon"], encrypt=False, code=["paris"])
    own = find_algorithm(f"{file}:Sums")()
    flegel.run(own, ROWS, group="paris", bucket=bucket, group_key=str(plain / "paris.json"), **QUICK)
    file.unlink()
    for name in [name for name in sys.modules if name.startswith("flegel_user_")]:
        monkeypatch.delitem(sys.modules, name)  # the joiner is another process
    ran = marker.read_text()
    with pytest.raises(UsageError, match="signed by paris, whose code group_key= does not trust, so nothing of it"):
        flegel.join(bucket, ROWS, group="oslo", group_key=str(plain / "oslo.json"), **QUICK)
    with pytest.raises(UsageError, match="are signed, and this group has no key"):
        flegel.join(bucket, ROWS, group="oslo", trust_code=True, **QUICK)
    assert marker.read_text() == ran
    result = flegel.join(bucket, ROWS, group="oslo", group_key=str(trusting / "oslo.json"), **QUICK)
    assert result.sites["groups"] == ["oslo", "paris"] and marker.read_text() != ran
    np.testing.assert_allclose(result.parameter, 2.0 * ROWS.sum(axis=0))


def test_trust_in_code_is_kept_when_groups_are_added(tmp_path: Path) -> None:
    make_key_files(tmp_path, ["paris", "lyon"], encrypt=False, code=["paris"])
    make_key_files(tmp_path, ["oslo"], encrypt=False)
    assert read_key_file(str(tmp_path / "oslo.json"), "oslo").code == {"paris"}
    with pytest.raises(UsageError, match="--code rome is none of the groups"):
        make_key_files(tmp_path, ["oslo"], encrypt=False, code=["rome"])


@pytest.mark.slow
def test_a_joiner_is_killed_between_rounds_and_comes_back(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(2000, 4)) for c in rng.normal(size=(9, 4))])
    np.save(tmp_path / "a.npy", rows[::2])
    np.save(tmp_path / "b.npy", rows[1::2])
    bucket, processes = tmp_path / "bucket", []

    def start(*words: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "flegel", *words, "--workers", "1", "--no-save", "--group-timeout", "3s"]
        common = [*command, "--tolerance", "0", "--sync", "bsp"]
        processes.append(subprocess.Popen(common, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
        return processes[-1]

    def wait_for_joiner(life: int) -> int:
        """Until a life of b after this one has contributed: its number."""
        until, key = time.monotonic() + 600.0, "members/b"
        while time.monotonic() < until:
            if (bucket / key).exists():
                beat, _ = decode(PlainObjects().open(key, (bucket / key).read_bytes()), MemberBeat)
                if beat.life > life and beat.sent:
                    return beat.life
            time.sleep(0.02)
        raise AssertionError("the joiner has not contributed")

    try:
        first = start(
            "submit", "kmeans", "--set", "k=9", "--data", str(tmp_path / "a.npy"), "--group", "a",
            "--bucket", str(bucket), "--every", "1", "--max-seconds", "600",
        )  # fmt: skip
        until = time.monotonic() + 600.0
        while not (bucket / "rounds" / "3" / "result").exists():
            assert time.monotonic() < until and first.poll() is None
            time.sleep(0.05)
        words = ("join", str(bucket), "--group", "b", "--data", str(tmp_path / "b.npy"), "--max-seconds", "5")
        joiner = start(*words)
        life = wait_for_joiner(0)
        joiner.kill()
        joiner.wait(600)
        again = start(*words)
        wait_for_joiner(life)
        said = again.communicate(timeout=600)[0]
        assert again.returncode == 0, said
        assert first.poll() is None or first.returncode == 0, first.stdout
    finally:
        for process in processes:
            process.kill()
