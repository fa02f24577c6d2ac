"""The ledger: every claim's evidence agrees with its verdict, and would not if the formula were another one."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path
from typing import Any

import flint
import pytest
from click.testing import CliRunner, Result

from lnverify.claims.balls import ball, balls, drawn, middle, precision
from lnverify.claims.ledger import TOPICS, VERDICTS, Claim, load_claims
from lnverify.claims.page import page
from lnverify.claims.reading import at_most, differ, equal, exactly, order
from lnverify.cli import main
from lnverify.law import load_laws
from tests.claim_mutants import WRONG

ROOT = Path(__file__).parents[1]
CLAIMS = load_claims()
RUNNING = [entry for entry in CLAIMS.values() if entry.check]


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.mark.parametrize("entry", RUNNING, ids=lambda entry: entry.id)
def test_evidence_agrees_with_the_verdict(entry: Claim) -> None:
    readings = entry.readings()
    assert readings, "the evidence yields nothing"
    assert [r for r in readings if not r.holds] == []


@pytest.mark.parametrize("entry", RUNNING, ids=lambda entry: entry.id)
def test_evidence_fails_on_a_wrong_formula(entry: Claim) -> None:
    assert entry.id in WRONG, f"add a wrong formula for {entry.id} to tests/claim_mutants.py"
    assert entry.check is not None
    with precision():
        assert not all(r.holds for r in entry.check(**WRONG[entry.id]))


def test_every_wrong_formula_belongs_to_a_claim() -> None:
    assert sorted(set(WRONG) - {entry.id for entry in RUNNING}) == []


def test_every_claim_has_evidence_or_says_why_not() -> None:
    bare = [e.id for e in CLAIMS.values() if bool(e.check) == bool(e.without)]
    assert bare == []
    assert {e.verdict for e in CLAIMS.values()} <= set(VERDICTS)
    assert list(dict.fromkeys(e.topic for e in CLAIMS.values())) == list(TOPICS)


def test_every_claim_that_is_not_plainly_true_says_why() -> None:
    assert [e.id for e in CLAIMS.values() if e.verdict != "true" and not e.reason] == []


def test_the_laws_that_are_named_exist() -> None:
    assert {law for e in CLAIMS.values() for law in e.laws} - set(load_laws()) == set()


def test_a_false_claim_is_refuted_by_something_that_differs() -> None:
    for entry in RUNNING:
        if entry.verdict == "false":
            assert "counterexample" in {r.kind for r in entry.readings()}, entry.id


def test_the_page_is_what_is_generated() -> None:
    text = (ROOT / "docs/claims.md").read_text(encoding="utf-8")
    assert text == page(list(CLAIMS.values())), "run: lnverify claims --page docs/claims.md"


# --- what decides


def test_equal_is_certain_and_sharp() -> None:
    with precision():
        third = balls(1) / 3
        assert equal("", third * 3, 1).holds
        assert not equal("", third, balls(1) / 3 + balls(2) ** -60).holds
        wide = equal("", balls(1) / 0, 1)
        assert (wide.holds, wide.got) == (False, "off by inf")
    with precision(20):  # encloses 0, and much else
        assert not equal("", balls(1) / 3 * 3, 1).holds


def test_differ_wants_a_certain_difference() -> None:
    with precision(20):
        assert not differ("", balls(1) / 3 * 3, 1).holds
        seen = differ("", [1, 2], [1, 5])
    assert (seen.holds, seen.got, seen.due) == (True, "off by 3 at [1]", "a difference")


def test_at_most_shows_the_entry_closest_to_its_bound() -> None:
    with precision():
        assert at_most("", [1, 2], [5, 3]).got == "2"
        assert not at_most("", [1, 4], 3).holds
        assert not at_most("", balls(1) / 3 * 3, 1).holds, "undecided is not decided"


def test_order_tells_neighbours_apart() -> None:
    with precision():
        assert order("", 3, 8, 1).holds
        assert not order("", 2, 8, 1).holds
        assert not order("", 3, 8, 0).holds
    assert not exactly("", 1, 2).holds


# --- the command


def test_claims_lists_each_claim_and_ends_with_a_count() -> None:
    result = lnverify("claims")
    assert result.exit_code == 0, result.output
    first = [line.split()[0] for line in result.stdout.splitlines() if line.startswith("  ") and line[2] != " "]
    assert first == list(CLAIMS)
    assert result.stdout.splitlines()[-1].startswith(f"ok  {len(CLAIMS)} claims (")


def test_one_claim_is_shown_in_full() -> None:
    result = lnverify("claims", "b20")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("B20  false  the French note, Key idea 2\n")
    assert "counterexample: LN(0, 2, 1) and LN(0, 1, 1)" in result.stdout
    assert "lnverify check --select LN307" in result.stdout


def test_the_beginning_of_ids_selects_several() -> None:
    assert lnverify("claims", "X0").stdout.count("How it is decided") == sum(i.startswith("X0") for i in CLAIMS)


@pytest.mark.parametrize("word", ["nonsense", "B999", ""])
def test_an_unknown_claim_is_one_sentence(word: str) -> None:
    result = lnverify("claims", word)
    assert result.exit_code == 2
    assert result.stderr.startswith(f"lnverify: there is no claim {word!r}: `lnverify claims` lists the ids, A")
    assert result.stderr.count("\n") == 1


def test_evidence_that_disagrees_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(self: Claim) -> Any:
        return [exactly("two and two", 4, 5)]

    monkeypatch.setattr(Claim, "readings", wrong)
    result = lnverify("claims", "B20")
    assert result.exit_code == 1
    assert "DISAGREES  exact: two and two" in result.stdout
    assert result.stdout.splitlines()[-1] == "FAILED  the evidence of B20 disagrees with its verdict"


def test_the_page_is_written_for_all_claims_or_none(tmp_path: Path) -> None:
    assert lnverify("claims", "--page", str(tmp_path / "claims.md")).exit_code == 0
    assert (tmp_path / "claims.md").read_text(encoding="utf-8") == page(list(CLAIMS.values()))
    assert "leave the ids out" in lnverify("claims", "B20", "--page", str(tmp_path / "x.md")).stderr
    assert "No such file" in lnverify("claims", "--page", str(tmp_path / "no" / "x.md")).stderr


# --- the numbers


def test_balls_enclose_and_put_the_precision_back() -> None:
    def divides() -> None:
        with precision(100):
            assert flint.ctx.prec == 100
            assert (ball(Fraction(1, 3)) * 3).contains(1)
            assert ball(0.5).is_exact()
            raise ZeroDivisionError

    before = flint.ctx.prec
    with pytest.raises(ZeroDivisionError):
        divides()
    assert flint.ctx.prec == before


def test_drawn_numbers_are_the_same_everywhere() -> None:
    assert [middle(v) for v in drawn(1, 8)] == [-7, 2, -2, 9, 2, 5, 5, 9]
