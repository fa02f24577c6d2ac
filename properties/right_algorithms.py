"""Right layer norms in plain float32, each with a rounding error of its own kind; the bounds must admit them all.

Every array here is float32 (or float64 throughout, if x is), so that NumPy rounds each operation once. Sums are
serial, by a binary tree, or in eight lanes that are added at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Sum = Callable[[Array], Array]


def serial(terms: Array) -> Array:
    """Sum over the last axis, one by one."""
    return np.cumsum(terms, axis=-1, dtype=terms.dtype)[..., -1]


def tree(terms: Array) -> Array:
    """Sum over the last axis by halves."""
    while terms.shape[-1] > 1:
        half = terms.shape[-1] // 2
        rest = terms[..., 2 * half :]
        terms = np.concatenate([terms[..., :half] + terms[..., half : 2 * half], rest], axis=-1)
    return terms[..., 0]


def lanes(terms: Array) -> Array:
    """Sum over the last axis in eight lanes, which are added serially."""
    padded = np.zeros((*terms.shape[:-1], -(-terms.shape[-1] // 8) * 8), dtype=terms.dtype)
    padded[..., : terms.shape[-1]] = terms
    return serial(serial(np.moveaxis(padded.reshape(*terms.shape[:-1], -1, 8), -1, -2)))


def two_pass(x: Array, eps: Array, total: Sum) -> tuple[Array, Array]:
    """Mean, then the mean of squared deviations."""
    n = x.dtype.type(x.shape[-1])
    mean = total(x) / n
    d = x - mean[:, None]
    return mean, 1 / np.sqrt(total(d * d) / n + eps)


def welford(x: Array, eps: Array, total: Sum) -> tuple[Array, Array]:
    """Update of mean and sum of squares, element by element."""
    mean, squares = x[:, 0] * 0, x[:, 0] * 0
    for i in range(x.shape[-1]):
        delta = x[:, i] - mean
        mean = mean + delta / x.dtype.type(i + 1)
        squares = squares + delta * (x[:, i] - mean)
    return mean, 1 / np.sqrt(squares / x.dtype.type(x.shape[-1]) + eps)


def shifted(x: Array, eps: Array, total: Sum) -> tuple[Array, Array]:
    """One pass over x - x[0]."""
    n = x.dtype.type(x.shape[-1])
    d = x - x[:, :1]
    mean = total(d) / n
    var = np.maximum(total(d * d) / n - mean * mean, 0)
    return x[:, 0] + mean, 1 / np.sqrt(var + eps)


def plain(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    """(x - mean) rstd weight + bias."""
    return (x - mean[:, None]) * rstd[:, None] * weight + bias


def affine(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    """(x rstd + (-mean rstd)) weight + bias."""
    return (x * rstd[:, None] + (-mean * rstd)[:, None]) * weight + bias


def folded(x: Array, mean: Array, rstd: Array, weight: Array, bias: Array) -> Array:
    """x (rstd weight) + (bias - mean rstd weight)."""
    slope = rstd[:, None] * weight
    return x * slope + (bias - mean[:, None] * slope)


def textbook(x: Array, mean: Array, rstd: Array, weight: Array, dy: Array, total: Sum) -> tuple[Array, ...]:
    """rstd (g - mean g - xhat mean(g xhat)), sum dy xhat, sum dy."""
    n = x.dtype.type(x.shape[-1])
    xhat, g = (x - mean[:, None]) * rstd[:, None], dy * weight
    c1, c2 = total(g) / n, total(g * xhat) / n
    dx = (g - c1[:, None] - xhat * c2[:, None]) * rstd[:, None]
    return dx, total((dy * xhat).T), total(dy.T)


def raw_sums(x: Array, mean: Array, rstd: Array, weight: Array, dy: Array, total: Sum) -> tuple[Array, ...]:
    """From ds = sum g x and db = sum g, as torch on CPU: dx = a g + b x + c."""
    n = x.dtype.type(x.shape[-1])
    g = dy * weight
    ds, db = total(g * x), total(g)
    b = (db * mean - ds) * rstd * rstd * rstd / n
    c = -b * mean - db * rstd / n
    dx = rstd[:, None] * g + b[:, None] * x + c[:, None]
    return dx, total((dy * ((x - mean[:, None]) * rstd[:, None])).T), total(dy.T)


def reciprocal(x: Array, mean: Array, rstd: Array, weight: Array, dy: Array, total: Sum) -> tuple[Array, ...]:
    """(rstd/n)(n g - sum g - xhat sum(g xhat)), as CUDA kernels write it, on the affine form of xhat."""
    n = x.dtype.type(x.shape[-1])
    xhat, g = x * rstd[:, None] + (-mean * rstd)[:, None], dy * weight
    bracket = n * g - total(g)[:, None] - xhat * total(g * xhat)[:, None]
    return (rstd / n)[:, None] * bracket, total((dy * xhat).T), total(dy.T)


SUMS: dict[str, Sum] = {"serial": serial, "tree": tree, "lanes": lanes}
STATISTICS = {"two-pass": two_pass, "Welford": welford, "shifted": shifted}
OUTPUTS = {"plain": plain, "affine": affine, "folded": folded}
BACKWARDS = {"textbook": textbook, "raw sums": raw_sums, "reciprocal": reciprocal}
