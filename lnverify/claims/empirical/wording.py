"""Numbers and counts of effects as words, for the terminal and the page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from math import inf

from lnverify.claims.empirical.effect import Effect

SHOWN = ("showed", "did not show", "the opposite showed", "differs", "no difference showed", "measured")
"""What can be said of an effect, in the order of a summary."""
EXPECTED = {"ratio": {1: "above 1", -1: "below 1"}, "difference": {1: "above 0", -1: "below 0"}, "share": {}}


def middle(effect: Effect) -> str:
    """The median over the seeds; a bound of it where runs did not get to their end."""
    low, high = effect.middle
    if low == high:
        return number(low)
    least = -inf if effect.kind == "difference" else 0.0
    if high == inf:
        return f"at least {number(low)}" if low > least else "unknown"
    return f"at most {number(high)}" if low <= least else f"{number(low)} to {number(high)}"


def interval(effect: Effect) -> str:
    """Both ends of the interval."""
    low, high = effect.bounds
    if effect.kind != "difference":
        low = max(low, 0.0)
    return f"{number(low)} to {number(high)}"


def expected(effect: Effect) -> str:
    """On which side of the null the claims expect it."""
    return EXPECTED[effect.kind].get(effect.says, "-")


def number(value: float) -> str:
    """Three digits; infinity as a sign."""
    if abs(value) == inf:
        return "∞" if value > 0 else "-∞"
    return f"{value:.0f}" if 1000 <= abs(value) < 1e5 else f"{value:.3g}"


def summary(effects: Iterable[Effect]) -> str:
    """How many effects showed, did not, and so on."""
    found = Counter(effect.shown for effect in effects)
    return ", ".join(f"{found[word]} {word}" for word in SHOWN if found[word])
