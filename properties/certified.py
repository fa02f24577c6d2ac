"""Certified layer norm: enclosures of the exact result, and the scale that each result's error is relative to.

Two independent ways. `balls` runs the generated formulas over Arb's balls (python-flint), on the exact inputs and
without any pivot, in as many bits as the input asks for. `forward_by_integers` uses nothing but integers: y is
gamma d sqrt(1/V) + beta with rational d and V, so that one integer square root encloses it.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import flint
import numpy as np

from lnverify.case import Case
from lnverify.formulas import layer_norm as first
from lnverify.formulas import layer_norm_second_order as second
from lnverify.oracle import Exact

SUFFIX = {(True, True): "", (True, False): "_weight", (False, True): "_bias", (False, False): "_plain"}
KEYS = {
    "y": "y", "dx": "x_bar", "dweight": "gamma_bar", "dbias": "beta_bar", "ty": "y_dot",
    "d2x": "x_bar2", "d2weight": "gamma_bar2", "d2bias": "beta_bar2", "d2dy": "y_bar_bar2",
}  # fmt: skip
to_ball = np.frompyfunc(flint.arb, 1, 1)


def outputs(case: Case) -> list[str]:
    """Every result that the case asks for, jvp and double backward where it holds tangents."""
    present = [p for p in ("weight", "bias") if case.has(p)]
    found = ["y", "dx", *(f"d{p}" for p in present)]
    if case.has("tx"):
        found += ["ty", "d2x", "d2dy", *(f"d2{p}" for p in present)]
    return found


def balls(case: Case, bits: int) -> dict[str, Any]:
    """Every result as an object array of balls, computed in `bits` bits."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        suffix = SUFFIX[case.has("weight"), case.has("bias")]
        present = [p for p in ("weight", "bias") if case.has(p)]
        affine = [to_ball(case.vector(p)) for p in present]
        given = [to_ball(case.matrix("x")), *affine, to_ball(np.full(case.rows, case.eps))]
        dy = to_ball(case.matrix("dy"))
        found = getattr(first, f"layer_norm{suffix}")(*given)
        found |= getattr(first, f"layer_norm{suffix}_vjp")(*given, dy)
        if case.has("tx"):
            tangents, cotangents = (
                [to_ball(case.matrix(f"{kind}x")), *(to_ball(case.vector(f"{kind}{p}")) for p in present)]
                for kind in "tv"
            )
            found |= getattr(first, f"layer_norm{suffix}_jvp")(*given, *tangents)
            found |= getattr(second, f"layer_norm{suffix}_vjp_vjp")(*given, dy, *cotangents)
        return {name: found[KEYS[name]] for name in outputs(case)}
    finally:
        flint.ctx.prec = before


def misses(case: Case, exact: Exact, bits: int) -> dict[str, np.ndarray]:
    """|oracle - exact| by output, as float64 rounded up; the radius of the ball is part of it."""
    found = {}
    for name, enclosure in balls(case, bits).items():
        pair = exact.pair(name)
        before = flint.ctx.prec
        flint.ctx.prec = bits
        try:
            apart = [
                float(abs(flint.arb(float(hi)) + flint.arb(float(lo)) - ball).upper())
                for hi, lo, ball in zip(pair.hi.ravel(), pair.lo.ravel(), np.ravel(enclosure), strict=True)
            ]
        finally:
            flint.ctx.prec = before
        found[name] = np.array(apart).reshape(pair.hi.shape)
    return found


def scales(case: Case, exact: Exact) -> dict[str, np.ndarray]:
    """What the oracle's stated error is relative to, by output (the docstring of lnverify.oracle).

    m = mean|x - x0|/s is what an error of one unit in the mean does to xhat. With g = |gamma dy|:
    y: |gamma|(|xhat| + m) + |beta|.   dx: (g + mean g + (|xhat| + m) mean(g (|xhat| + m)))/s.
    dweight: sum_b |dy| (|xhat| + m).  dbias: sum_b |dy|.
    """
    st = exact.statistics
    m = (np.abs(st.x - st.x0[:, None]).mean(axis=1) / st.s)[:, None]
    gamma = np.abs(case.vector("weight")) if case.has("weight") else np.ones(case.n)
    beta = np.abs(case.vector("bias")) if case.has("bias") else np.zeros(case.n)
    dy, reach = np.abs(case.matrix("dy")), np.abs(st.xhat) + m
    g = gamma * dy
    with np.errstate(all="ignore"):
        dx = (g + g.mean(axis=1)[:, None] + reach * (g * reach).mean(axis=1)[:, None]) / st.s[:, None]
        dx = np.ldexp(dx, -st.exponent[:, None])
    found = {"y": gamma * reach + beta, "dx": dx, "dweight": (dy * reach).sum(axis=0), "dbias": dy.sum(axis=0)}
    return {name: found[name] for name in outputs(case) if name in found}


def forward_by_integers(case: Case, bits: int) -> list[list[tuple[Fraction, Fraction]]]:
    """Lower and upper end of y by row and column: integers and one integer square root a row."""
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    beta = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    found = []
    for row in case.matrix("x"):
        x = [Fraction(float(v)) for v in row]
        mean = sum(x) / len(x)
        d = [v - mean for v in x]
        total = sum(v * v for v in d) / len(x) + Fraction(case.eps)
        # 1/sqrt(p/q) = sqrt(p q)/p, and floor(sqrt(p q 4^k)) is within one of sqrt(p q) 2^k
        p, q = total.numerator, total.denominator
        k = max(bits - (p * q).bit_length() // 2, 0) + 1
        root = math.isqrt((p * q) << (2 * k))
        low, high = Fraction(root, p << k), Fraction(root + 1, p << k)
        ends = [
            sorted(Fraction(float(w)) * v * r + Fraction(float(b)) for r in (low, high))
            for v, w, b in zip(d, gamma, beta, strict=True)
        ]
        found.append([(end[0], end[1]) for end in ends])
    return found
