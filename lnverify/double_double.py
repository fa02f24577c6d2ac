"""Vectorised double-double arithmetic: an unevaluated sum of two float64 arrays, about 104 bits.

Each operation follows the error-free transformations of Knuth (TwoSum) and Dekker (split, TwoProduct); see
Higham, Accuracy and Stability, section 4.3 and chapter 27.9, and Hida, Li, Bailey, "Library for Double-Double
and Quad-Double Arithmetic" (2007). Relative error of one operation: at most a few units of 2^-104, as long as
nothing overflows beyond 2^996 or falls under 2^-969; the oracle scales rows by powers of two to stay inside.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from lnverify.floats import Float64Array

_SPLITTER = 2.0**27 + 1.0
LARGE = 1 << 13  # elements
FEW = 32  # terms of a sum
_LN2 = (float.fromhex("0x1.62e42fefa39efp-1"), float.fromhex("0x1.abc9e3b39803fp-56"))
_DENSITY = (float.fromhex("0x1.9884533d43651p-2"), float.fromhex("-0x1.cbc0d30ebfd15p-56"))  # 1/sqrt(2 pi)


# From LARGE elements on each step writes into what the step before has left: fresh memory costs more than arithmetic.


def _two_sum(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    total = a + b
    shadow = total - a
    if total.size < LARGE:
        return total, (a - (total - shadow)) + (b - shadow)
    error = total - shadow
    np.subtract(a, error, out=error)
    np.subtract(b, shadow, out=shadow)
    error += shadow
    return total, error


def _fast_two_sum(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    total = a + b
    if total.size < LARGE:
        return total, b - (total - a)
    error = total - a
    return total, np.subtract(b, error, out=error)


def _split(a: Float64Array) -> tuple[Float64Array, Float64Array]:
    """a as the sum of two numbers of 26 bits."""
    big = _SPLITTER * a
    if big.size < LARGE:
        high = big - (big - a)
        return high, a - high
    high = big - a
    np.subtract(big, high, out=high)
    return high, np.subtract(a, high, out=big)


def _two_product(a: Float64Array, b: Float64Array) -> tuple[Float64Array, Float64Array]:
    product = a * b
    a_hi, a_lo = _split(a)
    b_hi, b_lo = (a_hi, a_lo) if a is b else _split(b)
    if product.size < LARGE:
        return product, ((a_hi * b_hi - product) + a_hi * b_lo + a_lo * b_hi) + a_lo * b_lo
    error = a_hi * b_hi
    error -= product
    part = a_hi * b_lo
    error += part
    error += part if a is b else np.multiply(a_lo, b_hi, out=part)
    error += np.multiply(a_lo, b_lo, out=part)
    return product, error


class DoubleDouble:
    """hi + lo, elementwise, with |lo| at most half an ulp of hi. Supports what the generated formulas use."""

    __slots__ = ("_lo", "hi")
    __array_ufunc__ = None  # numpy defers to the reflected operators below

    def __init__(self, hi: Any, lo: Any = None) -> None:
        """Exact from float64 values `hi`, or the sum `hi + lo` of an already normalised pair."""
        self.hi: Float64Array = np.asarray(hi, dtype=np.float64)
        # None for a number of one word, which operations need not carry through
        self._lo: Float64Array | None = None if lo is None else np.asarray(lo, dtype=np.float64)

    @property
    def lo(self) -> Float64Array:
        """The low words."""
        return np.zeros_like(self.hi) if self._lo is None else self._lo

    def _each(self, change: Callable[[Float64Array], Any]) -> DoubleDouble:
        """A change of shape or sign, of both words."""
        return DoubleDouble(change(self.hi), None if self._lo is None else change(self._lo))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return self.hi.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.hi.ndim

    def __getitem__(self, key: Any) -> DoubleDouble:
        return self._each(lambda word: word[key])

    def transpose(self, *axes: Any) -> DoubleDouble:
        """As numpy.ndarray.transpose."""
        return self._each(lambda word: word.transpose(*axes))

    def reshape(self, *shape: Any) -> DoubleDouble:
        """As numpy.ndarray.reshape."""
        return self._each(lambda word: word.reshape(*shape))

    def __neg__(self) -> DoubleDouble:
        return self._each(np.negative)

    def __add__(self, other: Any) -> DoubleDouble:
        other = _lift(other)
        total, error = _two_sum(self.hi, other.hi)
        if self._lo is None and other._lo is None:
            return DoubleDouble(*_fast_two_sum(total, error))
        if self._lo is None or other._lo is None:
            error = error + (other._lo if self._lo is None else self._lo)
            return DoubleDouble(*_fast_two_sum(*_fast_two_sum(total, error)))
        low, low_error = _two_sum(self._lo, other._lo)
        total, error = _fast_two_sum(total, error + low)
        return DoubleDouble(*_fast_two_sum(total, error + low_error))

    __radd__ = __add__

    def __sub__(self, other: Any) -> DoubleDouble:
        return self + (-_lift(other))

    def __rsub__(self, other: Any) -> DoubleDouble:
        return _lift(other) + (-self)

    def __mul__(self, other: Any) -> DoubleDouble:
        if isinstance(other, int | float) and _power_of_two(other):
            return self._each(lambda word: word * other)
        other = _lift(other)
        square = self.hi is other.hi and self._lo is other._lo
        product, error = _two_product(self.hi, other.hi)
        # the words across: hi other.lo + lo other.hi
        across = None if other._lo is None else self.hi * other._lo
        if self._lo is not None:
            back = across if square else self._lo * other.hi
            across = back if across is None else across + back
        return DoubleDouble(*_fast_two_sum(product, error if across is None else error + across))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> DoubleDouble:
        if isinstance(other, int | float):
            return self._by_number(float(other))
        other = _lift(other)
        first = self.hi / other.hi
        rest = self - other * first
        second = rest.hi / other.hi
        rest = rest - other * second
        quotient, error = _fast_two_sum(first, second)
        return DoubleDouble(*_fast_two_sum(quotient, error + rest.hi / other.hi))

    def _by_number(self, divisor: float) -> DoubleDouble:
        """Division by one float64 number: one correction is enough, within 3 units of 2^-106."""
        if _power_of_two(divisor):
            return self._each(lambda word: word / divisor)
        first = self.hi / divisor
        product, error = _two_product(first, np.asarray(divisor))
        rest = self.hi - product
        rest -= error
        if self._lo is not None:
            rest += self._lo
        rest /= divisor
        return DoubleDouble(*_fast_two_sum(first, rest))

    def __rtruediv__(self, other: Any) -> DoubleDouble:
        return _lift(other) / self

    def __pow__(self, power: int) -> DoubleDouble:
        if not isinstance(power, int):
            raise TypeError(f"only integer powers are supported, got {power!r}")
        if power < 0:
            return 1 / self**-power
        result = DoubleDouble(np.ones_like(self.hi))
        for _ in range(power):
            result = result * self
        return result

    def sqrt(self) -> DoubleDouble:
        """Square root by one Newton step from the float64 root (Karp's trick); 0 gives 0."""
        with np.errstate(divide="ignore", invalid="ignore"):
            rough = np.sqrt(self.hi)
            rest = self - DoubleDouble(*_two_product(rough, rough))
            correction = np.where(rough > 0, rest.hi / (2.0 * rough), 0.0)
        return DoubleDouble(*_fast_two_sum(rough, correction))

    def exp(self) -> DoubleDouble:
        """e^v for |v| up to 700: v = k ln 2 + r, a Taylor series of r/256, eight squarings; about 2^-94 relative.

        Beyond 800 the result is 0, or infinite.
        """
        near = np.abs(self.hi) <= 800
        kept = DoubleDouble(np.clip(self.hi, -800, 800), np.where(near, self.lo, 0.0))
        k = np.rint(kept.hi / _LN2[0])
        rest = (kept - DoubleDouble(_LN2[0], _LN2[1]) * k) * 2.0**-8
        # expm1 of the rest, so that squaring does not lose what is small beside 1
        part = DoubleDouble(np.zeros_like(self.hi))
        for n in range(11, 0, -1):
            part = rest * (part + 1.0) / float(n)
        for _ in range(8):
            part = part * part + part * 2.0
        result = part + 1.0
        scale = k.astype(np.int64)
        return DoubleDouble(np.ldexp(result.hi, scale), np.ldexp(result.lo, scale))

    def tanh(self) -> DoubleDouble:
        """(1 - e)/(1 + e) with e = exp(-2|v|), the sign of v; an absolute error of about 2^-94."""
        sign = np.where(self.hi < 0, -1.0, 1.0)
        size = self * sign
        # beyond 40 the result is 1 to more than 104 bits
        kept = DoubleDouble(np.minimum(size.hi, 40.0), np.where(size.hi < 40.0, size.lo, 0.0))
        e = (kept * -2.0).exp()
        return (1.0 - e) / (1.0 + e) * sign

    def normal_pdf(self) -> DoubleDouble:
        """exp(-v^2/2)/sqrt(2 pi): relative error about 2^-94 + v^2 2^-103 for |v| up to 37, 0 from 40 on."""
        kept = DoubleDouble(np.clip(self.hi, -40, 40), np.where(np.abs(self.hi) <= 40, self.lo, 0.0))
        return (kept * kept * -0.5).exp() * DoubleDouble(*_DENSITY)

    def normal_cdf(self) -> DoubleDouble:
        """1/2 + phi(v) (v + v^3/3 + v^5/(3 5) + ...), Abramowitz and Stegun (1964), 26.2.11, for |v| up to 14.

        All terms have one sign; the absolute error is about 2^-93. Beyond 14 the result is 0 or 1 to 2^-146.
        """
        size = np.abs(self.hi)
        kept = DoubleDouble(np.clip(self.hi, -14, 14), np.where(size <= 14, self.lo, 0.0))
        term = total = kept
        square, n = kept * kept, 1
        while term.hi.size and np.any(np.abs(term.hi) > 2.0**-110 * np.abs(total.hi)):
            n += 2
            term = term * square / float(n)
            total = total + term
        inside = total * kept.normal_pdf() + 0.5
        beyond = size > 14
        return DoubleDouble(np.where(beyond, self.hi > 0, inside.hi), np.where(beyond, 0.0, inside.lo))

    def step(self) -> DoubleDouble:
        """1 where positive, 0 elsewhere."""
        return DoubleDouble(((self.hi > 0) | ((self.hi == 0) & (self.lo > 0))).astype(np.float64))

    def sum(self, axis: int | tuple[int, ...] | None = None) -> DoubleDouble:
        """Sum over one or more axes by a binary tree: relative to sum|.|, error at most log2(n) 2^-103."""
        axes = range(self.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
        result = self
        for one in sorted((a % self.ndim for a in axes), reverse=True):
            result = result._sum_axis(one)
        return result

    def _sum_axis(self, axis: int) -> DoubleDouble:
        part = self._each(lambda word: np.moveaxis(word, axis, 0)) if axis else self
        if part.shape[0] == 0:
            return DoubleDouble(np.zeros(part.shape[1:]))
        while (count := part.shape[0]) > 1:
            half = count // 2
            paired = part[:half] + part[half : 2 * half]
            if count % 2:
                last = part[2 * half :]
                paired = DoubleDouble(np.concatenate([paired.hi, last.hi]), np.concatenate([paired.lo, last.lo]))
            elif axis and half <= FEW:  # long loops over what is left of many sums, not many short ones
                paired = paired._each(np.ascontiguousarray)
            part = paired
        return part[0]


def _power_of_two(value: float) -> bool:
    """Whether products with the number are exact, but where they leave the range."""
    return math.frexp(value)[0] in (0.5, -0.5)


def _lift(value: Any) -> DoubleDouble:
    return value if isinstance(value, DoubleDouble) else DoubleDouble(value)
