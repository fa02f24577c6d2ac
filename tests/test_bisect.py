"""`git bisect run lnverify bisect ...`, in repositories of which it is known which commit broke what."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lnverify.cli import COMMANDS, bisect, main
from tests.test_history_commands import git

RIGHT = """
import numpy as np

def ln(x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
"""
# Of the same length, as a change of one sign would be: a stale compiled file would pass for it.
WRONG = RIGHT.replace("+ eps)", "- eps)")
assert len(WRONG) == len(RIGHT)
BROKEN = RIGHT.replace("import numpy", "import nummpy")
LAST = 5


def repository(
    folder: Path, broken_from: int, no_import_at: int = -1, sources: tuple[str, str] = (RIGHT, WRONG)
) -> list[str]:
    """Commits 0 to LAST of kernels.py, broken from one on; one of them cannot be imported. Their hashes."""
    git(folder, "init", "--quiet")
    hashes = []
    for number in range(LAST + 1):
        source = sources[number >= broken_from]
        (folder / "kernels.py").write_text(BROKEN if number == no_import_at else source)
        (folder / "notes.txt").write_text(f"change {number}\n")
        git(folder, "add", "kernels.py", "notes.txt")
        git(folder, "commit", "--quiet", "-m", f"Change {number}", day=number + 1)
        hashes.append(git(folder, "rev-parse", "HEAD"))
    return hashes


def found(folder: Path, *words: str) -> tuple[str, subprocess.CompletedProcess[str]]:
    """The commit that git ends at when it runs `lnverify bisect` with these words."""
    git(folder, "bisect", "start", "HEAD", git(folder, "rev-list", "--max-parents=0", "HEAD"))
    run = ["git", "bisect", "run", sys.executable, "-m", "lnverify", "bisect", *words]
    environment = {**os.environ, "LNVERIFY_CACHE": str(folder / "cache")}
    done = subprocess.run(run, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return git(folder, "rev-parse", "refs/bisect/bad"), done


CHECK = (
    "check",
    "./kernels.py:ln",
    "--dtype",
    "fp32",
    "--select",
    "LN101",
    "--max-examples",
    "1",
    "-q",
    "--no-isolate",
)


@pytest.mark.heavy
def test_check_finds_the_commit_that_made_it_wrong(tmp_path: Path) -> None:
    hashes = repository(tmp_path, broken_from=4, no_import_at=2)  # where git looks first
    bad, done = found(tmp_path, *CHECK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert bad == hashes[4]
    assert f"{hashes[4]} is the first bad commit" in done.stdout
    # The commit that cannot be imported was asked, said so in one sentence, and was skipped.
    assert "needs the module 'nummpy'" in done.stderr + done.stdout
    assert git(tmp_path, "for-each-ref", "--format=%(refname)", "refs/bisect/skip*").endswith(hashes[2])
    assert not (tmp_path / "__pycache__").exists()


def test_replay_looks_at_one_stored_case(tmp_path: Path) -> None:
    hashes = repository(tmp_path, broken_from=2)
    report = tmp_path / "report.json"
    environment = {**os.environ, "LNVERIFY_CACHE": str(tmp_path / "cache"), "PYTHONDONTWRITEBYTECODE": "1"}
    checked = subprocess.run(
        [sys.executable, "-m", "lnverify", *CHECK, "--json", str(report)],
        cwd=tmp_path, env=environment, capture_output=True, check=False,
    )  # fmt: skip
    assert checked.returncode == 1
    bad, done = found(tmp_path, "replay", "report.json", "./kernels.py:ln")
    assert (bad, done.returncode) == (hashes[2], 0)
    assert "no longer violated" in done.stdout


SLOW = """
import torch

def ln(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    for _ in range({times}):
        y = torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)
    return y
"""
GATE = ("gate", "./kernels.py:ln", "--select", "LN101", "--dtype", "fp32", "--shapes", "512x1024", "--seconds", "0.3")


@pytest.mark.heavy
@pytest.mark.skipif("gate" not in COMMANDS, reason="this version has no gate")
def test_gate_finds_the_commit_that_made_it_slower(tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """Twice the work: the gate has no doubt about it, however busy the machine."""
    if not request.config.getoption("--benchmark-enable", False):
        pytest.skip("it times, for some minutes: tox -e bisect")
    hashes = repository(tmp_path, broken_from=2, sources=(SLOW.format(times=1), SLOW.format(times=2)))
    bad, done = found(tmp_path, *GATE, "--base-ref", hashes[0])
    assert (bad, done.returncode) == (hashes[2], 0), done.stdout + done.stderr


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, ["bisect", *words])


@pytest.mark.parametrize(
    ("status", "expected"), [(0, 0), (1, 1), (2, 128), (125, 125), (3, 125), (4, 128), (130, 128), (-11, 128)]
)  # fmt: skip
def test_an_exit_status_is_said_in_the_words_of_git(
    monkeypatch: pytest.MonkeyPatch, status: int, expected: int
) -> None:
    asked = []

    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        asked.append(command[1:])
        return subprocess.CompletedProcess(command, status)

    monkeypatch.setattr(bisect.subprocess, "run", run)
    assert lnverify("check", "./kernels.py:ln", "-q").exit_code == expected
    assert asked == [["-m", "lnverify.cli.bisect", "check", "./kernels.py:ln", "-q"]]


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (("./ok.py:ln", "--select", "LNXX"), 128),  # wrong at every commit
        (("./ok.py:other",), 125),  # at this one
        (("./none.py:ln",), 125),
    ],
)
def test_what_is_wrong_at_every_commit_is_told_from_what_is_at_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], status: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "ok.py").write_text("import numpy\n\n\ndef ln(x, eps=1e-5):\n    return x\n")
    assert lnverify("check", "--no-isolate", *words).exit_code == status


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "'' judges no commit: write `lnverify bisect WORD ...` with one of check, replay"),
        (["laws"], "'laws' judges no commit: write `lnverify bisect WORD ...` with one of check, replay"),
        (["check", "--nothing"], "No such option"),
        (["check", "--seed", "x"], "the seed 'x' is neither a whole number from 0 nor 'random'."),
    ],
)
def test_a_wrong_command_stops_the_search_and_blames_no_commit(words: list[str], sentence: str) -> None:
    result = lnverify(*words)
    assert result.exit_code == 128
    assert result.stderr.startswith(f"lnverify: {sentence}"), result.stderr
    assert result.stderr.count("\n") == 1
