"""Formats, rounding, cells and the error metric, against integers, fractions and every pattern of 16 bits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from lnverify.errors import UsageError
from lnverify.floats import (
    FORMATS,
    FloatArray,
    canonical_dtype,
    decode,
    distance,
    encode,
    error_in_ulp,
    half_cell,
    hex_text,
    quantum,
    round_values,
)

ALL = tuple(FORMATS)
NARROW = ("float32", "float16", "bfloat16")
SIXTEEN = ("float16", "bfloat16")
QUIET = settings(deadline=None, derandomize=True, database=None, max_examples=300)
INF, NAN = math.inf, math.nan


def rounded(value: Fraction, dtype: str) -> float:
    """`value` rounded to nearest even by integer arithmetic, from the parameters of IEEE 754 alone."""
    precision, top = {"float64": (53, 1023), "float32": (24, 127), "float16": (11, 15), "bfloat16": (8, 127)}[dtype]
    if value == 0:
        return 0.0
    size = abs(value)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent
    gap = Fraction(2) ** (max(exponent, 1 - top) - precision + 1)
    steps = round(size / gap)  # of a Fraction: to nearest, ties to even
    if steps * gap >= Fraction(2) ** (top + 1):
        return math.copysign(INF, value)
    return math.copysign(float(steps * gap), value)


def every(dtype: str) -> np.ndarray:
    """All values of a 16-bit format, by bit pattern."""
    return decode(np.arange(1 << 16, dtype=np.uint16), dtype)


def neighbours(dtype: str) -> np.ndarray:
    """All finite values of a 16-bit format in ascending order, zero once."""
    values = every(dtype)
    return np.unique(values[np.isfinite(values)] + 0.0)


@pytest.mark.parametrize(
    ("dtype", "u", "tiny", "smallest", "largest"),
    [
        ("float64", 2.0**-53, 2.0**-1022, 5e-324, 1.7976931348623157e308),
        ("float32", 2.0**-24, 2.0**-126, 2.0**-149, 3.4028234663852886e38),
        ("float16", 2.0**-11, 2.0**-14, 2.0**-24, 65504.0),
        ("bfloat16", 2.0**-8, 2.0**-126, 2.0**-133, 3.3895313892515355e38),
    ],
)
def test_parameters_of_a_format(dtype, u, tiny, smallest, largest):
    fmt = FORMATS[dtype]
    assert (fmt.u, fmt.tiny, fmt.smallest, fmt.largest) == (u, tiny, smallest, largest)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_every_pattern_of_16_bits_survives_decode_and_encode(dtype):
    bits = np.arange(1 << 16, dtype=np.uint16)
    values = decode(bits, dtype)
    nan = np.isnan(values)
    back = encode(values, dtype)
    assert back.dtype == np.uint16
    np.testing.assert_array_equal(back[~nan], bits[~nan])
    assert np.isnan(decode(back[nan], dtype)).all()
    # 2 signs times every mantissa but 0, at the largest exponent
    assert nan.sum() == 2 * (2 ** (FORMATS[dtype].precision - 1) - 1)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_every_value_of_16_bits_is_a_fixed_point_and_its_gap_reaches_the_next(dtype):
    values = neighbours(dtype)
    np.testing.assert_array_equal(round_values(values, dtype), values)
    size = values[values >= 0]
    np.testing.assert_array_equal(quantum(size[:-1], FORMATS[dtype]), np.diff(size))


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_rounding_cells_of_16_bits_tile_the_line(dtype):
    """Each cell ends where the next begins: halfway between neighbours; exhaustive."""
    values, fmt = neighbours(dtype), FORMATS[dtype]
    up = half_cell(values, fmt, towards_zero=values < 0)
    down = half_cell(values, fmt, towards_zero=values > 0)
    halfway = (values[:-1] + values[1:]) / 2
    np.testing.assert_array_equal(values[:-1] + up[:-1], halfway)
    np.testing.assert_array_equal(values[1:] - down[1:], halfway)


@pytest.mark.parametrize("dtype", SIXTEEN)
def test_midpoints_of_16_bits_round_to_even_and_their_neighbours_do_not_hesitate(dtype):
    values = neighbours(dtype)
    halfway = (values[:-1] + values[1:]) / 2
    even = (encode(values, dtype) & 1) == 0
    np.testing.assert_array_equal(round_values(halfway, dtype), np.where(even[:-1], values[:-1], values[1:]))
    np.testing.assert_array_equal(round_values(np.nextafter(halfway, -INF), dtype), values[:-1])
    np.testing.assert_array_equal(round_values(np.nextafter(halfway, INF), dtype), values[1:])


@pytest.mark.parametrize("dtype", NARROW)
def test_special_values_round_to_themselves(dtype):
    got = round_values([INF, -INF, NAN, 0.0, -0.0], dtype)
    np.testing.assert_array_equal(got, [INF, -INF, NAN, 0.0, -0.0])
    assert np.signbit(got).tolist() == [False, True, False, False, True]


@pytest.mark.parametrize("dtype", ALL)
def test_subnormal_ties_go_to_even(dtype):
    least = FORMATS[dtype].smallest
    if dtype != "float64":  # float64 holds no half of its own least number
        steps = np.array([0.5, 1.5, 2.5, 3.5, -0.5, 0.5000001])
        np.testing.assert_array_equal(round_values(steps * least, dtype) / least, [0, 2, 2, 4, 0, 1])
        assert np.signbit(round_values(-0.5 * least, dtype))
    assert float(quantum(0.0, FORMATS[dtype])) == least
    assert float(quantum(least, FORMATS[dtype])) == least
    assert float(quantum(FORMATS[dtype].tiny, FORMATS[dtype])) == least


@pytest.mark.parametrize("dtype", NARROW)
def test_overflow_begins_half_a_gap_beyond_the_largest(dtype):
    fmt = FORMATS[dtype]
    edge = fmt.largest + 0.5 * float(quantum(fmt.largest, fmt))
    got = round_values([edge, np.nextafter(edge, 0), -edge, -np.nextafter(edge, 0), 1e308], dtype)
    np.testing.assert_array_equal(got, [INF, fmt.largest, -INF, -fmt.largest, INF])


def test_rounding_to_bfloat16_is_not_done_twice():
    values = np.array([1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40])
    np.testing.assert_array_equal(round_values(values, "bfloat16"), [1.0078125, 1.0078125])
    # By way of float32 both are ties, which go to even: the values are hard ones.
    np.testing.assert_array_equal(round_values(values.astype(np.float32), "bfloat16"), [1.0, 1.015625])


FINITE = st.floats(allow_nan=False, allow_infinity=False)
NEAR_TIES = st.builds(
    lambda m, k, e, s: math.ldexp((2 * m + 1) + s * 2.0**-k, e),
    st.integers(0, 2**12), st.integers(14, 39), st.integers(-160, 130), st.sampled_from((-1, 0, 1)),
)  # fmt: skip


@QUIET
@example(1 + 2.0**-8 + 2.0**-40)
@example(2.0**-134)
@example(65520.0)
@given(st.one_of(FINITE, NEAR_TIES))
@pytest.mark.parametrize("dtype", ALL)
def test_rounding_is_the_exact_one(dtype, value):
    got = float(round_values(value, dtype))
    want = rounded(Fraction(value), dtype)
    assert got == want
    assert math.copysign(1, got) == math.copysign(1, value)


def fraction_distance(observed: float, exact: Fraction, dtype: str) -> Fraction:
    """How far `exact` is from the nearest real that rounds to the finite `observed`, by its two neighbours."""
    fmt = FORMATS[dtype]
    size, sign = abs(Fraction(observed)), -1 if observed < 0 else 1
    gap = Fraction(float(quantum(observed, fmt)))
    below = size - gap / (4 if size > Fraction(fmt.tiny) and math.frexp(observed)[0] in (0.5, -0.5) else 2)
    above, point = size + gap / 2, sign * exact
    return max(below - point, point - above, Fraction(0))


@QUIET
@example(1.0, 1 - 2.0**-9, 0.0)
@example(0.0, 2.0**-134, 0.0)
@given(st.one_of(FINITE, NEAR_TIES), FINITE, st.sampled_from((0.0, 1.0, -1.0)))
@pytest.mark.parametrize("dtype", ALL)
def test_distance_is_zero_for_the_rounded_value_and_right_elsewhere(dtype, exact, other, side):
    """In float64 the exact value has a low word; elsewhere it is a float64, and the distance then is exact
    up to the one rounding of a float64 subtraction."""
    fmt = FORMATS[dtype]
    low = side * 0.25 * float(quantum(exact, fmt)) if dtype == "float64" and abs(exact) > 1e-290 else 0.0
    truth = Fraction(exact) + Fraction(low)
    nearest = float(round_values(exact, dtype))
    if math.isfinite(nearest) and not (low and math.frexp(exact)[0] in (0.5, -0.5)):
        assert float(distance(np.array(nearest), np.array(exact), low, fmt)) == 0.0
    observed = float(round_values(other, dtype))
    if math.isfinite(observed):
        got = float(distance(np.array(observed), np.array(exact), low, fmt))
        want = fraction_distance(observed, truth, dtype)
        slack = Fraction(2) ** -52 * (abs(truth - Fraction(observed)) + abs(want)) + Fraction(5e-324)
        if got == INF:
            assert want + slack > Fraction(FORMATS["float64"].largest)
        else:
            assert abs(Fraction(got) - want) <= slack


def extremes(dtype: str) -> list[float]:
    fmt = FORMATS[dtype]
    positive = [0.0, fmt.smallest, fmt.tiny, 1.0, 1.0 + 2 * fmt.u, fmt.largest, INF]
    return [NAN, *positive, *(-v for v in positive)]


@pytest.mark.parametrize("dtype", ALL)
def test_the_metric_is_total(dtype):
    """Every pair of special values, and every kind of low word, has a distance and an error that are numbers."""
    fmt = FORMATS[dtype]
    exacts = extremes(dtype) + ([1e308, -1e308] if dtype != "float64" else [])
    lows = (0.0, 5e-324, NAN, INF, -INF) if dtype == "float64" else (0.0,)
    for observed, exact, low in product(extremes(dtype), exacts, lows):
        where = (observed, exact, low)
        apart = float(distance(np.array(observed), np.array(exact), low, fmt))
        ulps = float(error_in_ulp(np.array(observed), np.array(exact), low, fmt))
        assert apart >= 0, where
        assert ulps >= 0, where
        if low == 0:
            same = observed == round_values(exact, dtype) or (math.isnan(observed) and math.isnan(exact))
            assert (apart == 0) == same, where


@pytest.mark.parametrize(
    ("observed", "exact", "want"),
    [
        (INF, 3.5e38, 0.0),  # beyond the largest plus half its gap
        (INF, 3.4028234663852886e38, 2.0**103),  # the largest itself: half a gap short of infinity's cell
        (INF, 0.0, 3.4028235677973366e38),
        (-INF, 1.0, 3.4028235677973366e38),
        (-INF, 0.0, 3.4028235677973366e38),
        (INF, -INF, INF),
        (1.0, INF, INF),
        (INF, INF, 0.0),
        (NAN, INF, INF),
        (1.0, NAN, INF),
        (-0.0, 0.0, 0.0),
        (0.0, -(2.0**-150), 0.0),  # half the least number belongs to zero
        (0.0, 2.0**-149, 2.0**-150),
        (1.0, 1 - 2.0**-25, 0.0),  # below a power of two the cell is half as wide
        (1.0, 1 - 2.0**-24, 2.0**-25),
        (1.0, 1 + 2.0**-24, 0.0),
        (1.0, 1 + 2.0**-23, 2.0**-24),
        (2.0**-126, 2.0**-126 - 2.0**-150, 0.0),  # not so at the smallest normal number
    ],
)
def test_distance_at_the_corners_of_float32(observed, exact, want):
    assert float(distance(np.array(observed), np.array(exact), 0.0, FORMATS["float32"])) == want


def test_the_cell_of_infinity_in_float64_uses_the_low_word():
    """The real edge is Omega + 2^970, which no float64 sum can hold."""
    fmt = FORMATS["float64"]
    exact = np.array(fmt.largest)
    got = [float(distance(np.array(INF), exact, low, fmt)) for low in (0.0, 2.0**969, -(2.0**969))]
    assert got == [2.0**970, 2.0**969, 3 * 2.0**969]
    assert float(distance(np.array(-INF), -exact, -(2.0**969), fmt)) == 2.0**969


@pytest.mark.parametrize(
    ("observed", "exact", "want"),
    [(1.5, 1.0, 64.0), (1.0, 1.0, 0.0), (INF, INF, 0.0), (INF, 1.0, INF), (NAN, NAN, 0.0), (NAN, 1.0, INF),
     (2.0**-133, 0.0, 1.0), (-INF, INF, INF), (0.0, -0.0, 0.0)],
)  # fmt: skip
def test_error_in_ulp_of_bfloat16(observed, exact, want):
    assert float(error_in_ulp(np.array(observed), np.array(exact), 0.0, FORMATS["bfloat16"])) == want


def test_error_in_ulp_sees_the_low_word():
    got = error_in_ulp(np.array([1.0]), np.array([1.0]), np.array([2.0**-54]), FORMATS["float64"])
    # At equal high words the distance is the low word's, a quarter of a gap.
    assert got.tolist() == [0.25]


@QUIET
@given(st.sampled_from(ALL), st.lists(st.integers(0, 2**64 - 1), max_size=12), st.booleans())
def test_json_holds_every_bit(dtype, patterns, two):
    kind = FORMATS[dtype].bits
    width = np.iinfo(kind).bits
    bits = np.array([p >> (64 - width) for p in patterns], dtype=kind)
    array = FloatArray(dtype, bits.reshape(2, -1) if two and bits.size % 2 == 0 else bits)
    back = FloatArray.from_json(array.to_json())
    assert (back.dtype, back.shape, back.sha256) == (dtype, array.shape, array.sha256)
    np.testing.assert_array_equal(back.bits, array.bits)
    assert back.same_bits(array)


def test_a_damaged_array_is_refused():
    data = FloatArray.of([1.0, 2.0], "float32").to_json()
    for key, value in (("bits", ["3f800000", "40000001"]), ("shape", [2, 1]), ("dtype", "float64")):
        with pytest.raises(UsageError, match="SHA-256 of an array does not match"):
            FloatArray.from_json({**data, key: value})
    short = FloatArray.of(np.zeros(5), "float32").to_json(full_up_to=4)
    assert "bits" not in short
    with pytest.raises(UsageError, match="too large to be stored in full"):
        FloatArray.from_json(short)


def test_same_bits_forgives_the_sign_of_zero_and_the_kind_of_nan_only():
    def bits(*patterns: int) -> FloatArray:
        return FloatArray("float16", np.array(patterns, dtype=np.uint16))

    assert bits(0x0000, 0x7E00).same_bits(bits(0x8000, 0xFE01))
    assert not bits(0x0000).same_bits(bits(0x0001))
    assert not bits(0x7C00).same_bits(bits(0x7E00))
    assert not bits(0x3C00).same_bits(FloatArray.of([1.0], "bfloat16"))


def test_values_are_read_only():
    array = FloatArray.of([[1.0, 2.0]], "bfloat16")
    with pytest.raises(ValueError, match="read-only"):
        array.values[0, 0] = 3.0
    assert FloatArray.of(3.0, "bfloat16").values.shape == ()


def test_hex_text_is_exact():
    assert hex_text([1.0, 5e-324]) == ["0x1.0000000000000p+0", "0x0.0000000000001p-1022"]
    assert hex_text(np.array([[-0.1, INF]])) == ["-0x1.999999999999ap-4", "inf"]


def test_names_of_dtypes():
    names = ("bf16", " FP16", "torch.float32", "double")
    assert [canonical_dtype(n) for n in names] == ["bfloat16", "float16", "float32", "float64"]
    with pytest.raises(UsageError, match="unknown dtype 'int8': choose from float64"):
        canonical_dtype("int8")
