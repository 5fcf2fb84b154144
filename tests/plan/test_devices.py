"""Which worker computes on which device: given, dealt in turn, of workers that join; what cannot be is refused."""

from __future__ import annotations

import pytest

from flegel.errors import UsageError
from flegel.plan.devices import devices_in_turn, parse_devices, workers_of_gpus
from flegel.runtime.system import device_memory


@pytest.mark.parametrize(
    ("text", "gpus", "found"),
    [
        ("", 0, {}),
        ("", 2, {0: "cuda:0", 1: "cuda:1"}),
        ("0=cuda:0,2-3=cuda:1", 0, {0: "cuda:0", 2: "cuda:1", 3: "cuda:1"}),
        ("0=cpu", 1, {0: "cpu"}),
        ("cuda", 0, dict.fromkeys(range(4), "cuda")),
        ("cuda:1,3=cpu", 0, {0: "cuda:1", 1: "cuda:1", 2: "cuda:1", 3: "cpu"}),
        ("3=cpu, cuda:1", 0, {0: "cuda:1", 1: "cuda:1", 2: "cuda:1", 3: "cpu"}),
        ("cuda:0,cuda:1", 0, {0: "cuda:0", 1: "cuda:1", 2: "cuda:0", 3: "cuda:1"}),
        ("cuda:0,cuda:0,cuda:1", 0, {0: "cuda:0", 1: "cuda:0", 2: "cuda:1", 3: "cuda:0"}),
        ("cuda:0,cuda:1,0=cpu", 0, {0: "cpu", 1: "cuda:0", 2: "cuda:1", 3: "cuda:0"}),
    ],
)
def test_devices_are_given_to_workers(text: str, gpus: int, found: dict[int, str]) -> None:
    assert parse_devices(text, gpus, 4) == found


@pytest.mark.parametrize(
    ("text", "gpus", "sentence"),
    [
        ("0=tpu", 0, "nor of the form"),
        ("4=cuda:0", 0, "names worker 4"),
        ("", 5, "gpus=5"),
        ("gpu", 0, "neither a device"),
        ("cuda:0,cuda:1,cuda:2,cuda:3,cuda:4", 0, "names 5 devices for 4 workers; give workers=5 or more"),
        ("cuda:0,0-3=cpu", 0, "names 1 device for 0 workers"),
    ],
)
def test_devices_that_cannot_be_are_refused(text: str, gpus: int, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        parse_devices(text, gpus, 4)


@pytest.mark.parametrize(
    ("text", "workers"),
    [("cuda", 1), ("cuda:1", 1), ("cuda:0,cuda:1", 2), ("0=cuda:0", 0), ("cuda,1=cpu", 0), ("torch:cpu", 0), ("", 0)],
)
def test_a_job_that_names_gpus_alone_has_a_worker_for_each(text: str, workers: int) -> None:
    assert workers_of_gpus(text) == workers


def test_workers_that_join_compute_on_the_devices_of_all() -> None:
    assert devices_in_turn("cuda:0, cuda:1,3=cpu") == ("cuda:0", "cuda:1") and devices_in_turn("0=cuda:0") == ()


def test_workers_on_one_gpu_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_memory, "free_memory", lambda number: 1_000_000 * (number + 1))
    room = device_memory.rows_on_devices({0: "cuda", 1: "cuda:0", 2: "cuda:1", 3: "cpu"}, 8)
    assert room[0] == room[1] and room[2] == pytest.approx(4 * room[0], abs=3) and 3 not in room
