"""Diagnosis: which wrong formula reproduces what a failing subject returned.

A hypothesis is an alternative exact result; it explains an output iff the output lies within the bound around
it in the deciding tier (the bound of the right result, scaled by the alternative's row factor). A cause is a
short phrase, equal for findings of one fault, so that reports group by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, round_values
from lnverify.recipes import normal

Rows = Callable[[Float64Array, Float64Array, int], Float64Array]

BLOCKS = (8, 16, 32, 64, 128, 256, 512, 1024)
ENOUGH = 8  # violations of an output that are diagnosed from scratch
FRESH = 3  # fresh cases on which a hypothesis must hold as well
TELLING = 5  # columns from which on wrong formulas differ
OUTSIDE, MISSING = "eps is added outside the square root", "eps is missing"
EPS_LEFT_OUT = "the backward leaves eps out"
PADDING = "zeros that pad a row enter the variance"
TAIL = "the last elements of a row are left out of the statistics"
DEFAULT_EPS = (1e-5, 1e-6, 1e-12, 1e-3, 1e-8)


def _factors(ev: Evaluation, kind: str) -> Iterator[tuple[str, Float64Array]]:
    """Alternatives that scale xhat of each row by a factor: (cause, factor of shape (rows,))."""
    st, n = ev.exact.statistics, ev.case.n
    var, eps, s = st.var, st.eps, st.s
    with np.errstate(all="ignore"):
        scaled = np.ldexp(1.0, -2 * st.exponent)
        if kind in ("variance", "any"):  # NaN for N = 1, as it is there
            yield "the variance is divided by N - 1", s / np.sqrt(var * n / np.float64(n - 1) + eps)
        if kind == "any":
            for width in sorted({1 << max(n - 1, 0).bit_length(), *(-(-n // b) * b for b in BLOCKS)} - {n}):
                yield PADDING, s / np.sqrt(var + (width - n) / n * st.mu**2 + eps)
        if kind in ("eps", "any"):
            yield OUTSIDE, s / (np.sqrt(var) + np.sqrt(scaled) * ev.case.eps)
            yield MISSING, s / np.sqrt(var)
            yield "eps is added to the count, not to the variance", s / np.sqrt(var * n / (n + ev.case.eps))
            yield "eps is ten times too large", s / np.sqrt(var + 10 * eps)
            yield "eps is ten times too small", s / np.sqrt(var + eps / 10)
            if not 0.5 < ev.case.eps < 2:  # where it is its own square
                yield "eps is squared", s / np.sqrt(var + eps * ev.case.eps)
                yield "eps is its square root", s / np.sqrt(var + scaled * np.sqrt(ev.case.eps))
            for default in DEFAULT_EPS:
                if abs(default - ev.case.eps) > 1e-3 * default:
                    yield f"eps is fixed at {default:g}, the given one is ignored", s / np.sqrt(var + scaled * default)
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
        for main in sorted({case.n - case.n % b for b in (2, 4, *BLOCKS)} - {0, case.n}):
            part = st.x[:, :main]
            for divisor in (main, case.n):
                mean = part.sum(axis=1, keepdims=True) / divisor
                var = ((part - mean) ** 2).sum(axis=1, keepdims=True) / divisor
                yield TAIL, gamma * (st.x - mean) / np.sqrt(var + st.eps[:, None]) + beta
        if FORMATS[case.dtype].precision <= 11:
            for y in _sixteen_bit_statistics(ev, gamma, beta):
                yield STATISTICS_KEPT_16, y
        root = np.sqrt((st.x**2).mean(axis=1) + st.eps)
        yield "the mean is not subtracted (RMS norm)", gamma * st.x / root[:, None] + beta


STATISTICS_KEPT_16 = "mean and variance are kept in 16 bits (?compute=bfloat16 declares that)"


def _sixteen_bit_statistics(ev: Evaluation, gamma: Float64Array, beta: Float64Array) -> Iterator[Float64Array]:
    """y with the mean, the deviations, the variance or 1/s rounded to the dtype of x, in the usual combinations."""
    case = ev.case

    def low(v: Float64Array) -> Float64Array:
        return round_values(v, case.dtype)

    x = case.matrix("x")
    true = x.mean(axis=1, keepdims=True)
    mean = low(true)
    for shift, around in enumerate((x - true, x - mean, low(x - mean))):
        square = around**2
        for step, var in enumerate((square.mean(axis=1, keepdims=True), low(square.mean(axis=1, keepdims=True)),
                                    low(low(square).mean(axis=1, keepdims=True)))):  # fmt: skip
            for last, rstd in enumerate((1 / np.sqrt(var + case.eps), low(1 / np.sqrt(low(var + case.eps))))):
                if shift or step or last:  # something is kept in 16 bits
                    yield gamma * low(around * rstd) + beta
                    yield gamma * (around * rstd) + beta


def explained(ev: Evaluation, kind: str, tier: str = "det") -> list[str]:
    """The row-factor hypotheses of a kind ('eps', 'variance', 'any') that explain y."""
    return [cause for cause, alternative in _scaled(ev, kind) if _fits(ev, "y", alternative, tier)]


def _scaled(ev: Evaluation, kind: str) -> Iterator[tuple[str, Float64Array]]:
    """The alternatives of _factors as (cause, y)."""
    case, st = ev.case, ev.exact.statistics
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    beta = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    for cause, factor in _factors(ev, kind):
        with np.errstate(all="ignore"):
            yield cause, gamma * st.xhat * factor[:, None] + beta


def _fits(ev: Evaluation, output: str, alternative: Float64Array, tier: str = "det") -> bool:
    """Whether a returned output lies within the bound around the alternative on every judged row.

    For y the bound is scaled as the alternative's row is to the exact one; in 16 bits the rounding points are
    admitted; 8u|alternative| covers its own evaluation in float64. Where the alternative is no number, the returned
    value must be none either.
    """
    got = ev.output(output)
    if got is None or got.size != alternative.size:
        return False
    values = got.values.reshape(alternative.shape)
    fmt = FORMATS[got.dtype]
    with np.errstate(all="ignore"):
        bound = ev.bound(output, tier, fmt.precision <= 11 and output in ("y", "dx", "dweight"))
        if output == "y":
            size = np.abs(ev.pair(output).hi).max(axis=1, keepdims=True)
            scale = np.maximum(np.abs(alternative).max(axis=1, keepdims=True) / np.where(size > 0, size, 1.0), 1.0)
            bound = bound * np.where(np.isfinite(scale), scale, 1.0)
        bound = bound + 8 * ev.precision.compute.u * np.abs(alternative)
        apart = distance(values, alternative, 0.0, fmt)
        near = np.where(np.isfinite(alternative), apart <= bound, ~np.isfinite(values))
        skipped = ev.skipped(output, values)
        return bool((~skipped).any()) and bool((skipped | near).all())


def fresh(ev: Evaluation, seed: int, rows: int = 0, columns: int = 0) -> Evaluation:
    """The same subject on an ordinary draw in the shape (at most 4 rows, at least TELLING columns, or as many as asked
    for), eps and affine part of the case. In every third one the variance is near eps, where the place and the value of
    eps tell.

    Rows of one or two numbers tell nothing apart: xhat is 0, or 1 and -1, whatever the formula.
    """
    case = ev.case
    fixed = ev.subject.capabilities.fixed_shape
    columns = columns or TELLING
    shape = case.normalized_shape if case.n >= columns or fixed else (columns,)
    rows = rows or min(max(case.rows, 1), 4)
    smallest = 2.0**-6 if case.dtype == "float16" else 1e-12
    scale = max(float(np.sqrt(case.eps)), smallest) if seed % 3 == 2 and 0 < case.eps < 1e4 else 1.0
    arrays = {"x": FloatArray.of((normal(1000 + seed, (rows, *shape)) + 0.5) * scale, case.dtype)}
    for number, name in enumerate(("weight", "bias")):
        if case.has(name):
            values = normal(2000 + 10 * seed + number, shape)
            arrays[name] = FloatArray.of(values + np.copysign(0.5, values), case.arrays[name].dtype)
    if case.has("dy"):
        arrays["dy"] = FloatArray.of(normal(3000 + seed, (rows, *shape)), case.dtype)
    return ev.again(replace(case, arrays=arrays, normalized_shape=shape, layouts={}, recipe=None))


Alternatives = Callable[[Evaluation], Iterator[tuple[str, Float64Array]]]


IN_FLOAT32 = "float64 is computed in float32 (where that is meant, leave it out with --dtype)"


def computed_in_float32(ev: Evaluation, output: str = "y") -> bool:
    """Whether a subject that is asked in float64 returns numbers of float32: on a fresh case, and some of them."""
    if ev.case.dtype != "float64":
        return False
    got = fresh(ev, 0, rows=4).output(output)
    values = got.values[np.isfinite(got.values) & (got.values != 0)] if got is not None else np.empty(0)
    return values.size > TELLING and bool((round_values(values, "float32") == values).all())


def _confirmed(ev: Evaluation, output: str, alternatives: Alternatives) -> str:
    """The first hypothesis that explains the output on this case and on three fresh ones, or ''.

    A subject with a fault violates hundreds of cases: after ENOUGH of them only what was confirmed before is tried.
    """
    known = ev.evaluator.causes.setdefault(output, Counter())
    settled = known.total() >= ENOUGH
    if settled and set(known) == {""}:
        return ""
    cause = ""
    if IN_FLOAT32 in known or (not settled and computed_in_float32(ev, output)):
        known[IN_FLOAT32] += 1
        return IN_FLOAT32
    for name, alternative in alternatives(ev):
        if (settled and name not in known) or not _fits(ev, output, alternative):
            continue
        others = [] if settled else [fresh(ev, seed) for seed in range(FRESH)]
        numbers = settled or np.isfinite(alternative).any()
        if not numbers and all(_fits(other, output, other.pair(output).hi) for other in others):
            continue  # no number in the place of no number, and right elsewhere: that tells nothing
        if all(
            any(_fits(other, output, again) for again_name, again in alternatives(other) if again_name == name)
            for other in others
        ):
            cause = name
            break
    known[cause] += 1
    return cause


def forward_cause(ev: Evaluation) -> str:
    """A phrase for what is wrong with y; 'y is wrong' where no hypothesis explains it."""

    def alternatives(run: Evaluation) -> Iterator[tuple[str, Float64Array]]:
        yield from _scaled(run, "any")
        yield from _alternatives(run)

    return _confirmed(ev, "y", alternatives) or "y is wrong"


def dx_cause(ev: Evaluation) -> str:
    """A phrase for what is wrong with dx: a term of the backward that is missing or misplaced."""
    return _confirmed(ev, "dx", _backward_alternatives) or "dx is wrong"


STATISTICS_16 = "the backward uses mean and rstd that were rounded to 16 bits"


def rounded_statistics(ev: Evaluation, output: str) -> bool:
    """Whether dx or dweight is explained by statistics that were rounded to the dtype of x."""
    if FORMATS[ev.case.dtype].precision > 11:
        return False
    return _fits(ev, output, _rounded_backward(ev)[output])


EMPTY_REFUSED, EMPTY_WRONG = "an empty batch is refused", "an empty batch is handled wrongly"
SUMS_16 = "dweight and dbias are summed over the rows in 16 bits"


def _rounded_backward(ev: Evaluation) -> dict[str, Float64Array]:
    case = ev.case
    dy = case.matrix("dy")
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    with np.errstate(all="ignore"):
        mean = round_values(ev.pair("mean").hi, case.dtype)[:, None]
        rstd = round_values(ev.pair("rstd").hi, case.dtype)[:, None]
        xhat = (case.matrix("x") - mean) * rstd
        g = gamma * dy
        c1, c2 = g.mean(axis=1, keepdims=True), (g * xhat).mean(axis=1, keepdims=True)
        return {"dx": rstd * (g - c1 - xhat * c2), "dweight": (dy * xhat).sum(axis=0)}


def _backward_alternatives(ev: Evaluation) -> Iterator[tuple[str, Float64Array]]:
    """Wrong results for dx: (cause, dx of shape (rows, n))."""
    case, st = ev.case, ev.exact.statistics
    gamma = case.vector("weight") if case.has("weight") else np.ones(case.n)
    dy, n = case.matrix("dy"), case.n
    g = gamma * dy

    def mean(v: Float64Array) -> Float64Array:
        return v.mean(axis=1, keepdims=True)

    def inner(v: Float64Array) -> Float64Array:
        return v - mean(v) - st.xhat * mean(v * st.xhat)

    with np.errstate(all="ignore"):
        r = np.ldexp(1 / st.s, -st.exponent)[:, None]
        c1, c2 = mean(g), mean(g * st.xhat)
        bare = np.ldexp(1 / np.sqrt(st.var), -st.exponent)[:, None]
        if FORMATS[case.dtype].precision <= 11:
            yield STATISTICS_16, _rounded_backward(ev)["dx"]
        rest = np.where(st.var > 0, np.sqrt((st.var + st.eps) / st.var), np.inf)[:, None] * st.xhat
        if case.has("weight"):
            yield "weight is applied outside the means of the backward", r * gamma * inner(dy)
            yield "dx lacks weight", r * inner(dy)
            yield "weight + 1 and weight are mixed up in dx", r * inner((gamma + 1) * dy)
            yield "weight + 1 and weight are mixed up in dx", r * inner((gamma - 1) * dy)
        yield "dx treats mean and variance as constants", r * g
        yield "dx lacks the mean of weight*dy", r * (g - st.xhat * c2)
        yield "dx lacks the term of the variance", r * (g - c1)
        yield "the backward divides by N - 1", r * (g - c1 - st.xhat * c2 * n / max(n - 1, 1))
        yield EPS_LEFT_OUT, bare * (g - c1 - rest * mean(g * rest))
