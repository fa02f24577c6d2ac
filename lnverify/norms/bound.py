"""Bounds of y and of every gradient of another norm: running errors of the generated formulas, for any order of sums.

The formula and its derived reverse mode are evaluated in lnverify.running.Running, with u of the format that the
subject computes in. A sum of m terms carries (m + 1) u sum|terms| whatever its order, an operation four roundings.

x is seeded, where a mean is subtracted, with the error of algorithms that never build x - mu:

    e_i = (h + 4) u (|x_i| + |mu| + w),   w = (p^2 + 2 |p| sqrt(var + p^2)) / (2 mean|d|),   p = x_first - mu

h counts the longest sum of the case. The first two terms admit x r - mu r, sums of dy x and of dy apart (dweight as
(sum dy x - mu sum dy) r), and means and variances that are updated element by element (Chan, Golub, LeVeque 1983: n u
kappa). w admits one pass on data shifted by the first number, whose variance is off by (h + 4) u (var + p^2 + 2 |p|
sqrt(var + p^2)) there: a change e of the x_i changes var by 2 mean(|d| e) at least to first order. One pass on
unshifted data, E[x^2] - mu^2, is not admitted, for it loses what it need not lose.

Range. Every product that any arrangement of the formula forms of r (to the third power at most), x (twice), weight and
dy is at most lift = max(1, r)^3 max(1, |x|)^2 max(1, |weight|) max(1, |dy|), and a sum of m of them at most m lift.
Where m lift is beyond the largest finite number (or 2^900, where the oracle's own range ends) nothing is judged. A
product that underflows is off by at most t, the smallest normal number, flushed to zero or not, and its cofactors are
at most lift: m t lift is added.

In 16 bits u is that of the storage format unless the subject declares what it computes in: code written op by op, which
rounds every intermediate result to 16 bits, is right, and a bound for any subject has to admit it. For long rows it
then admits everything, and the case informs nobody.
"""

from __future__ import annotations

import copy
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.bounds import roundings
from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray, Format
from lnverify.norms.exact import KEYS, Exact, source
from lnverify.operation import operation
from lnverify.running import Context, Running

LARGEST = 2.0**900  # beyond, double-double products lose their low words


def due(case: Case, output: str) -> FloatArray:
    """The array whose shape and dtype an output has: its argument for a gradient, first or second; else the state that
    it replaces, or x. What is like an output (y) is its tangent (ty), and the derivative by its cotangent (d2dy)."""
    known = operation(case.operation)
    like = {form + name: name for name in known.outputs for form in ("", "t", "d2d")}
    if output not in like:
        return case.arrays[output.removeprefix("d2") if output.startswith("d2") else output[1:]]
    return case.arrays[known.cell.states[like[output]] if known.cell else "x"]


def shift_error(d: Float64Array, p: Float64Array, var: Float64Array, over: tuple[int, ...]) -> Float64Array:
    """w of the head of this file, for the deviations d; p: the first number less the mean."""
    with np.errstate(all="ignore"):
        spread = np.abs(d).mean(axis=over, keepdims=True)
        w = (p**2 + 2 * np.abs(p) * np.sqrt(var + p**2)) / (2 * spread)
        return np.where(spread > 0, w, 0.0)


def tangent_error(d: Float64Array, e: Float64Array, t: Float64Array, over: tuple[int, ...]) -> Float64Array:
    """The seed of a tangent t >= 0 in NormBounds.along, for the deviations d and their error e."""
    with np.errstate(all="ignore"):
        size = (np.abs(d) + e).sum(axis=over, keepdims=True)
        seed = np.where(size > 0, (e * t).sum(axis=over, keepdims=True) / size, 0.0)
    return np.broadcast_to(seed, d.shape)


class NormBounds:
    """Bounds of one case, evaluated when first asked for."""

    def __init__(self, exact: Exact, compute: Format) -> None:
        """compute: the format that the subject computes in."""
        self.exact, self.compute = exact, compute
        self.context = Context(compute)
        self.count = max(exact.view.n, exact.view.terms)

    def of(self, case: Case) -> NormBounds:
        """Those of a case that differs by tangents and by cotangents of gradients alone: all else is evaluated once."""
        found = copy.copy(self)
        found.exact = copy.copy(self.exact)
        found.exact.case = case
        for part in (found, found.exact):
            for name in ("forward_mode", "double", "joined"):
                vars(part).pop(name, None)
        return found

    def bound(self, output: str) -> Float64Array:
        """The bound of an output, in the formula's shape; infinite where nothing is judged."""
        result = self.running(output)
        out = FORMATS[due(self.exact.case, output).dtype]
        with np.errstate(all="ignore"):
            lift = self.lift(source(output))
            if output.endswith(("weight", "bias")):
                lift = lift.max(initial=1.0)
            room = self.count * lift <= min(self.compute.largest, LARGEST)
            small = self.count * self.compute.tiny * lift + out.tiny
            bound = result.error + self.compute.u * np.abs(self.exact.pair(output).hi) + small
            return np.where(room & ~np.isnan(bound), bound, np.inf)

    def running(self, output: str) -> Running:
        """The output with its running error, in the formula's shape."""
        found: Running = getattr(self, source(output))[KEYS[output]]
        return self.context.lift(found)

    def lift(self, what: str) -> Float64Array:
        """The largest product of each group (head of this file), with axes of one where it is constant.

        what: the derived program. A tangent takes the place of an x, a weight or the one of a cotangent; the double
        backward differentiates r^3 x^2 once more, by r^2 x^2 at most, and multiplies by a cotangent of a gradient.
        """
        exact = self.exact
        over = exact.view.over
        size = np.maximum(np.abs(exact.raw).max(axis=over, keepdims=True, initial=0.0), 1.0)
        root = np.maximum(exact.statistic("r"), 1.0)
        result = root ** {"forward": 1, "double": 5}.get(what, 3) * size ** (4 if what == "double" else 2)
        along = {"forward_mode": "t", "double": "v"}.get(what)
        factors = [[exact.parameter("weight")], exact.dys if what in ("backward", "double") else []]
        for arrays in (*factors, exact.along(along) if along else []):
            result = result * max(1.0, *(float(np.abs(array).max(initial=0.0)) for array in arrays), 1.0)
        return np.asarray(result)

    @cached_property
    def seeded(self) -> Running:
        """x with the error that the head of this file admits."""
        exact = self.exact
        x = np.asarray(exact.x.hi if exact.wide else exact.x)
        if not exact.operation.centred:
            return self.context.exact(x)
        over = exact.view.over
        mu, var = exact.statistic("mu"), exact.statistic("var")
        with np.errstate(all="ignore"):
            # x and mu are measured from the first number
            raw = np.abs(exact.raw) + np.abs(exact.pivot + mu) + shift_error(x - mu, mu, var, over)
            h = float(roundings(self.count, "det"))
            return Running(x, (h + 4) * self.compute.u * raw, self.context)

    @property
    def _given(self) -> list[Running]:
        exact = self.exact
        return exact.given(self.seeded, self.context.exact)

    @cached_property
    def forward(self) -> dict[str, Running]:
        """The formula."""
        return self._called("forward")

    @cached_property
    def backward(self) -> dict[str, Running]:
        """Its derived reverse mode."""
        return self._called("backward", *self.exact.dys)

    @cached_property
    def forward_mode(self) -> dict[str, Running]:
        """Its derived forward mode, along the case's tangents."""
        return self._called("forward_mode", *self.along("t"))

    @cached_property
    def double(self) -> dict[str, Running]:
        """The reverse mode of its reverse mode."""
        return self._called("double", *self.exact.dys, *self.along("v"))

    def along(self, prefix: str) -> list[Running]:
        """Tangents (t) or cotangents of the gradients (v); that of x is seeded where a mean is subtracted.

        The formula sums d t with t less its mean; since sum d = 0 an algorithm need not subtract that, and then loses
        sum e|t| by the error e of d. A seed c of t with c sum(|d| + e) = sum e|t| admits it.
        """
        t, *others = self.exact.along(prefix)
        error: Any = 0.0
        if self.exact.operation.centred:
            with np.errstate(all="ignore"):
                d = self.seeded.value - self.exact.statistic("mu")
            error = tangent_error(d, self.seeded.error, np.abs(t), self.exact.view.over)
        return [Running(t, error, self.context), *map(self.context.exact, others)]

    def _called(self, what: str, *more: Any, given: list[Running] | None = None) -> dict[str, Running]:
        given = [*(given or self._given), *map(self.context.lift, more)]
        with np.errstate(all="ignore"):
            return self.exact.program(what)(*given)
