"""Jobs under faults on virtual time: a part of what `make faults` runs. Nothing sleeps; chance comes from seeds."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.chaos.simulate import KINDS
from bench.faults.faulty_job import run
from bench.faults.scenarios import (
    COORDINATOR,
    FREEZES,
    FROZEN,
    SEVEN,
    Fault,
    Scenario,
    anything,
    delayed,
    freezing,
    jumping,
    losing,
    partitioned,
    resting,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_losing_doubling_and_reordering_change_nothing(first: int) -> None:
    """`run` compares with the same job on calm network, bit for bit."""
    for seed in range(first, first + 10):
        found = run(losing(seed))
        assert found.lost and found.again, "the wires were kind"


@pytest.mark.parametrize("first", range(0, 40, 10))
def test_the_laws_hold_whatever_happens(first: int) -> None:
    for seed in range(first, first + 10):
        run(anything(seed))


def test_workers_rest_and_come_back_under_any_faults() -> None:
    found = [run(resting(seed)) for seed in range(10)]
    assert sum(f.incidents for f in found) > 40, "workers rested, came back and were lost"


CELLS = len(SEVEN) * len(FREEZES) * len(FROZEN)


@pytest.mark.parametrize("first", range(2))
def test_freezes_lose_no_job_and_change_no_result(first: int) -> None:
    """A part of the matrix model × length × who is frozen; `make faults` runs all 245 cells."""
    for seed in range(first * 9, CELLS, 17):
        scenario = freezing(seed)
        found, calm = run(scenario), run(scenario.without_faults)
        assert not found.error
        if {fault.worker for fault in scenario.faults} == {COORDINATOR}:
            assert found.incidents == 0, "a coordinator that was frozen gives up nobody"
        assert found.objectives[-1] <= calm.objectives[-1] * 1.05  # type: ignore[operator]


WAITING = (640,)
"""Partitions in which workers wait for one that hears nothing for a minute: who waits is not stuck in a hook."""


@pytest.mark.parametrize("kind", [partitioned, jumping, delayed], ids=lambda kind: kind.__name__)
def test_partitions_jumps_and_delays_hang_and_double_nothing(kind: Any) -> None:
    found = [run(kind(seed)) for seed in (*range(7), *WAITING)]
    assert not any(f.error for f in found)
    assert kind is not partitioned or (sum(f.incidents for f in found) and sum(f.lost for f in found))
    assert kind is not jumping or sum(f.incidents for f in found) == 0, "a clock that jumped is nobody's loss"


@pytest.mark.faults
@pytest.mark.parametrize("kind", KINDS)
def test_a_thousand_seeds(kind: str) -> None:
    command = [sys.executable, "-m", "bench.chaos.simulate", "--kind", kind, "--seeds", "1000"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_the_same_seed_tells_the_same_story() -> None:
    for seed in (7, 8):
        first: list[str] = []
        second: list[str] = []
        assert run(anything(seed), first.append) == run(anything(seed), second.append)
        assert first == second and len(first) > 100


def test_the_faults_do_happen() -> None:
    found = [run(anything(seed)) for seed in range(100, 120)]
    assert sum(f.incidents for f in found) > 5, "nobody was ever lost"
    assert sum(f.moved for f in found) > 1000, "no point ever moved"
    assert sum(f.stale for f in found) > 0, "nobody ever came back from the dead"
    assert sum(f.again for f in found) > 100, "nothing was ever sent again"


def test_who_is_frozen_for_too_long_is_replaced_and_never_listened_to_again() -> None:
    found = run(Scenario(1, "fsp", faults=(Fault(0.02, 1, "frozen", 3.2),), iterations=400))
    assert found.incidents >= 1 and found.stale > 0 and not found.error


def test_a_short_cut_is_survived_without_replacing_anybody() -> None:
    found = run(Scenario(2, "bsp", faults=(Fault(0.02, 1, "cut", 0.8),), iterations=40))
    assert found.incidents == 0 and found.again > 0


def test_a_job_whose_workers_all_die_while_they_load_says_so_and_breaks_no_law() -> None:
    found = run(
        Scenario(
            4,
            "bsp",
            faults=tuple(Fault(0.001, w, "killed", 0.0) for w in range(3)),
            disk={0: 1.0},
            replace=False,
        )
    )
    assert "no worker is left" in found.error and not found.incidents


def test_slow_disks_and_wrong_clocks_do_not_change_the_result() -> None:
    run(Scenario(3, "bsp", disk={0: 2.0}, skew={1: (1000.0, 1.05), 2: (-1000.0, 0.9)}, drop=0.1))


def test_a_replay_prints_the_events() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bench.chaos.simulate", "--seed", "4711", "-v", "--kind", "losing"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and "losing 4711 holds" in done.stdout
    assert "coordinator hears Report" in done.stdout and "loses" in done.stdout
