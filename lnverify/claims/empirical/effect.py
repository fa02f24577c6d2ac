"""What an experiment returns: effects with their intervals over seeds, and curves to draw.

Each seed gives one pair of runs with the same initial weights and the same data, hence one effect. Effects of seeds are
independent and of one distribution, about which nothing else is known: the interval is that of their median by order
statistics (the sign test; Conover, Practical Nonparametric Statistics, 3rd ed., 3.2). A run that does not reach a loss
within its budget is not left out: its effect is known from one side only, and enters as the range of what it may be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import comb, inf
from statistics import median

from lnverify.timing import interval

ALPHA = 0.025
"""How often each end of an interval may miss the median."""
NULL = {"ratio": 1.0, "difference": 0.0}
"""What each kind of effect is where nothing is different; a share of one thing in another has no such value."""


@dataclass(frozen=True)
class Effect:
    """One effect, seed by seed.

    claims: ids in the ledger; kind: a key of NULL, or 'share'; says: 1 or -1, the side of the null on which the claims
    expect it, or 0 where they name none; pairs: for each seed the range in which its effect lies; arms: what each side
    came to, as text.
    """

    claims: tuple[str, ...]
    what: str
    kind: str
    says: int
    pairs: tuple[tuple[float, float], ...]
    arms: str = ""

    @property
    def middle(self) -> tuple[float, float]:
        """The range in which the median over the seeds lies; both ends are the same where every run ended."""
        return median(low for low, _ in self.pairs), median(high for _, high in self.pairs)

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of the true median; infinite where there are too few seeds."""
        return (
            interval.lower([low for low, _ in self.pairs], ALPHA),
            interval.upper([high for _, high in self.pairs], ALPHA),
        )

    @property
    def side(self) -> int:
        """1 or -1 where the interval lies on one side of the null, else 0."""
        low, high = self.bounds
        null = NULL.get(self.kind)
        return 0 if null is None else (low > null) - (high < null)

    @property
    def shown(self) -> str:
        """In words, whether what the claims expect showed."""
        if self.kind not in NULL:
            return "measured"
        if not self.says:
            return "differs" if self.side else "no difference showed"
        if not self.side:
            return "did not show"
        return "showed" if self.side == self.says else "the opposite showed"


def coverage(seeds: int) -> Fraction:
    """How often an interval over so many seeds holds the true median, at least; 0 if there are too few."""
    k = interval.rank(seeds, ALPHA)
    return 1 - 2 * Fraction(sum(comb(seeds, j) for j in range(k)), 2**seeds) if k else Fraction(0)


def exact(values: Iterable[float]) -> tuple[tuple[float, float], ...]:
    """Pairs of effects that are known."""
    return tuple((float(value), float(value)) for value in values)


def ratios(above: Sequence[float], below: Sequence[float], budget: float) -> tuple[tuple[float, float], ...]:
    """above/below, seed by seed. A value beyond the budget is only known to lie there."""
    return tuple(_ratio(a, b, budget) for a, b in zip(above, below, strict=True))


def _ratio(a: float, b: float, budget: float) -> tuple[float, float]:
    low = min(a, budget) / b if b <= budget else 0.0
    high = a / min(b, budget) if a <= budget else inf
    return low, high


def differences(below: Sequence[float], above: Sequence[float], budget: float) -> tuple[tuple[float, float], ...]:
    """above - below, seed by seed. A value of `budget` is only known to be at least that."""
    return tuple(
        (float(b - a) if a < budget else -inf, float(b - a) if b < budget else inf)
        for a, b in zip(below, above, strict=True)
    )


@dataclass(frozen=True)
class Curve:
    """Values over x: the median of the seeds, and the least and the largest of them."""

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def curve(label: str, x: Sequence[float], of_seeds: Sequence[Sequence[float]]) -> Curve:
    """A curve from values of shape (x, seeds)."""
    rows = [sorted(map(float, row)) for row in of_seeds]
    return Curve(label, tuple(map(float, x)), tuple(median(row) for row in rows), tuple(row[0] for row in rows),
                 tuple(row[-1] for row in rows))  # fmt: skip


@dataclass(frozen=True)
class Panel:
    """Curves in one frame; log: which axes are logarithmic, of 'xy'."""

    title: str
    x: str
    y: str
    curves: tuple[Curve, ...]
    log: str = ""


@dataclass(frozen=True)
class Outcome:
    """What an experiment found. set_up: in words, with the numbers that were used; seeds: in each effect."""

    set_up: str
    seeds: int
    effects: tuple[Effect, ...]
    panels: tuple[Panel, ...]
    seconds: float = field(default=0.0, compare=False)
