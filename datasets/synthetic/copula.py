"""Stand-ins fitted to figures of a real set: per class, the marginal of each column and their correlation.

A row is drawn from a Gaussian copula: correlated normals, each mapped through its column's quantiles. Never
holds a row of the real set.
"""

from __future__ import annotations

import functools
import json
from importlib import resources
from typing import Any

import numpy as np

from flegel.core.pytree import Array
from flegel.datasets.rows.source import Description
from flegel.datasets.synthetic import published_figures
from flegel.datasets.synthetic.block_source import BlockSource


@functools.cache
def fitted(name: str) -> Figures:
    """The figures of one set: fitted ones from the package, or those derived from its publication."""
    if name in published_figures.TABLES:
        return Figures(published_figures.figures(name))
    text = resources.files("flegel.datasets.synthetic").joinpath("fitted", f"{name}.json").read_text()
    return Figures(json.loads(text))


class Figures:
    """Class shares, quantiles and correlation of one set, prepared for drawing rows."""

    def __init__(self, plain: dict[str, Any]) -> None:
        self.names: list[str] = plain["names"]
        self.shares = np.cumsum([part["share"] for part in plain["classes"]])
        self.labels = [float(part["label"]) for part in plain["classes"]]
        self.parts = [_ClassFigures(part, len(self.names)) for part in plain["classes"]]


class _ClassFigures:
    """One class: the factor loadings of its normals and the quantiles to which they are mapped."""

    def __init__(self, plain: dict[str, Any], columns: int) -> None:
        self.loadings = np.array(plain["loadings"], np.float32)  # columns × factors
        rest = 1.0 - np.square(self.loadings).sum(axis=1)
        self.residual = np.sqrt(np.maximum(rest, 0.0)).astype(np.float32) if rest.max() > 0.01 else None
        self.table = np.array(plain["quantiles"], np.float32)
        self.steps = np.diff(self.table, axis=1)
        self.knots = self.table.shape[1]
        self.offsets = (np.arange(columns) * self.knots).astype(np.int32)
        self.step_offsets = (np.arange(columns) * (self.knots - 1)).astype(np.int32)
        self.atoms = {
            int(column): (np.array(a["values"], np.float32), np.array(a["scores"], np.float32))
            for column, a in plain.get("atoms", {}).items()
        }

    def draw(self, rng: np.random.Generator, rows: int) -> Array:
        """Correlated normal scores, mapped column by column to the published distribution by interpolation between its
        knots; columns with repeated values (`atoms`) draw one of those."""
        factors = rng.standard_normal((rows, self.loadings.shape[1]), np.float32)
        scores = factors @ self.loadings.T
        if self.residual is not None:
            scores += rng.standard_normal(scores.shape, np.float32) * self.residual
        at = (scores + np.float32(published_figures.SPAN)) * np.float32((self.knots - 1) / (2 * published_figures.SPAN))
        np.maximum(at, 0, out=at)  # no value is below the smallest one; large values are extrapolated
        low = np.minimum(at, self.knots - 2).astype(np.int32)
        at -= low
        at *= self.steps.ravel()[low + self.step_offsets]
        at += self.table.ravel()[low + self.offsets]
        for column, (values, thresholds) in self.atoms.items():
            at[:, column] = values[np.searchsorted(thresholds, scores[:, column])]
        return at


class CopulaSource(BlockSource):
    """The stand-in of a set whose figures were fitted."""

    kind = "copula"

    def __init__(self, name: str, rows: int, seed: int = 0) -> None:
        self.figures = fitted(name)
        super().__init__(rows, len(self.figures.names), seed)
        self.name = self.origin = name
        self.names = self.figures.names
        self.labelled = True
        self.values = np.array(self.figures.labels)
        self.label_values = [float(value) for value in self.figures.labels]

    def block(self, rng: np.random.Generator) -> tuple[Array, Array | None]:
        which = np.searchsorted(
            self.figures.shares, rng.random(self.block_rows) * self.figures.shares[-1], side="right"
        )
        rows = np.empty((self.block_rows, self.columns), np.float32)
        for number, part in enumerate(self.figures.parts):
            members = np.flatnonzero(which == number)
            rows[members] = part.draw(rng, len(members))
        return rows, self.values[which]

    def describe(self) -> Description:
        return {"kind": self.kind, "name": self.name, "rows": self.rows, "seed": self.seed}

    @classmethod
    def from_description(cls, description: Description) -> CopulaSource:
        return cls(description["name"], description["rows"], description["seed"])
