"""Mutants with a right forward and a wrong backward: the formula of dx, the column sums, what was saved.

With g = weight dy and means over the row, dx = rstd (g - mean(g) - xhat mean(g xhat)); dweight and dbias are
the sums of dy xhat and of dy over the rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.floats import round_values
from lnverify.mutants import DTYPES, GRADIENTS, SIXTEEN, Mutant, Sample
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Array,
    Backward,
    Columns,
    Gradient,
    Gradients,
    Problem,
    backward,
    column_sums,
    finished,
    forward,
    normalised,
    pairwise,
    problem,
    scaled,
    two_means,
)

# --- dx ---------------------------------------------------------------------------------------------------


def means(first: float = 1.0, second: float = 1.0, divisor: int = 0, keep: int = 0) -> Gradient:
    """Both means with factors, a divisor n + `divisor` of the second, and the last n % keep elements left out."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        main = p.n - p.n % keep if keep and p.n > keep else p.n
        product = g * xhat
        c1 = p.real(first) * pairwise(g[:, :main]) / p.count
        c2 = p.real(second) * pairwise(product[:, :main]) / p.real(p.n + divisor)
        return rstd * (g - c1 - xhat * c2)

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
        return rstd * (g - c1 - xhat * c2)

    return run


def rows_beyond(most: int) -> Gradient:
    """dx of rows past the launch grid is not computed."""

    def run(p: Problem, g: Array, xhat: Array, rstd: Array) -> Array:
        dx = two_means(p, g, xhat, rstd)
        dx[most:] = 0
        return dx

    return run


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
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int, ...],
    saved: tuple[Array, ...], dtype: str, y: Array,
) -> Gradients:  # fmt: skip
    """Rebuild xhat as (y - bias) / weight, from the stored y: 0/0 where a weight is 0."""

    def rebuilt(p: Problem, mean: Array, rstd: Array) -> Array:
        stored = p.low(y.reshape(p.rows, p.n))
        stored = stored if p.bias is None else stored - p.bias
        return stored if p.weight is None else stored / p.weight

    return backward(xhat=rebuilt)(dy, x, weight, bias, eps, normalized_shape, saved, dtype)


# --- column sums ------------------------------------------------------------------------------------------


def on_rows(choose: Callable[[int], slice], factor: Callable[[int], float] = lambda rows: 1.0) -> Columns:
    """Parameter gradients from some of the rows, with a factor."""

    def run(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
        rows, f = choose(p.rows), p.real(factor(p.rows))
        dweight, dbias = column_sums(p, dy[rows], xhat[rows])
        return dweight * f, dbias * f

    return run


def losing_last(beyond: int) -> Columns:
    """The last row is lost from the sums of many rows."""
    return on_rows(lambda rows: slice(rows - 1 if rows > beyond else rows))


def low_serial(dtype: str) -> Columns:
    """Row after row, the running sums rounded to 16 bits: they stop growing at 2^8 or 2^11 ones."""

    def total(p: Problem, a: Array) -> Array:
        name = dtype or p.dtype
        if name == "float16":
            return np.add.accumulate(a.astype(np.float16), axis=0)[-1].astype(p.real) if p.rows else a.sum(axis=0)
        running = np.zeros(p.n)
        for row in round_values(a, name):  # NumPy has no bfloat16 to accumulate in
            running = round_values(running + row, name)
        return running.astype(p.real)

    return lambda p, dy, xhat: (total(p, dy * xhat), total(p, dy))


def low_partials(block: int) -> Columns:
    """Sums of blocks of rows rounded to bfloat16 before they are added up."""

    def total(p: Problem, a: Array) -> Array:
        partial = np.add.reduceat(a, np.arange(0, max(p.rows, 1), block), axis=0) if p.rows else a
        return np.sum(p.low(partial, "bfloat16"), axis=0)

    return lambda p, dy, xhat: (total(p, dy * xhat), total(p, dy))


def skipped_columns(width: int) -> Columns:
    """Columns past the block get no gradient."""

    def run(p: Problem, dy: Array, xhat: Array) -> tuple[Array, Array]:
        dweight, dbias = column_sums(p, dy, xhat)
        dweight[width:], dbias[width:] = 0, 0
        return dweight, dbias

    return run


def difference(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int, ...],
    saved: tuple[Array, ...], dtype: str,
) -> Gradients:  # fmt: skip
    """The weight gradient as the difference sum(dy rstd x) - sum(dy rstd mean): two large numbers at n = 1."""

    def columns(p: Problem, d: Array, xhat: Array) -> tuple[Array, Array]:
        mean, rstd = saved[0].reshape(p.rows, 1), saved[1].reshape(p.rows, 1)
        return np.sum(d * p.x * rstd, axis=0) - np.sum(d * (mean * rstd), axis=0), np.sum(d, axis=0)

    return backward(columns=columns)(dy, x, weight, bias, eps, normalized_shape, saved, dtype)


# --- what is returned -------------------------------------------------------------------------------------


def returning(change: Callable[[Problem, Array, Array, Array], Gradients]) -> Backward:
    """The right gradients, handed back in the wrong way."""

    def run(
        dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int, ...],
        saved: tuple[Array, ...], dtype: str,
    ) -> Gradients:  # fmt: skip
        with np.errstate(all="ignore"):
            p = problem(x, normalized_shape, weight, bias, eps, dtype)
            mean, rstd = saved[0].reshape(p.rows, 1), saved[1].reshape(p.rows, 1)
            d, hat = dy.reshape(p.rows, p.n), normalised(p, mean, rstd)
            dx = two_means(p, scaled(p, d), hat, rstd)
            return change(p, dx, *column_sums(p, d, hat))

    return run


def crosswise(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """Weight and bias gradients in each other's place."""
    return finished(p, dx, dbias, dweight)


def no_bias_without_weight(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """No bias gradient where the weight is None."""
    dx, dw, db = finished(p, dx, dweight, dbias)
    return dx, dw, db if p.weight is not None else None


def no_weight(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """No weight gradient at all."""
    dx, _, db = finished(p, dx, dweight, dbias)
    return dx, None, db


def flat(p: Problem, dx: Array, dweight: Array, dbias: Array) -> Gradients:
    """Parameter gradients of shape (n,) where there are more than 64 rows."""
    return finished(p if p.rows <= 64 else replace(p, normalized_shape=(p.n,)), dx, dweight, dbias)


def dy_in_place(
    dy: Array, x: Array, weight: Array | None, bias: Array | None, eps: float, normalized_shape: tuple[int, ...],
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


SUMS = ("dweight", "dbias")
PLAIN = Sample(weight="ones")
OFFSET = Sample(mean=100.0)


def _m(id: str, bug: str, threads: tuple[str, ...] = (), trigger: Sample | None = None,
       affected: tuple[str, ...] = ("dx",), run: Backward = TEXTBOOK_BACKWARD, **kwargs: Any) -> Mutant:  # fmt: skip
    parts = {k: kwargs.pop(k) for k in ("gradient", "columns", "xhat", "cotangent", "saved_as") if k in kwargs}
    saved = kwargs.pop("forward", TEXTBOOK_FORWARD)
    kwargs.setdefault("laws", ("LN2",))
    return Mutant(id, bug, threads, saved, backward(**parts) if parts else run, affected=affected,
                  trigger=trigger or Sample(), **kwargs)  # fmt: skip


MUTANTS = [
    _m("weight-outside-sums", "The weight multiplies the projected dy, outside the two means.",
       ("openxla/xla#8225",), gradient=weight_outside, cotangent=lambda p, dy: dy, ordinary=PLAIN),
    _m("mean-of-g-dropped", "mean(g) is missing from dx.", (), gradient=means(first=0), hidden=False),
    _m("mean-of-g-xhat-dropped", "xhat mean(g xhat) is missing from dx.", (), gradient=means(second=0), hidden=False),
    _m("stop-gradient", "Mean and rstd are taken as constants in dx.",
       ("openxla/xla#8225", "Oneflow-Inc/oneflow#6149"), gradient=means(0, 0), hidden=False),
    _m("second-mean-unbiased", "mean(g xhat) is divided by n - 1.", (), Sample(shape=(8,)),
       gradient=means(divisor=-1), ordinary=Sample(shape=(768,))),
    _m("second-mean-sign", "xhat mean(g xhat) is added, not subtracted.", (), gradient=means(second=-1),
       hidden=False),
    _m("gradient-tail-dropped", "The last n % 8 elements are left out of both means.",
       ("deepspeedai/DeepSpeed#1480",), Sample(shape=(65,)), gradient=means(keep=8)),
    _m("gradient-without-rstd", "The factor rstd of dx is missing: right at unit variance.", (),
       Sample(scale=3.0), gradient=no_rstd, hidden=False),
    _m("eps-forgotten-in-backward", "The backward divides by the bare std: NaN on constant rows.",
       ("FluxML/Flux.jl#2096", "tracel-ai/burn#1992"), Sample(scale=2e-3), ("dx", "dweight"), saved_as=bare_std),
    _m("unbiased-in-backward", "The backward takes the standard deviation with n - 1.", (), Sample(shape=(8,)),
       ("dx", "dweight"), saved_as=unbiased_std, ordinary=Sample(shape=(768,))),
    _m("xhat-from-output", "xhat is rebuilt as (y - bias) / weight: NaN where a weight is 0.",
       ("ServiceNow/Fast-LLM#220", "NVIDIA/apex#1715"), Sample(weight="zero"), ("dx", "dweight"), from_output),
    _m("parameters-swapped", "dweight and dbias come back in each other's place.", ("Oneflow-Inc/oneflow#6149",),
       None, SUMS, returning(crosswise), hidden=False),
    _m("dweight-from-x", "dweight sums dy x, not dy xhat.", (), Sample(mean=1.0), ("dweight",), hidden=False,
       columns=lambda p, dy, xhat: column_sums(p, dy, p.x)),
    _m("sums-averaged", "Parameter gradients are means over the rows.", ("EleutherAI/gpt-neox#1259",), None, SUMS,
       columns=on_rows(slice, lambda rows: 1.0 / max(rows, 1)), ordinary=Sample(batch=(1,))),
    _m("shards-averaged", "From 16 rows on, parameter gradients of two shards are averaged, not added.",
       ("EleutherAI/gpt-neox#1259", "NVIDIA/Megatron-LM#1446", "NVIDIA/TransformerEngine#435"),
       Sample(batch=(16,)), SUMS, columns=on_rows(slice, lambda rows: 0.5 if rows >= 16 else 1.0)),
    _m("shards-local", "From 16 rows on, parameter gradients of the first shard only.",
       ("EleutherAI/gpt-neox#1259", "NVIDIA/Megatron-LM#1446"), Sample(batch=(16,)), SUMS,
       columns=on_rows(lambda rows: slice(rows // 2 if rows >= 16 else rows))),
    _m("dbias-missing-without-weight", "No bias gradient where the weight is None.",
       ("pytorch/pytorch#193016", "pytorch/pytorch#79705", "csarofeen/pytorch#519"), Sample(affine="bias"),
       ("dbias",), returning(no_bias_without_weight)),
    _m("dweight-none", "No weight gradient.", ("csarofeen/pytorch#519", "huggingface/candle#3613"), None,
       ("dweight",), returning(no_weight), hidden=False),
    _m("weight-only-dx", "Without a bias, dx forgets the weight.", ("pytorch/pytorch#18233",),
       Sample(affine="weight"), cotangent=lambda p, dy: dy if p.bias is None else scaled(p, dy)),
    _m("weight-offset-in-backward", "A weight stored as an offset from 1 is used without the 1 in dx.",
       ("NVIDIA/TransformerEngine#67",), cotangent=shifted_weight, hidden=False),
    _m("last-row-lost-8192", "Beyond 8192 rows the last one is missing from the parameter gradients.", (),
       Sample(batch=(8193,), shape=(4,), dy="last-row"), SUMS, columns=losing_last(8192)),
    _m("last-row-lost-512", "Beyond 512 rows the last one is missing from the parameter gradients.", (),
       Sample(batch=(513,), shape=(4,), dy="last-row"), SUMS, columns=losing_last(512)),
    _m("partial-block-lost", "The last, partial block of 32 rows is missing from the parameter gradients.", (),
       Sample(batch=(33,)), SUMS, ordinary=Sample(batch=(32,)),
       columns=on_rows(lambda rows: slice(rows - rows % 32 if rows > 32 else rows))),
    _m("last-row-twice", "An odd last row counts twice in the parameter gradients.", (), Sample(), SUMS,
       ordinary=Sample(batch=(4,)),
       columns=lambda p, dy, xhat: column_sums(p, *(np.concatenate((a, a[-1:])) if p.rows % 2 else a
                                                    for a in (dy, xhat)))),
    _m("columns-without-gradient", "Parameter gradients of columns past 1024 are zero.", ("pytorch/pytorch#193016",),
       Sample(shape=(1025,)), SUMS, columns=skipped_columns(1024)),
    _m("rows-without-gradient", "dx of rows past 4096 is zero (scaled down from 65535).", ("NVIDIA/apex#411",),
       Sample(batch=(4100,), shape=(4,)), gradient=rows_beyond(4096)),
    _m("sums-bfloat16-serial", "Parameter gradients are accumulated row by row in bfloat16.",
       ("pytorch/pytorch#139923",), Sample(batch=(600,), shape=(4,)), SUMS, columns=low_serial("bfloat16"),
       hidden=False),
    _m("sums-float16-serial", "Parameter gradients are accumulated row by row in float16.", (),
       Sample(batch=(4100,), shape=(4,)), SUMS, columns=low_serial("float16"), hidden=False,
       dtypes=("float64", "float32", "float16")),
    _m("sums-storage-serial", "Parameter gradients are accumulated row by row in the 16-bit storage dtype.", (),
       Sample(batch=(600,), shape=(4,)), SUMS, columns=low_serial(""), hidden=False, dtypes=SIXTEEN),
    _m("sums-bfloat16-partials", "Partial parameter gradients of 32 rows are kept in bfloat16.", (),
       Sample(batch=(100,)), SUMS, columns=low_partials(32), hidden=False),
    _m("saved-rounded", "Saved mean and rstd are rounded to the 16-bit storage dtype.", ("pytorch/pytorch#139923",),
       OFFSET, ("dx", "dweight"), forward=save_rounded(""), dtypes=SIXTEEN),
    _m("saved-bfloat16", "Saved mean and rstd pass through bfloat16 although the data are wider.",
       ("pytorch/pytorch#139923",), OFFSET, ("dx", "dweight"), forward=save_rounded("bfloat16"), hidden=False,
       dtypes=("float64", "float32", "float16")),
    _m("saved-mean-lost", "The saved mean is read as 0.", ("tenstorrent/tt-metal#48606",), Sample(mean=1.0),
       ("dx", "dweight"), saved_as=lambda p, mean, rstd: (np.zeros_like(mean), rstd), hidden=False),
    _m("gradient-tile-sums", "The sums of dx run over a whole tile of 4 rows.", ("flagos-ai/FlagGems#59",),
       Sample(batch=(12,)), gradient=tile_sums(4), laws=("LN2", "LN3")),
    _m("flat-parameter-gradient", "Beyond 64 rows parameter gradients come back flat, whatever the shape.",
       ("pytorch/pytorch#192016", "pytorch/pytorch#193016", "intel/torch-xpu-ops#5235"),
       Sample(batch=(100,), shape=(3, 4)), SUMS, returning(flat), laws=("LN2", "LN6")),
    _m("dweight-difference", "dweight as a difference of two sums: a residue at n = 1, and noise at a large mean.",
       ("pytorch/pytorch#188372", "pytorch/pytorch#188375"),
       Sample(shape=(1,), mean=1e6, dtype="float32"), ("dweight",), difference, dtypes=DTYPES),
    Mutant("dy-overwritten", "The product with the weight is formed in the caller's dy.", (), TEXTBOOK_FORWARD,
           dy_in_place, laws=("LN7",), affected=GRADIENTS),
]  # fmt: skip
