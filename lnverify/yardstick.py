"""Yardstick: what is right for a case and what is admitted, each evaluated when first needed.

It depends on the numbers of a case alone, not on layouts, modes or which arguments require a gradient, so that
runs of the same numbers in another setting share one (Evaluation.rerun).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from lnverify.bounds import Bounds, Precision
from lnverify.case import Case
from lnverify.derivative_bounds import DerivativeBounds
from lnverify.floats import Float64Array
from lnverify.judgement import ALONE
from lnverify.oracle import Exact, Pair
from lnverify.row_range import Range, Rows, row_range


@dataclass
class Stopwatch:
    """Seconds by stage and the number of requests, for the report."""

    seconds: dict[str, float] = field(default_factory=lambda: {"subject": 0.0, "oracle": 0.0, "bound": 0.0})
    requests: int = 0

    def timed(self, stage: str, start: float) -> None:
        """Add the time since `start` (time.perf_counter) to a stage."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + time.perf_counter() - start


class Yardstick:
    """Exact results, bounds and range of one case in one precision."""

    def __init__(self, case: Case, precision: Precision, stopwatch: Stopwatch) -> None:
        """Hold the case; nothing is evaluated yet."""
        self.case, self.precision, self.stopwatch = case, precision, stopwatch
        self._bounds: dict[tuple[str, bool], Bounds] = {}
        self._second: dict[str, DerivativeBounds] = {}
        self._pairs: dict[str, Pair] = {}

    @cached_property
    def exact(self) -> Exact:
        """The exact results."""
        start = time.perf_counter()
        exact = Exact(self.case)
        _ = exact.forward, exact.statistics
        self.stopwatch.timed("oracle", start)
        return exact

    @cached_property
    def broken(self) -> Rows:
        """Rows of x that are not finite, (rows,)."""
        return np.asarray(~np.isfinite(self.exact.reach))

    @cached_property
    def range(self) -> Range:
        """Rows near the ends of the range."""
        return row_range(self.case, self.exact, self.precision)

    def pair(self, output: str) -> Pair:
        """The exact value of an output."""
        if output not in self._pairs:
            exact = self.exact
            start = time.perf_counter()
            self._pairs[output] = exact.pair(output)
            self.stopwatch.timed("oracle", start)
        return self._pairs[output]

    def bounds(self, tier: str = "det", points: bool = False) -> Bounds:
        """The closed-form bounds in a tier."""
        key = (tier, points)
        if key not in self._bounds:
            plain = self.bounds(tier) if points else None
            self._bounds[key] = Bounds(self.case, self.exact, self.precision, tier, points, plain)
        return self._bounds[key]

    def bound(self, output: str, tier: str = "det", points: bool = False) -> Float64Array:
        """The bound of an output, in its shape: closed form, or running errors for jvp and double backward."""
        _ = self.exact  # timed by itself
        start = time.perf_counter()
        if output in ALONE or output.startswith("d2"):
            value = self._derivatives(tier).bound(output)
        else:
            value = self.bounds(tier, points).of(output)
        self.stopwatch.timed("bound", start)
        return value

    def _derivatives(self, tier: str) -> DerivativeBounds:
        if tier not in self._second:
            self._second[tier] = DerivativeBounds(self.case, self.exact, self.precision, tier)
        return self._second[tier]
