"""Right ways to sum a row and to compute its mean and variance.

Each stays within the first-order bounds for any order of summation (Higham,
Accuracy and Stability of Numerical
Algorithms, chapter 4; Chan, Golub and LeVeque 1983).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from lnverify.mutants.parts import Array, Problem, Statistics, Sum, pairwise, serial, two_pass

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
