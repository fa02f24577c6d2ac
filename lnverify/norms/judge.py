"""Judge: one output of an evaluation of another norm against its bound, as lnverify.evaluation does for layer norm."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, error_in_ulp
from lnverify.judgement import Judgement
from lnverify.norms.blocks import BlockBounds, BlockExact
from lnverify.norms.bound import NormBounds, due
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.norms.exact import Exact
from lnverify.norms.running_statistics import EvaluationBounds
from lnverify.operation import blocks, cells, operation
from lnverify.oracle import Pair


@lru_cache(maxsize=16)
def measure(case: Case, compute: str) -> NormBounds:
    """Exact results and bounds of a case, one object for the laws that look at it one after the other."""
    if case.operation in cells():
        return CellBounds(CellExact(case), FORMATS[compute])
    if case.operation in blocks():
        return BlockBounds(BlockExact(case), FORMATS[compute])
    kind = EvaluationBounds if operation(case.operation).data else NormBounds
    return kind(Exact(case), FORMATS[compute])


def measured(ev: Evaluation) -> NormBounds:
    """The same for an evaluation: in the format that the subject declares, else that of its storage."""
    return measure(ev.case, ev.subject.capabilities.compute.get(ev.case.dtype, ev.case.dtype))


def judge(ev: Evaluation, output: str) -> Judgement:
    """Judge y or a gradient."""
    key = (output, "norm", False)
    if key not in ev.judged:
        ev.judged[key] = _judge(ev, output)
    return ev.judged[key]


def ratios(ev: Evaluation, output: str, returned: Float64Array, dtype: str) -> Float64Array:
    """Distance from the exact value to the rounding cell of what was returned, over the bound; 0 where not judged."""
    bounds = measured(ev)
    return _ratios(bounds.exact.pair(output), bounds.bound(output), returned, dtype, due(ev.case, output).dtype)


def _ratios(exact: Pair, bound: Float64Array, returned: Float64Array, dtype: str, kind: str) -> Float64Array:
    # A result wider than its due format is judged by the due one.
    fmt = FORMATS[kind] if FORMATS[dtype].precision > FORMATS[kind].precision else FORMATS[dtype]
    with np.errstate(all="ignore"):
        apart = distance(returned, exact.hi, exact.lo, fmt)
        blind = ~np.isfinite(bound) | ~np.isfinite(exact.hi)
        return np.where(blind | (apart == 0), 0.0, apart / np.where(blind, 1.0, bound))


def _judge(ev: Evaluation, output: str) -> Judgement:
    if ev.response.refusal is not None:
        return Judgement(output, "refused", message=ev.response.refusal)
    got = ev.output(output)
    if got is None:
        return Judgement(output, "missing")
    return judge_values(measured(ev), output, got)


def judge_values(bounds: NormBounds, output: str, got: FloatArray) -> Judgement:
    """Judge given values as this output of the bounds' case."""
    return judge_against(output, got, bounds.exact.pair(output), bounds.bound(output), due(bounds.exact.case, output))


def judge_against(output: str, got: FloatArray, exact: Pair, bound: Float64Array, like: FloatArray) -> Judgement:
    """Judge given values by exact ones and a bound. like: an array of the shape and dtype that they are to have."""
    if got.shape != like.shape:
        return Judgement(output, "shape", message=f"{output} has shape {got.shape}, {like.shape} is right.")
    returned = got.values.reshape(exact.hi.shape)
    ratio = _ratios(exact, bound, returned, got.dtype, like.dtype)
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
