"""Mutants that read or write the wrong elements: axes, rows, columns, parameters, shapes, output format."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.mutants import SIXTEEN, Mutant, Sample
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    TEXTBOOK_FORWARD,
    Apply,
    Array,
    Finish,
    Forward,
    Problem,
    Statistics,
    affine,
    centred,
    forward,
    gathered,
    pairwise,
    two_pass,
)

# --- axes -------------------------------------------------------------------------------------------------


def over_axes(axes_of: Callable[[Problem], tuple[int, ...]]) -> Apply:
    """Normalise over axes of the wrong choice, then apply the affine map where it belongs."""

    def run(p: Problem, mean: Array, rstd: Array) -> Array:
        whole, axes = p.x.reshape(p.shape), axes_of(p)
        deviation = whole - np.mean(whole, axis=axes, keepdims=True)
        variance = np.mean(deviation * deviation, axis=axes, keepdims=True)
        return affine(p, (deviation * (p.real(1) / np.sqrt(variance + p.eps))).reshape(p.x.shape))

    return run


def all_but_first(p: Problem) -> tuple[int, ...]:
    """Every axis but the batch axis."""
    return tuple(range(min(1, len(p.shape) - len(p.normalized_shape)), len(p.shape)))


def sizes_as_axes(p: Problem) -> tuple[int, ...]:
    """The normalized shape read as axis numbers, where those exist and differ (upstream raises otherwise)."""
    sizes, rank = p.normalized_shape, len(p.shape)
    if max(sizes) < rank and len(set(sizes)) == len(sizes):
        return sizes
    return tuple(range(rank - len(sizes), rank))


def first_axis(p: Problem) -> tuple[int, ...]:
    """The batch axis where there are several rows: batch norm."""
    return (0,) if p.rows > 1 else tuple(range(len(p.shape) - len(p.normalized_shape), len(p.shape)))


# --- rows and columns -------------------------------------------------------------------------------------


def skipped_columns(width: int) -> dict[str, Any]:
    """Columns past the block are neither read nor written."""

    def statistics(p: Problem) -> tuple[Array, Array]:
        return two_pass()(replace(p, x=p.x[:, :width]))

    def finish(p: Problem, y: Array) -> Array:
        y[:, width:] = 0
        return y

    return {"statistics": statistics, "finish": finish}


def skipped_rows(most: int) -> Finish:
    """Rows past the launch grid are never computed."""

    def finish(p: Problem, y: Array) -> Array:
        y[most:] = 0
        return y

    return finish


def odd_last_row(p: Problem) -> tuple[Array, Array]:
    """Rows are handled in pairs; an odd last row gets the statistics of the row before it."""
    mean, variance = two_pass()(p)
    if p.rows > 1 and p.rows % 2 == 1:
        mean[-1], variance[-1] = mean[-2], variance[-2]
    return mean, variance


def tiled(tile: int, variance_too: bool) -> Statistics:
    """In each full tile of rows, the reduction runs over both axes: rows share the mean (or the variance)."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean = pairwise(p.x) / p.count
        full = p.rows - p.rows % tile
        tiles = mean[:full].reshape(-1, tile, 1)
        if not variance_too:
            mean[:full] = np.broadcast_to(np.mean(tiles, axis=1, keepdims=True), tiles.shape).reshape(full, 1)
        deviation = p.x - mean
        variance = pairwise(deviation * deviation) / p.count
        if variance_too:
            parts = variance[:full].reshape(-1, tile, 1)
            variance[:full] = np.broadcast_to(np.mean(parts, axis=1, keepdims=True), parts.shape).reshape(full, 1)
        return mean, variance

    return run


def shared_scale(p: Problem) -> tuple[Array, Array]:
    """Tiles of 8 rows with a huge element are scaled as one: the deviations of their other rows fall to zero."""
    mean, variance = two_pass()(p)
    for start in range(0, p.rows, 8):
        tile = slice(start, start + 8)
        largest = np.abs(p.x[tile]).max(initial=0)
        if largest > 1e4:
            scale = p.real(2.0**-12) * largest
            deviation = np.trunc((p.x[tile] - mean[tile]) / scale) * scale
            variance[tile] = pairwise(deviation * deviation) / p.count
    return mean, variance


def selector(p: Problem) -> tuple[Array, Array]:
    """Statistics are gathered by a product with a 0/1 matrix."""
    mean, variance = two_pass()(p)
    return gathered(p, mean), gathered(p, variance)


# --- parameters -------------------------------------------------------------------------------------------


def with_parameters(change: Callable[[Problem], Problem]) -> Apply:
    """The affine map sees other parameters than it was given."""
    return lambda p, mean, rstd: centred(change(p), mean, rstd)


def by_last_dim(p: Problem) -> Problem:
    """Parameters indexed modulo the last dimension."""
    index = np.arange(p.n) % max(p.normalized_shape[-1], 1)
    return replace(
        p,
        weight=None if p.weight is None else p.weight[index],
        bias=None if p.bias is None else p.bias[index],
    )


def column_major(p: Problem) -> Problem:
    """Parameters read in column-major order."""

    def flip(v: Array | None) -> Array | None:
        return None if v is None else v.reshape(p.normalized_shape).T.reshape(p.n)

    return replace(p, weight=flip(p.weight), bias=flip(p.bias))


def bias_first(p: Problem, mean: Array, rstd: Array) -> Array:
    """Weight (xhat + bias)."""
    xhat = (p.x - mean) * rstd
    xhat = xhat if p.bias is None else xhat + p.bias
    return xhat if p.weight is None else xhat * p.weight


def zeros_for_none(p: Problem) -> Problem:
    """An absent weight is read from a buffer of zeros."""
    return p if p.weight is not None else replace(p, weight=np.zeros(p.n, dtype=p.real))


def mapped(change: Callable[[Array], Array]) -> Apply:
    """The weight goes through a function."""
    return with_parameters(lambda p: p if p.weight is None else replace(p, weight=change(p.weight)))


# --- centring and output ----------------------------------------------------------------------------------


def clipped(limit: float) -> Apply:
    """The normalised value is clipped."""

    def run(p: Problem, mean: Array, rstd: Array) -> Array:
        return affine(p, np.clip((p.x - mean) * rstd, p.real(-limit), p.real(limit)))

    return run


def root_mean_square(p: Problem) -> tuple[Array, Array]:
    """RMS norm: nothing is subtracted."""
    return np.zeros((p.rows, 1), dtype=p.real), pairwise(p.x * p.x) / p.count


def truncated(p: Problem, y: Array) -> Array:
    """The low bits of y are cut off where rounding to nearest is due."""
    if p.dtype == "float16":
        half = p.low(y).astype(np.float16)
        too_far = np.abs(half.astype(p.real)) > np.abs(y)
        return np.where(too_far, np.nextafter(half, np.float16(0)), half).astype(p.real)
    bits = np.ascontiguousarray(y).view(np.uint32) & np.uint32(0xFFFF0000)
    return np.where(np.isfinite(y), bits.view(np.float32), y)


def rounded_between(p: Problem, mean: Array, rstd: Array) -> Array:
    """Weight xhat is rounded to 16 bits, then the bias is added (and rounded by the caller)."""
    xhat = p.low((p.x - mean) * rstd)
    xhat = xhat if p.weight is None else p.low(xhat * p.weight)
    return xhat if p.bias is None else xhat + p.bias


def centred_in_place(
    x: Array,
    normalized_shape: tuple[int, ...],
    weight: Array | None,
    bias: Array | None,
    eps: float,
    dtype: str,
) -> tuple[Array, ...]:
    """The upcast is an alias of x, and the mean is subtracted in place."""
    out = TEXTBOOK_FORWARD(x, normalized_shape, weight, bias, eps, dtype)
    if x.flags.writeable:
        x -= out[1]
    return out


def wider_output(p: Problem, y: Array) -> Array:
    """y stays in the float64 that a float64 eps promoted it to."""
    return y.astype(np.float64)


def refusing(condition: Callable[[Problem], bool], message: str) -> Forward:
    """Raise where a size is unusual."""

    def prepare(p: Problem) -> Problem:
        if condition(p):
            raise ValueError(message)
        return p

    return forward(prepare=prepare)


Z19 = ("tensorflow/tensorflow#14562",)
Z10 = ("facebookresearch/xformers#785", "tenstorrent/tt-metal#14222")
Z14 = ("NVIDIA/apex#411",)
Z28 = ("flagos-ai/FlagGems#59",)
Z22 = ("torch-spyre/torch-spyre#1980", "NVIDIA/apex#403")
Z37 = ("NVIDIA/TransformerEngine#67",)
EMPTY = (
    "tensorflow/tensorflow#46366",
    "kornia/kornia#4681",
    "intel/torch-xpu-ops#4378",
    "pytorch/pytorch#28614",
)
Y = ("y",)
B = TEXTBOOK_BACKWARD
SEQUENCE = Sample(batch=(2, 5), shape=(16,))
IMAGE = Sample(shape=(3, 4))
SIGNED = Sample(weight="normal", shape=(512,))


def _y(id: str, bug: str, threads: tuple[str, ...] = (), trigger: Sample | None = None, *,
apply: Apply = centred,
       finish: Finish | None = None, **kwargs: Any) -> Mutant:  # fmt: skip
    """A mutant whose y alone is wrong."""
    kwargs.setdefault("laws", ("LN1",))
    return Mutant(id, bug, threads, forward(apply=apply, finish=finish), B, affected=Y, trigger=trigger, **kwargs)


MUTANTS = [
    _y("axes-all-but-first", "Statistics over every axis but the first; right for rank 2.", Z19, SEQUENCE,
       apply=over_axes(all_but_first), laws=("LN1", "LN3", "LN6")),
    _y("axes-last-only", "Statistics over the last dimension of a multi-dimensional normalized shape only.",
       Z19,
       IMAGE, apply=over_axes(lambda p: (len(p.shape) - 1,))),
    _y("axes-from-sizes", "The normalized shape is passed where axis numbers are expected.",
       ("apple/coremltools#869",), Sample(batch=(4, 3, 5), shape=(2,)), apply=over_axes(sizes_as_axes)),
    _y("axes-batch", "Statistics over the batch axis.", ("GokuMohandas/fast-weights#9",), Sample(),
       apply=over_axes(first_axis), hidden=False, laws=("LN1", "LN3", "LN6")),
    *(Mutant(f"columns-skipped-{w}", f"Columns past {w} are never read nor written.", Z10,
             forward(**skipped_columns(w)), B, trigger=Sample(shape=(w + 1,))) for w in (256, 1024, 2048, 16384)),
    _y("rows-skipped-4096", "Rows past 4096 are not computed (scaled down from 65535).", Z14,
       Sample(batch=(4100,), shape=(4,)), finish=skipped_rows(4096), laws=("LN1", "LN3")),
    _y("rows-skipped-65535", "Rows past 65535, the largest grid dimension, are not computed.", Z14,
       Sample(batch=(65537,), shape=(2,)), finish=skipped_rows(65535), laws=("LN1", "LN3")),
    Mutant("odd-last-row", "Rows go in pairs: an odd last row gets the statistics of its neighbour.", (),
           forward(odd_last_row), B, ordinary=Sample(batch=(4,)), trigger=Sample(), laws=("LN1", "LN3")),
    Mutant("tile-mean", "A tile of 4 rows is reduced without an axis: its rows share their mean.", Z28,
           forward(tiled(4, False)), B, trigger=Sample(batch=(8,)), laws=("LN1", "LN3")),
    Mutant("tile-variance", "Rows of a tile of 4 share their variance.", Z28,
           forward(tiled(4, True)), B, trigger=Sample(batch=(8,)), laws=("LN1", "LN3")),
    Mutant("selector-nan-leak",
           "Statistics by a product with a 0/1 matrix: a NaN in a row reaches the others.",
           ("tinygrad/tinygrad#147",), forward(selector), B, trigger=Sample(kind="nan"), laws=("LN3", "LN5",
           "LN1")),
    Mutant("scale-of-the-tile", "A row with a huge element sets the scale of the 8 rows of its tile.", (),
           forward(shared_scale), B, trigger=Sample(kind="outlier", batch=(8,), scale=100.0),
           laws=("LN1", "LN3", "LN6")),
    _y("affine-modulo-last-dim", "Parameters are indexed modulo the last dimension.", Z19, IMAGE,
       apply=with_parameters(by_last_dim)),
    _y("affine-column-major", "Parameters of a multi-dimensional shape are read in column-major order.", (),
       IMAGE,
       apply=with_parameters(column_major)),
    _y("weight-ignored", "The weight is not applied: right while it is 1, as initialised.", (), Sample(),
       apply=with_parameters(lambda p: replace(p, weight=None)), ordinary=Sample(weight="ones")),
    _y("bias-ignored", "The bias is not applied.", ("tensorflow/tensorflow#13600",), Sample(),
       apply=with_parameters(lambda p: replace(p, bias=None)), ordinary=Sample(affine="weight")),
    _y("bias-ignored-without-weight", "The bias is not applied where the weight is None.", Z22,
       Sample(affine="bias"),
       apply=with_parameters(lambda p: p if p.weight is not None else replace(p, bias=None))),
    _y("weight-ignored-without-bias", "The weight is not applied where the bias is None.", Z22,
       Sample(affine="weight"),
       apply=with_parameters(lambda p: p if p.bias is not None else replace(p, weight=None))),
    _y("weight-none-zeros", "Without a weight, an undefined buffer of zeros is read: y is constant.", Z22,
       Sample(affine="none"), apply=with_parameters(zeros_for_none)),
    _y("bias-before-scale", "The bias is added before the weight multiplies.", (), Sample(), apply=bias_first,
       ordinary=Sample(weight="ones")),
    _y("weight-plus-one", "The weight is taken as an offset from 1 in the forward.", Z37, Sample(),
       apply=mapped(lambda w: w + w.dtype.type(1)), hidden=False),
    _y("weight-abs", "The absolute value of the weight is applied.", (), SIGNED, apply=mapped(np.abs),
       ordinary=Sample(weight="ones")),
    _y("weight-negative-zeroed", "Negative weights are clamped to 0.", (), SIGNED,
       apply=mapped(lambda w: np.maximum(w, w.dtype.type(0))), ordinary=Sample(weight="ones")),
    _y("weight-twice", "The weight is applied twice.", (), Sample(), apply=mapped(lambda w: w * w),
       ordinary=Sample(weight="ones")),
    _y("sign-reversed", "mean - x in place of x - mean.", (), Sample(), hidden=False,
       apply=lambda p, mean, rstd: affine(p, (mean - p.x) * rstd)),
    _y("mean-twice", "The mean is subtracted twice.", (), Sample(mean=1.0), hidden=False,
       apply=lambda p, mean, rstd: centred(p, mean + mean, rstd), laws=("LN1", "LN4", "LN3")),
    _y("not-centred", "x rstd: the mean is never subtracted.", (), Sample(mean=1.0), hidden=False,
       apply=lambda p, mean, rstd: affine(p, p.x * rstd), laws=("LN1", "LN4", "LN3")),
    Mutant("rms-norm", "Root mean square of x itself, and no mean.", (), forward(root_mean_square), B,
           hidden=False, trigger=Sample(mean=1.0), laws=("LN1", "LN4", "LN3")),
    _y("clipped", "The normalised value is clipped to [-6, 6].", (), Sample(kind="outlier"),
       apply=clipped(6.0)),
    _y("nan-swallowed", "NaN and infinity in y are replaced by numbers.", (), Sample(kind="nan"),
       finish=lambda p, y: np.nan_to_num(y), laws=("LN5", "LN1")),
    _y("truncated-output", "The result is cut off to 16 bits, not rounded.", (), Sample(shape=(65,)),
       finish=truncated, dtypes=SIXTEEN, hidden=False),
    _y("rounded-between", "xhat and weight xhat are rounded to 16 bits before the bias is added.", (),
       Sample(shape=(65,)), apply=rounded_between, dtypes=SIXTEEN, hidden=False, laws=("LN102",)),
    _y("output-float16", "y passes through float16 whatever its dtype.", ("microsoft/onnxruntime#17689",),
       Sample(), finish=lambda p, y: p.low(y, "float16"), dtypes=("float64", "float32")),
    Mutant("float64-output", "float32 comes back as float64, as a float64 eps promotes it.",
           ("pytorch/pytorch#81851",), forward(finish=wider_output), B, dtypes=("float32",), affected=Y,
           laws=("LN6",)),
    Mutant("empty-batch-refused", "Zero rows raise: reshape with -1 cannot be inferred.", EMPTY,
           refusing(lambda p: p.rows == 0, "cannot reshape array of size 0"), B, laws=("LN5", "LN6"),
           trigger=Sample(batch=(0,))),
    Mutant("single-element-refused", "n = 1 raises, where the bias is right.",
           ("pytorch/pytorch#108956", "microsoft/onnxruntime#25896"),
           refusing(lambda p: p.n == 1, "expected more than 1 value per row"), B, laws=("LN6", "LN5"),
           trigger=Sample(shape=(1,))),
    Mutant("x-centred-in-place", "The upcast is an alias: centring in place overwrites x.",
           ("GeeeekExplorer/nano-vllm#170",), centred_in_place, B, laws=("LN7",), affected=("y",)),
]  # fmt: skip
