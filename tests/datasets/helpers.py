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


def all_shards(data: Dataset, count: int, partition: str = "shuffle", seed: int = 0) -> list[Rows]:
    """The shards as workers read them: from a description that went through JSON."""
    description = json.loads(json.dumps(data.describe()))
    return [read_shard(description, index, count, partition, seed) for index in range(count)]


def check_shards(data: Dataset, count: int, partition: str = "shuffle", seed: int = 0) -> list[Rows]:
    """Every row is in exactly one shard, with its own values."""
    features, labels = data.load()
    whole = dense(features)
    shards = all_shards(data, count, partition, seed)
    ids = np.concatenate([shard.ids for shard in shards])
    assert np.array_equal(np.sort(ids), np.arange(data.rows))
    for shard in shards:
        assert np.array_equal(dense(shard.features), whole[shard.ids])
        if labels is None:
            assert shard.labels is None
        else:
            assert shard.labels is not None
            assert np.array_equal(shard.labels, labels[shard.ids])
    return shards
