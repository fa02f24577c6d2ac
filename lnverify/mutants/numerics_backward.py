"""Mutants with a right forward and a wrong backward: the formula of dx, the column sums, what was saved.

With g = weight dy and means over the row, dx = rstd (g - mean(g) - xhat mean(g xhat)); dweight and dbias are
the sums of dy xhat and of dy over the rows.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.mutants import GRADIENTS, SIXTEEN, Mutant, Sample
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Array,
    Backward,
    Gradient,
    Gradients,
    Problem,
    backward,
    forward,
    gathered,
    pairwise,
    scaled,
    two_means,
)

# --- dx ---------------------------------------------------------------------------------------------------


def means(first: float = 1.0, second: float = 1.0, divisor: int = 0, keep: int = 0) -> Gradient:
    """Both means with factors, the second over n + `divisor`, and the last n % keep elements left out."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        main = p.n - p.n % keep if keep and p.n > keep else p.n
        product = g * xhat
        c1 = p.real(first) * pairwise(g[:, :main]) / p.count
        c2 = p.real(second) * pairwise(product[:, :main]) / p.real(p.n + divisor)
        dx: Array = rstd * (g - c1 - xhat * c2)
        return dx

    return run


def weight_outside(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
    """The weight multiplies the projected dy: it belongs inside the two means (g here is the bare dy)."""
    return scaled(p, two_means(p, g, xhat, rstd))


def no_rstd(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
    """The factor rstd in front is forgotten."""
    return two_means(p, g, xhat, np.ones_like(rstd))


def tile_sums(tile: int) -> Gradient:
    """The sums of dx run over all rows of a full tile."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        full = p.rows - p.rows % tile
        c1, c2 = pairwise(g) / p.count, pairwise(g * xhat) / p.count
        for c in (c1, c2):
            tiles = c[:full].reshape(-1, tile, 1)
            c[:full] = np.broadcast_to(np.sum(tiles, axis=1, keepdims=True), tiles.shape).reshape(full, 1)
        dx: Array = rstd * (g - c1 - xhat * c2)
        return dx

    return run


def rows_beyond(most: int) -> Gradient:
    """dx of rows past the launch grid is not computed."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        dx = two_means(p, g, xhat, rstd)
        dx[most:] = 0
        return dx

    return run


def dy_selector(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
    """The means of dx are gathered by a product with a 0/1 matrix."""
    c1, c2 = gathered(p, pairwise(g) / p.count), gathered(p, pairwise(g * xhat) / p.count)
    dx: Array = rstd * (g - c1 - xhat * c2)
    return dx


def shifted_weight(p: Problem, dy: Array) -> Array:
    """A weight stored as an offset from 1: the backward was not told to add the 1."""
    return scaled(p if p.weight is None else replace(p, weight=p.weight - p.real(1)), dy)


def bare_std(p: Problem, mean: Array, rstd: Array) -> tuple[Array, Array]:
    """1/std without eps in the backward."""
    deviation = p.x - mean
    return mean, p.real(1) / np.sqrt(pairwise(deviation * deviation) / p.count)


def unbiased_std(p: Problem, mean: Array, rstd: Array) -> tuple[Array, Array]:
    """Standard deviation with n - 1 in the backward only."""
    deviation = p.x - mean
    return mean, p.real(1) / np.sqrt(pairwise(deviation * deviation) / p.real(p.n - 1) + p.eps)


def from_output(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int,
    ...],
    saved: tuple[Array, ...], dtype: str, y: Array,
) -> Gradients:  # fmt: skip
    """Rebuild xhat as (y - bias) / weight, from the stored y: 0/0 where a weight is 0."""

    def rebuilt(p: Problem, mean: Array, rstd: Array) -> Array:
        stored = p.low(y.reshape(p.rows, p.n))
        stored = stored if p.bias is None else stored - p.bias
        return stored if p.weight is None else stored / p.weight

    return backward(xhat=rebuilt)(dy, x, weight, bias, eps, normalized_shape, saved, dtype)


def dy_in_place(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int,
    ...],
    saved: tuple[Array, ...], dtype: str,
) -> Gradients:  # fmt: skip
    """The product with the weight is formed in the caller's dy."""
    gradients = TEXTBOOK_BACKWARD(dy, x, weight, bias, eps, normalized_shape, saved, dtype)
    if weight is not None and dy.flags.writeable:
        with np.errstate(all="ignore"):
            dy *= weight
    return gradients


def save_rounded(dtype: str) -> Any:
    """Saved statistics rounded to 16 bits ('' for the storage dtype); the forward used the exact ones."""
    return forward(save=lambda p, mean, rstd: (p.low(mean, dtype), p.low(rstd, dtype)))


OFFSET = Sample(mean=100.0)
PLAIN = Sample(weight="ones")


def entry(id: str, bug: str, threads: tuple[str, ...] = (), trigger: Sample | None = None,
       affected: tuple[str, ...] = ("dx",), run: Backward = TEXTBOOK_BACKWARD,
       **kwargs: Any) -> Mutant:  # fmt: skip
    """A mutant with a right forward, from a backward or from the parts of one that differ."""
    parts = {k: kwargs.pop(k) for k in ("gradient", "columns", "xhat", "cotangent", "saved_as") if k in kwargs}
    saved = kwargs.pop("forward", TEXTBOOK_FORWARD)
    kwargs.setdefault("laws", ("LN2",))
    return Mutant(id, bug, threads, saved, backward(**parts) if parts else run, affected=affected,
                  trigger=trigger or Sample(), **kwargs)  # fmt: skip


MUTANTS = [
    entry("weight-outside-sums", "The weight multiplies the projected dy, outside the two means.",
          ("openxla/xla#8225",), gradient=weight_outside, cotangent=lambda p, dy: dy, ordinary=PLAIN),
    entry("mean-of-g-dropped", "mean(g) is missing from dx.", (), gradient=means(first=0), hidden=False),
    entry("mean-of-g-xhat-dropped", "xhat mean(g xhat) is missing from dx.", (), gradient=means(second=0),
          hidden=False),
    entry("stop-gradient", "Mean and rstd are taken as constants in dx.",
          ("openxla/xla#8225", "Oneflow-Inc/oneflow#6149"), gradient=means(0, 0), hidden=False),
    entry("second-mean-unbiased", "mean(g xhat) is divided by n - 1.", (), Sample(shape=(8,)),
          gradient=means(divisor=-1), ordinary=Sample(shape=(768,))),
    entry("second-mean-sign", "xhat mean(g xhat) is added, not subtracted.", (), gradient=means(second=-1),
          hidden=False),
    entry("gradient-tail-dropped", "The last n % 8 elements are left out of both means.",
          ("deepspeedai/DeepSpeed#1480",), Sample(shape=(65,)), gradient=means(keep=8)),
    entry("gradient-without-rstd", "The factor rstd of dx is missing: right at unit variance.", (),
          Sample(scale=3.0), gradient=no_rstd, hidden=False),
    entry("eps-forgotten-in-backward", "The backward divides by the bare std: NaN on constant rows.",
          ("FluxML/Flux.jl#2096", "tracel-ai/burn#1992"), Sample(scale=2e-3), ("dx", "dweight"),
          saved_as=bare_std),
    entry("unbiased-in-backward", "The backward takes the standard deviation with n - 1.", (),
          Sample(shape=(8,)),
          ("dx", "dweight"), saved_as=unbiased_std, ordinary=Sample(shape=(768,))),
    entry("xhat-from-output", "xhat is rebuilt as (y - bias) / weight: NaN where a weight is 0.",
          ("ServiceNow/Fast-LLM#220", "NVIDIA/apex#1715"), Sample(weight="zero"), ("dx", "dweight"),
          from_output),
    entry("weight-only-dx", "Without a bias, dx forgets the weight.", ("pytorch/pytorch#18233",),
          Sample(affine="weight"), cotangent=lambda p, dy: dy if p.bias is None else scaled(p, dy)),
    entry("weight-offset-in-backward", "A weight stored as an offset from 1 is used without the 1 in dx.",
          ("NVIDIA/TransformerEngine#67",), cotangent=shifted_weight, hidden=False),
    entry("rows-without-gradient", "dx of rows past 4096 is zero (scaled down from 65535).",
          ("NVIDIA/apex#411",),
          Sample(batch=(4100,), shape=(4,)), gradient=rows_beyond(4096)),
    entry("saved-rounded", "Saved mean and rstd are rounded to the 16-bit storage dtype.",
          ("pytorch/pytorch#139923",),
          OFFSET, ("dx", "dweight"), forward=save_rounded(""), dtypes=SIXTEEN),
    entry("saved-bfloat16", "Saved mean and rstd pass through bfloat16 although the data are wider.",
          ("pytorch/pytorch#139923",), OFFSET, ("dx", "dweight"), forward=save_rounded("bfloat16"),
          hidden=False,
          dtypes=("float64", "float32", "float16")),
    entry("rstd-rounded-in-backward", "The backward reads rstd in the 16-bit storage dtype, the mean in float32.",
          ("pytorch/pytorch#139923",), Sample(), ("dx", "dweight"), dtypes=SIXTEEN, hidden=False,
          saved_as=lambda p, mean, rstd: (mean, p.low(rstd))),
    entry("nan-in-dy-leaks", "The means of dx by a product with a 0/1 matrix: a NaN in dy reaches other rows.",
          ("tinygrad/tinygrad#147",), Sample(dy="nan"), gradient=dy_selector, laws=("LN2", "LN6", "LN5")),
    entry("saved-mean-lost", "The saved mean is read as 0.", ("tenstorrent/tt-metal#48606",),
          Sample(mean=1.0),
          ("dx", "dweight"), saved_as=lambda p, mean, rstd: (np.zeros_like(mean), rstd), hidden=False),
    entry("gradient-tile-sums", "The sums of dx run over a whole tile of 4 rows.", ("flagos-ai/FlagGems#59",),
          Sample(batch=(12,)), gradient=tile_sums(4), laws=("LN2", "LN3")),
    Mutant("dy-overwritten", "The product with the weight is formed in the caller's dy.", (),
              TEXTBOOK_FORWARD,
              dy_in_place, laws=("LN7",), affected=GRADIENTS),
]  # fmt: skip
