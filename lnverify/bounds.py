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
from lnverify.floats import FORMATS, Float64Array, Format, scaled
from lnverify.oracle import Exact
from lnverify.row_blocks import row_blocks

TIERS = ("det", "pair")


def roundings(terms: Float64Array | float, tier: str) -> Float64Array:
    """h for sums of `terms` values that are not zero: terms + 1 (det), ceil(log2 terms) + 1 (pair); 1 for one.

    det: |error| <= (terms - 1) u sum|x| in any order, plus one rounding of each term, plus the division.
    """
    count = np.asarray(terms, dtype=np.float64)
    if tier == "det":
        return np.where(count <= 1, 1.0, count + 1.0)
    return np.where(count <= 1, 1.0, np.ceil(np.log2(np.maximum(count, 1.0))) + 1.0)


def _row_means(values: Float64Array) -> Float64Array:
    """Means of the rows, (rows, 1), as numpy.mean has them, which takes longer than the sums where rows are few."""
    return np.add.reduce(values, axis=1, keepdims=True) / np.float64(values.shape[1])


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
    plain: the bounds of the same case and tier without rounding points, where there are: these say nothing of the
    errors before them, which are taken over.
    """

    def __init__(
        self,
        case: Case,
        exact: Exact,
        precision: Precision,
        tier: str = "det",
        points: bool = False,
        plain: Bounds | None = None,
    ):
        """Hold the exact statistics; nothing is evaluated yet."""
        self.case, self.exact, self.precision, self.tier, self.points = case, exact, precision, tier, points
        self.plain = plain
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
        if self.plain is not None:
            return self.plain.mean_error
        st, u = self.exact.statistics, self.precision.compute.u
        with np.errstate(all="ignore"):
            return np.asarray((u * (self.h * st.size + 2 * np.abs(st.mu)) + 2 * self._tiny) / st.s)

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
        if self.plain is not None:
            return self.plain.scale_error
        st, u, h, em = self.exact.statistics, self.precision.compute.u, self.h, self.mean_error
        with np.errstate(all="ignore"):
            v = st.var / st.s**2
            pivot = np.abs(st.xhat[:, 0])
            q = v + pivot**2 + 2 * pivot * np.sqrt(v + pivot**2)
            kappa = st.root_mean_square / st.s
            underflow = np.ldexp(self._tiny, -st.exponent) / (2 * st.s**2)
            e1 = h * u * kappa * np.sqrt(v) + em**2 / 2 + (h + 4) * u * q / 2 + underflow
            floor = st.eps / st.s**2 * (1 - 4 * u)
            upper = 1 / np.sqrt(np.maximum(1 - 2 * e1, floor)) - 1
            lower = 1 - 1 / np.sqrt(1 + 2 * e1)
            return np.asarray(np.maximum(upper, lower) + 6 * u)

    @cached_property
    def xhat_error(self) -> Float64Array:
        """a_i, the error of xhat_i before gamma, (rows, n):
        (em + 2u(|x_i| + |mu|)/s)(1 + es) + |xhat_i|(es + 3u); the 2u term admits x*rstd + (-mu*rstd).
        With backward_from='output' also u_out(|y_i| + |beta_i|)/|gamma_i|."""
        if self.plain is not None:
            return self.plain.xhat_error
        st, u, em, es = self.exact.statistics, self.precision.compute.u, self.mean_error, self.scale_error
        error = np.empty(st.xhat.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(error.shape):
                here = np.multiply(2 * u, st.reach[rows], out=error[rows])
                here += em[rows, None]
                here *= 1 + es[rows, None]
                xhat = np.abs(st.xhat[rows])
                xhat *= es[rows, None] + 3 * u
                here += xhat
        return error

    @cached_property
    def backward_xhat_error(self) -> Float64Array:
        """xhat_error, where the backward rebuilds xhat from the output with the rounding of that."""
        if self.plain is not None:
            return self.plain.backward_xhat_error
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
        compute, out, xhats = self.precision.compute, self.precision.output, self.exact.statistics.xhat
        gamma, beta = np.abs(self.gamma), np.abs(self.beta)
        exact = self.exact.pair("y").hi if out.precision < compute.precision else None
        bound = np.empty(xhats.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(bound.shape):
                xhat = np.abs(xhats[rows])
                weighted = gamma * xhat
                here = np.add(weighted, beta, out=bound[rows])
                here *= 2 * compute.u
                here += gamma * self.xhat_error[rows]
                flushed = np.add(2 + gamma, xhat, out=xhat)
                flushed *= compute.tiny
                flushed += out.tiny
                here += flushed
                if exact is not None:
                    doubly = np.abs(exact[rows], out=flushed)
                    doubly *= compute.u
                    here += doubly
                if self.points:
                    weighted *= 2 * out.u * (1 + out.u)
                    weighted += out.tiny * (1 + gamma)
                    here += weighted
        return bound

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
        bound = np.empty(self.exact.statistics.xhat.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(bound.shape):
                self._dx(rows, bound[rows])
        return bound

    def _dx(self, rows: slice, bound: Float64Array) -> None:
        """`dx` of some rows."""
        st, compute, out = self.exact.statistics, self.precision.compute, self.precision.output
        u, gamma = compute.u, np.abs(self.gamma)
        a, k, xhat = self.backward_xhat_error[rows], st.reach[rows], np.abs(st.xhat[rows])
        es, s, exponent = self.scale_error[rows, None], st.s[rows, None], -st.exponent[rows, None]
        signed = self.gamma * self.case.matrix("dy")[rows]
        g = np.abs(signed)
        filled = g != 0
        hg = self.h if filled.all() else roundings(filled.sum(axis=1), self.tier)[:, None]
        part = np.empty(bound.shape)

        def mean(left: Float64Array, right: Float64Array) -> Float64Array:
            return _row_means(np.multiply(left, right, out=part))

        c1, c2 = np.abs(_row_means(signed)), np.abs(mean(signed, st.xhat[rows]))
        mean_g, mean_gx = _row_means(g), mean(g, xhat)
        d1 = (hg + 1) * u * mean_g
        d2 = (hg + 3) * u * (mean_gx + mean(g, k)) + mean(g, a)
        # the terms one by one, in the order of the formula, into memory that is there
        np.multiply(2 * u, g, out=bound)
        bound += d1
        bound += np.multiply(np.add(xhat, a, out=part), d2, out=part)
        bound += np.multiply(c2, np.add(a, np.multiply(3 * u, k, out=part), out=part), out=part)
        bound += np.multiply(2 * u, np.add(c1, np.multiply(xhat, c2, out=part), out=part), out=part)
        if self.points:
            # half the smallest subnormal more for each rounded number
            weighted = self.case.has("weight")
            rounded = g + mean_g + xhat * (2 * mean_gx + c2) if weighted else xhat * (mean_gx + c2)
            bound += np.multiply(out.u, rounded, out=rounded)
            bound += np.multiply(out.smallest, np.add(2, xhat, out=part), out=part)
        bound /= s
        bound *= 1 + es
        lost = np.multiply(xhat, mean(gamma, xhat), out=part)
        lost += gamma + gamma.mean()
        bound += np.multiply(compute.tiny / s, lost, out=lost)
        if exponent.any():
            bound[...] = scaled(bound, exponent)
        exact = np.abs(self.exact.pair("dx").hi[rows])
        bound += np.multiply(es + 2 * u, exact, out=part)
        bound += compute.tiny * (1 + scaled(1 / s, exponent)) + out.tiny
        if out.precision < compute.precision:
            bound += np.multiply(u, exact, out=part)
        h = roundings(self.case.n, self.tier)
        bound[:, 0] += bound.sum(axis=1) + h * u * exact.sum(axis=1)

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
