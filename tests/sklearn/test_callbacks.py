"""scikit-learn's callbacks hear of a fit and of each of its passes, see the model of each, and may end the fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.callback import ScoringMonitor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from flegel import sklearn as ours

RNG = np.random.default_rng(0)
ROWS = np.abs(RNG.normal(size=(300, 4)) + 4.0 * RNG.integers(3, size=(300, 1)))
LABELS = (ROWS[:, 0] + RNG.normal(size=300) > 4).astype(int)


class Record:
    """Notes every call; `stop_after`: passes after which the fit is to end."""

    max_propagation_depth = None

    def __init__(self, stop_after: int = 10**9) -> None:
        self.stop_after, self.calls, self.models = stop_after, [], []

    def setup(self, estimator: Any, context: Any) -> None:
        self.calls.append("setup")

    def teardown(self, estimator: Any, context: Any) -> None:
        self.calls.append("teardown")

    def on_fit_task_begin(self, estimator: Any, context: Any) -> None:
        self.calls.append(f"begin {context.task_name}")

    def on_fit_task_end(self, estimator: Any, context: Any, *, X: Any = None, fitted_estimator: Any = None) -> bool:
        self.calls.append(f"end {context.task_name}")
        if context.task_name == "iteration" and fitted_estimator is not None:
            answer = getattr(fitted_estimator, "predict", getattr(fitted_estimator, "transform", None))
            self.models.append(answer(X))
        return len(self.models) >= self.stop_after


def _complete(record: Record) -> None:
    """The outermost task is the fit, and what begins ends."""
    calls = record.calls
    assert calls[:2] == ["setup", "begin fit"] and calls[-2:] == ["end fit", "teardown"]
    assert calls.count("begin iteration") == calls.count("end iteration")


@pytest.mark.parametrize(
    "model",
    [
        ours.KMeans(n_clusters=3, random_state=0),
        ours.MiniBatchKMeans(n_clusters=3, random_state=0, batch_size=100),
        ours.BisectingKMeans(n_clusters=3, random_state=0),
        ours.GaussianMixture(n_components=2, random_state=0),
        ours.FuzzyCMeans(n_clusters=3, random_state=0),
        ours.LogisticRegression(random_state=0),
        ours.LogisticRegression(random_state=0, solver="liblinear"),
        ours.PoissonRegressor(),
        ours.HuberRegressor(),
        ours.LinearSVC(),
        ours.KPrototypes(n_clusters=2, random_state=0),
    ],
    ids=lambda model: type(model).__name__,
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_each_pass_is_a_task_with_a_model_that_answers(model: Any) -> None:
    record = Record()
    alone = model.__class__(**model.get_params()).fit(ROWS, LABELS)
    heard = model.set_callbacks(record).fit(ROWS, LABELS)
    _complete(record)
    assert 1 <= len(record.models) <= model.max_iter and all(len(answers) == len(ROWS) for answers in record.models)
    answer = "predict" if hasattr(alone, "predict") else "transform"
    np.testing.assert_array_equal(getattr(alone, answer)(ROWS), getattr(heard, answer)(ROWS))
    assert not any(name.startswith("_callback") or name == "_fit_task" for name in vars(heard))


@pytest.mark.parametrize("model", [ours.PCA(), ours.Ridge(), ours.GaussianNB()], ids=lambda m: type(m).__name__)
def test_a_model_of_one_pass_is_one_task(model: Any) -> None:
    record = Record()
    model.set_callbacks(record).fit(ROWS, LABELS)
    assert record.calls == ["setup", "begin fit", "end fit", "teardown"]


def test_a_callback_ends_a_fit() -> None:
    record = Record(stop_after=2)
    model = ours.LogisticRegression(random_state=0, max_iter=50).set_callbacks(record).fit(ROWS, LABELS)
    assert len(record.models) == 2 and 2 <= model.n_iter_[0] <= 3  # workers may be in the next pass by then
    _complete(record)


def test_an_error_of_a_callback_ends_the_fit_and_others_are_torn_down() -> None:
    class Broken(Record):
        def on_fit_task_end(self, estimator: Any, context: Any) -> bool:  # type: ignore[override]
            raise RuntimeError("no more")

    record = Broken()
    with pytest.raises(RuntimeError, match="no more"):
        ours.KMeans(n_clusters=2, random_state=0).set_callbacks(record).fit(ROWS)
    assert record.calls[-1] == "teardown"


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_scores_of_each_pass_also_inside_a_search() -> None:
    monitor = ScoringMonitor(scoring="neg_log_loss")
    ours.LogisticRegression(random_state=0).set_callbacks(monitor).fit(ROWS, LABELS)
    scores = [row["neg_log_loss"] for row in monitor.get_logs().data if row["task_name"] == "iteration"]
    assert len(scores) >= 2 and scores[-1] > scores[0]

    record = Record()
    pipeline = make_pipeline(StandardScaler(), ours.LogisticRegression(random_state=0))
    search = GridSearchCV(pipeline, {"logisticregression__C": [0.1, 1.0]}, cv=2)
    search.set_callbacks(record).fit(ROWS, LABELS)
    assert record.calls.count("setup") == record.calls.count("teardown") == 1
    assert record.calls.count("begin iteration") == record.calls.count("end iteration") > 5
