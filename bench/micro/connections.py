"""Rows in the shape of KDD Cup 99: connections of a network with 23 classes, three of them almost all rows.

No row is real. Like the original after scaling: sizes with tails over orders of magnitude, rates that are almost copies
of each other, counters that only rare classes have, one column an entry of three text columns, constant columns, and
classes of a handful of rows. Nearly all rows can be told apart, so the minimum is near 0 and far away.
"""

from __future__ import annotations

from typing import Any

import numpy as np

FREQUENCIES = (
    280790, 107201, 97278, 2203, 1589, 1247, 1040, 1020, 979, 264, 231, 53, 30, 21, 20, 12, 10, 9, 8, 7, 4, 3, 2,
)  # fmt: skip
"""Rows of each class in the ten percent of the original."""
SIZES, COUNTS, RATE_GROUPS, COPIES, COUNTERS = 3, 4, 5, 3, 16
WORDS = (3, 66, 11)
"""Different words of the text columns: protocol, service, flag."""
LEAST_ROWS = 2
"""Of the rarest class."""


def connections(rows: int, rng: np.random.Generator) -> tuple[Any, Any]:
    """Standardized columns, and labels."""
    chances = np.array(FREQUENCIES) / sum(FREQUENCIES)
    classes = len(chances)
    labels = rng.choice(classes, size=rows, p=chances)
    labels[: LEAST_ROWS * classes] = np.arange(LEAST_ROWS * classes) % classes
    columns = [*_sizes(labels, classes, rng), *_counts(labels, classes, rng), *_rates(labels, classes, rng)]
    columns += [*_counters(labels, classes, rng), *_words(labels, classes, rng)]
    made = np.stack(columns, axis=1)
    made -= made.mean(axis=0)
    size = made.std(axis=0)
    made /= np.where(size > 0, size, 1.0)
    order = rng.permutation(rows)
    return made[order], labels[order].astype(np.float64)


def _sizes(labels: Any, classes: int, rng: np.random.Generator) -> list[Any]:
    """Bytes and seconds: lognormal about a value of the class, or 0."""
    found = []
    for _ in range(SIZES):
        center, spread, empty = rng.uniform(2, 8, classes), rng.uniform(0.05, 2.0, classes), rng.random(classes) ** 2
        values = np.exp(center[labels] + spread[labels] * rng.standard_normal(len(labels)))
        found.append(np.where(rng.random(len(labels)) < empty[labels], 0.0, np.round(values)))
    return found


def _counts(labels: Any, classes: int, rng: np.random.Generator) -> list[Any]:
    """Connections in a window, up to 511: flooding classes are at the end."""
    found = []
    for _ in range(COUNTS):
        center = 511 * rng.beta(0.5, 0.5, classes)
        found.append(np.clip(np.round(center[labels] + 40 * rng.standard_normal(len(labels))), 0, 511))
    return found


def _rates(labels: Any, classes: int, rng: np.random.Generator) -> list[Any]:
    """Mostly 0 or 1 by class; within a group the columns differ in a few rows, by hundredths."""
    found = []
    for _ in range(RATE_GROUPS):
        chance = rng.beta(0.1, 0.1, classes)
        base = (rng.random(len(labels)) < chance[labels]).astype(float)
        for _ in range(COPIES):
            off = (rng.random(len(labels)) < 0.05) * rng.choice([0.01, 0.02, 0.05, 0.5], size=len(labels))
            found.append(np.abs(base - off))
    return found


def _counters(labels: Any, classes: int, rng: np.random.Generator) -> list[Any]:
    """0 but for a few classes; two are almost the same, two are constant."""
    found = []
    for _ in range(COUNTERS - 3):
        shows = rng.random(classes) * (rng.random(classes) < 0.2)
        found.append((rng.random(len(labels)) < shows[labels]) * rng.geometric(0.3, size=len(labels)).astype(float))
    almost = found[-1] + (rng.random(len(labels)) < 1e-3)
    return [*found, almost, np.zeros(len(labels)), np.zeros(len(labels))]


def _words(labels: Any, classes: int, rng: np.random.Generator) -> list[Any]:
    """One column a word; a class uses few of them."""
    found = []
    for words in WORDS:
        ends = np.array([rng.dirichlet(np.full(words, 2.0 / words)) for _ in range(classes)]).cumsum(axis=1)
        word = (rng.random(len(labels))[:, None] > ends[labels]).sum(axis=1)
        found += [(word == each).astype(float) for each in range(words)]
    return found
