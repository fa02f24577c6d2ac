"""What is kept in 16 bits is told from rounding points: each mutant by its own cause, no right implementation."""

from __future__ import annotations

import pytest

from lnverify.case import Case
from lnverify.diagnosis import STATISTICS_16, STATISTICS_KEPT_16, SUMS_16
from lnverify.evaluation import Evaluator
from lnverify.mutants import Correct, all_correct, all_mutants
from lnverify.recipes import build
from lnverify.sixteen_bits import STORED_16, kept_in_16_bits

MUTANTS = {m.id: m for m in all_mutants()}
LOW = [c for c in all_correct() if "bfloat16" in c.dtypes]


def case(dtype: str, n: int, rows: int, **changes: object) -> Case:
    return build({"dtype": dtype, "batch": [rows], "shape": [n], "regime": "normal", "mean": 0.5, "scale": 0,
                  "eps": 1e-5, "seed": 3, "weight": "normal", "bias": "normal", "dy": "normal", "device": "cpu",
                  **changes})  # fmt: skip


@pytest.mark.parametrize(
    ("id", "dtype", "output", "cause"),
    [
        ("squares-kept-low", "bfloat16", "y", STATISTICS_KEPT_16),
        ("rstd-rounded-in-backward", "bfloat16", "dx", STATISTICS_16),
        ("rstd-rounded-in-backward", "bfloat16", "dweight", STATISTICS_16),
        ("saved-rounded", "bfloat16", "dx", STATISTICS_16),
        ("sums-bfloat16-partials", "bfloat16", "dweight", SUMS_16),
        ("sums-bfloat16-partials-128", "bfloat16", "dweight", SUMS_16),
    ],
)
def test_a_mutant_is_told_by_its_cause(id: str, dtype: str, output: str, cause: str) -> None:
    evaluation = Evaluator(MUTANTS[id].subject()).evaluate(case(dtype, 520, 300))
    assert kept_in_16_bits(evaluation, output) == cause


def test_a_float32_dweight_that_was_rounded_is_told() -> None:
    evaluation = Evaluator(MUTANTS["dweight-in-dtype-of-x"].subject())
    mixed = case("bfloat16", 64, 12, parameters="float32")
    assert mixed.arrays["weight"].dtype == "float32"
    assert kept_in_16_bits(evaluation.evaluate(mixed), "dweight") == STORED_16


@pytest.mark.parametrize("correct", LOW, ids=lambda c: c.id)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_no_right_implementation_is_said_to_keep_16_bits(correct: Correct, dtype: str) -> None:
    for n, rows in ((64, 40), (300, 130)):
        evaluation = Evaluator(correct.subject()).evaluate(case(dtype, n, rows))
        for output in ("y", "dx", "dweight"):
            assert kept_in_16_bits(evaluation, output) == "", (n, rows, output)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("changes", [{"eps": 10.0}, {"eps": 10.0, "bias": None}, {"mean": 0.0, "bias": None}])
def test_a_rounded_xhat_is_no_statistic_in_16_bits_where_eps_outweighs_the_variance(dtype, changes) -> None:
    op_by_op = next(c for c in LOW if c.id == "op-by-op")
    for n, rows in ((128, 2), (512, 16)):
        evaluation = Evaluator(op_by_op.subject()).evaluate(case(dtype, n, rows, **changes))
        assert evaluation.settle("y")[1] == "points"
        assert kept_in_16_bits(evaluation, "y") == ""
