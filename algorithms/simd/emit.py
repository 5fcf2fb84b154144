"""Vector types for numba, and LLVM instructions on them. Knows no kernel.

`vectors.py` makes functions for kernels of these parts.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import models, register_model

from flegel.algorithms.simd.registers import HAS_FMA, IS_ARM
from flegel.algorithms.simd.registers import VECTOR_BYTES as VECTOR_BYTES

# -- types --------------------------------------------------------------------------------------------------


class Vector(types.Type):
    """`lanes` numbers of one dtype."""

    def __init__(self, dtype: Any, lanes: int) -> None:
        self.dtype, self.lanes = dtype, lanes
        super().__init__(name=f"Vector({dtype}, {lanes})")


class Mask(types.Type):
    """`lanes` truth values: what comparing vectors gives."""

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        super().__init__(name=f"Mask({lanes})")


I32 = ir.IntType(32)
LLVM_TYPES = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int32: I32,
    types.int64: ir.IntType(64),
}


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(LLVM_TYPES[kind.dtype], kind.lanes))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Mask) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), kind.lanes))


# -- LLVM in small pieces -----------------------------------------------------------------------------------


def emit_constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def emit_shuffle(builder: Any, vector: Any, lanes: list[int]) -> Any:
    pattern = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), pattern)


def emit_spread(builder: Any, scalar: Any, lanes: int) -> Any:
    """The scalar in every lane."""
    one = ir.Constant(ir.VectorType(scalar.type, 1), ir.Undefined)
    return emit_shuffle(builder, builder.insert_element(one, scalar, I32(0)), [0] * lanes)


def emit_call(builder: Any, name: str, *args: Any) -> Any:
    """One of LLVM's own functions that work lane by lane."""
    kind = args[0].type
    bits = 32 if isinstance(kind.element, ir.FloatType) else 64
    function_type = ir.FunctionType(kind, [kind] * len(args))
    name = f"{name}.v{kind.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z; in two roundings where the CPU has no fused form (the fused one would be a library call)."""
    return emit_call(builder, "llvm.fma", x, y, z) if HAS_FMA else builder.fadd(builder.fmul(x, y), z)


def emit_less(builder: Any, x: Any, y: Any) -> Any:
    """The smaller of two numbers in the one instruction that each machine has for it."""
    if IS_ARM:
        return emit_call(builder, "llvm.minnum", x, y)
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def emit_horner(builder: Any, x: Any, coefficients: list[float]) -> Any:
    """The polynomial with these coefficients, highest power first."""
    value = emit_constant(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        value = emit_fma(builder, value, x, emit_constant(x.type, coefficient))
    return value


def emit_address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [at], inbounds=True)


def emit_load(builder: Any, address: Any, lanes: int, size: int) -> Any:
    kind = ir.VectorType(address.type.pointee, lanes)
    value = builder.load(builder.bitcast(address, kind.as_pointer()))
    value.align = size
    return value


def lanes_of(dtype: Any, literal: Any) -> int:
    """What a `lanes` argument means: so many lanes, or so many registers if it is a constant from above."""
    said = int(literal.literal_value)
    return said if said > 0 else -said * VECTOR_BYTES * 8 // int(dtype.bitwidth)


def item_size(array: Any) -> int:
    return int(array.dtype.bitwidth) // 8
