"""The two figures that the suite lives by: every mutant is found, and no right implementation is accused.

Right implementations run here in two dtypes each; `tox -e selftest` runs all four, and `lnverify selftest` all that.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from lnverify.mutants import Correct, Mutant, all_correct, all_mutants, declared_mutants
from lnverify.selftest import examine_correct, examine_mutant, selftest

PAIRS = (("float32", "float16"), ("float64", "bfloat16"))


@pytest.mark.parametrize("mutant", [*all_mutants(), *declared_mutants()], ids=lambda m: m.id)
def test_a_mutant_is_found(mutant: Mutant) -> None:
    row = examine_mutant(mutant)
    assert row[3], row


@pytest.mark.parametrize(("number", "correct"), [*enumerate(all_correct())], ids=lambda c: getattr(c, "id", ""))
def test_a_right_implementation_is_not_accused(number: int, correct: Correct) -> None:
    dtypes = tuple(d for d in PAIRS[number % 2] if d in correct.dtypes) or correct.dtypes[:1]
    row = examine_correct(replace(correct, dtypes=dtypes))
    assert row[3], row
    print(row)  # the worst ratio of error and bound, shown by pytest -rP


def test_selftest_reports_both_kinds() -> None:
    outcome = selftest(only="two-pass-pairwise")
    assert outcome.ok
    assert [row[:2] for row in outcome.rows] == [("two-pass-pairwise", "correct")]
    assert "worst ratio 0." in outcome.rows[0][4]
