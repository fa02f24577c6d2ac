"""Transformer blocks against torch and certified balls, their bounds, and what softmax and gelu need."""

from __future__ import annotations

import flint
import mpmath
import numpy as np
import pytest

from lnverify.block import MASK
from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.evaluation import Evaluator
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import blocks as formulas
from lnverify.formulas import runtime
from lnverify.law import Outcome
from lnverify.mutants import norm_correct
from lnverify.norm_shrink import NormShrinker
from lnverify.norms.blocks import BlockBounds, BlockExact
from lnverify.norms.cases import make, shapes
from lnverify.norms.judge import judge
from lnverify.operation import blocks
from lnverify.operation import operation as find_operation
from lnverify.running import Context, Running

STYLES = [entry for entry in norm_correct() if entry.id.startswith("block-")]


def some(name: str, dtype: str = "float64", count: int = 4) -> list[Case]:
    """Without a mask, with a causal one, and with one that was drawn."""
    return [make(name, dtype, shape, "both", 1e-5, seed=k + 1) for k, shape in enumerate(shapes(name)[:count])]


def outputs(case: Case) -> list[str]:
    return ["y", *case.gradients()]


@pytest.mark.parametrize("entry", STYLES, ids=lambda entry: entry.id)
def test_a_block_agrees_with_float64_autograd(entry) -> None:
    subject, masks = entry.subject(), 0
    for case in some(entry.operation):
        answer = subject.run(case.request(*outputs(case)))
        assert len(outputs(case)) == 18
        masks += case.has(MASK)
        for name in outputs(case):
            exact = BlockExact(case).pair(name).hi
            off = np.abs(answer.arrays[name].values - exact).max()
            assert off <= 1e-13 * max(1.0, np.abs(exact).max()), name
    assert masks == 2


@pytest.mark.parametrize("name", blocks())
def test_exact_results_lie_in_certified_balls(name: str) -> None:
    ball = np.frompyfunc(flint.arb, 1, 1)
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        case = some(name)[0]
        exact = BlockExact(case)
        given = list(exact.inputs(lambda v: ball(v) if np.shape(v) else flint.arb(v)).values())
        forward = getattr(formulas, name)(*given)
        backward = getattr(formulas, f"{name}_vjp")(*given, *map(ball, exact.dys))
        for output in outputs(case):
            pair = exact.pair(output)
            scale = max(np.abs(pair.hi).max(), 2.0**-10) * 2.0**-80
            found = exact.result(output, forward if output in forward else backward)
            for value, hi, low in zip(found.flat, pair.hi.flat, pair.lo.flat, strict=True):
                assert abs(float((value - flint.arb(hi) - flint.arb(low)).mid())) <= scale, output
    finally:
        flint.ctx.prec = before


@pytest.mark.parametrize("name", blocks())
def test_forward_mode_and_reverse_mode_are_adjoint(name: str) -> None:
    exact = BlockExact(some(name)[0])
    given = list(exact.inputs(np.asarray).values())
    arguments = exact.operation.arguments
    moving = {n: np.cos(np.arange(exact.argument(n).size)).reshape(exact.argument(n).shape) for n in arguments}
    tangents = {**exact.moving("t"), **moving}.values()  # a slack has none
    forward = getattr(formulas, f"{name}_jvp")(*given, *tangents)
    reverse = getattr(formulas, f"{name}_vjp")(*given, *exact.dys)
    left = (forward["y_dot"] * exact.dys[0]).sum()
    assert left == pytest.approx(sum((reverse[f"{n}_bar"] * m).sum() for n, m in moving.items()), rel=1e-12)


def test_the_result_does_not_depend_on_what_softmax_subtracts() -> None:
    exact = BlockExact(some("transformer_block")[1])
    right = exact.pair("y").hi
    other = BlockExact(exact.case)
    other.__dict__["top"] = exact.top + 3.0
    assert np.abs(other.pair("y").hi - right).max() <= 1e-28
    assert np.abs(exact.pair("dbias_k").hi).max() <= 1e-28  # the same number added to every score of a row


@pytest.mark.parametrize("name", blocks())
def test_the_bound_sees_an_ordinary_block_and_stops_at_the_range(name: str) -> None:
    case = some(name, "float32")[0]
    bounds = BlockBounds(BlockExact(case), FORMATS["float32"])
    assert bounds.bound("y").max() < 5e-2 * np.abs(bounds.exact.pair("y").hi).max()
    wide = some(name, "float64")[0]
    fine = BlockBounds(BlockExact(wide), FORMATS["float64"])
    for output in outputs(wide):
        if output != "dbias_k":
            assert fine.bound(output).max() < 1e-5 * np.abs(fine.exact.pair(output).hi).max(), output
    far = wide.with_arrays(x=FloatArray.of(wide.arrays["x"].values * 2.0**700, "float64"))
    assert np.isinf(BlockBounds(BlockExact(far), FORMATS["float64"]).bound("dx")).all()
    huge = case.with_arrays(x=FloatArray.of(case.arrays["x"].values * 2.0**70, "float32"))
    assert np.isinf(BlockBounds(BlockExact(huge), FORMATS["float32"]).bound("y")).all()


def test_large_scores_widen_the_bound_until_it_admits_everything() -> None:
    case = some("transformer_block", "float32")[0]
    widths = []
    for power in (0, 4, 8, 24):
        scaled = FloatArray.of(case.arrays["weight_k"].values * 2.0**power, "float32")
        bounds = BlockBounds(BlockExact(case.with_arrays(weight_k=scaled)), FORMATS["float32"])
        widths.append(float(bounds.bound("y").max()))
    assert widths[0] < 1e-1
    assert widths == sorted(widths)
    assert np.isinf(widths[-1])


def test_the_judgement_of_y_does_not_depend_on_what_was_asked_before() -> None:
    case = some("transformer_block", "float32")[1]
    first = BlockBounds(BlockExact(case), FORMATS["float32"])
    alone = first.bound("y")
    second = BlockBounds(BlockExact(case), FORMATS["float32"])
    second.bound("dx")
    assert np.array_equal(alone, second.bound("y"))


def test_exp_and_the_normal_distribution_in_double_double_and_as_running_errors() -> None:
    values = np.concatenate([np.linspace(-16, 16, 129), -(2.0 ** np.arange(-40, 5)), [-1e3, 37.5]])
    wide = DoubleDouble(values)
    with np.errstate(all="ignore"):
        found = {name: getattr(wide, name)() for name in ("exp", "normal_cdf", "normal_pdf")}
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        for name, pair in found.items():
            for value, hi, low in zip(values, pair.hi, pair.lo, strict=True):
                right = getattr(runtime, name)(flint.arb(value))
                scale = max(1.0, abs(float(right.mid()))) if np.isfinite(hi) else 1.0
                assert abs(float((right - flint.arb(hi) - flint.arb(low)).mid())) < 2.0**-90 * scale, (name, value)
    finally:
        flint.ctx.prec = before
    context = Context(FORMATS["float32"])
    near = np.linspace(-6, 6, 241)
    for name in found:
        for error in (0.0, 1e-6, 0.5, 3.0):
            bound = getattr(Running(near, error, context), name)()
            for moved in (near - error, near + error, near + error / 3):
                right = getattr(runtime, name)(moved)
                assert (np.abs(right - bound.value) <= bound.error).all(), (name, error)


def test_functions_of_the_number_types_agree_and_refuse_what_has_none() -> None:
    for name in ("exp", "normal_cdf", "normal_pdf"):
        function = getattr(runtime, name)
        right = float(function(0.75))
        assert float(function(mpmath.mpf(0.75))) == pytest.approx(right, rel=1e-15)
        assert function(np.array([0.75]))[0] == pytest.approx(right, rel=1e-15)
        assert function(np.array([0.75], dtype=np.float32)).dtype == np.float32
        with pytest.raises(TypeError, match="for int"):
            function(1)
    with pytest.raises(TypeError, match="no normal distribution for float"):
        runtime.normal_cdf(np.zeros(2, dtype=np.longdouble))


def test_sums_that_may_be_parts_of_a_longer_one_carry_its_roundings() -> None:
    u = FORMATS["float32"].u
    plain, longer = Context(FORMATS["float32"]), Context(FORMATS["float32"], longest=50)
    values = np.array([3.0, 4.0])
    for context, terms in ((plain, 3), (longer, 51)):
        error = context.exact(values).sum(axis=0).error
        assert error == pytest.approx(7 * u * (terms + 4), rel=1e-6)
    apart = (longer.exact([3.0]) + longer.exact([-4.0])).error - (plain.exact([3.0]) + plain.exact([-4.0])).error
    assert apart == pytest.approx(7 * u * 50, rel=1e-6)
    assert (longer.exact([3.0]) + 0).error == (plain.exact([3.0]) + 0).error
    assert longer.peak == 7.0


def test_shrinking_a_block_keeps_its_shapes_together() -> None:
    def check(case: Case) -> Outcome:
        BlockExact(case).pair("dx")
        return Outcome("violated", 2.0, "y")

    case = make("transformer_block", "float64", ((2, 4, 8), (2, 4, 16)), "both", 1e-3, seed=1)
    found, _ = NormShrinker(check, 1e3, ("none",), "", (1e-5,)).run(case, check(case))
    assert {name: array.shape for name, array in found.arrays.items()} == {
        "x": (1, 1, 2), "weight_q": (2, 2), "weight_k": (2, 2), "weight_v": (2, 2), "weight_o": (2, 2),
        "weight_1": (1, 2), "weight_2": (2, 1), "mask": (1, 1), "dy": (1, 1, 2),
    }  # fmt: skip


@pytest.mark.parametrize("entry", [e for e in norm_correct() if e.operation in blocks()], ids=lambda entry: entry.id)
def test_large_scores_and_extreme_sizes_accuse_no_right_block(entry) -> None:
    """Scores of some hundreds, where an exponential without a maximum overflows, and constant or distant positions."""
    from lnverify.norms.cases import reduced

    subject = entry.subject()
    evaluator = Evaluator(subject)
    place = shapes(entry.operation, subject.capabilities.fixed_shape)[0]
    for number, regime in enumerate(("scaled", "constant", "far", "outlier", "huge", "tiny")):
        case = make(entry.operation, "float32", place, "both", 1e-5, regime=regime, seed=number + 1)
        evaluation = evaluator.evaluate(reduced(subject, case))
        for output in outputs(case):
            judgement = judge(evaluation, output)
            assert judgement.state in ("holds", "vacuous"), (regime, judgement.sentence())


def test_variants_are_named() -> None:
    assert find_operation("transformer_block", "post_ln").name == "transformer_block"
    assert find_operation("transformer_block", "pre_ln_gelu").name == "transformer_block_pre_ln_gelu"
    assert find_operation("transformer_block").fixed == ("mask",)
    assert blocks() == tuple(f"transformer_block{v}" for v in ("", "_pre_ln", "_post_ln_gelu", "_pre_ln_gelu"))
