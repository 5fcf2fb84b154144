"""Groups on a real object store: SeaweedFS. Exactly one result a round, and a store that is away for a while."""

from __future__ import annotations

import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import needs
from tests.ports import free_port

needs.library("obstore")

from flegel.machine.group.records import Entry, RoundResult, decode, encode, result_key
from flegel.runtime.group.bucket import Bucket, Conflict, open_bucket

pytestmark = needs.programs("weed")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    folder, port = tmp_path_factory.mktemp("weed"), free_port()
    command = [
        needs.path_of("weed"),
        "mini",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        f"-s3.port={port}",
    ]
    for part in ("master", "volume", "filer", "webdav", "admin"):
        command.append(f"-{part}.port={free_port()}")
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    patch = pytest.MonkeyPatch()
    patch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    patch.setenv("AWS_ACCESS_KEY_ID", "any")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    patch.setenv("AWS_REGION", "us-east-1")
    try:
        make_bucket(f"http://127.0.0.1:{port}")
        yield process, "s3://groups/job"
    finally:
        patch.undo()
        process.kill()
        process.wait(10)


def make_bucket(endpoint: str) -> None:
    import urllib.request

    for _ in range(100):
        try:
            request = urllib.request.Request(f"{endpoint}/groups", method="PUT")
            urllib.request.urlopen(request, timeout=2.0).read()
            return
        except OSError:
            time.sleep(0.3)
    raise AssertionError("SeaweedFS did not start")


def test_puts_are_conditional(store: tuple[subprocess.Popen[bytes], str]) -> None:
    bucket = open_bucket(store[1])
    assert bucket.get("current") is None
    tag = bucket.put("current", b"1", "create")
    with pytest.raises(Conflict):
        bucket.put("current", b"2", "create")
    newer = bucket.put("current", b"2", "swap", tag)
    with pytest.raises(Conflict):
        bucket.put("current", b"3", "swap", tag)
    assert bucket.get("current") == (b"2", newer)
    assert bucket.names("") == ["current"]
    bucket.delete("current")
    assert bucket.get("current") is None


@pytest.mark.slow
def test_three_racing_aggregators_leave_one_result_in_each_of_a_thousand_rounds(
    store: tuple[subprocess.Popen[bytes], str],
) -> None:
    rounds, won = 1000, np.zeros((3, 1000), dtype=bool)
    meet = threading.Barrier(3)

    def race(racer: int) -> None:
        bucket: Bucket = open_bucket(store[1] + "/race")
        for round_ in range(rounds):
            result = RoundResult(round_, (Entry(f"g{racer}", 1, "k", "d", round_),), by=f"g{racer}")
            meet.wait(60.0)
            try:
                bucket.put(result_key(round_), encode(result), "create")
                won[racer, round_] = True
            except Conflict:
                pass

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300.0)
    assert won.sum(axis=0).tolist() == [1] * rounds
    bucket = open_bucket(store[1] + "/race")
    for round_ in range(0, rounds, 50):
        found = bucket.get(result_key(round_))
        assert found is not None
        assert decode(found[0], RoundResult)[0].by == f"g{int(won[:, round_].argmax())}"


def test_a_network_in_fragments_is_trained_through_the_store(store: tuple[subprocess.Popen[bytes], str]) -> None:
    needs.library("torch")
    import flegel
    from flegel.torch.builtin import MLP

    rng = np.random.default_rng(0)
    rows = rng.normal(size=(2000, 8)).astype(np.float32)
    labels = (rows @ rng.normal(size=(8, 3))).argmax(axis=1).astype(np.float64)
    results: dict[int, flegel.Result] = {}

    def train(at: int) -> None:
        results[at] = flegel.run(
            MLP(hidden=[16], epochs=6, lr=0.02, classes=3), (rows[at::2], labels[at::2]), workers=1, group=f"g{at}",
            bucket=store[1] + "/fragments", groups=2, every="1", processes=False, fragments=3, wire="int8",
            quorum="60%", group_timeout=5.0,
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    assert len(results) == 2, "both groups have ended"
    for result in results.values():
        assert float(np.mean(result.algorithm.predict(rows, result.parameter) == labels)) > 0.6
        assert result.sites is not None and result.sites["fragments"] == 3 and result.sites["rounds"] > 0
    assert len(results) == 2


def test_groups_train_on_while_the_store_is_away(store: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    import flegel
    from flegel.algorithms.kmeans import KMeans

    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(2000, 4)) for c in rng.normal(size=(6, 4))]).astype(np.float32)
    results: dict[int, flegel.Result] = {}

    def train(at: int) -> None:
        results[at] = flegel.run(
            KMeans(k=5), rows[at::2], workers=1, group=f"site{at}", bucket=store[1] + "/away", groups=2, every="2",
            processes=False, tolerance=0, max_seconds=30.0, group_timeout=5.0, sync="bsp",
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(5.0)
    store[0].send_signal(signal.SIGSTOP)
    time.sleep(15.0)
    store[0].send_signal(signal.SIGCONT)
    for thread in threads:
        thread.join(120.0)
    for result in results.values():
        while_away = [row for row in result.rows if 8.0 < row["seconds"] < 17.0]
        assert len(while_away) > 1, "training waited for the store"
    np.testing.assert_allclose(results[0].parameter.centroids, results[1].parameter.centroids, rtol=1e-6)
