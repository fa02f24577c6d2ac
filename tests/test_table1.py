"""The paper's Table 1: every cell is decided as the paper says, exactly, and a wrong normalizer is told apart."""

from __future__ import annotations

import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from lnverify.claims import table1
from lnverify.claims.table1 import CHANGES, INFORMATIVE, METHODS, PAPER, Cell
from lnverify.cli import main

ROOT = Path(__file__).parents[1]


told: list[tuple[int, int, str]] = []


@pytest.fixture(scope="module")
def cells() -> list[Cell]:
    return table1.table(lambda done, total, text: told.append((done, total, text)))


def test_progress_is_told_before_each_cell(cells: list[Cell]) -> None:
    assert told == [(k, 18, f"{cell.method}, {cell.change}") for k, cell in enumerate(cells)]


def test_the_search_writes_nothing_into_the_folder(tmp_path: Path) -> None:
    script = "from lnverify.claims.table1 import decide; assert not decide('weight norm', 'dataset rescaled').invariant"
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (run.returncode, run.stderr) == (0, "")
    assert list(tmp_path.iterdir()) == []


def test_all_18_cells_are_as_in_the_paper(cells: list[Cell]) -> None:
    found = {method: tuple(c.invariant for c in cells if c.method == method) for method in METHODS}
    assert found == PAPER
    assert len(cells) == 18
    assert all(cell.agrees for cell in cells)


def test_a_yes_has_seen_enough(cells: list[Cell]) -> None:
    assert min(c.looked for c in cells if c.invariant) >= INFORMATIVE


def test_a_no_has_a_counterexample_of_small_numbers(cells: list[Cell]) -> None:
    for cell in cells:
        if cell.invariant:
            continue
        assert cell.example is not None
        before = METHODS[cell.method](cell.example.weights, cell.example.cases)
        after = METHODS[cell.method](*CHANGES[cell.change](cell.example))
        assert before is not None
        assert after is not None
        assert before[cell.case][cell.unit] == cell.before != cell.after == after[cell.case][cell.unit]
        numbers = {v for rows in (cell.example.weights, cell.example.cases) for row in rows for v in row}
        assert numbers <= {0, 1}, f"{cell.method}, {cell.change}"


def test_the_page_is_what_is_generated(cells: list[Cell]) -> None:
    text = (ROOT / "docs/table1.md").read_text(encoding="utf-8")
    assert text == table1.page(cells), "run: lnverify table1 --page docs/table1.md"


def _rms(weights: Any, cases: Any) -> Any:
    """Layer norm without the mean."""
    rows = [(row, sum(v * v for v in row) / len(row)) for row in table1.summed(weights, cases)]
    return tuple(tuple(abs(v) * v / s for v in row) for row, s in rows) if all(s for _, s in rows) else None


def test_a_normalizer_without_the_mean_gets_another_row() -> None:
    for change in ("weight matrix re-centred", "single case rescaled"):
        cell = table1.decide("layer norm", change, _rms)
        assert cell.agrees is (change == "single case rescaled")


def test_too_few_settings_are_no_yes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not Cell("layer norm", "dataset rescaled", True, INFORMATIVE - 1).agrees
    cell = table1.decide("layer norm", "dataset rescaled", lambda weights, cases: None)
    assert (cell.invariant, cell.looked, cell.agrees) == (True, 0, False)


def test_smaller_settings_come_first() -> None:
    assert list(table1._of_size(1, 2)) == [(0, 1), (1, 0), (0, -1), (-1, 0)]
    assert len(list(table1._of_size(2, 2))) == 8
    assert table1.root(Fraction(-9, 4)) == "-1.5"


def test_the_command_shows_the_table_and_why(cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table1, "table", lambda progress: cells)
    result = CliRunner().invoke(main, ["table1"])
    assert result.exit_code == 0, result.output
    lines = result.stdout.splitlines()
    assert [line.split() for line in lines[2:5]] == [
        [*method.split(), *("yes" if said else "no" for said in row)] for method, row in PAPER.items()
    ]
    assert "layer norm, weight vector rescaled: no" in lines
    assert lines[-1] == "ok  all 18 cells are as in the paper's Table 1"


def test_a_cell_that_is_not_as_in_the_paper_fails(cells: list[Cell], monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Cell("layer norm", "weight vector rescaled", True, INFORMATIVE)
    others = [cell for cell in cells if (cell.method, cell.change) != (wrong.method, wrong.change)]
    monkeypatch.setattr(table1, "table", lambda progress: [*others, wrong])
    result = CliRunner().invoke(main, ["table1"])
    assert result.exit_code == 1
    assert result.stdout.splitlines()[-1] == "FAILED  not as in the paper: layer norm, weight vector rescaled"
    assert "disagrees in: layer norm, weight vector rescaled" in table1.page([*others, wrong])
