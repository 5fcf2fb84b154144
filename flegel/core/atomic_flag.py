"""How a compiled loop reads the stop flag (`stop_flag`): by an atomic load. Imports the compiler.

A plain `while flag[0] == 0` in compiled code may never end, because LLVM may hoist the load out of the loop. An atomic
load costs as much as a plain one.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic

from flegel.core.code_cache import njit


@intrinsic  # type: ignore[untyped-decorator]
def raised(typing_context: Any, flag: Any) -> Any:
    """True once `flag[0]` is not 0. For use inside compiled functions."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, args[0])
        value = builder.load_atomic(array.data, "monotonic", 1)
        return builder.icmp_unsigned("!=", value, value.type(0))

    return types.boolean(flag), generate


@njit(nogil=True, cache=True)
def spin(flag: Any) -> None:
    """Keep a core busy until the flag is raised."""
    while not raised(flag):  # type: ignore[call-arg]
        pass
