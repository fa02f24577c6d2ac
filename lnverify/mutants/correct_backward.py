"""Right layer norms with an unusual backward: other forms of dx, other orders of the column sums."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from lnverify.mutants import Correct
from lnverify.mutants.correct_statistics import kahan_first_axis, welford
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Array,
    Columns,
    Gradient,
    Gradients,
    Problem,
    backward,
    centred,
    down,
    forward,
    pairwise,
    problem,
    serial,
)

# --- dx; g is weight dy -----------------------------------------------------------------------------------


def row_sums(total: Callable[[Array], Array]) -> Gradient:
    """The textbook's two means with another sum."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        dx: Array = rstd * (g - total(g) / p.count - xhat * (total(g * xhat) / p.count))
        return dx

    return run


def distributed(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
    """(rstd / n) (n g - sum(g) - xhat sum(g xhat))."""
    dx: Array = (rstd / p.count) * (p.count * g - pairwise(g) - xhat * pairwise(g * xhat))
    return dx


def from_deviation(form: str) -> Any:
    """Backwards that start from x, mean and rstd rather than from xhat."""

    def run(
        dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float,
        normalized_shape: tuple[int, ...],
        saved: tuple[Array, ...], dtype: str,
    ) -> Gradients:  # fmt: skip
        mean = saved[0].reshape(-1, 1)

        def gradient(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
            d = p.x - mean
            dx: Array
            cube = rstd * rstd * rstd
            if form == "ds-db":
                ds, db = pairwise(g * p.x), pairwise(g)
                b = (db * mean - ds) * cube / p.count
                dx = g * rstd + p.x * b + (-b * mean - db * rstd / p.count)
                return dx
            if form == "rsqrt":
                dx = rstd * (g - pairwise(g) / p.count) - d * (cube * (pairwise(g * d) / p.count))
                return dx
            # The chain rule written out over variance and mean.
            dvariance = p.real(-0.5) * cube * pairwise(g * d)
            dmean = -rstd * pairwise(g) - p.real(2) * dvariance * pairwise(d) / p.count
            dx = g * rstd + dvariance * p.real(2) * d / p.count + dmean / p.count
            return dx

        return backward(gradient)(dy, x, weight, bias, eps, normalized_shape, saved, dtype)

    return run


def in_double(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int,
    ...],
    saved: tuple[Array, ...], dtype: str,
) -> Gradients:  # fmt: skip
    """Sums and products in float64 from the saved statistics."""
    wide = [None if a is None else a.astype(np.float64) for a in (dy, x, weight, bias)]
    statistics = tuple(a.astype(np.float64) for a in saved)
    dx, dweight, dbias = TEXTBOOK_BACKWARD(*wide, eps, normalized_shape, statistics, "float64")
    with np.errstate(all="ignore"):
        narrow = (None if a is None else a.astype(x.dtype) for a in (dweight, dbias))
        return dx.astype(x.dtype), *narrow  # type: ignore[return-value]


# --- column sums ------------------------------------------------------------------------------------------


def columns_by(total: Callable[[Array], Array]) -> Columns:
    """Column sums with another sum along the first axis."""
    return lambda p, dy, xhat: (total(dy * xhat), total(dy))


def serial_rows(a: Array) -> Array:
    """Row after row."""
    total: Array = np.add.accumulate(a, axis=0)[-1] if len(a) else down(a)
    return total


@lru_cache(maxsize=8)
def _order(rows: int) -> Any:
    return np.random.Generator(np.random.PCG64(rows)).permutation(rows)


def row_blocks(a: Array) -> Array:
    """Partial sums of 32 rows, then their sum."""
    if not len(a):
        return down(a)
    return down(np.add.reduceat(a, np.arange(0, len(a), 32), axis=0))


def kahan_rows(a: Array) -> Array:
    """Compensated, over the rows; beyond 4096 rows over blocks of rows first."""
    if len(a) > 4096:
        a = np.add.reduceat(a, np.arange(0, len(a), 16), axis=0)
    return kahan_first_axis(a)


def matmul_rows(a: Array) -> Array:
    """A row of ones times the matrix."""
    total: Array = (np.ones((1, len(a)), a.dtype) @ a)[0]
    return total


def double_rows(a: Array) -> Array:
    """Accumulated in float64."""
    return np.sum(a, axis=0, dtype=np.float64).astype(a.dtype)


# --- memory-efficient: xhat from the output ---------------------------------------------------------------


def save_where_zero(
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
) -> tuple[Array, ...]:
    """The textbook, which also saves xhat in the columns whose weight is 0: y does not know it there."""
    y, mean, rstd = TEXTBOOK_FORWARD(x, normalized_shape, weight, bias, eps, dtype)
    if weight is None:
        return y, mean, rstd
    p = problem(x, normalized_shape, weight, bias, eps, dtype)
    with np.errstate(all="ignore"):
        xhat = (p.x - mean.reshape(p.rows, 1)) * rstd.reshape(p.rows, 1)
    return y, mean, rstd, xhat[:, weight.reshape(p.n) == 0]


def from_output(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int,
    ...],
    saved: tuple[Array, ...], dtype: str, y: Array,
) -> Gradients:  # fmt: skip
    """xhat = (y - bias) / weight from the stored y, as memory-efficient kernels do."""

    def rebuilt(p: Problem, mean: Array, rstd: Array) -> Array:
        stored = p.low(y.reshape(p.rows, p.n))
        stored = stored if p.bias is None else stored - p.bias
        if p.weight is None:
            return stored
        xhat = stored / p.weight
        xhat[:, p.weight == 0] = saved[2]
        return xhat

    return backward(xhat=rebuilt)(dy, x, weight, bias, eps, normalized_shape, saved, dtype)


def _c(id: str, description: str, run: Any = None, **parts: Any) -> Correct:
    return Correct(id, description, TEXTBOOK_FORWARD, run or backward(**parts))


CORRECT = [
    _c("dx-serial-sums", "dx with serial row sums.", gradient=row_sums(serial)),
    _c("dx-distributed", "dx = (rstd / n) (n g - sum g - xhat sum(g xhat)).", gradient=distributed),
    _c("dx-ds-db", "dx from sum(g x) and sum(g), as torch's CPU kernel.", from_deviation("ds-db")),
    _c("dx-rsqrt-cubed", "dx by differentiating rsqrt: rstd^3.", from_deviation("rsqrt")),
    _c("dx-chain-rule", "dx through the gradients of variance and mean.", from_deviation("chain")),
    _c("gradients-float64", "All gradients in float64 from saved statistics.", in_double),
    _c("columns-serial", "Column sums row after row.", columns=columns_by(serial_rows)),
    _c("columns-reversed", "Column sums from the last row.",
       columns=columns_by(lambda a: serial_rows(a[::-1]))),
    _c("columns-shuffled", "Column sums in a random order of rows, as atomics add.",
       columns=columns_by(lambda a: serial_rows(a[_order(len(a))]))),
    _c("columns-kahan", "Compensated column sums.", columns=columns_by(kahan_rows)),
    _c("columns-blocks", "Partial sums of 32 rows.", columns=columns_by(row_blocks)),
    _c("columns-float64", "Column sums in float64.", columns=columns_by(double_rows)),
    _c("columns-matmul", "Column sums as a product with ones.", columns=columns_by(matmul_rows)),
    Correct("welford-saved", "Mean and rstd of Welford's forward serve the backward.",
            forward(welford, apply=centred), backward(gradient=row_sums(serial),
            columns=columns_by(serial_rows))),
    Correct("from-output", "The backward rebuilds xhat from y; it keeps xhat where the weight is 0.",
            save_where_zero, from_output, backward_from="output"),
]  # fmt: skip
