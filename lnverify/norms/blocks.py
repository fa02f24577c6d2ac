"""Transformer blocks: exact results, and bounds for any order of sums and any arrangement of attention.

The formula is evaluated in running errors (lnverify.running). Right code joins what the formula sums apart: a bias or
a residual is where a product begins to be summed, q, k and v are one product. So each sum of two terms or more
carries h of the longest sum that code may make (lnverify.block.Block.longest), and each addition a + b as many u (|a|
+ |b|). Beside that each LN is seeded with what lnverify.norms.cells admits of algorithms on raw a, and each score
with

    u (40 + 8 T + 4 max|score|)

Of this 40 u is an exponential of 20 units in the last place, as fused attention on CPUs uses; 8 T u are T rescalings
of a running sum by an exponential of two units (online softmax: Milakov and Gimelshein 2018), whose arguments add up
to score - top and are covered with it; the last is another maximum, that of a block, of a head or of all. Softmax
does not depend on what is subtracted, and an error e of a score is an error exp(e) - 1 of its weight: with large
scores the bound grows until it admits everything, and nothing is judged.

Range. The context keeps the largest number of all sums and results, P. Of one LN no product of r, a, gain and a
cotangent is beyond r^3 a^2 gain P, with each factor 1 at least; nothing is judged where as many of them as the
longest sum has terms exceed the range. A product that underflows is off by the smallest normal number; besides the
errors that this makes in the formula itself r^3 a^2 gain of both norms and P^2 multiply it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.block import MASK, extents
from lnverify.case import Case
from lnverify.cell import Normalised
from lnverify.floats import Float64Array, Format
from lnverify.formulas import blocks, blocks_second_order
from lnverify.formulas.runtime import sqrt
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.norms.exact import Exact
from lnverify.running import Context, Running

EXPONENTIAL, RESCALED, SHIFTED = 40.0, 8.0, 4.0  # of the head of this file


class BlockExact(CellExact):
    """Exact results of one block."""

    module: Any = blocks
    twice: Any = blocks_second_order

    def __init__(self, case: Case) -> None:
        """Take the case's exact values; nothing is evaluated yet."""
        Exact.__init__(self, case)
        assert self.operation.block is not None
        self.cell = self.operation.block
        self.extents = extents(self.raw.shape, case.normalized_shape, case.arrays["weight_1"].shape[0])

    def inputs(self, lift: Callable[[Any], Any], slack: Callable[[Normalised], Any] | None = None) -> dict[str, Any]:
        """Everything that the formula takes, by name and in its order. lift: makes numbers of an array."""
        return self._inputs(lift, slack, self.top)

    def _inputs(
        self, lift: Callable[[Any], Any], slack: Callable[[Normalised], Any] | None, top: Float64Array
    ) -> dict[str, Any]:
        size = self.extents
        slacks = {f"slack_{entry.word}": entry for entry in self.cell.normalised}
        found = {}
        for name in self.formal:
            if name.startswith("slack"):
                found[name] = slack(slacks[name]) if slack and name in slacks else lift(self.no_slack(name))
            elif name == MASK:
                found[name] = lift(self.mask)
            elif name == "top":
                found[name] = lift(top)
            elif name == "scale":
                found[name] = 1 / sqrt(lift(np.full(size["g"], float(size["e"]))))
            else:
                found[name] = lift(self.case.eps if name == "eps" else self.argument(name))
        return found

    def no_slack(self, name: str) -> Float64Array:
        """Zeros in the shape of a slack."""
        if name != "slack_score":
            return super().no_slack(name)
        return np.zeros(tuple(self.extents[letter] for letter in "bgts"))

    @cached_property
    def mask(self) -> Float64Array:
        """1 where a position may attend to another."""
        shape = (self.extents["t"], self.extents["s"])
        return (self.case.arrays[MASK].values > 0).astype(np.float64) if self.case.has(MASK) else np.ones(shape)

    @cached_property
    def scores(self) -> Float64Array:
        """The scores in float64; they decide only what is subtracted, and what is admitted."""
        size = self.extents
        rough = self._inputs(np.asarray, None, np.zeros((size["b"], size["g"], size["t"])))
        with np.errstate(all="ignore"):
            return np.asarray(self.program("forward")(*rough.values())["score"])

    @cached_property
    def top(self) -> Float64Array:
        """The largest score of each row that the mask lets through; a number for every kind of arithmetic."""
        return np.asarray(np.where(self.mask > 0, self.scores, -np.inf).max(axis=-1))

    def magnitude(self, entry: Normalised) -> tuple[Float64Array, int]:
        """Nothing: the running error counts these sums already (head of this file)."""
        return np.zeros(self.raw.shape), 0


class BlockBounds(CellBounds):
    """Bounds of one block. positions: of a longer sequence whose result is that of this case; 0 for the case's own."""

    def __init__(self, exact: BlockExact, compute: Format, positions: int = 0) -> None:
        """compute: the format that the subject computes in."""
        super().__init__(exact, compute)
        self.positions = max(positions, exact.extents["t"])
        self.count = max(self.count, self.positions * exact.extents["b"])
        self.context = Context(compute, longest=self.count)

    @property
    def block(self) -> BlockExact:
        """Its exact results."""
        assert isinstance(self.exact, BlockExact)
        return self.exact

    @property
    def _given(self) -> list[Running]:
        found = self.block.inputs(self.context.exact, self.slack)
        with np.errstate(all="ignore"):
            other = SHIFTED * np.abs(self.block.scores).max(initial=0.0)
            admitted = self.compute.u * (EXPONENTIAL + RESCALED * self.positions + other)
        zero = found["slack_score"].value
        found["slack_score"] = Running(zero, np.full(zero.shape, admitted), self.context)
        return list(found.values())

    def reach(self, what: str) -> tuple[float, float]:
        """The largest product of a derived program, and by how much at most an error in one of them is multiplied."""
        return self.by_peak(what)
