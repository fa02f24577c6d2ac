"""Against: values that were returned, against exact ones and a bound."""

from __future__ import annotations

import numpy as np

from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, error_in_ulp
from lnverify.judgement import Judgement
from lnverify.oracle import Pair


def ratios_of(exact: Pair, bound: Float64Array, returned: Float64Array, dtype: str, kind: str) -> Float64Array:
    """Distance from the exact value to the rounding cell of what was returned, over the bound; 0 where not judged."""
    # A result wider than its due format is judged by the due one.
    fmt = FORMATS[kind] if FORMATS[dtype].precision > FORMATS[kind].precision else FORMATS[dtype]
    with np.errstate(all="ignore"):
        apart = distance(returned, exact.hi, exact.lo, fmt)
        blind = ~np.isfinite(bound) | ~np.isfinite(exact.hi)
        return np.where(blind | (apart == 0), 0.0, apart / np.where(blind, 1.0, bound))


def judge_against(output: str, got: FloatArray, exact: Pair, bound: Float64Array, like: FloatArray) -> Judgement:
    """Judge given values by exact ones and a bound. like: an array of the shape and dtype that they are to have."""
    if got.shape != like.shape:
        return Judgement(output, "shape", message=f"{output} has shape {got.shape}, {like.shape} is right.")
    returned = got.values.reshape(exact.hi.shape)
    ratio = ratios_of(exact, bound, returned, got.dtype, like.dtype)
    judged = np.isfinite(bound) & np.isfinite(exact.hi)
    if not judged.any():
        return Judgement(output, "vacuous")
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    scale = np.abs(exact.hi).max(where=judged, initial=0.0)
    sees = bool((judged & (bound < scale)).any()) if scale > 0 else True
    fmt = FORMATS[like.dtype]
    ulps = error_in_ulp(returned, exact.hi, exact.lo, fmt).max(where=judged, initial=0.0) if worst > 1 else 0.0
    place = np.unravel_index(int(np.ravel_multi_index(at, ratio.shape)), like.shape)
    return Judgement(
        output, "violated" if worst > 1 else "holds" if sees else "vacuous", worst, tuple(int(i) for i in place),
        float(exact.hi[at]), float(returned[at]), float(bound[at]), float(ulps),
    )  # fmt: skip
