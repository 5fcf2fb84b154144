"""Which kernel of logistic regression serves which shape of dense rows and classes, and why. Compiles nothing."""

from __future__ import annotations

import math
from typing import NamedTuple

from flegel.configuration.active import active

LANES = 16  # outputs of a row that `products` computes at a time


class LinearShape(NamedTuple):
    """From so many outputs, and from so many products of columns and outputs on, this kernel serves dense rows that
    have at most so many second derivatives."""

    outputs: int
    products: int
    kernel: str
    why: str
    """What was measured."""
    second_derivatives: float = math.inf
    """Of all outputs, by the weights and the bias."""


def served_shapes() -> tuple[LinearShape, ...]:
    """The first line that a shape reaches decides.

    Processor time of later passes on AVX-512, in µs a row by products and by tiles: 784 × 10 2.5 and 1.1; 784 × 32 4
    and 5; 784 × 100 10 and 15; 2,048 × 100 15 and 40; 2,048 × 1,000 100 by products (scikit-learn 100).
    """
    rules = active().shapes
    return (
        LinearShape(
            outputs=1,
            products=1,
            kernel="tiles",
            why="all second derivatives fit into the statistics; they are summed from rows in registers, and products "
            "know their diagonal alone",
            second_derivatives=rules.lr_late_numbers,
        ),
        LinearShape(
            outputs=rules.lr_products_outputs,
            products=rules.lr_products_products,
            kernel="products",
            why="scores and gradients of 512 rows at a time by BLAS take 0.4 (2,048 × 100) to 0.8 (784 × 32) of the "
            "time of tiles",
        ),
        LinearShape(
            outputs=1,
            products=1,
            kernel="tiles",
            why="scores and gradients of 64 rows at a time in registers; BLAS would copy rows first, which takes "
            "longer than ten outputs of them",
        ),
    )


def served_by(outputs: int, columns: int) -> LinearShape:
    """The line of the table that decides for this shape."""
    numbers = outputs * (columns + 1) ** 2
    return next(
        shape
        for shape in served_shapes()
        if outputs >= shape.outputs and outputs * columns >= shape.products and numbers <= shape.second_derivatives
    )


def kernel_choice(outputs: int, columns: int) -> str:
    """Which kernel serves dense rows of this shape and why, in a sentence."""
    shape = served_by(outputs, columns)
    products = f"{columns:,} columns × {outputs:,} outputs = {columns * outputs:,} products a row"
    return f"{shape.kernel} for {products}: {shape.why}"
