"""Local steps between barriers: beside the same training written by hand, with all that belongs to barriers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests import needs

torch = needs.library("torch")

from flegel.errors import UsageError
from flegel.torch import LocalStepsDDP
from flegel.torch.flexible.outer import OuterOptimizer

ROOT = Path(__file__).resolve().parents[3]
STEPS = 4
WEIGHTS = 6 * 8 + 8 + 2 * 8 + 8 + 1  # of the network whose epochs are trained; its running means follow


def play(case: str, folder: Path, ranks: int = 2, **options: Any) -> dict[str, Any]:
    """What rank 0 has found, once all ranks have ended well."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    paths["FLEGEL_SETTINGS"] = "liveness.rank_silence_seconds=60"  # a busy machine may hold a rank up for long
    command = [sys.executable, "-m", "tests.extras.networks.local_ranks", case, str(folder), json.dumps(options), ""]
    subprocess.run([*command, str(ranks)], cwd=ROOT, env={**os.environ, **paths}, timeout=600, check=True)
    told = [(folder / f"errors-{rank}").read_text() for rank in range(ranks)]
    assert json.loads((folder / "codes.json").read_text()) == [0] * ranks, told
    found: dict[str, Any] = json.loads((folder / "found.json").read_text())
    return found


@pytest.mark.parametrize(("kind", "outer"), [("adamw", (0.7, 0.9)), ("sgd", (1.0, 0.0))], ids=["DiLoCo", "local SGD"])
def test_it_equals_a_training_that_was_written_by_hand(tmp_path: Path, kind: str, outer: tuple[float, float]) -> None:
    found = play("diloco", tmp_path, kind=kind, outer=outer)
    assert found["worst"] == 0.0
    assert found["parameters"][0] == found["parameters"][1]
    assert found["stepped"] == [[(number + 1) % STEPS == 0 for number in range(5 * STEPS)]] * 2


def test_bytes_are_those_of_one_step_for_each_barrier(tmp_path: Path) -> None:
    found = play("bytes", tmp_path)
    plain, local, eight = (found[kind] for kind in ("plain", "local", "int8"))
    assert (plain["barriers"], local["barriers"], eight["barriers"]) == (10 * STEPS, 10, 10)
    table = 10 * 2 * 8 * 32  # at most, of the reports of two ranks at ten barriers
    assert local["bytes"] <= 10 * 4 * found["values"] + table, "plain barriers send all values in every step"
    assert eight["bytes"] <= 0.55 * local["bytes"], "each value travels twice with 8 bits in place of 32"
    for one in (local, eight):
        assert one["parameters"][0] == one["parameters"][1]
        assert one["loss"] == pytest.approx(plain["loss"], rel=0.25)


@pytest.mark.parametrize(
    "options",
    [{"local_steps": 5}, {"seconds": 0.05, "workers": 1}, {"local_steps": 3, "group": 3}],
    ids=["by number", "by time", "accumulated"],
)
def test_every_index_once_and_the_same_weights_after_each_epoch(tmp_path: Path, options: dict[str, Any]) -> None:
    found = play("local_epochs", tmp_path, 3, **options)
    for epoch in range(2):
        assert sorted(index for rank in found["seen"] for index in rank[epoch]) == list(range(1003))
        # what is left below an iteration passes through the network once more, so running statistics differ by it
        ended = [rank[epoch][: WEIGHTS if "group" in options else None] for rank in found["ended"]]
        assert ended[0] == ended[1] == ended[2]
    assert len(set(found["barriers"])) == 1 and len(set(found["rate"])) == 1
    if "group" not in options:
        assert found["samples"] == 2 * 1003


def test_a_training_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    for whole, interrupted in play("resumed", tmp_path)["ends"]:
        assert whole == interrupted


@pytest.mark.processes
def test_ranks_that_are_lost_are_replaced_while_the_others_make_local_steps(tmp_path: Path) -> None:
    out = tmp_path / "healing.json"
    command = [
        sys.executable, "-m", "bench.chaos.healing", "--ranks", "3", "--seconds", "16", "--every", "4",
        "--samples", "900", "--limit", "60", "--seed", "0", "--local-steps", "8", "--out", str(out),
    ]  # fmt: skip
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(command, cwd=ROOT, env={**os.environ, **paths}, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(out.read_text())
    assert found["faults"] >= 2 and found["epochs"] >= 1
    assert not any(found[k] for k in ("unequal_barriers", "lost_samples", "repeated_samples", "hung", "errors"))


def test_the_state_for_others_has_the_weights_of_all_ranks() -> None:
    net = torch.nn.Linear(3, 2)
    before = {name: value.clone() for name, value in net.state_dict().items()}
    outer = OuterOptimizer(list(net.parameters()), 1.0, 0.0)
    outer.open()
    torch.nn.init.zeros_(net.weight)
    assert all(torch.equal(value, before[name]) for name, value in outer.of_all_ranks(net).items())
    outer.step(outer.change())
    assert float(net.weight.detach().abs().max()) == 0.0, "one rank alone: where its local steps have led"
    assert float(outer.of_all_ranks(net)["weight"].abs().max()) == 0.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "local_steps=… .*seconds=…"),
        ({"local_steps": 4, "seconds": 1.0}, "Give one of"),
        ({"local_steps": 0}, "whole number above 0"),
        ({"seconds": 0.0}, "seconds above 0"),
        ({"local_steps": 4, "outer_rate": 0.0}, "a rate above 0"),
        ({"local_steps": 4, "outer_momentum": 1.0}, "below 1"),
        ({"local_steps": 4, "lr_rule": "sqrt", "interval": 1.0}, "Omit interval, lr_rule"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        LocalStepsDDP(torch.nn.Linear(1, 1), **options)
