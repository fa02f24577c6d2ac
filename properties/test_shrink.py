"""Shrinking: planted faults become a few numbers, within the budget, the same way every time."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.case import Case
from lnverify.law import HOLDS, Outcome
from lnverify.recipes import build
from lnverify.shrink import Shrinker, cost, take_columns, take_rows

AFFINE = ("both", "weight", "bias", "none")


def case(rows: int = 33, n: int = 65, dtype: str = "float32") -> Case:
    return build({
        "dtype": dtype, "batch": [rows], "shape": [n], "regime": "normal", "mean": 3.0, "scale": 0, "weight": "normal",
        "bias": "normal", "dy": "normal", "eps": 0.1, "seed": 5, "grads": ["x"], "threads": 2,
    })  # fmt: skip


def violated(cause: str = "planted") -> Outcome:
    return Outcome("violated", 2.0, "y", cause=cause)


def test_a_fault_on_everything_shrinks_to_one_number_and_a_plain_setting() -> None:
    small, outcome = Shrinker(lambda c: violated(), 5.0, AFFINE).run(case(), violated())
    assert outcome.bad
    assert (small.rows, small.n) == (1, 1)
    assert set(small.arrays) == {"x", "dy"}
    assert small.eps == 1e-5
    assert small.threads is None
    assert small.requires_grad == ("x", "weight", "bias")
    assert small.arrays["x"].values.tolist() == [[0.0]]


def test_a_fault_that_needs_rows_and_columns_keeps_just_enough() -> None:
    def check(c: Case) -> Outcome:
        return violated() if c.rows >= 5 and c.n >= 3 else HOLDS

    small, _ = Shrinker(check, 5.0, AFFINE).run(case(), violated())
    assert 5 <= small.rows <= 9
    assert small.n == 3


def test_a_fault_at_a_large_mean_becomes_familiar_numbers() -> None:
    def check(c: Case) -> Outcome:
        x = c.matrix("x")
        return violated() if c.n >= 2 and np.abs(x.mean()) > 500 and x.std() > 0 else HOLDS

    given = case(1, 2)
    given = given.with_arrays(x=type(given.arrays["x"]).of(given.arrays["x"].values * 1.37 + 81234.5, "float32"))
    small, _ = Shrinker(check, 5.0, AFFINE).run(given, violated())
    assert small.arrays["x"].values.tolist() == [[1000.0, 1001.0]]


@pytest.mark.parametrize("budget", [0.0, 0.02, 0.3])
def test_the_budget_is_kept_and_counts_calls(budget: float) -> None:
    given = case()
    spent = 0.0

    def check(c: Case) -> Outcome:
        nonlocal spent
        spent += cost(c)
        return violated() if c.n > 40 else HOLDS

    shrinker = Shrinker(check, budget, AFFINE)
    small, outcome = shrinker.run(given, violated())
    assert outcome.bad
    assert small.n > 40
    assert spent <= budget + cost(given)
    assert (shrinker.calls > 0) == (budget > 0)


def test_another_cause_is_not_followed() -> None:
    def check(c: Case) -> Outcome:
        return violated("planted" if c.rows > 8 else "another")

    small, outcome = Shrinker(check, 5.0, AFFINE, cause="planted").run(case(), violated())
    assert small.rows == 9
    assert outcome.cause == "planted"


def test_shrinking_is_deterministic() -> None:
    def check(c: Case) -> Outcome:
        return violated() if c.n >= 4 and float(c.matrix("x").max(initial=0.0)) > 2 else HOLDS

    runs = [Shrinker(check, 1.0, AFFINE).run(case(), violated())[0] for _ in range(2)]
    assert runs[0].arrays["x"].sha256 == runs[1].arrays["x"].sha256


def test_rows_and_columns_are_taken_from_every_array_of_their_kind() -> None:
    given = case(4, 6)
    rows = take_rows(given, slice(1, 3))
    assert np.array_equal(rows.matrix("x"), given.matrix("x")[1:3])
    assert np.array_equal(rows.matrix("dy"), given.matrix("dy")[1:3])
    assert np.array_equal(rows.vector("weight"), given.vector("weight"))
    columns = take_columns(given, slice(2, 5))
    assert np.array_equal(columns.matrix("x"), given.matrix("x")[:, 2:5])
    assert np.array_equal(columns.vector("bias"), given.vector("bias")[2:5])
    assert columns.normalized_shape == (3,)
