"""Which findings are told under one cause."""

from __future__ import annotations

import pytest

from lnverify.diagnosis import EPS_LEFT_OUT, MISSING
from lnverify.runner import gather
from tests.report_samples import case, finding, observation


@pytest.mark.parametrize(
    ("forward", "gradient", "told"),
    [
        (MISSING, EPS_LEFT_OUT, MISSING),  # the gradient of what has no eps has none
        (MISSING, "dx is wrong", MISSING),
        (MISSING, "dx lacks weight", "dx lacks weight"),
        ("the variance is divided by N - 1", EPS_LEFT_OUT, EPS_LEFT_OUT),
    ],
)
def test_a_gradient_follows_from_the_forward_or_has_a_cause_of_its_own(forward, gradient, told) -> None:
    seen = observation(case(x=[[1.0, 2.0, 4.0]]), "y", (0, 0), 1.0, 2.0)
    findings = [
        finding("LN101", "forward-accuracy", seen, cause=forward),
        finding("LN201", "dx-accuracy", seen, cause=gradient),
    ]
    assert [f.cause for f in gather(findings)] == [forward, told]
