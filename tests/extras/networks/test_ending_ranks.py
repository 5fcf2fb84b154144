"""A rank that ends before the others: they say which one and end, wherever the message failed, and show no error of
PyTorch's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

from flegel.configuration.active import using
from flegel.configuration.liveness import LivenessSettings
from flegel.errors import UsageError
from flegel.torch.flexible import watchdog
from flegel.torch.flexible.agent import Agent
from flegel.torch.flexible.membership import MembershipLimits
from flegel.torch.flexible.missing_ranks import (
    COLLECTIVES,
    ENDED,
    LIBRARIES,
    OWN,
    STOPPED,
    Sign,
    Wait,
    place_in_script,
    reason_of_wait,
)
from flegel.torch.flexible.watchdog import EXIT_CODE, Watchdog, _first_sentence, is_failed_message

ROOT = Path(__file__).resolve().parents[3]
SENTENCES = {
    "an error": "rank 2 has failed (ValueError: a fault of the script)",
    "before wrapping": "rank 2 gave no sign of life",
}


@pytest.mark.processes
def test_the_others_name_a_rank_that_ended_and_end_with_code_75(tmp_path: Path) -> None:
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(Path(__file__).with_name("ending_ranks.py")), str(tmp_path)]
    subprocess.run(command, env={**os.environ, **paths}, timeout=600, check=True)
    for name, found in json.loads((tmp_path / "ended.json").read_text()).items():
        assert found["codes"][:2] == [EXIT_CODE] * 2, (name, found)
        for said in found["told"][:2]:
            assert SENTENCES.get(name, "rank 2 has ended its training") in said, (name, said)
            assert said.count("cannot end") == 1 and "Traceback" not in said and "caught" not in said, (name, said)


def test_a_rank_ends_once_its_threads_have_come_back_from_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that came back while Python is finalized would abort a rank whose training is done."""
    inside, told = threading.Event(), threading.Event()

    class Store:
        def set(self, _: str, sign: str) -> None:
            if ENDED in sign:
                told.set()

        def check(self, *_: Any) -> bool:
            inside.set()
            told.wait(600.0)
            time.sleep(0.2)  # its answer comes after the end was told
            return True

    monkeypatch.setattr(torch.distributed, "get_rank", lambda _: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda _: 2)
    monkeypatch.setattr(torch.distributed, "PrefixStore", lambda *_: Store())
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: None)
    with using({"liveness.rank_silence_seconds": 600}):
        one = Watchdog(None, 60.0)
    inside.wait(600.0)
    watchdog._say_that_it_ends()
    assert len(one._threads) == 2 and not any(thread.is_alive() for thread in one._threads)


def test_a_process_that_leaves_ends_the_thread_that_keeps_it_in_touch() -> None:
    store = torch.distributed.HashStore()
    agent = Agent(lambda: store, "training", MembershipLimits(ranks=2))
    agent.leave()
    assert not agent._membership.is_alive()


@pytest.mark.parametrize(
    ("error", "is_one"),
    [
        (RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2. See logs."), True),
        (torch.distributed.DistNetworkError("The client socket has failed"), True),
        (RuntimeError("mat1 and mat2 shapes cannot be multiplied"), False),
        (UsageError("a connection"), False),
        (KeyError("peer"), False),
    ],
)
def test_errors_of_messages_are_told_from_others(error: BaseException, is_one: bool) -> None:
    assert is_failed_message(error) == is_one


def test_an_error_of_a_message_is_told_without_its_place_and_advice() -> None:
    error = RuntimeError("[/x/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:2. See logs.")
    assert _first_sentence(error) == "Connection closed by peer [127.0.0.1]:2"


TIMES = LivenessSettings(rank_silence_seconds=5.0, arrived_rank_factor=3.0)
ARRIVED, LATE = Sign(9, "6", 0), Sign(9, "-1", -1, "it stands at train.py, line 12")
LONG = Wait(6, 61.0, 0, 60.0)


@pytest.mark.parametrize(
    ("wait", "signs", "silence", "why"),
    [
        (Wait(6, 59.0, 0, 60.0), [ARRIVED, LATE], [1.0, 1.0], None),
        (LONG, [ARRIVED, LATE], [1.0, 1.0],
         "rank 2 is alive, but did not arrive within 60 s (it stands at train.py, line 12)"),
        (LONG, [ARRIVED, ARRIVED], [1.0, 14.0], "all ranks arrived, but it did not end within 60 s"),
        (LONG, [LATE, Sign(3, "5", 0)], [1.0, 1.0],
         "rank 1, 2 is alive, but did not arrive within 60 s (rank 1: it stands at train.py, line 12)"),
        (Wait(6, 6.0, 0, 60.0), [ARRIVED, LATE], [1.0, 5.5], "rank 2 gave no sign of life for 6 s"),
        (Wait(6, 16.0, 0, 60.0), [ARRIVED, ARRIVED], [1.0, 15.5], "rank 2 gave no sign of life for 16 s"),
        (Wait(6, 11.0, 0, 60.0), [Sign(9, "2", 1), ARRIVED], [1.0, 1.0], "rank 1 waits at a barrier of another model"),
    ],
)  # fmt: skip
def test_the_reason_of_a_long_wait(wait: Wait, signs: list[Sign], silence: list[float], why: str | None) -> None:
    found = reason_of_wait(wait, dict(enumerate(signs, 1)), dict(enumerate(silence, 1)), TIMES)
    assert found == why or (why is not None and found is not None and found.startswith(f"{why}:")), found


@pytest.mark.parametrize(
    "others", [LATE, ARRIVED, Sign(9, "3", 1), Sign(9, STOPPED, -1, "rank 7 gave no sign of life")]
)
@pytest.mark.parametrize("order", [1, -1])
def test_a_rank_that_ended_is_named_whatever_others_say_and_however_long_all_were_silent(
    others: Sign, order: int
) -> None:
    signs = dict(enumerate([others, Sign(9, ENDED), others][::order], 1))
    found = reason_of_wait(LONG, signs, dict.fromkeys(signs, 100.0), TIMES)
    assert found is not None and found.startswith("rank 2 has ended its training")


def test_a_rank_that_stops_is_believed_before_ranks_are_called_silent_or_late() -> None:
    signs = {1: LATE, 2: Sign(9, STOPPED, -1, "rank 3 has failed (ValueError: x)"), 3: ARRIVED}
    assert reason_of_wait(LONG, signs, dict.fromkeys(signs, 100.0), TIMES) == "rank 3 has failed (ValueError: x)"


@pytest.mark.parametrize("sign", [ARRIVED, LATE, Sign(1, ENDED), Sign(2, ENDED, -1, "ValueError: two words")])
def test_a_sign_of_life_is_read_as_it_was_written(sign: Sign) -> None:
    assert Sign.from_text(sign.to_text().encode()) == sign


def test_a_rank_tells_at_which_line_of_its_script_it_stands_and_in_which_collective() -> None:
    found: list[str] = []
    script: dict[str, Any] = {"look": lambda: found.append(place_in_script(sys._getframe().f_back))}
    for path, code in (
        (f"{LIBRARIES[0]}futures.py", "def wait(): look()"),
        (LIBRARIES[0] + COLLECTIVES.removeprefix(f"torch{os.sep}"), "def barrier(): wait()"),
        (f"{OWN}torch/flexible/barrier.py", "def average(): barrier()"),
        ("/home/me/train.py", "def train():\n    barrier()\ndef step():\n    average()"),
    ):
        exec(compile(code, path, "exec"), script)  # functions of files that are not here
    script["train"]()
    script["wait"]()
    script["step"]()
    assert found[0].startswith("it stands at train.py, line 2, in torch.distributed.barrier: ranks make different")
    assert found[1].startswith("it stands at test_ending_ranks.py, line ") and "distributed" not in found[1]
    assert found[2] == "it stands at train.py, line 4, in the messages of average"
