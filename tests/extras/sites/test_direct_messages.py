"""Direct messages between groups: faster than the bucket where they arrive, refused where they are not signed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("cryptography")

import flegel
from flegel.algorithms.kmeans import KMeans
from flegel.errors import UsageError
from flegel.runtime.group.keys import make_key_files, read_key_file
from flegel.runtime.group.peers import GroupMessenger, parse_listen


def wait_for(wanted: Any, seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not wanted():
        assert time.monotonic() < until, "did not come"
        time.sleep(0.01)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    make_key_files(tmp_path / "keys", ["g0", "g1", "g2"], encrypt=True)
    return tmp_path / "keys"


def test_what_is_signed_arrives_and_what_a_stranger_sends_is_dropped(keys: Path, tmp_path: Path) -> None:
    heard: list[bytes] = []
    listener = GroupMessenger("127.0.0.1:0", read_key_file(str(keys / "g0.json"), "g0"), heard.append)
    sender = GroupMessenger("", read_key_file(str(keys / "g1.json"), "g1"), heard.append)
    make_key_files(tmp_path / "others", ["g1"], encrypt=True)
    stranger = GroupMessenger("", read_key_file(str(tmp_path / "others" / "g1.json"), "g1"), heard.append)
    try:
        sender.send("g1", b"a beat", [listener.address, "tcp://nowhere.invalid:1 no key", "nonsense"])
        wait_for(lambda: heard == [b"a beat"])
        stranger.send("g1", b"a lie", [listener.address])
        wait_for(lambda: listener.refused)
        assert heard == [b"a beat"] and listener.received == 1
    finally:
        for each in (listener, sender, stranger):
            each.close()


def test_groups_use_messages_and_one_that_nobody_can_reach_takes_part(keys: Path, tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(300, 4)) for c in rng.normal(size=(9, 4))]).astype(np.float32)
    results: dict[int, flegel.Result] = {}

    def train(at: int) -> None:
        results[at] = flegel.run(
            KMeans(k=6), np.split(rows, 3)[at], workers=1, group=f"g{at}", bucket=str(tmp_path / "bucket"), groups=3,
            processes=False, sync="bsp", group_key=str(keys / f"g{at}.json"),
            group_listen="" if at == 2 else "127.0.0.1:0",
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(at,)) for at in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240.0)
    assert sorted(results) == [0, 1, 2]
    for at, result in results.items():
        assert "all 3 groups" in result.reason
        assert (result.sites["messages_received"] > 0) == (at != 2)
        np.testing.assert_allclose(result.parameter.centroids, results[0].parameter.centroids, rtol=1e-9, atol=1e-12)


def test_listening_takes_keys_and_a_port(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="needs group_key="):
        flegel.run(
            KMeans(k=2), np.zeros((20, 2), np.float32), group="g0", bucket=str(tmp_path), group_listen="127.0.0.1:0"
        )
    for wrong in ("here", "here:many", ":7700", "here:70000"):
        with pytest.raises(UsageError, match="group_listen="):
            parse_listen(wrong)
