"""Networks in two groups: changes of θ are put together by every outer step."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests import needs

needs.library("torch")

import flegel
import flegel.torch.probing
import flegel.torch.training
from flegel.torch.builtin import MLP


@pytest.mark.parametrize("outer", ["mean", "visits", "nesterov"])
def test_two_groups_train_a_network_that_is_better_than_chance(tmp_path: Path, outer: str) -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(3000, 8)).astype(np.float32)
    labels = (rows @ rng.normal(size=(8, 3))).argmax(axis=1).astype(np.float64)
    results: dict[int, Any] = {}

    def train(at: int) -> None:
        results[at] = flegel.run(
            MLP(hidden=[16], epochs=6, lr=0.02, classes=3), (rows[at::2], labels[at::2]), workers=1, group=f"g{at}",
            bucket=str(tmp_path), groups=2, every="3", processes=False, outer=outer, group_timeout=60.0,
        )  # fmt: skip

    threads = [threading.Thread(target=train, args=(at,)) for at in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240.0)
    for result in results.values():
        assert float(np.mean(result.algorithm.predict(rows, result.parameter) == labels)) > 0.6
    assert len(results) == 2 and (tmp_path / "rounds" / "1" / "result").exists()
