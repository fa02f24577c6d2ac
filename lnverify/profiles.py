"""Profiles: how much a run examines. Budgets are counts, never seconds, so that a seed gives the same findings."""

from __future__ import annotations

from dataclasses import dataclass

from lnverify.errors import UsageError


@dataclass(frozen=True)
class Profile:
    """blocks: how many blocks of 121 grid cases (strategies.grid); recipes, small: Hypothesis examples per
    dtype; cap: largest number of elements of a case in formats up to 32 bits, and cap64 in float64 (where the
    oracle is ten times slower); effort: factor on the number of cases that laws with several runs look at;
    shrink: budget of one finding, in model seconds (shrink.cost)."""

    name: str
    blocks: int
    recipes: int
    small: int
    cap: int
    cap64: int
    effort: float
    shrink: float


PROFILES = {
    "quick": Profile("quick", 1, 24, 40, 1 << 18, 1 << 17, 1.0, 1.0),
    "ci": Profile("ci", 3, 150, 200, 1 << 20, 1 << 18, 3.0, 10.0),
    "deep": Profile("deep", 11, 1000, 1000, 1 << 22, 1 << 22, 10.0, 10.0),
}
# What `lnverify selftest` runs on each of some two hundred implementations; not offered on the command line.
SELFTEST = Profile("selftest", 1, 8, 12, 1 << 14, 1 << 13, 1.0, 0.05)
# With --full: every block of the grid, and a longer climb on the ratio.
SELFTEST_FULL = Profile("selftest-full", 11, 100, 100, 1 << 13, 1 << 12, 1.0, 0.05)
# What `lnverify gate` runs: enough to see a worst ratio change, in the time that a pull request has.
GATE = Profile("gate", 1, 8, 12, 1 << 14, 1 << 13, 1.0, 0.05)
# What --score runs on each mutant: every law, and no shrinking, for only the laws are counted.
SCORE = Profile("score", 1, 8, 12, 1 << 16, 1 << 15, 1.0, 0.0)


def profile(name: str) -> Profile:
    """Look a profile up. Raises UsageError for an unknown one."""
    for own in (SELFTEST, SELFTEST_FULL, GATE, SCORE):
        if name == own.name:
            return own
    if name not in PROFILES:
        raise UsageError(f"unknown profile {name!r}: choose from {', '.join(PROFILES)}.")
    return PROFILES[name]
