"""Mutants whose mean or variance is wrong: one-pass sums, divisors, lost and padded elements, precision.

Each entry names what it exchanges in the textbook pipeline of parts.py.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from lnverify.mutants import SIXTEEN, Mutant, Sample
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    Array,
    Problem,
    Statistics,
    Sum,
    forward,
    pairwise,
    serial,
    two_pass,
)

# --- variance ---------------------------------------------------------------------------------------------


def one_pass(total: Sum, clamp: bool = True) -> Statistics:
    """E[x^2] - E[x]^2 in working precision, usually clamped at 0."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean = total(p.x) / p.count
        variance = total(p.x * p.x) / p.count - mean * mean
        return mean, np.maximum(variance, p.real(0)) if clamp else variance

    return run


def unbiased_from(least: int) -> Statistics:
    """Divide by n - 1, only in rows of `least` elements and more."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean, variance = two_pass()(p)
        return mean, variance * p.count / (p.count - p.real(1)) if p.n >= least else variance

    return run


def over(keep: int) -> Statistics:
    """Statistics over a multiple of `keep` elements: the last n % keep are left out of the sums."""

    def run(p: Problem) -> tuple[Array, Array]:
        main = p.n - p.n % keep if p.n > keep else p.n
        part = two_pass()(replace(p, x=p.x[:, :main]))
        # The divisor is still n: only the elements are lost.
        mean = part[0] * p.real(main) / p.count
        deviation = p.x[:, :main] - mean
        return mean, pairwise(deviation * deviation) / p.count

    return run


def one_deviation_lost(block: int, beyond: int) -> Statistics:
    """The last squared deviation is dropped in long rows with one element beyond a block."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean = pairwise(p.x) / p.count
        deviation = p.x - mean
        if p.n > beyond and p.n % block == 1:
            deviation = deviation[:, :-1]
        return mean, pairwise(deviation * deviation) / p.count

    return run


def padded(multiple: int, counted: bool = False) -> Statistics:
    """Rows padded with zeros to a power of two (multiple 0) or a multiple; padding enters the variance.

    The padded lanes hold -mean after centring, and add (width - n) mean^2. With `counted`, the padded width
    also divides the sums.
    """

    def run(p: Problem) -> tuple[Array, Array]:
        width = -(-p.n // multiple) * multiple if multiple else 1 << max(p.n - 1, 0).bit_length()
        divisor = p.real(width) if counted else p.count
        mean = pairwise(p.x) / divisor
        deviation = p.x - mean
        padding = p.real(width - p.n) * mean * mean
        return mean, (pairwise(deviation * deviation) + padding) / divisor

    return run


def blocks(size: int, weighted: bool, only: Callable[[int], bool] = lambda n: True) -> Statistics:
    """Block statistics merged wrongly: means of uneven blocks averaged, or Chan's delta term left out.

    only: the N at which this path is taken.
    """

    def run(p: Problem) -> tuple[Array, Array]:
        if not only(p.n):
            return two_pass()(p)
        parts = [p.x[:, start : start + size] for start in range(0, p.n, size)]
        means = np.stack([pairwise(part) / p.real(part.shape[1]) for part in parts] or [p.x[:, :1]])
        if not weighted:
            mean = np.mean(means, axis=0, dtype=p.real)
            deviation = p.x - mean
            return mean, pairwise(deviation * deviation) / p.count
        inner = sum((pairwise((part - m) ** 2) for part, m in zip(parts, means, strict=False)), p.real(0))
        return pairwise(p.x) / p.count, np.broadcast_to(inner / p.count, (p.rows, 1))

    return run


def stale_welford(p: Problem) -> tuple[Array, Array]:
    """Welford's update as M2 += (x - old)^2, where (x - old)(x - new) is due."""
    counts = np.arange(1, p.n + 1, dtype=p.real)
    running = np.add.accumulate(p.x, axis=1) / counts
    delta = p.x[:, 1:] - running[:, :-1]
    return running[:, -1:], pairwise(delta * delta) / p.count


def absolute_deviation(p: Problem) -> tuple[Array, Array]:
    """Mean absolute deviation in the place of the standard deviation."""
    mean = pairwise(p.x) / p.count
    spread = pairwise(np.abs(p.x - mean)) / p.count
    return mean, spread * spread


def centred_low(p: Problem) -> tuple[Array, Array]:
    """Variance of deviations that were rounded to the 16-bit storage dtype first."""
    mean = pairwise(p.x) / p.count
    deviation = p.low(p.x - mean)
    return mean, pairwise(deviation * deviation) / p.count


def squares_half(p: Problem) -> tuple[Array, Array]:
    """Squares and their sum in float16: beyond 65504 infinity, and the row becomes the bias."""
    mean = pairwise(p.x) / p.count
    squares = np.square((p.x - mean).astype(np.float16))
    return mean, (np.sum(squares, axis=1, keepdims=True, dtype=np.float16) / np.float16(p.n)).astype(p.real)


def mean_half(p: Problem) -> tuple[Array, Array]:
    """Sum of the elements in float16, so that a long row of large elements overflows."""
    total = np.sum(p.x.astype(np.float16), axis=1, keepdims=True, dtype=np.float16)
    mean = total.astype(p.real) / p.count
    deviation = p.x - mean
    return mean, pairwise(deviation * deviation) / p.count


def low_squares(block: int) -> Statistics:
    """The sums of squares of blocks of columns are rounded to the 16-bit storage dtype; the mean is exact."""

    def run(p: Problem) -> tuple[Array, Array]:
        mean = pairwise(p.x) / p.count
        return mean, low_partials(p.dtype, block)((p.x - mean) ** 2) / p.count

    return run


def low_partials(dtype: str, block: int) -> Sum:
    """Sums of blocks rounded to 16 bits before they are added up."""

    def total(a: Array) -> Array:
        if a.shape[1] <= block:
            return pairwise(a)
        starts = np.arange(0, a.shape[1], block)
        partial = np.add.reduceat(a, starts, axis=1)
        p = Problem(a, None, None, a.dtype.type(0), a.dtype.type, dtype, a.shape, a.shape[1:])
        return pairwise(p.low(partial))

    return total


# --- the entries ------------------------------------------------------------------------------------------

OFFSET = Sample(mean=2000.0, dtype="float32")
LONG = Sample(shape=(768,))
ONE_PASS = ("pytorch/pytorch#40302", "pytorch/pytorch#51102", "pytorch/pytorch#81090", "tracel-ai/burn#5607")
HALF_SQUARES = (
    "pytorch/pytorch#66707",
    "microsoft/onnxruntime#29034",
    "NVIDIA/TensorRT#2564",
    "ROCm/AMDMIGraphX#2891",
)
UNBIASED = ("harvardnlp/annotated-transformer#119",)
PADDING = ("unslothai/unsloth#1867", "linkedin/Liger-Kernel#518", "triton-lang/triton#9838")
B = TEXTBOOK_BACKWARD


def _pad(*batch: int, n: int, mean: float = 3.0, dtype: str = "float32") -> Sample:
    return Sample(batch=batch or (3,), shape=(n,), mean=mean, dtype=dtype)


MUTANTS = [
    Mutant("one-pass-pairwise", "Variance as E[x^2] - E[x]^2 in working precision, clamped at 0.", ONE_PASS,
           forward(one_pass(pairwise)), B, trigger=OFFSET, laws=("LN1", "LN3")),
    Mutant("one-pass-serial", "Variance as E[x^2] - E[x]^2 with serial sums, clamped at 0.", ONE_PASS,
           forward(one_pass(serial)), B, trigger=OFFSET, laws=("LN1", "LN3")),
    Mutant("one-pass-unclamped",
           "Variance as E[x^2] - E[x]^2 without a clamp: NaN where it rounds below -eps.",
           ONE_PASS, forward(one_pass(pairwise, clamp=False)), B, trigger=OFFSET, laws=("LN1", "LN3", "LN5")),
    Mutant("unbiased", "Variance divided by n - 1, as torch.std does: NaN at n = 1.", UNBIASED,
           forward(unbiased_from(0)), B, ordinary=LONG, trigger=Sample(shape=(8,)), laws=("LN1", "LN4",
           "LN5")),
    Mutant("unbiased-from-1024", "Variance divided by n - 1 in rows of 1024 elements and more.", UNBIASED,
           forward(unbiased_from(1024)), B, trigger=Sample(shape=(1024,))),
    Mutant("unbiased-from-4096", "Variance divided by n - 1 in rows of 4096 elements and more.", UNBIASED,
           forward(unbiased_from(4096)), B, trigger=Sample(shape=(4096,))),
    Mutant("tail-dropped-8", "The last n % 8 elements are left out of the statistics.",
           ("deepspeedai/DeepSpeed#1480",), forward(over(8)), B, trigger=_pad(n=65)),
    Mutant("tail-dropped-32", "The last n % 32 elements are left out of the statistics.",
           ("deepspeedai/DeepSpeed#1480",), forward(over(32)), B, trigger=_pad(n=65)),
    Mutant("one-deviation-lost", "Beyond 4000 elements, one squared deviation is lost where n % 256 == 1.",
           (),
           forward(one_deviation_lost(256, 4000)), B, trigger=Sample(shape=(4097,))),
    Mutant("padding-not-masked", "Zero padding to a power of two is not masked after centring.", PADDING,
           forward(padded(0)), B, trigger=_pad(n=17), laws=("LN1", "LN3", "LN4")),
    Mutant("padding-not-masked-32", "Zero padding to a multiple of 32 is not masked after centring.", PADDING,
           forward(padded(32)), B, trigger=_pad(n=33), laws=("LN1", "LN3", "LN4")),
    Mutant("padding-counted", "The padded width, not n, divides the sums.", PADDING,
           forward(padded(0, counted=True)), B, trigger=_pad(n=17, mean=1.0), laws=("LN1", "LN4")),
    Mutant("mean-of-block-means",
           "Means of blocks of 256 are averaged without weights: wrong for an uneven tail.",
           (), forward(blocks(256, weighted=False)), B, trigger=Sample(shape=(259,))),
    Mutant("chan-without-delta",
           "Variances of blocks of 64 are merged without the difference of their means.", (),
           forward(blocks(64, weighted=True)), B, trigger=Sample(shape=(129,))),
    Mutant("chan-without-delta-odd-blocks",
           "An odd number of blocks of 128, from 3 on, is merged without the difference of their means.", (),
           forward(blocks(128, True, lambda n: n % 256 == 128 and n > 128)), B, trigger=Sample(shape=(384,))),
    Mutant("welford-stale-mean", "Welford's update uses the old mean in both factors.", (),
           forward(stale_welford), B, hidden=False, trigger=Sample(shape=(17,)), laws=("LN1", "LN4")),
    Mutant("absolute-deviation", "Mean absolute deviation in place of the standard deviation.", (),
           forward(absolute_deviation), B, hidden=False, trigger=Sample(), laws=("LN1", "LN4")),
    Mutant("centred-rounded", "The variance is that of deviations rounded to 16 bits.", (),
           forward(centred_low), B, dtypes=SIXTEEN, trigger=_pad(n=17, dtype="bfloat16")),
    Mutant("squares-kept-low", "Sums of squares of 256 columns are kept in the 16-bit storage dtype.", (),
           forward(low_squares(256)), B, dtypes=SIXTEEN, hidden=False, trigger=Sample(shape=(2048,))),
    Mutant("squares-float16", "Squares are summed in float16: they overflow and the row becomes the bias.",
           HALF_SQUARES, forward(squares_half), B, dtypes=("float16",),
           trigger=Sample(scale=20.0, shape=(2048,), dtype="float16")),
    Mutant("squares-float16-build", "float32 tensors, but a build that sums squares in float16.",
           ("nntrainer/nntrainer#3785", "nntrainer/nntrainer#3935"), forward(squares_half), B,
           dtypes=("float32", "bfloat16"), trigger=Sample(scale=20.0, shape=(2048,), dtype="float32")),
    Mutant("mean-float16", "Elements are summed in float16: long rows with a large mean overflow.",
           HALF_SQUARES[:2], forward(mean_half), B, dtypes=("float16",),
           trigger=Sample(mean=100.0, shape=(1024,), dtype="float16")),
    Mutant("sums-bfloat16", "Partial sums of 64 elements are rounded to bfloat16.",
           ("pytorch/pytorch#139923",),
           forward(two_pass(low_partials("bfloat16", 64))), B, trigger=_pad(n=1000, mean=10.0)),
]  # fmt: skip
