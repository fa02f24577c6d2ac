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


@dataclass(frozen=True)
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
    st, n, compute, stored = exact.statistics, max(case.n, 1), precision.compute, precision.output
    quarter = compute.largest / 4
    with np.errstate(all="ignore"):
        e = st.exponent.astype(np.float64)
        x = np.abs(case.matrix("x"))
        reach = x.max(axis=1, initial=0.0)
        pivot = st.xhat[:, 0] if case.n else np.zeros(case.rows)
        log_deviation = np.log2(np.maximum(n * st.s * np.sqrt(st.var / st.s**2 + pivot**2), 0.0)) + e
        half_quarter = 0.5 * np.log2(quarter)
        excused = (log_deviation > half_quarter) | (x.sum(axis=1) > quarter)
        log_reach = np.log2(reach)
        grey = (log_reach + 0.5 * np.log2(n)) > half_quarter
        low = max(compute.tiny, 4 * case.eps / compute.largest)
        grey |= (reach > 0) & (2 * log_reach < np.log2(low))
        weights = np.abs(case.vector("weight")) if case.has("weight") else np.ones(case.n)
        beta = np.abs(case.vector("bias")).max(initial=0.0) if case.has("bias") else 0.0
        spread = np.ldexp(reach + np.abs(np.ldexp(st.mu, st.exponent)), -st.exponent) / st.s
        grey |= ~(weights.max(initial=0.0) * spread + beta <= quarter)
        grey |= (weights * np.abs(st.xhat)).max(axis=1, initial=0.0) > stored.largest
        log_s = np.log2(st.s) + e
        dy = np.abs(case.matrix("dy")) if case.has("dy") else np.zeros_like(x)
        g = dy * weights
        backward = _leaves(3 * log_s, compute.largest, compute.tiny)
        g_top = g.max(axis=1, initial=0.0)
        backward |= (n * g_top > quarter) | (g_top > stored.largest / 4)
        backward |= n * (g * x).max(axis=1, initial=0.0) > quarter
        gd = (g * np.abs(st.x - st.mu[:, None])).max(axis=1, initial=0.0)
        backward |= (np.log2(gd) + e - 3 * log_s + np.log2(n)) > np.log2(quarter)
        gx = (g * x).max(axis=1, initial=0.0)
        backward |= (np.log2(gx) + log_reach - 3 * log_s + np.log2(n)) > np.log2(quarter)
        backward |= 3 * (log_reach - log_s) > np.log2(quarter)
        column = bool((dy.sum(axis=0) * max(1.0, float(np.sqrt(n))) > quarter).any())
        fmt = stored if stored.precision <= 11 else compute
        others = [
            np.abs(a.values).max(initial=0.0) for name, a in case.arrays.items() if name[1:] in ("x", "weight", "bias")
        ]
        log_v = np.log2(max(1.0, *others)) if others else 0.0
        product = np.log2(np.maximum(g_top, 1)) + log_v + 2 * np.log2(np.maximum(reach, 1)) + np.log2(n)
        derivatives = product + np.maximum(-5 * log_s, 0) > np.log2(fmt.largest / 4)
        derivatives |= _leaves(5 * log_s, fmt.largest, fmt.tiny)
        finite = np.isfinite(x).all(axis=1)
        return Range(excused & finite, grey & finite, backward & finite, derivatives & finite, column)


def _leaves(log: Float64Array, largest: float, tiny: float) -> Rows:
    """Whether 2^log or 2^-log lies outside [t, Omega/4]."""
    found: Rows = np.abs(log) > min(np.log2(largest / 4), -np.log2(tiny))
    return found
