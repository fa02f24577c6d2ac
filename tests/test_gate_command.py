"""The gate as a command, on a kernel that says what it takes: costs are counted, not timed."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from click.testing import CliRunner, Result

from lnverify.cli import main
from lnverify.gate import examined, speed
from lnverify.timing import job as job_module
from lnverify.timing import worker
from lnverify.timing.clock import HostClock
from lnverify.timing.job import Job
from tests.test_beside import commit, git
from tests.timing_samples import WorkTime, counted_kernel


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


WORDS = ("--against", "./base.py:ln?backward=ln_backward", "--shapes", "4x16", "--dtype", "fp32", "--seconds", "0.01",
         "--select", "LN101,LN201")  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a kernel; what fresh processes do is done here, on the counted clock."""
    monkeypatch.chdir(tmp_path)
    counted_kernel(tmp_path, 1.0, "base.py")
    time = WorkTime()

    def here(module: str, order: Any, environment: Any, timeout: float, folder: Path | None = None) -> Any:
        given = json.loads(json.dumps(order, default=vars))
        if module == job_module.WORKER:
            return json.loads(json.dumps(worker.do(Job.from_json(given))))
        return json.loads(json.dumps(examined._check(given)))

    monkeypatch.setattr(worker, "host_clock", lambda threads, call: HostClock("cpu", time.read, time.read))
    monkeypatch.setattr(job_module, "call", here)
    monkeypatch.setattr(examined, "call", here)
    # The screen of some thousand sizes: not what is tested here.
    monkeypatch.setattr("lnverify.examination.sizes", lambda profile: iter([(8, 2), (513, 3)]))
    return tmp_path


STORED: list[str] = []  # the baseline's text: every test that wants one gets the same


@pytest.fixture
def baseline(folder: Path) -> str:
    target = counted_kernel(folder, 1.0)
    if STORED:
        (folder / "b.json").write_text(STORED[0])
        return target
    made = lnverify("gate", target, "--baseline", "b.json", "--update", *WORDS)
    assert made.exit_code == 0, made.output
    assert made.stderr.splitlines()[:2] == [
        "lnverify gate: laws",
        "lnverify gate: process 1 of 6",
    ]  # no terminal: a log
    assert made.stdout == "written: b.json: 2 verdicts (0 violations), 3 of 3 paths.\n"
    STORED.append((folder / "b.json").read_text())
    return target


def rows_of(result: str = "out.json") -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in json.loads(Path(result).read_text())["rows"]}


def test_unchanged_code_passes_and_the_baseline_obeys_its_schema(folder: Path, baseline: str) -> None:
    schema = json.loads((Path(speed.__file__).parents[1] / "schemas" / "baseline-1.json").read_text())
    stored = json.loads((folder / "b.json").read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(stored)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(schema).validate(stored | {"schema": "lnverify-baseline/2"})
    result = lnverify("gate", baseline, "--baseline", "b.json", "--json", "out.json")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1].startswith(f"passed  {baseline} against b.json: 5 the same, ")
    assert {row["outcome"] for row in rows_of().values()} == {"same"}
    words = [line.split() for line in result.stdout.splitlines()]
    assert words[0] == ["compared", "was", "now", "change", "outcome", "how", "surely"]
    assert ["4x16", "float32", "forward", "1.000", "1.000", "+0.0%", "same", "screened,"] in [
        line[:8] for line in words
    ]


def test_a_slowdown_of_ten_percent_fails_and_one_percent_does_not(folder: Path, baseline: str) -> None:
    counted_kernel(folder, 1.1)
    result = lnverify("gate", baseline, "--baseline", "b.json", "--json", "out.json", "--junit", "out.xml")
    assert result.exit_code == 1, result.output
    assert result.stdout.splitlines()[-1].startswith(f"regression  {baseline} against b.json: 3 worse (4x16 float32")
    found = rows_of()
    assert {name: (row["change"], row["outcome"]) for name, row in found.items() if row["kind"] == "speed"} == {
        f"4x16 float32 {what}": ("+10.0%", "worse") for what in ("forward", "backward", "forward+backward")
    }
    assert "for information, on this machine: 4x16 float32 forward 1e+03 us then, 1.1e+03 us now; " in result.stdout
    suite = ET.parse(folder / "out.xml").getroot()[0]
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("5", "3", "0")
    counted_kernel(folder, 1.01)
    assert lnverify("gate", baseline, "--baseline", "b.json").exit_code == 0


def test_statistics_in_sixteen_bits_fail(folder: Path, baseline: str) -> None:
    counted_kernel(folder, 1.0, statistics="bf16(d)")
    result = lnverify("gate", baseline, "--baseline", "b.json", "--json", "out.json")
    assert result.exit_code == 1, result.output
    found = rows_of()
    assert (found["LN101 float32"]["was"], found["LN101 float32"]["now"]) == ("holds", "violated")
    assert f"{found['LN101 float32']['change']}: LN101 float32" in result.stdout  # the cause, with its laws
    assert found["y float32"]["outcome"] == "worse"
    (folder / "lnverify.toml").write_text(
        f'target = "{baseline}"\n[[expected]]\nlaw = "LN101"\nreason = "statistics in bfloat16"\n'
    )
    assert (
        lnverify("gate", "--baseline", "b.json", "--json", "out.json").exit_code == 1
    )  # accuracy is lost all the same
    assert "LN101 float32" not in rows_of()
    other = (folder / "lnverify.toml").read_text().replace(baseline, "./base.py:ln")
    (folder / "lnverify.toml").write_text(other)  # what is expected of another target
    assert lnverify("gate", baseline, "--baseline", "b.json", "--json", "out.json").exit_code == 1
    assert rows_of()["LN101 float32"]["outcome"] == "worse"


def test_another_machine_is_named_and_its_seconds_are_not_used(folder: Path, baseline: str) -> None:
    stored = json.loads((folder / "b.json").read_text())
    stored["machine"] |= {"processor": "another", "fingerprint": "000000000000"}
    stored["speed"][0]["seconds"] = 1e-9
    (folder / "b.json").write_text(json.dumps(stored))
    result = lnverify("gate", baseline, "--baseline", "b.json")
    assert result.exit_code == 0
    assert "the baseline is of another machine (processor differ): verdicts and ratios are compared" in result.stdout
    assert "s then" not in result.stdout


def test_the_merge_base_is_timed_beside_the_working_tree(folder: Path) -> None:
    target = counted_kernel(folder, 1.0)
    git(folder, "init", "-q", "-b", "main")
    first = commit(folder, "first")
    words = ("--base-ref", "main", "--json", "out.json", *WORDS[2:])
    result = lnverify("gate", target, *words)
    assert result.exit_code == 0, result.output
    assert f"against the merge base {first[:12]}: 5 the same" in result.stdout
    counted_kernel(folder, 1.1)
    result = lnverify("gate", target, *words)
    assert result.exit_code == 1, result.output
    changes = {row["change"] for row in rows_of().values() if row["kind"] == "speed"}
    assert changes == {"+10.0%"}
    # With a file as well: verdicts from there, although the ratio of its own would pass.
    assert lnverify("gate", target, "--baseline", "b.json", "--update", *WORDS).exit_code == 0
    result = lnverify("gate", target, "--baseline", "b.json", "--base-ref", "main")
    assert result.exit_code == 1, result.output
    assert f"against b.json and the merge base {first[:12]}: 3 worse" in result.stdout


def test_calibration_counts_false_alarms_and_finds(folder: Path) -> None:
    target = counted_kernel(folder, 1.0)
    result = lnverify("gate", target, "--calibrate", "2", *WORDS[2:])
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == (
        "0 of 2 null gates raised a false alarm: at most 77.6% do (95 %); 0 could not tell."  # 1 - 0.05^(1/2)
    )
    result = lnverify("gate", target, "--calibrate", "1", "--slowed", "10%", *WORDS[2:])
    assert result.stdout.splitlines()[-1] == (
        "1 of 1 gates found a slowdown of 10.0%, on 3 paths: at least 5.0% do (95 %); 0 could not tell."
    )


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ((), "there is nothing to compare with: give --baseline FILE, --base-ref REV, or --calibrate N."),
        (("--update",), "--update needs --baseline FILE, the file to write."),
        (("--baseline", "b.json"), "there is no baseline 'b.json': make it anew with `lnverify gate"),
        (("--baseline", "text.json"), "'text.json' is no baseline, for it is not JSON"),
        (("--baseline", "list.json"), "'list.json' is no baseline: its schema is 'list', 'lnverify-baseline/1'"),
        (("--baseline", "empty.json"), "the baseline 'empty.json' is damaged (KeyError at 'laws')"),
        (("--baseline", "text.json", "--shapes", "4x4"), "--shapes is for the baseline to say: leave it out"),
        (("--baseline", "text.json", "--dtype", "fp32"), "--dtype is for the baseline to say: leave it out"),
        (("--calibrate", "2", "--base-ref", "main"), "--calibrate compares the target with itself"),
        (("--calibrate", "2", "--against", "m:f"), "--calibrate times the target against itself: leave --against out."),
        (("--base-ref", "main", "--against", "m:f"), "--base-ref times the target against its earlier code: leave"),
        (
            ("--update", "--baseline", "b.json", "--slower-than", "5%"),
            "--slower-than decides a comparison, and --update",
        ),
        (("--base-ref", "main", "--slowed", "5%"), "--slowed is for --calibrate N"),
        (("--base-ref", "main", "--slower-than", "two"), "--slower-than two is not a share from 0 to below 100%"),
        (("--base-ref", "main", "--slower-than", "120%"), "--slower-than 120% is not a share"),
        (("--base-ref", "main", "--select", "XX9"), "XX9"),
        (("--update", "--baseline", "b.json", "--base-ref", "main"), "give one of them."),
        (("--update", "--baseline", "b.json", "--json", "r.json"), "there is no report to write: leave --json"),
        (("--base-ref", "main", "--json", "r", "--junit", "r"), "name the same file: give different ones."),
        (("--base-ref", "main"), "--base-ref: not a git repository"),
    ],
)
def test_a_wrong_argument_is_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], sentence: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, text in (("text", "no"), ("list", "[]"), ("empty", '{"schema": "lnverify-baseline/1"}')):
        (tmp_path / f"{name}.json").write_text(text)
    result = lnverify("gate", "a:b", *words)
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1), result.output
    assert sentence in result.stderr


def test_a_baseline_of_another_target_or_without_a_target_is_refused(folder: Path, baseline: str) -> None:
    result = lnverify("gate", "./base.py:ln", "--baseline", "b.json")
    assert (result.exit_code, result.stderr) == (
        2, f"lnverify: the baseline 'b.json' is of {baseline!r}, not of './base.py:ln': name that target.\n"
    )  # fmt: skip
    result = lnverify("gate", "--baseline", "b.json")
    assert (result.exit_code, result.stderr) == (
        2, "lnverify: name the target to compare: lnverify.toml does not name exactly one.\n"
    )  # fmt: skip
