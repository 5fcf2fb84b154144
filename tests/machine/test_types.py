"""Types of θ and of the statistics: float64, unless the algorithm says that they keep their own."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from flegel import ParameterPlacement, Statistics
from flegel.algorithm import Algorithm
from flegel.core import pytree
from flegel.params.local import LocalStore
from flegel.params.protocol import Fold


class Weights(NamedTuple):
    weights: Any
    moments: Any


class Sums(NamedTuple):
    gradient: Any
    visits: Any


class Descent(Algorithm):
    """A gradient method with a state that only the coordinator needs."""

    placement = ParameterPlacement(typed=True, unsent=("moments",))
    statistics = Statistics(spent=("gradient", "visits"))

    def updateParameter(self, aggregator: Sums, oldParameter: Weights) -> Weights:
        step = aggregator.gradient / aggregator.visits[0]
        return Weights(oldParameter.weights - step.astype(np.float64), oldParameter.moments + 1)


class DoubleDescent(Descent):
    placement = ParameterPlacement(unsent=("moments",))


THETA = Weights(np.ones(3, np.float32), np.zeros(2))
REPORT = Sums(np.full(3, 0.5, np.float32), np.ones(1))


@pytest.mark.parametrize(("kind", "expected"), [(Descent, np.float32), (DoubleDescent, np.float64)])
def test_types_are_kept_from_the_first_parameter_to_the_last(kind: type[Algorithm], expected: type) -> None:
    algorithm = kind()
    zero = pytree.zeros_like(REPORT, algorithm.placement.typed)
    store = LocalStore(algorithm, pytree.starting(THETA, algorithm.placement.typed), zero)
    for number in range(3):
        store.fold(Fold(number, [0, 1], [pytree.as_typed(REPORT, zero)] * 2, "round 0"))
    assert store.parameter.weights.dtype == store.statistics.gradient.dtype == expected
    assert store.parameter.moments.dtype == store.statistics.visits.dtype == np.float64
    np.testing.assert_allclose(store.parameter.weights, 1 - 3 * 0.5, rtol=1e-6)
    assert store.parameter.moments[0] == 3


def test_workers_do_not_get_what_they_do_not_need() -> None:
    sent = pytree.without(THETA, Descent.placement.unsent)
    assert pytree.names(sent) == ("weights",) and sent.weights is THETA.weights
    assert pytree.without(THETA, ()) is THETA


def test_a_parameter_that_was_given_away_is_kept_and_others_are_copied() -> None:
    committed = pytree.starting(THETA, typed=True)
    given, written_to = pytree.given(np.ones(3, np.float32)), np.ones(2)
    view = np.ones((2, 2))[0]
    view.flags.writeable = False
    for array, kept in ((given, True), (written_to, False), (view, False), (pytree.protected(written_to), False)):
        (made,) = pytree.flatten(pytree.taken(array, np.zeros(1, array.dtype)))
        assert (made is array) == kept and not made.flags.writeable and np.array_equal(made, array)
        assert kept or not np.shares_memory(made, array)
    assert pytree.taken(given, np.zeros(1)).dtype == np.float64  # another type is a copy
    stays = pytree.taken(pytree.presented(committed), committed)
    assert all(one is other for one, other in zip(pytree.flatten(stays), pytree.flatten(committed), strict=True))
