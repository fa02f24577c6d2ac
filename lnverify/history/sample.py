"""Sample: one number or verdict of one commit; and the series, in the order of the commits, that it belongs to."""

from __future__ import annotations

from dataclasses import dataclass

# What a metric is, in words. In all of them a larger number is worse.
METRICS = {
    "time": "time over the baseline's",
    "error": "worst error over the bound",
    "pair": "worst error over the bound of pairwise sums",
    "verdict": "what the law found",
}
VERDICTS = ("holds", "inapplicable", "inconclusive", "violated", "crashed")  # from good to bad


@dataclass(frozen=True)
class Commit:
    """A commit. id: its full hash; time: of the committer, in seconds since 1970; title: first line of its message."""

    id: str
    time: int
    title: str = ""

    @property
    def short(self) -> str:
        """The first ten digits."""
        return self.id[:10]


@dataclass(frozen=True, order=True)
class Key:
    """What all samples of a series have in common.

    subject: the target; name: the law or benchmark with dtype, shape and device; metric: one of METRICS; setting: what
    else the number depends on (profile, seed and versions, or the baseline); machine: a fingerprint.
    """

    subject: str
    name: str
    metric: str
    setting: str
    machine: str

    @property
    def text(self) -> str:
        """'LN101 [float32, cpu] of ./kernels.py:ln'."""
        return f"{self.name} of {self.subject}"


@dataclass(frozen=True)
class Sample:
    """value: the ratio, None for a verdict; low, high: its interval, None where it has none."""

    key: Key
    value: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Point:
    """A sample and its commit."""

    commit: Commit
    value: float | None = None
    low: float | None = None
    high: float | None = None
    verdict: str = ""


@dataclass(frozen=True)
class Series:
    """The samples of a key, oldest commit first."""

    key: Key
    points: tuple[Point, ...]
