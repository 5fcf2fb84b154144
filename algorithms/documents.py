"""One document of a topic model, compiled: its topics under given words, and what it adds to the bound.

A plain Python call runs the same machine code as a compiled hook. Never knows how topics are learned.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba.extending import overload

from flegel.core.code_cache import njit
from flegel.core.overloads import is_array
from flegel.core.shard import SparseRow

_OPTIONS: dict[str, Any] = {"nogil": True, "cache": True, "error_model": "numpy"}
LEAST_CHANCE = 1e-100  # added to the probability of a word, so that a word which no topic knows divides nothing by 0


def entries(row: Any) -> Any:
    """The columns of a row that are not 0, and their values."""
    if isinstance(row, SparseRow):
        return row.indices, row.values
    places = np.nonzero(row)[0]
    return places, row[places]


@overload(entries)
def _(row: Any) -> Any:
    def dense(row: Any) -> Any:
        places = np.nonzero(row)[0]
        return places, row[places]

    def sparse(row: Any) -> Any:
        return row.indices, row.values

    return dense if is_array(row) else sparse


@njit(**_OPTIONS)
def digamma(x):
    """ψ(x) for x > 0, to about 1e-12: recurrence up to 8, then the asymptotic series."""
    value = 0.0
    while x < 8.0:
        value -= 1.0 / x
        x += 1.0
    r = 1.0 / (x * x)
    series = r * (1 / 12 - r * (1 / 120 - r * (1 / 252 - r * (1 / 240 - r * (1 / 132)))))
    return value + math.log(x) - 0.5 / x - series


@njit(**_OPTIONS)
def digamma_each(x):
    """ψ of each number."""
    values = np.empty(x.size)
    for i, number in enumerate(x.flat):
        values[i] = digamma(number)
    return values.reshape(x.shape)


@njit(**_OPTIONS)
def log_gamma_sum(x):
    """Σ log Γ of the numbers."""
    total = 0.0
    for number in x.flat:
        total += math.lgamma(number)
    return total


@njit(**_OPTIONS)
def infer_topics(indices, values, words, prior, most, tolerance, gamma, chances):
    """Fixed point of γ_k = prior + Σ_w n_w φ_wk, from equal topics; `chances`: exp E[log θ]. Returns the bound: what
    the document adds to E[log p(w, z, θ)] − E[log q(z, θ)]."""
    topics, total = gamma.shape[0], 0.0
    for i in range(values.shape[0]):
        total += values[i]
    for k in range(topics):
        gamma[k] = prior + total / topics
    sums = np.empty(topics)
    for _ in range(most):
        _chances(gamma, chances)
        sums[:] = 0.0
        for i in range(indices.shape[0]):
            word, chance = indices[i], LEAST_CHANCE
            for k in range(topics):
                chance += chances[k] * words[word, k]
            share = values[i] / chance
            for k in range(topics):
                sums[k] += share * words[word, k]
        change = 0.0
        for k in range(topics):
            new = prior + chances[k] * sums[k]
            change += abs(new - gamma[k])
            gamma[k] = new
        if change < tolerance * topics:
            break
    whole = _chances(gamma, chances)
    bound = math.lgamma(topics * prior) - topics * math.lgamma(prior) - math.lgamma(gamma.sum())
    for k in range(topics):
        bound += (prior - gamma[k]) * (digamma(gamma[k]) - whole) + math.lgamma(gamma[k])
    for i in range(indices.shape[0]):
        word, chance = indices[i], LEAST_CHANCE
        for k in range(topics):
            chance += chances[k] * words[word, k]
        bound += values[i] * math.log(chance)
    return bound


@njit(**_OPTIONS)
def _chances(gamma, chances):
    """exp E[log θ] of a Dirichlet distribution; returns ψ(Σ γ)."""
    whole = digamma(gamma.sum())
    for k in range(gamma.shape[0]):
        chances[k] = math.exp(digamma(gamma[k]) - whole)
    return whole
