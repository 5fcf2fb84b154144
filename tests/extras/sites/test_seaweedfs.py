"""Groups on a real object store: SeaweedFS. Exactly one result a round, and a store that is away for a while."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests import needs

needs.library("obstore")

from flegel.callbacks.callback import Callback
from flegel.machine.coordinator.observation import JobSnapshot
from flegel.machine.group.records import Current, Entry, RoundResult, decode, encode, result_key
from flegel.runtime.group.bucket import Bucket, Conflict, open_bucket
from flegel.runtime.group.keys import PlainObjects

pytestmark = needs.programs("weed")
LIMIT = 120.0  # seconds; only bounds a hang


def free_ports(number: int) -> list[int]:
    """Ports that nobody uses; the store also listens 10,000 above each. Below those that systems give to anybody."""
    found: list[int] = []
    for port in range(11_000 + os.getpid() % 7000, 22_000, 3):
        with contextlib.suppress(OSError), socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", port))
            other.bind(("127.0.0.1", port + 10_000))
            found.append(port)
        if len(found) == number:
            return found
    raise AssertionError(f"no {number} free ports")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[subprocess.Popen[bytes], str]]:
    parts = ("s3", "master", "volume", "filer", "webdav", "admin")
    ports = dict(zip(parts, free_ports(len(parts)), strict=True))
    folder, endpoint = tmp_path_factory.mktemp("weed"), f"http://127.0.0.1:{ports['s3']}"
    command = [needs.path_of("weed"), "mini", f"-dir={folder}", "-ip=127.0.0.1", "-ip.bind=127.0.0.1"]
    command += [f"-{part}.port={port}" for part, port in ports.items()]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    patch = pytest.MonkeyPatch()
    patch.setenv("AWS_ENDPOINT_URL", endpoint)
    patch.setenv("AWS_ACCESS_KEY_ID", "any")
    patch.setenv("AWS_SECRET_ACCESS_KEY", "any")
    patch.setenv("AWS_REGION", "us-east-1")
    try:
        make_bucket(process, endpoint)
        yield process, "s3://groups/job"
    finally:
        patch.undo()
        process.kill()
        process.wait(600)


def make_bucket(process: subprocess.Popen[bytes], endpoint: str) -> None:
    """Once the store answers, and keeps what is put into it: its parts do not start at the same time."""
    until = time.monotonic() + LIMIT
    while process.poll() is None and time.monotonic() < until:
        with contextlib.suppress(OSError):  # also where the bucket is there since the last try
            put(f"{endpoint}/groups")
        with contextlib.suppress(OSError):
            return put(f"{endpoint}/groups/first", b"1")
        time.sleep(0.3)
    raise AssertionError(f"SeaweedFS did not start (exit code {process.poll()})")


def put(url: str, content: bytes | None = None) -> None:
    urllib.request.urlopen(urllib.request.Request(url, data=content, method="PUT"), timeout=10.0).read()


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
            meet.wait(LIMIT)
            try:
                bucket.put(result_key(round_), encode(result), "create")
                won[racer, round_] = True
            except Conflict:
                pass

    threads = [threading.Thread(target=race, args=(racer,)) for racer in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600.0)
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
            quorum="60%", group_timeout=LIMIT,
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LIMIT)
    assert len(results) == 2, "both groups have ended"
    for result in results.values():
        assert float(np.mean(result.algorithm.predict(rows, result.parameter) == labels)) > 0.6
        assert result.sites is not None and result.sites["fragments"] == 3 and result.sites["rounds"] > 0


class Steps(Callback):
    """Counts the barriers of a job, and ends it when the test says so."""

    def __init__(self) -> None:
        self.made, self.enough = 0, False

    def after_barrier(self, snapshot: JobSnapshot) -> bool:
        self.made = snapshot.iteration
        return self.enough


def wait_for(holds: Callable[[], bool], what: str) -> None:
    until = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < until, what
        time.sleep(0.05)


def test_groups_train_on_while_the_store_is_away(store: tuple[subprocess.Popen[bytes], str], tmp_path: Path) -> None:
    import flegel
    from flegel.algorithms.kmeans import KMeans

    rng = np.random.default_rng(0)
    rows = np.concatenate([6.0 * c + rng.normal(size=(2000, 4)) for c in rng.normal(size=(6, 4))]).astype(np.float32)
    results: dict[int, flegel.Result] = {}
    steps, place = [Steps(), Steps()], store[1] + "/away"

    def train(at: int) -> None:
        results[at] = flegel.run(
            KMeans(k=5), rows[at::2], workers=1, group=f"site{at}", bucket=place, groups=2, every="2",
            processes=False, tolerance=0, max_seconds=4 * LIMIT, group_timeout=LIMIT, sync="bsp",
            callbacks=[steps[at]],
        )  # fmt: skip

    def newest() -> int:
        found = open_bucket(place).get("current")
        return 0 if found is None else decode(PlainObjects().open("current", found.content), Current)[0].round

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    try:
        wait_for(lambda: newest() > 2, "groups synchronize")
        store[0].send_signal(signal.SIGSTOP)
        before = [each.made for each in steps]
        wait_for(lambda: all(each.made > b + 20 for each, b in zip(steps, before, strict=True)), "training waited")
        store[0].send_signal(signal.SIGCONT)
        at = newest()
        wait_for(lambda: newest() > at + 2, "groups synchronize again")
    finally:
        store[0].send_signal(signal.SIGCONT)
        for each in steps:
            each.enough = True
        for thread in threads:
            thread.join(LIMIT)
    np.testing.assert_allclose(results[0].parameter.centroids, results[1].parameter.centroids, rtol=1e-6)
