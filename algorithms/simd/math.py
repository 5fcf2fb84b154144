"""exp and log of vector values, as polynomials of our own. Knows no kernel.

numba's vector library (SVML) is not in the llvmlite that pip installs, so these are fitted here, at import.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba.extending import intrinsic

from flegel.algorithms.simd.emit import emit_call, emit_constant, emit_fma, emit_horner

_LOG2 = math.log(2.0)


def _fitted(function: Callable[[Any], Any], bound: float, degree: int) -> list[float]:
    """Coefficients, highest power first, of the interpolation at Chebyshev's points of [−bound, bound]."""
    series = np.polynomial.Chebyshev.interpolate(function, degree, domain=[-bound, bound])
    return [float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef[::-1]]


def _exp_tail(r: Any) -> Any:
    """(exp(r) − 1 − r) / r², as a series that is exact at 0."""
    return sum(r**i / math.factorial(i + 2) for i in range(20))


def _atanh(terms: int) -> list[float]:
    """Coefficients of 2·atanh(z) / z in z², highest power first."""
    return [2.0 / (2 * i + 1) for i in reversed(range(terms))]


_EXP = {32: [*_fitted(_exp_tail, 0.35, 4), 1.0, 1.0], 64: [*_fitted(_exp_tail, 0.35, 10), 1.0, 1.0]}
_LOG = {32: _atanh(5), 64: _atanh(11)}  # z² is at most 0.0295
_MANTISSA = {32: 23, 64: 52}
_EXP_RANGE = {32: (-87.33654, 88.37626), 64: (-708.3964185322641, 709.436139303104)}
_LOG2_PARTS = {32: (0.693359375, _LOG2 - 0.693359375), 64: (0.6931471803691238, 1.9082149292705877e-10)}
_SQRT_HALF_BITS = {32: 0x3F3504F3, 64: 0x3FE6A09E667F3BCD}


@intrinsic
def exp(typing: Any, x: Any) -> Any:
    """eˣ to 1 unit in the last place; 0 where that is below normal numbers, finite (1e38, 1e308) above."""
    bits = x.dtype.bitwidth
    least, most = _EXP_RANGE[bits]

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        too_small = builder.fcmp_ordered("<", args[0], emit_constant(kind, least))
        too_large = builder.fcmp_ordered(">", args[0], emit_constant(kind, most))
        v = builder.select(too_small, emit_constant(kind, least), args[0])
        v = builder.select(too_large, emit_constant(kind, most), v)
        return builder.select(too_small, emit_constant(kind, 0.0), _emit_exp(builder, v, bits))

    return x(x), generate


def _emit_exp(builder: Any, v: Any, bits: int) -> Any:
    kind = v.type
    whole = ir.VectorType(ir.IntType(bits), kind.count)
    power = emit_call(builder, "llvm.rint", builder.fmul(v, emit_constant(kind, 1.0 / _LOG2)))
    rest = v
    for part in _LOG2_PARTS[bits]:
        rest = emit_fma(builder, power, emit_constant(kind, -part), rest)
    value = emit_horner(builder, rest, _EXP[bits])
    shifted = builder.shl(builder.fptosi(power, whole), emit_constant(whole, _MANTISSA[bits]))
    return builder.bitcast(builder.add(builder.bitcast(value, whole), shifted), kind)


@intrinsic
def exp_within(typing: Any, x: Any) -> Any:
    """eˣ for |x| ≤ 87, as `exp` gives it; meaningless elsewhere. Without the comparisons, a fifth of its work."""
    return x(x), lambda context, builder, sig, args: _emit_exp(builder, args[0], x.dtype.bitwidth)


@intrinsic
def log(typing: Any, x: Any) -> Any:
    """Natural logarithm of positive normal numbers to 2 units in the last place; meaningless elsewhere."""
    bits = x.dtype.bitwidth

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        kind = args[0].type
        whole = ir.VectorType(ir.IntType(bits), kind.count)
        shift = emit_constant(whole, _MANTISSA[bits])
        raw = builder.bitcast(args[0], whole)
        power = builder.ashr(builder.sub(raw, emit_constant(whole, _SQRT_HALF_BITS[bits])), shift)
        mantissa = builder.bitcast(builder.sub(raw, builder.shl(power, shift)), kind)  # in [√½, √2)
        one = emit_constant(kind, 1.0)
        z = builder.fdiv(builder.fsub(mantissa, one), builder.fadd(mantissa, one))
        tail = builder.fmul(emit_horner(builder, builder.fmul(z, z), _LOG[bits]), z)
        power = builder.sitofp(power, kind)
        for part in reversed(_LOG2_PARTS[bits]):
            tail = emit_fma(builder, power, emit_constant(kind, part), tail)
        return tail

    return x(x), generate


def _log1p_series(x: Any) -> Any:
    """log(1 + x) / x, exact at 0."""
    x = np.asarray(x, dtype=np.float64)
    return np.divide(np.log1p(x), x, out=np.ones_like(x), where=x != 0)


def _fitted_to_unit(function: Callable[[Any], Any], degree: int) -> list[float]:
    """Coefficients, highest power first, of the interpolation at Chebyshev's points of [0, 1]."""
    series = np.polynomial.Chebyshev.interpolate(function, degree, domain=[0.0, 1.0])
    return [float(c) for c in series.convert(kind=np.polynomial.Polynomial).coef[::-1]]


_LOG1P = {32: _fitted_to_unit(_log1p_series, 9), 64: _fitted_to_unit(_log1p_series, 20)}


@intrinsic
def log1p_unit(typing: Any, x: Any) -> Any:
    """log(1 + x) for 0 ≤ x ≤ 1 to a few units in the last place, without a division; meaningless
    elsewhere.
    """

    def generate(context: Any, builder: Any, sig: Any, args: Any) -> Any:
        return builder.fmul(args[0], emit_horner(builder, args[0], _LOG1P[x.dtype.bitwidth]))

    return x(x), generate
