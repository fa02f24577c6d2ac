"""Floating-point formats, their rounding cells, and an error metric that is defined for every pair of values.

This file knows numbers and nothing else: no operation, no subject, no case. Theory in five lines. A format
with precision p (the hidden bit counted) has unit roundoff u = 2^-p. Between 2^e and 2^(e+1) its numbers are
2^(e-p+1) apart; below the smallest normal number t they are as far apart as just above it. The *rounding cell*
of a number is the set of reals that round to it (to nearest, ties to even): half a gap on either side, where
the gap towards zero is half as wide at a power of two. Higham, Accuracy and Stability of Numerical
Algorithms (2nd ed.), chapter 2; IEEE 754-2019, section 4.3.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from lnverify.errors import UsageError

Float64Array = npt.NDArray[np.float64]
BitsArray = npt.NDArray[Any]
_EXPONENT = np.int64(0x7FF0000000000000)  # the bits of a float64 that hold its exponent


@dataclass(frozen=True)
class Format:
    """A binary floating-point format: `precision` in bits (hidden bit counted), exponent range, storage width."""

    name: str
    precision: int
    max_exponent: int  # of the largest finite number, as in 1.xxx * 2^max_exponent
    bits: type[np.unsignedinteger[Any]]

    @property
    def u(self) -> float:
        """Unit roundoff, 2^-precision."""
        return 2.0**-self.precision

    @property
    def min_exponent(self) -> int:
        """Exponent of the smallest normal number."""
        return 1 - self.max_exponent

    @property
    def tiny(self) -> float:
        """Smallest normal number t."""
        return 2.0**self.min_exponent

    @cached_property
    def smallest(self) -> float:
        """Smallest subnormal number."""
        return float(np.ldexp(1.0, self.min_exponent - self.precision + 1))

    @cached_property
    def largest(self) -> float:
        """Largest finite number, Omega."""
        return float(np.ldexp(2.0 - 2.0 ** (1 - self.precision), self.max_exponent))

    @property
    def top(self) -> float:
        """Largest power of two, 2^max_exponent."""
        return 2.0**self.max_exponent


FORMATS: dict[str, Format] = {
    "float64": Format("float64", 53, 1023, np.uint64),
    "float32": Format("float32", 24, 127, np.uint32),
    "float16": Format("float16", 11, 15, np.uint16),
    "bfloat16": Format("bfloat16", 8, 127, np.uint16),
}
ALIASES = {
    "fp64": "float64", "f64": "float64", "double": "float64",
    "fp32": "float32", "f32": "float32", "float": "float32",
    "fp16": "float16", "f16": "float16", "half": "float16",
    "bf16": "bfloat16",
}  # fmt: skip


def canonical_dtype(name: str) -> str:
    """The framework's name of a dtype: 'bf16' gives 'bfloat16'. Raises UsageError for an unknown one."""
    lowered = name.strip().lower().removeprefix("torch.").removeprefix("numpy.")
    lowered = ALIASES.get(lowered, lowered)
    if lowered not in FORMATS:
        raise UsageError(f"unknown dtype {name!r}: choose from {', '.join(FORMATS)} (short: fp64, fp32, fp16, bf16).")
    return lowered


def _binade(values: Float64Array) -> Float64Array:
    """The power of two at or below each |value|: its bits without the mantissa; 0 for subnormals, inf for NaN."""
    power = np.empty(values.shape)
    np.bitwise_and(values.view(np.int64), _EXPONENT, out=power.view(np.int64))
    return power


def _confine(power: Float64Array, fmt: Format) -> Float64Array:
    """Powers of two moved into the range of the format, in place."""
    np.maximum(power, fmt.tiny, out=power)
    return np.minimum(power, fmt.top, out=power)


def quantum(values: npt.ArrayLike, fmt: Format) -> Float64Array:
    """Gap between |value| and the next larger number of the format (its ulp), as float64; inf and NaN give the
    gap below the largest finite number, so that the result is always finite and positive."""
    # By the bits, since this is called for every judged array, several times: a table's look-ups take twice as long.
    power = _confine(_binade(np.asarray(values, dtype=np.float64)), fmt)
    return np.multiply(power, 2.0 * fmt.u, out=power)


def scaled(values: Float64Array, exponent: npt.NDArray[Any]) -> Float64Array:
    """values * 2^exponent, rounded once, as np.ldexp gives it; the values themselves where no exponent is other than 0.

    A product with a power of two is the same number, and takes a tenth of the time.
    """
    if not exponent.any():
        return values
    if int(np.abs(exponent).max()) <= 1022:  # the power is a normal number
        return np.asarray(values * np.ldexp(1.0, exponent))
    return np.ldexp(values, exponent)


def round_values(values: npt.ArrayLike, dtype: str) -> Float64Array:
    """Each float64 value rounded once, to nearest even, to `dtype`; the result is exact in float64.

    Frameworks round float64 to bfloat16 by way of float32, twice: 1 + 2^-8 + 2^-40 becomes 1.0 there, where
    1.0078125 is right.
    """
    fmt = FORMATS[dtype]
    exact = np.asarray(values, dtype=np.float64)
    if dtype == "float64":
        return exact.copy()
    if dtype == "float32":
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            return exact.astype(np.float32).astype(np.float64)
    gap = quantum(exact, fmt)
    with np.errstate(invalid="ignore"):
        # Dividing by a power of two is exact, so rint makes the only rounding; each step keeps the sign of a zero.
        rounded = np.divide(exact, gap, out=np.empty(exact.shape))
        np.rint(rounded, out=rounded)
        np.multiply(rounded, gap, out=rounded)
        if (np.abs(rounded, out=gap) <= fmt.largest).all():
            return rounded
        rounded = np.where(gap > fmt.largest, np.copysign(np.inf, exact), rounded)
        return np.where(np.isfinite(exact), rounded, exact)


def encode(values: npt.ArrayLike, dtype: str) -> BitsArray:
    """Bit patterns of float64 values, rounded once to `dtype`."""
    # A conversion rounds once, to nearest even: float32 needs no rounding before it.
    rounded = np.asarray(values, dtype=np.float64) if dtype == "float32" else round_values(values, dtype)
    if dtype == "float64":
        return rounded.view(np.uint64)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        if dtype == "float16":
            return rounded.astype(np.float16).view(np.uint16)
        single = rounded.astype(np.float32).view(np.uint32)
    return single if dtype == "float32" else (single >> np.uint32(16)).astype(np.uint16)


def decode(bits: BitsArray, dtype: str) -> Float64Array:
    """Exact float64 values of bit patterns."""
    if dtype == "float64":
        return bits.view(np.float64)
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet one
        if dtype == "float32":
            return bits.view(np.float32).astype(np.float64)
        if dtype == "float16":
            return bits.view(np.float16).astype(np.float64)
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


@dataclass(frozen=True, eq=False)
class FloatArray:
    """An array held as bit patterns with a dtype name; `values` is its exact float64 view."""

    dtype: str
    bits: BitsArray

    @classmethod
    def of(cls, values: npt.ArrayLike, dtype: str) -> FloatArray:
        """Round float64 values once to `dtype`."""
        return cls(dtype, np.asarray(encode(values, dtype), order="C"))

    @cached_property
    def values(self) -> Float64Array:
        """Exact float64 values, read-only."""
        view = decode(np.ascontiguousarray(self.bits), self.dtype).reshape(self.bits.shape)
        view.flags.writeable = False
        return view

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return tuple(self.bits.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return int(self.bits.size)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of dtype, shape and bits, in hexadecimal."""
        header = f"{self.dtype}{self.shape}".encode()
        little = np.ascontiguousarray(self.bits).astype(self.bits.dtype.newbyteorder("<"))
        return hashlib.sha256(header + little.tobytes()).hexdigest()

    def same_bits(self, other: FloatArray) -> bool:
        """Equal element for element, where +0 equals -0 and any NaN equals any NaN."""
        if self.dtype != other.dtype or self.shape != other.shape:
            return False
        if np.array_equal(self.bits, other.bits):
            return True
        return bool(np.array_equal(self.values, other.values, equal_nan=True))

    def to_json(self, full_up_to: int | None = None) -> dict[str, Any]:
        """dtype, shape, SHA-256, and the bits in hexadecimal unless there are more than `full_up_to`."""
        out: dict[str, Any] = {"dtype": self.dtype, "shape": list(self.shape), "sha256": self.sha256}
        if full_up_to is None or self.size <= full_up_to:
            digits = FORMATS[self.dtype].bits().itemsize * 2
            out["bits"] = [format(int(b), f"0{digits}x") for b in self.bits.ravel()]
            if self.size <= 64:
                out["values"] = [repr(float(v)) for v in self.values.ravel()]
        return out

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> FloatArray:
        """Inverse of to_json. Raises UsageError if the bits are absent or do not match their SHA-256."""
        if "bits" not in data:
            raise UsageError("this array was too large to be stored in full: replay it with the target instead.")
        dtype = canonical_dtype(data["dtype"])
        bits = np.array([int(b, 16) for b in data["bits"]], dtype=FORMATS[dtype].bits).reshape(data["shape"])
        array = cls(dtype, bits)
        if array.sha256 != data["sha256"]:
            raise UsageError("the report is damaged: the SHA-256 of an array does not match its bits.")
        return array


def half_cell(values: Float64Array, fmt: Format, towards_zero: npt.NDArray[np.bool_]) -> Float64Array:
    """Half-width of the rounding cell of each number of the format, on the side towards or away from zero.

    At a power of two the gap towards zero is half as wide, except at the smallest normal number; zero's cell
    reaches half the smallest subnormal to either side.
    """
    half, power = _half_gaps(np.asarray(values, dtype=np.float64), fmt)
    half = np.array(np.broadcast_to(half, np.broadcast_shapes(half.shape, np.shape(towards_zero))))
    half[towards_zero & power & (np.abs(values) > fmt.tiny)] *= 0.5
    return half


def _half_gaps(values: Float64Array, fmt: Format) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Half the gap beyond each number, and whether it is 0 or a power of two."""
    power = _binade(values)
    exactly = np.asarray(power == np.abs(values))
    _confine(power, fmt)
    return np.multiply(power, fmt.u, out=power), exactly


def distance(observed: Float64Array, exact: Float64Array, low: Float64Array | float, fmt: Format) -> Float64Array:
    """Distance from the exact value `exact + low` to the rounding cell of the observed number; never NaN.

    0 says that the observed number is the exact value rounded to nearest. Rules: an observed NaN matches only
    an exact NaN; an observed infinity stands for every real beyond the largest finite number plus half its
    gap; an exact infinity is matched by the infinity of the same sign, else the distance is infinite.
    """
    observed, exact = np.asarray(observed), np.asarray(exact)
    if observed.shape != exact.shape:
        observed, exact = np.broadcast_arrays(observed, exact)
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.asarray((observed - exact) - low)
        half, power = _half_gaps(observed, fmt)
        at = np.flatnonzero(power)
        if at.size:  # these are few, hence looked at one by one
            number = observed.ravel()[at]
            # The exact value lies on the zero side of an observed number that overshoots it.
            towards_zero = np.signbit(error.ravel()[at]) == np.signbit(number)
            half.ravel()[at[towards_zero & (np.abs(number) > fmt.tiny)]] *= 0.5
        apart = np.abs(error, out=error)
        np.subtract(apart, half, out=apart)
        np.maximum(apart, 0.0, out=apart)
        if np.isfinite(apart).all():  # no NaN and no infinity among the three
            return apart
        # In this order: largest + half its gap is no float64 number where the format is float64.
        sign = np.copysign(1.0, observed)
        beyond = np.maximum((fmt.largest - sign * exact) - sign * low + fmt.top * fmt.u, 0.0)
        apart = np.where(np.isinf(observed), beyond, apart)
        apart = np.where(np.isinf(exact) & (observed == exact), 0.0, apart)
        apart = np.where(np.isnan(apart), np.inf, apart)  # a NaN in one of the three, or infinities that cancel
        return np.where(np.isnan(observed) & np.isnan(exact), 0.0, apart)


def error_in_ulp(observed: Float64Array, exact: Float64Array, low: Float64Array | float, fmt: Format) -> Float64Array:
    """|observed - exact| in gaps (ulp) of the format at the exact value; inf where only one is NaN; never NaN."""
    with np.errstate(invalid="ignore", over="ignore"):
        error = np.abs((observed - exact) - low) / quantum(exact, fmt)
    if np.isfinite(error).all():
        return np.asarray(error)
    error = np.where(observed == exact, np.where(np.isinf(exact), 0.0, error), error)
    both = np.isnan(observed) & np.isnan(exact)
    return np.where(both, 0.0, np.where(np.isnan(error), np.inf, error))


def hex_text(values: Sequence[float] | Float64Array) -> list[str]:
    """Exact hexadecimal text of each value, as float.hex writes it."""
    return [float(v).hex() for v in np.asarray(values, dtype=np.float64).ravel()]
