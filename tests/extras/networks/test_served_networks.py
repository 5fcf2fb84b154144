"""Networks on parameter servers: slices of an update are updates of slices, and the bits are those of a coordinator."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("torch")

import flegel
from flegel.checks.conformance import Trial, _shards
from flegel.core import pytree
from flegel.core.sharding import make_cuts
from flegel.errors import UsageError
from flegel.torch.builtin import MLP

RNG = np.random.default_rng(0)
X = RNG.normal(size=(200, 16)).astype(np.float32)
Y = ((X[:, 0] > 0) + 1.0 * (X[:, 1] > 0.3)).astype(np.float64)
HIDDEN = [128, 64]
"""10,627 weights: three blocks, so that there are slices to cut."""


@pytest.mark.parametrize(
    "options",
    [{}, {"optimizer": "sgd"}, {"optimizer": "momentum", "batch": 64}, {"local": True}, {"precision": "float64"}],
    ids=repr,
)
def test_slices_of_an_update_are_updates_of_slices(options: dict[str, Any]) -> None:
    trial = Trial(MLP(hidden=HIDDEN, **options), X[:40], Y[:40], np.dtype(np.float32))
    assert trial.algorithm.placement.sharding is not None
    assert make_cuts(trial.algorithm.placement.sharding, trial.parameter, trial.zero, 7).count == 3
    assert _shards(trial)


@pytest.mark.processes
def test_servers_give_the_bits_of_one_coordinator() -> None:
    """Micro-batches of one sample: the size of larger ones follows measured times, and with it the last bits."""
    with flegel.LocalCluster(2) as cluster:
        for options in ({"optimizer": "momentum", "batch": 64}, {"local": True}):
            found = [
                cluster.run(MLP(hidden=HIDDEN, micro_batch=1, epochs=3, **options), (X, Y), sync="bsp", servers=servers)
                for servers in (0, 2, "colocated")
            ]
            for other in found[1:]:
                assert other.reason == "3 epochs are done" and other.objective == found[0].objective
                pairs = zip(pytree.flatten(found[0].parameter), pytree.flatten(other.parameter), strict=True)
                assert all(np.array_equal(a, b) for a, b in pairs)


def test_a_class_of_torch_optim_is_refused() -> None:
    with pytest.raises(UsageError, match=r"a class of torch\.optim keeps its state by whole layers"):
        flegel.run(MLP(hidden=HIDDEN, optimizer="Adadelta"), (X, Y), workers=1, processes=False, servers=2)
