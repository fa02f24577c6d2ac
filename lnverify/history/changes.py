"""Changes: the commits at which a series moved to another level, and how sure that is.

Times are noisy, and a test decides. Errors and verdicts come from fixed seeds and budgets that are counts: the same
code gives the same ones, and a rule decides. Rules are stated where they stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil, comb
from zlib import crc32

import numpy as np

from lnverify.history.sample import VERDICTS, Key, Point, Series

ALPHA = 0.01
SHORTEST = 2  # commits on either side of a step in time: one commit alone may be an outlier
FACTOR = 2.0
ORDERS = 10
CHUNK = 500  # orders at a time


@dataclass(frozen=True)
class Change:
    """A series at another level from `at` on; `before` is the last commit that was measured on the old one.

    old, new: geometric means of the levels, None for a verdict; was, now: the verdicts; p: how often chance would
    do the same, 0 where there is no chance in it; commits: how many were measured on the new level until it ended.
    """

    key: Key
    before: Point
    at: Point
    old: float | None = None
    new: float | None = None
    was: str = ""
    now: str = ""
    p: float = 0.0
    commits: int = 1

    @property
    def worse(self) -> bool:
        """Slower, less accurate, or a worse verdict."""
        if self.old is None or self.new is None:
            return VERDICTS.index(self.now) > VERDICTS.index(self.was)
        return self.new > self.old


@dataclass(frozen=True)
class Search:
    """changes: oldest first. timed: series of times; short: those of them with too few commits to show a change."""

    changes: tuple[Change, ...]
    timed: int
    short: int


def search(series: Sequence[Series], alpha: float = ALPHA) -> Search:
    """All changes.

    alpha is the probability of any alarm in the times where none of them changed: each of m series is tested at
    alpha / m (Bonferroni's inequality), whatever the series have to do with each other.
    """
    timed = [entry for entry in series if entry.key.metric == "time"]
    level = alpha / max(len(timed), 1)
    found = [change for entry in series for change in changes(entry, level)]
    order = {key: n for n, key in enumerate(sorted({c.key for c in found}))}
    found.sort(key=lambda c: (c.at.commit.time, order[c.key]))
    return Search(tuple(found), len(timed), sum(not enough(len(entry.points), level) for entry in timed))


def changes(series: Series, level: float) -> list[Change]:
    """The changes of one series. level: of the test of times; the other metrics have no chance in them."""
    if series.key.metric == "verdict":
        return _verdicts(series)
    if series.key.metric == "time":
        values = np.log([_value(point) for point in series.points])
        return _cut(series, steps(values, level, seed=crc32(repr(series.key).encode())))
    return _cut(series, dict.fromkeys(jumps([_value(p) for p in series.points]), 0.0))


def steps(values: np.ndarray, level: float, seed: int = 0) -> dict[int, float]:
    """Positions at which the mean of noisy values steps, with the p value of each.

    A stretch is split where the squared difference between the means of its two parts, over its variance if all were
    one, is largest: max over t of n / (t (n - t)) * (sum of the first t deviations from the mean)^2. It is split in
    fact where at most `level` of the orders in which the same values could have come have a larger maximum; then both
    parts are searched in the same way. On a flat series the values may be in any order, so that the probability of a
    change is at most `level` whatever the distribution of the noise, outliers included: with B random orders and R
    of them at least as large, p = (R + 1) / (B + 1) obeys P(p <= level) <= level (Phipson and Smyth, Stat. Appl. Genet.
    Mol. Biol. 9:39, 2010). That holds for every B; ORDERS / level of them leave room for p below the level. What it
    supposes is that the noise of one commit tells nothing about that of the next. Each further stretch, between two
    changes, is another chance of a false one.
    """
    found: dict[int, float] = {}
    rng = np.random.default_rng(seed)
    stretches = [(0, len(values))]
    while stretches:
        start, end = stretches.pop()
        if end - start < 2 * SHORTEST:
            continue
        part = values[start:end] - values[start:end].mean()
        gains = _gains(part)
        at = start + SHORTEST + int(np.argmax(gains))
        p = _chance(part, float(gains.max()), level, rng)
        if p <= level:
            found[at] = p
            stretches += [(start, at), (at, end)]
    return dict(sorted(found.items()))


def _gains(centred: np.ndarray) -> np.ndarray:
    """The squared difference of the means for every split with SHORTEST on both sides. centred: (..., n), mean 0."""
    n = centred.shape[-1]
    sums = np.cumsum(centred, axis=-1)[..., SHORTEST - 1 : n - SHORTEST]
    first = np.arange(SHORTEST, n - SHORTEST + 1)
    gains: np.ndarray = sums * sums * (n / (first * (n - first)))
    return gains


def _chance(centred: np.ndarray, best: float, level: float, rng: np.random.Generator) -> float:
    """The p value of the best split; it stops counting, and is too large, where it is above `level` for certain."""
    total = ceil(ORDERS / level) - 1
    # Sums of the same numbers in another order round otherwise: what is equal must count as at least as large.
    least = best - 1e-9 * max(best, float(np.sum(centred * centred)))
    reached, done = 0, 0
    while done < total:
        rows = min(CHUNK, total - done)
        orders = rng.permuted(np.broadcast_to(centred, (rows, len(centred))), axis=1)
        reached += int(np.count_nonzero(_gains(orders).max(axis=-1) >= least))
        done += rows
        if reached + 1 > level * (total + 1):
            return 1.0
    return (reached + 1) / (total + 1)


def enough(commits: int, level: float) -> bool:
    """Whether so many commits can show a change at all.

    A split of n values puts t of them on one side; the orders that put the same t values first, or last, reach it, and
    are 2 / C(n, t) of all orders, at least 2 / C(n, n // 2): where level is below that, no order is rare enough.
    """
    return commits >= 2 * SHORTEST and 2 / comb(commits, commits // 2) <= level


def jumps(values: Sequence[float]) -> list[int]:
    """Positions at which a ratio that has no noise is more than FACTOR times, or less than 1 / FACTOR of, its level.

    The level is the first ratio since the last jump, so that many small steps add up to one. The factor is no limit on
    errors, for those are the bounds; twice the error is one bit of accuracy, the least that is reported.
    """
    found = []
    level = values[0] if values else 0.0
    for at, value in enumerate(values):
        if value > FACTOR * level or value * FACTOR < level:
            found.append(at)
            level = value
    return found


def _verdicts(series: Series) -> list[Change]:
    points = series.points
    cuts = [at for at in range(1, len(points)) if points[at].verdict != points[at - 1].verdict]
    change = partial(Change, series.key)
    return [
        change(points[at - 1], points[at], was=points[at - 1].verdict, now=points[at].verdict, commits=end - at)
        for at, end in zip(cuts, [*cuts[1:], len(points)], strict=False)
    ]


def _cut(series: Series, cuts: dict[int, float]) -> list[Change]:
    """The changes at these positions, with the levels on both sides."""
    points, found = series.points, []
    edges = [0, *cuts, len(points)]
    means = [
        float(np.exp(np.mean(np.log([_value(point) for point in points[a:b]])))) for a, b in itertools.pairwise(edges)
    ]
    for place, (at, p) in enumerate(cuts.items()):
        new = (means[place], means[place + 1])
        found.append(Change(series.key, points[at - 1], points[at], *new, p=p, commits=edges[place + 2] - at))
    return found


def _value(point: Point) -> float:
    """The ratio of a point of any metric but the verdict."""
    assert point.value is not None
    return point.value
