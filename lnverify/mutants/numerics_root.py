"""Mutants whose eps or root is wrong, or whose statistics are rounded before use."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.mutants import DTYPES, SIXTEEN, Mutant, Sample
from lnverify.mutants.parts import (
    TEXTBOOK_BACKWARD,
    Array,
    Forward,
    Problem,
    Root,
    affine,
    forward,
    inverse_root,
    two_pass,
)

# --- eps and the root -------------------------------------------------------------------------------------


def root_of(change: str) -> Root:
    """1/sqrt(variance + eps) with eps in the wrong place or of the wrong size."""

    def run(p: Problem, variance: Array) -> Array:
        one = p.real(1)
        root: Array
        match change:
            case "outside":
                root = one / (np.sqrt(variance) + p.eps)
            case "missing":
                root = one / np.sqrt(variance)
            case "tenfold":
                root = one / np.sqrt(variance + p.eps * p.real(10))
            case "squared":
                root = one / np.sqrt(variance + p.eps * p.eps)
            case "count":
                root = one / np.sqrt(variance * p.count / (p.count + p.eps))
            case "absolute":
                root = one / np.sqrt(np.abs(variance + p.eps))
            case "float16":
                root = one / np.sqrt(variance + p.real(np.float16(p.eps)))
            case _:
                root = one / np.sqrt(variance + p.real(1e-5))
        return root

    return run


def clamped(least: float) -> Root:
    """The variance is raised to a floor, far above eps, before the root."""
    return lambda p, variance: inverse_root(p, np.maximum(variance, p.real(least)))


def root_of_row(p: Problem, variance: Array) -> Array:
    """The root of a row divided by its largest element m, with eps/m^2: infinite where m^2 is below eps/Omega."""
    largest = np.abs(p.x).max(axis=1, keepdims=True, initial=0.0)
    m = np.where(largest == 0, p.real(1), largest)
    root: Array = p.real(1) / (m * np.sqrt(np.square(np.sqrt(variance) / m) + p.eps / m / m))
    return root


def few_bits(bits: int) -> Root:
    """Only `bits` bits of the reciprocal root are right, as of a hardware estimate without a Newton step."""

    def run(p: Problem, variance: Array) -> Array:
        mantissa, exponent = np.frexp(inverse_root(p, variance))
        kept: Array = np.ldexp(np.floor(mantissa * 2.0**bits) / p.real(2.0**bits), exponent).astype(p.real)
        return kept

    return run


def magic_root(p: Problem, variance: Array) -> Array:
    """The 0x5f3759df estimate with one Newton step: relative error up to 1.8e-3."""
    v = (variance + p.eps).astype(np.float32)
    estimate = (np.uint32(0x5F3759DF) - (np.ascontiguousarray(v).view(np.uint32) >> np.uint32(1))).view(np.float32)
    polished: Array = estimate * (np.float32(1.5) - np.float32(0.5) * v * estimate * estimate)
    return polished.astype(p.real)


def rounded(dtype: str, mean: bool = True, rstd: bool = True) -> Forward:
    """Statistics rounded to 16 bits ('' for the storage dtype) before use."""

    def statistics(p: Problem) -> tuple[Array, Array]:
        m, v = two_pass()(p)
        return (p.low(m, dtype) if mean else m), v

    def root(p: Problem, variance: Array) -> Array:
        r = inverse_root(p, variance)
        return p.low(r, dtype) if rstd else r

    return forward(statistics, root)


def affine_form_low(p: Problem, mean: Array, rstd: Array) -> Array:
    """The affine form, with mean rstd rounded to 16 bits: the cancellation magnifies that."""
    return affine(p, p.x * rstd - p.low(mean * rstd, "bfloat16" if p.dtype in DTYPES[:2] else p.dtype))


# --- the entries ------------------------------------------------------------------------------------------

SMALL = Sample(scale=1e-3, dtype="float32")
OUTSIDE = (
    "pyg-team/pytorch_geometric#2917",
    "openvinotoolkit/openvino#4311",
    "openvinotoolkit/openvino#8142",
)
FORWARDED = ("tensorflow/tensorflow#58863", "huggingface/transformers#38025", "apache/tvm#15856")
LOW = ("pytorch/xla#3658", "apache/mxnet#14073", "pytorch/pytorch#139923")
B = TEXTBOOK_BACKWARD


def _pad(*batch: int, n: int, mean: float = 3.0, dtype: str = "float32") -> Sample:
    return Sample(batch=batch or (3,), shape=(n,), mean=mean, dtype=dtype)


MUTANTS = [
    Mutant("eps-outside-root", "eps is added to the standard deviation, not to the variance.", OUTSIDE,
           forward(root=root_of("outside")), B, trigger=SMALL),
    Mutant("eps-missing", "No eps: small variances are scaled up to 1, constant rows give NaN.", (),
           forward(root=root_of("missing")), B, trigger=SMALL, laws=("LN1", "LN5")),
    Mutant("eps-tenfold", "eps is ten times too large.", (), forward(root=root_of("tenfold")), B,
           trigger=SMALL),
    Mutant("eps-squared", "eps^2 is added to the variance.", OUTSIDE, forward(root=root_of("squared")), B,
           trigger=SMALL),
    Mutant("eps-float16", "eps is held in float16: 1e-12 becomes 0, 1e-5 is 0.1% off.", OUTSIDE[1:],
           forward(root=root_of("float16")), B, trigger=replace(SMALL, scale=1e-7, eps=1e-12), laws=("LN1",
           "LN5")),
    Mutant("eps-fixed", "The eps argument is not forwarded: 1e-5 always.", FORWARDED,
           forward(root=root_of("fixed")), B, trigger=Sample(eps=0.1)),
    Mutant("root-of-absolute-value", "The root is that of |variance + eps|: a negative eps goes unnoticed.", (),
           forward(root=root_of("absolute")), B, trigger=Sample(eps=-2.0), laws=("LN507",)),
    Mutant("eps-in-count", "A misplaced parenthesis adds eps to the element count.",
           ("xlite-dev/LeetCUDA#309",),
           forward(root=root_of("count")), B, trigger=SMALL, laws=("LN1", "LN5")),
    Mutant("variance-clamped-1e-3", "The variance is clamped to 1e-3 from below.", (),
           forward(root=clamped(1e-3)), B, trigger=Sample(scale=1e-2)),
    Mutant("variance-clamped-1e-6", "The variance is clamped to 1e-6 from below.", (),
           forward(root=clamped(1e-6)), B, trigger=replace(SMALL, scale=1e-4, eps=1e-9)),
    Mutant("eps-overflows-with-the-row", "Rows scaled by their largest element, eps by its square: tiny rows are lost.",
           (), forward(root=root_of_row), B, dtypes=DTYPES[:2], trigger=Sample(scale=1e-25, dtype="float32"),
           laws=("LN508",)),
    Mutant("rsqrt-12-bit", "A 12-bit estimate of the reciprocal root is not polished.", (),
           forward(root=few_bits(12)), B, dtypes=("float64", "float32"), trigger=Sample()),
    Mutant("rsqrt-20-bit", "A 20-bit estimate of the reciprocal root is not polished.", (),
           forward(root=few_bits(20)), B, dtypes=("float64",), trigger=Sample()),
    Mutant("rsqrt-magic", "The 0x5f3759df estimate with one Newton step only.", (),
           forward(root=magic_root), B, dtypes=("float64", "float32", "float16"), trigger=Sample()),
    Mutant("statistics-rounded", "Mean and rstd are rounded to the 16-bit storage dtype before use.", LOW,
           rounded(""), B, dtypes=SIXTEEN,
           trigger=_pad(n=64, mean=100.0, dtype="bfloat16")),
    Mutant("mean-rounded", "The mean is rounded to the 16-bit storage dtype before use.", LOW,
           rounded("", rstd=False), B, dtypes=SIXTEEN,
           trigger=_pad(n=64, mean=100.0, dtype="bfloat16")),
    Mutant("statistics-bfloat16", "Mean and rstd pass through bfloat16 although the data are wider.", LOW,
           rounded("bfloat16"), B, dtypes=("float64", "float32", "float16"),
           hidden=False, trigger=_pad(n=64, mean=100.0)),
    Mutant("affine-form-rounded", "x rstd - mean rstd, where mean rstd is rounded to 16 bits.",
           ("pytorch/pytorch#139923",), forward(apply=affine_form_low), B,
           affected=("y",), trigger=_pad(n=64, mean=100.0)),
]  # fmt: skip
