"""scikit-learn's own test modules, run against our estimators by substitution: how many pass, and why others cannot.

    python -m bench.rivals.sklearn_suite            # all modules; a table for docs/results/sklearn.md
    python -m bench.rivals.sklearn_suite kmeans     # one of them, with the first line of each failure
    python -m bench.rivals.sklearn_suite nmf --out runs/sklearn   # and all of it as nmf.json in that folder

Before a module is imported, our class takes the place of scikit-learn's in its package, so that `from sklearn.cluster
import KMeans` in the tests finds ours. Tests that never use the class are not counted. Never changes an installation.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import flegel.sklearn


@dataclass(frozen=True)
class Suite:
    """A test module of scikit-learn and the class that is replaced in it."""

    package: str
    module: str
    name: str


SUITES = {
    "kmeans": Suite("sklearn.cluster", "sklearn/cluster/tests/test_k_means.py", "KMeans"),
    "minibatch": Suite("sklearn.cluster", "sklearn/cluster/tests/test_k_means.py", "MiniBatchKMeans"),
    "bisecting": Suite("sklearn.cluster", "sklearn/cluster/tests/test_bisect_k_means.py", "BisectingKMeans"),
    "lda": Suite(
        "sklearn.decomposition", "sklearn/decomposition/tests/test_online_lda.py", "LatentDirichletAllocation"
    ),
    "mixture": Suite("sklearn.mixture", "sklearn/mixture/tests/test_gaussian_mixture.py", "GaussianMixture"),
    "logistic": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_logistic.py", "LogisticRegression"),
    "nmf": Suite("sklearn.decomposition", "sklearn/decomposition/tests/test_nmf.py", "NMF"),
    "pca": Suite("sklearn.decomposition", "sklearn/decomposition/tests/test_pca.py", "PCA"),
    "gaussiannb": Suite("sklearn.naive_bayes", "sklearn/tests/test_naive_bayes.py", "GaussianNB"),
    "multinomialnb": Suite("sklearn.naive_bayes", "sklearn/tests/test_naive_bayes.py", "MultinomialNB"),
    "bernoullinb": Suite("sklearn.naive_bayes", "sklearn/tests/test_naive_bayes.py", "BernoulliNB"),
    "covariance": Suite("sklearn.covariance", "sklearn/covariance/tests/test_covariance.py", "EmpiricalCovariance"),
    "shrunk": Suite("sklearn.covariance", "sklearn/covariance/tests/test_covariance.py", "ShrunkCovariance"),
    "ledoitwolf": Suite("sklearn.covariance", "sklearn/covariance/tests/test_covariance.py", "LedoitWolf"),
    "oas": Suite("sklearn.covariance", "sklearn/covariance/tests/test_covariance.py", "OAS"),
    "linear": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_base.py", "LinearRegression"),
    "ridge": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_ridge.py", "Ridge"),
    "lasso": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_coordinate_descent.py", "Lasso"),
    "elasticnet": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_coordinate_descent.py", "ElasticNet"),
    "poisson": Suite("sklearn.linear_model", "sklearn/linear_model/_glm/tests/test_glm.py", "PoissonRegressor"),
    "gamma": Suite("sklearn.linear_model", "sklearn/linear_model/_glm/tests/test_glm.py", "GammaRegressor"),
    "huber": Suite("sklearn.linear_model", "sklearn/linear_model/tests/test_huber.py", "HuberRegressor"),
    "linearsvc": Suite("sklearn.svm", "sklearn/svm/tests/test_svm.py", "LinearSVC"),
    "svd": Suite("sklearn.decomposition", "sklearn/decomposition/tests/test_truncated_svd.py", "TruncatedSVD"),
}

REASONS = [
    (r"unexpected keyword argument|Invalid parameter|no parameter", "a parameter that ours does not have"),
    (
        r"has no attribute '_|object has no attribute '[a-z_]*_init|module .* has no attribute",
        "private parts of theirs",
    ),
    (r"DID NOT (RAISE|WARN)", "an error or a warning that only theirs gives"),
    (r"Regex pattern did not match|match", "other words in an error"),
    (r"ConvergenceWarning", "warnings of convergence"),
    (r"Not equal to tolerance|Arrays are not equal|assert|AssertionError", "another result: other starts, other steps"),
]


@dataclass
class Outcome:
    """What happened to the tests of a module."""

    passed: int = 0
    skipped: int = 0
    failed: dict[str, str] = field(default_factory=dict)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" and report.passed:
            self.passed += 1
        elif report.skipped:
            self.skipped += 1
        elif report.failed:
            self.failed[report.nodeid.partition("::")[2]] = _line(report)

    def pytest_collection_modifyitems(self, items: list[Any]) -> None:
        items[:] = [item for item in items if _uses(item, self.name)]

    name: str = ""


def _uses(item: Any, name: str) -> bool:
    """Does the test, or a parameter of it, name the class?"""
    called = getattr(item, "callspec", None)
    parameters = list(called.params.values()) if called is not None else []
    ours = getattr(flegel.sklearn, name)
    if any(p is ours or isinstance(p, ours) for p in parameters):
        return True
    if any(inspect.isclass(p) for p in parameters):
        return False  # the same test with another class
    source = inspect.getsource(item.function)
    return re.search(rf"\b{name}\(", source) is not None


def _line(report: Any) -> str:
    crash = getattr(getattr(report, "longrepr", None), "reprcrash", None)
    text = crash.message if crash is not None else str(report.longrepr)
    return " ".join(text.split())[:200]


def reason_of(line: str) -> str:
    """The kind of a failure."""
    return next((reason for pattern, reason in REASONS if re.search(pattern, line)), "other")


def run(suite: Suite) -> Outcome:
    """One module against our class."""
    import sklearn

    setattr(importlib.import_module(suite.package), suite.name, getattr(flegel.sklearn, suite.name))
    outcome = Outcome(name=suite.name)
    path = Path(sklearn.__file__).parent.parent / suite.module
    options = ["-q", "--no-header", "--tb=no", "-p", "no:cacheprovider", "-W", "ignore"]
    pytest.main([*options, "--rootdir", str(path.parent), "-c", "/dev/null", str(path)], plugins=[outcome])
    return outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suites", nargs="*", choices=[*SUITES, []], help="all by default")
    parser.add_argument("--out", type=Path, help="folder for a file of each module: counts, and each test that failed")
    given = parser.parse_args()
    chosen = given.suites or list(SUITES)
    lines = ["| class | passed | cannot | skipped | of those that cannot |", "|---|---|---|---|---|"]
    for key in chosen:
        found = run(SUITES[key])
        reasons = Counter(reason_of(line) for line in found.failed.values())
        told = "; ".join(f"{count}: {reason}" for reason, count in reasons.most_common())
        lines.append(f"| `{SUITES[key].name}` | {found.passed} | {len(found.failed)} | {found.skipped} | {told} |")
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            told_all = {"passed": found.passed, "cannot": len(found.failed), "skipped": found.skipped}
            (given.out / f"{key}.json").write_text(json.dumps({**told_all, "failed": found.failed}, indent=1) + "\n")
        if len(chosen) == 1:
            for test, line in found.failed.items():
                print(f"{reason_of(line)}: {test}: {line}", file=sys.stderr)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
