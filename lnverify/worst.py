"""Worst: the element of an output that is farthest off, measured by its bound.

This is the common case, in which every element is judged and every number is finite. It is found block by block
(lnverify.row_blocks); what is left out, infinite or NaN has rules of its own (Evaluation.judge_values).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lnverify.floats import Float64Array, Format, distance, error_in_ulp
from lnverify.oracle import Pair
from lnverify.row_blocks import row_blocks


@dataclass(frozen=True)
class Worst:
    """ratio: the largest distance over bound, at the flat index `at`, the first of several; scale: the largest
    |exact value|; least: the smallest bound."""

    ratio: float
    at: int
    scale: float
    least: float


def worst(returned: Float64Array, exact: Pair, bound: Float64Array, fmt: Format) -> Worst | None:
    """The worst element; None where some number is infinite or NaN, or a bound is 0, or there is no element."""
    if not returned.size or not returned.shape == exact.hi.shape == bound.shape:
        return None
    ratio, at, scale, least, before = -1.0, 0, 0.0, np.inf, 0
    for rows in row_blocks(returned.shape):
        here = bound[rows]
        low, size = float(here.min()), float(np.abs(exact.hi[rows]).max())
        if not (low > 0 and here.max() < np.inf and size < np.inf):  # a NaN fails one of them
            return None
        apart = distance(returned[rows], exact.hi[rows], exact.lo[rows], fmt)
        np.divide(apart, here, out=apart)
        place = int(apart.argmax())
        if (found := float(apart.flat[place])) > ratio:
            ratio, at = found, before + place
        scale, least, before = max(scale, size), min(least, low), before + apart.size
    return Worst(ratio, at, scale, least)


def most_ulps(returned: Float64Array, exact: Pair, fmt: Format) -> float:
    """The largest error in ulps."""
    blocks = row_blocks(returned.shape)
    return max(float(error_in_ulp(returned[r], exact.hi[r], exact.lo[r], fmt).max(initial=0.0)) for r in blocks)
