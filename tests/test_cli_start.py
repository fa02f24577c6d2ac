"""The command line without a run: selftest, version, help, and what is imported for them."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lnverify.cli import main

HEAVY = ("torch", "jax", "sympy", "hypothesis", "rich", "flint")


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def selftest_of(monkeypatch: pytest.MonkeyPatch, ok: bool) -> Result:
    rows = [
        ("one-pass variance", "mutant", ("LN101", "LN301"), True, ""),
        ("eps outside the root", "mutant", () if not ok else ("LN101",), ok, "eps=1e-5"),
        ("two-pass in float64", "correct", (), True, ""),
    ]
    outcome = SimpleNamespace(rows=rows, left_out=["the GPU mutants: no GPU is here."], ok=ok)

    def selftest(progress: Any, only: str, tell: Any, full: bool, jobs: int) -> Any:
        for row in rows:
            tell(row)
        return outcome

    module = SimpleNamespace(selftest=selftest)
    monkeypatch.setitem(sys.modules, "lnverify.selftest", module)  # type: ignore[arg-type]
    return lnverify("selftest")


def test_selftest_shows_what_kills_each_mutant(monkeypatch: pytest.MonkeyPatch) -> None:
    result = selftest_of(monkeypatch, ok=True)
    assert result.exit_code == 0
    assert [line.rstrip() for line in result.stdout.splitlines()] == [
        f"{'one-pass variance':<36}{'caught':<9}LN101 LN301",
        f"{'eps outside the root':<36}{'caught':<9}LN101  (eps=1e-5)",
        f"{'two-pass in float64':<36}holds",
        "left out: the GPU mutants: no GPU is here.",
        "ok  2 of 2 wrong implementations caught, 1 of 1 correct ones left in peace",
    ]


def test_selftest_fails_on_a_miss(monkeypatch: pytest.MonkeyPatch) -> None:
    result = selftest_of(monkeypatch, ok=False)
    assert result.exit_code == 1
    assert f"{'eps outside the root':<36}MISSED " in result.stdout
    assert result.stdout.splitlines()[-1].startswith("FAILED  1 of 2 wrong implementations caught")


def test_version_and_help() -> None:
    assert lnverify("--version").stdout.startswith("lnverify ")
    for words in ((), ("--help",), ("-h",)):
        result = lnverify(*words)
        assert result.exit_code == 0
        positions = [result.stdout.index(f"\n  {name} ") for name in ("check", "laws", "explain", "replay", "selftest")]
        assert positions == sorted(positions)


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["check", "--help"],
        ["laws"],
        ["explain", "LN101"],
        ["history", "check", "--help"],
        ["bisect", "--help"],
    ],
)
def test_what_only_prints_imports_no_framework(words: list[str]) -> None:
    code = (
        "import sys\nfrom lnverify.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        f"sys.exit(' '.join(m for m in {HEAVY!r} if m in sys.modules) or None)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 200


def test_help_keeps_its_examples_in_lines() -> None:
    assert "\n  lnverify check ./kernels.py:forward      a function in a file\n" in lnverify("--help").stdout
    text = lnverify("check", "--help").stdout
    assert "\n    ./kernels.py:fwd?backward=bwd   functions in a file\n" in text
