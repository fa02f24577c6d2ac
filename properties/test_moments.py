"""LN4xx: every law of lnverify/laws/moments.py kills its mutant, and right code of two kinds passes it."""

from __future__ import annotations

import pytest

from lnverify.mutants.kills import KILLS
from lnverify.selftest import kills
from properties.families import RIGHT, errors_of_right_code, laws_of

LAWS = laws_of("moments")


def test_every_law_has_a_mutant() -> None:
    assert LAWS
    assert [law for law in LAWS if law not in KILLS] == []


@pytest.mark.parametrize("law", LAWS)
def test_a_law_alone_kills_its_mutant(law: str) -> None:
    row = kills(law)
    assert row[3], row


@pytest.mark.parametrize(("name", "dtype"), RIGHT)
def test_right_code_passes(name: str, dtype: str) -> None:
    assert errors_of_right_code(name, LAWS, dtype) == []
