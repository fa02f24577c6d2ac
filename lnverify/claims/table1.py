"""The paper's Table 1, decided: which of three normalizers sees which of six changes of weights and cases.

Everything is exact. A normalised number is the quotient of a rational and of the root of one, so that its square with
its sign is rational, and two outputs are equal if and only if these are. A cell says 'no' by a counterexample: one is
found by Hypothesis, and shrunk by looking through all smaller ones. It says 'yes' if the outputs were equal, a bound of
0, in all settings that Hypothesis drew; a proof for every size stands beside it. Factors are positive, eps is 0, as in
the paper. Two numbers standardised are 1 and -1, whatever they were: at least three are taken.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

INPUTS = 2
LARGEST = 4  # units, and cases
FEWEST = {"batch norm": (1, 3), "weight norm": (1, 1), "layer norm": (3, 1)}  # units and cases
EXAMPLES = 120
INFORMATIVE = 90
MOST = 5  # sum of absolute values up to which every setting is looked through
Rows = tuple[tuple[Fraction, ...], ...]


@dataclass(frozen=True)
class Setting:
    """Weights (units, inputs), cases (cases, inputs), and what a change uses: a factor > 0 and a vector."""

    weights: Rows
    cases: Rows
    factor: Fraction
    shift: tuple[Fraction, ...]


def summed(weights: Rows, cases: Rows) -> Rows:
    """w_i'x_n, shape (cases, units)."""
    return tuple(tuple(sum((w * x for w, x in zip(u, c, strict=True)), Fraction()) for u in weights) for c in cases)


def _signed(value: Fraction, square: Fraction) -> Fraction:
    """The signed square of value/sqrt(square)."""
    return abs(value) * value / square


def _standardised(row: tuple[Fraction, ...]) -> tuple[Fraction, ...] | None:
    """Signed squares of a standardised row; None for a constant one."""
    mean = sum(row, Fraction()) / len(row)
    variance = sum(((v - mean) ** 2 for v in row), Fraction()) / len(row)
    return tuple(_signed(v - mean, variance) for v in row) if variance else None


def layer_norm(weights: Rows, cases: Rows) -> Rows | None:
    """Each case over the units."""
    rows = [_standardised(row) for row in summed(weights, cases)]
    return None if None in rows else tuple(row for row in rows if row is not None)


def batch_norm(weights: Rows, cases: Rows) -> Rows | None:
    """Each unit over the cases."""
    columns = [_standardised(column) for column in zip(*summed(weights, cases), strict=True)]
    return None if None in columns else tuple(zip(*(c for c in columns if c is not None), strict=True))


def weight_norm(weights: Rows, cases: Rows) -> Rows | None:
    """w_i'x/|w_i|."""
    lengths = [sum((w * w for w in unit), Fraction()) for unit in weights]
    if not all(lengths):
        return None
    return tuple(tuple(_signed(a, s) for a, s in zip(row, lengths, strict=True)) for row in summed(weights, cases))


def _times(rows: Rows, factor: Fraction) -> Rows:
    return tuple(tuple(factor * v for v in row) for row in rows)


def _plus(rows: Rows, shift: tuple[Fraction, ...]) -> Rows:
    return tuple(tuple(v + s for v, s in zip(row, shift, strict=True)) for row in rows)


Method = Callable[[Rows, Rows], Rows | None]
METHODS: dict[str, Method] = {"batch norm": batch_norm, "weight norm": weight_norm, "layer norm": layer_norm}
CHANGES: dict[str, Callable[[Setting], tuple[Rows, Rows]]] = {
    "weight matrix rescaled": lambda s: (_times(s.weights, s.factor), s.cases),
    "weight matrix re-centred": lambda s: (_plus(s.weights, s.shift), s.cases),
    "weight vector rescaled": lambda s: (_times(s.weights[:1], s.factor) + s.weights[1:], s.cases),
    "dataset rescaled": lambda s: (s.weights, _times(s.cases, s.factor)),
    "dataset re-centred": lambda s: (s.weights, _plus(s.cases, s.shift)),
    "single case rescaled": lambda s: (s.weights, _times(s.cases[:1], s.factor) + s.cases[1:]),
}
SHIFTS = {name for name in CHANGES if "re-centred" in name}
PAPER = {
    "batch norm": (True, False, True, True, True, False),
    "weight norm": (True, False, True, False, False, False),
    "layer norm": (True, True, False, True, False, True),
}
"""Ba, Kiros and Hinton 2016, Table 1: what the suite must find by itself."""


@dataclass(frozen=True)
class Cell:
    """What was decided of one method and one change. looked: informative settings; example: what breaks it."""

    method: str
    change: str
    invariant: bool
    looked: int
    example: Setting | None = None
    unit: int = 0
    case: int = 0
    before: Fraction = Fraction()
    after: Fraction = Fraction()

    @property
    def agrees(self) -> bool:
        """Whether the paper says the same, and enough cases were informative for a 'yes'."""
        paper = PAPER[self.method][list(CHANGES).index(self.change)]
        return self.invariant == paper and (not self.invariant or self.looked >= INFORMATIVE)


def _outputs(method: Method, change: str, setting: Setting) -> tuple[Rows, Rows] | None:
    """Before and after; None where one of them is not defined."""
    before, after = method(setting.weights, setting.cases), method(*CHANGES[change](setting))
    return None if before is None or after is None else (before, after)


def _of_size(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every `count` whole numbers whose absolute values add up to `total`, in one order, those without a sign first."""
    signed = list(_sizes(total, count))
    yield from signed
    for sizes in signed:
        for signs in product((1, -1), repeat=sum(map(bool, sizes))):
            if -1 in signs:
                left = iter(signs)
                yield tuple(size * next(left) if size else 0 for size in sizes)


def _sizes(total: int, count: int) -> Iterator[tuple[int, ...]]:
    """Every `count` whole numbers from 0 that add up to `total`."""
    if count == 1:
        yield (total,)
        return
    for first in range(total + 1):
        for rest in _sizes(total - first, count - 1):
            yield (first, *rest)


def _from_numbers(numbers: tuple[int, ...], units: int, cases: int, factor: Fraction, shifted: bool) -> Setting:
    exact = tuple(map(Fraction, numbers))
    rows = tuple(exact[k : k + INPUTS] for k in range(0, len(exact), INPUTS))
    return Setting(rows[:units], rows[units : units + cases], factor, rows[-1] if shifted else (Fraction(),) * INPUTS)


def smallest(method: Method, change: str, found: Setting, fewest: tuple[int, int]) -> Setting:
    """The smallest counterexample: fewest units and cases, then the least sum of absolute values, then no sign.

    What Hypothesis found, if there is none whose sum is at most MOST.
    """
    shifted = change in SHIFTS
    for total in range(MOST + 1):
        for numbers in _of_size(total, INPUTS * (sum(fewest) + shifted)):
            setting = _from_numbers(numbers, *fewest, Fraction(1 if shifted else 2), shifted)
            outputs = _outputs(method, change, setting)
            if outputs is not None and outputs[0] != outputs[1]:
                return setting
    return found


def _settings(change: str, fewest: tuple[int, int]) -> Any:
    """Hypothesis' strategy for settings: whole numbers, a factor p/q with p, q up to 9."""
    from hypothesis import strategies as st

    whole = st.integers(-9, 9).map(Fraction)
    weights, cases = (st.lists(st.tuples(*[whole] * INPUTS), min_size=n, max_size=LARGEST).map(tuple) for n in fewest)
    shifted = change in SHIFTS
    factor = st.just(Fraction(1)) if shifted else st.builds(Fraction, st.integers(1, 9), st.integers(1, 9))
    shift = st.tuples(*[whole] * INPUTS) if shifted else st.just((Fraction(),) * INPUTS)
    return st.builds(Setting, weights, cases, factor, shift)


def search(method: Method, change: str, fewest: tuple[int, int]) -> tuple[Setting | None, int]:
    """What Hypothesis finds to break the invariance, or None; and how many settings were informative."""
    from hypothesis import HealthCheck, Phase, find, settings
    from hypothesis.errors import NoSuchExample

    from lnverify.strategies import no_local_constants

    looked = 0

    def breaks(setting: Setting) -> bool:
        nonlocal looked
        outputs = _outputs(method, change, setting)
        looked += outputs is not None
        return outputs is not None and outputs[0] != outputs[1]

    # Without its own phase of shrinking: `smallest` takes less time, and has the last word.
    quiet = settings(
        max_examples=EXAMPLES, database=None, derandomize=True, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        with no_local_constants():
            return find(_settings(change, fewest), breaks, settings=quiet), looked
    except NoSuchExample:
        return None, looked


def decide(name: str, change: str, method: Method | None = None) -> Cell:
    """One cell of the table."""
    method = method or METHODS[name]
    found, looked = search(method, change, FEWEST[name])
    if found is None:
        return Cell(name, change, True, looked)
    example = smallest(method, change, found, FEWEST[name])
    outputs = _outputs(method, change, example)
    assert outputs is not None
    before, after = outputs
    n, i = next((n, i) for n, row in enumerate(before) for i, v in enumerate(row) if v != after[n][i])
    return Cell(name, change, False, looked, example, i, n, before[n][i], after[n][i])


def table(progress: Callable[[int, int, str], None] | None = None) -> list[Cell]:
    """All 18 cells, row by row; `progress` is told how many are decided, of how many, and which is next."""
    cells: list[Cell] = []
    wanted = [(method, change) for method in METHODS for change in CHANGES]
    for method, change in wanted:
        if progress is not None:
            progress(len(cells), len(wanted), f"{method}, {change}")
        cells.append(decide(method, change))
    return cells


def root(square: Fraction) -> str:
    """The number whose signed square this is, for people to read."""
    return f"{math.copysign(math.sqrt(abs(square)), square):.4g}" if square else "0"


def _rows(rows: Rows) -> str:
    return ", ".join(f"({', '.join(map(str, row))})" for row in rows)


def sentence(cell: Cell) -> str:
    """Why a cell says what it says."""
    if cell.example is None:
        return f"equal outputs, exactly, in {cell.looked} settings"
    e = cell.example
    word = "weights" if cell.change.startswith("weight") else "cases"
    act = f"plus {_rows((e.shift,))}" if cell.change in SHIFTS else f"times {e.factor}"
    target = {"weight vector rescaled": "the first unit's weights", "single case rescaled": "the first case"}
    what = target.get(cell.change, f"all {word}")
    return (
        f"W = {_rows(e.weights)}; x = {_rows(e.cases)}; {what} {act}: unit {cell.unit + 1} of case {cell.case + 1} "
        f"goes from {root(cell.before)} to {root(cell.after)}"
    )


def page(cells: list[Cell]) -> str:
    """docs/table1.md."""
    lines = [HEAD, f"| | {' | '.join(CHANGES)} |", f"|---|{'---|' * len(CHANGES)}"]
    for method in METHODS:
        row = ["yes" if c.invariant else "no" for c in cells if c.method == method]
        lines.append(f"| {method} | {' | '.join(row)} |")
    bad = [f"{c.method}, {c.change}" for c in cells if not c.agrees]
    said = f"The paper's table disagrees in: {'; '.join(bad)}." if bad else "So says the paper's table, in all cells."
    lines += ["", said, "", "## Why not", "", "| method | change | counterexample |", "|---|---|---|"]
    lines += [f"| {c.method} | {c.change} | {sentence(c)} |" for c in cells if not c.invariant]
    return "\n".join(lines) + "\n" + FOOT


HEAD = """# Table 1 of the paper

<!-- Generated by `lnverify table1 --page docs/table1.md`: do not edit. -->

Which normalizer is invariant to which change (Ba, Kiros and Hinton 2016, Table 1). `lnverify table1` decides each cell
again. Numbers are fractions, and outputs are compared by their signed squares, which are fractions too: nothing is
rounded. A *no* is a counterexample that Hypothesis finds; shown is the smallest. A *yes* has found no difference in any
setting that Hypothesis drew. There are two inputs, and at most four units and cases; at least three numbers are
standardised, for two are 1 and -1 whatever they were. Factors are positive, eps is 0.
"""
FOOT = """
## Why yes

Beyond the drawn cases, for every size: the proofs `weight-matrix`, `scaled-deviation`, `scaled-variance` and
`scaled-root` for layer norm, the same with `batch-norm` for the columns that batch norm standardises
(`python reference/prove_claims.py`). Weight norm divides by the length of a weight vector, which takes a factor along.
"""
