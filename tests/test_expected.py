"""lnverify.toml: what a project wants checked, and the findings that it knows."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from lnverify import config
from lnverify.cli import main
from lnverify.config import Expected
from lnverify.errors import UsageError

WRONG = """
import numpy as np

def ln(x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    y = d / np.sqrt((d * d).mean(-1, keepdims=True) + {eps})
    y = y if weight is None else y * weight
    return y if bias is None else y + bias
"""
SELECTED = ("--no-isolate", "-q", "--max-examples", "3")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a layer norm that fixes eps, which has one cause."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("LNVERIFY_CACHE", str(tmp_path / "cache"))
    (tmp_path / "kernels.py").write_text(WRONG.format(eps="10 * eps"))
    return tmp_path


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


def test_known_errors_are_written_and_do_not_fail_the_next_run(project: Path) -> None:
    first = lnverify("check", "./kernels.py:ln?dtypes=float32", "--write-expected", *SELECTED)
    assert first.exit_code == 1
    assert "written: lnverify.toml; say why in each." in first.stdout
    loaded = config.load(project)
    assert loaded.targets == ("./kernels.py:ln?dtypes=float32",)
    assert {e.law for e in loaded.expected} >= {"LN101", "LN105"}
    assert all(e.case is not None and e.reason for e in loaded.expected)

    again = lnverify("check", *SELECTED)
    assert again.exit_code == 0, again.output
    assert f"{len(loaded.expected)} expected" in again.stdout

    (project / "kernels.py").write_text(WRONG.format(eps="eps"))
    mended = lnverify("check", *SELECTED[:1], *SELECTED[2:])
    assert mended.exit_code == 1
    shown = " ".join(mended.stdout.split())  # however wide the terminal
    assert shown.count("no longer occurs on its stored case: take it out.") == len(loaded.expected)
    assert "stale" in mended.stdout.splitlines()[-1]
    # A run that leaves laws or dtypes out cannot know what is stale.
    assert lnverify("check", "--select", "LN1", *SELECTED).exit_code == 0

    refused = lnverify("check", "--write-expected", *SELECTED)
    assert (refused.exit_code, refused.stderr) == (
        2, "lnverify: lnverify.toml is there already: edit it, or move it away before --write-expected.\n"
    )  # fmt: skip


def test_an_entry_without_a_case_is_stale_where_nothing_matches(project: Path) -> None:
    (project / "lnverify.toml").write_text(
        'target = "./kernels.py:ln"\ndtypes = ["fp32"]\n[[expected]]\nlaw = "LN1"\nreason = "known"\n'
        'link = "https://example.org/1"\n[[expected]]\nlaw = "LN604"\nreason = "old"\n'
    )
    result = lnverify("check", "--no-isolate", "--max-examples", "3")
    assert result.exit_code == 1
    shown = " ".join(result.stdout.split())  # however wide the terminal
    assert "expected LN101 forward-accuracy, float32: known (https://example.org/1)" in shown
    assert "stale LN604 (old) matched no finding: take it out." in shown


def test_an_entry_of_one_target_says_nothing_of_another(project: Path) -> None:
    (project / "right.py").write_text(WRONG.format(eps="eps"))
    head = 'target = ["./kernels.py:ln", "./right.py:ln"]\ndtypes = ["fp32"]\n[[expected]]\nreason = "r"\n'
    (project / "lnverify.toml").write_text(head + 'law = "LN"\ntarget = "./kernels.py:ln"\n')
    assert lnverify("check", *SELECTED).exit_code == 0
    (project / "lnverify.toml").write_text(head + 'law = "LN101"\ntarget = "./right.py:ln"\n')
    result = lnverify("check", *SELECTED)
    assert result.exit_code == 1
    assert "stale" in result.stdout.splitlines()[-1]
    assert "violated" in result.stdout.splitlines()[0]
    (project / "lnverify.toml").unlink()
    both = lnverify("check", "./kernels.py:ln", "./right.py:ln", "--write-expected", *SELECTED)
    assert (both.exit_code, both.stderr) == (
        2, "lnverify: --write-expected writes the errors of one target, not of 2: name one.\n"
    )  # fmt: skip


def test_the_table_of_pyproject_is_read_too(project: Path) -> None:
    (project / "pyproject.toml").write_text(
        '[tool.lnverify]\ntarget = ["a:b", "c:d"]\nprofile = "ci"\n'
        '[[tool.lnverify.expected]]\nlaw = "ln203"\ntarget = "c:d"\ndtype = "bf16"\nreason = "sums"\n'
    )
    loaded = config.load(project)
    assert (loaded.targets, loaded.profile) == (("a:b", "c:d"), "ci")
    assert loaded.expected == (Expected("LN203", "sums", "bfloat16", target="c:d"),)
    assert loaded.expected[0].text == "LN203 bfloat16 (sums)"
    (project / "lnverify.toml").write_text('target = "own"\n')
    assert config.load(project).targets == ("own",)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("target = ", "'lnverify.toml' is not TOML: "),
        ("targets = 1", "'lnverify.toml' has the unknown key 'targets': choose from target, operation, dtypes, "),
        ('dtypes = ["fp8"]', "fp8"),
        ('profile = "slow"', "unknown profile 'slow': choose from quick, ci, deep."),
        ("target = 5", "'lnverify.toml': target is 5: write a text, or a list of texts."),
        ("dtypes = [16]", "'lnverify.toml': dtypes is [16]: write a text, or a list of texts."),
        ("expected = 3", "expected is no list of tables: write [[expected]] above each."),
        ('[[expected]]\nlaw = "LN1"', "an [[expected]] entry has no reason: every one says which law, and why."),
        ('[[expected]]\nlaw = "LN1"\nreason = "r"\ncase = "no.json"', "there is no case 'no.json': leave the key out"),
        (
            'target = ["a:b", "c:d"]\n[[expected]]\nlaw = "LN1"\nreason = "r"',
            "the [[expected]] entry for LN1 has the target '': write one of 'a:b', 'c:d'.",
        ),
        (
            'target = "a:b"\n[[expected]]\nlaw = "LN1"\nreason = "r"\ntarget = "c:d"',
            "the [[expected]] entry for LN1 has the target 'c:d': write one of 'a:b'.",
        ),
        ('[[expected]]\nlow = "LN1"', "an [[expected]] entry of 'lnverify.toml' has the unknown key 'low'"),
    ],
)
def test_a_wrong_file_is_one_sentence(project: Path, text: str, sentence: str) -> None:
    (project / "lnverify.toml").write_text(text)
    with pytest.raises(UsageError) as caught:
        config.load(project)
    assert sentence in str(caught.value)
    result = lnverify("check")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


def test_an_entry_for_a_law_that_is_none_is_a_wrong_file(project: Path) -> None:
    (project / "lnverify.toml").write_text('target = "./kernels.py:ln"\n[[expected]]\nlaw = "LN999"\nreason = "r"\n')
    refused = lnverify("check", *SELECTED)
    assert refused.exit_code == 2
    assert refused.stderr.startswith("lnverify: an [[expected]] entry of 'lnverify.toml': no law matches 'LN999'")
