"""Borrowed arrays: the same memory without ownership of it.

numba counts the owners of an array, with an atomic instruction each time one is put into a tuple or taken out. In
a loop over points that is most of the time of a short hook. A borrowed array has no owner to count. It must not
outlive the array it came from: borrow only what the caller holds for the whole call, and never return it.

An array that the function makes itself is freed after the last statement that names it, and use of a borrowed one does
not count: name such arrays once more behind the last use of what was borrowed of them (`hold`).
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.extending import intrinsic


@intrinsic  # type: ignore[untyped-decorator]
def borrowed(typing_context: Any, array: Any) -> Any:
    """`array` without its owner; None stays. For use inside compiled functions."""
    if isinstance(array, types.NoneType):
        return array(array), lambda context, builder, signature, args: context.get_dummy_value()

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        """Emit code for an array that shares the data and owns no reference."""
        kind = context.make_array(signature.args[0])
        lent, result = kind(context, builder, args[0]), kind(context, builder)
        for field in ("data", "nitems", "itemsize", "shape", "strides"):
            setattr(result, field, getattr(lent, field))
        for field in ("meminfo", "parent"):
            setattr(result, field, getattr(result, field).type(None))
        return result._getvalue()

    return array(array), generate


@intrinsic  # type: ignore[untyped-decorator]
def hold(typing_context: Any, arrays: Any) -> Any:
    """No instruction: these arrays, a tuple, are not freed before. For use inside compiled functions."""
    return types.none(arrays), lambda context, builder, signature, args: context.get_dummy_value()
