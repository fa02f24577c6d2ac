"""Double-double arithmetic against fractions: the error of each operation, in units of 2^-104 of its result."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lnverify import double_double
from lnverify.double_double import DoubleDouble

QUIET = settings(deadline=None, derandomize=True, database=None, max_examples=250)
UNIT = Fraction(2) ** -104
INF, NAN = math.inf, math.nan

WORDS = st.builds(
    lambda mantissa, exponent: math.ldexp(mantissa, exponent - 53),
    st.one_of(st.integers(2**52, 2**53 - 1), st.sampled_from([2**52, 2**52 + 1, 2**53 - 1])),
    st.integers(-200, 200),
)


@st.composite
def pairs(draw, signed=True):
    """A normalised pair: the low word at most half an ulp of the high one, often exactly that or far below."""
    hi = draw(WORDS)
    half = Fraction(math.ulp(hi)) / 2
    edges = [Fraction(sign, 2**k) for sign in (-1, 0, 1) for k in (0, 1, 30, 52)]
    part = draw(st.one_of(st.fractions(-1, 1, max_denominator=10**6), st.sampled_from(edges)))
    lo = float(half * part)
    if hi + lo != hi:  # at a power of two the gap below is half as wide
        lo = 0.0
    sign = draw(st.sampled_from((-1.0, 1.0))) if signed else 1.0
    return DoubleDouble(sign * hi, sign * lo)


def exact(value: DoubleDouble) -> Fraction:
    return Fraction(float(value.hi)) + Fraction(float(value.lo))


def units(got: DoubleDouble, want: Fraction, size: Fraction | None = None) -> float:
    """|got - want| in units of 2^-104 of `size`, by default of |want|; asserts that the pair is normalised."""
    assert float(got.hi) + float(got.lo) == float(got.hi)
    size = abs(want) if size is None else size
    return float(abs(exact(got) - want) / (UNIT * size)) if size else float(exact(got) != want)


@QUIET
@given(pairs(), pairs())
def test_sums_and_differences_of_pairs(a, b):
    """Two units at most (Joldes, Muller, Popescu 2017, accurate addition: 3u^2 = 0.75 units of 2^-104), even
    where the high words cancel."""
    assert units(a + b, exact(a) + exact(b)) <= 1
    assert units(a - b, exact(a) - exact(b)) <= 1


@QUIET
@given(pairs(), st.integers(-53, 53), st.integers(-4, 4), st.integers(-4, 4))
def test_cancellation_leaves_the_low_words(a, shift, high, low):
    near = DoubleDouble(float(a.hi) + high * math.ulp(float(a.hi)), float(a.lo) * (1 + low * 2.0**-52))
    assert units(near - a, exact(near) - exact(a)) <= 1


@QUIET
@given(pairs(), pairs())
def test_products_and_quotients(a, b):
    """Dekker's product and two corrections of the quotient: the bounds in the literature are 7 u^2 (1.75
    units) and 10 u^2 to 15 u^2 (below 4 units)."""
    assert units(a * b, exact(a) * exact(b)) <= 2
    assert units(a / b, exact(a) / exact(b)) <= 4
    assert units(3 / b, 3 / exact(b)) <= 4
    assert units(a * 7, exact(a) * 7) <= 2


@QUIET
@given(pairs(), st.one_of(st.integers(1, 70000), st.sampled_from((3, 7.0, 768, 0.1, -5))))
def test_quotients_by_a_number(a, divisor):
    """One correction: its rounding, that of the remainder and of the sum are 3 u^2 (0.75 units)."""
    assert units(a / divisor, exact(a) / Fraction(divisor)) <= 1


@QUIET
@given(pairs(), st.integers(-20, 20), st.sampled_from((-1, 1)))
def test_powers_of_two_are_exact(a, exponent, sign):
    power = sign * 2.0**exponent
    assert exact(a * power) == exact(power * a) == exact(a) * Fraction(power)
    assert exact(a / power) == exact(a) / Fraction(power)


@QUIET
@given(pairs(signed=False))
def test_square_roots(a):
    """Against an integer square root: Karp's step adds the error squared of a float64 root, 2^-106, and the
    rounding of one correction, below 2^-104."""
    want, bits = exact(a), 600
    root = Fraction(math.isqrt(int(want * Fraction(4) ** bits)), 2**bits)  # exact to 2^-600, and root > 2^-101
    assert units(a.sqrt(), root) <= 2


@QUIET
@given(pairs(), st.integers(-3, 4))
def test_powers(a, power):
    mantissa, exponent = math.frexp(float(a.hi))
    small = DoubleDouble(mantissa, math.ldexp(float(a.lo), -exponent))
    assert units(small**power, exact(small) ** power) <= 2 * abs(power) + 4


@QUIET
@given(st.lists(pairs(), min_size=0, max_size=40))
def test_sums_by_a_tree(items):
    """ceil(log2 n) levels of one unit each, relative to the sum of the magnitudes."""
    hi, lo = (np.array([float(getattr(v, w)) for v in items]) for w in ("hi", "lo"))
    got = DoubleDouble(hi, lo).sum(axis=0)
    want, size = sum(map(exact, items), Fraction(0)), sum((abs(exact(v)) for v in items), Fraction(0))
    assert units(got, want, size) <= math.ceil(math.log2(max(len(items), 1)))


def test_sums_over_axes_are_those_of_their_rows_and_columns():
    values = np.arange(24.0).reshape(2, 3, 4)
    number = DoubleDouble(values, values * 2.0**-60)
    for axis in (0, 1, -1, (0, 2), None):
        total = number.sum(axis=axis)
        np.testing.assert_array_equal(total.hi, values.sum(axis=axis))
        np.testing.assert_array_equal(total.lo, values.sum(axis=axis) * 2.0**-60)
    assert DoubleDouble(np.zeros((3, 0))).sum(axis=1).hi.tolist() == [0.0, 0.0, 0.0]


def test_a_sum_keeps_what_float64_loses():
    number = DoubleDouble(np.array([1e16, 1.0, -1e16, 2.0**-40, 1.0]))
    total = number.sum(axis=0)
    assert exact(total) == 2 + Fraction(2) ** -40


@pytest.mark.parametrize("bad", [NAN, INF, -INF, 1e308])
def test_nan_and_infinity_stay_where_they_are(bad):
    """Of three elements and three rows the middle one is bad (or overflows); the others are as without it."""
    hi = np.array([[1.0, 3.0], [bad, 5.0], [7.0, 11.0]])
    clean = np.where(np.isfinite(hi) & (np.abs(hi) < 1e300), hi, 2.0)
    with np.errstate(all="ignore"):
        for operation in (
            lambda v: v * v, lambda v: v / 3, lambda v: 3 / v, lambda v: v - 1, lambda v: v.sqrt(), lambda v: v**3,
            lambda v: v.sum(axis=1),
        ):  # fmt: skip
            got, want = operation(DoubleDouble(hi)), operation(DoubleDouble(clean))
            for row in (0, 2):
                np.testing.assert_array_equal(got.hi[row], want.hi[row])
                np.testing.assert_array_equal(got.lo[row], want.lo[row])
        assert not np.isfinite((DoubleDouble(hi) * 1e300).hi[1, 0])


def test_zero_has_a_root_and_no_reciprocal():
    zero = DoubleDouble(np.array([0.0, 4.0]))
    assert zero.sqrt().hi.tolist() == [0.0, 2.0]
    with np.errstate(all="ignore"):
        inverse = 1 / zero
    assert not np.isfinite(inverse.hi[0])
    assert inverse.hi[1] == 0.25


def test_shapes_travel_with_both_words():
    number = DoubleDouble(np.arange(6.0).reshape(2, 3), np.arange(6.0).reshape(2, 3) * 2.0**-60)
    for view in (number.transpose((1, 0)), number.reshape(3, 2), number[:, None, 1:], -number):
        np.testing.assert_array_equal(view.lo, view.hi * 2.0**-60)
    assert number.transpose((1, 0)).shape == (3, 2)
    assert (number.ndim, number[0].shape) == (2, (3,))
    with pytest.raises(TypeError, match="only integer powers are supported"):
        number**0.5


def test_numpy_arrays_on_the_left_defer():
    total = np.array([1.0, 2.0]) + DoubleDouble(np.array([2.0**-60, 2.0**-70]))
    assert isinstance(total, DoubleDouble)
    assert total.lo.tolist() == [2.0**-60, 2.0**-70]


def bits(value: DoubleDouble) -> np.ndarray:
    return np.stack([value.hi, value.lo]).view(np.uint64)


@pytest.mark.parametrize("words", [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_large_arrays_have_the_bits_of_their_rows(words, monkeypatch):
    """From LARGE elements on the steps write into memory that is there; a number of one word skips what is zero."""
    rng = np.random.default_rng(7)
    hi = rng.normal(size=(2, 5, 40)) * 2.0 ** rng.integers(-40, 40, (2, 5, 40))
    a, b = (DoubleDouble(h) if one == 1 else DoubleDouble(h, h * 2.0**-55) for h, one in zip(hi, words, strict=True))
    two = [DoubleDouble(value.hi, value.lo) for value in (a, b)]  # the same numbers, their zeros carried through
    kinds = (lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a * a,
             lambda a, b: a / 7.0, lambda a, b: (a * b[:1]).sum(axis=1), lambda a, b: a[:, :1] * b)  # fmt: skip
    small = [bits(kind(a, b)) for kind in kinds]
    assert all((found == bits(kind(*two))).all() for found, kind in zip(small, kinds, strict=True))
    monkeypatch.setattr(double_double, "LARGE", 2)
    assert all((found == bits(kind(a, b))).all() for found, kind in zip(small, kinds, strict=True))
