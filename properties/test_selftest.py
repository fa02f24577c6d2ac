"""The two figures that the suite lives by: every mutant is found, and no right implementation is accused.

Right implementations run here in one dtype each, in turn; `tox -e selftest` runs all four.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lnverify.mutants import Correct, Mutant, all_correct, all_mutants, declared_mutants
from lnverify.selftest import examine_correct, examine_mutant, selftest

DTYPES = ("float32", "bfloat16", "float64", "float16")


@pytest.mark.heavy
@pytest.mark.parametrize("mutant", [*all_mutants(), *declared_mutants()], ids=lambda m: m.id)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    row = examine_mutant(mutant)
    assert row[3], row


@pytest.mark.heavy
@pytest.mark.parametrize(("number", "correct"), [*enumerate(all_correct())], ids=lambda c: getattr(c, "id", ""))
def test_a_right_implementation_is_not_accused(number: int, correct: Correct) -> None:
    dtype = DTYPES[number % 4]
    row = examine_correct(replace(correct, dtypes=(dtype if dtype in correct.dtypes else correct.dtypes[0],)))
    assert row[3], row
    print(row)  # the worst ratio of error and bound, shown by pytest -rP


def test_selftest_reports_both_kinds() -> None:
    outcome = selftest(only="two-pass-pairwise")
    assert outcome.ok
    assert [row[:2] for row in outcome.rows] == [("two-pass-pairwise", "correct")]
    assert "worst ratio 0." in outcome.rows[0][4]
