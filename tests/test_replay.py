"""`lnverify replay`: which report, which findings, and what is said of each."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lnverify import report_cache
from lnverify.cli import main
from lnverify.cli.replay import in_words
from lnverify.errors import FrameworkError, TargetError, UsageError
from lnverify.finding import Finding, Report
from lnverify.law import HOLDS, INAPPLICABLE, VACUOUS, Outcome
from lnverify.reports import json_file
from tests import report_samples as samples

BAD = Outcome("violated", 2.0, message="dweight[2] is off by 2 times the bound")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LNVERIFY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[str, str | None]]]:
    """Put judges in place that give an outcome (or raise) by law, and record (law, target)."""

    def install(**answers: Outcome | Exception) -> list[tuple[str, str | None]]:
        calls: list[tuple[str, str | None]] = []

        def run_again(finding: Finding, target: str | None) -> Outcome:
            calls.append((finding.law, target))
            answer = answers.get(finding.law, HOLDS)
            if isinstance(answer, Exception):
                raise answer
            return answer

        module = SimpleNamespace(judge_stored=lambda finding: run_again(finding, None), run_again=run_again)
        monkeypatch.setitem(sys.modules, "lnverify.replay", module)  # type: ignore[arg-type]
        return calls

    return install


def replay(*words: str) -> Result:
    return CliRunner().invoke(main, ["replay", *words])


def write(name: str, *reports: Report) -> str:
    Path(name).write_text(json_file.text(reports))
    return name


def keep(report: Report) -> str:
    run = report_cache.new_run()
    run.store([report])
    return run.id


def test_a_line_for_each_finding_and_status_1_while_one_is_violated(judge: Any) -> None:
    calls = judge(LN203=BAD, LN204=INAPPLICABLE)
    report = samples.violated()
    result = replay(write("r.json", report))
    ids = [finding.id for finding in report.findings]
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:3] == [
        f"{ids[0]}  LN203 dweight-accuracy  float16 cpu: still violated: {BAD.message}",
        f"{ids[1]}  LN204 dbias-accuracy  float16 cpu: cannot be judged: "
        "the law compares several runs; give the target to run it again",
        f"{ids[2]}  LN203 dweight-accuracy  float32 cpu: still violated: {BAD.message}",
    ]
    assert result.stdout.splitlines()[4] == (
        f"{ids[4]}  LN101 forward-accuracy  float32 cpu: no longer violated: the stored output is within the bound"
    )
    assert {target for _, target in calls} == {None}


def test_with_a_target_it_is_run(judge: Any) -> None:
    calls = judge()
    result = replay(write("r.json", samples.violated()), "mypkg:ln")
    assert result.exit_code == 0
    assert calls[0] == ("LN203", "mypkg:ln")
    assert result.stdout.splitlines()[0].endswith("LN203 dweight-accuracy  float16 cpu: no longer violated")


def test_without_a_report_the_newest_is_taken_and_by_id_any_other(judge: Any) -> None:
    judge(LN203=BAD)
    old = keep(samples.violated())
    keep(samples.report())
    nothing = f"nothing to replay: the report on {samples.TARGET} has no findings.\n"
    for words in ((), ("last",)):
        result = replay(*words)
        assert (result.exit_code, result.stdout) == (0, nothing)
    assert replay(old).exit_code == 1


def test_one_finding_by_its_id(judge: Any) -> None:
    calls = judge()
    report = samples.violated()
    result = replay(write("r.json", samples.report(), report), "--finding", report.findings[4].id)
    assert result.exit_code == 0
    assert calls == [("LN101", None)]
    result = replay("r.json", "--finding", "00000000")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lnverify: the report has no finding '00000000': {report.findings[0].id}, ")


def test_status_3_where_nothing_is_violated_but_something_cannot_be_judged(judge: Any) -> None:
    judge(LN203=UsageError("this array was too large to be stored in full."))
    result = replay(write("r.json", samples.violated()))
    assert result.exit_code == 3
    assert result.stdout.splitlines()[0].endswith("cannot be judged: this array was too large to be stored in full.")


@pytest.mark.parametrize("error", [TargetError("there is no module 'x'."), FrameworkError("torch is missing.")])
def test_a_target_that_cannot_be_loaded_is_status_2(judge: Any, error: Exception) -> None:
    judge(LN203=error)
    result = replay(write("r.json", samples.violated()), "x")
    assert (result.exit_code, result.stdout, result.stderr) == (2, "", f"lnverify: {error}\n")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "'bad.json' is not a report of lnverify: it is not JSON."),
        ("[1]", "this is not a report of lnverify: its schema is 'int', 'lnverify-report/1' is expected."),
        ('{"schema": "other/2"}', "this is not a report of lnverify: its schema is 'other/2', "),
        ('{"schema": "lnverify-report/1"}', "the report is damaged: KeyError at 'results'."),
    ],
)
def test_a_file_that_is_no_report_is_one_sentence(text: str, sentence: str) -> None:
    Path("bad.json").write_text(text)
    result = replay("bad.json")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lnverify: {sentence}")
    assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("outcome", "ran", "words"),
    [
        (BAD, True, ("still violated", BAD.message)),
        (
            Outcome("crashed", message="RuntimeError: no kernel"),
            True,
            ("still violated", "RuntimeError: no kernel"),
        ),
        (HOLDS, True, ("no longer violated", "")),
        (HOLDS, False, ("no longer violated", "the stored output is within the bound")),
        (VACUOUS, True, ("cannot be judged", "the law is vacuous here")),
        (Outcome("inapplicable", message="no dx"), False, ("cannot be judged", "no dx")),
    ],
)
def test_words_for_an_outcome(outcome: Outcome, ran: bool, words: tuple[str, str]) -> None:
    assert in_words(outcome, ran=ran) == words
