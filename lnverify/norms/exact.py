"""Exact: the right results of a case of another norm, from the generated formulas in more precision than it judges.

As in lnverify.oracle the formulas run in float64 for formats of 32 bits and fewer and in double-double for float64, on
deviations from the first number of each group (where no mean of x is subtracted x is taken as it is), so that a large
common offset costs nothing. An absent weight is 1 and an absent bias 0. Nothing is scaled: what would leave the range
is not judged (lnverify.norms.bound).

Stated error: the running error of the same formulas (lnverify.norms.bound) with u = 2^-53 in the place of the
subject's u, and 2^-97 in double-double; the bounds, which have the same terms, stay at least 2^29 times larger.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.floats import Float64Array
from lnverify.formulas import norms, norms_second_order
from lnverify.norms.views import view
from lnverify.operation import operation
from lnverify.oracle import Pair

KEYS = {
    "y": "y", "dx": "x_bar", "dweight": "gamma_bar", "dbias": "beta_bar", "ty": "y_dot",
    "d2x": "x_bar2", "d2weight": "gamma_bar2", "d2bias": "beta_bar2", "d2dy": "y_bar_bar2",
}  # fmt: skip


MODES = {"forward": "", "backward": "_vjp", "forward_mode": "_jvp", "double": "_vjp_vjp"}
"""The derived programs, by what ends their names."""


def source(output: str) -> str:
    """Which derived program an output of a norm comes from: one of MODES."""
    return {"y": "forward", "ty": "forward_mode"}.get(output, "double" if output.startswith("d2") else "backward")


class Exact:
    """Exact results of one case, each evaluated when first asked for."""

    module: Any = norms
    twice: Any = norms_second_order  # where the double backward is

    def __init__(self, case: Case) -> None:
        """Take the case's exact values; nothing is evaluated yet."""
        self.case, self.view = case, view(case)
        self.operation = operation(case.operation)
        self.wide = case.dtype == "float64"
        self.raw = case.arrays["x"].values
        self.x: Any = self.lift(self.raw)
        if not (self.operation.states or self.operation.block):
            self._centre()

    def _centre(self) -> None:
        """x in the formula's shape, measured from the first number of each group."""
        self.raw = self.raw.reshape(self.view.shape)
        first = tuple(slice(0, 1) if axis in self.view.over else slice(None) for axis in range(self.raw.ndim))
        self.pivot = np.zeros_like(self.raw[first]) if not self.operation.centred else self.raw[first]
        with np.errstate(all="ignore"):
            self.x = self.lift(self.raw) - self.lift(self.pivot)

    def lift(self, values: Any) -> Any:
        """Float64 values in the number type of this case."""
        return DoubleDouble(values) if self.wide else np.asarray(values, dtype=np.float64)

    def parameter(self, name: str) -> Float64Array:
        """weight or bias in the formula's shape; 1 and 0 where it is absent."""
        shape = self.view.parameters
        if not self.case.has(name):
            return np.ones(shape) if name == "weight" else np.zeros(shape)
        return self.case.arrays[name].values.reshape(shape)

    @property
    def parameters(self) -> list[Float64Array]:
        """Those that the formula takes."""
        return [self.parameter(name) for name in self.operation.parameters]

    def given(self, x: Any, lift: Callable[[Any], Any]) -> list[Any]:
        """What the formula takes, in its order: x, parameters, data, eps."""
        known, arrays = self.operation, self.case.arrays
        data = [arrays[name].values for name in known.data]
        eps = [self.case.eps] if "eps" in known.scalars else []
        return [x, *map(lift, (*self.parameters, *data, *eps))]

    def along(self, prefix: str) -> list[Float64Array]:
        """Tangents (t) or cotangents of the gradients (v) in the formula's shapes; zeros where the case has none."""
        shapes = {"x": self.view.shape, **dict.fromkeys(self.operation.parameters, self.view.parameters)}
        arrays = self.case.arrays
        return [
            arrays[prefix + name].values.reshape(shape) if prefix + name in arrays else np.zeros(shape)
            for name, shape in shapes.items()
        ]

    @property
    def dys(self) -> list[Float64Array]:
        """The cotangents of the outputs in the formula's shape."""
        return [self.case.arrays["dy"].values.reshape(self.view.shape)]

    @cached_property
    def forward(self) -> dict[str, Any]:
        """y, r, xhat, and mu (from the pivot) and var, or ms, or ss."""
        return self._called("forward")

    @cached_property
    def backward(self) -> dict[str, Any]:
        """x_bar, gamma_bar, beta_bar."""
        return self._called("backward", *self.dys)

    @cached_property
    def forward_mode(self) -> dict[str, Any]:
        """y_dot along tx, tweight, tbias."""
        return self._called("forward_mode", *self.along("t"))

    @cached_property
    def double(self) -> dict[str, Any]:
        """x_bar2, gamma_bar2, beta_bar2, y_bar_bar2 for the cotangents vx, vweight, vbias of the gradients."""
        return self._called("double", *self.dys, *self.along("v"))

    def program(self, what: str) -> Callable[..., dict[str, Any]]:
        """A derived program, one of MODES."""
        module = self.twice if what == "double" else self.module
        found: Callable[..., dict[str, Any]] = getattr(module, self.operation.formula + MODES[what])
        return found

    def _called(self, what: str, *more: Any) -> dict[str, Any]:
        given = [*self.given(self.x, self.lift), *map(self.lift, more)]
        with np.errstate(all="ignore"):
            return self.program(what)(*given)

    def statistic(self, name: str) -> Float64Array:
        """mu, var, ms, sigma or r as float64, with axes of one where it is constant."""
        value = self.forward[name]
        return np.asarray(value.hi if self.wide else value, dtype=np.float64).reshape(self.pivot.shape)

    def pair(self, output: str) -> Pair:
        """The exact value of y or of a gradient, in the formula's shape. Raises KeyError for another name."""
        value = getattr(self, source(output))[KEYS[output]]
        if self.wide:
            return Pair(value.hi, value.lo)
        return Pair(value, np.zeros_like(value))
