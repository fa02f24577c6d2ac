"""Running errors enclose what float32 does: operation by operation, and for the jvp and the double backward in
several arrangements of the same mathematics. They are finite and useful on ordinary data.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, target

from lnverify.bounds import Precision
from lnverify.case import Case
from lnverify.derivative_bounds import DerivativeBounds
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import layer_norm as first
from lnverify.formulas import layer_norm_second_order as second
from lnverify.oracle import Exact
from lnverify.recipes import build
from lnverify.row_range import row_range
from lnverify.running import Context, Running
from properties.certified import KEYS, SUFFIX
from properties.drawing import quiet, recipe, recipes
from properties.right_algorithms import serial, two_pass

SINGLE = FORMATS["float32"]
SECOND = ("d2x", "d2dy", "d2weight", "d2bias")
WORST: dict[str, float] = {}


@pytest.fixture(scope="module", autouse=True)
def report():
    """Print the worst ratios (shown by pytest -s)."""
    yield
    for key, ratio in sorted(WORST.items()):
        print(f"error over running error: {key} {ratio:.3f}")


def operands(rng: np.random.Generator, count: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Values, float32 numbers near them (some equal to them), and the least errors that admit the latter."""
    values = rng.standard_normal(count) * 2.0 ** rng.integers(-20, 20, count)
    values = np.where(rng.random(count) < 0.2, np.float32(values).astype(float), values)
    moves = rng.choice([-1.0, 0.0, 1.0], count) * 2.0 ** -rng.integers(4, 30, count)
    moved = np.float32(values * (1 + moves))
    return values, moved, np.abs(moved - values)


OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "difference": lambda a, b: a - b,
    "product": lambda a, b: a * b,
    "quotient": lambda a, b: a / b,
    "reciprocal": lambda a, b: 1 / b,
    "from the left": lambda a, b: 3 - a,
    "root": lambda a, b: (a * a + b * b).sqrt() if isinstance(a, Running) else np.sqrt(a * a + b * b),
    "cube": lambda a, b: a**3,
    "power": lambda a, b: b**-2,
    "sum over an axis": lambda a, b: (a * b).sum(axis=0),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_every_operation_encloses_what_float32_makes_of_erroneous_operands(name):
    """Operands at the ends of their errors, then float32 arithmetic: a random search for an escape."""
    rng = np.random.default_rng(7)
    context, operation, used = Context(SINGLE), OPERATIONS[name], 0.0
    for _ in range(300):
        (a, near_a, error_a), (b, near_b, error_b) = operands(rng, 24), operands(rng, 24)
        bound = operation(Running(a, error_a, context), Running(b, error_b, context)).error
        assert np.isfinite(bound).all()
        miss = np.abs(operation(near_a, near_b) - operation(a.astype(np.longdouble), b.astype(np.longdouble)))
        assert (miss <= bound).all()
        used = max(used, float((miss / bound).max()))
    assert used > 0.5  # nor is it far too wide


@pytest.mark.parametrize("name", OPERATIONS)
def test_exact_operands_leave_room_for_float32_roundings(name):
    """One operation of the formula admits ROUNDINGS roundings, of which float32 needs one to three here."""
    rng = np.random.default_rng(11)
    operation, used = OPERATIONS[name], 0.0
    for _ in range(100):
        (_, a, _), (_, b, _) = operands(rng, 24), operands(rng, 24)
        context = Context(SINGLE)
        bound = operation(context.exact(a), context.exact(b)).error
        miss = np.abs(operation(a, b) - operation(a.astype(np.longdouble), b.astype(np.longdouble)))
        assert (miss <= bound).all()
        used = max(used, float((miss / bound).max()))
    assert used > 0.02


def test_what_cannot_be_bounded_is_infinite_and_never_nan():
    context = Context(SINGLE)
    wide = Running([1.0, 1.0], [2.0, 0.5], context)
    for made in (1 / wide, wide.sqrt()):
        assert made.error[0] == math.inf
        assert np.isfinite(made.error[1])
    nothing = context.exact([0.0]) / context.exact([0.0])
    assert nothing.error[0] == math.inf
    assert (nothing + 1).error[0] == math.inf
    assert (nothing * 0).error[0] == math.inf


def test_zero_is_exact_and_zeros_cost_no_sum():
    context = Context(SINGLE)
    assert (context.exact([0.0]) * context.exact([3.0])).error[0] == 0
    one = context.exact([0.0, 0.0, 5.0, 0.0]).sum(axis=0)
    assert float(one.error) == pytest.approx((1 + 4) * SINGLE.u * 5, rel=1e-9)
    many = context.exact([5.0] * 4).sum(axis=0)
    assert float(many.error) == pytest.approx((5 + 4) * SINGLE.u * 20, rel=1e-9)
    pair = Context(SINGLE, "pair").exact([5.0] * 4).sum(axis=0)
    assert float(pair.error) == pytest.approx((3 + 4) * SINGLE.u * 20, rel=1e-9)


# Whole derivatives. Each arrangement returns float32 arrays by output.


def inputs(case: Case, kind: str) -> tuple[Any, ...]:
    """x, parameters, eps and the tangents of one kind, as float32."""
    present = [p for p in ("weight", "bias") if case.has(p)]

    def single(name: str) -> np.ndarray:
        return np.float32(case.matrix(name) if name.endswith("x") else case.vector(name))

    plain, tangents = [single(p) for p in ("x", *present)], [single(f"{kind}{p}") for p in ("x", *present)]
    return plain, np.full(case.rows, np.float32(case.eps)), tangents


def generated(case: Case) -> dict[str, Any]:
    """The derived formulas, as they are, in float32."""
    suffix = SUFFIX[case.has("weight"), case.has("bias")]
    plain, eps, tangents = inputs(case, "t")
    found = dict(getattr(first, f"layer_norm{suffix}_jvp")(*plain, eps, *tangents))
    _, _, cotangents = inputs(case, "v")
    dy = np.float32(case.matrix("dy"))
    found |= getattr(second, f"layer_norm{suffix}_vjp_vjp")(*plain, eps, dy, *cotangents)
    return {name: found[KEYS[name]] for name in ("ty", *SECOND) if KEYS[name] in found}


def by_raw_sums(case: Case) -> dict[str, Any]:
    """The jvp from sums of x dx and of dx, xhat as x rstd - mean rstd: no deviation is ever built."""
    (x, *parameters), eps, (tx, *moved) = inputs(case, "t")
    weight = parameters[0] if case.has("weight") else np.ones(case.n, dtype=np.float32)
    mean, rstd = two_pass(x, eps, serial)
    n, r = np.float32(case.n), rstd[:, None]
    xhat = x * r + (-mean * rstd)[:, None]
    mean_t, cross = serial(tx) / n, serial(tx * x) / n
    slope = (cross - mean * mean_t) * rstd * rstd
    ty = (tx * r - (mean_t * rstd)[:, None] - xhat * slope[:, None]) * weight
    for name, tangent in zip([p for p in ("weight", "bias") if case.has(p)], moved, strict=True):
        ty = ty + (xhat * tangent if name == "weight" else tangent)
    return {"ty": ty}


def by_torch(case: Case) -> dict[str, Any]:
    """Composed operations of torch, differentiated by autograd twice, and its forward mode."""
    plain, _, tangents = inputs(case, "t")
    _, _, cotangents = inputs(case, "v")
    present = ["x", *(p for p in ("weight", "bias") if case.has(p))]

    def composed(*given: Any) -> Any:
        named = dict(zip(present, given, strict=True))
        x = named["x"]
        d = x - x.mean(-1, keepdim=True)
        y = d * torch.rsqrt((d * d).mean(-1, keepdim=True) + case.eps)
        y = y * named["weight"] if "weight" in named else y
        return y + named["bias"] if "bias" in named else y

    leaves = [torch.tensor(v, requires_grad=True) for v in plain]
    dy = torch.tensor(np.float32(case.matrix("dy")), requires_grad=True)
    grads = torch.autograd.grad(composed(*leaves), leaves, dy, create_graph=True)
    again = torch.autograd.grad(
        grads, [*leaves, dy], [torch.tensor(v) for v in cotangents], allow_unused=True, materialize_grads=True
    )
    found = dict(zip([*(f"d2{p}" for p in present), "d2dy"], (g.numpy() for g in again), strict=True))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # torch compiles its decompositions by torch.jit
        _, ty = torch.func.jvp(composed, tuple(map(torch.tensor, plain)), tuple(map(torch.tensor, tangents)))
    return {"ty": ty.numpy(), **found}


def used(case: Case, found: dict[str, Any], tier: str = "det") -> dict[str, float]:
    """Error over bound by output, where the rows are in range and the bound is finite."""
    exact, precision = Exact(case), Precision.of("float32")
    bounds, limits = DerivativeBounds(case, exact, precision, tier), row_range(case, exact, precision)
    off = limits.excused | limits.grey | limits.backward
    ratios = {}
    for name, got in found.items():
        bound = bounds.bound(name)
        assert not np.isnan(bound).any(), name
        with np.errstate(all="ignore"):
            miss = np.abs(got.astype(np.float64) - exact.pair(name).hi)
            ratio = np.where((miss == 0) | ~np.isfinite(bound), 0.0, miss / bound)
        judged = ~off[:, None] if ratio.ndim == 2 else np.full(ratio.shape, not off.any())
        ratios[name] = float(ratio.max(where=judged, initial=0.0))
    return ratios


@pytest.mark.parametrize("arrangement", [generated, by_raw_sums, by_torch])
def test_right_derivatives_stay_within_their_running_errors(arrangement):
    @quiet(80)
    @given(recipes(("float32",), tangents=True, scales=(-12, 12), sizes=(1, 2, 3, 5, 9, 17)))
    def climb(drawn):
        case = build(drawn)
        with np.errstate(all="ignore"):
            found = used(case, arrangement(case))
        for name, ratio in found.items():
            key = f"{name} {arrangement.__name__}"
            WORST[key] = max(WORST.get(key, 0.0), ratio)
            assert ratio < 1, (name, ratio, case.label)
        target(max(found.values()), label="error over running error")

    climb()


def test_a_tangent_that_is_not_centred_is_admitted():
    """mean(xhat t) is mean(xhat (t - mean t)), and loses more where t is nearly constant and x far from zero."""
    x = np.array([[1000.25, 1001.5]], dtype=np.float32)
    t = np.array([[100.0, 100.001]], dtype=np.float32)
    case = Case(
        "layer_norm", "float32", (2,), {name: FloatArray.of(v.astype(float), "float32") for name, v in
        (("x", x), ("tx", t))}, 1e-5, requires_grad=("x",),
    )  # fmt: skip
    single = np.float32
    for mean in (x.mean(dtype=single), np.nextafter(x.mean(dtype=single), single(0))):  # right, and right to an ulp
        d = x - mean
        r = single(1) / np.sqrt((d * d).mean(dtype=single) + single(1e-5))
        ty = r * (t - t.mean(dtype=single) - d * r * (d * r * t).mean(dtype=single))
        bound = DerivativeBounds(case, Exact(case), Precision.of("float32")).bound("ty")
        assert (np.abs(ty - Exact(case).pair("ty").hi) < bound).all()


@pytest.mark.parametrize("size", [5, 64])
@pytest.mark.parametrize("mean", [0.0, 10.0])
def test_bounds_of_derivatives_are_finite_and_useful_on_ordinary_data(size, mean):
    """Below a thousandth of the largest result at mean 0, so that a missing term shows: each result without one
    of its parts is flagged."""
    case = build(recipe(shape=[size], mean=mean, tangents=True))
    exact = Exact(case)
    for name in ("ty", *SECOND):
        bound, truth = DerivativeBounds(case, exact, Precision.of("float32")).bound(name), exact.pair(name).hi
        assert np.isfinite(bound).all()
        if name != "d2bias":  # which is zero
            assert np.abs(truth).max() > (1000 if mean == 0 else 20) * bound.max(), name
            assert (DerivativeBounds(case, exact, Precision.of("float32"), "pair").bound(name) <= bound).all()
    without = case.with_arrays(tweight=FloatArray.of(np.zeros(size), "float32"))
    wrong = {"ty": Exact(without).pair("ty").hi}
    assert used(case, wrong)["ty"] > 10
    no_cotangent = case.with_arrays(vweight=FloatArray.of(np.zeros(size), "float32"))
    assert used(case, {"d2x": Exact(no_cotangent).pair("d2x").hi})["d2x"] > 10


def test_sixteen_bits_are_admitted_in_their_own_format():
    case = build(recipe(dtype="bfloat16", tangents=True))
    half, single = (DerivativeBounds(case, Exact(case), Precision.of(d)).bound("ty") for d in ("bfloat16", "float32"))
    assert (half > 1000 * single).all()
