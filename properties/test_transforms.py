"""Derivatives on dual numbers: what the nested jvp, its gradient and the third derivative should be."""

from __future__ import annotations

from dataclasses import replace

import mpmath
import numpy as np
import pytest

from lnverify.bounds import Precision
from lnverify.derivative_bounds import DerivativeBounds
from lnverify.floats import FloatArray
from lnverify.oracle import Exact
from lnverify.recipes import build, normal


def case(dtype: str, affine: bool, scale: int = 0):
    """Two rows of three with every tangent."""
    recipe = {"dtype": dtype, "batch": [2], "shape": [3], "regime": "normal", "mean": 2.0, "scale": scale, "eps": 0.25,
              "weight": "normal" if affine else None, "bias": "normal" if affine else None, "dy": "normal",
              "seed": 5, "tangents": True}  # fmt: skip
    made = build(recipe)
    more = {name: FloatArray.of(normal(90 + i, (2, 3)), dtype) for i, name in enumerate(("sx", "wx"))}
    return replace(made, arrays={**made.arrays, **more}, recipe=None)


class Row:
    """One row of a case in mpmath, as a function of steps along given directions."""

    def __init__(self, made, row: int) -> None:
        def numbers(name, default):
            return [mpmath.mpf(float(v)) for v in (made.vector(name) if made.has(name) else [default] * 3)]

        self.eps = mpmath.mpf(made.eps)
        self.weight, self.bias = numbers("weight", 1), numbers("bias", 0)
        self.vweight = numbers("vweight", 0)
        for name in ("x", "dy", "tx", "vx", "sx", "wx"):
            setattr(self, name, [mpmath.mpf(float(v)) for v in made.matrix(name)[row]])

    def y(self, weight, bias, *steps):
        """Layer norm of x + sum of step * direction."""
        moved = [v + sum(s * d[i] for s, d in steps) for i, v in enumerate(self.x)]
        mean = sum(moved) / 3
        rstd = 1 / mpmath.sqrt(sum((v - mean) ** 2 for v in moved) / 3 + self.eps)
        return [g * (v - mean) * rstd + b for v, g, b in zip(moved, weight, bias, strict=True)]

    def pulled(self, *steps):
        """<dy, y>."""
        return sum(d * v for d, v in zip(self.dy, self.y(self.weight, self.bias, *steps), strict=True))

    def pulled_weight(self, *steps):
        """<dweight, vweight>, which is <dy, vweight xhat>."""
        return sum(d * v for d, v in zip(self.dy, self.y(self.vweight, [0] * 3, *steps), strict=True))

    def exact(self, output: str, i: int):
        """One element of an output."""
        unit = [mpmath.mpf(int(j == i)) for j in range(3)]
        if output == "tty":
            return mpmath.diff(
                lambda a, b: self.y(self.weight, self.bias, (a, self.tx), (b, self.sx))[i], (0, 0), (1, 1)
            )
        if output == "rty":
            return mpmath.diff(lambda a, b: self.pulled((a, self.tx), (b, unit)), (0, 0), (1, 1))
        value = mpmath.diff(lambda a, b, c: self.pulled((a, self.vx), (b, self.wx), (c, unit)), (0, 0, 0), (1, 1, 1))
        return value + mpmath.diff(lambda a, b: self.pulled_weight((a, self.wx), (b, unit)), (0, 0), (1, 1))


@pytest.mark.parametrize("output", ["tty", "rty", "d3x"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_the_derivatives_agree_with_differences_of_forty_digits(dtype, affine, output):
    made = case(dtype, affine)
    with mpmath.workdps(40):
        expected = [[float(Row(made, row).exact(output, i)) for i in range(3)] for row in range(2)]
    pair = Exact(made).pair(output)
    np.testing.assert_allclose(pair.hi, expected, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("output", ["tty", "rty", "d3x"])
def test_the_bound_is_a_few_hundred_units_and_scales_with_the_format(output):
    bounds = {}
    for dtype in ("float64", "float32"):
        made = case(dtype, affine=True)
        truth = Exact(made)
        bounds[dtype] = DerivativeBounds(made, truth, Precision.of(dtype, None, "input")).bound(output)
        scale = np.abs(truth.pair(output).hi).max()
        u = {"float64": 2.0**-53, "float32": 2.0**-24}[dtype]
        assert (bounds[dtype] > 4 * u * np.abs(truth.pair(output).hi)).all()
        assert (bounds[dtype] < 5e4 * u * max(scale, 1.0)).all()
    np.testing.assert_allclose(bounds["float32"] / bounds["float64"], 2.0**29, rtol=0.1)


def test_scaling_by_a_power_of_two_is_exact():
    """LN_eps(2^k x) differentiates as LN_(eps/4^k)(x): the units of tangents and results are right."""
    plain, scaled = case("float64", affine=True), case("float64", affine=True, scale=6)
    arrays = {
        n: a if n not in ("x", "tx", "sx", "wx") else FloatArray.of(a.values * 64, "float64")
        for n, a in plain.arrays.items()
    }
    scaled = replace(plain, arrays=arrays, eps=plain.eps * 64.0**2)
    np.testing.assert_allclose(Exact(scaled).pair("tty").hi, Exact(plain).pair("tty").hi, rtol=1e-13)
    np.testing.assert_allclose(Exact(scaled).pair("rty").hi * 64, Exact(plain).pair("rty").hi, rtol=1e-13)
