"""Bounds of the jvp, of the double backward and of their derivatives: running errors of the derived formulas.

The generated derivative is evaluated in lnverify.running.Running, x seeded for forms that work on raw data. In 16
bits derivatives of derivatives are built op by op in the storage format by every framework: that is admitted, by
taking u of the storage format.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from lnverify.bounds import Precision
from lnverify.case import Case
from lnverify.dual import Dual
from lnverify.floats import FORMATS, Float64Array
from lnverify.formulas import layer_norm as first_order
from lnverify.formulas import layer_norm_second_order as second_order
from lnverify.oracle import Exact
from lnverify.running import Context, Running

# Where the running error of an output comes from: a derived program, and its name there.
SOURCES = {
    "ty": ("jvp", "y_dot"), "tty": ("nested_jvp", "y_dot"), "rty": ("gradient_of_jvp", "x_bar2"),
    "fdx": ("forward_over_reverse", "x_bar2"),
    "d2x": ("double", "x_bar2"), "d2weight": ("double", "gamma_bar2"), "d2bias": ("double", "beta_bar2"),
    "d2dy": ("double", "y_bar_bar2"), "d3x": ("third", "x_bar2"),
}  # fmt: skip


class DerivativeBounds:
    """Bounds of the outputs in SOURCES of one case in one tier, evaluated when first asked for."""

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
        source, key = SOURCES[output]
        result = getattr(self, source)[key]
        name = output.removeprefix("d2")
        out = FORMATS[self.case.arrays[name].dtype] if name in self.case.arrays else self.precision.output
        with np.errstate(all="ignore"):
            error = result.error
            if output in ("d2x", "rty", "fdx", "d3x"):
                error = np.ldexp(error, -self.exact.exponent[:, None])
            extra = self.precision.compute.u * np.abs(self.exact.pair(output).hi)
            return np.asarray(error + extra + out.tiny + self.precision.compute.tiny)

    def _inputs(self) -> list[Running]:
        st, context = self.exact.statistics, self.context
        with np.errstate(all="ignore"):
            x = context.seed(st.x - st.x0[:, None], st.x0, st.mu, self.case.n)
        return [x, *(context.exact(self.case.vector(p)) for p in self.present), context.exact(st.eps)]

    def _tangent(self, name: str) -> Running:
        """A tangent or cotangent, zeros where the case has none; those of x scaled as x is, and seeded.

        The formulas sum d t with t less its mean. Since sum d = 0 an algorithm need not subtract that, and then loses
        sum e|t| by the error e of d: a seed c of t with c sum(|d| + e) = sum e|t| admits it.
        """
        case, of_x = self.case, name.endswith("x")
        shape = (case.rows, case.n) if of_x else (case.n,)
        values = case.arrays[name].values.reshape(shape) if case.has(name) else np.zeros(shape)
        with np.errstate(all="ignore"):
            scaled = np.ldexp(values, -self.exact.exponent[:, None]) if of_x else values
            if not (of_x and case.has(name)):
                return self.context.exact(scaled)
            st, error = self.exact.statistics, self._inputs()[0].error
            size = (np.abs(st.x - st.mu[:, None]) + error).sum(axis=1, keepdims=True)
            lost = (error * np.abs(scaled)).sum(axis=1, keepdims=True)
            return Running(scaled, np.where(size > 0, lost / size, 0.0), self.context)

    @cached_property
    def jvp(self) -> dict[str, Running]:
        """The forward mode along tx, tweight, tbias."""
        given = [*self._inputs(), self._tangent("tx"), *(self._tangent(f"t{p}") for p in self.present)]
        return self._lifted(self._once(*given))

    def _once(self, *given: Any) -> dict[str, Any]:
        """The forward mode of inputs, tx, tweight, tbias, those that are present."""
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(first_order, f"layer_norm{self.suffix}_jvp")(*given)
        return found

    def _twice(self, *given: Any) -> dict[str, Any]:
        """The double backward of inputs, dy, vx, vweight, vbias, those that are present."""
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(second_order, f"layer_norm{self.suffix}_vjp_vjp")(*given)
        return found

    @property
    def _dy(self) -> Running:
        return self.context.exact(self.case.matrix("dy"))

    @cached_property
    def double(self) -> dict[str, Running]:
        """The double backward."""
        others = [self._tangent(f"v{p}") for p in self.present]
        return self._lifted(self._twice(*self._inputs(), self._dy, self._tangent("vx"), *others))

    def _zeros(self) -> list[Running]:
        return [self.context.exact(np.zeros(self.case.n)) for _ in self.present]

    def _along(self, name: str) -> list[Any]:
        """The inputs, x with its derivative along a tangent of the case."""
        x, *rest = self._inputs()
        return [Dual(x, self._tangent(name)), *map(Dual.constant, rest)]

    @cached_property
    def nested_jvp(self) -> dict[str, Running]:
        """The forward mode along tx of x alone, differentiated along sx."""
        given = [*self._along("sx"), *map(Dual.constant, (self._tangent("tx"), *self._zeros()))]
        found = self._once(*given)
        return self._lifted({"y_dot": found["y_dot"].tangent})

    @cached_property
    def gradient_of_jvp(self) -> dict[str, Running]:
        """The gradient of <dy, jvp>: the double backward with tx for vx."""
        return self._lifted(self._twice(*self._inputs(), self._dy, self._tangent("tx"), *self._zeros()))

    @cached_property
    def forward_over_reverse(self) -> dict[str, Running]:
        """The derivative of dx along tx, tweight, tbias: the double backward with these for vx, vweight, vbias."""
        others = [self._tangent(f"t{p}") for p in self.present]
        return self._lifted(self._twice(*self._inputs(), self._dy, self._tangent("tx"), *others))

    @cached_property
    def third(self) -> dict[str, Running]:
        """The double backward, differentiated along wx."""
        others = [self._tangent(f"v{p}") for p in self.present]
        constants = map(Dual.constant, (self._dy, self._tangent("vx"), *others))
        found = self._twice(*self._along("wx"), *constants)
        return self._lifted({"x_bar2": found["x_bar2"].tangent})

    def _lifted(self, found: dict[str, Running]) -> dict[str, Running]:
        return {name: self.context.lift(value) for name, value in found.items()}
