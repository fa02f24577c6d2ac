"""Right layer norms with an unusual forward: other sums, other variance algorithms, other roots and affine forms.

A law that accuses one of these is wrong. Each stays within the first-order bounds for any order of summation
(Higham, Accuracy and Stability of Numerical Algorithms, chapter 4; Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from lnverify.mutants import SINGLE_UP, SIXTEEN, Correct
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Array,
    Gradients,
    Problem,
    Root,
    Statistics,
    Sum,
    affine,
    backward,
    forward,
    pairwise,
    serial,
    two_pass,
)

LANES = 64  # long rows run in lanes, as on any machine; short ones in one

# --- sums -------------------------------------------------------------------------------------------------


def reverse(a: Array) -> Array:
    """Serial sum from the last element."""
    return serial(a[:, ::-1])


@lru_cache(maxsize=8)
def _order(n: int) -> Any:
    return np.random.Generator(np.random.PCG64(n)).permutation(n)


def shuffled(a: Array) -> Array:
    """Serial sum in a fixed random order."""
    return serial(a[:, _order(a.shape[1])])


def kahan_first_axis(a: Array) -> Array:
    """Kahan's compensated sum along the first axis."""
    total = np.zeros_like(a[0]) if len(a) else np.zeros(a.shape[1:], a.dtype)
    lost = np.zeros_like(total)
    for values in a:
        corrected = values - lost
        new = total + corrected
        lost = (new - total) - corrected
        total = new
    return total


def in_lanes(a: Array, lanes: int) -> Array:
    """(rows, n) as (steps, lanes, rows), zeros at the end."""
    steps = -(-a.shape[1] // lanes)
    wide = np.zeros((a.shape[0], steps * lanes), a.dtype)
    wide[:, : a.shape[1]] = a
    return np.ascontiguousarray(wide.reshape(a.shape[0], steps, lanes).transpose(1, 2, 0))


def kahan(a: Array) -> Array:
    """Compensated sum of each row."""
    lanes = 1 if a.shape[1] <= 512 else LANES
    return kahan_first_axis(kahan_first_axis(in_lanes(a, lanes)))[:, None]


def eight_lanes(a: Array) -> Array:
    """Eight interleaved partial sums, zeros in the padding, added at the end."""
    total: Array = np.sum(np.sum(in_lanes(a, 8), axis=0), axis=0)[:, None]
    return total


def by_matmul(a: Array) -> Array:
    """Product with a vector of ones."""
    total: Array = a @ np.ones((a.shape[1], 1), a.dtype)
    return total


# --- statistics -------------------------------------------------------------------------------------------


def shifted(total: Sum) -> Statistics:
    """One pass over x - x[0], whose condition number is moderate wherever x[0] is no outlier."""

    def run(p: Problem) -> tuple[Array, Array]:
        pivot = p.x[:, :1] if p.n else np.zeros((p.rows, 1), p.real)
        moved = p.x - pivot
        mean = total(moved) / p.count
        variance = total(moved * moved) / p.count - mean * mean
        return pivot + mean, np.maximum(variance, p.real(0))

    return run


def corrected(p: Problem) -> tuple[Array, Array]:
    """Two passes, less the square of the residual mean (it corrects a rounded mean), clamped at 0."""
    mean = serial(p.x) / p.count
    deviation = p.x - mean
    residual = serial(deviation)
    variance = (serial(deviation * deviation) - residual * residual / p.count) / p.count
    return mean, np.maximum(variance, p.real(0))


def merge(real: Any, a: tuple[int, Array, Array], b: tuple[int, Array, Array]) -> tuple[int, Array, Array]:
    """Chan's merge of (count, mean, M2)."""
    count = a[0] + b[0]
    if a[0] == 0 or b[0] == 0:
        return a if b[0] == 0 else b
    delta = b[1] - a[1]
    share = real(b[0]) / real(count)
    return count, a[1] + delta * share, a[2] + b[2] + delta * delta * (real(a[0]) * share)


def welford(p: Problem) -> tuple[Array, Array]:
    """Welford's update, element by element; long rows in lanes that are merged with Chan's formula."""
    lanes = 1 if p.n <= 512 else LANES
    steps = p.n // lanes
    parts = [(0, np.zeros(p.rows, p.real), np.zeros(p.rows, p.real))]
    for start, stop, width in ((0, steps * lanes, lanes), (steps * lanes, p.n, 1)):
        columns = in_lanes(p.x[:, start:stop], width)
        mean, squares = np.zeros((2, width, p.rows), p.real)
        for i, values in enumerate(columns):
            delta = values - mean
            mean = mean + delta / p.real(i + 1)
            squares = squares + delta * (values - mean)
        parts += [(len(columns), mean[lane], squares[lane]) for lane in range(width)]
    total = parts[0]
    for part in parts[1:]:
        total = merge(p.real, total, part)
    return total[1][:, None], total[2][:, None] / p.count


def chan_blocks(p: Problem) -> tuple[Array, Array]:
    """Two passes in blocks of 7 (of n/256 in long rows), an uneven tail, merged one after the other."""
    size = max(7, -(-p.n // 256))
    total = (0, np.zeros((p.rows, 1), p.real), np.zeros((p.rows, 1), p.real))
    for start in range(0, p.n, size):
        part = replace(p, x=p.x[:, start : start + size])
        mean, variance = two_pass(serial)(part)
        total = merge(p.real, total, (part.n, mean, variance * part.count))
    return total[1], total[2] / p.count


def masked_lanes(p: Problem) -> tuple[Array, Array]:
    """Eight lanes with a padded tail, masked again after the centring."""
    lanes = in_lanes(p.x, 8)
    inside = (np.arange(lanes.shape[0] * 8) < p.n).reshape(-1, 8, 1)
    mean = np.sum(np.sum(lanes, axis=0), axis=0) / p.count
    deviation = np.where(inside, lanes - mean, p.real(0))
    return mean[:, None], (np.sum(np.sum(deviation * deviation, axis=0), axis=0) / p.count)[:, None]


def one_pass_double(p: Problem) -> tuple[Array, Array]:
    """E[x^2] - E[x]^2, in float64 for data of at most 24 bits."""
    x = p.x.astype(np.float64)
    mean = pairwise(x) / p.n
    variance = np.maximum(pairwise(x * x) / p.n - mean * mean, 0.0)
    return mean.astype(p.real), variance.astype(p.real)


# --- roots and affine forms -------------------------------------------------------------------------------


def newton(steps: int) -> Root:
    """A rough estimate polished by Newton steps."""

    def run(p: Problem, variance: Array) -> Array:
        v = variance + p.eps
        mantissa, exponent = np.frexp(p.real(1) / np.sqrt(v))
        r = np.ldexp(np.round(mantissa * p.real(256)) / p.real(256), exponent)
        usable = np.isfinite(r) & (r > 0)
        for _ in range(steps):
            r = np.where(usable, r * (p.real(1.5) - p.real(0.5) * (v * r) * r), r)
        return r

    return run


def by_power(p: Problem, variance: Array) -> Array:
    """pow(variance + eps, -1/2)."""
    root: Array = np.power(variance + p.eps, p.real(-0.5))
    return root


def norm_form(p: Problem, variance: Array) -> Array:
    """sqrt(n) / sqrt(|d|^2 + n eps)."""
    root: Array = np.sqrt(p.count) / np.sqrt(variance * p.count + p.count * p.eps)
    return root


def affine_form(p: Problem, mean: Array, rstd: Array) -> Array:
    """X rstd - mean rstd."""
    return affine(p, p.x * rstd - mean * rstd)


def fma(a: Array, b: Array, c: Array) -> Array:
    """A b + c with (nearly always) one rounding: in float64 for float32, by Dekker's product for float64."""
    if np.result_type(a, b, c) == np.float32:
        return (a.astype(np.float64) * b.astype(np.float64) + c.astype(np.float64)).astype(np.float32)
    product = a * b
    high = [(big := v * 134217729.0) - (big - v) for v in (a, b)]
    low = [v - h for v, h in zip((a, b), high, strict=True)]
    lost = low[0] * low[1] - (((product - high[0] * high[1]) - low[0] * high[1]) - high[0] * low[1])
    total = product + c
    back = total - product
    exact = total + (((product - (total - back)) + (c - back)) + lost)
    return np.where(np.isfinite(exact), exact, total)


def folded(fused: bool) -> Any:
    """X a + c with a = rstd weight and c = bias - mean a, with or without fused multiply-add."""

    def run(p: Problem, mean: Array, rstd: Array) -> Array:
        a = rstd if p.weight is None else rstd * p.weight
        bias = np.zeros(p.n, p.real) if p.bias is None else p.bias
        c = fma(-mean, a, bias) if fused else bias - mean * a
        return fma(p.x, a, c) if fused else p.x * a + c

    return run


# --- whole forwards ---------------------------------------------------------------------------------------


def upcast(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float, dtype: str
) -> tuple[Array, ...]:
    """Everything in float64, rounded at the end."""
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias)]
    out = TEXTBOOK_FORWARD(wide[0], normalized_shape, wide[1], wide[2], eps, "float64")
    with np.errstate(all="ignore"):
        return tuple(a.astype(x.dtype) for a in out)


def rescaled(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float, dtype: str
) -> tuple[Array, ...]:
    """Each row scaled by a power of two to magnitudes below 1, and eps by its square."""
    shape = tuple(range(x.ndim - len(normalized_shape), x.ndim))
    real, e = x.dtype.type, np.asarray(eps, x.dtype)
    with np.errstate(all="ignore"):
        largest = np.max(np.abs(x), axis=shape, keepdims=True, initial=real(0))
        k = np.frexp(np.where(np.isfinite(largest), largest, real(1)))[1]
        # An eps that overflowed or underflowed on the way would be worse than a row that is not near 1.
        k = np.maximum(k, (np.frexp(e)[1] - 100) // 2)
        small = np.maximum(np.ldexp(e, -2 * k), np.finfo(x.dtype).tiny if eps > 0 else real(0))
        y, mean, rstd = forward(root=lambda p, v: real(1) / np.sqrt(v + small.reshape(p.rows, 1)))(
            np.ldexp(x, -k), normalized_shape, weight, bias, eps, dtype
        )
        return y, np.ldexp(mean, k), np.ldexp(rstd, -k)


def row_loop(
    x: Array, normalized_shape: tuple[int, ...], weight: Array | None, bias: Array | None, eps: float, dtype: str
) -> tuple[Array, ...]:
    """One row at a time (a few rows at a time in batches beyond 2048)."""
    dims = len(normalized_shape)
    rows = int(np.prod(x.shape[: x.ndim - dims], dtype=np.int64))
    flat, chunk = x.reshape(rows, *normalized_shape), max(1, rows // 2048)
    parts = [TEXTBOOK_FORWARD(flat[i : i + chunk], normalized_shape, weight, bias, eps, dtype)
             for i in range(0, rows, chunk)]  # fmt: skip
    if not parts:
        return TEXTBOOK_FORWARD(x, normalized_shape, weight, bias, eps, dtype)
    batch = x.shape[: x.ndim - dims]
    y, mean, rstd = (np.concatenate(part) for part in zip(*parts, strict=True))
    return y.reshape(x.shape), mean.reshape(batch + (1,) * dims), rstd.reshape(batch + (1,) * dims)


def flush(a: Array) -> Array:
    """Subnormals of the working format become 0, as on hardware without them."""
    return np.where(np.abs(a) < np.finfo(a.dtype).tiny, a.dtype.type(0), a)


def flushed(p: Problem) -> Problem:
    """A problem whose inputs were flushed."""
    vectors = [None if v is None else flush(v) for v in (p.weight, p.bias)]
    return replace(p, x=flush(p.x), weight=vectors[0], bias=vectors[1])


def flushed_apply(p: Problem, mean: Array, rstd: Array) -> Array:
    """Every intermediate value flushed."""
    xhat = flush(flush(p.x - mean) * rstd)
    y = xhat if p.weight is None else flush(xhat * p.weight)
    return y if p.bias is None else flush(y + p.bias)


def op_by_op(p: Problem, mean: Array, rstd: Array) -> Array:
    """16-bit code that stores every operation: xhat, weight xhat, and the sum are rounded."""
    xhat = p.low((p.x - mean) * rstd)
    y = xhat if p.weight is None else p.low(xhat * p.weight)
    return y if p.bias is None else p.low(y + p.bias)


def op_by_op_columns(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
    """Products dy xhat rounded to 16 bits, their sum in float32."""
    return np.sum(p.low(dy * xhat), axis=0), np.sum(dy, axis=0)


OP_BY_OP_BACKWARD = backward(
    columns=op_by_op_columns,
    xhat=lambda p, mean, rstd: p.low((p.x - mean) * rstd),
    cotangent=lambda p, dy: dy if p.weight is None else p.low(dy * p.weight),
)


def flush_backward(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int, ...],
    saved: tuple[Array, ...], dtype: str,
) -> Gradients:  # fmt: skip
    """Inputs and results flushed."""
    inputs = [None if a is None else flush(a) for a in (dy, x, weight)]
    out = TEXTBOOK_BACKWARD(*inputs, bias, eps, normalized_shape, saved, dtype)
    return flush(out[0]), *(None if a is None else flush(a) for a in out[1:])  # type: ignore[return-value]


def _c(id: str, description: str, statistics: Statistics | None = None, **kwargs: Any) -> Correct:
    names = ("root", "apply", "finish", "prepare")
    parts = {k: kwargs.pop(k) for k in names if k in kwargs}
    run = kwargs.pop("run", None) or forward(statistics, **parts)
    kwargs.setdefault("backward", TEXTBOOK_BACKWARD)
    return Correct(id, description, run, **kwargs)


CORRECT = [
    _c("two-pass-pairwise", "Mean, then mean squared deviation, pairwise sums."),
    _c("two-pass-serial", "The same with serial sums.", two_pass(serial)),
    _c("two-pass-reversed", "Serial sums from the last element.", two_pass(reverse)),
    _c("two-pass-shuffled", "Serial sums in a random order.", two_pass(shuffled)),
    _c("two-pass-kahan", "Compensated sums.", two_pass(kahan)),
    _c("two-pass-eight-lanes", "Eight interleaved partial sums.", two_pass(eight_lanes)),
    _c("two-pass-matmul", "Sums as products with a vector of ones.", two_pass(by_matmul)),
    _c("two-pass-corrected", "Two passes with the residual correction, clamped at 0.", corrected),
    _c("masked-lanes", "Padded lanes, masked after centring.", masked_lanes),
    _c("welford", "Welford's online update.", welford),
    _c("chan-blocks", "Block statistics merged with Chan's formula, uneven tail.", chan_blocks),
    _c("shifted-pairwise", "One pass over x - x[0], pairwise.", shifted(pairwise)),
    _c("shifted-serial", "One pass over x - x[0], serial.", shifted(serial)),
    _c("float64-one-pass", "E[x^2] - E[x]^2 in float64 for narrower data.", one_pass_double, dtypes=SINGLE_UP),
    _c("float64-upcast", "Everything in float64, rounded at the end.", run=upcast),
    _c("rsqrt-newton", "A rough reciprocal root and three Newton steps.", root=newton(3)),
    _c("rsqrt-power", "pow(variance + eps, -1/2).", root=by_power),
    _c("norm-form", "sqrt(n) d / sqrt(|d|^2 + n eps).", root=norm_form),
    _c("affine-form", "x rstd - mean rstd.", apply=affine_form),
    _c("folded", "x (rstd weight) + (bias - mean rstd weight).", apply=folded(False)),
    _c("folded-fma", "The same with fused multiply-adds.", apply=folded(True)),
    _c("rescaled-rows", "Rows scaled by powers of two, eps with them.", run=rescaled),
    _c("row-loop", "One row at a time.", run=row_loop),
    _c("flush-to-zero", "Subnormals are flushed to 0, in and out.", prepare=flushed, apply=flushed_apply,
       backward=flush_backward),
    _c("op-by-op", "16-bit code that rounds after every operation, statistics in float32.", apply=op_by_op,
       backward=OP_BY_OP_BACKWARD, dtypes=SIXTEEN, rounding_points=True),
]  # fmt: skip
