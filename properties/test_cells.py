"""Recurrent cells: one step against torch and certified balls, its bound, and steps from the subject's own state."""

from __future__ import annotations

from dataclasses import replace

import flint
import numpy as np
import pytest

from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.errors import UsageError
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import cells as formulas
from lnverify.law import Outcome
from lnverify.mutants import norm_correct
from lnverify.norm_shrink import NormShrinker
from lnverify.norms.cases import make, shapes
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.operation import cells
from lnverify.operation import operation as find_operation
from lnverify.running import Context, Running

STYLES = [entry for entry in norm_correct() if entry.operation in cells()]


def some(name: str = "ln_rnn", dtype: str = "float64") -> list[Case]:
    return [make(name, dtype, shape, "both", 1e-5, seed=k + 1) for k, shape in enumerate(shapes(name)[:5])]


def outputs(case: Case) -> list[str]:
    return [*find_operation(case.operation).outputs, *case.gradients()]


@pytest.mark.parametrize("entry", STYLES, ids=lambda entry: entry.id)
def test_one_step_agrees_with_float64_autograd(entry) -> None:
    subject = entry.subject()
    for case in some(entry.operation):
        names = outputs(case)
        assert len(names) == len(find_operation(entry.operation).outputs) + len(
            find_operation(entry.operation).arguments
        )
        answer = subject.run(case.request(*names))
        for name in names:
            exact = CellExact(case).pair(name).hi
            off = np.abs(answer.arrays[name].values - exact).max()
            assert off <= 1e-13 * max(1.0, np.abs(exact).max()), name


@pytest.mark.parametrize("name", cells())
def test_exact_results_lie_in_certified_balls(name: str) -> None:
    ball = np.frompyfunc(flint.arb, 1, 1)
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        for case in some(name)[:1]:
            exact = CellExact(case)
            given = list(exact.inputs(lambda v: ball(v) if np.shape(v) else flint.arb(v)).values())
            forward = getattr(formulas, name)(*given)
            backward = getattr(formulas, f"{name}_vjp")(*given, *map(ball, exact.dys))
            for output in outputs(case):
                pair = exact.pair(output)
                scale = np.abs(pair.hi).max() * 2.0**-85
                found = exact.result(output, forward if output in forward else backward)
                for value, hi, low in zip(found.flat, pair.hi.flat, pair.lo.flat, strict=True):
                    assert abs(float((value - flint.arb(hi) - flint.arb(low)).mid())) <= scale, output
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


@pytest.mark.parametrize("name", cells())
def test_forward_mode_and_reverse_mode_are_adjoint(name: str) -> None:
    exact = CellExact(some(name)[0])
    given = list(exact.inputs(np.asarray).values())
    arguments = exact.operation.arguments
    moving = {n: np.cos(np.arange(exact.argument(n).size)).reshape(exact.argument(n).shape) for n in arguments}
    tangents = {**exact.moving("t"), **moving}.values()  # a slack has none
    forward = getattr(formulas, f"{name}_jvp")(*given, *tangents)
    reverse = getattr(formulas, f"{name}_vjp")(*given, *exact.dys)
    left = sum((forward[f"{n}_dot"] * dy).sum() for n, dy in zip(exact.operation.outputs, exact.dys, strict=True))
    assert left == pytest.approx(sum((reverse[f"{n}_bar"] * m).sum() for n, m in moving.items()), rel=1e-12)


@pytest.mark.parametrize("name", cells())
def test_the_bound_sees_an_ordinary_step_and_stops_at_the_range(name: str) -> None:
    case = some(name, "float32")[0]
    exact = CellExact(case)
    bounds = CellBounds(exact, FORMATS["float32"])
    for output in outputs(case):
        assert bounds.bound(output).max() < 2e-2 * np.abs(exact.pair(output).hi).max(), output
    big = {n: FloatArray.of(case.arrays[n].values * 2.0**70, "float32") for n in ("x", "weight_ih")}
    huge = case.with_arrays(**big)
    assert np.isinf(CellBounds(CellExact(huge), FORMATS["float32"]).bound("y")).all()


def test_a_step_at_the_kink_of_relu_admits_either_side() -> None:
    context = Context(FORMATS["float32"])
    found = Running([-1.0, -1e-7, 0.0, 1e-7, 1.0], [1e-6, 1e-6, 0.0, 1e-6, 1e-6], context).step()
    assert found.value.tolist() == [0, 0, 0, 1, 1]
    assert found.error.tolist() == [0, 1, 1, 1, 0]


def test_the_paper_s_lstm_does_not_see_the_scale_of_x_and_the_one_with_a_norm_per_gate_does() -> None:
    """At eps = 0, where the invariance is exact; U and V have norms of their own in the paper's cell only."""
    for name, same in (("ln_lstm", True), ("ln_lstm_per_gate", False), ("ln_lstm_cell_only", False)):
        case = make(name, "float64", ((2, 3), (4,)), "both", 0.0)
        for array, factor in (("x", 8.0), ("weight_ih", 8.0), ("weight_hh", 0.25)):
            scaled = case.with_arrays(**{array: FloatArray.of(case.arrays[array].values * factor, "float64")})
            apart = np.abs(CellExact(scaled).pair("y").hi - CellExact(case).pair("y").hi).max()
            assert apart < 1e-14 if same else apart > 1e-3, (name, array)


def test_the_gradient_of_h_does_not_see_the_scale_of_the_recurrent_matrix_where_it_is_normalised_alone() -> None:
    """At eps = 0: LN(s V h) is LN(V h), and so is its derivative by h, which does not shrink or grow with s."""
    for name, same in (("ln_lstm", True), ("ln_gru", True), ("ln_lstm_cell_only", False)):
        case = make(name, "float64", ((2, 3), (4,)), "both", 0.0)
        scaled = {n: FloatArray.of(case.arrays[n].values * 16, "float64") for n in ("weight_hh", "weight_hn")
                  if case.has(n)}  # fmt: skip
        apart = np.abs(CellExact(case.with_arrays(**scaled)).pair("dh").hi - CellExact(case).pair("dh").hi).max()
        assert apart < 1e-13 if same else apart > 1e-3, name


def test_adding_one_vector_to_every_row_of_a_normalised_matrix_changes_nothing_in_the_paper_s_lstm() -> None:
    for name, same in (("ln_lstm", True), ("ln_lstm_cell_only", False)):
        case = make(name, "float64", ((2, 3), (4,)), "both", 1e-5)
        moved = case.arrays["weight_ih"].values + np.array([1.0, -2.0, 0.5])
        apart = np.abs(CellExact(case.with_arrays(weight_ih=FloatArray.of(moved, "float64"))).pair("y").hi
                       - CellExact(case).pair("y").hi).max()  # fmt: skip
        assert apart < 1e-13 if same else apart > 1e-3, name


def test_the_three_biases_of_the_paper_s_lstm_are_one() -> None:
    exact = CellExact(make("ln_lstm", "float64", ((5, 7), (16,)), "both", 1e-5))
    assert np.array_equal(exact.pair("dbias").hi, exact.pair("dshift_h").hi)
    assert np.array_equal(exact.pair("dbias").hi, exact.pair("dshift_x").hi)


def test_the_two_conventions_of_the_gru_differ_by_the_sign_of_the_z_rows_of_gains_and_shifts() -> None:
    case = make("ln_gru", "float64", ((2, 3), (4,)), "both", 1e-5)
    signs = np.repeat([1.0, -1.0], 4)  # rows of r, then of z
    turned = {n: FloatArray.of(case.arrays[n].values * signs, "float64") for n in
              ("gain_h", "shift_h", "gain_x", "shift_x")}  # fmt: skip
    other = replace(case.with_arrays(**turned), operation="ln_gru_z_keeps")
    assert np.abs(CellExact(other).pair("y").hi - CellExact(case).pair("y").hi).max() < 1e-15
    assert np.abs(CellExact(case).pair("y").hi).max() <= max(1.0, np.abs(case.arrays["h"].values).max())


def test_shrinking_a_step_keeps_its_shapes_together() -> None:
    def check(case: Case) -> Outcome:
        CellExact(case).pair("dh")
        return Outcome("violated", 2.0, "y")

    case = some()[3]
    found, _ = NormShrinker(check, 1.0, ("none",), "", (1e-5,)).run(case, check(case))
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "x": (1, 1), "h": (1, 2), "weight_ih": (2, 1), "weight_hh": (2, 2), "dy": (1, 2),
    }  # fmt: skip
    case = some("ln_lstm")[3]
    found, _ = NormShrinker(check, 1.0, ("none",), "", (1e-5,)).run(case, check(case))
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "x": (1, 1), "h": (1, 2), "c": (1, 2), "weight_ih": (8, 1), "weight_hh": (8, 2), "dy": (1, 2), "dcy": (1, 2),
    }  # fmt: skip
    assert find_operation("ln_lstm", "paper").name == "ln_lstm"


def test_variants_are_named_and_a_wrong_one_is_told() -> None:
    assert [find_operation("ln_lstm", v).name for v in ("per_gate", "cell_only")] == [
        "ln_lstm_per_gate", "ln_lstm_cell_only",
    ]  # fmt: skip
    with pytest.raises(UsageError, match="has no variant 'lstm': choose from paper, per_gate"):
        find_operation("ln_lstm", "lstm")
    with pytest.raises(UsageError, match="rms_norm has no variant 'paper': leave the variant out"):
        find_operation("rms_norm", "paper")
