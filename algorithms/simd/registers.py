"""The machine's vector registers, as numba compiles for them. Imports no compiler: shapes of kernels depend on this."""

from __future__ import annotations

import platform
from typing import Any

import numpy as np

from flegel.core.native_code import target

FEATURES = frozenset(name[1:] for name in target()[1].split(",") if name.startswith("+"))
"""CPU features that numba compiles for, such as `avx2`."""
IS_ARM = platform.machine().lower() in ("aarch64", "arm64")
VECTOR_BYTES = 64 if "avx512f" in FEATURES else 32 if "avx2" in FEATURES else 16
"""Width of a machine register."""
REGISTERS = 32 if IS_ARM or "avx512f" in FEATURES else 16
"""How many of them there are: what a register tile may fill."""
ONE_REGISTER, TWO_REGISTERS = -1, -2
"""For `lanes`: as many as one or two machine registers hold, whatever the array's dtype."""
FEW_ROWS = 10
"""The largest group of rows whose numbers are kept in registers for several registers of points."""
FLOAT32_ROUNDING = 2.0**-24  # relative
HAS_FMA = IS_ARM or "fma" in FEATURES


def register_lanes(dtype: Any) -> int:
    """Numbers of a dtype in one machine register."""
    return int(VECTOR_BYTES // np.dtype(dtype).itemsize)


# -- register tiles -----------------------------------------------------------------------------------------


def group_sizes() -> tuple[int, ...]:
    """Rows of a group: the shapes that there are."""
    if VECTOR_BYTES == 64:
        return (3, 5, 6, 8, 10, 16, 25)
    return (3, 5, 6, 8, 10) if REGISTERS == 32 else (3, 4, 6)


def tile_shape(dtype: Any, k: int) -> tuple[int, int]:
    """Lanes of a vector and rows of a group; their products fill two thirds of the registers or more.

    Each shape is compiled separately, so there are few, and the last group is filled up: k=6 to 9 in groups of 3, which
    fit, take 12 to 20 % longer than in one group. Many rows go in groups of 16 or 25 with AVX-512, whose
    multiplications take a number from memory by themselves: fewer instructions than for two registers of points.
    Results do not depend on the shape.
    """
    few = tuple(size for size in group_sizes() if size <= FEW_ROWS)
    least = -(-k // -(-k // few[-1]))
    group = next(size for size in few if size >= least)
    many = [size for size in group_sizes() if size > FEW_ROWS]
    if k > FEW_ROWS and many:
        group = min(many, key=lambda size: (-(-k // size) * size, -size))
    room = 20 if REGISTERS == 32 else 12
    registers = 1 if group > FEW_ROWS else 2 if 4 * group > room else 4
    return registers * register_lanes(dtype), group
