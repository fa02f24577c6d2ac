"""Reports in every format, from hand-made reports. A snippet is run: it must print what the finding says."""

from __future__ import annotations

import io
import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lnverify.finding import Observation, Report
from lnverify.floats import FloatArray, decode
from lnverify.protocol import HISTORIES
from lnverify.reports import console, coverage, github, json_file, junit, wording
from tests import report_samples as samples

torch = pytest.importorskip("torch")
TARGET = samples.TARGET


def shown(report: Report, **options: Any) -> str:
    file = io.StringIO()
    console.show(report, console.make_console(file), **options)
    return "\n".join(line.rstrip() for line in file.getvalue().splitlines())


# --- console


def test_what_holds_takes_a_line_for_each_family() -> None:
    assert shown(samples.report()) == (
        "lnverify 0.1.0  torch.nn.functional.layer_norm\n"
        "layer_norm, profile quick, seed 0\n"
        "python 3.11.7, Linux x86_64, 2 cores, numpy 2.4.6, torch 2.13.0\n"
        "\n"
        "LN1  accuracy    holds  1 law, at most 0.4 of the bound\n"
        "LN3  invariance  holds  1 law, at most 0.1 of the bound\n"
        "\n"
        "N 1 to 4,097 (7 sizes); rows 1, 2, 33; affine both, weight, none; requires_grad x, x+weight+bias\n"
        "not supported: mean, rstd; not examined: cuda; vacuous: 16 (LN101 12, LN305 4)\n"
        "holds  torch.nn.functional.layer_norm: no violation found; 2 laws, 1,234 examples, 12.3 s, seed 0"
    )


def test_shapes_that_were_left_out_are_counted_by_dtype_and_reason() -> None:
    slow = "over 2 s by the warm-up's estimate"
    entries = [f"float32: N=4097, rows={rows} ({slow})" for rows in (65, 129, 257)]
    entries += ["float32: N=8, rows=3 (like one that crashed)", "time limit"]
    assert coverage._not_examined(entries) == [
        f"not examined: float32 N=4097, rows=65 ({slow}) and 2 more",
        "not examined: float32 N=8, rows=3 (like one that crashed)",
        "not examined: time limit",
    ]


def test_a_finding_is_a_sentence_numbers_a_replay_line_and_a_script() -> None:
    text = shown(samples.violated(), source="3f9c1a")
    block = text[text.index("2. error") : text.index("3. warning")]
    ident = samples.reduction_findings()[0].id
    assert block == (
        "2. error  the sum over rows loses low bits\n"
        "   LN203 dweight-accuracy, LN204 dbias-accuracy; float32, float16 on cpu\n"
        "   dweight[2] is -1, the exact value is -1.25: 2 times the bound of 0.125.\n"
        "\n"
        "                         expected  got   bound  error/bound\n"
        "   smallest  dweight[2]  -1.25     -1    0.125           2x\n"
        "   worst     dweight[5]  1234.5    1210  0.5            49x\n"
        "\n"
        "   smallest case: LN203 float16, N=3, rows=2, eps=1e-05\n"
        "     x       [0.0, 0.1, 0.2, 0.3, 0.4, 0.5]\n"
        "             [0x0p+0, 0x1.998p-4, 0x1.998p-3, 0x1.334p-2, 0x1.998p-2, 0x1p-1]\n"
        "     weight  all 1.0\n"
        "     bias    all 0.0\n"
        "     dy      [1.0, -0.5, -0.5, 1.0, -0.5, -0.5]\n"
        "   worst case: LN203 float16, N=257, rows=33, mean/std=1e4, eps=1e-05\n"
        "\n"
        f"   lnverify replay 3f9c1a --finding {ident}\n"
        "\n"
        "import torch\n"
        "x = torch.tensor([[0.0, 0.1, 0.2], [0.3, 0.4, 0.5]], dtype=torch.float16, requires_grad=True)\n"
        "weight = torch.ones(3, dtype=torch.float16, requires_grad=True)\n"
        "bias = torch.zeros(3, dtype=torch.float16, requires_grad=True)\n"
        "dy = torch.tensor([[1.0, -0.5, -0.5], [1.0, -0.5, -0.5]], dtype=torch.float16)\n"
        "y = torch.nn.functional.layer_norm(x, (3,), weight, bias, 1e-05)\n"
        "dx, dweight, dbias = torch.autograd.grad(y, (x, weight, bias), dy)\n"
        "print(dweight[2].item())  # got -1.0, expected -1.25, bound 0.125\n"
        "\n"
    )


def test_four_findings_with_one_cause_are_one_block_and_errors_come_first() -> None:
    titles = [line for line in shown(samples.violated()).splitlines() if re.match(r"\d\. ", line)]
    assert titles == [
        "1. error  forward accuracy",
        "2. error  the sum over rows loses low bits",
        "3. warning  one rounding too many",
    ]


def test_rows_of_the_table_are_for_what_does_not_hold() -> None:
    table = shown(samples.violated()).split("\n\n")[1].splitlines()
    assert [re.split(r"  +", line.strip()) for line in table] == [
        ["LN1", "accuracy", "violated", "2 laws, at most 0.4 of the bound where it holds"],
        ["LN101 forward-accuracy", "violated", "float32 4.3e+05x"],
        ["LN104 rounding-points", "warning", "float16 1.4x"],
        ["LN2", "gradients", "violated", "2 laws"],
        ["LN203 dweight-accuracy", "violated", "float32 49x, float16 49x"],
        ["LN204 dbias-accuracy", "violated", "float32 49x, float16 49x"],
        ["LN3", "invariance", "holds", "1 law, at most 0.1 of the bound"],
        ["LN4", "moments", "not applicable", "returns no mean"],
        ["LN7", "determinism, purity, modules", "holds", "1 law"],
    ]


def test_inconclusive_says_which_law_why_and_what_resolves_it() -> None:
    text = shown(samples.undecided())
    assert (
        "undecided  LN305 scale-invariance (bfloat16, float16): 3 informative examples of 10.\n"
        f"    lnverify check {TARGET} --select LN305 --dtype bfloat16,float16 --profile ci\n"
    ) in text
    assert text.splitlines()[-1] == (f"inconclusive  {TARGET}: undecided LN305; 1 law, 1,234 examples, 12.3 s, seed 0")


def test_quiet_is_the_verdict_line() -> None:
    assert shown(samples.violated(), quiet=True) == (
        f"violated  {TARGET}: 2 causes (LN101, LN203, LN204), 1 warning (LN104); 6 laws, 1,234 examples, 12.3 s, seed 0"
    )


def test_an_interrupted_run_says_so() -> None:
    report = samples.report(stopped="interrupted", seconds=1.2, examples=40)
    assert shown(report, quiet=True) == (
        f"holds so far (interrupted)  {TARGET}: no violation found; 2 laws, 40 examples, 1.2 s, seed 0"
    )


def test_verbose_has_every_law_in_every_dtype_and_the_time_by_stage() -> None:
    text = shown(samples.violated(), verbose=True)
    rows = [re.split(r"  +", line) for line in text.splitlines() if re.match(r"LN\d+  ", line)]
    assert len(rows) == len(samples.violated().results)
    assert rows[1] == ["LN101", "forward-accuracy", "float16", "cpu", "holds", "0.4", "100/120"]
    assert ["LN401", "mean", "float32", "cpu", "inapplicable", "returns no mean"] in rows
    assert "time: subject 1.50 s, oracle 2.25 s" in text


def test_a_large_case_has_its_replay_line_in_place_of_a_script() -> None:
    big = samples.case(shape=(7, 31), x=np.random.default_rng(0).normal(size=(7, 31)))
    found = samples.finding("LN101", "forward-accuracy", samples.observation(big, "y", (0, 0), 1.0, 2.0))
    text = shown(samples.report(findings=[found]), source="r.json")
    low, high = big.matrix("x").min(), big.matrix("x").max()
    assert f"     x       (7, 31), {low:.6g} to {high:.6g}\n" in text
    assert f"   lnverify replay r.json --finding {found.id}\n" in text
    assert "   no standalone script: the case has 217 elements; the line above replays it\n" in text


def test_terminal_colours_obey_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    coloured, plain = Terminal(), Terminal()
    console.show(samples.report(), console.make_console(coloured), quiet=True)
    assert coloured.getvalue().startswith("\x1b[32mholds\x1b[0m  torch.nn")
    monkeypatch.setenv("NO_COLOR", "1")
    console.show(samples.report(), console.make_console(plain), quiet=True)
    assert plain.getvalue().startswith("holds  torch.nn")


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.0, ""), (1.0, ""), (0.43, "0.43x"), (1.0004, "1.0004x"), (41.0, "41x"), (31415.9, "3.1e+04x"), (np.inf, "inf")],
)
def test_ratios(ratio: float, text: str) -> None:
    assert wording.ratio_text(ratio) == text


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_shortest_decimal_is_the_value(dtype: str) -> None:
    rng = np.random.default_rng(5)
    bits = rng.integers(0, 1 << 15, 300).astype(np.uint16)
    if dtype == "float32":
        bits = rng.integers(0, 1 << 31, 300).astype(np.uint32)
    values = [v for v in decode(bits, dtype) if np.isfinite(v)]
    numbers = [float(wording.shortest(float(v), dtype)) for v in values]
    read = torch.tensor(numbers, dtype=getattr(torch, dtype))
    assert read.double().tolist() == values
    assert wording.shortest(float(FloatArray.of([0.1], dtype).values[0]), dtype) == "0.1"


# --- JUnit, GitHub, files


def test_junit_has_a_case_for_each_law_and_dtype() -> None:
    root = ET.fromstring(junit.text([samples.violated(), samples.undecided()]))
    suite, second = root.findall("testsuite")
    assert {k: suite.get(k) for k in ("name", "tests", "failures", "errors", "skipped")} == {
        "name": TARGET, "tests": "10", "failures": "5", "errors": "0", "skipped": "1",
    }  # fmt: skip
    cases = {case.get("name"): case for case in suite.findall("testcase")}
    failure = cases["LN203 dweight-accuracy [float16, cpu]"].find("failure")
    assert failure is not None
    assert failure.get("type") == "violated"
    assert failure.get("message") == (
        "dweight[2] is -1, the exact value is -1.25: 2 times the bound of 0.125. "
        f"(finding {samples.reduction_findings()[0].id})"
    )
    assert cases["LN203 dweight-accuracy [float16, cpu]"].get("classname") == "lnverify.gradients"
    warning = cases["LN104 rounding-points [float16, cpu]"]
    assert warning.find("failure") is None
    assert (warning.findtext("system-out") or "").startswith("warning: y[0, 1] is 1")
    skipped = cases["LN401 mean [float32, cpu]"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "returns no mean"
    assert second.get("errors") == "2"


def test_junit_with_strict_fails_on_a_warning_and_survives_control_characters() -> None:
    report = samples.violated()
    report.strict = True
    report.subject = "bell\x07.py:f"
    suite = ET.fromstring(junit.text([report])).find("testsuite")
    assert suite is not None
    assert suite.get("failures") == "6"
    assert suite.get("name") == "bell?.py:f"


def test_github_has_an_annotation_for_each_cause() -> None:
    report = samples.violated()
    report.subject = "./src/kernels.py:fwd"
    lines = github.workflow_commands(report)
    assert lines[1] == (
        "::error file=src/kernels.py,title=LN203%2C LN204 the sum over rows loses low bits"
        "::./src/kernels.py:fwd: dweight[2] is -1, the exact value is -1.25: 2 times the bound of 0.125."
    )
    assert [line.split(" ")[0] for line in lines] == ["::error", "::error", "::warning"]


def test_github_annotates_what_is_undecided_and_escapes_line_ends() -> None:
    assert github.workflow_commands(samples.undecided()) == [
        f"::warning title=lnverify%3A undecided::LN305 scale-invariance (bfloat16, float16): "
        f"3 informative examples of 10. Resolve: lnverify check {TARGET} "
        "--select LN305 --dtype bfloat16,float16 --profile ci"
    ]
    seen = samples.observation(samples.case(), "y", (0, 0), 1.0, 2.0)
    found = samples.finding("LN101", "forward-accuracy", seen, message="two\nlines, 100%")
    assert github.workflow_commands(samples.report(findings=[found])) == [
        f"::error title=LN101 forward accuracy::{TARGET}: two%0Alines, 100%25"
    ]


def test_github_summary_is_a_table_with_scripts() -> None:
    text = github.summary(samples.violated(), "3f9c1a")
    assert text.startswith(f"### lnverify: violated  {TARGET}: 2 causes (LN101, LN203, LN204)")
    assert "| error | LN203, LN204 | float32, float16 | dweight[2] is -1" in text
    assert text.count("```python\nimport torch\n") == 3


def test_a_file_is_written_aside_and_renamed(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text("old")
    path.chmod(0o640)
    json_file.write(path, json_file.text([samples.report()]))
    assert path.read_text().startswith('{\n "schema": "lnverify-report/1",\n')
    assert path.stat().st_mode & 0o777 == 0o640
    assert [p.name for p in tmp_path.iterdir()] == ["report.json"]


def test_several_reports_are_a_list() -> None:
    reports = json.loads(json_file.text([samples.report(), samples.violated()]))
    assert [report["verdict"] for report in reports] == ["holds", "violated"]


def test_the_block_shows_the_finding_whose_script_prints_its_number() -> None:
    seen = samples.observation(samples.case(), "y", (0, 1), 0.25, 1.0)
    row = Observation(**{**vars(seen), "index": (0,)})
    first = samples.finding("LN101", "a-sum", row, cause="one cause")
    second = samples.finding("LN102", "a-number", seen, cause="one cause", message="a number is off.")
    text = shown(samples.report(findings=[first, second]), source="r")
    assert "   LN101 a-sum, LN102 a-number; float32 on cpu\n   a number is off.\n" in text
    assert f"   lnverify replay r --finding {second.id}\n" in text


def test_a_label_is_for_the_case_that_its_recipe_makes() -> None:
    label = "N=3, rows=1, x normal, eps=1e-05, dy output"
    made = samples.case(label=label, recipe={"seed": 1}, layouts={"dy": "output", "x": "offset"}, threads=2)
    cut = samples.case(label=label, requires_grad=("x",), module_action="deepcopy")
    texts = [wording.case_text(samples.observation(case, "y", (0, 0), 1.0, 2.0)) for case in (made, cut)]
    assert texts == [
        "N=3, rows=1, x normal, eps=1e-05, dy output, x offset, 2 threads",
        "N=3, rows=1, eps=1e-05, requires_grad x, module deepcopy",
    ]


def test_parameters_of_another_dtype_are_named():
    made = samples.case(dtype="bfloat16", shape=(1, 3), bias=None)
    made = made.with_arrays(weight=FloatArray.of(np.ones(3), "float32"))
    text = wording.case_text(samples.observation(made, "y", (0, 0), 1.0, 2.0))
    assert "weight float32" in text
    assert "x bfloat16" not in text


def test_every_history_has_words_and_a_place_in_the_schema():
    schema = json.loads(Path(wording.__file__).parent.parent.joinpath("schemas", "report-1.json").read_text())
    known = schema["$defs"]["case"]["properties"]["history"]["enum"]
    assert {"", *wording.HISTORY} == set(HISTORIES) == set(known)
