"""Running error analysis: a number type (value, admissible error) that evaluates any generated formula.

Each operation rounds at the subject's unit roundoff u, and an operation of the formula stands for up to
ROUNDINGS roundings of the subject, so that a rearrangement of the same operations stays admitted. Sums carry
h u sum|terms| with h of the tier (bounds.roundings). Inputs may be seeded with an error of their own: for the
derivatives of layer norm x is seeded with h u (|x| + |mu|), which admits forms that never build x - mu
(x*rstd - mu*rstd, and sums of g x and of g), see `seed`.

Source: Higham, Accuracy and Stability, section 3.3 (running error analysis); first order in u except that
products and quotients keep the second-order term.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from lnverify.bounds import roundings
from lnverify.floats import Float64Array, Format
from lnverify.formulas.runtime import normal_cdf, normal_pdf

ROUNDINGS = 4.0  # per operation of the formula: a quotient as reciprocal and product, an FMA split in two, ...


class Running:
    """value +- error elementwise, float64 both; `context` holds u, t and the tier."""

    __slots__ = ("context", "error", "value")
    __array_ufunc__ = None

    def __init__(self, value: Any, error: Any, context: Context) -> None:
        """An array with its admissible error, both broadcast to one shape."""
        self.value: Float64Array = np.asarray(value, dtype=np.float64)
        self.error: Float64Array = np.broadcast_to(np.asarray(error, dtype=np.float64), self.value.shape)
        self.context = context

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return self.value.shape

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return self.value.ndim

    def __getitem__(self, key: Any) -> Running:
        return Running(self.value[key], self.error[key], self.context)

    def transpose(self, *axes: Any) -> Running:
        """As numpy.ndarray.transpose."""
        return Running(self.value.transpose(*axes), self.error.transpose(*axes), self.context)

    def reshape(self, *shape: Any) -> Running:
        """As numpy.ndarray.reshape."""
        return Running(self.value.reshape(*shape), self.error.reshape(*shape), self.context)

    def __neg__(self) -> Running:
        return Running(-self.value, self.error, self.context)

    def __add__(self, other: Any) -> Running:
        other = self.context.lift(other)
        with np.errstate(all="ignore"):
            error = self.error + other.error
            if self.context.longest:
                both = (self.value != 0) & (other.value != 0)
                share = self.context.longest * self.context.u * (np.abs(self.value) + np.abs(other.value))
                error = error + np.where(both, share, 0.0)
            return self.context.rounded(self.value + other.value, error)

    __radd__ = __add__

    def __sub__(self, other: Any) -> Running:
        return self + (-self.context.lift(other))

    def __rsub__(self, other: Any) -> Running:
        return self.context.lift(other) + (-self)

    def __mul__(self, other: Any) -> Running:
        other = self.context.lift(other)
        with np.errstate(all="ignore"):
            error = np.abs(self.value) * other.error + np.abs(other.value) * self.error + self.error * other.error
            product = self.value * other.value
        return self.context.rounded(product, error)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Running:
        other = self.context.lift(other)
        with np.errstate(all="ignore"):
            quotient = self.value / other.value
            room = np.abs(other.value) - other.error
            error = np.where(room > 0, (self.error + np.abs(quotient) * other.error) / room, np.inf)
        return self.context.rounded(quotient, error)

    def __rtruediv__(self, other: Any) -> Running:
        return self.context.lift(other) / self

    def __pow__(self, power: int) -> Running:
        if not isinstance(power, int):
            raise TypeError(f"only integer powers are supported, got {power!r}")
        if power < 0:
            return 1 / self**-power
        result = self.context.lift(np.ones_like(self.value))
        for _ in range(power):
            result = result * self
        return result

    def sqrt(self) -> Running:
        """sqrt(v) +- e/(sqrt(v) + sqrt(v - e)), where v - e > 0; infinite error else."""
        with np.errstate(all="ignore"):
            root = np.sqrt(self.value)
            room = self.value - self.error
            error = np.where(room > 0, self.error / (root + np.sqrt(np.maximum(room, 0.0))), np.inf)
        return self.context.rounded(root, error)

    def tanh(self) -> Running:
        """tanh(v) +- e (1 - tanh(m)^2) + ROUNDINGS u, m the smallest |w| on [v - e, v + e]: the steepest slope there.

        The last term is absolute: forms by exponentials, 2/(1 + exp(-2 v)) - 1 say, subtract numbers of the order of 1.
        """
        with np.errstate(all="ignore"):
            value = np.tanh(self.value)
            slope = 1 - np.tanh(np.maximum(np.abs(self.value) - self.error, 0.0)) ** 2
            return self.context.rounded(value, slope * self.error + ROUNDINGS * self.context.u)

    def exp(self) -> Running:
        """exp(v) +- exp(v) (exp(e) - 1 + ROUNDINGS u); library functions are good to two units in the last place."""
        with np.errstate(all="ignore"):
            value = np.exp(self.value)
            return self.context.rounded(value, value * (np.expm1(self.error) + ROUNDINGS * self.context.u))

    def normal_cdf(self) -> Running:
        """Phi(v) +- e phi(m) + 2 ROUNDINGS u, m the smallest |w| on [v - e, v + e]: the steepest slope there.

        The last term is absolute: (1 + erf(v/sqrt(2)))/2 subtracts numbers of the order of 1, and the erf of 7.1.26 in
        Abramowitz and Stegun (1964), off by 1.5e-7, is what vectorised float32 code computes.
        """
        with np.errstate(all="ignore"):
            near = np.maximum(np.abs(self.value) - self.error, 0.0)
            error = normal_pdf(near) * self.error + 2 * ROUNDINGS * self.context.u
            return self.context.rounded(normal_cdf(self.value), error)

    def normal_pdf(self) -> Running:
        """phi(v) +- e (|v| + e) phi(m) + ROUNDINGS u (1 + v^2) phi(v): |phi'(w)| = |w| phi(w), m as in normal_cdf.

        The last term is what an exponential of the rounded -v^2/2 loses.
        """
        with np.errstate(all="ignore"):
            size, value = np.abs(self.value), normal_pdf(self.value)
            slope = (size + self.error) * normal_pdf(np.maximum(size - self.error, 0.0))
            error = np.where(self.error > 0, slope * self.error, 0.0)
            return self.context.rounded(value, error + ROUNDINGS * self.context.u * (1 + size**2) * value)

    def step(self) -> Running:
        """1 where v is positive, else 0; +- 1 where v - e <= 0 <= v + e: a right algorithm may be on either side."""
        with np.errstate(all="ignore"):
            return Running(self.value > 0, np.where(np.abs(self.value) <= self.error, 1.0, 0.0), self.context)

    def sum(self, axis: int | tuple[int, ...] | None = None) -> Running:
        """Sum: the errors of the terms plus h u sum|terms|, h for the terms that are not exactly zero."""
        with np.errstate(all="ignore"):
            magnitude = np.abs(self.value) + self.error
            total = magnitude.sum(axis=axis)
            count = ((self.value != 0) | (self.error != 0)).sum(axis=axis)
            count = np.where(count > 1, np.maximum(count, self.context.longest), count)
            error = self.error.sum(axis=axis) + roundings(count, self.context.tier) * self.context.u * total
            self.context.note(np.abs(self.value).sum(axis=axis))
        return self.context.rounded(self.value.sum(axis=axis), error)


class Context:
    """Unit roundoff and smallest normal number of the format that the subject computes in, and the tier.

    longest: terms of the longest sum that a subject may make of several sums and additions of the formula; each of them
    is then taken for a part of such a sum. 0: they are summed as they stand. peak: the largest number since it was
    last set, where `longest` is given.
    """

    def __init__(self, compute: Format, tier: str = "det", longest: int = 0) -> None:
        """Take u and t of the format."""
        self.u, self.tiny, self.tier, self.longest, self.peak = compute.u, compute.tiny, tier, longest, 1.0

    def note(self, values: Any) -> None:
        """Keep the size of the largest of some numbers; a NaN is none."""
        if self.longest:
            self.peak = max(self.peak, float(np.fmax.reduce(np.abs(values), axis=None, initial=0.0)))

    def exact(self, values: Any) -> Running:
        """A number without error."""
        return Running(values, 0.0, self)

    def lift(self, value: Any) -> Running:
        """Pass a Running through, take anything else as exact."""
        return value if isinstance(value, Running) else self.exact(value)

    def rounded(self, value: Any, error: Any) -> Running:
        """Add the roundings of one operation: ROUNDINGS u |value| + t."""
        with np.errstate(all="ignore"):
            noise = ROUNDINGS * self.u * np.abs(value) + np.where(np.asarray(value) == 0, 0.0, self.tiny)
            total = np.asarray(error) + noise
            self.note(value)
            # inf - inf upstream: nothing is known about such an element
            return Running(value, np.where(np.isnan(total), np.inf, total), self)

    def seed(self, x: Float64Array, offset: Float64Array, mu: Float64Array, n: int) -> Running:
        """Deviations x from a pivot with the admitted error h u (|x + offset| + |mu|) of forms on raw data.

        x: (rows, n) deviations from the pivot; offset, mu: (rows,) pivot and mean, all in one unit.
        """
        h = float(roundings(n, self.tier))
        with np.errstate(all="ignore"):
            raw = np.abs(x + offset[:, None]) + np.abs(mu)[:, None]
        return Running(x, h * self.u * raw, self)
