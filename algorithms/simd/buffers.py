"""Room for a kernel's intermediate results, and flat views, as single instructions of the compiler. For @njit code.

`numpy.empty` and `reshape` mean the same, but each of their types is a function of its own to numba, which compiles
half a dozen of them for a kernel: a fifth of the time that the kernel of k-means took. Knows no algorithm.
"""

from __future__ import annotations

from typing import Any

from numba import types
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np.arrayobj import populate_array

ALIGNED = 64  # bytes: a cache line


def _allocated(context: Any, builder: Any, kind: Any, shape: list[Any]) -> Any:
    """A C-ordered array of this type and shape. Sizes are those of a kernel's buffers: they do not overflow."""
    number = context.get_value_type(types.intp)
    itemsize = number(context.get_abi_sizeof(context.get_data_type(kind.dtype)))
    strides = [itemsize]
    for extent in reversed(shape[1:]):
        strides.insert(0, builder.mul(strides[0], extent))
    size = builder.mul(strides[0], shape[0])
    owner = context.nrt.meminfo_alloc_aligned(builder, size, ALIGNED)
    data = builder.bitcast(context.nrt.meminfo_data(builder, owner), context.get_data_type(kind.dtype).as_pointer())
    array = context.make_array(kind)(context, builder)
    packed = [cgutils.pack_array(builder, values, ty=number) for values in (shape, strides)]
    populate_array(array, data=data, shape=packed[0], strides=packed[1], itemsize=itemsize, meminfo=owner)
    return array._getvalue()


@intrinsic
def new_row(typing_context: Any, like: Any, count: Any) -> Any:
    """`numpy.empty(count, like.dtype)`."""
    kind = types.Array(like.dtype, 1, "C")
    return kind(like, types.intp), lambda context, builder, _, args: _allocated(context, builder, kind, [args[1]])


@intrinsic
def new_table(typing_context: Any, like: Any, rows: Any, columns: Any) -> Any:
    """`numpy.empty((rows, columns), like.dtype)`."""
    kind = types.Array(like.dtype, 2, "C")
    made = kind(like, types.intp, types.intp)
    return made, lambda context, builder, _, args: _allocated(context, builder, kind, list(args[1:]))


@intrinsic
def flat(typing_context: Any, array: Any) -> Any:
    """`array.reshape(-1)` of a C-ordered array."""
    assert array.layout == "C"
    kind = array.copy(ndim=1)

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        whole = context.make_array(array)(context, builder, args[0])
        view = context.make_array(kind)(context, builder)
        number = context.get_value_type(types.intp)
        extent = cgutils.pack_array(builder, [whole.nitems], ty=number)
        step = cgutils.pack_array(builder, [whole.itemsize], ty=number)
        populate_array(
            view,
            data=whole.data,
            shape=extent,
            strides=step,
            itemsize=whole.itemsize,
            meminfo=whole.meminfo,
            parent=whole.parent,
        )
        value = view._getvalue()
        context.nrt.incref(builder, kind, value)
        return value

    return kind(array), generate
