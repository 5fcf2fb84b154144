"""Networks on virtual time: real gradients, calls of a given length, the same bits in every run; `auto` among them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("torch")

import flegel
from flegel.algorithm import Sample
from flegel.compare.candidate import parse_candidates
from flegel.compare.simulation import ClusterModel, JobSimulator, SimulationSettings
from flegel.core import pytree
from flegel.datasets import open_data
from flegel.job import Criteria
from flegel.results.result import Result
from flegel.sim.coordinator_cost import Costs
from flegel.torch.builtin import MLP
from flegel.torch.records import NetworkSums

RNG = np.random.default_rng(0)
X = RNG.normal(size=(640, 16)).astype(np.float32)
Y = ((X[:, 0] > 0) + 1.0 * (X[:, 1] > 0.3)).astype(np.float64)


def simulated(sync: str, call: float = 1e-3, wake: float = 1e-3, **more: Any) -> Result:
    candidate = parse_candidates(sync)[0]
    model = ClusterModel(
        rates=dict.fromkeys(range(4), 14_000.0), call=call, costs=Costs(wake=wake, merge=5e-5), learning="real"
    )
    settings = SimulationSettings(
        algorithm=MLP(hidden=[16], epochs=1e6, lr=1e-2), data=open_data((X, Y)), candidates=[candidate], workers=4,
        model=model,
    )  # fmt: skip
    criteria = Criteria(target=0.3, tolerance=0.0, max_seconds=5.0)
    return JobSimulator(settings, model).run(candidate, criteria, more.get("straggler", ""), 0)


def test_two_runs_of_a_simulated_network_have_the_same_bits() -> None:
    first, again = simulated("fsp"), simulated("fsp")
    assert first.outcome == "target" and first.seconds == again.seconds
    pairs = zip(pytree.flatten(first.parameter), pytree.flatten(again.parameter), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)


def test_auto_gives_up_costly_barriers_and_is_ahead_of_fsp() -> None:
    auto, fsp = simulated("auto", wake=2e-3), simulated("fsp", wake=2e-3)
    assert auto.outcome == fsp.outcome == "target"
    assert auto.sync_choice.startswith("an update of each report") and not fsp.sync_choice
    assert any("an update of each report" in row["reason"] for row in auto.rows)
    assert auto.seconds < 0.9 * fsp.seconds


def test_auto_comes_to_its_target_with_a_slow_worker() -> None:
    done = simulated("auto", straggler="0:8x")
    assert done.outcome == "target" and done.sync_choice


@pytest.mark.processes
def test_auto_on_real_workers_trains_and_says_what_it_chose() -> None:
    done = flegel.run(
        MLP(hidden=[16], epochs=30, lr=1e-2), (X, Y), workers=2, sync="auto", processes=True, max_seconds=600.0
    )
    assert done.reason == "30 epochs are done"
    # What it chose, and whether there was anything to choose, follows from measured speeds.
    assert done.to_json()["sync_choice"] == done.sync_choice


def test_noise_of_single_reports_comes_from_two_workers_and_does_not_collapse() -> None:
    """Estimates from within short reports made the next ones shorter, down to the smallest call."""
    rng = np.random.default_rng(3)
    network = MLP(hidden=[16], lr=1e-4, batch=64)
    sample = Sample(X, Y, len(X), X.shape[1])
    network.validate(sample)
    theta = network.initParameter(sample, rng)
    weights = len(theta.weights)
    true = rng.normal(size=weights).astype(np.float32)
    for step in range(400):
        noise = rng.normal(size=weights).astype(np.float32) * 8.0
        gradient = 16 * true + 4.0 * noise  # of 16 samples, each with 64 times as much noise as gradient
        spread = np.array([1.0, float(gradient @ gradient) / 16, 0.0, 0.0, 1.0 + step % 2])
        theta = network.updateParameter(NetworkSums(gradient, np.zeros(0), np.array([16.0, 16.0, 8.0]), spread), theta)
    scale = network.noise_scale(theta)
    assert scale is not None and 40.0 < scale < 100.0
