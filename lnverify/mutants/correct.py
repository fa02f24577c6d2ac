"""Right layer norms with an unusual forward: other sums, statistics, roots and affine forms.

A law that accuses one of these is wrong. Each stays within the first-order bounds for any order of summation
(Higham, Accuracy and Stability of Numerical Algorithms, chapter 4; Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.mutants import SINGLE_UP, SIXTEEN, Correct
from lnverify.mutants.correct_statistics import (
    by_matmul,
    chan_blocks,
    corrected,
    eight_lanes,
    kahan,
    masked_lanes,
    one_pass_double,
    reverse,
    shifted,
    shuffled,
    welford,
)
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Array,
    Gradients,
    Problem,
    Root,
    Statistics,
    affine,
    backward,
    forward,
    pairwise,
    serial,
    two_pass,
)

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
        result: Array = r
        return result

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
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
) -> tuple[Array, ...]:
    """Everything in float64, rounded at the end."""
    wide = [None if a is None else a.astype(np.float64) for a in (x, weight, bias)]
    out = TEXTBOOK_FORWARD(wide[0], normalized_shape, wide[1], wide[2], eps, "float64")
    with np.errstate(all="ignore"):
        return tuple(a.astype(x.dtype) for a in out)


def rescaled(
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
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
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
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
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int,
    ...],
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
    _c("float64-one-pass", "E[x^2] - E[x]^2 in float64 for narrower data.", one_pass_double,
       dtypes=SINGLE_UP),
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
