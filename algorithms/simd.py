"""Vector values for compiled kernels: arithmetic on many lanes that stays in registers and reads like NumPy.

A `Vector` has any number of lanes; LLVM splits it over as many machine registers as it needs. So a kernel
says `load(x, at, 16)` and `a * b + c` once, and the same text becomes four NEON registers or one AVX-512
register. What a kernel chooses by the machine is only its shape: `VECTOR_BYTES` and `REGISTERS` below.

    x = load(features, at, LANES)              # LANES consecutive numbers, from a flat position
    c = splats(centres, at, 5, LANES)          # a tuple of 5 vectors, each one number in every lane
    products = fma_each(x, c, products)        # products[j] + x * c[j], the tuple stays in registers
    store(result, at, where(x > 0.0, exp(x), 0.0 * x))

Positions are flat: elements from the start of a C-contiguous array of any shape, *unchecked*. `lanes` and
`count` must be constants (module globals or literals); `TWO_REGISTERS` for `lanes` suits every dtype.
Operators take a vector and a vector or a scalar.
numba does not notice that this file has changed: after an edit delete the `.nbi` files beside the kernels.
Nothing here knows an algorithm, and nothing here is for interpreted code: call it from @njit functions only.
"""

from __future__ import annotations

import operator
import platform
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils, codegen
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin, models, register_model

# -- the machine --------------------------------------------------------------------------------------------


def _features() -> frozenset[str]:
    """CPU features that numba compiles for, such as `avx2`; heeds NUMBA_CPU_FEATURES and NUMBA_ENABLE_AVX."""
    chosen = numba.config.CPU_FEATURES
    text = codegen.get_host_cpu_features() if chosen is None else chosen
    return frozenset(word[1:] for word in text.split(",") if word.startswith("+"))


_FEATURES = _features()
_ARM = platform.machine().lower() in ("aarch64", "arm64")
VECTOR_BYTES = 64 if "avx512f" in _FEATURES else 32 if "avx2" in _FEATURES else 16
"""Width of a machine register."""
REGISTERS = 32 if _ARM or "avx512f" in _FEATURES else 16
"""How many of them there are: what a register tile may fill."""
ONE_REGISTER, TWO_REGISTERS = -1, -2
"""For `lanes`: as many as one or two machine registers hold, whatever the array's dtype."""
_HAS_FMA = _ARM or "fma" in _FEATURES


def register_lanes(dtype: Any) -> int:
    """Numbers of a dtype in one machine register."""
    return VECTOR_BYTES // np.dtype(dtype).itemsize


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


_I32 = ir.IntType(32)
_LLVM = {
    types.float32: ir.FloatType(),
    types.float64: ir.DoubleType(),
    types.int32: _I32,
    types.int64: ir.IntType(64),
}


@register_model(Vector)
class _VectorModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Vector) -> None:
        super().__init__(manager, kind, ir.VectorType(_LLVM[kind.dtype], kind.lanes))


@register_model(Mask)
class _MaskModel(models.PrimitiveModel):  # type: ignore[misc]
    def __init__(self, manager: Any, kind: Mask) -> None:
        super().__init__(manager, kind, ir.VectorType(ir.IntType(1), kind.lanes))


# -- LLVM in small pieces -----------------------------------------------------------------------------------


def emit_constant(kind: Any, value: Any) -> Any:
    return ir.Constant(kind, [value] * kind.count)


def emit_shuffle(builder: Any, vector: Any, lanes: list[int]) -> Any:
    pattern = ir.Constant(ir.VectorType(_I32, len(lanes)), lanes)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), pattern)


def emit_spread(builder: Any, scalar: Any, lanes: int) -> Any:
    """The scalar in every lane."""
    one = ir.Constant(ir.VectorType(scalar.type, 1), ir.Undefined)
    return emit_shuffle(builder, builder.insert_element(one, scalar, _I32(0)), [0] * lanes)


def emit_call(builder: Any, name: str, *args: Any) -> Any:
    """One of LLVM's own functions that work lane by lane."""
    kind = args[0].type
    bits = 32 if isinstance(kind.element, ir.FloatType) else 64
    function_type = ir.FunctionType(kind, [kind] * len(args))
    name = f"{name}.v{kind.count}f{bits}"
    return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)


def emit_fma(builder: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z; in two roundings where the CPU has no fused form (the fused one would be a library call)."""
    return emit_call(builder, "llvm.fma", x, y, z) if _HAS_FMA else builder.fadd(builder.fmul(x, y), z)


def _less(builder: Any, x: Any, y: Any) -> Any:
    """The smaller of two numbers in the one instruction that each machine has for it."""
    if _ARM:
        return emit_call(builder, "llvm.minnum", x, y)
    return builder.select(builder.fcmp_ordered("<", x, y), x, y)


def emit_horner(builder: Any, x: Any, coefficients: list[float]) -> Any:
    """The polynomial with these coefficients, highest power first."""
    value = emit_constant(x.type, coefficients[0])
    for coefficient in coefficients[1:]:
        value = emit_fma(builder, value, x, emit_constant(x.type, coefficient))
    return value


def _address(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> Any:
    data = context.make_array(kind)(context, builder, array).data
    return builder.gep(data, [at], inbounds=True)


def emit_load(builder: Any, address: Any, lanes: int, size: int) -> Any:
    kind = ir.VectorType(address.type.pointee, lanes)
    value = builder.load(builder.bitcast(address, kind.as_pointer()))
    value.align = size
    return value


def _lanes(dtype: Any, literal: Any) -> int:
    """What a `lanes` argument means: so many lanes, or so many registers if it is a constant from above."""
    said = int(literal.literal_value)
    return said if said > 0 else -said * VECTOR_BYTES * 8 // int(dtype.bitwidth)


def _size(array: Any) -> int:
    return int(array.dtype.bitwidth) // 8


@intrinsic(prefer_literal=True)
def lane_count(typing: Any, array: Any, lanes: Any) -> Any:
    """How many lanes `lanes` means for this array: an ordinary number."""
    count = _lanes(array.dtype, lanes)
    return types.intp(array, lanes), lambda context, builder, sig, args: ir.Constant(ir.IntType(64), count)


# -- memory -------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def load(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """`lanes` consecutive numbers from flat position `at`."""
    kind = Vector(array.dtype, _lanes(array.dtype, lanes))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _address(context, builder, sig.args[0], args[0], args[1])
        return emit_load(builder, address, kind.lanes, _size(array))

    return kind(array, types.intp, lanes), generate


@intrinsic
def store(typing: Any, array: Any, at: Any, vector: Any) -> Any:
    """Writes a vector to flat position `at`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _address(context, builder, sig.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(address, args[2].type.as_pointer())).align = _size(array)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic(prefer_literal=True)
def splats(typing: Any, array: Any, at: Any, count: Any, lanes: Any) -> Any:
    """A tuple of `count` vectors: the number at `at` in every lane, then the number at `at + 1`, …

    ARM multiplies by one lane of a register, so the numbers are loaded as vectors there; x86 spreads a number
    while loading it.
    """
    kind = Vector(array.dtype, _lanes(array.dtype, lanes))
    many = types.UniTuple(kind, count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = _address(context, builder, sig.args[0], args[0], args[1])
        together = 16 // _size(array) if _ARM else 1
        parts = []
        for first in range(0, many.count, together):
            some = min(together, many.count - first)
            here = builder.gep(address, [_I32(first)], inbounds=True)
            numbers = emit_load(builder, here, some, _size(array))
            parts += [emit_shuffle(builder, numbers, [i] * kind.lanes) for i in range(some)]
        return context.make_tuple(builder, many, parts)

    return many(array, types.intp, count, lanes), generate


@intrinsic(prefer_literal=True)
def loads(typing: Any, array: Any, at: Any, stride: Any, count: Any, lanes: Any) -> Any:
    """A tuple of `count` vectors from `at`, `at + stride`, …"""
    kind = Vector(array.dtype, _lanes(array.dtype, lanes))
    many = types.UniTuple(kind, count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = context.cast(builder, args[2], sig.args[2], types.intp)
        place, parts = args[1], []
        for _ in range(many.count):
            address = _address(context, builder, sig.args[0], args[0], place)
            parts.append(emit_load(builder, address, kind.lanes, _size(array)))
            place = builder.add(place, step)
        return context.make_tuple(builder, many, parts)

    return many(array, types.intp, stride, count, lanes), generate


@intrinsic
def store_each(typing: Any, array: Any, at: Any, stride: Any, vectors: Any) -> Any:
    """Writes a tuple of vectors to `at`, `at + stride`, …"""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = context.cast(builder, args[2], sig.args[2], types.intp)
        place = args[1]
        for vector in cgutils.unpack_tuple(builder, args[3]):
            address = _address(context, builder, sig.args[0], args[0], place)
            builder.store(vector, builder.bitcast(address, vector.type.as_pointer())).align = _size(array)
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.void(array, types.intp, stride, vectors), generate


@intrinsic
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Asks for the cache line of flat position `at`; may point anywhere."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        data = context.make_array(sig.args[0])(context, builder, args[0]).data
        address = builder.bitcast(builder.gep(data, [args[1]]), ir.IntType(8).as_pointer())
        function_type = ir.FunctionType(ir.VoidType(), [address.type, _I32, _I32, _I32])
        function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
        builder.call(function, [address, _I32(0), _I32(3), _I32(1)])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


# -- operators ----------------------------------------------------------------------------------------------


def _operator(symbol: Any, emit: Callable[[Any, Any, Any, Any], Any], compares: bool = False) -> None:
    """Teach numba `vector ∘ vector`, `vector ∘ scalar` and `scalar ∘ vector`."""

    @infer_global(symbol)
    class _(AbstractTemplate):  # type: ignore[misc]
        def generic(self, args: Any, kws: Any) -> Any:
            kind = next((a for a in args if isinstance(a, Vector)), None)
            if kind is None or len(args) != 2 or any(isinstance(a, Vector) and a != kind for a in args):
                return None
            if not all(isinstance(a, (Vector, types.Number, types.Boolean)) for a in args):
                return None
            return signature(Mask(kind.lanes) if compares else kind, *args)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = next(a for a in sig.args if isinstance(a, Vector))
        values = [_as_vector(context, builder, v, t, kind) for v, t in zip(args, sig.args, strict=True)]
        return emit(builder, kind.dtype, *values)

    for left, right in ((Vector, Vector), (Vector, types.Number), (types.Number, Vector)):
        lower_builtin(symbol, left, right)(generate)


def _as_vector(context: Any, builder: Any, value: Any, have: Any, want: Vector) -> Any:
    if isinstance(have, Vector):
        return value
    return emit_spread(builder, context.cast(builder, value, have, want.dtype), want.lanes)


def _arithmetic(for_floats: str, for_integers: str) -> Callable[[Any, Any, Any, Any], Any]:
    def emit(builder: Any, dtype: Any, x: Any, y: Any) -> Any:
        return getattr(builder, for_floats if isinstance(dtype, types.Float) else for_integers)(x, y)

    return emit


def _comparison(symbol: str) -> Callable[[Any, Any, Any, Any], Any]:
    def emit(builder: Any, dtype: Any, x: Any, y: Any) -> Any:
        if not isinstance(dtype, types.Float):
            return builder.icmp_signed(symbol, x, y)
        return builder.fcmp_unordered(symbol, x, y) if symbol == "!=" else builder.fcmp_ordered(symbol, x, y)

    return emit


_operator(operator.add, _arithmetic("fadd", "add"))
_operator(operator.sub, _arithmetic("fsub", "sub"))
_operator(operator.mul, _arithmetic("fmul", "mul"))
_operator(operator.truediv, _arithmetic("fdiv", "sdiv"))
for _symbol, _text in (
    (operator.lt, "<"), (operator.le, "<="), (operator.gt, ">"),
    (operator.ge, ">="), (operator.eq, "=="), (operator.ne, "!="),
):  # fmt: skip
    _operator(_symbol, _comparison(_text), compares=True)


# -- lane by lane -------------------------------------------------------------------------------------------


@intrinsic
def spread(typing: Any, value: Any, like: Any) -> Any:
    """A vector of the shape of `like` with this value in every lane."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return emit_spread(builder, context.cast(builder, args[0], sig.args[0], like.dtype), like.lanes)

    return like(value, like), generate


@intrinsic
def fma(typing: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z with one rounding where the machine can."""
    return x(x, y, z), lambda context, builder, sig, args: emit_fma(builder, *args)


@intrinsic
def fma_each(typing: Any, x: Any, ys: Any, sums: Any) -> Any:
    """The tuple `sums[i] + x * ys[i]`: one step of a register tile."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        factors, terms = (cgutils.unpack_tuple(builder, many) for many in args[1:])
        pairs = zip(factors, terms, strict=True)
        return context.make_tuple(builder, sums, [emit_fma(builder, args[0], y, z) for y, z in pairs])

    return sums(x, ys, sums), generate


@intrinsic
def square_each(typing: Any, x: Any, slopes: Any, offsets: Any, sums: Any) -> Any:
    """The tuple `sums[i] + (x * slopes[i] + offsets[i])²`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        parts = []
        for slope, offset, term in zip(*(cgutils.unpack_tuple(builder, many) for many in args[1:]), strict=True):
            z = emit_fma(builder, args[0], slope, offset)
            parts.append(emit_fma(builder, z, z, term))
        return context.make_tuple(builder, sums, parts)

    return sums(x, slopes, offsets, sums), generate


@intrinsic
def sum_squares(typing: Any, xs: Any, start: Any) -> Any:
    """start + Σ xs[i]²."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        value = args[1]
        for x in cgutils.unpack_tuple(builder, args[0]):
            value = emit_fma(builder, x, x, value)
        return value

    return start(xs, start), generate


@intrinsic
def outer_each(typing: Any, xs: Any, ys: Any, sums: Any) -> Any:
    """The tuple `sums[i * len(ys) + j] + xs[i] * ys[j]`: a whole register tile at once."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        left, right, terms = (cgutils.unpack_tuple(builder, many) for many in args)
        pairs = [(x, y) for x in left for y in right]
        parts = [emit_fma(builder, x, y, z) for (x, y), z in zip(pairs, terms, strict=True)]
        return context.make_tuple(builder, sums, parts)

    return sums(xs, ys, sums), generate


@intrinsic
def least_each(typing: Any, values: Any, first: Any, least: Any, which: Any) -> Any:
    """Running minimum over the tuple: (least, which) lane by lane, `which` counting values from `first`.

    Of equal values the earliest stays. Values meet in pairs, as in a tournament: a shorter chain of waits.
    """
    both = types.UniTuple(least, 2)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def meet(one: tuple[Any, Any], two: tuple[Any, Any]) -> tuple[Any, Any]:
            second = builder.fcmp_ordered("<", two[0], one[0])
            return _less(builder, two[0], one[0]), builder.select(second, two[1], one[1])

        values = cgutils.unpack_tuple(builder, args[0])
        field = [(value, emit_constant(value.type, float(i))) for i, value in enumerate(values)]
        while len(field) > 1:
            pairs = [meet(*field[i : i + 2]) for i in range(0, len(field) - 1, 2)]
            field = pairs + field[2 * len(pairs) :]
        value, place = field[0]
        place = builder.fadd(place, _as_vector(context, builder, args[1], sig.args[1], which))
        return context.make_tuple(builder, both, meet((args[2], args[3]), (value, place)))

    return both(values, first, least, which), generate


@intrinsic
def where(typing: Any, mask: Any, yes: Any, no: Any) -> Any:
    """`yes` in the lanes that are true, `no` elsewhere."""
    return yes(mask, yes, no), lambda context, builder, sig, args: builder.select(*args)


def _choice(symbol: str) -> Any:
    @intrinsic
    def choose(typing: Any, x: Any, y: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            return builder.select(builder.fcmp_ordered(symbol, *args), *args)

        return x(x, y), generate

    return choose


minimum = _choice("<")
maximum = _choice(">")


@intrinsic
def widen(typing: Any, x: Any) -> Any:
    """float32 lanes as float64 lanes (float64 stays as it is)."""
    wide = Vector(types.float64, x.lanes)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if x == wide:
            return args[0]
        return builder.fpext(args[0], ir.VectorType(ir.DoubleType(), x.lanes))

    return wide(x), generate


@intrinsic  # type: ignore[untyped-decorator]
def cast_like(typing: Any, x: Any, other: Any) -> Any:
    """Floating lanes in the precision of `other`, which has as many."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if x == other:
            return args[0]
        change = builder.fpext if other.dtype.bitwidth > x.dtype.bitwidth else builder.fptrunc
        return change(args[0], ir.VectorType(_LLVM[other.dtype], other.lanes))

    return other(x, other), generate


@intrinsic
def to_int32(typing: Any, x: Any) -> Any:
    """Floating lanes truncated to int32 lanes."""
    whole = Vector(types.int32, x.lanes)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fptosi(args[0], ir.VectorType(_I32, x.lanes))

    return whole(x), generate


# -- across lanes -------------------------------------------------------------------------------------------


@intrinsic
def total(typing: Any, x: Any) -> Any:
    """The sum of all lanes, added pairwise."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (value,) = args
        while value.type.count > 1:
            half = value.type.count // 2
            low, high = (emit_shuffle(builder, value, list(range(at, at + half))) for at in (0, half))
            value = builder.fadd(low, high)
        return builder.extract_element(value, _I32(0))

    return x.dtype(x), generate


@intrinsic
def any_lane(typing: Any, mask: Any) -> Any:
    """True where at least one lane is."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        function_type = ir.FunctionType(kind.element, [kind])
        name = f"llvm.vector.reduce.or.v{kind.count}i1"
        return builder.call(cgutils.get_or_insert_function(builder.module, function_type, name), args)

    return types.boolean(mask), generate
