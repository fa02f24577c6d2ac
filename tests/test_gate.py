"""The gate: what passes, what fails, what it cannot tell. Costs are counted, not timed: a kernel says what it takes."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from click.testing import CliRunner, Result

from lnverify.cli import main
from lnverify.finding import Report
from lnverify.gate import examined, speed
from lnverify.gate.correctness import accuracy, compare
from lnverify.gate.examined import Examined, least
from lnverify.gate.row import Row, verdict
from lnverify.gate.settings import Settings
from lnverify.timing import job as job_module
from lnverify.timing import worker
from lnverify.timing.clock import HostClock, Reading
from lnverify.timing.interval import Ratio, ratio
from lnverify.timing.job import Done, Job, Timed
from lnverify.timing.paths import HotPath
from lnverify.timing.rounds import Rounds
from tests.test_beside import commit, git
from tests.timing_samples import WorkTime, counted_kernel, kernel

PATH = HotPath((32, 768), "float32", "forward")
OTHER = HotPath((512, 1024), "float32", "forward")


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


# Correctness and accuracy


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


# Speed, on ratios that the test makes


class Machine:
    """Stands for fresh processes. true: the ratio of each path; noise: of one pair; bias: of one process."""

    def __init__(
        self, true: Mapping[HotPath, float], noise: float = 0.15, bias: float = 0.015, seed: int = 0, pairs: int = 400
    ) -> None:
        self.true, self.noise, self.bias, self.pairs = true, noise, bias, pairs
        self.random = np.random.default_rng(seed)
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, job: Job) -> Done:
        self.asked.append(tuple(path.name for path in job.paths))
        return Done(tuple(self.timed(path) for path in job.paths), {"fingerprint": "one"})

    def timed(self, path: HotPath) -> Timed:
        own = np.log(self.true[path]) + self.bias * self.random.standard_normal()
        ratios = np.exp(own + self.noise * self.random.standard_normal(self.pairs))
        readings = {"candidate": [Reading(r, r) for r in ratios], "baseline": [Reading(1.0, 1.0)] * self.pairs}
        return Timed(path, Rounds("cpu", 1, readings))


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Machine]:
    def put(true: Mapping[HotPath, float], **noise: Any) -> Machine:
        found = Machine(true, **noise)
        monkeypatch.setattr(job_module, "run", found)
        return found

    return put


def outcomes(
    job: Job, before: Mapping[str, speed.Before] | None = None, slower_than: float = speed.SLOWER_THAN
) -> list[str]:
    return [row.outcome for row in speed.compare(job, before, slower_than).rows]


def test_unchanged_code_passes_after_the_screen(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.0, OTHER: 1.0}, bias=0.002)
    assert outcomes(Job("t", (PATH, OTHER))) == ["same", "same"]
    assert len(put.asked) == speed.SCREEN


def test_only_what_is_slower_is_timed_again_and_accused(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.10, OTHER: 1.0}, bias=0.002)
    rows = speed.compare(Job("t", (PATH, OTHER))).rows
    assert [row.outcome for row in rows] == ["worse", "same"]
    assert put.asked == [(PATH.name, OTHER.name)] * speed.SCREEN + [(PATH.name,)] * speed.CONFIRM
    assert rows[0].surely.endswith("2400 pairs, 6 processes")
    assert "(99.50%)" in rows[0].surely  # 1 % over two paths


def test_what_is_faster_is_said_to_be_better(machine: Callable[..., Machine]) -> None:
    machine({PATH: 0.9, OTHER: 0.99}, bias=0.0)
    assert outcomes(Job("t", (PATH, OTHER))) == ["better", "same"]


def test_what_the_screen_saw_by_chance_is_not_confirmed(machine: Callable[..., Machine]) -> None:
    put = machine({PATH: 1.0})
    put.true = {PATH: 1.05}  # while it screens

    def later(job: Job) -> Done:
        if len(put.asked) >= speed.SCREEN:
            put.true = {PATH: 1.0}
        return put(job)

    job_module.run = later  # type: ignore[assignment] - the fixture puts it back
    rows = speed.compare(Job("t", (PATH,))).rows
    assert (rows[0].outcome, rows[0].surely[:24]) == ("same", "suspected, not confirmed")
    assert len(put.asked) == speed.SCREEN + speed.CONFIRM


@pytest.mark.parametrize("stored", [False, True], ids=["beside", "stored"])
def test_false_alarms_stay_below_and_finds_above_what_is_promised(
    machine: Callable[..., Machine], stored: bool
) -> None:
    """Six paths, at a spread of 15 % a pair and 1.5 % a process, as measured on a loaded machine (docs/speed.md)."""
    found = {}
    paths = tuple(HotPath((32, 768 + n), "float32", "forward") for n in range(6))
    for true in (1.0, 1.05, 1.10):
        before = None
        if stored:
            of = machine(dict.fromkeys(paths, 1.0), pairs=200, seed=1)
            rounds = {p: [of.timed(p).rounds for _ in range(speed.CONFIRM)] for p in paths}
            alpha = speed.alpha_of(len(paths), stored=True)
            before = {p.name: speed.Before(ratio([r.ratios() for r in rounds[p] if r], alpha)) for p in paths}
        machine(dict.fromkeys(paths, true), pairs=200, seed=3)
        found[true] = sum("worse" in outcomes(Job("t", paths), before) for _ in range(20))
    assert found[1.0] == 0
    assert found[1.05] >= 16
    assert found[1.10] == 20


def test_slower_by_less_than_is_allowed_passes(machine: Callable[..., Machine]) -> None:
    machine({PATH: 1.10}, bias=0.0)
    assert outcomes(Job("t", (PATH,)), slower_than=0.2) == ["same"]
    assert outcomes(Job("t", (PATH,)), slower_than=0.05) == ["worse"]


def test_a_stored_ratio_is_compared_by_its_upper_bound(machine: Callable[..., Machine]) -> None:
    machine({PATH: 1.10}, bias=0.0)
    for high, outcome in ((1.06, "worse"), (1.09, "same")):
        stored = {PATH.name: speed.Before(Ratio(1.05, 1.04, high, 2400, 6))}
        assert outcomes(Job("t", (PATH,)), stored) == [outcome]
    assert outcomes(Job("t", (PATH,)), {}) == ["unsure"]
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(None, "it had no backward")}) == ["better"]


def test_too_few_pairs_and_a_lost_process_are_not_told(
    machine: Callable[..., Machine], monkeypatch: pytest.MonkeyPatch
) -> None:
    machine({PATH: 1.5}, pairs=1)
    row = speed.compare(Job("t", (PATH,))).rows[0]
    assert (row.outcome, row.surely) == ("unsure", "6 pairs are too few")
    put = Machine({PATH: 1.5})
    monkeypatch.setattr(job_module, "run", lambda job: put(job) if len(put.asked) < 4 else Done(lost="it died"))
    row = speed.compare(Job("t", (PATH,))).rows[0]
    assert (row.outcome, row.surely) == ("unsure", "2 of 6 processes: it died")
    monkeypatch.setattr(job_module, "run", lambda job: Done(lost="it died"))
    assert outcomes(Job("t", (PATH,))) == ["unsure"]


def test_what_the_subject_does_not_have_is_no_doubt_unless_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Machine({PATH: 1.0}, bias=0.0)

    def run(job: Job) -> Done:
        lacks = Timed(OTHER, refused="it has no backward", able=False)
        return Done(tuple(lacks if path == OTHER else put.timed(path) for path in job.paths))

    monkeypatch.setattr(job_module, "run", run)
    assert outcomes(Job("t", (PATH, OTHER))) == ["same", "same"]
    assert outcomes(Job("t", (OTHER,))) == ["unsure"]


def test_a_path_that_newly_computes_a_wrong_result_is_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    put = Machine({PATH: 1.0}, bias=0.0)

    def run(job: Job) -> Done:
        done = put(job)
        return Done(tuple(Timed(t.path, t.rounds, "y[0] is 1, exact 2") for t in done.timed), done.machine)

    monkeypatch.setattr(job_module, "run", run)
    right, wrong = Ratio(1.0, 0.99, 1.01, 2400, 6), "y[0] is 1, exact 2"
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(right)}) == ["worse"]
    assert outcomes(Job("t", (PATH,)), {PATH.name: speed.Before(right, wrong)}) == ["same"]


# The command, on a kernel that says what it takes

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
    assert (made.exit_code, made.stderr) == (0, ""), made.output
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
    assert (result.exit_code, result.stderr) == (0, ""), result.output
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
    words = ("--base-ref", "main", "--json", "out.json", *WORDS)
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
    result = lnverify("gate", target, "--calibrate", "2", *WORDS)
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[-1] == (
        "0 of 2 null gates raised a false alarm: at most 77.6% do (95 %); 0 could not tell."  # 1 - 0.05^(1/2)
    )
    result = lnverify("gate", target, "--calibrate", "1", "--slowed", "10%", *WORDS)
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
