"""One example of the main laws on the default subject, everything counted: drawing, subject, oracle, bound."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.evaluation import Evaluator
from lnverify.law import load_laws
from lnverify.recipes import build
from lnverify.runner import DEFAULT_TARGET
from lnverify.support import Support, find_support
from lnverify.target import resolve

LAWS = ("LN101", "LN201", "LN202", "LN205", "LN301", "LN402", "LN601", "LN607")


@pytest.fixture(scope="module")
def support() -> Support:
    pytest.importorskip("torch", reason="the default subject needs torch")
    found = find_support(resolve(DEFAULT_TARGET), "float32", "cpu")
    assert not isinstance(found, str)
    return found


@pytest.mark.parametrize("law", LAWS)
def test_one_example(benchmark: Any, support: Support, law: str) -> None:
    check = load_laws()[law].check

    def example() -> str:
        case = build({
            "dtype": "float32", "batch": [33], "shape": [65], "regime": "normal", "mean": 3.0, "scale": 0,
            "weight": "normal", "bias": "normal", "dy": "normal", "eps": 1e-5, "seed": 7,
        })  # fmt: skip
        state: str = check(Evaluator(support.subject).evaluate(case)).state
        return state

    assert benchmark(example) == "holds"
