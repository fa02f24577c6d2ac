"""`lnverify identify`: facts about implementations that are known."""

from __future__ import annotations

import numpy as np
import pytest
from click.testing import CliRunner

from lnverify.cli import main
from lnverify.identify import identify
from lnverify.mutants import all_correct, all_mutants
from lnverify.target import resolve

ENTRIES = {entry.id: entry for entry in [*all_mutants(), *all_correct()]}


def facts(subject, dtype="float32"):
    return {fact.name: fact.value for fact in identify(subject, dtype)}


def test_a_right_one_is_identified_too():
    found = facts(ENTRIES["two-pass-pairwise"].subject())
    assert found["formula"] == "mean and population variance (1/N), eps inside the root"
    assert found["statistics over"] == "all dimensions of normalized_shape"
    assert found["variance"] == "two passes, Welford or shifted"
    assert found["form"] == "deviations from the mean"
    assert found["backward"] == "the derivative of the forward"
    assert found["batch-invariant"] == found["deterministic"] == "yes: the same bits"
    assert found["eps"] == "about 0.01 beside the variance"


@pytest.mark.parametrize(
    ("id", "name", "value"),
    [
        ("folded", "form", "a scale and a shift for each row (x*scale + shift)"),
        ("unbiased", "formula", "the variance is divided by N - 1"),
        ("eps-outside-root", "formula", "eps is added outside the square root"),
        ("one-pass-serial", "variance", "one pass, E[x^2] - E[x]^2"),
        ("axes-last-only", "statistics over", "the last dimension alone"),
        ("weight-outside-sums", "backward", "weight is applied outside the means of the backward"),
        ("eps-tenfold", "eps", "about 0.1 beside the variance"),
    ],
)
def test_what_is_unusual_is_said(id, name, value):
    assert facts(ENTRIES[id].subject())[name] == value


def test_rounding_points_and_batch_dependence_show():
    assert facts(ENTRIES["op-by-op"].subject(), "bfloat16")["rounding"] == (
        "xhat or weight*xhat rounded to 16 bits on the way"
    )

    def depends(x, eps=1e-5):
        d = x - x.mean(-1, keepdims=True)
        y = d / np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(eps))
        return y * x.dtype.type(1 + 2.0**-23) if x.shape[0] > 1 else y

    assert facts(resolve(depends))["batch-invariant"] == "no: other bits"


def test_the_command_prints_a_table_and_one_sentence_of_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text("def ln(x, eps=1e-5):\n    raise ValueError('no')\n")
    result = CliRunner().invoke(main, ["identify", "./k.py:ln?dtypes=float32", "--no-isolate"])
    assert result.exit_code == 0
    assert "nothing to see: float32 on cpu is refused: ValueError: no" in result.stdout
    wrong = CliRunner().invoke(main, ["identify", "./k.py:ln?dtypes=float32", "--dtype", "bf16", "--no-isolate"])
    assert wrong.exit_code == 2
    assert wrong.stderr == (
        "lnverify: ./k.py:ln?dtypes=float32 declares float32, not bfloat16: choose another --dtype.\n"
    )
