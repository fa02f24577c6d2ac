"""Recurrent cells: exact results and bounds of one step, from the subject's own previous state.

The formula takes a = U x + V h + c with c = 0. Its value is exact; in the bound c carries, beside what each product and
sum of the formula may lose,

    (K + H + 1) u (sum|U x| + sum|V h|)                 one sum over inputs and units together, in any order
    (n + 4) u (|a| + |mu| + w)                          what lnverify.norms.bound admits of algorithms on raw a

for K inputs and H units, n the longest sum of the case. A bound that is chained through time grows without end, since
each step multiplies it by |V| |weight|/sigma; so each step is judged from the state that the subject itself returned.

Range: as in lnverify.norms.bound, with the largest |U|, |V|, |x|, |h| and sum|U x| + sum|V h| among the factors.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from lnverify.bounds import roundings
from lnverify.floats import Float64Array, Format
from lnverify.formulas import cells
from lnverify.norms.bound import NormBounds, shift_error
from lnverify.norms.exact import Exact
from lnverify.running import Running


class CellExact(Exact):
    """Exact results of one step."""

    module: Any = cells

    def parameter(self, name: str) -> Float64Array:
        """h, weight_ih, weight_hh; weight and bias, 1 and 0 where absent."""
        units = self.case.normalized_shape
        if not self.case.has(name):
            return np.ones(units) if name == "weight" else np.zeros(units)
        return self.case.arrays[name].values

    @property
    def parameters(self) -> list[Float64Array]:
        """All but x and eps, in the order of the formula; c is zero."""
        names = (*self.operation.states, *self.operation.parameters)
        return [*(self.parameter(name) for name in names), np.zeros(self.case.arrays["h"].shape)]

    @property
    def dy(self) -> Float64Array:
        """The cotangent of the new state."""
        return self.case.arrays["dy"].values

    def statistic(self, name: str) -> Float64Array:
        """mu, var or r as float64, one for each row."""
        value = self.forward[name]
        return np.asarray(value.hi if self.wide else value, dtype=np.float64)[:, None]

    @cached_property
    def magnitude(self) -> Float64Array:
        """sum|U x| + sum|V h|, of the shape of the state."""
        x, h, U, V = (np.abs(v) for v in (self.raw, *self.parameters[:3]))
        with np.errstate(all="ignore"):
            return np.asarray(x @ U.T + h @ V.T)


class CellBounds(NormBounds):
    """Bounds of one step."""

    def __init__(self, exact: CellExact, compute: Format) -> None:
        """compute: the format that the subject computes in."""
        super().__init__(exact, compute)
        self.cell = exact
        rows, inputs = exact.raw.shape
        self.count = max(inputs + exact.case.n, rows)

    def lift(self, backward: bool) -> Float64Array:
        """The largest product, one number for the whole case."""
        exact = self.cell
        factors = [np.abs(v).max(initial=0.0) for v in (exact.raw, *exact.parameters[:3])]
        x, h, U, V = (max(float(f), 1.0) for f in factors)
        a = max(float(exact.magnitude.max(initial=0.0)), 1.0)
        r = max(float(exact.statistic("r").max(initial=0.0)), 1.0)
        weight = max(1.0, float(np.abs(exact.parameter("weight")).max(initial=0.0)))
        cotangent = max(1.0, float(np.abs(exact.dy).max(initial=0.0))) if backward else 1.0
        return np.asarray(r ** (3 if backward else 1) * a**2 * max(x, h) * max(U, V) * weight * cotangent)

    @property
    def _given(self) -> list[Running]:
        exact = self.cell
        found = exact.forward["a"]
        a = np.asarray(found.hi if exact.wide else found, dtype=np.float64)
        mu, var = exact.statistic("mu"), exact.statistic("var")
        terms = exact.raw.shape[1] + exact.case.n + 1
        with np.errstate(all="ignore"):
            raw = np.abs(a) + np.abs(mu) + shift_error(a - mu, a[:, :1] - mu, var, (1,))
            admitted = terms * exact.magnitude + (float(roundings(self.count, "det")) + 4) * raw
            c = Running(np.zeros_like(a), self.compute.u * admitted, self.context)
        given = [self.context.exact(v) for v in (exact.raw, *exact.parameters[:-1])]
        return [*given, c, self.context.exact(exact.case.eps)]
