"""Range: which rows of a case lie where right algorithms may overflow or lose terms to underflow.

Nothing that happens in such rows is ever an error. Omega is the largest number of a format, t its smallest normal
number; `compute` is the format of the statistics, `stored` the format of y and of what op-by-op code stores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from lnverify.bounds import Precision
from lnverify.case import Case
from lnverify.floats import Float64Array
from lnverify.oracle import Exact

Rows = np.ndarray[Any, np.dtype[np.bool_]]


LARGE = 1 << 12  # elements, from which on it pays to look at their largest first


@dataclass(frozen=True, eq=False)
class Range:
    """(rows,) booleans each.

    excused: the deviations or the sum overflow in some reasonable algorithm: not judged at all.
    grey: squares or the affine product may overflow: an infinity or NaN there is RANGE, a finite value is judged.
    backward: rstd^3 or the sums of the backward leave the range in right code: gradients are not judged.
    derivatives: the same for the jvp and the double backward, where rstd^5 and products of four factors occur.
    column: sums over rows may overflow: one boolean, for dweight and dbias.
    """

    excused: Rows
    grey: Rows
    backward: Rows
    derivatives: Rows
    column: bool

    def __eq__(self, other: object) -> bool:
        """Whether every row is told the same."""
        mine, theirs = vars(self), vars(other)
        return all(np.array_equal(value, theirs[name]) for name, value in mine.items())


def row_range(case: Case, exact: Exact, precision: Precision) -> Range:
    """Classify the rows of a case.

    excused: n^2 s^2 (v + x0^2) > Omega/4 (Chan's merge multiplies counts) or sum|x| > Omega/4.
    grey: n max x^2 > Omega/4; or 0 < max x^2 < max(t, 4 eps/Omega) (eps rescaled with the row overflows); or
    |gamma| (|x| + |mu|)/s + |beta| > Omega/4 (the folded form); or max|gamma xhat| > Omega of the stored format.
    backward: s^3 or s^-3 outside [t, Omega/4]; or n max|g|, n max|g x| or s^-3 n max|g d| > Omega/4 (code that
    differentiates rsqrt loses the projection term there); or s^-3 n max|g x| max|x| > Omega/4 (the form by sums of g x
    and g); or max|g| > Omega/4 of the stored format; or (max|x|/s)^3 > Omega/4 (rows scaled down with eps).
    derivatives: s^5 or s^-5 outside the range, or n G V D^2 max(1, s^-5) > Omega/4, with G, V, D the largest of 1 and
    |g|, tangents and cotangents, |x|. In 16 bits Omega is that of the stored format (lnverify.derivative_bounds).
    """
    with np.errstate(all="ignore"):
        if case.size >= LARGE and (loose := _sizes_at_most(case, exact)) is not None:
            least = _classified(case, exact, precision, _Sizes.none(case.rows))
            if least == _classified(case, exact, precision, loose):
                return least  # the sizes themselves lie in between, and would tell the same
        return _classified(case, exact, precision, _sizes(case, exact))


@dataclass(frozen=True)
class _Sizes:
    """What the conditions want to know of the elements of each row, (rows,) each, in the units of `Statistics`.

    total: sum|x|; weighted: max|gamma xhat|; g: max|g|; gx: max|g x|; gd: max|g d|; column: sums of |dy|
    over the rows, of any number of columns. The larger any of these is, the more rows lie near the ends of the range.
    """

    total: Float64Array
    weighted: Float64Array
    g: Float64Array
    gx: Float64Array
    gd: Float64Array
    column: Float64Array

    @classmethod
    def none(cls, rows: int) -> _Sizes:
        """Nothing but zeros."""
        zeros = np.zeros(rows)
        return cls(zeros, zeros, zeros, zeros, zeros, np.zeros(1))


def _weights(case: Case) -> Float64Array:
    return np.abs(case.vector("weight")) if case.has("weight") else np.ones(case.n)


def _sizes(case: Case, exact: Exact) -> _Sizes:
    """The sizes, of every element."""
    st, weights = exact.statistics, _weights(case)
    x = np.abs(case.matrix("x"))
    dy = np.abs(case.matrix("dy")) if case.has("dy") else np.zeros_like(x)
    g = dy * weights
    return _Sizes(
        x.sum(axis=1),
        (weights * np.abs(st.xhat)).max(axis=1, initial=0.0),
        g.max(axis=1, initial=0.0),
        (g * x).max(axis=1, initial=0.0),
        (g * np.abs(st.x - st.mu[:, None])).max(axis=1, initial=0.0),
        dy.sum(axis=0),
    )


def _sizes_at_most(case: Case, exact: Exact) -> _Sizes | None:
    """What the sizes cannot exceed by the largest elements alone; None where dy or the weight is not finite.

    A factor of 4 is far more than roundings make.
    """
    st, reach, dy = exact.statistics, exact.reach, case.matrix("dy") if case.has("dy") else np.zeros((1, 1))
    top, weight = max(float(dy.max()), -float(dy.min())), float(_weights(case).max())
    if not np.isfinite(top * weight):
        return None
    scaled_reach = np.ldexp(reach, -st.exponent) + np.abs(st.mu)
    g = np.full(case.rows, 4 * top * weight)
    return _Sizes(
        4 * case.n * reach, 4 * weight * scaled_reach / st.s, g, g * reach, g * scaled_reach,
        np.array([4 * case.rows * top]),
    )  # fmt: skip


def _classified(case: Case, exact: Exact, precision: Precision, sizes: _Sizes) -> Range:
    """The classes of `row_range`."""
    st, n, compute, stored = exact.statistics, max(case.n, 1), precision.compute, precision.output
    quarter = compute.largest / 4
    e = st.exponent.astype(np.float64)
    reach = exact.reach
    pivot = st.xhat[:, 0] if case.n else np.zeros(case.rows)
    log_deviation = np.log2(np.maximum(n * st.s * np.sqrt(st.var / st.s**2 + pivot**2), 0.0)) + e
    half_quarter = 0.5 * np.log2(quarter)
    excused = (log_deviation > half_quarter) | (sizes.total > quarter)
    log_reach = np.log2(reach)
    grey = (log_reach + 0.5 * np.log2(n)) > half_quarter
    low = max(compute.tiny, 4 * case.eps / compute.largest)
    grey |= (reach > 0) & (2 * log_reach < np.log2(low))
    beta = np.abs(case.vector("bias")).max(initial=0.0) if case.has("bias") else 0.0
    spread = np.ldexp(reach + np.abs(np.ldexp(st.mu, st.exponent)), -st.exponent) / st.s
    grey |= ~(_weights(case).max(initial=0.0) * spread + beta <= quarter)
    grey |= sizes.weighted > stored.largest
    log_s = np.log2(st.s) + e
    backward = _leaves(3 * log_s, compute.largest, compute.tiny)
    backward |= (n * sizes.g > quarter) | (sizes.g > stored.largest / 4)
    backward |= n * sizes.gx > quarter
    backward |= (np.log2(sizes.gd) + e - 3 * log_s + np.log2(n)) > np.log2(quarter)
    backward |= (np.log2(sizes.gx) + log_reach - 3 * log_s + np.log2(n)) > np.log2(quarter)
    backward |= 3 * (log_reach - log_s) > np.log2(quarter)
    column = bool((sizes.column * max(1.0, float(np.sqrt(n))) > quarter).any())
    fmt = stored if stored.precision <= 11 else compute
    others = [
        np.abs(a.values).max(initial=0.0) for name, a in case.arrays.items() if name[1:] in ("x", "weight", "bias")
    ]
    log_v = np.log2(max(1.0, *others)) if others else 0.0
    product = np.log2(np.maximum(sizes.g, 1)) + log_v + 2 * np.log2(np.maximum(reach, 1)) + np.log2(n)
    derivatives = product + np.maximum(-5 * log_s, 0) > np.log2(fmt.largest / 4)
    derivatives |= _leaves(5 * log_s, fmt.largest, fmt.tiny)
    finite = np.isfinite(reach)
    return Range(excused & finite, grey & finite, backward & finite, derivatives & finite, column)


def _leaves(log: Float64Array, largest: float, tiny: float) -> Rows:
    """Whether 2^log or 2^-log lies outside [t, Omega/4]."""
    found: Rows = np.abs(log) > min(np.log2(largest / 4), -np.log2(tiny))
    return found
