"""What several tests of the data ask."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from flegel.core.shard import Sparse
from flegel.datasets import Dataset, Rows, read_shard


def dense(features: Any) -> Any:
    """Sparse rows as a matrix, others as they are."""
    if not isinstance(features, Sparse):
        return features
    matrix = np.zeros((len(features.indptr) - 1, features.columns), features.values.dtype)
    rows = np.repeat(np.arange(len(matrix)), np.diff(features.indptr))
    matrix[rows, features.indices] = features.values
    return matrix


def all_shares(data: Dataset, count: int, partition: str = "shuffle", seed: int = 0) -> list[Rows]:
    """The shares as workers read them: from a description that went through JSON."""
    description = json.loads(json.dumps(data.describe()))
    return [read_shard(description, index, count, partition, seed) for index in range(count)]


def check_shares(data: Dataset, count: int, partition: str = "shuffle", seed: int = 0) -> list[Rows]:
    """Every row is in exactly one share, with its own values."""
    features, labels = data.load()
    whole = dense(features)
    shares = all_shares(data, count, partition, seed)
    ids = np.concatenate([share.ids for share in shares])
    assert np.array_equal(np.sort(ids), np.arange(data.rows))
    for share in shares:
        assert np.array_equal(dense(share.features), whole[share.ids])
        if labels is None:
            assert share.labels is None
        else:
            assert share.labels is not None
            assert np.array_equal(share.labels, labels[share.ids])
    return shares
