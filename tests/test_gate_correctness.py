"""The gate on verdicts and accuracy: what is worse, what is better, what it cannot tell."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from lnverify.finding import Report
from lnverify.gate import examined
from lnverify.gate.correctness import accuracy, compare
from lnverify.gate.examined import Examined, least
from lnverify.gate.row import Row, verdict
from lnverify.gate.settings import Settings
from tests.timing_samples import kernel


def side(verdicts: Mapping[str, str] | None = None, pair: Mapping[str, float] | None = None, **more: Any) -> Examined:
    return Examined(
        {(law, "float32"): v for law, v in (verdicts or {}).items()},
        {(law, "float32"): "the cause" for law, v in (verdicts or {}).items() if v == "violated"},
        pair={("float32", output): ratio for output, ratio in (pair or {}).items()}, **more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("was", "now", "outcomes"),
    [
        ({"LN101": "holds"}, {"LN101": "holds"}, []),
        ({"LN101": "holds"}, {"LN101": "violated"}, ["worse"]),
        ({"LN101": "holds"}, {"LN101": "crashed"}, ["worse"]),
        ({"LN101": "inapplicable"}, {"LN101": "violated"}, ["worse"]),
        ({"LN101": "violated"}, {"LN101": "violated"}, []),
        ({"LN101": "violated"}, {"LN101": "holds"}, ["better"]),
        ({"LN101": "holds"}, {"LN101": "inconclusive"}, ["unsure"]),
        ({}, {"LN101": "violated"}, ["unsure"]),
        ({"LN101": "holds", "LN102": "holds"}, {"LN101": "holds"}, ["unsure"]),
    ],
)
def test_a_violation_is_a_regression_only_where_it_is_new(
    was: dict[str, str], now: dict[str, str], outcomes: list[str]
) -> None:
    rows = list(compare(side(was), side(now)))
    assert [row.outcome for row in rows] == [*outcomes, "same"]


def test_an_expected_violation_and_a_lost_process_are_no_regression() -> None:
    known = side({"LN101": "violated"}, expected=frozenset({("LN101", "float32")}))
    assert [row.outcome for row in compare(side({"LN101": "holds"}), known)] == ["same"]
    rows = list(compare(side({"LN101": "holds"}), side(lost="the process ended with status -9")))
    assert [(row.outcome, row.surely) for row in rows] == [
        ("unsure", "the process ended with status -9; see `lnverify check`")
    ]


@pytest.mark.parametrize(
    ("was", "now", "outcome"),
    [
        (0.30, 0.59, "same"),
        (0.30, 0.61, "worse"),  # more than twice
        (0.99, 1.01, "worse"),  # leaves the tier
        (1.50, 2.90, "same"),  # was beyond it
        (0.61, 0.30, "better"),
        (0.00, 0.13, "same"),  # below 2 / 15: less than two rounding errors of a sum of 2^14 numbers
        (0.00, 0.14, "worse"),
    ],
)
def test_accuracy_is_lost_by_a_tier_or_by_a_factor(was: float, now: float, outcome: str) -> None:
    assert least("gate") == 1 / 15
    rows = list(accuracy(side(pair={"y": was}), side(pair={"y": now}), "gate"))
    assert [row.outcome for row in rows] == [outcome]


def test_an_output_that_is_no_longer_judged_is_not_told() -> None:
    rows = list(accuracy(side(pair={"dx": 0.1, "y": 0.1}), side(pair={"y": 0.1}), "gate"))
    assert [(row.name, row.outcome) for row in rows] == [("dx float32", "unsure"), ("1 outputs x dtypes", "same")]


def test_the_verdict_is_the_worst_that_is_known() -> None:
    def rows(*outcomes: str) -> list[Row]:
        return [Row("speed", "", "", "", "", "", outcome) for outcome in outcomes]

    assert verdict(rows("same", "unsure", "worse")) == "regression"
    assert verdict(rows("same", "better", "unsure")) == "could not tell"
    assert verdict(rows("same", "better")) == "passed"
    assert verdict([]) == "could not tell"


def test_a_process_of_its_own_examines_and_its_death_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    settings = Settings(kernel(tmp_path), "", ("float32",), select=("LN401",))
    report = examined.examine(settings)
    assert isinstance(report, Report)
    assert {(r.law, r.dtype, r.verdict) for r in report.results} == {("LN401", "float32", "holds")}
    (tmp_path / "dies.py").write_text("import os\nimport numpy\ndef ln(x, eps=1e-5):\n    os._exit(3)\n")
    found = examined.of_report(examined.examine(Settings("./dies.py:ln", "", ("float32",), select=("LN401",))))
    assert found.lost == "the process ended with status 3 (it printed nothing)"
