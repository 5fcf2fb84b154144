"""The score that a group's gate compares: larger is better, whichever way the objective goes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from flegel.algorithm import Algorithm, Evaluation
from flegel.declarations.learning import Learning
from flegel.errors import UsageError
from flegel.job import Job
from flegel.machine.group.events import Offered
from flegel.runtime.group.session import GroupSession


class Level(Algorithm):
    """One number θ, whose objective is θ itself."""

    def updateDataPoint(self, dataPoint: Any, parameter: Any, iteration: int) -> Any:
        return parameter

    def updateParameter(self, aggregator: Any, oldParameter: Any) -> Any:
        return oldParameter

    def evaluate(self, features: Any, labels: Any, parameter: Any) -> Evaluation | None:
        return Evaluation(float(parameter[0]), {})


class Likelihood(Level):
    learning = Learning(maximize=True)


class Unscored(Level):
    def evaluate(self, features: Any, labels: Any, parameter: Any) -> Evaluation | None:
        return None


def score(algorithm: Algorithm, change: float, folder: Path) -> float:
    """Of θ = 3 after the last result, and this change of it."""
    rows = folder / "rows.csv"
    rows.write_text("x,y\n1.5,2.5\n2.5,3.5\n")
    job = msgspec.json.decode(b"{}", type=Job)
    session = GroupSession.__new__(GroupSession)
    session._job = msgspec.structs.replace(job, sites=msgspec.structs.replace(job.sites, gate_data=str(rows)))
    session._package = session._earlier = session._data_form = None
    session._algorithm, session.link = algorithm, SimpleNamespace(base=[np.array([3.0])])  # type: ignore[assignment]
    return session._scorer(np.zeros(1))(Offered(1, (np.array([change]),), (), 1.0, 2, False, None, 1))


def test_a_smaller_objective_scores_higher_where_it_is_minimized(tmp_path: Path) -> None:
    assert (score(Level(), -1.0, tmp_path), score(Level(), 1.0, tmp_path)) == (-2.0, -4.0)


def test_a_larger_objective_scores_higher_where_it_is_maximized(tmp_path: Path) -> None:
    assert (score(Likelihood(), -1.0, tmp_path), score(Likelihood(), 1.0, tmp_path)) == (2.0, 4.0)


def test_a_class_without_evaluate_is_told_that_the_gate_needs_it(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"gate.* needs a score.*evaluate"):
        score(Unscored(), 1.0, tmp_path)
