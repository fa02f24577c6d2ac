"""Parts of layer norms in NumPy: sums, statistics, roots, affine forms, backward forms.

A forward is `statistics -> root -> apply`, a backward is `gradient of x` and `column sums`; each part is a
small function of a Problem, so that an implementation, right or wrong, differs from the textbook in one of
them. Everything runs in `Problem.real`: float64, or float32 for float32 and for both 16-bit formats (then the
caller rounds the result once). Rows lie in the first axis of every matrix, the n elements that share one
mean in the second; statistics have shape (rows, 1). Nothing warns: overflow and 0/0 are results here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt

from lnverify.floats import round_values

Array = npt.NDArray[Any]
Forward = Callable[..., tuple[Array, ...]]
Gradients = tuple[Array, Array | None, Array | None]
Backward = Callable[..., Gradients]


@dataclass(frozen=True, eq=False)
class Problem:
    """One call, with x as a (rows, n) matrix and the parameters as (n,) vectors."""

    x: Array
    weight: Array | None
    bias: Array | None
    eps: np.floating[Any]  # in `real`
    real: type[np.floating[Any]]  # np.float64 or np.float32
    dtype: str  # storage dtype
    shape: tuple[int, ...]  # of x
    normalized_shape: tuple[int, ...]

    @property
    def n(self) -> int:
        """Elements in a row."""
        return int(self.x.shape[1])

    @property
    def rows(self) -> int:
        """Rows."""
        return int(self.x.shape[0])

    @property
    def count(self) -> np.floating[Any]:
        """n in working precision: an int would leave float32 arrays alone too, but not float32 scalars."""
        return self.real(self.n)

    def low(self, values: Array, dtype: str | None = None) -> Array:
        """Values rounded once to a storage dtype (its own by default), still held in working precision."""
        return round_values(values, dtype or self.dtype).astype(self.real)

    def per_row(self, values: Array) -> Array:
        """Statistics of shape (rows, 1) as (*batch, 1, ..., 1), as frameworks return them."""
        dims = len(self.normalized_shape)
        return values.reshape(self.shape[: len(self.shape) - dims] + (1,) * dims)


Sum = Callable[[Array], Array]
Statistics = Callable[[Problem], tuple[Array, Array]]
Root = Callable[[Problem, Array], Array]
Apply = Callable[[Problem, Array, Array], Array]
Finish = Callable[[Problem, Array], Array]
Gradient = Callable[[Problem, Array, Array, Array], Array]
Columns = Callable[[Problem, Array, Array], tuple[Array, Array]]


def problem(
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
) -> Problem:
    """Lay a call out as a Problem; counts are explicit, since -1 cannot be inferred for zero rows."""
    real: type[np.floating[Any]] = np.float64 if dtype == "float64" else np.float32
    n = prod(normalized_shape)
    rows = prod(x.shape[: x.ndim - len(normalized_shape)])
    return Problem(
        x=x.reshape(rows, n),
        weight=None if weight is None else weight.reshape(n),
        bias=None if bias is None else bias.reshape(n),
        eps=real(eps),
        real=real,
        dtype=dtype,
        shape=tuple(x.shape),
        normalized_shape=tuple(normalized_shape),
    )


# --- sums of each row -------------------------------------------------------------------------------------


def pairwise(a: Array) -> Array:
    """Sum of each row as NumPy does it: blocks of 128 in eight lanes, merged pairwise."""
    total: Array = np.sum(a, axis=1, keepdims=True)
    return total


def serial(a: Array) -> Array:
    """Sum of each row from left to right, every partial sum rounded."""
    if a.shape[1] == 0:
        return pairwise(a)
    return np.add.accumulate(a, axis=1)[:, -1:]


def down(a: Array) -> Array:
    """Sum of each column, row after row."""
    total: Array = np.sum(a, axis=0)
    return total


def gathered(p: Problem, values: Array) -> Array:
    """Numbers of the rows, gathered by a product with a 0/1 matrix, 16 rows at a time: 0 * NaN reaches other rows."""
    tiles = np.zeros((-(-p.rows // 16), 16, 1), dtype=p.real)
    tiles.reshape(-1, 1)[: p.rows] = values
    found: Array = (np.eye(16, dtype=p.real) @ tiles).reshape(-1, 1)[: p.rows]
    return found


# --- statistics: mean and variance ------------------------------------------------------------------------


def two_pass(total: Sum = pairwise) -> Statistics:
    """Mean, then the mean of the squared deviations from it."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean = total(p.x) / p.count
        deviation = p.x - mean
        return mean, total(deviation * deviation) / p.count

    return run


# --- root: 1/sqrt(variance + eps) -------------------------------------------------------------------------


def inverse_root(p: Problem, variance: Array) -> Array:
    """1 / sqrt(variance + eps)."""
    root: Array = p.real(1) / np.sqrt(variance + p.eps)
    return root


# --- apply: from statistics to y --------------------------------------------------------------------------


def affine(p: Problem, xhat: Array) -> Array:
    """Weight times xhat plus bias, where they are present."""
    y = xhat if p.weight is None else xhat * p.weight
    return y if p.bias is None else y + p.bias


def centred(p: Problem, mean: Array, rstd: Array) -> Array:
    """(x - mean) rstd, then the affine map."""
    return affine(p, (p.x - mean) * rstd)


def forward(
    statistics: Statistics | None = None,
    root: Root = inverse_root,
    apply: Apply = centred,
    finish: Finish | None = None,
    prepare: Callable[[Problem], Problem] | None = None,
    save: Callable[[Problem, Array, Array], tuple[Array, Array]] | None = None,
) -> Forward:
    """Put a forward together; what is left out is the textbook's. `save` changes what the backward gets."""
    compute = statistics or two_pass()

    def run(
        x: Array,
        normalized_shape: tuple[int, ...],
        weight: Array | None,
        bias: Array | None,
        eps: float,
        dtype: str,
    ) -> tuple[Array, ...]:
        with np.errstate(all="ignore"):
            p = problem(x, normalized_shape, weight, bias, eps, dtype)
            p = p if prepare is None else prepare(p)
            mean, variance = compute(p)
            rstd = root(p, variance)
            y = apply(p, mean, rstd)
            y = y if finish is None else finish(p, y)
            if save is not None:
                mean, rstd = save(p, mean, rstd)
            return y.reshape(p.shape), p.per_row(mean), p.per_row(rstd)

    return run


# --- backward ---------------------------------------------------------------------------------------------


def two_means(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
    """rstd (g - mean(g) - xhat mean(g xhat)), with g = weight dy."""
    c1 = pairwise(g) / p.count
    c2 = pairwise(g * xhat) / p.count
    dx: Array = rstd * (g - c1 - xhat * c2)
    return dx


def column_sums(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
    """Sum over the rows of dy xhat (weight) and of dy (bias)."""
    return down(dy * xhat), down(dy)


def normalised(p: Problem, mean: Array, rstd: Array) -> Array:
    """Normalised input from the saved statistics."""
    return (p.x - mean) * rstd


def scaled(p: Problem, dy: Array) -> Array:
    """Weight times dy: the cotangent of xhat."""
    return dy if p.weight is None else dy * p.weight


def backward(
    gradient: Gradient = two_means,
    columns: Columns = column_sums,
    xhat: Callable[[Problem, Array, Array], Array] = normalised,
    cotangent: Callable[[Problem, Array], Array] = scaled,
    saved_as: Callable[[Problem, Array, Array], tuple[Array, Array]] | None = None,
) -> Backward:
    """Put a backward together from saved mean and rstd; `saved_as` changes what is read back."""

    def run(
        dy: Array,
        x: Array,
        weight: Array | None,
        bias: Array | None,
        eps: float,
        normalized_shape: tuple[int, ...],
        saved: tuple[Array, ...],
        dtype: str,
    ) -> Gradients:
        with np.errstate(all="ignore"):
            p = problem(x, normalized_shape, weight, bias, eps, dtype)
            mean, rstd = saved[0].reshape(p.rows, 1), saved[1].reshape(p.rows, 1)
            if saved_as is not None:
                mean, rstd = saved_as(p, mean, rstd)
            d = dy.reshape(p.rows, p.n)
            hat = xhat(p, mean, rstd)
            dx = gradient(p, cotangent(p, d), hat, rstd)
            dweight, dbias = columns(p, d, hat)
            return finished(p, dx, dweight, dbias)

    return run


def finished(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """Gradients in the shapes of their arguments, None where the argument is absent."""
    shape = p.normalized_shape
    return (
        dx.reshape(p.shape),
        None if p.weight is None else dweight.reshape(shape),
        None if p.bias is None else dbias.reshape(shape),
    )


TEXTBOOK_FORWARD = forward()
TEXTBOOK_BACKWARD = backward()
