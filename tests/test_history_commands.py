"""`lnverify history` as it is typed: in a repository, with reports, to an exit status."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lnverify.cli import main
from tests import report_samples
from tests.history_samples import bench, noisy, written

IDENTITY = {
    "GIT_AUTHOR_NAME": "Ada", "GIT_AUTHOR_EMAIL": "ada@example.org", "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.org", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull,
}  # fmt: skip


def git(folder: Path, *words: str, day: int = 1) -> str:
    """What git prints, on a day of March."""
    date = f"2026-03-{day:02}T12:00:00+00:00"
    environment = {**os.environ, **IDENTITY, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date}
    done = subprocess.run(["git", *words], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository of one commit; bench.json beside it, of no commit."""
    monkeypatch.chdir(tmp_path)
    git(tmp_path, "init", "--quiet")
    (tmp_path / "code.py").write_text("one\n")
    git(tmp_path, "add", "code.py")
    git(tmp_path, "commit", "--quiet", "-m", "Begin")
    written(tmp_path / "bench.json", bench(1.0))
    return tmp_path


def history(*words: str) -> Result:
    return CliRunner().invoke(main, ["history", *words])


def a_commit(number: int) -> list[str]:
    """The options that tell commit `number` without git."""
    return ["--commit", f"{number:010x}" * 4, "--date", f"2026-01-01T{number // 60:02}:{number % 60:02}:00+00:00"]


def test_add_keeps_a_report_under_the_commit_of_the_tree(repository: Path) -> None:
    first = history("add", "bench.json")
    head = git(repository, "rev-parse", "HEAD")
    assert first.stdout == f"{head[:10]}  1 added, 0 there already: lnverify-history.sqlite\n"
    assert history("add", "bench.json").stdout == f"{head[:10]}  0 added, 1 there already: lnverify-history.sqlite\n"
    written(repository / "bench.json", bench(1.5))
    assert "0 there already, 1 kept that are there with other numbers (--replace" in history("add", "bench.json").stdout
    assert "1 added" in history("add", "bench.json", "--replace").stdout
    shown = history("show").stdout
    assert "1 series over 1 commit; 1 never changed (--all shows them)" in shown
    shown = " ".join(history("show", "--all").stdout.split())
    assert "Model 1, 2 cores, Linux x86_64" in shown


def test_add_refuses_code_that_is_in_no_commit(repository: Path) -> None:
    (repository / "code.py").write_text("two\n")
    refused = history("add", "bench.json")
    assert (refused.exit_code, refused.stderr) == (
        2, "lnverify: the working tree has changes that are in no commit: commit them, or name the measured commit by "
        "--commit.\n"
    )  # fmt: skip
    assert history("add", "bench.json", "--commit", "HEAD").exit_code == 0


def test_a_history_under_git_is_no_change_of_the_code(repository: Path) -> None:
    assert history("add", "bench.json").exit_code == 0
    git(repository, "add", "lnverify-history.sqlite")
    git(repository, "commit", "--quiet", "-m", "Keep the history", day=2)
    written(repository / "bench.json", bench(1.1))
    assert history("add", "bench.json").exit_code == 0
    assert git(repository, "status", "--porcelain", "--untracked-files=no") == "M lnverify-history.sqlite"
    written(repository / "bench.json", bench(1.2))
    assert history("add", "bench.json", "--replace").exit_code == 0
    (repository / "code.py").write_text("two\n")
    assert history("add", "bench.json").exit_code == 2


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (
            ["--commit", "nowhere"],
            "this repository has no such commit (bad revision 'nowhere^{commit}'): name one by --commit, or fetch",
        ),
        (["--commit", "--help"], "git does not answer ("),
        (
            ["--date", "2026-01-01T00:00:00+00:00"],
            "--date goes with --commit and a hash of 7 to 64 digits, not with no",
        ),
        (["--commit", "HEAD", "--date", "2026-01-01T00:00:00+00:00"], "--date goes with --commit and a hash"),
        (["--commit", "a" * 40, "--date", "yesterday"], "--date 'yesterday' is no date: write 2026-03-14T15:09:26"),
        (["--commit", "a" * 40, "--date", "2026-01-01"], "--date '2026-01-01' has no time zone: write 2026-01-01+00:"),
    ],
)
def test_a_commit_that_is_none_is_one_sentence(words: list[str], sentence: str) -> None:
    result = history("add", "bench.json", *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr
    assert not Path("lnverify-history.sqlite").exists()


def test_check_names_the_commit_that_made_it_slower(repository: Path) -> None:
    for number, ratio in enumerate(noisy(3, 0.1, 20, commits=30)):
        written(repository / "bench.json", bench(ratio))
        assert history("add", "bench.json", *a_commit(number)).exit_code == 0
    result = history("check")
    assert result.exit_code == 1
    heading, change, summary = result.stdout.splitlines()
    assert heading.startswith(f"{20:010x}  (no title)  (after {19:010x}; machine ")
    assert change.startswith("  slower  forward 32x768 [float32, cpu] of ./kernels.py:ln: ")
    assert change.endswith("; 10 commits")
    assert summary == "1 for the worse, 0 for the better; 1 series, 1 of them times; alpha 0.01"
    # It lies ten commits back: whoever asks for the last nine is not told again.
    assert history("check", "--last", "10").exit_code == 1
    assert history("check", "--last", "9").exit_code == 0
    assert history("check", "--subject", "kernels").exit_code == 1


def test_html_writes_one_page(repository: Path) -> None:
    history("add", "bench.json")
    result = history("html", "page.html")
    assert (result.exit_code, result.stdout) == (0, "written: page.html\n")
    text = (repository / "page.html").read_text(encoding="utf-8")
    assert text.startswith("<!doctype html>")
    assert "1 of 1 series of times have too few commits to tell" in text
    assert git(repository, "rev-parse", "HEAD")[:10] in text


def test_check_cannot_tell_from_few_times(repository: Path) -> None:
    for number in range(3):
        history("add", "bench.json", *a_commit(number))
    result = history("check")
    assert result.exit_code == 3
    assert "1 of them times, 1 with too few commits to tell" in result.stdout


def test_check_names_the_commit_whose_verdict_is_worse(repository: Path) -> None:
    for number, verdict in enumerate(("holds", "violated")):
        ratio = {"holds": 0.4, "violated": 40.0}[verdict]
        results = [report_samples.result("LN101", "forward-accuracy", verdict=verdict, worst_ratio=ratio)]
        written(repository / "report.json", report_samples.report(results).to_json())
        history("add", "report.json", *a_commit(number))
    result = history("check")
    assert result.exit_code == 1
    assert "  worse  LN101 forward-accuracy [float32, cpu] of torch" in result.stdout
    assert "less accurate  LN101 forward-accuracy [float32, cpu] of torch" in result.stdout
    assert ": 0.4 to 40, 100 times; 1 commit\n" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show"], "there is no history 'lnverify-history.sqlite': `lnverify history add REPORT.json` begins one."),
        (["check", "--db", "bench.json"], "'bench.json' is no history that this version of lnverify reads"),
        (["check", "--alpha", "2"], "invalid value for '--alpha': 2.0 is not in the range"),
        (["export", "csv", "out"], "invalid value for '{asv|otava}': 'csv' is not one of 'asv', 'otava'"),
        (["add"], "missing argument 'REPORT.json...'"),
        (["add", "none.json"], "cannot read 'none.json': No such file or directory."),
        (["html", "no/page.html"], "cannot write 'no/page.html': No such file or directory."),
    ],
)
def test_a_wrong_command_is_one_sentence(words: list[str], sentence: str) -> None:
    result = history(*words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr


def test_an_unknown_subject_is_named_with_those_there_are() -> None:
    history("add", "bench.json")
    result = history("check", "--subject", "other")
    assert (result.exit_code, result.stderr) == (
        2, "lnverify: no subject has 'other' in its name: ./kernels.py:ln.\n"
    )  # fmt: skip
