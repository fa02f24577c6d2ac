"""The proofs that the ledger of claims names exist in reference/, hold, and would not for another right side."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from lnverify.claims.ledger import PROVE, load_claims

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def reference():
    """The module of reference/, which is a folder of scripts and no package."""
    sys.path.insert(0, str(ROOT / "reference"))
    try:
        yield importlib.import_module("prove_claims")
    finally:
        sys.path.remove(str(ROOT / "reference"))


def test_every_proof_that_a_claim_names_is_proved(reference, capsys):
    named = sorted({name for entry in load_claims().values() for name in entry.proofs})
    assert len(named) > 10
    assert reference.main(named) == 0
    assert capsys.readouterr().out.count("proved  ") == len(named)


def test_a_proof_that_nobody_has_is_refused(reference, capsys):
    assert reference.main(["nonsense"]) == 2
    assert "there is no proof 'nonsense'" in capsys.readouterr().err


def test_the_command_that_is_shown_exists():
    assert PROVE == "python reference/prove_claims.py"
    assert (ROOT / PROVE.split()[1]).is_file()


def test_another_right_side_is_not_proved(reference):
    own = [*reference.moments(), *reference.invariances(), reference.batch_norm(), *reference.gradients()]
    for proof in own:
        others = [proof.right * 2, -proof.right] if proof.right != 0 else [reference.var]
        for other in others:
            assert not replace(proof, right=other).proved(), proof.name


def test_an_unproved_claim_fails_the_command(reference, monkeypatch, capsys):
    wrong = replace(reference.moments()[0], right=reference.var)
    monkeypatch.setattr(reference, "proofs", lambda: [wrong])
    assert reference.main([]) == 1
    assert capsys.readouterr().out.startswith("NOT PROVED  mean-zero")
