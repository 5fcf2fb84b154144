"""Logistic regression on data that nobody prepared: as good as scikit-learn, or a sentence that says why not."""

from __future__ import annotations

import math
from typing import Any

import lr_cases
import numpy as np
import pytest
from local_training import Run, start

import flegel
from flegel.algorithms.lr import LR
from flegel.algorithms.lr.search import StepSearch
from flegel.core.shard import Sparse

FOUND = {
    "plain": 0.393371,
    "plain_float32": 0.3966162,
    "tails_2_of_log": 0.582359,
    "tails_3_of_log": 0.6456113,
    "tails_25_of_rows": 0.2655537,
    "tails_3_of_rows": 0.2133449,
    "cauchy": 0.6833137,
    "network_traffic_l2": 0.1728331,
    "network_traffic_sorted": 0.2340888,
    "twenty_positives": 0.005823794,
    "one_in_thirty_thousand": 0.0006441318,
    "scales": 0.2730537,
    "offsets": 0.509846,
    "collinear": 0.3889456,
    "nearly_collinear": 0.3925324,
    "separable_l2": 0.1126887,
    "partly_separable": 0.4544286,
    "more_columns_than_rows": 0.07120174,
    "many_columns": 0.3843996,
    "lasso": 0.5699168,
    "elastic_net": 0.5019483,
    "balanced": 0.3159225,
    "weighted_classes": 0.5372576,
    "three_classes": 0.5103646,
    "rare_classes": 0.7708634,
    "lasso_of_classes": 0.8138341,
    "no_intercept": 0.3984968,
    "diamonds": 0.07016221,
    "penguins": 0.002604834,
    "skin": 0.2462061,
    "higgs": 0.6359574,
    "flights": 0.2088923,
    "census": 0.324413,
}
"""What scikit-learn 1.9 finds (`lr_cases.scikit_learn`); `test_scikit_learn_finds_these` computes it again."""
WARNED = {"network_traffic": "A plane separates", "separable": "A plane separates", "botnet": "A plane separates"}
REAL = ("diamonds", "penguins", "skin", "higgs", "flights", "botnet", "census")
QUICK = ("plain_float32", "tails_3_of_rows", "network_traffic_l2", "separable", "scales", "elastic_net", "rare_classes")
"""Cases for every run of the tests; the others, and all of `bench.gauntlet`, are for the night."""
MARKS = {
    name: [pytest.mark.data] * (name in REAL) + [pytest.mark.slow] * (name not in QUICK) for name in lr_cases.CASES
}
NAMES = [pytest.param(name, marks=MARKS[name]) for name in lr_cases.CASES]
HISTORIES = [(1, 1), (3, 12)]
"""Workers, and barriers a pass: every θ is measured (as under bsp), or θ moves first (as under fsp)."""


def trained(name: str, workers: int, barriers: int, tolerance: float = 1e-4) -> tuple[Run, Any, float]:
    rows, labels, hyper = lr_cases.CASES[name]()
    run = start(LR(**hyper), rows, labels, workers=workers)
    each = max(max(share.points for share in run.shares) // barriers, 1)
    for _ in range(260):
        run.passes(1, each)
        distance = run.algorithm.optimality(run.statistics, run.parameter)
        if distance is not None and not distance > tolerance:
            break
    final = run.algorithm.finalParameter(run.statistics, run.parameter)
    return run, final, run.algorithm.evaluate(rows, labels, final).objective


@pytest.mark.parametrize(("workers", "barriers"), HISTORIES)
@pytest.mark.parametrize("name", NAMES)
def test_as_good_as_scikit_learn_or_a_sentence_why_not(name: str, workers: int, barriers: int) -> None:
    run, final, objective = trained(name, workers, barriers)
    said = run.algorithm.warnings(run.statistics, final)
    if name in WARNED:
        assert WARNED[name] in said[0]
        assert objective < 0.02 * math.log(2.0)
        return
    assert said == []
    assert run.algorithm.optimality(run.statistics, run.parameter) <= 1e-4
    assert objective <= FOUND[name] * 1.001


@pytest.mark.parametrize("name", ["tails_3_of_rows", pytest.param("network_traffic_sorted", marks=pytest.mark.slow)])
def test_the_best_weights_never_get_worse(name: str) -> None:
    rows, labels, hyper = lr_cases.CASES[name]()
    run = start(LR(**hyper), rows, labels, workers=3)
    best = math.inf
    for _ in range(8 * 12):
        run.barrier(len(labels) // 36)
        search = StepSearch(*run.parameter.internal_search)
        if search.measured:
            assert search.best <= best * (1 + 1e-7)
            best = search.best
    assert best < math.inf


def test_a_failed_step_leads_back_to_the_best_weights() -> None:
    rows, labels, _ = lr_cases.CASES["plain"]()
    run = start(LR(), rows, labels).passes(4)
    good = run.objectives[-1]
    wild = run.parameter.weights - 1000.0
    run.parameter = run.parameter._replace(weights=wild)
    run.passes(1)
    assert run.objectives[-1] == good
    kept = run.algorithm.finalParameter(run.statistics, run.parameter)
    assert run.algorithm.evaluate(rows, labels, kept).objective == pytest.approx(good, rel=1e-6)
    assert run.passes(6).objectives[-1] == pytest.approx(FOUND["plain"], rel=1e-4)


def test_lasso_leaves_columns_out() -> None:
    _, final, _ = trained("lasso", 1, 1, tolerance=1e-7)
    assert 0 < np.count_nonzero(final.weights) < 20


def test_weights_of_classes_may_be_given_in_order_or_by_label() -> None:
    rows, labels, _ = lr_cases.CASES["plain"]()
    first = start(LR(class_weight=[1.0, 4.0]), rows, labels).passes(6)
    second = start(LR(class_weight={1.0: 4.0}), rows, labels).passes(6)
    np.testing.assert_array_equal(first.parameter.weights, second.parameter.weights)
    with pytest.raises(flegel.UsageError, match="no classes"):
        LR(class_weight={7.0: 1.0}).validate(first.sample)
    with pytest.raises(flegel.UsageError, match="2 numbers"):
        LR(class_weight=[1.0]).validate(first.sample)
    with pytest.raises(flegel.UsageError, match="memory"):
        LR(l1=0.1, memory=False).validate(first.sample)


@pytest.mark.slow
@pytest.mark.processes
def test_every_synchronization_model_reaches_the_minimum() -> None:
    with flegel.LocalCluster(3) as cluster:
        for sync in ("bsp", "bsp-mini", "fsp", "fsp-binary", "ssp", "asp", "psp"):
            for name in ("tails_3_of_rows", "network_traffic_l2"):
                rows, labels, hyper = lr_cases.CASES[name]()
                result = flegel.run(LR(**hyper), (rows, labels), workers=3, sync=sync, cluster=cluster, max_seconds=600)
                assert result.converged, f"{sync}, {name}: {result.reason}"
                measured = LR(**hyper).evaluate(rows, labels, result.parameter).objective
                assert measured <= FOUND[name] * 1.001, f"{sync}, {name}"
                assert result.objective == pytest.approx(measured, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("name", [p for p in NAMES if p.values[0] not in WARNED])
def test_scikit_learn_finds_these(name: str) -> None:
    rows, labels, hyper = lr_cases.CASES[name]()
    if isinstance(rows, Sparse):
        dense = np.zeros((len(labels), rows.columns))
        dense[np.repeat(np.arange(len(labels)), np.diff(rows.indptr)), rows.indices] = rows.values
        rows = dense
    assert lr_cases.scikit_learn(rows, labels, hyper) == pytest.approx(FOUND[name], rel=1e-4)
