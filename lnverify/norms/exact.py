"""Exact: the right results of a case of another norm, from the generated formulas in more precision than it judges.

As in lnverify.oracle the formulas run in float64 for formats of 32 bits and fewer and in double-double for float64, on
deviations from the first number of each group (rms_norm subtracts nothing, and gets x as it is), so that a large
common offset costs nothing. An absent weight is 1 and an absent bias 0. Nothing is scaled: what would leave the range
is not judged (lnverify.norms.bound).

Stated error: the running error of the same formulas (lnverify.norms.bound) with u = 2^-53 in the place of the
subject's u, and 2^-97 in double-double; the bounds, which have the same terms, stay at least 2^29 times larger.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.floats import Float64Array
from lnverify.formulas import norms
from lnverify.norms.views import view
from lnverify.operation import operation
from lnverify.oracle import Pair

KEYS = {"y": "y", "dx": "x_bar", "dweight": "gamma_bar", "dbias": "beta_bar"}


class Exact:
    """Exact results of one case, each evaluated when first asked for."""

    module: Any = norms

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
        self.pivot = np.zeros_like(self.raw[first]) if self.operation.formula == "rms_norm" else self.raw[first]
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

    @property
    def dy(self) -> Float64Array:
        """The cotangent in the formula's shape."""
        return self.case.arrays["dy"].values.reshape(self.view.shape)

    @cached_property
    def forward(self) -> dict[str, Any]:
        """y, r, xhat, and mu (from the pivot) and var, or ms."""
        given = [self.x, *map(self.lift, self.parameters), self.lift(self.case.eps)]
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(self.module, self.operation.formula)(*given)
        return found

    @cached_property
    def backward(self) -> dict[str, Any]:
        """x_bar, gamma_bar, beta_bar."""
        given = [self.x, *map(self.lift, self.parameters), self.lift(self.case.eps), self.lift(self.dy)]
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(self.module, f"{self.operation.formula}_vjp")(*given)
        return found

    def statistic(self, name: str) -> Float64Array:
        """mu, var, ms, sigma or r as float64, with axes of one where it is constant."""
        value = self.forward[name]
        return np.asarray(value.hi if self.wide else value, dtype=np.float64).reshape(self.pivot.shape)

    def pair(self, output: str) -> Pair:
        """The exact value of y or of a gradient, in the formula's shape. Raises KeyError for another name."""
        value = (self.forward if output == "y" else self.backward)[KEYS[output]]
        if self.wide:
            return Pair(value.hi, value.lo)
        return Pair(value, np.zeros_like(value))
