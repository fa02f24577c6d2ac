"""The oracle against certified arithmetic: balls through the same formulas, and integers through none of them.

Stated errors (the docstring of lnverify.oracle), in units of `certified.scales`: 2^-40 for inputs of 32 bits or
fewer, 2^-97 for float64. Where a float64 result or an intermediate falls below 2^-969 its low word is subnormal:
there a few units of 2^-1074 are added, FLOOR below, and nothing more is claimed. For the jvp and the double
backward the unit is what running error analysis (lnverify.running) says of the same formulas in float64, without
its allowance for forms on raw data: the narrow oracle stays below it, the wide one below 2^-44 of it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, target

from lnverify.bounds import Bounds, Precision
from lnverify.case import Case
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import layer_norm as first
from lnverify.formulas import layer_norm_second_order as second
from lnverify.oracle import Exact
from lnverify.recipes import build
from lnverify.running import Context
from properties.certified import KEYS, SUFFIX, forward_by_integers, misses, scales
from properties.drawing import quiet, recipe, recipes

STATED = {"float32": 2.0**-40, "bfloat16": 2.0**-40, "float16": 2.0**-40, "float64": 2.0**-97}
FLOOR = 16 * 2.0**-1074  # in float64, where a low word is subnormal
BITS = 640
SECOND = ("ty", "d2x", "d2dy", "d2weight", "d2bias")


def running_scales(case: Case, exact: Exact) -> dict[str, np.ndarray]:
    """Running errors of the derivatives in float64, from exact deviations."""
    context, deep = Context(FORMATS["float64"]), -exact.exponent[:, None]
    present = [p for p in ("weight", "bias") if case.has(p)]
    suffix = SUFFIX[case.has("weight"), case.has("bias")]
    st = exact.statistics
    given = [st.x - st.x0[:, None], *(case.vector(p) for p in present), st.eps]

    def tangents(kind: str) -> list[Any]:
        return [np.ldexp(case.matrix(f"{kind}x"), deep), *(case.vector(f"{kind}{p}") for p in present)]

    jvp = getattr(first, f"layer_norm{suffix}_jvp")(*map(context.exact, [*given, *tangents("t")]))
    double = getattr(second, f"layer_norm{suffix}_vjp_vjp")(
        *map(context.exact, [*given, case.matrix("dy"), *tangents("v")])
    )
    found = {n: (jvp | double)[KEYS[n]].error for n in SECOND if KEYS[n] in jvp | double}
    return {n: np.ldexp(e, deep) if n == "d2x" else e for n, e in found.items()}


def worst(case: Case) -> dict[str, float]:
    """By output: the largest miss over what is stated; above 1 the oracle is worse than its word."""
    exact = Exact(case)
    missed, unit, found = misses(case, exact, BITS), scales(case, exact), {}
    floor = FLOOR if case.dtype == "float64" else 0.0
    limits = {name: STATED[case.dtype] * unit[name] + floor for name in unit}
    if case.has("tx"):
        narrow = case.dtype != "float64"
        limits |= {n: e * (1.0 if narrow else 2.0**-44) + floor for n, e in running_scales(case, exact).items()}
    assert limits.keys() == missed.keys()
    for name, miss in missed.items():
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.where(miss == 0, 0.0, miss / limits[name])
        found[name] = float(np.where(np.isnan(ratio), np.inf, ratio).max(initial=0.0))
    return found


WORST: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def report():
    """Print the worst of each output over what is stated (shown by pytest -s)."""
    yield
    for name, ratio in sorted(WORST.items()):
        print(f"oracle, worst error over stated error: {name} {ratio:.2g}")


def holds(case: Case) -> float:
    found = worst(case)
    for name, ratio in found.items():
        key = f"{case.dtype} {name}"
        WORST[key] = max(WORST.get(key, 0.0), ratio)
        assert ratio <= 1, (name, ratio, case.label)
    return max(found.values())


@quiet(70)
@given(recipes(("float32", "bfloat16", "float16"), tangents=True))
def test_narrow_formats_lie_in_the_balls(drawn):
    target(np.log2(max(holds(build(drawn)), 2.0**-60)), label="error over stated error")


@quiet(70)
@given(recipes(("float64",), tangents=True, means=(0.0, 3.0, 1e4, 1e8, 1e14)))
def test_float64_lies_in_the_balls(drawn):
    target(np.log2(max(holds(build(drawn)), 2.0**-60)), label="error over stated error")


@quiet(40)
@given(recipes(("float64",), scales=(-996, 996), eps=(1e-5, 1e-300, 10.0, 1e300), means=(0.0, 10.0, 1e6)))
def test_float64_near_the_ends_of_its_range(drawn):
    """Scales from 1e-300 to 1e300: first order only, for unit tangents times 1/s^2 leave the range."""
    event("far" if abs(drawn["scale"]) > 900 else "near")
    holds(build(drawn))


@pytest.mark.parametrize("scale", [-100, 0, 100])
@pytest.mark.parametrize("mean", [0.0, 1e6])
@pytest.mark.parametrize("size", [2, 257])
def test_float32_over_its_range(scale, mean, size):
    """Scales 2^-100 to 2^100, about 1e-30 to 1e30."""
    for eps in (1e-5, 1e-30):
        holds(build(recipe(shape=[size], scale=scale, mean=mean, eps=eps, tangents=size < 9)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("regime", ["normal", "outlier", "alternating", "integers", "one_hot", "step", "heavy"])
def test_without_eps(dtype, regime):
    holds(build(recipe(dtype=dtype, regime=regime, eps=0.0, tangents=True)))


@pytest.mark.parametrize(("dtype", "least"), [("float32", -149), ("float64", -1074), ("bfloat16", -133)])
@pytest.mark.parametrize("eps", [0.0, 1e-5])
def test_subnormal_rows(dtype, least, eps):
    """Integers of -4 to 4 times the least number. Without eps dx is of order 2^1074 in float64: infinite, so
    that y, dweight and dbias remain."""
    case = build(recipe(dtype=dtype, regime="integers", scale=least, eps=eps))
    assert 0 < np.abs(case.matrix("x")).max() <= 4 * FORMATS[dtype].smallest
    if dtype == "float64" and eps == 0:
        exact = Exact(case)
        missed, unit = misses(case, exact, BITS), scales(case, exact)
        for name in ("y", "dweight", "dbias"):
            assert (missed[name] <= STATED[dtype] * unit[name]).all()
        assert np.isinf(exact.pair("dx").hi).any()
    else:
        holds(case)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("value", [0.1, 1e30, -(2.0**-149), 3.0])
def test_constant_rows_are_exactly_beta(dtype, value):
    case = build(recipe(dtype=dtype, eps=1e-5))
    case = case.with_arrays(x=FloatArray.of(np.full((3, 5), value), dtype))
    exact = Exact(case)
    np.testing.assert_array_equal(exact.pair("y").hi, np.broadcast_to(case.vector("bias"), (3, 5)))
    assert not exact.pair("y").lo.any()
    assert not exact.pair("dweight").hi.any()
    holds(case)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_one_element_has_no_deviation(dtype):
    case = build(recipe(dtype=dtype, shape=[1], mean=1e6))
    exact = Exact(case)
    np.testing.assert_array_equal(exact.pair("y").hi, np.broadcast_to(case.vector("bias"), (3, 1)))
    assert not exact.pair("dx").hi.any()
    np.testing.assert_allclose(exact.pair("rstd").hi, 1e-5**-0.5, rtol=2.0**-52)
    holds(case)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_constant_row_without_eps_has_no_value_and_harms_no_other(dtype):
    case = build(recipe(dtype=dtype, eps=0.0))
    x = case.matrix("x").copy()
    x[1] = 0.25
    alone = np.delete(Exact(case).pair("y").hi, 1, axis=0)
    found = Exact(case.with_arrays(x=FloatArray.of(x, dtype))).pair("y").hi
    assert not np.isfinite(found[1]).any()
    np.testing.assert_array_equal(np.delete(found, 1, axis=0), alone)


def test_rows_at_the_end_of_float64():
    """x - x[0] overflows: the largest number beside its negative. The exact row is that of [1, -1, 1]."""
    top = FORMATS["float64"].largest
    case = build(recipe(dtype="float64", shape=[3], batch=[1], eps=0.0))
    huge = case.with_arrays(x=FloatArray.of([[top, -top, top]], "float64"))
    unit = case.with_arrays(x=FloatArray.of([[1.0, -1.0, 1.0]], "float64"))
    assert np.abs(Exact(huge).pair("y") - Exact(unit).pair("y")).max() <= 2.0**-97 * 4
    holds(huge)


@quiet(60)
@given(recipes(("float32", "float64", "bfloat16"), means=(0.0, 1e3, 1e6), scales=(-100, 90), sizes=(1, 2, 3, 5, 9)))
def test_integers_agree_without_any_formula(drawn):
    """y from fractions and one integer square root a row."""
    case = build(drawn)
    exact = Exact(case)
    pair, unit = exact.pair("y"), scales(case, exact)["y"]
    for row, ends in enumerate(forward_by_integers(case, 400)):
        for column, (low, high) in enumerate(ends):
            got = Fraction(float(pair.hi[row, column])) + Fraction(float(pair.lo[row, column]))
            slack = Fraction(STATED[case.dtype]) * Fraction(float(unit[row, column]))
            assert high - low <= slack / 1000  # the enclosure is sharp enough to say something
            assert low - slack <= got <= high + slack


@quiet(40)
@given(recipes(("float32", "float64"), sizes=(2, 3, 9, 17), tangents=False))
def test_the_oracle_is_far_sharper_than_the_bounds(drawn):
    """The error of the oracle is below 2^-24 of the bound in every output, so that no verdict hangs on it."""
    case = build(drawn)
    exact = Exact(case)
    bounds = Bounds(case, exact, Precision.of(case.dtype), "pair")
    for name, miss in misses(case, exact, BITS).items():
        assert (miss <= 2.0**-24 * bounds.of(name)).all(), name


def test_statistics_are_those_of_the_row():
    case = build(recipe(dtype="float64", mean=1e3, scale=7, regime="rows"))
    exact, x = Exact(case), case.matrix("x").astype(np.longdouble)
    mean = x.mean(axis=1)
    scale = np.sqrt(((x - mean[:, None]) ** 2).mean(axis=1) + case.eps)
    np.testing.assert_allclose(exact.pair("mean").hi, mean.astype(float), rtol=1e-14)
    np.testing.assert_allclose(exact.pair("rstd").hi, (1 / scale).astype(float), rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_an_empty_batch_has_empty_results_and_zero_sums(dtype):
    case = build(recipe(dtype=dtype, batch=[0]))
    exact = Exact(case)
    assert exact.pair("y").hi.shape == (0, 5)
    assert exact.pair("dx").hi.shape == (0, 5)
    assert exact.pair("dweight").hi.tolist() == [0.0] * 5
