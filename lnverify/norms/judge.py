"""Judge: one output of an evaluation of another norm against its bound, as lnverify.evaluation does for layer norm."""

from __future__ import annotations

from functools import lru_cache

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.judgement import Judgement
from lnverify.norms.against import judge_against, ratios_of
from lnverify.norms.blocks import BlockBounds, BlockExact
from lnverify.norms.bound import NormBounds, due
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.norms.exact import Exact
from lnverify.norms.running_statistics import EvaluationBounds
from lnverify.operation import blocks, cells, operation


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
    return ratios_of(bounds.exact.pair(output), bounds.bound(output), returned, dtype, due(ev.case, output).dtype)


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
