"""EM over the rows of a start, where components have diagonal covariances: densities and moments by one product each.

Training goes by `kernel.py`. Never sees the whole data.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from flegel.algorithms.gmm.moments import Mixture, MixtureMoments
from flegel.algorithms.gmm.shapes import as_exact_by_products
from flegel.core.pytree import Array

LEAST_EXPONENT = -600.0
"""Of a responsibility; smaller ones are 0. Products with numbers below 1e-307 take fifty times as long as others."""


class SampleRows(NamedTuple):
    """Rows in units of the sample, and what products with them need, made once for all passes."""

    rows: Array
    columns: Array
    """(2 · columns + 1, rows), contiguous: the squares of the row, the row, 1."""
    largest: Array
    """The largest square of each column."""


def sample_rows(rows: Array) -> SampleRows:
    d = rows.shape[1]
    columns = np.empty((2 * d + 1, len(rows)))
    columns[d : 2 * d], columns[2 * d] = rows.T, 1.0
    np.multiply(columns[d : 2 * d], columns[d : 2 * d], out=columns[:d])
    return SampleRows(rows, columns, columns[:d].max(axis=1, initial=0.0))


def expectation(of: SampleRows, mixture: Mixture) -> tuple[Array, Array] | None:
    """Responsibilities (components, rows), and the log-likelihood of each row; None where products would lose too many
    digits."""
    means = (mixture.means - mixture.origin) / mixture.unit
    if not as_exact_by_products(of.largest, means, mixture.whiten):
        return None
    precision = mixture.whiten**2
    level = mixture.level - 0.5 * (precision * means**2).sum(axis=1)
    logits = np.concatenate([-0.5 * precision, precision * means, level[:, None]], axis=1) @ of.columns
    top = logits.max(axis=0)
    logits -= top
    logits[logits <= LEAST_EXPONENT] = -np.inf
    shares = np.exp(logits, out=logits)
    mass = shares.sum(axis=0)
    shares /= mass
    return shares, top + np.log(mass)


def moments(of: SampleRows, shares: Array) -> MixtureMoments:
    """The statistics of these rows under responsibilities (components, rows), each as often as its row weighs."""
    d = of.rows.shape[1]
    sums = shares @ of.columns.T
    return MixtureMoments(sums[:, 2 * d], sums[:, d : 2 * d], sums[:, :d], np.zeros(1))
