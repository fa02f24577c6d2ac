"""Recurrent cells: one step against torch and certified balls, its bound, and steps from the subject's own state."""

from __future__ import annotations

import flint
import numpy as np
import pytest

from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import cells as formulas
from lnverify.law import Outcome
from lnverify.mutants import norm_correct
from lnverify.norm_shrink import NormShrinker
from lnverify.norms.cases import make, shapes
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.norms.exact import KEYS
from lnverify.running import Context, Running


def some(dtype: str = "float64") -> list[Case]:
    return [make("ln_rnn", dtype, shape, "both", 1e-5, seed=k + 1) for k, shape in enumerate(shapes("ln_rnn")[:5])]


def test_one_step_agrees_with_float64_autograd() -> None:
    pytest.importorskip("torch")
    subject = next(entry for entry in norm_correct() if entry.id == "cell-by-layer-norm").subject()
    for case in some():
        names = ["y", *case.gradients()]
        assert names == ["y", "dx", "dh", "dweight_ih", "dweight_hh", "dweight", "dbias"]
        answer = subject.run(case.request(*names))
        for name in names:
            exact = CellExact(case).pair(name).hi
            off = np.abs(answer.arrays[name].values - exact).max()
            assert off <= 1e-13 * max(1.0, np.abs(exact).max()), name


def test_exact_results_lie_in_certified_balls() -> None:
    ball = np.frompyfunc(flint.arb, 1, 1)
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        for case in some()[:3]:
            exact = CellExact(case)
            given = [ball(exact.raw), *map(ball, exact.parameters), flint.arb(case.eps)]
            found = formulas.ln_rnn(*given) | formulas.ln_rnn_vjp(*given, ball(exact.dy))
            for name in ["y", *case.gradients()]:
                pair = exact.pair(name)
                scale = np.abs(pair.hi).max() * 2.0**-85
                for value, hi, low in zip(found[KEYS[name]].flat, pair.hi.flat, pair.lo.flat, strict=True):
                    assert abs(float((value - flint.arb(hi) - flint.arb(low)).mid())) <= scale, name
    finally:
        flint.ctx.prec = before


def test_tanh_in_double_double_and_as_a_running_error() -> None:
    values = np.concatenate([np.linspace(-45, 45, 181), 2.0 ** np.arange(-40, 5)])
    found = DoubleDouble(values).tanh()
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        for value, hi, low in zip(values, found.hi, found.lo, strict=True):
            assert abs(float(flint.arb(value).tanh() - flint.arb(hi) - flint.arb(low))) < 2.0**-98
    finally:
        flint.ctx.prec = before
    context = Context(FORMATS["float32"])
    for error in (0.0, 1e-6, 0.5):
        bound = Running(values, error, context).tanh()
        for moved in (values - error, values + error):
            assert (np.abs(np.tanh(moved) - bound.value) <= bound.error).all()


def test_forward_mode_and_reverse_mode_are_adjoint() -> None:
    exact = CellExact(some()[0])
    given = [exact.raw, *exact.parameters, exact.case.eps]
    moving = [np.cos(np.arange(v.size)).reshape(v.shape) for v in given[:6]]
    forward = formulas.ln_rnn_jvp(*given, *moving)["y_dot"]
    reverse = formulas.ln_rnn_vjp(*given, exact.dy)
    keys = ("x_bar", "h_bar", "U_bar", "V_bar", "gamma_bar", "beta_bar")
    right = sum((reverse[key] * m).sum() for key, m in zip(keys, moving, strict=True))
    assert (forward * exact.dy).sum() == pytest.approx(right, rel=1e-12)


def test_the_bound_sees_an_ordinary_step_and_stops_at_the_range() -> None:
    case = some("float32")[0]
    exact = CellExact(case)
    bounds = CellBounds(exact, FORMATS["float32"])
    for name in ["y", *case.gradients()]:
        assert bounds.bound(name).max() < 1e-3 * np.abs(exact.pair(name).hi).max()
    huge = case.with_arrays(x=FloatArray.of(case.arrays["x"].values * 2.0**70, "float32"))
    assert np.isinf(CellBounds(CellExact(huge), FORMATS["float32"]).bound("y")).all()


def test_shrinking_a_step_keeps_its_shapes_together() -> None:
    def check(case: Case) -> Outcome:
        CellExact(case).pair("dh")
        return Outcome("violated", 2.0, "y")

    case = some()[3]
    found, _ = NormShrinker(check, 1.0, ("none",), "", (1e-5,)).run(case, check(case))
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "x": (1, 1), "h": (1, 2), "weight_ih": (2, 1), "weight_hh": (2, 2), "dy": (1, 2),
    }  # fmt: skip
