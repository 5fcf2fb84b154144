"""A large θ on servers: who holds it, and how it gets to the coordinator and to workers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flegel.machine.server.client import SliceClient
from flegel.machine.server.paced_answers import PacedAnswers
from flegel.messages import Train
from flegel.runtime.server import file_arrays
from flegel.server_messages import ParameterSlices, PullSlices, ServerMap, SlicesFolded


def test_large_answers_leave_two_at_a_time_and_in_order() -> None:
    answers = PacedAnswers(above=8)
    for op in range(4):
        answers.add(SlicesFolded(op, (0,)), (np.zeros(1),))
    answers.add(SlicesFolded(4, (0,)), ())  # small ones are not acknowledged
    assert [body.op for body, _ in answers.due()] == [0, 1]
    assert answers.due() == []
    answers.seen()
    assert [body.op for body, _ in answers.due()] == [2]
    answers.seen()
    answers.seen()
    assert [(body.op, body.paced) for body, _ in answers.due()] == [(3, True), (4, False)]


def test_arrays_in_files_keep_their_numbers_when_their_pages_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_arrays, "FILE_ARRAY_FROM_BYTES", 1)
    files, numbers = file_arrays.FileArrays(), np.arange(3000.0).reshape(30, 100)
    there = files.moved(numbers)
    there[7] += 1.0
    files.let_go([there])
    numbers[7] += 1.0
    assert there.base is not None and np.array_equal(there, numbers)


def test_without_room_for_a_file_arrays_lie_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(file_arrays, "FILE_ARRAY_FROM_BYTES", 1)
    monkeypatch.setattr(file_arrays.os, "posix_fallocate", full)
    assert np.array_equal(file_arrays.FileArrays().moved(np.ones(5)), np.ones(5))


def test_a_worker_that_knows_only_the_form_of_θ_asks_for_it_at_once() -> None:
    client = SliceClient((np.zeros(4),), -1)
    client.use_map(ServerMap(1, ((0, 2), (2, 4)), (0,), (0,), (0,), (960, 961), ((), ()), {960: "a", 961: "b"}))
    asked = client.order(Train(0, 1, version=0), ())
    assert [(push.server, push.body) for push in asked] == [(960, PullSlices(0, (0,))), (961, PullSlices(0, (1,)))]
    client.hear(960, ParameterSlices(0, (0,), map=1), (np.ones(2),))
    assert client.ready_orders() == []
    client.hear(961, ParameterSlices(0, (1,), map=1), (np.ones(2),))
    [(_, (theta,))] = client.ready_orders()
    assert np.array_equal(theta, np.ones(4))
    assert client.order(Train(1, 1, version=1), ()) == []  # from now on servers send it unasked
