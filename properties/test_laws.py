"""Every law alone kills its mutant, and right code of two kinds passes the laws of every file in lnverify/laws/."""

from __future__ import annotations

from pathlib import Path

import pytest

from lnverify.law import load_laws
from lnverify.mutants import all_correct
from lnverify.mutants.kills import KILLS
from lnverify.runner import check
from lnverify.selftest import kills

RIGHT = (("two-pass-serial", "float32"), ("folded-fma", "bfloat16"))
LAWS = {i: law.check.__module__ for i, law in load_laws().items() if law.check.__module__.startswith("lnverify.laws.")}


def test_every_law_has_a_mutant() -> None:
    assert LAWS
    assert set(KILLS) == set(LAWS)


@pytest.mark.parametrize("law", LAWS)
def test_a_law_alone_kills_its_mutant(law: str) -> None:
    row = kills(law)
    if row[4].startswith("not run"):
        pytest.skip(row[4])
    assert row[3], row


@pytest.mark.parametrize("module", sorted(set(LAWS.values())), ids=lambda name: name.rpartition(".")[2])
@pytest.mark.parametrize(("name", "dtype"), RIGHT)
def test_right_code_passes(module: str, name: str, dtype: str) -> None:
    laws = [law for law, place in LAWS.items() if place == module]
    if not any(load_laws()[law].covers("layer_norm") for law in laws):
        pytest.skip("laws of other operations: properties/test_norms.py")
    entry = next(c for c in all_correct() if c.id == name)
    report = check(entry.subject(), dtypes=[dtype], profile="selftest", select=laws, max_examples=10)
    assert report.examples > 100
    assert [f"{f.law}: {f.message}" for f in report.findings if f.severity == "error"] == []


def test_a_wrong_backward_is_not_said_to_be_wrong_by_its_history() -> None:
    """torch 2.13 rounds mean and rstd to 16 bits for the backward: dx is wrong whatever happened before it."""
    laws = ["LN709", "LN710", "LN711", "LN712"]
    report = check("torch.nn.functional.layer_norm", dtypes=["float16"], select=laws, max_examples=1)
    assert {result.law for result in report.results if result.informative} == set(laws)
    assert [f"{f.law}: {f.message}" for f in report.findings] == []


COUNTED = """import torch


def layer_norm(x, eps=1e-5):
    n = torch.ones((), dtype=torch.get_default_dtype()) * x.shape[-1]
    centred = x - x.sum(-1, keepdim=True) / n
    return centred * torch.rsqrt((centred * centred).sum(-1, keepdim=True) / n + eps)
"""


def test_a_count_in_the_default_dtype_is_found(tmp_path: Path) -> None:
    """bfloat16 holds every whole number up to 256, so that cases of fewer elements say nothing."""
    file = tmp_path / "counted.py"
    file.write_text(COUNTED)
    report = check(f"{file}:layer_norm", dtypes=["float32"], select=["LN717"], max_examples=1)
    (found,) = report.findings
    assert (found.severity, found.cause) == ("warning", "less accurate with another default dtype")
    assert "N=771" in found.smallest.case["label"]
