"""Diagnosis: which wrong formula reproduces what a failing subject returned.

A hypothesis is an alternative exact result; it explains an output iff the output lies within the bound around
it in the deciding tier (the bound of the right result, scaled by the alternative's row factor). A cause is a
short phrase, equal for findings of one fault, so that reports group by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, distance

Rows = Callable[[Float64Array, Float64Array, int], Float64Array]

DEFAULT_EPS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8)


def _factors(ev: Evaluation, kind: str) -> Iterator[tuple[str, Float64Array]]:
    """Alternatives that scale xhat of each row by a factor: (cause, factor of shape (rows,))."""
    st, n = ev.exact.statistics, ev.case.n
    var, eps, s = st.var, st.eps, st.s
    with np.errstate(all="ignore"):
        scaled = np.ldexp(1.0, -2 * st.exponent)
        if kind in ("eps", "any"):
            yield "eps is added outside the square root", s / (np.sqrt(var) + np.sqrt(scaled) * ev.case.eps)
            yield "eps is missing", s / np.sqrt(var)
            yield "eps is added to the count, not to the variance", s / np.sqrt(var * n / (n + ev.case.eps))
            yield "eps is ten times too large", s / np.sqrt(var + 10 * eps)
            yield "eps is ten times too small", s / np.sqrt(var + eps / 10)
            yield "eps is squared", s / np.sqrt(var + eps * ev.case.eps)
            yield "eps is its square root", s / np.sqrt(var + scaled * np.sqrt(ev.case.eps))
            for default in DEFAULT_EPS:
                if abs(default - ev.case.eps) > 1e-3 * default:
                    yield f"eps is fixed at {default:g}, the given one is ignored", s / np.sqrt(var + scaled * default)
        if kind in ("variance", "any") and n > 1:
            yield "the variance is divided by N - 1", s / np.sqrt(var * n / (n - 1) + eps)
        if kind == "any":
            yield "the mean is not subtracted in the variance", s / np.sqrt(var + st.mu**2 + eps)
            yield "the variance is used in the place of its square root", np.ldexp(s / (var + eps), -st.exponent)


def _alternatives(ev: Evaluation) -> Iterator[tuple[str, Float64Array]]:
    """Other wrong forward results: (cause, y of shape (rows, n))."""
    case, st = ev.case, ev.exact.statistics
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    beta = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    with np.errstate(all="ignore"):
        if case.has("weight"):
            yield "weight is ignored", st.xhat + beta
            yield "weight + 1 is used in the place of weight", (1 + gamma) * st.xhat + beta
            yield "the absolute value of weight is used", np.abs(gamma) * st.xhat + beta
        if case.has("bias"):
            yield "bias is ignored", gamma * st.xhat
            yield "bias is added before the weight is applied", gamma * (st.xhat + beta)
        root = np.sqrt((st.x**2).mean(axis=1) + st.eps)
        yield "the mean is not subtracted (RMS norm)", gamma * st.x / root[:, None] + beta


def explains(ev: Evaluation, kind: str, tier: str = "det") -> str:
    """The first row-factor hypothesis of a kind ('eps', 'variance', 'any') that explains y, or ''."""
    got = ev.output("y")
    if got is None or got.size != ev.case.size:
        return ""
    case, st = ev.case, ev.exact.statistics
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    beta = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    for cause, factor in _factors(ev, kind):
        with np.errstate(all="ignore"):
            scaled = np.where(np.isfinite(factor), factor, np.nan)[:, None]
            if _fits(ev, got.values.reshape(case.rows, case.n), gamma * st.xhat * scaled + beta, np.abs(scaled), tier):
                return cause
    return ""


def _fits(ev: Evaluation, got: Float64Array, alternative: Float64Array, scale: Float64Array | float, tier: str) -> bool:
    """Whether y lies within the bound around the alternative on every judged row; in 16 bits with the rounding
    points admitted. 8u|y| covers the alternative's own evaluation in float64."""
    fmt = FORMATS[ev.case.dtype]
    points = fmt.precision <= 11
    with np.errstate(all="ignore"):
        bound = ev.bound("y", tier, points) * np.maximum(scale, 1.0) + 8 * ev.precision.compute.u * np.abs(alternative)
        apart = distance(got, alternative, 0.0, fmt)
        skipped = ev._skipped("y", got) | np.isnan(alternative)
        return bool((~skipped).any()) and bool((skipped | (apart <= bound)).all())


def forward_cause(ev: Evaluation) -> str:
    """A phrase for what is wrong with y; 'y is wrong' where no hypothesis explains it."""
    cause = explains(ev, "any")
    if cause:
        return cause
    got = ev.output("y")
    if got is not None and got.size == ev.case.size:
        values = got.values.reshape(ev.case.rows, ev.case.n)
        for name, alternative in _alternatives(ev):
            if _fits(ev, values, alternative, 1.0, "det"):
                return name
    return "y is wrong"


def dx_cause(ev: Evaluation) -> str:
    """A phrase for what is wrong with dx: a term of the backward that is missing or misplaced."""
    got = ev.output("dx")
    case, st = ev.case, ev.exact.statistics
    if got is None or got.size != case.size:
        return "dx is wrong"
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    dy = case.matrix("dy")
    g = gamma * dy
    n = case.n

    def mean(v: Float64Array) -> Float64Array:
        return v.mean(axis=1, keepdims=True)

    with np.errstate(all="ignore"):
        r = np.ldexp(1 / st.s, -st.exponent)[:, None]
        c1, c2 = mean(g), mean(g * st.xhat)
        full = g - c1 - st.xhat * c2
        bare = np.ldexp(1 / np.sqrt(st.var), -st.exponent)[:, None]
        ratio = np.where(st.var > 0, (st.var + st.eps) / st.var, np.inf)[:, None]
        tries = (
            ("weight is applied outside the means of the backward", r * gamma * (dy - mean(dy) - st.xhat * mean(dy * st.xhat))),
            ("dx treats mean and variance as constants", r * g),
            ("dx lacks the mean of weight*dy", r * (g - st.xhat * c2)),
            ("dx lacks the term of the variance", r * (g - c1)),
            ("dx lacks weight", r * (dy - mean(dy) - st.xhat * mean(dy * st.xhat))),
            ("weight + 1 and weight are mixed up in dx", full * r + r * (dy - mean(dy) - st.xhat * mean(dy * st.xhat))),
            ("the backward divides by N - 1", r * (g - c1 - st.xhat * c2 * n / max(n - 1, 1))),
            ("the backward leaves eps out", bare * (g - c1 - st.xhat * np.sqrt(ratio) * mean(g * st.xhat * np.sqrt(ratio)))),
        )
        values = got.values.reshape(case.rows, case.n)
        fmt = FORMATS[got.dtype]
        bound = ev.bound("dx", "det", fmt.precision <= 11)
        skipped = ev._skipped("dx", values)
        for cause, alternative in tries:
            apart = distance(values, alternative, 0.0, fmt)
            off = skipped | np.isnan(alternative) | (apart <= bound + 8 * ev.precision.compute.u * np.abs(alternative))
            if bool((~skipped).any()) and bool(off.all()):
                return cause
    return "dx is wrong"
