"""Outcomes: what a judgement becomes where a law asks in another way, and which of several outcomes stands."""

from __future__ import annotations

import pytest

from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, first_bad
from tests import report_samples as samples


@pytest.mark.parametrize(
    ("judgement", "sentence"),
    [
        (Judgement("y", "violated", 3.0, (1,), 1.0, 2.0, 0.3), "Twice: y[1] is 2, exact 1: 3 times what any"),
        (Judgement("dx", "missing"), "Twice: dx is missing."),
        (Judgement("y", "shape", message="y has shape (2,), (1, 2) is right."), "Twice: y has shape (2,), (1, 2) is"),
    ],
)
def test_what_is_wrong_is_blamed_with_a_cause_and_a_case(judgement: Judgement, sentence: str) -> None:
    case = samples.case()
    outcome = judgement.blame("Twice", "it is kept", case)
    assert judgement.wrong
    assert (outcome.state, outcome.cause, outcome.output) == ("violated", "it is kept", judgement.output)
    assert outcome.message.startswith(sentence)
    assert outcome.case is case
    assert outcome.ratio == (3.0 if judgement.state == "violated" else float("inf"))


def test_what_holds_or_informs_nobody_is_not_wrong() -> None:
    assert not any(Judgement("y", state).wrong for state in ("holds", "vacuous", "refused", "unjudged"))


def test_of_several_outcomes_the_first_bad_one_stands_else_what_informs() -> None:
    holds, bad = Outcome("holds", 0.5, "y"), Outcome("violated", 2.0, "y")
    assert first_bad([VACUOUS, holds, bad, Outcome("crashed")]) is bad
    assert first_bad([holds, VACUOUS, INAPPLICABLE]) is holds
    assert first_bad([INAPPLICABLE, VACUOUS, INAPPLICABLE]) is VACUOUS
    assert first_bad([]) is INAPPLICABLE
