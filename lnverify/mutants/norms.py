"""RMS norms in NumPy, wrong ones with one named bug each, and right ones in unusual styles.

    forward(x, normalized_shape, weight, eps) -> (y, r)
    backward(dy, x, weight, eps, normalized_shape, saved) -> (dx, dweight)

by rows: x is looked at as (rows, n). See lnverify/mutants/__init__.py for the formats.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from lnverify.floats import round_values
from lnverify.mutants import Correct, Mutant

Array = npt.NDArray[Any]
EXACT = ("float64", "float32")


def _rows(x: Array, shape: tuple[int, ...]) -> Array:
    return x.reshape(-1, int(np.prod(shape)))


def forward(x: Array, normalized_shape: tuple[int, ...], weight: Any, eps: float, bug: str = "") -> tuple[Any, ...]:
    """y and 1/rms; `bug` names what is wrong."""
    rows = _rows(x, normalized_shape)
    n = rows.shape[1]
    eps = rows.dtype.type(eps)
    if bug == "mean subtracted":
        rows = rows - rows.mean(axis=1, keepdims=True)
    divisor = {"sum": 1, "unbiased": max(n - 1, 1)}.get(bug, n)
    ms = (rows * rows).sum(axis=1, keepdims=True) / rows.dtype.type(divisor)
    if bug == "eps outside":
        r = 1 / (np.sqrt(ms) + eps)
    elif bug == "eps missing":
        with np.errstate(all="ignore"):
            r = 1 / np.sqrt(ms)
    else:
        r = 1 / np.sqrt(ms + (1e-5 if bug == "eps fixed" else eps))
    if bug == "statistics in 16 bits":
        r = round_values(r, "bfloat16")
    y = rows * r.astype(rows.dtype)
    if weight is not None:
        y = y * ((1 + weight.reshape(-1)) if bug == "one plus weight" else weight.reshape(-1))
    return y.astype(x.dtype).reshape(x.shape), r


def backward(
    dy: Array, x: Array, weight: Any, eps: float, normalized_shape: tuple[int, ...], saved: Any, bug: str = ""
) -> tuple[Any, ...]:
    """dx and dweight by the compact form."""
    rows, g = _rows(x, normalized_shape), _rows(dy, normalized_shape)
    (r,) = saved
    xhat = rows * r.astype(rows.dtype)
    gamma = np.ones(rows.shape[1], rows.dtype) if weight is None else weight.reshape(-1)
    dweight = (g * (rows if bug == "dweight from x" else xhat))[: -1 if bug == "last row lost" else None].sum(axis=0)
    if bug == "weight outside":
        dx = r * gamma * (g - xhat * (g * xhat).mean(axis=1, keepdims=True))
    elif bug == "constants":
        dx = r * gamma * g
    elif bug == "centred":
        wg = gamma * g
        dx = r * (wg - wg.mean(axis=1, keepdims=True) - xhat * (wg * xhat).mean(axis=1, keepdims=True))
    else:
        wg = gamma * g
        dx = r * (wg - xhat * (wg * xhat).mean(axis=1, keepdims=True))
    if weight is None:
        return (dx.astype(x.dtype).reshape(x.shape),)
    return dx.astype(x.dtype).reshape(x.shape), dweight.astype(x.dtype).reshape(weight.shape)


def _wrong(id: str, bug: str, sentence: str, laws: tuple[str, ...] = ("LN801",), **more: Any) -> Mutant:
    own = functools.partial(forward, bug=bug) if laws == ("LN801",) else forward
    back = functools.partial(backward, bug=bug) if laws == ("LN802",) else backward
    return Mutant(id=id, bug=sentence, operation="rms_norm", forward=own, backward=back, laws=laws, **more)


GRADIENT = ("LN802",)
MUTANTS = [
    _wrong("rms-eps-outside", "eps outside", "eps is added to the root, not under it"),
    _wrong("rms-eps-missing", "eps missing", "eps is not added"),
    _wrong("rms-eps-fixed", "eps fixed", "eps is 1e-5, whatever is given"),
    _wrong("rms-mean-subtracted", "mean subtracted", "the mean is subtracted, as in layer norm"),
    _wrong("rms-sum", "sum", "the squares are summed, not averaged"),
    _wrong("rms-unbiased", "unbiased", "the sum of squares is divided by N - 1"),
    _wrong("rms-statistics-16", "statistics in 16 bits", "1/rms is kept in bfloat16", dtypes=EXACT),
    _wrong("rms-one-plus-weight", "one plus weight", "the weight is taken as 1 + weight"),
    _wrong("rms-weight-outside-sums", "weight outside", "dx takes the weight out of the sums", GRADIENT),
    _wrong("rms-dx-constants", "constants", "dx takes the statistics for constants", GRADIENT),
    _wrong("rms-dx-centred", "centred", "dx subtracts a mean, as that of layer norm does", GRADIENT),
    _wrong("rms-dweight-from-x", "dweight from x", "dweight sums dy x, not dy x/rms", GRADIENT),
    _wrong("rms-last-row-lost", "last row lost", "dweight leaves the last row out", GRADIENT),
]


def serial_forward(x: Array, normalized_shape: tuple[int, ...], weight: Any, eps: float) -> tuple[Any, ...]:
    """Squares added one after the other, the weight multiplied into 1/rms first."""
    rows = _rows(x, normalized_shape)
    total = np.zeros(rows.shape[0], rows.dtype)
    for column in rows.T:
        total = total + column * column
    r = (1 / np.sqrt(total / rows.shape[1] + eps)).astype(rows.dtype)[:, None]
    scale = r if weight is None else r * weight.reshape(-1)
    return (rows * scale).reshape(x.shape), r


def expanded_backward(
    dy: Array, x: Array, weight: Any, eps: float, normalized_shape: tuple[int, ...], saved: Any
) -> tuple[Any, ...]:
    """dx = r g - r^3 x sum(g x)/n, on raw x; dweight row after row."""
    rows, g = _rows(x, normalized_shape), _rows(dy, normalized_shape)
    (r,) = saved
    wg = g if weight is None else g * weight.reshape(-1)
    dx = r * wg - r**3 * rows * ((wg * rows).sum(axis=1, keepdims=True) / rows.shape[1])
    if weight is None:
        return (dx.reshape(x.shape),)
    dweight = np.zeros(rows.shape[1], rows.dtype)
    for row in range(rows.shape[0]):
        dweight = dweight + g[row] * (rows[row] * r[row])
    return dx.reshape(x.shape), dweight.reshape(weight.shape)


CORRECT = [
    Correct("rms-compact", "the compact backward", forward, backward, operation="rms_norm"),
    Correct("rms-serial", "serial sums, expanded backward", serial_forward, expanded_backward, operation="rms_norm"),
]
