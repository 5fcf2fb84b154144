"""A class of a user's own that a training of groups brings along to its joiners, as source text."""

from __future__ import annotations

SUMS = '''
import numpy as np
from flegel import Algorithm


class Sums(Algorithm):
    """Sums of columns: each point adds its features once."""

    rows: int = 0

    def initParameter(self, sample, rng):
        return np.zeros(sample.columns)

    def initState(self, points, columns, rng):
        return np.zeros((points, 1))

    def updateDataPoint(self, dataPoint, parameter, iterationNum):
        new = (1.0 - dataPoint.state[0]) * dataPoint.features
        dataPoint.state[0] = 1.0
        return new

    def updateParameter(self, aggregator, oldParameter):
        return np.asarray(aggregator)

    def objective(self, aggregator, parameter):
        return -float(parameter[0] + aggregator[0])
'''

_MARKING = """
import pathlib


def mark(path):
    pathlib.Path(path).open("a").write("ran ")
    return 1.0


MARK = {marker!r}
"""


def marking(marker: str) -> str:
    """The same class in a module that writes into the file `marker` whenever it is imported."""
    first = "    rows: int = 0\n"
    return _MARKING.format(marker=marker) + SUMS.replace(first, f"    once = mark(MARK)\n{first}")
