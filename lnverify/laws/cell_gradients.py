"""LN824 and LN825: gradients of recurrent cells that one step with every cotangent does not show."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, first_bad, law
from lnverify.laws.operation_calls import right
from lnverify.norms.against import judge_against
from lnverify.norms.bound import due
from lnverify.norms.judge import judge_values, measured
from lnverify.norms.unrolled import Unrolled, contracting
from lnverify.operation import operation
from lnverify.recipes import normal

BPTT = "Werbos (1990), Backpropagation through time; Ba, Kiros, Hinton (2016), 3.1"
STEPS = 20  # of a sequence
LONG = 131  # of one with a single row in float32, where exact results are cheap: more than 128, no multiple of a chunk
UNITS = 40  # of the largest cell that is unrolled


@law("LN824", name="cell-cotangents", severity="error", operation="cells", needs=("dx",), limit=24, source=BPTT)
def cell_cotangents(ev: Evaluation) -> Outcome:
    """Where only one of a cell's new states is differentiated, h or c, the gradients are those of that one alone; and
    where h is differentiated as the state that is handed on, they are those of h.

    Bound: that of LN802, with zero in the place of a cotangent that is not given. A gradient that is None is zero.
    """
    if not right(ev):
        return INAPPLICABLE
    known = operation(ev.case.operation)
    outcomes = [
        _alone(ev, name, output)
        for name, output in zip(known.cotangents, known.outputs, strict=True)
        if len(known.cotangents) > 1
    ]
    handed = replace(ev.case, history="state", recipe=None)
    if all(map(ev.case.has, known.cotangents)):
        said = "With the cotangent of the state that is handed on"
        outcomes.append(_gradients(ev, handed, ev, said, "the gradients of the state that is handed on are wrong"))
    return first_bad(outcomes) if outcomes else INAPPLICABLE


def _alone(ev: Evaluation, name: str, output: str) -> Outcome:
    """The gradients of one output; name: of its cotangent."""
    others = [other for other in operation(ev.case.operation).cotangents if other != name]
    zeros = {n: FloatArray.of(np.zeros(ev.case.arrays[n].shape), ev.case.dtype) for n in others}
    alone = ev.case.with_arrays(**dict.fromkeys(others))
    what, cause = f"With a cotangent of {output} alone", f"the gradients of {output} alone are wrong"
    return _gradients(ev, alone, ev.again(ev.case.with_arrays(**zeros)), what, cause)


def _gradients(ev: Evaluation, case: Case, due_by: Evaluation, what: str, cause: str) -> Outcome:
    """The gradients of a case, by the bounds of another evaluation; only those that the plain request gives."""
    answer = Evaluation(case, ev.evaluator).ask(*operation(case.operation).outputs, "hy", *case.gradients())
    best: Outcome = INAPPLICABLE
    if case.history and "hy" not in answer.arrays:
        return best
    for gradient in case.gradients() if answer.refusal is None else ():
        if gradient not in ev.response.arrays:
            continue
        zero = FloatArray.of(np.zeros(ev.case.arrays[gradient[1:]].shape), ev.case.dtype)
        judgement = judge_values(measured(due_by), gradient, answer.arrays.get(gradient, zero))
        if judgement.wrong:
            return judgement.blame(what, cause, case)
        best = judgement.outcome("") if judgement.state == "holds" else best
    return best


def _sequence(case: Case) -> Case:
    """A contracting cell over several steps, with a cotangent for each output and one for the last c."""
    known = operation(case.operation)
    rows, inputs = case.arrays["x"].shape
    count = LONG if rows == 1 and case.dtype == "float32" else STEPS

    def draw(seed: int, *shape: int) -> FloatArray:
        return FloatArray.of(normal(seed, shape), case.dtype)

    last = {name: draw(5, rows, case.n) for name in known.cotangents[1:]}
    return contracting(case).with_arrays(x=draw(3, count, rows, inputs), dy=draw(4, count, rows, case.n), **last)


@law("LN825", name="sequence-gradient", severity="error", operation="cells", needs=("sequence", "dx"), limit=3,
     dtypes=("float32", "float64"), runs=100, source=BPTT)  # fmt: skip
def sequence_gradient(ev: Evaluation) -> Outcome:
    """The gradients of a layer over a long sequence go back through all steps, to every x, the first state and every
    parameter.

    Bound: the derived reverse mode of one step, chained over 20 steps (131 for a single row in float32) with the
    running error of every state and cotangent (lnverify.norms.unrolled), for gains and an eps with which errors die
    out.
    """
    if ev.case.n > UNITS or not all(map(ev.case.has, operation(ev.case.operation).cotangents)) or not right(ev):
        return INAPPLICABLE
    case = _sequence(ev.case)
    declared = ev.subject.capabilities
    case = replace(case, eps=ev.case.eps) if declared.eps is not None else case
    wanted = [name for name in case.gradients() if name in declared.outputs]
    answer = Evaluation(case, ev.evaluator).ask("y", *wanted)
    if answer.refusal is not None:
        return INAPPLICABLE
    unrolled = Unrolled(case, measured(ev).compute)
    what, cause = f"Over {case.arrays['x'].shape[0]} steps", "gradients through time are wrong"
    best = VACUOUS
    for name in wanted:
        got = answer.arrays.get(name)
        if got is None:
            return Judgement(name, "missing").blame(what, cause, case)
        judgement = judge_against(name, got, unrolled.pair(name), unrolled.bound(name), due(case, name))
        if judgement.wrong:
            return judgement.blame(what, cause, case)
        best = judgement.outcome("") if judgement.state == "holds" else best
    return best
