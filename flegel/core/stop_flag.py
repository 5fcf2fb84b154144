"""The stop flag: one byte that another thread raises and a compiled loop watches.

A plain `while flag[0] == 0` in compiled code may never end, because LLVM may hoist the load out of the loop.
`raised` reads it with an atomic load instead, which costs as much as a plain one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from flegel.core.pytree import Array


def new_flag() -> Array:
    return np.zeros(1, np.uint8)


@intrinsic  # type: ignore[untyped-decorator]
def raised(typing_context: Any, flag: Any) -> Any:
    """True once `flag[0]` is not 0. For use inside compiled functions."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        value = builder.load_atomic(array.data, "monotonic", 1)
        return builder.icmp_unsigned("!=", value, value.type(0))

    return types.boolean(flag), generate
