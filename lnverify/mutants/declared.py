"""Mutants that break what they declare about themselves, what they return beside y, or only the last digits.

Those in torch are in torch_declared.py.

They are right by the bound of y; their declaration, an alias, the returned statistics or the rounding of their
gradients in 16 bits make them wrong.
"""

from __future__ import annotations

import importlib
import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from lnverify.floats import FORMATS, quantum, round_values
from lnverify.mutants.parts import TEXTBOOK_BACKWARD, TEXTBOOK_FORWARD, Array, Backward, Forward, problem

if TYPE_CHECKING:
    from lnverify.subject import Subject


@dataclass(frozen=True, eq=False)
class DeclaredMutant:
    """A forward with the declaration that it breaks; the fields are those of Mutant."""

    id: str
    bug: str
    forward: Forward | Any
    laws: tuple[str, ...]
    declares: Mapping[str, Any]
    dtypes: tuple[str, ...] = ("float32", "float64")
    threads: tuple[str, ...] = ()
    backward: Backward | None = TEXTBOOK_BACKWARD
    framework: str = "numpy"

    def subject(self) -> Subject:
        """A new subject that runs this implementation."""
        adapters = importlib.import_module("lnverify.adapters")
        declaration = importlib.import_module("lnverify.subject").Declaration
        options = declaration(
            operation="layer_norm", framework=self.framework, dtypes=self.dtypes, backward=self.backward,
            **self.declares,
        )  # fmt: skip
        subject: Subject = adapters.adapt(self.forward, f"mutant:{self.id}", options)
        return subject


_textbook = TEXTBOOK_FORWARD


def rstd_without_eps(x: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float, dtype: str) -> Any:
    """y is right; the returned rstd leaves eps out."""
    y, *saved = _textbook(x, normalized_shape, weight, bias, eps, dtype)
    p = problem(x, tuple(normalized_shape), weight, bias, eps, dtype)
    with np.errstate(all="ignore"):
        deviation = p.x - p.x.mean(axis=1, keepdims=True)
        rstd = 1 / np.sqrt((deviation * deviation).mean(axis=1, keepdims=True))
    return y, saved[0], p.per_row(rstd)


def batch_variant(x: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float, dtype: str) -> Any:
    """Sums run from the other end in a batch of one: other bits, the same accuracy."""
    axes = tuple(range(-len(normalized_shape), 0))
    if x.shape[0] != 1 or x.ndim != len(normalized_shape) + 1:
        return _textbook(x, normalized_shape, weight, bias, eps, dtype)
    flip = tuple(slice(None, None, -1) if a - x.ndim in axes else slice(None) for a in range(x.ndim))
    turned = tuple(slice(None, None, -1) for _ in normalized_shape)
    pair = [None if v is None else np.ascontiguousarray(v[turned]) for v in (weight, bias)]
    y, *saved = _textbook(np.ascontiguousarray(x[flip]), normalized_shape, *pair, eps, dtype)
    return np.ascontiguousarray(y[flip]), *saved


_calls = itertools.count()


def every_other_call(x: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float, dtype: str) -> Any:
    """Every other call divides by the root in the place of multiplying by its reciprocal: the last bits change."""
    y, *saved = _textbook(x, normalized_shape, weight, bias, eps, dtype)
    return (np.nextafter(y, np.inf, dtype=y.dtype) if next(_calls) % 2 else y), *saved


def identity_in_place(x: Array, normalized_shape: Any, weight: Any, bias: Any, eps: float, dtype: str) -> Any:
    """The right y is written into x, and x is returned."""
    y, *saved = _textbook(x, normalized_shape, weight, bias, eps, dtype)
    x[...] = y
    return x, *saved


def rounded_gradient(dy: Array, x: Array, weight: Any, bias: Any, eps: float, normalized_shape: Any, saved: Any,
                     dtype: str) -> Any:  # fmt: skip
    """weight * dy is rounded to the storage format before the sums of the backward."""
    if weight is None:
        return TEXTBOOK_BACKWARD(dy, x, weight, bias, eps, normalized_shape, saved, dtype)
    g = round_values(weight * dy, dtype).astype(dy.dtype)
    ones = np.ones_like(weight)
    dx, _, _ = TEXTBOOK_BACKWARD(g, x, ones, bias, eps, normalized_shape, saved, dtype)
    _, dweight, dbias = TEXTBOOK_BACKWARD(dy, x, weight, bias, eps, normalized_shape, saved, dtype)
    return dx, dweight, dbias


def truncated_gradient(dy: Array, x: Array, weight: Any, bias: Any, eps: float, normalized_shape: Any, saved: Any,
                       dtype: str) -> Any:  # fmt: skip
    """dbias is cut off to the storage format, not rounded."""
    dx, dweight, dbias = TEXTBOOK_BACKWARD(dy, x, weight, bias, eps, normalized_shape, saved, dtype)
    if dbias is None:
        return dx, dweight, None
    with np.errstate(all="ignore"):
        gap = quantum(dbias, FORMATS[dtype])
        cut = np.trunc(dbias / gap) * gap
    return dx, dweight, cut.astype(dbias.dtype)


SIXTEEN = ("bfloat16", "float16")
MUTANTS = [
    DeclaredMutant("gradient-rounded-between", "weight * dy is rounded to 16 bits before the sums of the backward.",
                   _textbook, ("LN210",), {}, SIXTEEN, backward=rounded_gradient),
    DeclaredMutant("gradient-truncated", "dbias is cut off to 16 bits, not rounded.", _textbook, ("LN211",), {},
                   SIXTEEN, backward=truncated_gradient),
    DeclaredMutant("returned-rstd-without-eps", "The rstd returned beside y leaves eps out.", rstd_without_eps,
                   ("LN107",), {"returns": ("y", "mean", "rstd")}, threads=("tenstorrent/tt-metal#48606",)),
    DeclaredMutant("batch-variant", "A row alone is summed from the other end, though batch invariance is declared.",
                   batch_variant, ("LN602",), {"batch_invariant": True}, threads=("vllm-project/vllm#48271",)),
    DeclaredMutant("nondeterministic", "Every other call gives other last bits, though determinism is declared.",
                   every_other_call, ("LN705",), {"deterministic": True}),
    DeclaredMutant("written-into-x", "y is written into x, and x is returned.", identity_in_place,
                   ("LN704",), {}, threads=("GeeeekExplorer/nano-vllm#170",)),
]  # fmt: skip
