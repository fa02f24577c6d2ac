"""`lnverify claims --empirical`: what it prints and writes, what it says is missing, and the page that is committed."""

from __future__ import annotations

import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from lnverify.claims import empirical_page
from lnverify.claims.empirical import experiments, wording
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact, ratios
from lnverify.claims.empirical.experiments import EXPERIMENTS, Experiment
from lnverify.claims.ledger import load_claims
from lnverify.cli import main

DOCS = Path(__file__).parents[1] / "docs"
CLAIMS = load_claims()
SHOWED = Effect(("A80",), "steps", "ratio", 1, exact([2, 3, 4, 5, 6, 7]), "without 40, with 10")
NOT = Effect(("A80",), "points", "difference", 1, exact([-1, 1, 2, 3, 4, 5]))
OTHER = Effect(("A80",), "losses", "ratio", 1, exact([0.5] * 6))
NEVER = Effect(("A80",), "budget", "ratio", 1, ratios([float("inf")] * 6, [5000] * 6, 10000))
PANEL = Panel(
    "a", "x", "y", (curve("b", [1, 2, 4], [[1, 2], [2, 3], [4, 5]]), curve("c", [1, 2, 4], [[2, 2]] * 3)), "xy"
)
OUTCOME = Outcome("Two arms.", 6, (SHOWED, NOT, OTHER, NEVER), (PANEL, PANEL, PANEL, PANEL), 12.3)
ONE_PANEL = replace(OUTCOME, panels=(PANEL,))


def lnverify(*words: str) -> Result:
    return CliRunner().invoke(main, list(words))


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """No experiment runs: each returns ONE_PANEL, after it told of its arms."""

    def run(self: Experiment, tell: Any) -> Outcome:
        for arm in range(self.arms):
            tell(f"arm {arm}")
        return ONE_PANEL

    monkeypatch.setattr(Experiment, "run", run)
    monkeypatch.setattr(experiments, "check_installed", lambda packages: None)


# --- the ledger and the experiments


def test_every_empirical_claim_has_an_experiment() -> None:
    about = {claim for entry in EXPERIMENTS for claim in entry.claims}
    assert {i for i, entry in CLAIMS.items() if entry.verdict == "empirical"} <= about <= set(CLAIMS)


def test_figures_of_the_note_are_no_expectation() -> None:
    figures = [entry for entry in CLAIMS.values() if entry.topic == "figures"]
    assert len(figures) >= 8
    assert [entry.id for entry in figures if entry.check is not None] == []
    assert {claim for entry in EXPERIMENTS for claim in entry.claims} & {entry.id for entry in figures} == set()


def test_a_claim_says_how_to_measure_it() -> None:
    result = lnverify("claims", "B47")
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert "    measured    Gradients through the blocks of a Transformer" in lines
    assert "            lnverify claims --empirical depth" in lines
    assert "--empirical" not in lnverify("claims", "A01").stdout


# --- the command


@pytest.mark.usefixtures("at_once")
def test_the_command_shows_effects_and_counts_them() -> None:
    result = lnverify("claims", "--empirical", "cost", "B47")
    assert result.exit_code == 0, result.output
    lines = [line.rstrip() for line in result.stdout.splitlines()]
    assert lines[:9] == [
        "depth  Gradients through the blocks of a Transformer; about B47; 12 s",
        "    Two arms.",
        "    showed  steps",
        "          4.5, interval 2 to 7; without 40, with 10",
        "    did not show  points",
        "          2.5, interval -1 to 5",
        "    the opposite showed  losses",
        "          0.5, interval 0.5 to 0.5",
        "    showed  budget",
    ]
    assert lines[9].strip() == "at least 2, interval 2 to ∞"
    assert lines[-1] == "measured  8 effects: 4 showed, 2 did not show, 2 the opposite showed"


@pytest.mark.usefixtures("at_once")
def test_it_writes_a_page_with_its_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("matplotlib")
    some = EXPERIMENTS[-2:]
    monkeypatch.setattr(experiments, "EXPERIMENTS", some)
    for _ in range(2):  # the second time over the first
        result = lnverify("claims", "--empirical", "--page", str(tmp_path / "empirical.md"))
        assert result.exit_code == 0, result.output
    names = sorted(f"figures/{entry.name}.svg" for entry in some)
    assert sorted(str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*") if p.is_file()) == ["empirical.md", *names]
    assert (tmp_path / "empirical.md").read_text(encoding="utf-8") == empirical_page.page(
        [(entry, ONE_PANEL) for entry in some]
    )


@pytest.mark.parametrize("package", ["torch", "sklearn", "matplotlib"])
def test_a_package_that_is_missing_is_one_sentence(
    package: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("sklearn", "matplotlib"):
        monkeypatch.setitem(sys.modules, name, sys)
    monkeypatch.setitem(sys.modules, package, None)  # type: ignore[arg-type]
    result = lnverify("claims", "--empirical", "--page", str(tmp_path / "empirical.md"))
    name = {"sklearn": "scikit-learn"}.get(package, package)
    assert result.exit_code == 2
    assert result.stderr == (f"lnverify: --empirical needs {name}, which cannot be imported: pip install {name}.\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("at_once")
def test_what_cannot_be_asked_for_is_one_sentence(tmp_path: Path) -> None:
    result = lnverify("claims", "--empirical", "A01")
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)
    assert "there is no experiment 'A01'" in result.stderr
    result = lnverify("claims", "--empirical", "cost", "--page", str(tmp_path / "x.md"))
    assert "--page writes every experiment: leave the names out." in result.stderr
    (tmp_path / "figures").write_text("no folder", encoding="utf-8")
    result = lnverify("claims", "--empirical", "--page", str(tmp_path / "x.md"))
    assert (result.exit_code, result.stderr.count("\n")) == (2, 1)


# --- page and figures


def test_the_page_says_what_showed_and_what_did_not() -> None:
    (entry,) = (entry for entry in EXPERIMENTS if entry.name == "maps")
    text = empirical_page.page([(entry, OUTCOME)])
    assert (
        "| [maps](#maps) | [A60](claims.md#a60-empirical) | 2 showed, 1 did not show, 1 the opposite showed |" in text
    )
    assert "It holds the true median with a probability of 96.9% at least, with 6 seeds, for" in text
    assert "| steps | 4.5 | 2 to 7 | above 1 | showed | without 40, with 10 |" in text
    assert "| points | 2.5 | -1 to 5 | above 0 | **did not show** |  |" in text
    assert "- Showed at this scale, 2 of 4: steps; budget.\n- Did not show, 1 of 4: points." in text
    assert "- The opposite showed, 1 of 4: losses." in text


def test_numbers_are_read_at_a_glance() -> None:
    assert [wording.number(v) for v in (0.001234, 12.34, 1234.5, 1e6, float("-inf"))] == [
        "0.00123", "12.3", "1234", "1e+06", "-∞",
    ]  # fmt: skip
    inf = float("inf")
    words = {(0.0, inf): "unknown", (0.0, 0.5): "at most 0.5", (2.0, inf): "at least 2", (1.0, 3.0): "1 to 3"}
    assert {pair: wording.middle(Effect((), "", "ratio", 1, (pair,))) for pair in words} == words


def test_a_figure_is_the_same_twice_and_has_no_date() -> None:
    pytest.importorskip("matplotlib")
    from lnverify.claims.empirical.figure import svg

    first = svg("a", OUTCOME)
    assert first == svg("a", OUTCOME)
    assert first.startswith("<?xml")
    assert "<dc:date>" not in first
    assert first.count(">b</text>") == len(OUTCOME.panels)


def test_the_committed_page_has_every_experiment_and_its_figure() -> None:
    text = (DOCS / "empirical.md").read_text(encoding="utf-8")
    assert re.findall(r"^## (.*)$", text, re.MULTILINE) == [entry.name for entry in EXPERIMENTS]
    figures = re.findall(r"\]\((figures/.*\.svg)\)", text)
    assert figures == [f"figures/{entry.name}.svg" for entry in EXPERIMENTS]
    for name in figures:
        drawn = (DOCS / name).read_text(encoding="utf-8")
        assert "<dc:date>" not in drawn
        assert len(drawn) < 250_000
    assert {path.name for path in (DOCS / "figures").iterdir()} == {f"{entry.name}.svg" for entry in EXPERIMENTS}
    for claim in re.findall(r"claims\.md#([\w-]+)", text):
        assert claim in {f"{e.id.lower()}-{e.verdict.replace(' ', '-')}" for e in CLAIMS.values()}
