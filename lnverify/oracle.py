"""Oracle: the exact result of a case, evaluated from the generated formulas in more precision than it judges.

For inputs of 32 bits or fewer the formulas run in float64, for float64 inputs in double-double. In both the
deviations are taken from the pivot x[0] of each row first: layer norm does not see a common shift, and x - x[0]
is exact in double-double, so that |mean|/std drops out of the oracle's error. float64 rows are also scaled by
a power of two (eps by its square), so that nothing overflows or underflows: LN_eps(2^E x) = LN_(eps 4^-E)(x).

Stated errors, in units of the scale of each result: float64 below 2^-40, at any |mean|/std; double-double below
2^-97, with a few units of 2^-1074 more where a low word is subnormal (both for n and rows up to 4096). The scale
is what one unit of error in the mean, in 1/s and in each term does, with m = mean|x - x0|/s and g = |gamma dy|:
y |gamma|(|xhat| + m) + |beta|; dx (g + mean g + (|xhat| + m) mean(g (|xhat| + m)))/s; dweight sum|dy|(|xhat| + m);
dbias sum|dy|; derivatives of these their running error (lnverify.running) in u = 2^-53, times 2^-44 for
double-double. The bounds have the same terms, hence stay at least 2^24 times larger. properties/test_oracle.py
checks all of it against certified balls, and y against integers alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.dual import Dual
from lnverify.floats import Float64Array, scaled
from lnverify.formulas import layer_norm as first
from lnverify.formulas import layer_norm_second_order as second
from lnverify.row_blocks import row_blocks


@dataclass(frozen=True, eq=False)
class Pair:
    """An exact value as hi + lo, both float64; lo is 0 where float64 is precise enough."""

    hi: Float64Array
    lo: Float64Array

    def __sub__(self, other: Pair) -> Float64Array:
        return (self.hi - other.hi) + (self.lo - other.lo)


@dataclass(frozen=True, eq=False)
class Statistics:
    """Exact statistics of each row in scaled units: real value = scaled * 2^E for x, mu, s; var and eps by 4^E.

    x: (rows, n); x0, mu, s, var, eps: (rows,); xhat: (rows, n), has no unit; exponent: (rows,) integers E.
    """

    x: Float64Array
    x0: Float64Array
    mu: Float64Array
    s: Float64Array
    var: Float64Array
    eps: Float64Array
    xhat: Float64Array
    exponent: np.ndarray[Any, np.dtype[np.int64]]

    @cached_property
    def size(self) -> Float64Array:
        """max(mean|x|, mean|x - x0|), (rows,)."""
        plain, shifted = np.empty(self.x0.shape), np.empty(self.x0.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(self.x.shape):
                x = self.x[rows]
                plain[rows] = np.abs(x).mean(axis=1)
                shifted[rows] = _size(x - self.x0[rows, None]).mean(axis=1)
            return np.maximum(plain, shifted)

    @cached_property
    def root_mean_square(self) -> Float64Array:
        """rms(x), (rows,)."""
        found = np.empty(self.x0.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(self.x.shape):
                found[rows] = (self.x[rows] ** 2).mean(axis=1)
            return np.sqrt(found, out=found)

    @cached_property
    def reach(self) -> Float64Array:
        """(|x_i| + |mu|)/s, (rows, n)."""
        found = np.empty(self.x.shape)
        with np.errstate(all="ignore"):
            for rows in row_blocks(self.x.shape):
                here = np.abs(self.x[rows], out=found[rows])
                here += np.abs(self.mu[rows, None])
                here /= self.s[rows, None]
        return found


def _size(values: Float64Array) -> Float64Array:
    """|values|, in place."""
    return np.abs(values, out=values)


class Exact:
    """Exact results of one layer-norm case, each evaluated when first asked for."""

    def __init__(self, case: Case) -> None:
        """Take the case's exact values; nothing is evaluated yet."""
        self.case = case
        self.wide = case.dtype == "float64"
        self._pairs: dict[str, Pair] = {}
        x = case.matrix("x")
        self.x0 = x[:, 0] if case.n else np.zeros(case.rows)
        with np.errstate(all="ignore"):
            # max|x|, (rows,)
            self.reach = np.maximum(x.max(axis=1), -x.min(axis=1)) if x.size else np.zeros(case.rows)
            centred: Any = DoubleDouble(x) - DoubleDouble(self.x0)[:, None] if self.wide else x - self.x0[:, None]
            deviation = centred.hi if isinstance(centred, DoubleDouble) else centred
            if self.wide:
                # x - x0 overflows near the end of the range: halve first.
                huge = self.reach > 2.0**1020
                if huge.any():
                    quarter = np.where(huge, 0.25, 1.0)
                    centred = DoubleDouble(x * quarter[:, None]) - DoubleDouble(self.x0 * quarter)[:, None]
                    deviation = centred.hi
                    reach_dev = np.abs(deviation).max(axis=1, initial=0.0)
                    shift = np.where(huge, 2, 0)
                else:
                    reach_dev = np.abs(deviation).max(axis=1, initial=0.0)
                    shift = np.zeros(case.rows, dtype=int)
                spread = np.maximum(np.ldexp(reach_dev, shift), np.sqrt(case.eps))
                exponent = np.frexp(np.where(np.isfinite(spread), spread, 2.0**1023))[1]
                exponent = np.where(spread > 0, exponent, 0)
                self.centred: Any = DoubleDouble(
                    scaled(centred.hi, (shift - exponent)[:, None]),
                    scaled(centred.lo, (shift - exponent)[:, None]),
                )
                self.exponent = exponent.astype(np.int64)
                # exact: a power of two times eps, unless it underflows beside a variance of order 1
                self.eps = np.ldexp(np.full(case.rows, case.eps), -2 * exponent)
            else:
                self.centred = centred
                self.exponent = np.zeros(case.rows, dtype=np.int64)
                self.eps = np.full(case.rows, case.eps)

    def _lift(self, values: Float64Array) -> Any:
        return DoubleDouble(values) if self.wide else values

    def _affine(self, names: tuple[str, ...] = ("weight", "bias")) -> tuple[str, list[Any]]:
        case = self.case
        suffix = {(True, True): "", (True, False): "_weight", (False, True): "_bias", (False, False): "_plain"}
        key = (case.has("weight"), case.has("bias"))
        values = [self._lift(case.vector(p)) for p in names if case.has(p)]
        return suffix[key], values

    def _call(self, module: Any, stem: str, *arguments: Any, x: Any = None) -> dict[str, Any]:
        suffix, affine = self._affine()
        name = f"layer_norm{suffix}{stem}"
        eps: Any = DoubleDouble(self.eps) if self.wide else self.eps
        if x is not None:
            affine, eps = [Dual.constant(v) for v in affine], Dual.constant(eps)
            arguments = tuple(Dual.constant(v) for v in arguments)
        with np.errstate(all="ignore"):
            result: dict[str, Any] = getattr(module, name)(self.centred if x is None else x, *affine, eps, *arguments)
        return result

    @cached_property
    def forward(self) -> dict[str, Any]:
        """y, mu (from the pivot), var, r, xhat in scaled units."""
        return self._call(first, "")

    # Each adjoint alone, from what the forward has computed: not every case asks for all, and no backward begins anew.

    def _adjoint(self, name: str, *arguments: Any) -> dict[str, Any]:
        with np.errstate(all="ignore"):
            result: dict[str, Any] = getattr(first, f"layer_norm{self._affine()[0]}_vjp_{name}")(*arguments)
        return result

    @property
    def _dy(self) -> Any:
        return self._lift(self.case.matrix("dy"))

    @cached_property
    def dx(self) -> dict[str, Any]:
        """x_bar (scaled) for the case's dy."""
        forward = self.forward
        return self._adjoint("x_bar", *self._affine(("weight",))[1], self._dy, forward["d"], forward["r"])

    @cached_property
    def dweight(self) -> dict[str, Any]:
        """gamma_bar for the case's dy."""
        return self._adjoint("gamma_bar", self._dy, self.forward["xhat"])

    @cached_property
    def dbias(self) -> dict[str, Any]:
        """beta_bar for the case's dy."""
        return self._adjoint("beta_bar", self._dy)

    def _tangent(self, name: str) -> Any:
        """Tangent or cotangent of an argument, zeros where the case has none; x's are scaled like x."""
        case = self.case
        of_x = name.endswith("x")
        shape = (case.rows, case.n) if of_x else (case.n,)
        values = case.arrays[name].values.reshape(shape) if case.has(name) else np.zeros(shape)
        return values

    @cached_property
    def jvp(self) -> dict[str, Any]:
        """y_dot for the tangents tx, tweight, tbias."""
        with np.errstate(all="ignore"):
            tx = scaled(self._tangent("tx"), -self.exponent[:, None])
        given = [self._lift(tx)]
        given += [self._lift(self._tangent(f"t{p}")) for p in ("weight", "bias") if self.case.has(p)]
        return self._call(first, "_jvp", *given)

    @cached_property
    def double_backward(self) -> dict[str, Any]:
        """x_bar2, gamma_bar2, beta_bar2, y_bar_bar2 for the cotangents vx, vweight, vbias of dx, dweight, dbias."""
        with np.errstate(all="ignore"):
            vx = scaled(self._tangent("vx"), -self.exponent[:, None])
        given = [self._dy, self._lift(vx)]
        given += [self._lift(self._tangent(f"v{p}")) for p in ("weight", "bias") if self.case.has(p)]
        return self._call(second, "_vjp_vjp", *given)

    def _along(self, name: str) -> tuple[Dual, list[Any]]:
        """x with its derivative along a tangent of the case, and tangents of zero for the parameters."""
        with np.errstate(all="ignore"):
            tangent = scaled(self._tangent(name), -self.exponent[:, None])
        zeros = [self._lift(np.zeros(self.case.n)) for p in ("weight", "bias") if self.case.has(p)]
        return Dual(self.centred, self._lift(tangent)), zeros

    @cached_property
    def nested_jvp(self) -> dict[str, Any]:
        """y_dot along tx of x alone, differentiated along sx."""
        x, zeros = self._along("sx")
        with np.errstate(all="ignore"):
            tx = self._lift(scaled(self._tangent("tx"), -self.exponent[:, None]))
        return {key: value.tangent for key, value in self._call(first, "_jvp", tx, *zeros, x=x).items()}

    @cached_property
    def gradient_of_jvp(self) -> dict[str, Any]:
        """The gradient of <dy, y_dot> for x, y_dot along tx of x alone: <dx, tx> is the same number."""
        with np.errstate(all="ignore"):
            tx = self._lift(scaled(self._tangent("tx"), -self.exponent[:, None]))
        return self._call(second, "_vjp_vjp", self._dy, tx, *self._along("tx")[1])

    @cached_property
    def forward_over_reverse(self) -> dict[str, Any]:
        """The derivative of dx along tx, tweight, tbias: second derivatives of <dy, y> are symmetric, so that it is the
        double backward with the tangents for vx, vweight, vbias."""
        with np.errstate(all="ignore"):
            tx = scaled(self._tangent("tx"), -self.exponent[:, None])
        given = [self._dy, self._lift(tx)]
        given += [self._lift(self._tangent(f"t{p}")) for p in ("weight", "bias") if self.case.has(p)]
        return self._call(second, "_vjp_vjp", *given)

    @cached_property
    def third(self) -> dict[str, Any]:
        """The double backward, differentiated along wx: the Hessian of <dx, vx> + ... is symmetric."""
        x, _ = self._along("wx")
        with np.errstate(all="ignore"):
            vx = scaled(self._tangent("vx"), -self.exponent[:, None])
        given = [self._dy, self._lift(vx)]
        given += [self._lift(self._tangent(f"v{p}")) for p in ("weight", "bias") if self.case.has(p)]
        return {"x_bar2": self._call(second, "_vjp_vjp", *given, x=x)["x_bar2"].tangent}

    @cached_property
    def statistics(self) -> Statistics:
        """Exact statistics as float64 arrays in scaled units (for the bounds)."""
        forward = self.forward
        with np.errstate(all="ignore"):
            x = self.case.matrix("x")
            x = scaled(x, -self.exponent[:, None])
            x0 = scaled(self.x0, -self.exponent)
            root = self._high(forward["r"])
            return Statistics(
                x=x,
                x0=x0,
                mu=x0 + self._high(forward["mu"]),
                s=1.0 / root,
                var=self._high(forward["var"]),
                eps=self.eps,
                xhat=self._high(forward["xhat"]),
                exponent=self.exponent,
            )

    @staticmethod
    def _high(value: Any) -> Float64Array:
        return value.hi if isinstance(value, DoubleDouble) else np.asarray(value, dtype=np.float64)

    def pair(self, output: str) -> Pair:
        """The exact value of an output or gradient, unscaled.

        Shapes: y, dx, d2x, d2dy, ty, tty, rty, fdx, d3x (rows, n); dweight, dbias, d2weight, d2bias (n,); mean, rstd
        (rows,). Raises KeyError for an unknown name.
        """
        if output not in self._pairs:
            self._pairs[output] = self._pair(output)
        return self._pairs[output]

    def _pair(self, output: str) -> Pair:
        source, key, power = {
            "y": ("forward", "y", 0),
            "mean": ("forward", "mu", 1),
            "rstd": ("forward", "r", -1),
            "dx": ("dx", "x_bar", -1),
            "dweight": ("dweight", "gamma_bar", 0),
            "dbias": ("dbias", "beta_bar", 0),
            "ty": ("jvp", "y_dot", 0),
            "d2x": ("double_backward", "x_bar2", -1),
            "d2weight": ("double_backward", "gamma_bar2", 0),
            "d2bias": ("double_backward", "beta_bar2", 0),
            "d2dy": ("double_backward", "y_bar_bar2", 0),
            "tty": ("nested_jvp", "y_dot", 0),
            "rty": ("gradient_of_jvp", "x_bar2", -1),
            "fdx": ("forward_over_reverse", "x_bar2", -1),
            "d3x": ("third", "x_bar2", -1),
        }[output]
        value = getattr(self, source)[key]
        hi = self._high(value)
        lo = value.lo if isinstance(value, DoubleDouble) else np.broadcast_to(0.0, hi.shape)
        if power and self.wide:  # else the rows are not scaled
            shift = self.exponent[:, None] * power if hi.ndim == 2 else self.exponent * power
            with np.errstate(all="ignore"):
                hi, lo = scaled(hi, shift), scaled(lo, shift)
        if output == "mean":
            with np.errstate(all="ignore"):
                total = DoubleDouble(hi, lo) + DoubleDouble(self.x0)
            hi, lo = total.hi, total.lo
        return Pair(hi, lo)
