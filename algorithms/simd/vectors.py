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
Nothing here knows an algorithm, and nothing here is for interpreted code: call it from @njit functions only.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.core.typing.templates import AbstractTemplate, infer_global, signature
from numba.extending import intrinsic, lower_builtin

from flegel.algorithms.simd.emit import (
    I32,
    LLVM_TYPES,
    Mask,
    Vector,
    emit_address,
    emit_call,
    emit_constant,
    emit_fma,
    emit_less,
    emit_load,
    emit_shuffle,
    emit_spread,
    item_size,
    lanes_of,
)
from flegel.algorithms.simd.registers import IS_ARM

LINE = 64  # bytes of a cache line


@intrinsic(prefer_literal=True)
def lane_count(typing: Any, array: Any, lanes: Any) -> Any:
    """How many lanes `lanes` means for this array: an ordinary number."""
    count = lanes_of(array.dtype, lanes)
    return types.intp(array, lanes), lambda context, builder, sig, args: ir.Constant(ir.IntType(64), count)


# -- memory -------------------------------------------------------------------------------------------------


@intrinsic(prefer_literal=True)
def load(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """`lanes` consecutive numbers from flat position `at`."""
    kind = Vector(array.dtype, lanes_of(array.dtype, lanes))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = emit_address(context, builder, sig.args[0], args[0], args[1])
        return emit_load(builder, address, kind.lanes, item_size(array))

    return kind(array, types.intp, lanes), generate


@intrinsic
def store(typing: Any, array: Any, at: Any, vector: Any) -> Any:
    """Writes a vector to flat position `at`."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = emit_address(context, builder, sig.args[0], args[0], args[1])
        builder.store(args[2], builder.bitcast(address, args[2].type.as_pointer())).align = item_size(array)
        return context.get_dummy_value()

    return types.void(array, types.intp, vector), generate


@intrinsic(prefer_literal=True)
def splats(typing: Any, array: Any, at: Any, count: Any, lanes: Any) -> Any:
    """A tuple of `count` vectors: the number at `at` in every lane, then the number at `at + 1`, …

    ARM multiplies by one lane of a register, so the numbers are loaded as vectors there; x86 spreads a number
    while loading it.
    """
    kind = Vector(array.dtype, lanes_of(array.dtype, lanes))
    many = types.UniTuple(kind, count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        address = emit_address(context, builder, sig.args[0], args[0], args[1])
        together = 16 // item_size(array) if IS_ARM else 1
        parts = []
        for first in range(0, many.count, together):
            some = min(together, many.count - first)
            here = builder.gep(address, [I32(first)], inbounds=True)
            numbers = emit_load(builder, here, some, item_size(array))
            parts += [emit_shuffle(builder, numbers, [i] * kind.lanes) for i in range(some)]
        return context.make_tuple(builder, many, parts)

    return many(array, types.intp, count, lanes), generate


@intrinsic(prefer_literal=True)
def loads(typing: Any, array: Any, at: Any, stride: Any, count: Any, lanes: Any) -> Any:
    """A tuple of `count` vectors from `at`, `at + stride`, …"""
    kind = Vector(array.dtype, lanes_of(array.dtype, lanes))
    many = types.UniTuple(kind, count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = context.cast(builder, args[2], sig.args[2], types.intp)
        place, parts = args[1], []
        for _ in range(many.count):
            address = emit_address(context, builder, sig.args[0], args[0], place)
            parts.append(emit_load(builder, address, kind.lanes, item_size(array)))
            place = builder.add(place, step)
        return context.make_tuple(builder, many, parts)

    return many(array, types.intp, stride, count, lanes), generate


@intrinsic(prefer_literal=True)
def strided(typing: Any, array: Any, at: Any, stride: Any, lanes: Any) -> Any:
    """One vector of the numbers at `at`, `at + stride`, …"""
    kind = Vector(array.dtype, lanes_of(array.dtype, lanes))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = context.cast(builder, args[2], sig.args[2], types.intp)
        place, value = args[1], ir.Constant(context.get_value_type(kind), ir.Undefined)
        for lane in range(kind.lanes):
            number = builder.load(emit_address(context, builder, sig.args[0], args[0], place))
            value, place = builder.insert_element(value, number, I32(lane)), builder.add(place, step)
        return value

    return kind(array, types.intp, stride, lanes), generate


@intrinsic
def store_each(typing: Any, array: Any, at: Any, stride: Any, vectors: Any) -> Any:
    """Writes a tuple of vectors to `at`, `at + stride`, …"""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        step = context.cast(builder, args[2], sig.args[2], types.intp)
        place = args[1]
        for vector in cgutils.unpack_tuple(builder, args[3]):
            address = emit_address(context, builder, sig.args[0], args[0], place)
            builder.store(vector, builder.bitcast(address, vector.type.as_pointer())).align = item_size(array)
            place = builder.add(place, step)
        return context.get_dummy_value()

    return types.void(array, types.intp, stride, vectors), generate


@intrinsic
def prefetch(typing: Any, array: Any, at: Any) -> Any:
    """Asks for the cache line of flat position `at`; may point anywhere. On x86 into the second level, which holds more
    requests at a time than the first."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        _emit_prefetch(context, builder, sig.args[0], args[0], args[1])
        return context.get_dummy_value()

    return types.void(array, types.intp), generate


@intrinsic(prefer_literal=True)
def prefetch_lanes(typing: Any, array: Any, at: Any, lanes: Any) -> Any:
    """`prefetch` for `lanes` numbers from `at` on."""
    count, per_line = lanes_of(array.dtype, lanes), LINE // item_size(array)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        for first in range(0, count, per_line):
            place = builder.add(args[1], ir.IntType(64)(first))
            _emit_prefetch(context, builder, sig.args[0], args[0], place)
        return context.get_dummy_value()

    return types.void(array, types.intp, lanes), generate


def _emit_prefetch(context: Any, builder: Any, kind: Any, array: Any, at: Any) -> None:
    data = context.make_array(kind)(context, builder, array).data
    address = builder.bitcast(builder.gep(data, [at]), ir.IntType(8).as_pointer())
    function_type = ir.FunctionType(ir.VoidType(), [address.type, I32, I32, I32])
    function = cgutils.get_or_insert_function(builder.module, function_type, "llvm.prefetch.p0")
    builder.call(function, [address, I32(0), I32(3 if IS_ARM else 2), I32(1)])


# -- operators ----------------------------------------------------------------------------------------------


def _operator(symbol: Any, emit: Callable[[Any, Any, Any, Any], Any], compares: bool = False) -> None:
    """Teach numba `vector ∘ vector`, `vector ∘ scalar` and `scalar ∘ vector`."""

    @infer_global(symbol)
    class _(AbstractTemplate):
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
    (operator.lt, "<"),
    (operator.le, "<="),
    (operator.gt, ">"),
    (operator.ge, ">="),
    (operator.eq, "=="),
    (operator.ne, "!="),
):
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
def transposed(typing: Any, rows: Any) -> Any:
    """n vectors of n lanes, n a power of two: lane i of the result's vector j is lane j of vector i."""
    n = rows.count

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        values = cgutils.unpack_tuple(builder, args[0])
        low, high = ([i // 2 + (n if i % 2 else 0) + at for i in range(n)] for at in (0, n // 2))
        for _ in range(n.bit_length() - 1):
            pairs = list(zip(values[: n // 2], values[n // 2 :], strict=True))
            values = [_emit_merge(builder, x, y, lanes) for x, y in pairs for lanes in (low, high)]
        return context.make_tuple(builder, rows, values)

    return rows(rows), generate


def _emit_merge(builder: Any, x: Any, y: Any, lanes: list[int]) -> Any:
    """These lanes of x followed by y."""
    return builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(I32, len(lanes)), lanes))


@intrinsic
def least_each(typing: Any, values: Any, first: Any, least: Any, which: Any) -> Any:
    """Running minimum over the tuple: (least, which) lane by lane, `which` counting values from `first`.

    Of equal values the earliest stays. Values meet in pairs, as in a tournament: a shorter chain of waits.
    """
    both = types.UniTuple(least, 2)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def meet(one: tuple[Any, Any], two: tuple[Any, Any]) -> tuple[Any, Any]:
            second = builder.fcmp_ordered("<", two[0], one[0])
            return emit_less(builder, two[0], one[0]), builder.select(second, two[1], one[1])

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
def least_of(typing: Any, values: Any) -> Any:
    """The least of the tuple's vectors, lane by lane."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        field = cgutils.unpack_tuple(builder, args[0])
        while len(field) > 1:
            pairs = [emit_less(builder, *field[i : i + 2]) for i in range(0, len(field) - 1, 2)]
            field = pairs + field[2 * len(pairs) :]
        return field[0]

    return values.dtype(values), generate


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


@intrinsic
def root(typing: Any, x: Any) -> Any:
    """The square root of each lane, correctly rounded."""
    return x(x), lambda context, builder, sig, args: emit_call(builder, "llvm.sqrt", *args)


@intrinsic
def cast_like(typing: Any, x: Any, other: Any) -> Any:
    """Floating lanes in the precision of `other`, which has as many."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        if x == other:
            return args[0]
        change = builder.fpext if other.dtype.bitwidth > x.dtype.bitwidth else builder.fptrunc
        return change(args[0], ir.VectorType(LLVM_TYPES[other.dtype], other.lanes))

    return other(x, other), generate


@intrinsic
def to_int32(typing: Any, x: Any) -> Any:
    """Floating lanes truncated to int32 lanes."""
    whole = Vector(types.int32, x.lanes)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fptosi(args[0], ir.VectorType(I32, x.lanes))

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
        return builder.extract_element(value, I32(0))

    return x.dtype(x), generate


def _reduction(name: str) -> Any:
    @intrinsic
    def reduced(typing: Any, mask: Any) -> Any:
        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            kind = args[0].type
            function_type = ir.FunctionType(kind.element, [kind])
            full = f"llvm.vector.reduce.{name}.v{kind.count}i1"
            return builder.call(cgutils.get_or_insert_function(builder.module, function_type, full), args)

        return types.boolean(mask), generate

    return reduced


any_lane = _reduction("or")  # true where at least one lane is
all_lanes = _reduction("and")  # true where no lane is false


@intrinsic
def least_lane(typing: Any, x: Any) -> Any:
    """The least of all lanes, compared pairwise."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        (value,) = args
        while value.type.count > 1:
            half = value.type.count // 2
            value = emit_less(builder, *(emit_shuffle(builder, value, list(range(at, at + half))) for at in (0, half)))
        return builder.extract_element(value, I32(0))

    return x.dtype(x), generate


@intrinsic
def bits(typing: Any, mask: Any) -> Any:
    """The truth values as bits of a number, at most 63: lane 0 is the lowest."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.zext(builder.bitcast(args[0], ir.IntType(args[0].type.count)), ir.IntType(64))

    return types.int64(mask), generate


@intrinsic
def bit_count(typing: Any, number: Any) -> Any:
    """How many bits of an int64 are set."""
    return types.int64(types.int64), lambda context, builder, sig, args: builder.ctpop(args[0])


@intrinsic
def lowest_bit(typing: Any, number: Any) -> Any:
    """The place of the lowest bit that is set, of an int64 that is not 0."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.cttz(args[0], ir.IntType(1)(1))

    return types.int64(types.int64), generate
