"""Closed-form a-priori bounds on what any reasonable layer norm may deviate, forward and backward.

Notation (per row): u unit roundoff and t smallest normal number of the format that the subject computes in
(float64 for float64, else float32 unless declared); mu, var, s = sqrt(var + eps), xhat exact; v = var/s^2;
kappa = rms(x)/s; h the number of roundings that a sum may meet. All bounds are first order in u.

Tiers are values of h in one and the same formula (Higham, Accuracy and Stability, chapter 4):
  det   h = n + 1: holds for every order of summation; the only tier that decides.
  pair  h = ceil(log2 n) + 1: what pairwise summation attains; reported, never decides alone, since it
        accuses right code that sums serially or by Welford's update.
A sum over values of which m are not zero has h with m in the place of n: adding zero is exact in every order.

Variance: Chan, Golub, LeVeque, "Algorithms for Computing the Sample Variance" (1983): condition number
sqrt(1 + mu^2/var); two-pass n u + n^2 u^2 kappa^2, updating n u kappa, one-pass on data shifted by x[0].
Not admitted, as poor conditioning of the algorithm's own making: one pass on unshifted data; a shift by
another element that is an outlier; dgamma as the difference of sum dy x rstd and sum dy mu rstd.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, Format
from lnverify.oracle import Exact

TIERS = ("det", "pair")


def roundings(terms: Float64Array | float, tier: str) -> Float64Array:
    """h for sums of `terms` values that are not zero: terms + 1 (det), ceil(log2 terms) + 1 (pair); 1 for one.

    det: |error| <= (terms - 1) u sum|x| in any order, plus one rounding of each term, plus the division.
    """
    count = np.asarray(terms, dtype=np.float64)
    if tier == "det":
        return np.where(count <= 1, 1.0, count + 1.0)
    return np.where(count <= 1, 1.0, np.ceil(np.log2(np.maximum(count, 1.0))) + 1.0)


@dataclass(frozen=True)
class Precision:
    """What a subject computes in and returns: formats of the statistics and of the output.

    backward_from: 'output' where the backward rebuilds xhat = (y - beta)/gamma from the rounded y.
    """

    compute: Format
    output: Format
    backward_from: str = "input"

    @classmethod
    def of(cls, dtype: str, compute: str | None = None, backward_from: str = "input") -> Precision:
        """float64 computes in itself, everything narrower in float32, unless declared otherwise."""
        default = "float64" if dtype == "float64" else "float32"
        return cls(FORMATS[compute or default], FORMATS[dtype], backward_from)


class Bounds:
    """Bounds of one case in one tier; everything per element, evaluated when first asked for.

    points: admit the rounding points of module code written op by op in 16 bits with float32 statistics:
    xhat and weight * xhat (and g = weight * dy in the backward) rounded to the output's format on the way.
    """

    def __init__(self, case: Case, exact: Exact, precision: Precision, tier: str = "det", points: bool = False):
        """Hold the exact statistics; nothing is evaluated yet."""
        self.case, self.exact, self.precision, self.tier, self.points = case, exact, precision, tier, points
        self.h = float(roundings(case.n, tier))
        n = case.n
        self.gamma = case.vector("weight") if case.has("weight") else np.ones(n)
        self.beta = case.vector("bias") if case.has("bias") else np.zeros(n)

    # Units: `exact.statistics` is scaled by 2^-E per row, so t (which has the unit of x) is scaled with it.

    @cached_property
    def _tiny(self) -> Float64Array:
        with np.errstate(all="ignore"):
            return np.ldexp(self.precision.compute.tiny, -self.exact.statistics.exponent)

    @cached_property
    def mean_error(self) -> Float64Array:
        """Error of the mean in units of s, (rows,):
        em = u (h max(mean|x|, mean|x - x0|) + 2|mu|)/s + 2t/s."""
        st, u = self.exact.statistics, self.precision.compute.u
        with np.errstate(all="ignore"):
            plain = np.abs(st.x).mean(axis=1)
            shifted = np.abs(st.x - st.x0[:, None]).mean(axis=1)
            return np.asarray((u * (self.h * np.maximum(plain, shifted) + 2 * np.abs(st.mu)) + 2 * self._tiny) / st.s)

    @cached_property
    def scale_error(self) -> Float64Array:
        """Relative error of 1/s, (rows,).

        q  = v + x0^2 + 2 |x0| sqrt(v + x0^2) with x0 here xhat at the pivot: one pass on data shifted by x[0]
        e1 = h u kappa sqrt(v) + em^2/2 + (h + 4) u q/2 + t/(2 s^2): half the relative error of s^2 (Welford;
             two-pass; shifted; underflow)
        es = max(1/sqrt(max(1 - 2 e1, (eps/s^2)(1 - 4u))) - 1, 1 - 1/sqrt(1 + 2 e1)) + 6u  (rsqrt of 2 ulp)
        The inner max holds since every reasonable variance is computed not negative; it keeps the bound finite
        on constant rows.
        """
        st, u, h, em = self.exact.statistics, self.precision.compute.u, self.h, self.mean_error
        with np.errstate(all="ignore"):
            v = st.var / st.s**2
            pivot = np.abs(st.xhat[:, 0])
            q = v + pivot**2 + 2 * pivot * np.sqrt(v + pivot**2)
            kappa = np.sqrt((st.x**2).mean(axis=1)) / st.s
            underflow = np.ldexp(self._tiny, -st.exponent) / (2 * st.s**2)
            e1 = h * u * kappa * np.sqrt(v) + em**2 / 2 + (h + 4) * u * q / 2 + underflow
            floor = st.eps / st.s**2 * (1 - 4 * u)
            upper = 1 / np.sqrt(np.maximum(1 - 2 * e1, floor)) - 1
            lower = 1 - 1 / np.sqrt(1 + 2 * e1)
            return np.asarray(np.maximum(upper, lower) + 6 * u)

    @cached_property
    def _reach(self) -> Float64Array:
        """k_i = (|x_i| + |mu|)/s, (rows, n)."""
        st = self.exact.statistics
        with np.errstate(all="ignore"):
            return (np.abs(st.x) + np.abs(st.mu)[:, None]) / st.s[:, None]

    @cached_property
    def xhat_error(self) -> Float64Array:
        """a_i, the error of xhat_i before gamma, (rows, n):
        (em + 2u(|x_i| + |mu|)/s)(1 + es) + |xhat_i|(es + 3u); the 2u term admits x*rstd + (-mu*rstd).
        With backward_from='output' also u_out(|y_i| + |beta_i|)/|gamma_i|."""
        st, u, em, es = self.exact.statistics, self.precision.compute.u, self.mean_error, self.scale_error
        with np.errstate(all="ignore"):
            return (em[:, None] + 2 * u * self._reach) * (1 + es[:, None]) + np.abs(st.xhat) * (es[:, None] + 3 * u)

    @cached_property
    def backward_xhat_error(self) -> Float64Array:
        """xhat_error, where the backward rebuilds xhat from the output with the rounding of that."""
        if self.precision.backward_from != "output":
            return self.xhat_error
        y = self.exact.pair("y").hi
        with np.errstate(all="ignore"):
            rebuilt = self.precision.output.u * (np.abs(y) + np.abs(self.beta)) / np.abs(self.gamma)
        return self.xhat_error + rebuilt

    @cached_property
    def y(self) -> Float64Array:
        """B_i = |gamma_i| a_i + 2u|gamma_i xhat_i| + 2u|beta_i| + t(2 + |gamma_i| + |xhat_i|) + t_out, and
        u|y_i| more if the output is narrower than the computation, (rows, n).

        2u|beta| admits the folded form x*(rstd*gamma) + (beta - mu*rstd*gamma); the t terms admit flush to
        zero. Rounding points add u_out |gamma xhat| each, two of them.
        """
        compute, out, xhat = self.precision.compute, self.precision.output, np.abs(self.exact.statistics.xhat)
        gamma, beta = np.abs(self.gamma), np.abs(self.beta)
        with np.errstate(all="ignore"):
            scaled = gamma * xhat
            bound = gamma * self.xhat_error + 2 * compute.u * (scaled + beta)
            bound += compute.tiny * (2 + gamma + xhat) + out.tiny
            if out.precision < compute.precision:
                bound += compute.u * np.abs(self.exact.pair("y").hi)
            if self.points:
                bound += 2 * out.u * (1 + out.u) * scaled + out.tiny * (1 + gamma)
            return np.asarray(bound)

    @cached_property
    def mean(self) -> Float64Array:
        """Bound on a returned mean, (rows,): em s, in the unit of x."""
        st = self.exact.statistics
        with np.errstate(all="ignore"):
            return np.ldexp(self.mean_error * st.s, st.exponent) + self.precision.compute.tiny

    @cached_property
    def rstd(self) -> Float64Array:
        """Bound on a returned 1/s, (rows,): es/s."""
        st = self.exact.statistics
        with np.errstate(all="ignore"):
            return np.ldexp(self.scale_error / st.s, -st.exponent) + self.precision.compute.tiny

    @cached_property
    def dx(self) -> Float64Array:
        """D_i, (rows, n), with g = gamma dy, c1 = mean g, c2 = mean(g xhat), k_i = (|x_i| + |mu|)/s:

        d1  = (h_g + 1) u mean|g|
        d2  = (h_g + 3) u (mean|g xhat| + mean(|g| k)) + mean(|g| a)
        D_i = [2u|g_i| + d1 + (|xhat_i| + a_i) d2 + |c2|(a_i + 3u k_i) + 2u(|c1| + |xhat_i c2|)]/s (1 + es)
              + (es + 2u)|dx_i| + t(1 + 1/s) + (t/s)(|gamma_i| + mean|gamma| + |xhat_i| mean|gamma xhat|) + t_out
        The pivot x_0 of data shifted by it, differentiated through, collects the errors of its row:
        D_0 += sum_i D_i + h u sum|dx_i|. h_g counts the terms g that are not zero. The k term admits the form by sums
        of g x and g. Rounding points at g and at xhat add
        u_out(|g_i| + mean|g| + |xhat_i| (2 mean|g xhat| + |c2|))/s; without a weight g is dy, which is not rounded:
        u_out |xhat_i| (mean|g xhat| + |c2|)/s.
        """
        st, compute, out = self.exact.statistics, self.precision.compute, self.precision.output
        u = compute.u
        a, es, xhat = self.backward_xhat_error, self.scale_error[:, None], np.abs(st.xhat)
        gamma = np.abs(self.gamma)
        with np.errstate(all="ignore"):
            signed = self.gamma * self.case.matrix("dy")
            g = np.abs(signed)
            hg = roundings((g != 0).sum(axis=1), self.tier)[:, None]
            k = self._reach

            def mean(values: Float64Array) -> Float64Array:
                return values.mean(axis=1, keepdims=True)

            c1, c2 = np.abs(mean(signed)), np.abs(mean(signed * st.xhat))
            mean_g, mean_gx = mean(g), mean(g * xhat)
            d1 = (hg + 1) * u * mean_g
            d2 = (hg + 3) * u * (mean_gx + mean(g * k)) + mean(g * a)
            bracket = 2 * u * g + d1 + (xhat + a) * d2 + c2 * (a + 3 * u * k) + 2 * u * (c1 + xhat * c2)
            if self.points:
                # half the smallest subnormal more for each rounded number
                weighted = self.case.has("weight")
                rounded = g + mean_g + xhat * (2 * mean_gx + c2) if weighted else xhat * (mean_gx + c2)
                bracket = bracket + out.u * rounded + out.smallest * (2 + xhat)
            s = st.s[:, None]
            scaled = bracket / s * (1 + es)
            scaled += compute.tiny / s * (gamma + mean(np.broadcast_to(gamma, xhat.shape)) + xhat * mean(gamma * xhat))
            exact = np.abs(self.exact.pair("dx").hi)
            bound = np.ldexp(scaled, -st.exponent[:, None]) + (es + 2 * u) * exact
            bound += compute.tiny * (1 + np.ldexp(1 / s, -st.exponent[:, None])) + out.tiny
            if out.precision < compute.precision:
                bound += u * exact
            h = roundings(self.case.n, self.tier)
            bound[:, 0] += bound.sum(axis=1) + h * u * exact.sum(axis=1)
            return np.asarray(bound)

    @cached_property
    def dweight(self) -> Float64Array:
        """(h_j + 2) u sum_b|dy xhat| + sum_b |dy| a_bj (1 + (h_j + 2) u) + t, (n,); h_j counts the rows where
        dy is not zero. Two rounding points add 2 u_out sum_b|dy xhat|, and half the smallest subnormal each."""
        compute, out = self.precision.compute, FORMATS[self.case.arrays["weight"].dtype]
        dy, xhat = np.abs(self.case.matrix("dy")), np.abs(self.exact.statistics.xhat)
        with np.errstate(all="ignore"):
            count = (dy != 0).sum(axis=0)
            h = roundings(count, self.tier)
            total = np.einsum("bi,bi->i", dy, xhat)
            carried = np.where(dy == 0, 0.0, dy * self.backward_xhat_error).sum(axis=0)
            bound = (h + 2) * compute.u * total + carried * (1 + (h + 2) * compute.u)
            # flush to zero may lose t in each product and in each partial sum
            bound += compute.tiny * (1 + 2 * count) + out.tiny
            if out.precision < compute.precision:
                bound += compute.u * np.abs(self.exact.pair("dweight").hi)
            if self.points:
                stored = self.precision.output
                bound += 2 * stored.u * total + stored.smallest * (dy + (dy != 0)).sum(axis=0)
            return np.asarray(bound)

    @cached_property
    def dbias(self) -> Float64Array:
        """h_j u sum_b|dy|, (n,), with the flush-to-zero and double-rounding terms of dweight."""
        compute, out = self.precision.compute, FORMATS[self.case.arrays["bias"].dtype]
        dy = np.abs(self.case.matrix("dy"))
        with np.errstate(all="ignore"):
            count = (dy != 0).sum(axis=0)
            bound = roundings(count, self.tier) * compute.u * dy.sum(axis=0) + compute.tiny * (1 + count) + out.tiny
            if out.precision < compute.precision:
                bound += compute.u * np.abs(self.exact.pair("dbias").hi)
            return np.asarray(bound)

    def of(self, output: str) -> Float64Array:
        """The bound of y, dx, dweight, dbias, mean or rstd. Raises AttributeError for another output."""
        bound: Float64Array = getattr(self, output)
        return bound
