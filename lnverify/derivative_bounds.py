"""Bounds of the jvp and of the double backward: running errors of the derived formulas.

The generated derivative is evaluated in lnverify.running.Running, x seeded for forms that work on raw data. In 16
bits derivatives of derivatives are built op by op in the storage format by every framework: that is admitted, by
taking u of the storage format.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from lnverify.bounds import Precision
from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array
from lnverify.formulas import layer_norm as first_order
from lnverify.formulas import layer_norm_second_order as second_order
from lnverify.oracle import Exact
from lnverify.running import Context, Running

KEYS = {"ty": "y_dot", "d2x": "x_bar2", "d2weight": "gamma_bar2", "d2bias": "beta_bar2", "d2dy": "y_bar_bar2"}


class DerivativeBounds:
    """Bounds of ty, d2x, d2weight, d2bias and d2dy of one case in one tier, evaluated when first asked for."""

    def __init__(self, case: Case, exact: Exact, precision: Precision, tier: str = "det") -> None:
        """Hold the exact statistics; nothing is evaluated yet."""
        self.case, self.exact, self.precision = case, exact, precision
        compute = precision.output if precision.output.precision <= 11 else precision.compute
        self.context = Context(compute, tier)
        self.suffix = {(1, 1): "", (1, 0): "_weight", (0, 1): "_bias", (0, 0): "_plain"}[
            int(case.has("weight")), int(case.has("bias"))
        ]
        self.present = [p for p in ("weight", "bias") if case.has(p)]

    def bound(self, output: str) -> Float64Array:
        """Running error of an output plus u|exact| and the smallest normal numbers (double rounding, flush to zero)."""
        result = (self._jvp if output == "ty" else self._double)[KEYS[output]]
        name = output.removeprefix("d2")
        out = FORMATS[self.case.arrays[name].dtype] if name in self.case.arrays else self.precision.output
        with np.errstate(all="ignore"):
            error = result.error
            if output == "d2x":
                error = np.ldexp(error, -self.exact.exponent[:, None])
            extra = self.precision.compute.u * np.abs(self.exact.pair(output).hi)
            return np.asarray(error + extra + out.tiny + self.precision.compute.tiny)

    def _inputs(self) -> list[Running]:
        st, context = self.exact.statistics, self.context
        with np.errstate(all="ignore"):
            x = context.seed(st.x - st.x0[:, None], st.x0, st.mu, self.case.n)
        return [x, *(context.exact(self.case.vector(p)) for p in self.present), context.exact(st.eps)]

    def _tangent(self, name: str) -> Running:
        """A tangent or cotangent as exact numbers, zeros where the case has none; those of x scaled as x is."""
        case, of_x = self.case, name.endswith("x")
        shape = (case.rows, case.n) if of_x else (case.n,)
        values = case.arrays[name].values.reshape(shape) if case.has(name) else np.zeros(shape)
        with np.errstate(all="ignore"):
            scaled = np.ldexp(values, -self.exact.exponent[:, None]) if of_x else values
        return self.context.exact(scaled)

    @cached_property
    def _jvp(self) -> dict[str, Running]:
        given = [*self._inputs(), self._tangent("tx"), *(self._tangent(f"t{p}") for p in self.present)]
        return self._lifted(getattr(first_order, f"layer_norm{self.suffix}_jvp")(*given))

    @cached_property
    def _double(self) -> dict[str, Running]:
        given = [*self._inputs(), self.context.exact(self.case.matrix("dy")), self._tangent("vx")]
        given += [self._tangent(f"v{p}") for p in self.present]
        return self._lifted(getattr(second_order, f"layer_norm{self.suffix}_vjp_vjp")(*given))

    def _lifted(self, found: dict[str, Running]) -> dict[str, Running]:
        return {name: self.context.lift(value) for name, value in found.items()}
