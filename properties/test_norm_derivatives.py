"""Norms other than layer norm: double backward and forward mode against autograd, certified balls, and mutants."""

from __future__ import annotations

import flint
import numpy as np
import pytest

from lnverify.evaluation import Evaluator
from lnverify.floats import FORMATS
from lnverify.formulas import norms_second_order
from lnverify.law import load_laws
from lnverify.laws.operation_derivatives import _subsets
from lnverify.mutants import norm_correct
from lnverify.norms.bound import NormBounds
from lnverify.norms.cases import cases, make, shapes, with_tangents
from lnverify.norms.exact import KEYS, Exact
from lnverify.norms.judge import measure
from lnverify.norms.support import find_support
from lnverify.operation import norms, operation

COMPOSED = {
    "rms_norm": "norms-rms-op-by-op", "group_norm": "norms-group-folded",
    "instance_norm": "norms-instance-by-layer-norm",
    "batch_norm": "norms-batch-by-hand", "batch_norm_eval": "norms-eval-folded",
    "layer_norm_channels": "norms-channels-by-hand", "layer_norm_eps_outside": "norms-outside-by-hand",
    "weight_norm": "norms-weight-by-hand",
}  # fmt: skip
LAWS = ("LN809", "LN813", "LN814")


def subject(name: str):
    """A right implementation that autograd differentiates by itself."""
    return next(entry for entry in norm_correct() if entry.id == COMPOSED[name]).subject()


def ordinary(name: str):
    """Two cases with tangents."""
    affine = "both" if "bias" in operation(name).parameters else "weight"
    return [
        with_tangents(make(name, "float64", shape, affine, 1e-3, seed=k + 1))
        for k, shape in enumerate(shapes(name)[1:3])
    ]


def twice(case) -> list[str]:
    return [*(f"d2{name}" for name in case.requires_grad), "d2dy"]


@pytest.mark.parametrize("name", norms())
def test_derived_programs_agree_with_float64_autograd(name: str) -> None:
    pytest.importorskip("torch")
    for case in ordinary(name):
        exact = Exact(case)
        for wanted in (["ty"], twice(case)):
            answer = subject(name).run(case.request(*wanted))
            assert answer.refusal is None, answer.refusal
            for output in wanted:
                right = exact.pair(output).hi
                got = answer.arrays.get(output)
                values = np.zeros(right.shape) if got is None else got.values.reshape(right.shape)
                assert np.abs(values - right).max() <= 1e-13 * max(1.0, np.abs(right).max()), output


@pytest.mark.parametrize("name", norms())
def test_double_backward_lies_in_certified_balls(name: str) -> None:
    """Balls of 300 bits on the raw x enclose what double-double gives, to 2^-85 of the largest result."""
    ball = np.frompyfunc(flint.arb, 1, 1)
    before = flint.ctx.prec
    case = ordinary(name)[0]
    exact = Exact(case)
    try:
        flint.ctx.prec = 300
        given = exact.given(ball(exact.raw), lambda v: ball(v) if isinstance(v, np.ndarray) else flint.arb(v))
        found = getattr(norms_second_order, f"{operation(name).formula}_vjp_vjp")(
            *given, ball(exact.dys[0]), *map(ball, exact.along("v"))
        )
        for output in twice(case):
            pair = exact.pair(output)
            scale = max(1.0, np.abs(pair.hi).max()) * 2.0**-85
            assert np.shape(found[KEYS[output]]) == pair.hi.shape
            for value, hi, low in zip(found[KEYS[output]].flat, pair.hi.flat, pair.lo.flat, strict=True):
                assert abs(float((value - flint.arb(hi) - flint.arb(low)).mid())) <= scale, output
    finally:
        flint.ctx.prec = before


@pytest.mark.parametrize("name", norms())
def test_bounds_move_with_u_and_see_an_ordinary_case(name: str) -> None:
    exact = Exact(ordinary(name)[0])
    fine, coarse = NormBounds(exact, FORMATS["float32"]), NormBounds(exact, FORMATS["bfloat16"])
    if operation(name).data:
        fine, coarse = (measure(exact.case, dtype) for dtype in ("float32", "bfloat16"))
    for output in ("ty", *twice(exact.case)):
        size = np.abs(exact.pair(output).hi).max()
        if size == 0:  # d2bias
            continue
        assert fine.bound(output).max() < 1e-2 * max(size, 1e-2), output
        assert (coarse.bound(output) >= 1000 * fine.bound(output)).all(), output


@pytest.mark.parametrize("name", norms())
def test_laws_hold_for_what_autograd_differentiates(name: str) -> None:
    pytest.importorskip("torch")
    laws = [load_laws()[law] for law in LAWS]
    for dtype, count in (("float64", 5), ("float32", 13), ("bfloat16", 5)):
        support = find_support(subject(name), name, dtype, "cpu")
        assert not isinstance(support, str)
        assert {"ty", "d2x"} <= set(support.outputs)
        evaluator = Evaluator(support.subject)
        informed = 0
        for case in cases(support, name, count, 0):
            for law in laws:
                outcome = law.check(evaluator.evaluate(case))
                assert not outcome.bad, (dtype, law.id, case.label, outcome.message)
                informed += outcome.informative
        assert informed >= 3


@pytest.mark.parametrize(
    ("name", "sets"), [("group_norm", 6), ("rms_norm", 2), ("ln_lstm", 5), ("ln_rnn", 5), ("transformer_block", 4)]
)
def test_of_many_arguments_a_few_sets_are_asked_for(name: str, sets: int) -> None:
    """A block has 17: all their sets would be 131070 requests."""
    case = make(name, "float32", shapes(name)[0], "both", 1e-3)
    found = list(_subsets(case, [n for n in operation(name).arguments if case.has(n)]))
    assert len(found) == sets
    assert all(0 < len(subset) < len(operation(name).arguments) for subset in found)


@pytest.mark.parametrize("name", ["ln_rnn", "ln_lstm", "ln_gru"])
def test_gradients_of_a_right_cell_may_be_asked_for_alone(name: str) -> None:
    entry = next(entry for entry in norm_correct() if entry.operation == name)
    support = find_support(entry.subject(), name, "float32", "cpu")
    assert not isinstance(support, str)
    evaluator = Evaluator(support.subject)
    outcomes = [load_laws()["LN809"].check(evaluator.evaluate(case)) for case in cases(support, name, 4, 0)]
    assert [outcome.message for outcome in outcomes if outcome.bad] == []
    assert any(outcome.informative for outcome in outcomes)
