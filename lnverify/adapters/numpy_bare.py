"""A NumPy subject's own code as one call without arguments, to be timed; copies of as many bytes, its physical limit.

16-bit arrays come as float32, as lnverify.adapters.numpy_function says: that is what is timed, and what is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lnverify.adapters.calling import saved_values, split
from lnverify.adapters.signature import Signature, axis, own_values
from lnverify.errors import SignatureError
from lnverify.protocol import Request

Call = Callable[[], Any]
Matched = tuple[Callable[..., Any], Signature]


def scalars(request: Request) -> dict[str, Any]:
    """The values that are no arrays, by our names; dtype: the name of the storage format."""
    x = request.arrays["x"]
    return {
        "eps": request.eps,
        "normalized_shape": request.normalized_shape,
        "dtype": x.dtype,
        "axis": axis(request.normalized_shape),
        **own_values(request),
    }


def bare(
    request: Request,
    what: str,
    held: Mapping[str, Any],
    function: Matched,
    returns: tuple[str, ...] = ("y",),
    backward: Matched | None = None,
) -> Call:
    """The 'forward', the 'backward' or 'both' as one call, on the arrays held. Raises what the subject raises.

    Raises SignatureError for one that writes into arrays: it needs fresh ones for every call.
    """
    if function[1].wants or (backward is not None and backward[1].wants):
        raise SignatureError("a NumPy function that writes into arrays is not timed: give one that returns its results")
    values = {**{name: array for name, array in held.items() if name != "dy"}, **scalars(request)}
    forward = function[1].bound(function[0], values)
    if what == "forward":
        return forward
    if backward is None:
        raise SignatureError("there is no backward to time: declare one, ?backward=its_name")
    separate, signature = backward

    def again(returned: Any) -> Call:
        y, extra, named = split(returned, returns)
        return signature.bound(separate, {**values, **saved_values(extra, named), "y": y, "dy": held["dy"]})

    return again(forward()) if what == "backward" else lambda: again(forward())()


def copies(elements: int, dtype: str, device: str) -> tuple[Call, Call]:
    """A copy of so many elements into memory that is there already, and one that allocates its memory."""
    source = np.ones(elements, dtype=np.float64 if dtype == "float64" else np.float32)
    target = np.empty_like(source)
    return lambda: np.copyto(target, source), source.copy


def use_threads(count: int) -> None:
    """Nothing: how many threads NumPy uses is for its environment to say."""


def accelerator(device: str) -> str:
    """'': NumPy computes on the CPU."""
    return ""
