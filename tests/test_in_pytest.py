"""`lnverify.conformance` in a user's tests: what is collected, how often it runs, and what each test says."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import hypothesis
import pytest

from lnverify import in_pytest, runner
from lnverify.finding import Finding, Report, Result
from lnverify.law import select_laws
from tests import report_samples as samples

pytest_plugins = ("pytester",)
# Imported here: what a run within this process imports is forgotten after it, and imported again by the next.
IMPORTED = (hypothesis, in_pytest)
LAWS = select_laws()

KERNELS = """
import os
import numpy as np

with open({log!r}, "a") as file:
    file.write(f"{{os.getpid()}}\\n")

def right(x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias

def wrong(x, weight=None, bias=None, eps=1e-5):
    return right(x, weight, bias, 10 * eps)
"""
QUICK = 'dtypes=["float32"], select=["LN101", "LN105", "LN201"], max_examples=1'
# The function under test of these modules is never called: what a run finds is given.
MADE_UP = """
import lnverify
from kernels import right

test_it = lnverify.conformance(right, {arguments})
"""
Pytester = pytest.Pytester


@pytest.fixture(autouse=True)
def module(pytester: Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """kernels.py, which notes the process of each import; a cache of its own."""
    monkeypatch.setenv("LNVERIFY_CACHE", str(pytester.path / "cache"))
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.syspath_prepend(pytester.path)
    pytester.makepyfile(kernels=KERNELS.format(log=str(pytester.path / "imports")))


@pytest.fixture
def run_gives(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Let `check` give this report; the list of the options that it was called with."""

    def give(results: list[Result], findings: list[Finding] | None = None, **facts: Any) -> list[dict[str, Any]]:
        asked: list[dict[str, Any]] = []

        def check(target: Any, **options: Any) -> Report:
            asked.append(options)
            return samples.report(results, findings, strict=options["strict"], **facts)

        monkeypatch.setattr(runner, "check", check)
        return asked

    return give


def made_up(pytester: Pytester, arguments: str, *words: str) -> pytest.RunResult:
    pytester.makepyfile(MADE_UP.format(arguments=arguments))
    return pytester.runpytest_inprocess("-p", "no:cacheprovider", "-W", "error", *words)


def holds(law: str, name: str, dtype: str = "float32") -> Result:
    return samples.result(law, name, dtype)


def test_law_by_dtype_are_tests_and_one_run_serves_them(
    pytester: Pytester, run_gives: Callable[..., list[dict[str, Any]]]
) -> None:
    asked = run_gives([holds("LN101", "forward-accuracy"), holds("LN101", "forward-accuracy", "float64")])
    result = made_up(pytester, 'select=["LN101"], dtypes=["fp64", "float32"], profile="ci", seed=3', "-v")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([
        "*::test_it[[]LN101-forward-accuracy-float64-cpu[]] PASSED*",
        "*::test_it[[]LN101-forward-accuracy-float32-cpu[]] PASSED*",
        "*::test_it[[]verdict[]] PASSED*",
    ])  # fmt: skip
    (options,) = asked
    assert options["select"] == ("LN101",)
    assert (options["dtypes"], options["devices"]) == (["float64", "float32"], ("cpu",))
    assert (options["profile"], options["seed"], options["strict"]) == ("ci", 3, False)


def test_k_narrows_the_run(pytester: Pytester, run_gives: Callable[..., list[dict[str, Any]]]) -> None:
    asked = run_gives([holds("LN101", "forward-accuracy")])
    laws = [law.id for law in LAWS if law.covers("layer_norm")]
    # Each law in four dtypes, and `verdict`; of all those -k chose one.
    made_up(pytester, "", "-k", "LN101 and float32").assert_outcomes(passed=1, deselected=4 * len(laws))
    assert (asked[0]["select"], asked[0]["dtypes"]) == (("LN101",), ["float32"])


def test_each_verdict_has_its_outcome(pytester: Pytester, run_gives: Callable[..., Any]) -> None:
    broken = samples.finding("LN101", "forward-accuracy", samples.observation(samples.case(), "y", (0, 2), 1.0, 1.25))
    warned = replace(broken, law="LN102", name="rounding-points", severity="warning", cause="rounded twice")
    run_gives(
        [
            samples.result("LN101", "forward-accuracy", verdict="violated"),
            samples.result("LN102", "rounding-points", verdict="violated", severity="warning"),
            samples.result("LN105", "eps-value", verdict="inapplicable", reason="it has no eps"),
            samples.result("LN107", "mean", verdict="inconclusive", reason="3 informative examples of 10"),
            holds("LN104", "one-pass-variance"),
        ],
        [broken, warned],
    )
    select = 'select=["LN101", "LN102", "LN104", "LN105", "LN107"], dtypes=["float32"]'
    result = made_up(pytester, select, "-v", "-rA", "--junitxml=junit.xml")
    result.assert_outcomes(failed=2, skipped=1, passed=3)
    shown = result.stdout.str()
    # The failure is the finding's text, and no line of lnverify's own code.
    message = shown[shown.index("LN101 forward-accuracy, float32 on cpu: forward accuracy") :]
    assert message.splitlines()[1] == "y[0, 2] is 1, 1.25 is right"
    assert (
        "smallest case: N=3, rows=1, eps=1e-05: y[0, 2] expected 1.25, got 1, bound 1e-07, 2.5e+06x the bound" in shown
    )
    assert "lnverify replay " in message
    assert f"--finding {broken.id}" in message
    assert "in_pytest.py" not in shown[: shown.index("short test summary")]
    assert "undecided: LN107 mean (float32): 3 informative examples of 10." in shown
    assert "it has no eps" in shown
    assert "LN102 rounding-points, float32 on cpu: rounded twice" in shown
    cases = {case.get("name"): case for case in ET.parse(pytester.path / "junit.xml").iter("testcase")}
    failure = cases["test_it[LN101-forward-accuracy-float32-cpu]"].find("failure")
    assert failure is not None
    assert "y[0, 2] is 1, 1.25 is right" in str(failure.get("message"))
    (noted,) = cases["test_it[LN102-forward-rounding-points-float32-cpu]"].iter("property")
    assert noted.get("value") == "LN102 rounding-points, float32 on cpu: rounded twice"
    strict = made_up(pytester, f"{select}, strict=True")
    strict.assert_outcomes(failed=3, skipped=1, passed=2)


def test_what_no_law_says_is_said_by_verdict(pytester: Pytester, run_gives: Callable[..., Any]) -> None:
    crash = samples.finding("LN606", "answers", samples.observation(samples.case(), "y", (0, 2), 1.0, 1.25))
    one_law = 'select=["LN101"], dtypes=["float32"]'
    for findings, facts, said in (
        ([crash], {}, "LN606 answers, float32 on cpu"),
        ([], {"stopped": "interrupted"}, "the run ended early (interrupted)."),
        (
            [],
            {"stale": ("LN203 (old) matched no finding: take it out.",)},
            "LN203 (old) matched no finding: take it out.",
        ),
    ):
        run_gives([holds("LN101", "forward-accuracy")], findings, **facts)
        result = made_up(pytester, one_law)
        result.assert_outcomes(passed=1, failed=1)
        assert said in result.stdout.str()
    run_gives([samples.result("LN101", "forward-accuracy", verdict="inapplicable", reason="none")])
    result = made_up(pytester, one_law)
    result.assert_outcomes(skipped=1, failed=1)
    assert "nothing was shown to hold: " in result.stdout.str()


def test_a_dtype_that_the_subject_lacks_is_skipped_unless_it_was_asked_for(pytester: Pytester) -> None:
    by_itself = made_up(pytester, 'select=["LN101"]', "-k", "bfloat16", "-rs")
    by_itself.assert_outcomes(skipped=1, deselected=4)
    assert "the subject does not declare bfloat16" in by_itself.stdout.str()
    asked = made_up(pytester, 'select=["LN101"], dtypes=["bfloat16"]')
    asked.assert_outcomes(failed=2)
    assert "declares float64, float32, none of bfloat16: " in asked.stdout.str()


def test_expected_findings_are_xfailed_with_their_reasons(pytester: Pytester) -> None:
    toml = '[[expected]]\nlaw = "LN105"\nreason = "eps is ten times too large"\nlink = "https://example.org/1"\n'
    (pytester.path / "lnverify.toml").write_text(f'target = "kernels:wrong"\n{toml}')
    pytester.makepyfile(f'import lnverify\ntest_it = lnverify.conformance("kernels:wrong", isolate=False, {QUICK})\n')
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rxf")
    # LN101 is violated too, and no entry expects it; there is no backward for LN201.
    result.assert_outcomes(xfailed=1, failed=1, skipped=1, passed=1)
    shown = result.stdout.str()
    assert "eps is ten times too large (https://example.org/1)" in shown
    assert "FAILED" in shown
    assert "test_it[LN101-forward-accuracy-float32-cpu]" in shown


@pytest.mark.heavy
def test_workers_share_one_run(pytester: Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a process of its own, of which there is one; and what it found reaches the other worker whole."""
    pytest.importorskip("xdist")
    pytester.makepyfile(f'import lnverify\ntest_it = lnverify.conformance("kernels:wrong", {QUICK})\n')
    result = pytester.runpytest_subprocess("-n", "2", "-v", "-p", "no:cacheprovider")
    result.assert_outcomes(failed=2, skipped=1, passed=1)
    assert len((pytester.path / "imports").read_text().splitlines()) == 1
    shown = result.stdout.str()
    assert {"[gw0]", "[gw1]"} <= {word for word in shown.split() if word.startswith("[gw")}
    assert "lnverify replay " in shown


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ('select=["LN999"]', "LN999"),
        ('dtypes=["fp8"]', "fp8"),
        ('operation="ln_lstm", variant="joined"', "ln_lstm has no variant 'joined': choose from paper, per_gate,"),
        ('profile="slow"', "unknown profile 'slow': choose from quick, ci, deep."),
        (
            'operation="rms_norm", select=["LN101"]',
            "no selected law says anything of rms_norm: select others, or leave",
        ),
    ],
)
def test_a_wrong_argument_is_one_sentence(pytester: Pytester, arguments: str, sentence: str) -> None:
    result = made_up(pytester, arguments)
    result.assert_outcomes(errors=1)
    shown = result.stdout.str()
    assert "lnverify.conformance: " in shown
    assert sentence in shown
    assert "Traceback" not in shown
    assert "in_pytest.py" not in shown


def test_the_operation_that_a_class_declares_is_known(pytester: Pytester) -> None:
    pytest.importorskip("torch")
    pytester.makepyfile(
        "import lnverify\nfrom lnverify.mutants.torch_layers import Cell\n"
        'test_it = lnverify.conformance(Cell, dtypes=["float32"], select=["LN801", "LN806"])\n'
    )
    shown = pytester.runpytest_inprocess("--collect-only", "-q", "-p", "no:cacheprovider").stdout.str()
    assert "test_it[LN801-operation-accuracy-float32-cpu]" in shown
    assert "test_it[LN806-cell-output-float32-cpu]" in shown


def test_a_target_that_cannot_be_loaded_fails_each_test_in_one_sentence(pytester: Pytester) -> None:
    pytester.makepyfile(f'import lnverify\ntest_it = lnverify.conformance("kernels:none", isolate=False, {QUICK})\n')
    result = pytester.runpytest_inprocess("-p", "no:cacheprovider", "-rN")  # the summary repeats them where CI is set
    result.assert_outcomes(failed=4)
    assert result.stdout.str().count("module 'kernels' has no attribute 'none'.") == 4
    assert "Traceback" not in result.stdout.str()
