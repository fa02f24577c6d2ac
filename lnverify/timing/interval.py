"""Bounds that hold whatever the distribution of the noise: of a median, and of a rate.

Timings are neither normal nor symmetric, so the median of the paired ratios is bounded by order statistics (the sign
test; Conover, Practical Nonparametric Statistics, 3rd ed., 3.2): of n independent values, each lies above the true
median with probability 1/2, hence the k-th smallest exceeds it with probability P(Bin(n, 1/2) < k).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb, exp, inf, log
from statistics import median

ALL_BUT_ONE = 4  # processes from which on one of them may stand out


def rank(count: int, alpha: float) -> int:
    """The largest k with P(Bin(count, 1/2) < k) <= alpha, exactly; 0 where there is none."""
    limit, total, term = Fraction(alpha) * (1 << count), 0, 1
    for k in range(count + 1):
        total += term
        if total > limit:
            return k
        term = term * (count - k) // (k + 1)
    return count


def lower(values: Sequence[float], alpha: float) -> float:
    """A number that exceeds the true median with probability at most alpha; -inf where there are too few values."""
    k = rank(len(values), alpha)
    return sorted(values)[k - 1] if k else -inf


def upper(values: Sequence[float], alpha: float) -> float:
    """A number that lies below the true median with probability at most alpha."""
    return -lower([-value for value in values], alpha)


@dataclass(frozen=True)
class Ratio:
    """A median of paired ratios with its bounds, each of which fails with probability at most alpha."""

    median: float
    low: float
    high: float
    pairs: int
    processes: int

    def to_json(self) -> dict[str, float | int | None]:
        """Plain data; a bound that there is none of is null."""
        low, high = (value if abs(value) < inf else None for value in (self.low, self.high))
        return {"median": self.median, "low": low, "high": high, "pairs": self.pairs, "processes": self.processes}


def ratio(processes: Sequence[Sequence[float]], alpha: float) -> Ratio:
    """The median ratio of several processes, each with its pairs.

    Pairs of one process share its memory, hence are not independent: bounds also leave room for all process medians
    but one (for all of them where there are fewer than ALL_BUT_ONE). Raises ValueError without any pair.
    """
    pooled = [value for pairs in processes for value in pairs]
    if not pooled:
        raise ValueError("no pair was timed")
    medians = sorted(median(pairs) for pairs in processes if pairs)
    out = 1 if len(medians) >= ALL_BUT_ONE else 0
    low, high = lower(pooled, alpha), upper(pooled, alpha)
    if len(medians) > 1:
        low, high = min(low, medians[out]), max(high, medians[-1 - out])
    return Ratio(median(pooled), low, high, len(pooled), len(medians))


def rate_bound(hits: int, trials: int, alpha: float = 0.05) -> float:
    """Upper confidence bound of a rate after `hits` of `trials` (Clopper and Pearson, Biometrika 26, 1934).

    It is the p with P(Bin(trials, p) <= hits) = alpha; for no hit 1 - alpha^(1/trials).
    """
    if hits >= trials:
        return 1.0
    if hits == 0:
        return 1.0 - exp(log(alpha) / trials)
    low, high = hits / trials, 1.0
    for _ in range(60):
        p = (low + high) / 2
        below = sum(comb(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits + 1))
        low, high = (p, high) if below > alpha else (low, p)
    return high
