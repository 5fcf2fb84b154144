"""Vectors over points, for rows that lie one after the other: a lane is a point, whatever the number of columns.

A vector over the columns of a point of 28 columns fills less than two registers of 64 bytes, and its sum has to be
taken across lanes. A vector over points has neither loss, but the rows must be transposed first. Nothing here knows an
algorithm; for @njit functions only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from flegel.algorithms.simd import emit
from flegel.algorithms.simd.rows import common_kind, square_term

_I64 = ir.IntType(64)
TRANSPOSED_BYTES = 16  # bytes: so much of a row is transposed at once, the narrowest register of all machines


@intrinsic(prefer_literal=True)
def lay_out(
    typing: Any, rows: Any, at: Any, columns: Any, t: Any, origin: Any, near: Any, to: Any, stride: Any, norms: Any
) -> Any:
    """Columns t, t + 1, … of the points from flat position `at` on, less the origin, to `near`, as many as 16 bytes
    hold: column c goes to `to + c * stride`, a lane a point. The result: `norms` plus the squares of what was written.

    `norms` is a vector of the precision of `near` and says how many points there are.
    """
    size = emit.item_size(rows)
    many, lanes = TRANSPOSED_BYTES // size, norms.lanes

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        table, columns, t, to, stride = args[0], args[2], args[3], args[6], args[7]
        begin = builder.add(args[1], t)
        parts: list[Any] = [None] * lanes
        for point in range(lanes):
            place = builder.add(begin, builder.mul(columns, _I64(point)))
            address = emit.emit_address(context, builder, rows, table, place)
            parts[point] = emit.emit_load(builder, address, many, size)
        values = _transposed(builder, [_joined(builder, parts[i::many]) for i in range(many)])
        sums = args[8]
        for c, value in enumerate(values):
            column = builder.add(t, _I64(c))
            zero = builder.load(emit.emit_address(context, builder, origin, args[4], column))
            value = builder.fsub(value, emit.emit_spread(builder, zero, lanes))
            if value.type != sums.type:
                change = builder.fpext if emit.item_size(near) > size else builder.fptrunc
                value = change(value, sums.type)
            place = builder.add(to, builder.mul(column, stride))
            address = emit.emit_address(context, builder, near, args[5], place)
            builder.store(value, builder.bitcast(address, value.type.as_pointer())).align = emit.item_size(near)
            sums = emit.emit_fma(builder, value, value, sums)
        return sums

    ints = types.intp
    return norms(rows, ints, ints, ints, origin, near, ints, ints, norms), generate


def _joined(builder: Any, parts: list[Any]) -> Any:
    """Vectors one after the other in one, as many as a power of two."""
    while len(parts) > 1:
        lanes = ir.Constant(ir.VectorType(emit.I32, 2 * parts[0].type.count), list(range(2 * parts[0].type.count)))
        parts = [builder.shuffle_vector(parts[i], parts[i + 1], lanes) for i in range(0, len(parts), 2)]
    return parts[0]


def _transposed(builder: Any, values: list[Any]) -> list[Any]:
    """n vectors whose blocks of n lanes are squares, each transposed: all registers work on their own blocks."""
    n, lanes = len(values), values[0].type.count
    low, high = (
        [b + half + i // 2 + (lanes if i % 2 else 0) for b in range(0, lanes, n) for i in range(n)]
        for half in (0, n // 2)
    )
    for _ in range(n.bit_length() - 1):
        pairs = list(zip(values[: n // 2], values[n // 2 :], strict=True))
        values = [
            builder.shuffle_vector(x, y, ir.Constant(ir.VectorType(emit.I32, lanes), order))
            for x, y in pairs
            for order in (low, high)
        ]
    return values


@intrinsic
def two_least_each(typing: Any, values: Any, first: Any, least: Any, second: Any, which: Any) -> Any:
    """(least, second, which) with the tuple taken in, lane by lane: the least value, the next one, and the place of the
    least, counted from `first`. Of equal values the earliest is the least."""
    three = types.UniTuple(least, 3)

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        def meet(one: list[Any], two: list[Any]) -> list[Any]:
            later = builder.fcmp_ordered("<", two[0], one[0])
            nexts = [builder.select(later, one[0], two[0]), *one[2:], *two[2:]]
            while len(nexts) > 1:
                nexts = [emit.emit_less(builder, nexts[0], nexts[1]), *nexts[2:]]
            return [emit.emit_less(builder, two[0], one[0]), builder.select(later, two[1], one[1]), nexts[0]]

        values = cgutils.unpack_tuple(builder, args[0])
        field = [[value, emit.emit_constant(value.type, float(i))] for i, value in enumerate(values)]
        while len(field) > 1:
            pairs = [meet(*field[i : i + 2]) for i in range(0, len(field) - 1, 2)]
            field = pairs + field[2 * len(pairs) :]
        value, place, *others = field[0]
        number = context.cast(builder, args[1], sig.args[1], which.dtype)
        place = builder.fadd(place, emit.emit_spread(builder, number, which.lanes))
        found = meet([args[2], args[4], args[3]], [value, place, *others])
        return context.make_tuple(builder, three, [found[0], found[2], found[1]])

    return three(values, first, least, second, which), generate


def _summing(term: Callable[[Any, Any, Any, Any], Any]) -> Any:
    """An intrinsic `sums(near, at, stride, x, rows, row, columns, lanes)`: the sum of `term` over the columns of row
    `row`, for as many points as there are lanes.

    `near`, `at`, `stride`: points as `lay_out` writes them, column t at `at + t * stride`, a lane a point. `x`: the
    array that they come from, read for its type only: sums are taken in the common type of it and `rows`.
    The numbers are added as `simd.rows` adds them for one point and one row, so each lane is the same to the last bit.
    `columns` is a constant, so that the sums stay in registers.
    """

    @intrinsic(prefer_literal=True)
    def sums(
        typing: Any, near: Any, at: Any, stride: Any, x: Any, rows: Any, row: Any, columns: Any, lanes: Any
    ) -> Any:
        kind = common_kind(x, rows)
        result = emit.Vector(kind, int(lanes.literal_value))

        def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
            points, begin, step, _, table, number_of_row, *_ = args
            wide = context.get_value_type(result)
            first = builder.mul(number_of_row, _I64(columns.literal_value))

            def term_of(t: int, before: Any) -> Any:
                place = builder.add(begin, builder.mul(step, _I64(t)))
                here = emit.emit_address(context, builder, near, points, place)
                value = emit.emit_load(builder, here, result.lanes, emit.item_size(near))
                address = emit.emit_address(context, builder, rows, table, builder.add(first, _I64(t)))
                number = emit.emit_spread(builder, builder.load(address), result.lanes)
                value, number = (v if v.type == wide else builder.fpext(v, wide) for v in (value, number))
                return term(builder, value, number, before)

            zero = ir.Constant(wide, None)
            size = int(kind.bitwidth) // 8
            return _added(builder, term_of, int(columns.literal_value), size, zero)

        return result(near, types.intp, types.intp, x, rows, types.intp, columns, lanes), generate

    return sums


def _added(builder: Any, term: Callable[[int, Any], Any], columns: int, size: int, zero: Any) -> Any:
    """The tree of additions of `rows._Columns` for one row, whose lanes are slots here; branch after branch, so that
    few sums wait in registers."""
    widest, least = 2 * emit.VECTOR_BYTES // size, TRANSPOSED_BYTES // size
    whole = columns // widest * widest
    begins, at, many = {}, whole, widest
    while many > least:
        many //= 2
        if at + many <= columns:
            begins[many] = at
            at += many

    def slot(many: int, i: int) -> Any:
        if many == widest:
            value = zero
            for t in range(i, whole, widest):
                value = term(t, value)
            return value
        low, high = slot(2 * many, i), slot(2 * many, i + many)
        value = low if high is zero else builder.fadd(low, high)
        if many in begins:
            value = term(begins[many] + i, value)
        if many == least and at < columns and columns - many + i >= at:
            value = term(columns - many + i, value)
        return value

    slots = [slot(least, i) for i in range(least)]
    while len(slots) > 1:
        slots = [builder.fadd(slots[i], slots[i + 1]) for i in range(0, len(slots), 2)]
    return slots[0]


squared_distances_by_points = _summing(square_term)
dots_by_points = _summing(lambda builder, x, y, before: emit.emit_fma(builder, x, y, before))
