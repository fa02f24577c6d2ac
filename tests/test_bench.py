"""`lnverify bench`: what it prints and writes, and what it refuses. No test asks how long."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lnverify.cli import main
from lnverify.timing import job
from lnverify.timing.clock import Reading
from lnverify.timing.job import Done, Job, Timed
from lnverify.timing.rounds import Rounds
from tests.timing_samples import kernel

SECONDS = {"candidate": 1.1e-3, "baseline": 1e-3, "copy": 0.55e-3, "clone": 2.2e-3}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_one_fresh_process_times_what_was_asked_for(folder: Path) -> None:
    right = kernel(folder)
    words = ("--against", right, "--shapes", "4x8", "--dtype", "fp32", "--processes", "1", "--seconds", "0.001")
    result = lnverify("bench", right, *words, "--json", "out.json")
    assert (result.exit_code, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert lines[0] == f"{right} against {right}"
    assert [line.split()[:3] for line in lines[2:5]] == [
        ["4x8", "float32", what] for what in ("forward", "backward", "forward+backward")
    ]
    data = json.loads((folder / "out.json").read_text())
    assert (data["schema"], data["against"], data["targets"][0]["target"]) == ("lnverify-bench/1", right, right)
    assert data["machine"]["threads"] == 1
    found = data["targets"][0]["paths"]
    assert [path["ratio"]["processes"] for path in found] == [1, 1, 1]
    assert all(path["seconds"] > 0 and path["of_copy"] > 0 and path["why"] == "" for path in found)


def test_ratios_limits_and_what_is_not_timed_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(given: Job) -> Done:
        readings = {name: [Reading(s, s)] * 40 for name, s in SECONDS.items()}
        first, *others = given.paths
        wrong = tuple(Timed(path, wrong="dweight[0] is 1, exact 2") for path in others)
        return Done((Timed(first, Rounds("cpu", 1, readings)), *wrong), {"fingerprint": "f"})

    monkeypatch.setattr(job, "run", run)
    result = lnverify("bench", "a:b", "--shapes", "512x1024", "--dtype", "bf16")
    assert result.exit_code == 0
    row = result.stdout.splitlines()[2].split()
    # 2 x 512 x 1024 x 2 bytes in 1.1 ms
    assert row == [
        "512x1024",
        "bfloat16",
        "forward",
        "cpu",
        "1.1",
        "ms",
        "1.100",
        "[1.100,",
        "1.100]",
        "0.50",
        "2.00",
        "1.9",
    ]
    assert "not timed  512x1024 bfloat16 backward: dweight[0] is 1, exact 2" in result.stdout
    assert "above 1  512x1024 bfloat16 forward: faster than a copy of its bytes" in result.stdout


def test_nothing_timed_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(given: Job) -> Done:
        return Done(lost="the process ended with status -9")

    monkeypatch.setattr(job, "run", run)
    result = lnverify("bench", "a:b", "--shapes", "2x8", "--dtype", "fp32")
    assert result.exit_code == 3
    assert "not timed  2x8 float32 forward: the process ended with status -9" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("--shapes", "512"), "the shape '512' is not rows x N, both from 1: write 512x1024, or 8x128x1024."),
        (("--dtype", "fp8"), "fp8"),
        (("--json", "no/such/folder.json"), "cannot write 'no/such/folder.json': No such file or directory."),
        (("--processes", "0"), "see `lnverify bench --help`"),
    ],
)
def test_a_wrong_argument_is_one_sentence_before_anything_runs(words: tuple[str, ...], sentence: str) -> None:
    result: Any = lnverify("bench", "a:b", *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert sentence in result.stderr


def test_an_unknown_target_is_told_by_the_process_that_met_it() -> None:
    result = lnverify("bench", "./nothing.py:ln", "--shapes", "2x8")
    assert (result.exit_code, result.stderr) == (2, "lnverify: there is no file 'nothing.py'.\n")
