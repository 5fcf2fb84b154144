"""Whole jobs of several groups through a folder: the fixed points are those of central training."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flegel
from flegel.algorithms.gmm import GMM
from flegel.algorithms.kmeans import KMeans
from flegel.algorithms.nmf.kullback import KLNMF
from flegel.core.pytree import Array
from flegel.errors import UsageError
from flegel.result import Result


def sorted_blobs(seed: int = 0, groups: int = 9, rows: int = 200) -> Array:
    """Rows sorted by their cluster, so that every site has clusters that the others lack."""
    rng = np.random.default_rng(seed)
    centres = 6.0 * rng.normal(size=(groups, 4))
    return np.concatenate([c + rng.normal(size=(rows, 4)) for c in centres]).astype(np.float32)


def train_groups(algorithm: Any, parts: list[Array], bucket: Path, **options: Any) -> list[Result]:
    """One job for each part, at the same time."""
    results: list[Any] = [None] * len(parts)

    def train(at: int) -> None:
        try:
            results[at] = flegel.run(
                algorithm(), parts[at], workers=1, group=f"site{at}", bucket=str(bucket), groups=len(parts),
                processes=False, **options,
            )  # fmt: skip
        except BaseException as error:  # noqa: BLE001 - told by the test
            results[at] = error

    threads = [threading.Thread(target=train, args=(at,)) for at in range(len(parts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120.0)
    for found in results:
        if not isinstance(found, Result):
            raise AssertionError("a group did not end") from found
    return results


@pytest.mark.parametrize("algorithm", [lambda: KMeans(k=8), lambda: GMM(k=5)], ids=["kmeans", "gmm"])
def test_three_groups_with_sorted_data_end_where_central_training_ends(tmp_path: Path, algorithm: Any) -> None:
    rows = sorted_blobs()
    results = train_groups(algorithm, np.split(rows, 3), tmp_path, sync="bsp", every="3")
    central = flegel.run(algorithm(), rows, workers=1, sync="bsp", processes=False)
    scale = -1.0 if algorithm().maximize else 1.0
    objective = algorithm().evaluate(rows, None, results[0].parameter).objective
    assert scale * objective <= scale * central.objective + 0.02 * abs(central.objective)
    for result in results:
        assert result.outcome == "converged" and "all 3 groups" in result.reason
        assert result.objective == pytest.approx(objective, rel=1e-6)
        for one, other in zip(result.parameter[:2], results[0].parameter[:2], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-12)


def test_wrong_use_is_told_in_a_sentence(tmp_path: Path) -> None:
    rows = sorted_blobs(rows=10)
    with pytest.raises(UsageError, match="give both"):
        flegel.run(KMeans(k=2), rows, group="paris")
    with pytest.raises(UsageError, match="cannot be trained by groups"):
        flegel.run(KLNMF(), np.abs(rows), group="paris", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="missing in the sums"):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), gate="best", gate_data="x.csv")
    with pytest.raises(UsageError, match="every="):
        flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), every="often")
    flegel.run(KMeans(k=2), rows, group="paris", bucket=str(tmp_path), processes=False, max_iterations=2)
    with pytest.raises(UsageError, match="k=2"):
        flegel.run(KMeans(k=3), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match=r"train .*kmeans"):
        flegel.run(GMM(k=2), rows, group="lyon", bucket=str(tmp_path))
    with pytest.raises(UsageError, match="other columns"):
        flegel.run(KMeans(k=2), rows[:, :3], group="lyon", bucket=str(tmp_path))
