"""Rounds: every side is timed once in each, in an order that changes from round to round.

Two figures of one round are seconds apart at most, so that whatever else the machine does meets both. Each side follows
each other side equally often, for what ran before has filled the caches. Memory is fresh every FRESH rounds: where
pages happen to lie makes a side faster or slower by percents for as long as it keeps them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import cycle, permutations
from math import ceil
from typing import Any

from lnverify.timing.clock import Clock, Reading, take

FRESH = 20
BLOCK = 2e-4  # seconds: calls shorter than that are timed several at once, 500 times the cost of reading the clock
MOST_CALLS = 1000
Sides = Mapping[str, Callable[[], Any]]


@dataclass(frozen=True)
class Budget:
    """How long one measurement may take. seconds: about; least, most: rounds."""

    seconds: float = 0.6
    least: int = 24  # every order of four sides once
    most: int = 600


@dataclass
class Rounds:
    """What was read: a reading of every side in every round. times: calls in one reading."""

    clock: str
    times: int
    readings: dict[str, list[Reading]] = field(default_factory=dict)

    def seconds(self, side: str) -> list[float]:
        """The deciding number of a side, round by round."""
        return take(self.readings[side], self.clock)

    def ratios(self, above: str = "candidate", below: str = "baseline") -> list[float]:
        """Ratios of two sides within a round; rounds in which the clock did not move are left out."""
        pairs = zip(self.seconds(above), self.seconds(below), strict=True)
        return [one / other for one, other in pairs if one > 0 and other > 0]


def measure(make: Callable[[], Sides], clock: Clock, budget: Budget, slowed: float = 0.0) -> Rounds:
    """Time the sides that `make` makes on fresh memory. slowed: injected into 'candidate' alone (Clock.block).

    Every side is called equally often in a block, so that each finds its own data in the caches as often.
    """
    sides = make()
    once = {name: _once(call, clock) for name, call in sides.items()}
    shared = min(once[name] for name in ("candidate", "baseline") if name in once)
    times = min(max(1, ceil(BLOCK / max(shared, BLOCK / MOST_CALLS))), MOST_CALLS)
    per_round = sum(once.values()) * times
    count = min(max(budget.least, int(budget.seconds / max(per_round, 1e-9))), budget.most)
    rounds = Rounds(clock.name, times, {name: [] for name in sides})
    collecting = gc.isenabled()
    gc.disable()
    try:
        for number, order in zip(range(count), cycle(permutations(sides)), strict=False):
            if number % FRESH == 0:
                sides = make()
                for call in sides.values():
                    call()
            for name in order:
                call = sides[name]
                if times > 1:
                    call()  # what the side before it left in the caches is not its own doing
                extra = slowed if name == "candidate" else 0.0
                rounds.readings[name].append(clock.block(call, times, extra))
    finally:
        if collecting:
            gc.enable()
    return rounds


def _once(call: Callable[[], Any], clock: Clock) -> float:
    """Seconds of one call: the fastest of three after two that warm up, compile say."""
    for _ in range(2):
        call()
    return min(take([clock.block(call, 1) for _ in range(3)], clock.name))
