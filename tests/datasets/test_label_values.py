"""Classes come from all rows: every source tells its labels without a sample, and jobs know classes that are rare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from scipy import sparse

from flegel.algorithm import Sample
from flegel.algorithms.lr import LR
from flegel.configuration.active import using
from flegel.datasets import open_data
from flegel.datasets.dataset import with_new_values
from flegel.errors import UsageError
from flegel.runtime.job.prepared_job import take_sample, with_classes

ROWS = 5000
RARE = 4321
"""The only row of its class."""


def table() -> tuple[Any, Any]:
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, ROWS) * 3.0
    labels[RARE] = 7.0
    return rng.standard_normal((ROWS, 3)).astype(np.float32), labels


def written(kind: str, folder: Path) -> Any:
    """The same rows and labels in some form, and what opens them."""
    rows, labels = table()
    if kind == "array":
        return open_data((rows, labels))
    if kind == "sparse":
        return open_data((sparse.csr_matrix(rows), labels))
    if kind == "weighted":
        return open_data((rows, labels, np.ones(ROWS)))
    if kind == "parquet":
        columns = {**{f"x{k}": rows[:, k] for k in range(3)}, "y": labels}
        parquet.write_table(pa.table(columns), folder / "a.parquet", row_group_size=1000)
        return open_data(str(folder / "a.parquet"), label="y")
    if kind == "generator":
        parts = ((rows[lo : lo + 500], labels[lo : lo + 500]) for lo in range(0, ROWS, 500))
        return open_data(parts)
    lines = [
        ",".join([*map(repr, map(float, row)), repr(float(label))]) for row, label in zip(rows, labels, strict=True)
    ]
    if kind == "files":
        for part in range(2):
            some = lines[part * ROWS // 2 : (part + 1) * ROWS // 2]
            (folder / f"{part}.csv").write_text("\n".join(some) + "\n")
        return open_data(str(folder / "*.csv"), label=-1)
    (folder / "a.csv").write_text("\n".join(lines) + "\n")
    return open_data(str(folder / "a.csv"), label=-1)


@pytest.mark.parametrize("kind", ["array", "sparse", "weighted", "parquet", "generator", "files", "text"])
def test_every_source_tells_the_labels_of_all_rows(kind: str, tmp_path: Path) -> None:
    data = written(kind, tmp_path)
    assert data.rows == ROWS
    assert data.label_values(1000).tolist() == [0.0, 3.0, 7.0]
    assert data.label_values(2) is None, "more than so many are a quantity"


def test_rows_that_are_left_out_have_no_classes() -> None:
    rows, labels = table()
    assert open_data((rows, labels), rows=4000).label_values(1000).tolist() == [0.0, 3.0]


def test_words_are_values_too(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,y\n" + "".join(f"{i},{'rare' if i == 70 else 'usual'}\n" for i in range(90)))
    data = open_data(str(tmp_path / "a.csv"), label="y")
    assert (data.classes, data.label_values(9).tolist()) == (["rare", "usual"], [0.0, 1.0])


@pytest.mark.parametrize("form", ["array", "column", "kept", "keyed"])
def test_the_weight_of_all_rows_is_known_where_a_sample_has_some(form: str, tmp_path: Path) -> None:
    rows, labels = table()
    weights = np.where(np.arange(ROWS) % 50 == 7, 1e4, 1.0)
    expected = float(weights.sum())
    if form == "column":
        lines = [f"{a},{b},{w}" for (a, b, _), w in zip(rows.tolist(), weights.tolist(), strict=True)]
        (tmp_path / "a.csv").write_text("x,y,w\n" + "\n".join(lines) + "\n")
        data = open_data(str(tmp_path / "a.csv"), weight="w")
    elif form == "kept":
        data = open_data((rows, labels, weights), rows=4000)
        expected = float(weights[:4000].sum())
    elif form == "keyed":
        data = open_data((rows, labels, weights), keep_together=0)
    else:
        data = open_data((rows, labels, weights))
    with using({"starts.sample_rows": 1200}):
        sample = take_sample(data, seed=0)
    assert len(sample.weights) < ROWS // 2
    assert sample.mass <= expected
    assert sample.mass == pytest.approx(expected, rel=2e-6)


def test_a_small_sample_has_the_fewest_rows_of_any() -> None:
    data, fewest = open_data((np.arange(40_000.0).reshape(20_000, 2), np.arange(20_000.0))), 4096
    assert len(take_sample(data, 0).features) == 20_000
    small = take_sample(data, 0, small=True)
    assert len(small.features) == len(small.labels) == fewest and small.points == 20_000
    with using({"starts.fewest_sample_rows": 2000}):
        assert len(take_sample(data, 0, small=True).features) == 2000


def test_new_values_are_added_in_order() -> None:
    known = with_new_values(np.empty(0), np.array([5.0, 2.0, 5.0]))
    assert known.tolist() == [2.0, 5.0]
    assert with_new_values(known, np.array([5.0, 9.0, 1.0, 3.0])).tolist() == [1.0, 2.0, 3.0, 5.0, 9.0]


def test_a_class_that_the_sample_lacks_is_known() -> None:
    data = open_data(table())
    with using({"starts.sample_rows": 1200}):
        sample = take_sample(data, seed=0)
    assert 7.0 not in sample.labels, "the sample has the rare row; draw another"
    algorithm = LR()
    algorithm.validate(with_classes(sample, data))
    assert algorithm.classes == [0.0, 3.0, 7.0]
    with pytest.raises(UsageError, match="label 7 is not among"):
        LR(classes=[0.0, 3.0]).validate(with_classes(sample, data))


WORDS = ("normal.", "smurf.", "spy.")


def words_sample(labels: list[float]) -> Sample:
    return Sample(np.zeros((len(labels), 1)), np.array(labels), 9, 1, classes=np.arange(3.0), class_names=WORDS)


def test_classes_and_their_weights_are_given_and_told_in_words() -> None:
    algorithm = LR(classes="[spy.,normal.,smurf.]", class_weight='{"spy.": 5}')
    algorithm.validate(words_sample([0.0, 1.0]))
    assert algorithm.classes == [2.0, 0.0, 1.0]
    assert algorithm.class_weight == {2.0: 5.0}
    algorithm.validate(words_sample([0.0, 1.0]))  # hooks look again
    with pytest.raises(UsageError, match=r"label 'spy\.' is not among classes=\['normal\.', 'smurf\.'\]"):
        LR(classes=["normal.", "smurf."]).validate(words_sample([0.0, 1.0]))
    with pytest.raises(UsageError, match=r"'smurff' is no label; did you mean 'smurf\.'"):
        LR(classes=["normal.", "smurff"]).validate(words_sample([0.0, 1.0]))
    with pytest.raises(UsageError, match="the labels are numbers"):
        LR(classes=["a", "b"]).validate(Sample(np.zeros((2, 1)), np.array([0.0, 1.0]), 2, 1))
