"""The command line: what each option does; a sentence and an exit status for everything that goes wrong."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lnverify import report_cache
from lnverify.cli import main
from lnverify.errors import InternalError, TargetError
from lnverify.finding import Report, load_report
from lnverify.host import Limits
from tests import report_samples as samples

TARGET = samples.TARGET


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache of the test's own, and a working folder."""
    monkeypatch.setenv("LNVERIFY_CACHE", str(tmp_path / "cache"))
    for name in ("LNVERIFY_DEBUG", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return tmp_path / "cache" / "reports"


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[dict[str, Any]]]:
    """Put a runner in place that gives these reports (or raises), and records how it was called."""

    def install(*answers: Report | BaseException) -> list[dict[str, Any]]:
        calls: list[dict[str, Any]] = []

        def check(target: str, **options: Any) -> Report:
            answer = answers[len(calls)]
            calls.append({"target": target, **options})
            if isinstance(answer, BaseException):
                raise answer
            answer.subject = target
            return answer

        monkeypatch.setitem(sys.modules, "lnverify.runner", SimpleNamespace(check=check))  # type: ignore[arg-type]
        return calls

    return install


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


# --- check


def test_a_variant_is_one_of_an_operation(runner: Any) -> None:
    calls = runner(samples.report())
    assert lnverify("check", "--operation", "ln_lstm", "--variant", "per_gate", "cells.py:step").exit_code == 0
    assert calls[0]["operation"] == "ln_lstm_per_gate"
    alone = CliRunner().invoke(main, ["check", "--variant", "per_gate"])
    assert "give --operation too" in alone.output + str(alone.exception)


def test_check_without_a_target_checks_layer_norm_with_seed_0(runner: Any) -> None:
    calls = runner(samples.report())
    result = lnverify("check")
    assert result.exit_code == 0
    assert calls == [
        {
            "target": TARGET, "operation": None, "dtypes": None, "devices": None, "profile": "quick",
            "select": None, "ignore": None, "strict": False, "fail_fast": False, "seed": 0,
            "max_examples": None, "time_limit": None, "progress": None, "isolate": True, "huge": False,
            "limits": Limits(), "jobs": 1,
        }
    ]  # fmt: skip
    assert "seed 0" in result.stdout.splitlines()[1]
    assert result.stderr == ""


def test_options_take_lists_with_commas_and_repetitions(runner: Any) -> None:
    calls = runner(samples.report())
    words = "check f --dtype fp32,bf16 --dtype float32 --device cpu,cuda:1 --select LN1,LN2 --ignore LN101 -x"
    more = "--strict --seed 7 --max-examples 50 --time-limit 1.5 --profile deep"
    assert lnverify(*words.split(), *more.split()).exit_code == 0
    assert calls[0]["dtypes"] == ("float32", "bfloat16")
    assert calls[0]["devices"] == ("cpu", "cuda:1")
    assert calls[0]["select"] == ("LN1", "LN2")
    assert calls[0]["ignore"] == ("LN101",)
    assert (calls[0]["seed"], calls[0]["max_examples"], calls[0]["time_limit"]) == (7, 50, 1.5)
    assert (calls[0]["strict"], calls[0]["fail_fast"], calls[0]["profile"]) == (True, True, "deep")


def test_a_random_seed_is_drawn_once_and_passed_on(runner: Any) -> None:
    calls = runner(samples.report(), samples.report())
    assert lnverify("check", "f", "g", "--seed", "random").exit_code == 0
    assert calls[0]["seed"] == calls[1]["seed"]
    assert 0 <= calls[0]["seed"] < 2**32


@pytest.mark.parametrize(
    ("answers", "status"),
    [
        (["holds"], 0), (["violated"], 1), (["inconclusive"], 3),
        (["holds", "inconclusive"], 3), (["inconclusive", "violated", "holds"], 1), (["holds", "holds"], 0),
    ],
)  # fmt: skip
def test_the_exit_status_is_the_worst_verdict(runner: Any, answers: list[str], status: int) -> None:
    made = {"holds": samples.report, "violated": samples.violated, "inconclusive": samples.undecided}
    runner(*(made[answer]() for answer in answers))
    result = lnverify("check", "-q", *(f"target{i}" for i in range(len(answers))))
    assert result.exit_code == status
    assert [line.split()[:2] for line in result.stdout.splitlines()] == [
        [answer, f"target{i}:"] for i, answer in enumerate(answers)
    ]


def test_json_holds_one_report_or_a_list(runner: Any) -> None:
    runner(samples.report(), samples.violated())
    assert lnverify("check", "a", "b", "--json", "both.json", "--junit", "both.xml").exit_code == 1
    assert [r.subject for r in load_report(Path("both.json"))] == ["a", "b"]
    assert Path("both.xml").read_text().count("<testsuite ") == 2
    runner(samples.report())
    assert lnverify("check", "a", "--json", "one.json").exit_code == 0
    assert json.loads(Path("one.json").read_text())["subject"] == "a"


def test_every_run_is_kept_and_the_replay_line_names_it(runner: Any, cache: Path) -> None:
    runner(samples.violated())
    result = lnverify("check")
    (kept,) = cache.iterdir()
    run_id = kept.stem.rpartition("-")[2]
    ident = samples.reduction_findings()[0].id
    assert f"   lnverify replay {run_id} --finding {ident}\n" in result.stdout
    assert load_report(kept)[0].to_json() == samples.violated().to_json()
    assert report_cache.find(run_id) == report_cache.newest() == kept


def test_the_replay_line_names_the_json_file_where_there_is_one(runner: Any) -> None:
    runner(samples.violated())
    result = lnverify("check", "--json", "out.json")
    assert f"   lnverify replay out.json --finding {samples.reduction_findings()[0].id}\n" in result.stdout


def test_a_cache_that_cannot_be_written_stops_nobody(
    runner: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LNVERIFY_CACHE", str(tmp_path / "file"))
    runner(samples.violated())
    result = lnverify("check")
    assert result.exit_code == 1
    assert result.stderr == (
        f"lnverify: the report is not kept: cannot write {str(tmp_path / 'file' / 'reports')!r}: Not a directory.\n"
    )
    assert "lnverify replay" not in result.stdout


def test_an_interrupted_run_shows_what_was_found_and_starts_no_other(runner: Any) -> None:
    calls = runner(samples.violated(), samples.report())
    report = samples.violated()
    report.stopped = "interrupted"
    calls = runner(report, samples.report())
    result = lnverify("check", "a", "b")
    assert result.exit_code == 1
    assert len(calls) == 1
    assert result.stdout.splitlines()[-1].startswith("violated so far (interrupted)  a: 2 causes")
    assert result.stderr == "lnverify: not checked: b.\n"


def test_an_interrupt_before_anything_was_found(runner: Any) -> None:
    runner(KeyboardInterrupt())
    result = lnverify("check")
    assert (result.exit_code, result.stderr.strip()) == (130, "lnverify: interrupted.")


def test_github_format_and_summary(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    runner(samples.violated())
    result = lnverify("check", "--output-format", "github")
    lines = result.stdout.splitlines()
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning", "violated"]
    assert Path("summary.md").read_text().startswith("### lnverify: violated  torch.nn.functional.layer_norm")


# --- what goes wrong: one sentence, exit status 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("check --dtype fp8", "unknown dtype 'fp8': choose from float64, float32, float16, bfloat16"),
        ("check --select LN999", "no law matches 'LN999': `lnverify laws` lists the ids"),
        ("check --ignore nonsense", "no law matches 'nonsense'"),
        ("check --ignore LN", "no law is left: --ignore leaves out every law that --select chooses."),
        ("check --operation gelu", "unknown operation 'gelu': choose from"),
        ("check --profile slow", "invalid value for '--profile': 'slow' is not one of 'quick', 'ci', 'deep'"),
        ("check --seed soon", "the seed 'soon' is neither a whole number from 0 nor 'random'."),
        ("check --seed -1", "the seed '-1' is neither"),
        ("check --max-examples 0", "invalid value for '--max-examples': 0 is not in the range x>=1"),
        ("check --json no/such/r.json", "cannot write 'no/such/r.json': No such file or directory."),
        ("check --junit .", "cannot write '.': it is a folder; give the name of a file."),
        ("check --json a --junit ./a", "--json and --junit name the same file: give two."),
        ("check --laws no.py", "cannot read the laws of 'no.py': there is no such file."),
        ("check --speling", "no such option '--speling'"),
        ("chekc", "no such command 'chekc'"),
        ("explain LN999", "there is no law 'LN999': `lnverify laws` lists the ids"),
        ("explain", "missing argument 'LAW...'"),
        ("replay", "no report is kept in "),
        ("replay no.json", "'no.json' is neither a report file nor the id of a kept run"),
    ],
)
def test_bad_input_is_one_sentence(runner: Any, words: str, sentence: str) -> None:
    calls = runner()
    result = lnverify(*words.split())
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(f"lnverify: {sentence}")
    assert result.stderr.count("\n") == 1
    assert calls == []


def test_a_target_that_is_not_there_keeps_what_was_found_before(runner: Any) -> None:
    runner(samples.report(), TargetError("there is no module 'nope'."))
    result = lnverify("check", "-q", "a", "nope", "--json", "out.json")
    assert result.exit_code == 2
    assert result.stderr == "lnverify: there is no module 'nope'.\n"
    assert load_report(Path("out.json"))[0].subject == "a"


def test_a_fault_of_lnverify_is_told_without_a_traceback(runner: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    runner(ZeroDivisionError("division\nby zero"))
    result = lnverify("check")
    assert result.exit_code == 4
    assert result.stderr.startswith(
        "lnverify: this is a fault of lnverify, not of what it checks (ZeroDivisionError: division by zero): "
        "please report it, with the command, at "
    )
    assert result.stderr.endswith("; LNVERIFY_DEBUG=1 shows the traceback.\n")
    assert result.stderr.count("\n") == 1
    runner(InternalError("law LN101 failed."))
    assert lnverify("check").stderr.startswith(
        "lnverify: this is a fault of lnverify, not of what it checks (law LN101 failed): please report it"
    )
    monkeypatch.setenv("LNVERIFY_DEBUG", "1")
    runner(ZeroDivisionError("division by zero"))
    result = lnverify("check")
    assert result.exit_code == 4
    assert "Traceback (most recent call last)" in result.stderr


# --- laws, explain, third-party laws

OWN_LAW = '''
from lnverify.law import HOLDS, law

@law("{id}", name="zz-own-law", severity="info", source="a test")
def own(evaluation):
    """The output has the shape of the input.

    Bound: none, shapes are equal or not.
    """
    return HOLDS
'''


@pytest.fixture
def own_law(monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a law; the registry is put back afterwards."""
    from lnverify import law

    law.load_laws()
    monkeypatch.setattr(law, "REGISTRY", dict(law.REGISTRY))
    monkeypatch.setattr("lnverify.law_files.LOADED", [])
    path = Path("my_laws.py")
    path.write_text(OWN_LAW.format(id="ZZ001"))
    return path


def test_laws_lists_one_law_a_line_by_family() -> None:
    result = lnverify("laws", "--select", "LN1")
    assert result.exit_code == 0
    first, *rest = result.stdout.splitlines()
    assert first == "LN1  accuracy"
    assert all(line.startswith("  LN1") for line in rest)
    assert rest[0].split()[:2] == ["LN101", "error"]


def test_laws_and_explain_know_third_party_laws(own_law: Path) -> None:
    result = lnverify("laws", "--laws", str(own_law))
    assert result.stdout.endswith("The output has the shape of the input.\n")
    assert "\nother\n  ZZ001  info     zz-own-law" in result.stdout
    assert lnverify("explain", "zz001", "--laws", str(own_law)).stdout == (
        "ZZ001  zz-own-law  (layer_norm)\n"
        "\n"
        "The output has the shape of the input.\n"
        "\n"
        "Bound: none, shapes are equal or not.\n"
        "\n"
        "family:    other\n"
        "severity:  info\n"
        "needs:     y\n"
        "judged in: every dtype\n"
        "source:    a test\n"
        "run it:    lnverify check --select ZZ001\n"
    )


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("x = 1", "'my_laws.py' registers no law: decorate a function with @lnverify.law.law(...)."),
        ("x = ", "the laws of 'my_laws.py' were not loaded: SyntaxError: "),
        ("raise OSError('no disk')", "the laws of 'my_laws.py' were not loaded: OSError: no disk"),
        (OWN_LAW.format(id="LN101"), "law id 'LN101' is taken by "),
    ],
)
def test_a_broken_file_of_laws_is_one_sentence(own_law: Path, source: str, sentence: str) -> None:
    own_law.write_text(source)
    result = lnverify("check", "--laws", str(own_law))
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lnverify: {sentence}")
    assert result.stderr.count("\n") == 1


def test_a_usage_error_of_a_law_file_is_not_swallowed(own_law: Path) -> None:
    own_law.write_text("from lnverify.errors import UsageError\nraise UsageError('needs numpy 3.')")
    result = lnverify("laws", "--laws", str(own_law))
    assert (result.exit_code, result.stderr) == (2, "lnverify: needs numpy 3.\n")


def test_a_family_is_explained_law_by_law() -> None:
    result = lnverify("explain", "ln6")
    assert (result.exit_code, result.stderr) == (
        2, "lnverify: 'ln6' names 10 laws, LN601 to LN610: explain one of them.\n"
    )  # fmt: skip


def test_a_finding_that_is_named_twice_is_replayed_once(runner: Any) -> None:
    runner(samples.violated())
    lnverify("check", "--json", "out.json")
    ident = samples.reduction_findings()[0].id
    assert lnverify("replay", "out.json", "--finding", f"{ident},{ident}").stdout.count(ident) == 1


def test_what_the_subject_says_is_shown_with_the_finding(tmp_path: Path) -> None:
    Path("loud.py").write_text(
        "import warnings\n\n\ndef ln(x, eps=1e-5):\n    print('on the slow path')\n    warnings.warn('no kernel')\n"
        "    return x\n"
    )
    result = lnverify(
        "check", "./loud.py:ln?framework=numpy", "--no-isolate", "--select", "LN101", "--dtype", "fp32",
        "--max-examples", "1", "--json", "out.json", "-x",
    )  # fmt: skip
    shown = [line.strip() for line in result.stdout.splitlines()]
    assert "it said: UserWarning: no kernel" in shown
    assert "it said: on the slow path" in shown
    said = load_report(Path("out.json"))[0].findings[0].smallest.said
    assert said == ("UserWarning: no kernel", "on the slow path")


def test_a_fault_that_is_gone_when_asked_once_more_is_no_longer_called_mended(tmp_path: Path) -> None:
    Path("moody.py").write_text(
        "import numpy as np\n\ncalls = [0]\n\n\ndef ln(x, eps=1e-5):\n    calls[0] += 1\n"
        "    d = x - x.mean(-1, keepdims=True)\n"
        "    return d / np.sqrt((d * d).mean(-1, keepdims=True) + eps) + (calls[0] == 100)\n"
    )
    result = lnverify(
        "check", "./moody.py:ln", "--no-isolate", "--select", "LN101", "--dtype", "fp32", "--json", "out.json", "-x",
    )  # fmt: skip
    (finding,) = load_report(Path("out.json"))[0].findings
    assert finding.message.endswith("Asked once more, the subject was right: it depends on what ran before.")
    assert "depends on what ran before" in " ".join(result.stdout.split())
    again = lnverify("replay", "out.json")
    assert again.exit_code == 3
    assert "cannot be judged: the subject was right when it was asked once more" in again.stdout
