"""One vector of numbers against several rows of a table: sums over columns of any number, for compiled code.

The steps over the columns get shorter as the end comes near: two machine registers, one, and halves of it down to
16 bytes; the last step overlaps the one before and leaves out the lanes that were counted. So no number is read
outside the arrays, and no element is treated alone. Nothing here knows an algorithm; for @njit functions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from flegel.algorithms.simd import emit

_I32, _I64 = ir.IntType(32), ir.IntType(64)
_LEAST_BYTES = 16  # of a step: the narrowest register of all machines


def vectors_fit(x: Any, rows: Any) -> int:
    """Length from which on these types can be read with vectors; 0 if they cannot."""
    kinds = (types.float32, types.float64)
    if any(a.layout != "C" or a.dtype not in kinds for a in (x, rows)):
        return 0
    return _LEAST_BYTES * 8 // int(common_kind(x, rows).bitwidth)


def common_kind(x: Any, rows: Any) -> Any:
    return types.float32 if x.dtype == rows.dtype == types.float32 else types.float64


def _summing(term: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """An intrinsic `sums(x, rows, first, count)`: for `count` rows from `first` on, the sum of `term` over columns.

    `count` is a constant, a power of two. The result is a tuple of vectors of 16 bytes in the wider of the two
    precisions, one row a lane; fewer rows than lanes are repeated.
    """

    @intrinsic(prefer_literal=True)
    def sums(typing: Any, x: Any, rows: Any, first: Any, count: Any) -> Any:
        kind, many = common_kind(x, rows), int(count.literal_value)
        lanes = _LEAST_BYTES * 8 // int(kind.bitwidth)
        result = types.UniTuple(emit.Vector(kind, lanes), -(-many // lanes))

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            point = context.make_array(sig.args[0])(context, builder, args[0])
            table = context.make_array(sig.args[1])(context, builder, args[1])
            columns = builder.extract_value(point.shape, 0)
            begins = [builder.mul(builder.add(args[2], _I64(i)), columns) for i in range(many)]
            starts = [builder.gep(table.data, [begin], inbounds=True) for begin in begins]
            totals = _Columns(builder, kind, point.data, starts, columns, term).totals()
            return context.make_tuple(builder, result, totals)

        return result(x, rows, types.intp, count), generate

    return sums


class _Columns:
    """Emits the walk over the columns. Sums live in stack slots, which LLVM turns into registers."""

    def __init__(self, builder: Any, kind: Any, x: Any, rows: list[Any], columns: Any, term: Any) -> None:
        self.builder, self.x, self.rows, self.columns, self.term = builder, x, rows, columns, term
        self.number = ir.FloatType() if kind == types.float32 else ir.DoubleType()
        self.bytes = int(kind.bitwidth) // 8

    def totals(self) -> list[Any]:
        """The sum over all columns for each row, a row a lane."""
        registers = 1 if len(self.rows) > 1 else 2  # rows are chains of additions that do not wait for each other
        builder, lanes = self.builder, registers * emit.VECTOR_BYTES // self.bytes
        zero = ir.Constant(ir.VectorType(self.number, lanes), None)
        slots = self.slots([zero] * len(self.rows))
        whole = builder.udiv(self.columns, _I64(lanes))
        with cgutils.for_range(builder, whole) as loop:
            self.step(builder.mul(loop.index, _I64(lanes)), slots)
        at = builder.mul(whole, _I64(lanes))
        while lanes > _LEAST_BYTES // self.bytes:
            lanes //= 2
            slots = self.slots([self.folded(builder.load(slot)) for slot in slots])
            fits = builder.icmp_signed("<=", builder.add(at, _I64(lanes)), self.columns)
            with builder.if_then(fits):
                self.step(at, slots)
            at = builder.select(fits, builder.add(at, _I64(lanes)), at)
        with builder.if_then(builder.icmp_signed("<", at, self.columns), likely=False):
            last = builder.sub(self.columns, _I64(lanes))
            self.step(last, slots, counted=builder.sub(at, last))
        return self.across([builder.load(slot) for slot in slots])

    def slots(self, values: list[Any]) -> list[Any]:
        return [cgutils.alloca_once_value(self.builder, value) for value in values]

    def step(self, at: Any, slots: list[Any], counted: Any = None) -> None:
        """Add the terms of the columns from `at` on, as many as a slot has lanes; not those in `counted` lanes."""
        builder, lanes = self.builder, slots[0].type.pointee.count
        x = self.load(self.x, at, lanes)
        for row, slot in zip(self.rows, slots, strict=True):
            before = builder.load(slot)
            after = self.term(builder, x, self.load(row, at, lanes), before)
            if counted is not None:
                numbers = _numbers(8 * self.bytes, lanes)
                limit = emit.emit_spread(builder, builder.trunc(counted, _I32), lanes)
                old = builder.icmp_signed("<", numbers, limit if self.bytes == 4 else builder.sext(limit, numbers.type))
                after = builder.select(old, before, after)
            builder.store(after, slot)

    def load(self, data: Any, at: Any, lanes: int) -> Any:
        size = 4 if isinstance(data.type.pointee, ir.FloatType) else 8
        value = emit.emit_load(self.builder, self.builder.gep(data, [at], inbounds=True), lanes, size)
        wide = ir.VectorType(self.number, lanes)
        return value if value.type == wide else self.builder.fpext(value, wide)

    def folded(self, value: Any) -> Any:
        """The lower half of the lanes plus the upper."""
        half = value.type.count // 2
        low, high = (emit.emit_shuffle(self.builder, value, list(range(at, at + half))) for at in (0, half))
        return self.builder.fadd(low, high)

    def across(self, sums: list[Any]) -> list[Any]:
        """The sum over lanes of each vector: neighbouring lanes are added, of two vectors at once."""
        builder, lanes = self.builder, sums[0].type.count
        even, odd = (ir.Constant(ir.VectorType(_I32, lanes), list(range(at, 2 * lanes, 2))) for at in (0, 1))
        for _ in range(lanes.bit_length() - 1):
            pairs = [(sums[i], sums[min(i + 1, len(sums) - 1)]) for i in range(0, len(sums), 2)]
            sums = [
                builder.fadd(builder.shuffle_vector(a, b, even), builder.shuffle_vector(a, b, odd)) for a, b in pairs
            ]
        return sums


def _numbers(bits: int, lanes: int, count: int = 0, first: int = 0) -> Any:
    """The vector first, first + 1, …; from the beginning again after `count` lanes."""
    return ir.Constant(ir.VectorType(ir.IntType(bits), lanes), [first + i % (count or lanes) for i in range(lanes)])


def square_term(builder: Any, x: Any, y: Any, before: Any) -> Any:
    difference = builder.fsub(x, y)
    return emit.emit_fma(builder, difference, difference, before)


squared_distances = _summing(square_term)
dots = _summing(lambda builder, x, y, before: emit.emit_fma(builder, x, y, before))


@intrinsic
def none_yet(typing: Any, x: Any, rows: Any) -> Any:
    """(best, least) for `least_of` to begin with: row 0 at an infinite distance, in every lane."""
    kind = common_kind(x, rows)
    lanes = _LEAST_BYTES * 8 // int(kind.bitwidth)
    whole = types.int32 if kind == types.float32 else types.int64
    both = types.Tuple((emit.Vector(whole, lanes), emit.Vector(kind, lanes)))

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        best, least = (context.get_value_type(part) for part in both)
        parts = [ir.Constant(best, [0] * lanes), ir.Constant(least, [float("inf")] * lanes)]
        return context.make_tuple(builder, both, parts)

    return both(x, rows), generate


@intrinsic(prefer_literal=True)
def least_of(typing: Any, sums: Any, first: Any, count: Any, best: Any, least: Any) -> Any:
    """(best, least) with the sums of `count` rows from `first` on taken in, lane by lane; of equals the earlier."""
    both = types.Tuple((best, least))
    many = int(count.literal_value)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        bits, lanes = int(best.dtype.bitwidth), best.lanes
        begin = args[1] if bits == 64 else builder.trunc(args[1], _I32)
        rows = emit.emit_spread(builder, begin, lanes)
        which, value = args[3:]
        for i, these in enumerate(cgutils.unpack_tuple(builder, args[0])):
            numbers = builder.add(rows, _numbers(bits, lanes, min(many, lanes), i * lanes))
            nearer = builder.fcmp_ordered("<", these, value)
            which = builder.select(nearer, numbers, which)
            value = builder.select(nearer, these, value)
        return context.make_tuple(builder, both, [which, value])

    return both(sums, types.intp, count, best, least), generate


@intrinsic
def first_of_least(typing: Any, best: Any, least: Any) -> Any:
    """The row of the lane with the least sum; of equal ones the first row."""

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        which, value = args
        lowest = emit.emit_spread(builder, _across(builder, "fmin", value), best.lanes)
        never = ir.Constant(which.type, [2 ** (best.dtype.bitwidth - 1) - 1] * best.lanes)
        row = _across(builder, "smin", builder.select(builder.fcmp_ordered("==", value, lowest), which, never))
        return row if best.dtype == types.int64 else builder.sext(row, _I64)

    return types.intp(best, least), generate


def _across(builder: Any, name: str, value: Any) -> Any:
    """One of LLVM's own reductions over the lanes of a vector without NaN."""
    kind = value.type
    letter = "i" if isinstance(kind.element, ir.IntType) else "f"
    name = f"llvm.vector.reduce.{name}.v{kind.count}{letter}{_LEAST_BYTES * 8 // kind.count}"
    function = cgutils.get_or_insert_function(builder.module, ir.FunctionType(kind.element, [kind]), name)
    return builder.call(function, [value], fastmath=("nnan",) if letter == "f" else ())


@intrinsic
def first_lane(typing: Any, x: Any) -> Any:
    """The number in the first lane."""
    return x.dtype(x), lambda context, builder, sig, args: builder.extract_element(args[0], _I32(0))
