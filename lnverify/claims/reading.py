"""What a piece of evidence returns: what was looked at, what came out, what it is held to, whether it keeps it.

The functions here are the only ones that decide. None has a tolerance: balls enclose the exact values, so that
"different" and "less" are certain where they are said, and "equal" says how closely both sides were enclosed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lnverify.claims.balls import Array, ball, balls, middle

KINDS = ("identity", "inequality", "difference", "counterexample", "exact", "order", "float")
SHARP = -64


@dataclass(frozen=True)
class Reading:
    """One thing that evidence shows. kind: one of KINDS; got and due are texts, holds is the decision."""

    kind: str
    what: str
    got: str
    due: str
    holds: bool


def _gap(left: Any, right: Any) -> tuple[Array, Array]:
    a, b = np.broadcast_arrays(balls(left), balls(right))
    return np.asarray(a - b, dtype=object), np.asarray(b)


def _widest(gap: Array) -> tuple[float, str]:
    """The entry with the largest difference: how much, and where."""
    sizes = np.asarray([abs(middle(v)) if v.is_finite() else float("inf") for v in gap.flat]).reshape(gap.shape)
    spot = np.unravel_index(int(np.argmax(sizes)), gap.shape)
    return float(sizes[spot]), f" at [{', '.join(map(str, spot))}]" if gap.size > 1 else ""


def equal(what: str, left: Any, right: Any) -> Reading:
    """Both sides are equal on this input: |left - right| <= 2^-63 max(1, |right|) in every entry.

    The ball of left - right must contain 0 and have a radius of at most 2^-64 max(1, |right|), which gives the
    inequality. It is no room for rounding, which the radius holds already: with 256 bits the radius is about 2^-240.
    The inputs are small whole numbers, where two different formulas differ by far more.
    """
    gap, scale = _gap(left, right)
    room = ball(2) ** SHARP
    holds = gap.size > 0 and all(
        bool(v.is_finite()) and bool(v.contains(0)) and bool(ball(v.rad()) <= room * (1 + abs(s)))
        for v, s in zip(gap.flat, scale.flat, strict=True)
    )
    size, spot = _widest(gap)
    value = f"both {middle(scale.flat[0]):.4g}" if scale.size == 1 else "equal"
    return Reading("identity", what, value if holds else f"off by {size:.4g}{spot}", "|difference| <= 2^-63", holds)


def differ(what: str, left: Any, right: Any) -> Reading:
    """The sides differ in some entry: a ball of left - right excludes 0, so that the exact difference is not 0."""
    gap, _ = _gap(left, right)
    holds = any(bool(v.is_finite()) and not v.contains(0) for v in gap.flat)
    size, spot = _widest(gap)
    got = f"off by {size:.4g}{spot}" if holds else "equal"
    return Reading("difference", what, got, "a difference", holds)


def refute(what: str, left: Any, right: Any) -> Reading:
    """What a claim says is equal differs: a counterexample, decided as in `differ`."""
    return replace(differ(what, left, right), kind="counterexample")


def at_most(what: str, values: Any, bound: Any) -> Reading:
    """No entry exceeds the bound: the balls of value and bound are ordered, hence the exact numbers are."""
    a, b = np.broadcast_arrays(balls(values), balls(bound))
    holds = a.size > 0 and all(bool(v <= w) for v, w in zip(a.flat, b.flat, strict=True))
    top = max(range(a.size), key=lambda k: middle(a.flat[k] - b.flat[k]))
    return Reading("inequality", what, f"{middle(a.flat[top]):.4g}", f"<= {middle(b.flat[top]):.4g}", holds)


def exactly(what: str, got: Any, due: Any) -> Reading:
    """Two whole numbers, fractions or texts are the same: no rounding is in it."""
    return Reading("exact", what, str(got), str(due), bool(got == due))


def unlike(what: str, got: Any, other: Any) -> Reading:
    """Two exact values are not the same."""
    return Reading("difference", what, str(got), f"not {other}", bool(got != other))


def order(what: str, whole: int, coarse: Any, fine: Any) -> Reading:
    """A remainder R(t) vanishes like t^whole: log2 R(t)/R(t/2) has `whole` as its nearest whole number.

    If R(t) = c t^p (1 + O(t)) with c not 0, then log2 R(t)/R(t/2) = p + O(t), and p is a whole number for a smooth R.
    Half a unit is thus the bound that tells p from its neighbours; `coarse` and `fine` are R(t) and R(t/2).
    """
    measured = (abs(ball(coarse)) / abs(ball(fine))).log() / ball(2).log()
    holds = bool(abs(measured - whole) < ball(1) / 2)
    got = f"{middle(measured):.4f}" if measured.is_finite() else "unknown"
    return Reading("order", what, got, f"nearest to {whole}", holds)


def floats(what: str, got: Any, due: Any) -> Reading:
    """What NumPy returns in a machine format is, bit for bit, what IEEE 754 demands there."""
    a, b = np.asarray(got), np.asarray(due)
    holds = a.dtype == b.dtype and a.shape == b.shape and bool(np.array_equal(a, b, equal_nan=True))
    return Reading("float", what, str(a.tolist()), str(b.tolist()), holds)
