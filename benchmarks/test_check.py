"""lnverify's own cost: what an example of a whole run takes, by stage. A slow suite is not run."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.finding import Report
from lnverify.runner import DEFAULT_TARGET, check

LAWS = ("LN101", "LN201", "LN202", "LN203")


def test_check_by_stage(benchmark: Any) -> None:
    pytest.importorskip("torch", reason="the default subject needs torch")
    most = 100 if benchmark.enabled else 1

    def run() -> Report:
        # One thread: where cores are few, two wait for each other, which is no cost of ours.
        return check(f"{DEFAULT_TARGET}?threads=1", dtypes=("float32",), profile="gate", select=LAWS, max_examples=most)

    report = benchmark.pedantic(run, rounds=1, iterations=1)
    assert report.verdict == "holds"
    benchmark.extra_info["examples"] = report.examples
    benchmark.extra_info["examples per second"] = report.examples / report.seconds
    benchmark.extra_info["ms per example"] = {
        stage: seconds / report.examples * 1e3 for stage, seconds in report.stages.items()
    }
