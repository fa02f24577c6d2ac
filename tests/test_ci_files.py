"""action.yml and docs/ci.md: they parse, their command lines are lnverify's, and their scripts end as they should."""

from __future__ import annotations

import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from lnverify.cli import main
from lnverify.errors import LnverifyError

yaml = pytest.importorskip("yaml", reason="the extra `test` has it")

ROOT = Path(__file__).parents[1]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
PAGE = (ROOT / "docs/ci.md").read_text(encoding="utf-8")
HISTORY_PAGE = (ROOT / "docs/history.md").read_text(encoding="utf-8")
STEPS = {step["name"]: step for step in ACTION["runs"]["steps"]}
# Variables of the scripts in both of their states; ${TARGET:+"$TARGET"} is what bash makes of it.
VARIABLES = {
    "FOLDER": "out", "TARGET": "./kernels.py:ln", "PROFILE": "ci", "DTYPES": "float32", "BASELINE": "b.json",
    "GITHUB_BASE_REF": "main", "GITHUB_SHA": "a" * 40, "CI_COMMIT_SHA": "b" * 40, "report": "report",
}  # fmt: skip


def blocks(page: str, *languages: str) -> list[str]:
    """The code blocks of a page in these languages."""
    return re.findall(rf"^```(?:{'|'.join(languages)})\n(.*?)^```", page, re.MULTILINE | re.DOTALL)


def scripts() -> Iterator[tuple[str, str]]:
    """Every script of the action and of the pages, with where it stands."""
    for name, step in STEPS.items():
        if "run" in step:
            yield f"action.yml: {name}", step["run"]
    for block in blocks(PAGE, "yaml"):
        for name, job in yaml.safe_load(block).items():
            if isinstance(job, dict):
                for key in ("script", "after_script"):
                    yield f"docs/ci.md: {name} {key}", "\n".join(job.get(key, ()))
    for page, text in (("docs/ci.md", PAGE), ("docs/history.md", HISTORY_PAGE)):
        for block in blocks(text, "sh"):
            yield page, block


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command line of lnverify, its variables filled in, without what the shell does around it."""
    for place, script in scripts():
        for line in script.replace("\\\n", " ").splitlines():
            text = line.strip().replace('"${chosen[@]}"', '"$TARGET"').removeprefix("git bisect run ")
            if not text.startswith("lnverify "):
                continue
            text = re.split(r" \|\| | > | >> ", text)[0]
            text = re.sub(r"\$(\w+)", lambda found: VARIABLES[found[1]], text)
            yield f"{place}: {line.strip()}", shlex.split(text, comments=True)[1:]


def parsed(words: list[str]) -> str:
    """'' where the parser takes the words, 'unknown NAME' where there is no such command, else what it says."""
    command: click.Command = main
    context = click.Context(main)
    while isinstance(command, click.Group):
        found = command.get_command(context, words[0])
        if found is None:
            return f"unknown {words[0]}"
        command, words = found, words[1:]
        context = click.Context(command, parent=context, info_name=command.name)
    try:
        command.make_context(str(command.name), list(words), parent=context.parent)
    except (click.ClickException, LnverifyError) as error:
        return str(getattr(error, "message", "") or error)
    return parsed(words) if command.name == "bisect" else ""


def test_the_parser_takes_every_command_line() -> None:
    said = {place: parsed(words) for place, words in commands()}
    names = {words[0] for _, words in commands()}
    assert {"check", "gate", "bench", "history", "bisect"} <= names
    # bench and gate are looked at from the day on which they are there.
    later = ("", "unknown bench", "unknown gate")
    assert {place: text for place, text in said.items() if text not in later} == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["history", "ad"], "unknown ad"),
        (["check", "--profle", "ci"], "No such option"),
        (["check", "--profile", "slow"], "'slow' is not one of"),
        (["history", "check", "--last", "none"], "'none' is not a valid integer"),
        (["bisect", "check", "--profle"], "No such option"),
        (["history", "html"], "Missing parameter: page"),
    ],
)
def test_a_wrong_command_line_is_found(words: list[str], said: str) -> None:
    assert said in parsed(words)


def test_the_scripts_are_scripts() -> None:
    for place, script in scripts():
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{place}: {done.stderr}"


def test_every_input_is_used_as_a_variable_and_described() -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    for name, facts in ACTION["inputs"].items():
        assert facts["description"]
        assert f"inputs.{name}" in text
        assert f"`{name}`" in PAGE
    for name, step in STEPS.items():
        assert "${{" not in step.get("run", ""), f"{name}: an expression in a script is read as code"
        assert "run" not in step or step["shell"] == "bash"
        used = set(re.findall(r"\$\{?([A-Z]+)\b", step.get("run", ""))) - {"GITHUB"}
        assert used <= {*step.get("env", {})}, f"{name}: a variable that nothing sets"


def test_what_a_maintainer_pastes_is_ten_lines_and_names_the_inputs() -> None:
    (workflow,) = (b for b in blocks(PAGE, "yaml") if "jobs:" in b)
    steps = workflow[workflow.index("lnverify:") :]
    assert len(steps.splitlines()) <= 10
    (used,) = (s for s in yaml.safe_load(workflow)["jobs"]["lnverify"]["steps"] if "lnverify@" in s.get("uses", ""))
    assert set(used["with"]) <= set(ACTION["inputs"])


@pytest.fixture
def run_step(tmp_path: Path) -> Any:
    """Run a step's script with a stand-in for lnverify, which notes its words and ends as it is told by its first."""

    def run(name: str, statuses: dict[str, int], **variables: str) -> tuple[int, list[list[str]], str, str]:
        stand_in = tmp_path / "bin" / "lnverify"
        stand_in.parent.mkdir(exist_ok=True)
        cases = "".join(f'  "{words}"*) exit {status} ;;\n' for words, status in statuses.items())
        log = tmp_path / "log"
        stand_in.write_text(
            f'#!/bin/bash\nprintf "%s\\x1f" "$@" >> "{log}"; echo >> "{log}"; echo "said: $1"\n'
            f'case "$*" in\n{cases}  *) exit 0 ;;\nesac\n'
        )
        stand_in.chmod(stand_in.stat().st_mode | stat.S_IXUSR)
        folder = tmp_path / "out put"
        folder.mkdir(exist_ok=True)
        summary = tmp_path / "summary"
        environment = {
            "PATH": f"{stand_in.parent}{os.pathsep}{os.environ['PATH']}", "FOLDER": str(folder), "TARGET": "",
            "PROFILE": "ci", "DTYPES": "", "BASELINE": "", "GITHUB_BASE_REF": "main", "GITHUB_SHA": "f" * 40,
            "GITHUB_STEP_SUMMARY": str(summary), **variables,
        }  # fmt: skip
        # As GitHub runs `shell: bash`.
        command = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", STEPS[name]["run"]]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        asked = [line.split("\x1f")[:-1] for line in log.read_text().splitlines()] if log.exists() else []
        return done.returncode, asked, done.stdout, summary.read_text() if summary.exists() else ""

    return run


def test_check_passes_its_status_on(run_step: Any, tmp_path: Path) -> None:
    target = "./my kernels.py:ln?eps=1e-6&dtypes=float32"
    status, (words,), _, _ = run_step("Check", {"check": 1}, TARGET=target, DTYPES="float32,bf16")
    assert status == 1
    assert words[:4] == ["check", target, "--dtype", "float32,bf16"]
    assert words[-1] == str(tmp_path / "out put" / "report.xml")
    assert parsed(words) == ""


def test_check_without_a_target_asks_the_project(run_step: Any) -> None:
    status, (words,), _, _ = run_step("Check", {})
    assert (status, words[:3]) == (0, ["check", "--profile", "ci"])


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 1), (2, 2), (3, 0)])
def test_a_gate_that_cannot_tell_is_a_warning(run_step: Any, given: int, expected: int) -> None:
    status, (words,), said, summary = run_step("Gate", {"gate": given}, TARGET="m:f")
    assert status == expected
    assert words[:4] == ["gate", "m:f", "--base-ref", "origin/main"]
    assert ("::warning" in said) == (given == 3)
    assert "said: gate" in summary


def test_a_gate_with_a_baseline_needs_no_base(run_step: Any) -> None:
    _, (words,), _, _ = run_step("Gate", {}, BASELINE="b.json")
    assert words[:3] == ["gate", "--baseline", "b.json"]


@pytest.mark.parametrize(("given", "expected"), [(0, 0), (1, 0), (2, 2), (3, 0)])
def test_a_change_in_the_history_is_a_warning(run_step: Any, tmp_path: Path, given: int, expected: int) -> None:
    (tmp_path / "out put").mkdir()
    (tmp_path / "out put" / "report.json").touch()
    status, asked, said, summary = run_step("Keep the history", {"history check": given, "bench": 3})
    assert status == expected
    # There is no bench.json where nothing could be timed, and then only the report is added.
    assert [words[:2] for words in asked] == [
        ["bench", "--json"], ["history", "add"], ["history", "html"], ["history", "check"]
    ]  # fmt: skip
    assert [parsed(words) for words in asked[1:]] == ["", "", ""]
    assert ("::warning" in said) == (given == 1)
    assert "said: history" in summary
