"""LN809, LN813, LN814: gradients that are asked for alone; forward mode and double backward of norms."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, first_bad, law
from lnverify.laws.autodiff import present_parameters
from lnverify.norms.bound import NormBounds
from lnverify.norms.cases import with_tangents
from lnverify.norms.judge import judge, judge_values, measure, measured
from lnverify.operation import operation

DERIVED = "the derived programs of reference/norms.py; running errors, Higham (2002), 3.3"
FEW = 3  # arguments of which every set is asked for: x, weight and bias
ASKED = "a gradient depends on which arguments require one"


@law("LN809", name="operation-subsets", severity="error", operation="derived", needs=("dx",), limit=24,
     source="pytorch/pytorch#18233, #79705, #193016")  # fmt: skip
def operation_subsets(ev: Evaluation) -> Outcome:
    """A gradient of a norm, cell or block does not depend on which other arguments require one.

    Bound: that of LN802, which the case keeps where all gradients are asked for; what is wrong or refused there is left
    to it. Of a norm every subset is asked for: parameters alone, x alone, one of them frozen. Of a cell or block x, the
    states, the weight matrices, or gains and shifts alone, and all but one argument.
    """
    present = [name for name in operation(ev.case.operation).arguments if ev.case.has(name)]
    asked = [name for name in ev.case.gradients() if name in ev.subject.capabilities.outputs]
    if not ev.case.has(operation(ev.case.operation).cotangents[0]) or len(present) < 2 or len(asked) < len(present):
        return INAPPLICABLE
    if any(judge(ev, name).state not in ("holds", "vacuous") for name in asked):
        return INAPPLICABLE
    bounds, best = measured(ev), VACUOUS
    for subset in _subsets(ev.case, present):
        case = replace(ev.case, requires_grad=subset)
        answer = ev.again(case).response
        alone = f"when a gradient is asked of {', '.join(subset)} alone, and right when of all"
        if answer.refusal is not None:
            text = f"The {answer.phase} is refused {alone}: {answer.refusal}"
            return Outcome("crashed", np.inf, f"d{subset[0]}", message=text, cause=ASKED, case=case)
        for name in subset:
            got = answer.arrays.get(f"d{name}")
            missing = Judgement(f"d{name}", "missing")
            judgement = missing if got is None else judge_values(bounds, f"d{name}", got)
            if judgement.wrong:
                return judgement.blame(f"d{name} is wrong {alone}", ASKED, case)
            best = _nearer(best, judgement.outcome(""))
    return best


def _nearer(best: Outcome, outcome: Outcome) -> Outcome:
    """The one that informs and is nearer to its bound."""
    if not outcome.informative:
        return best
    return outcome if not best.informative or outcome.ratio > best.ratio else best


def _subsets(case: Case, present: list[str]) -> Iterator[tuple[str, ...]]:
    """Sets of arguments, neither empty nor all: every one of a few arguments, and some of many."""
    known = operation(case.operation)
    if len(present) <= FEW:
        for mask in range(1, 2 ** len(present) - 1):
            yield tuple(name for place, name in enumerate(present) if mask >> place & 1)
        return
    affine = (*known.gains, *known.shifts)
    matrices = tuple(name for name in known.parameters if name not in affine)
    frozen = present[int(case.arrays["x"].bits.sum()) % len(present)]  # another one in each case
    groups = (known.inputs, known.states, matrices, affine, tuple(name for name in present if name != frozen))
    for group in groups:
        if subset := tuple(name for name in group if name in present):
            yield subset


def _bounds(ev: Evaluation) -> NormBounds:
    """In 16 bits those of code that computes in the storage format, in which derivatives are composed."""
    return measure(ev.case, ev.case.dtype) if FORMATS[ev.case.dtype].precision <= 11 else measured(ev)


def _right(ev: Evaluation, *outputs: str) -> bool:
    """Whether LN801 and LN802 find no fault with these outputs."""
    return all(judge(ev, output).state in ("holds", "vacuous") for output in outputs)


@law("LN813", name="operation-jvp", severity="error", operation="norms", needs=("ty",), limit=24, source=DERIVED)
def operation_jvp(ev: Evaluation) -> Outcome:
    """The jvp of a norm is the derivative of y along the tangents: along all of them, and along each alone.

    Bound: the running error of the derived forward mode, x seeded as in LN802; in 16 bits with u of the storage format.
    """
    if not _right(ev, "y"):
        return INAPPLICABLE
    full = with_tangents(ev.case)
    present = full.requires_grad
    alone = [full.with_arrays(**{f"t{n}": None for n in present if n != kept}) for kept in present if len(present) > 1]
    return first_bad(_along(ev.again(case)) for case in (full, *alone))


def _along(ev: Evaluation) -> Outcome:
    answer = ev.ask("ty")
    got = answer.arrays.get("ty")
    if answer.refusal is not None or got is None:
        return INAPPLICABLE  # what is refused misleads nobody, and no tangent is a zero one
    judgement = judge_values(_bounds(ev), "ty", got)
    return judgement.blame("In forward mode", "the jvp is wrong", ev.case) if judgement.wrong else judgement.outcome("")


@law("LN814", name="operation-double-backward", severity="error", operation="norms", needs=("d2x",), limit=24,
     source=DERIVED)  # fmt: skip
def operation_double_backward(ev: Evaluation) -> Outcome:
    """The gradients of a norm can be differentiated: d2x, d2weight, d2bias and d2dy are the vjp of the vjp.

    Bound: the running error of that derived program, x seeded as in LN802; in 16 bits with u of the storage format.
    What is missing is right iff the exact result is within the bound of zero.
    """
    if not ev.case.has("dy") or not _right(ev, "y", *ev.case.gradients()):
        return INAPPLICABLE
    again = ev.again(with_tangents(ev.case))
    answer = again.second_order
    if answer.refusal is not None:
        text = f"The double backward is refused: {answer.refusal}"
        cause = f"the double backward is refused {present_parameters(again.case)}"
        return Outcome("crashed", np.inf, "d2x", message=text, cause=cause, case=again.case)
    bounds, best = _bounds(again), VACUOUS
    for name in (*(f"d2{argument}" for argument in again.case.requires_grad), "d2dy"):
        got = answer.arrays.get(name)
        if got is None:
            if (np.abs(bounds.exact.pair(name).hi) > bounds.bound(name)).any():
                text = f"The double backward gives no {name} where it is not zero."
                cause = f"the double backward lacks {name}"
                return Outcome("violated", np.inf, name, message=text, cause=cause, case=again.case)
            continue
        judgement = judge_values(bounds, name, got)
        if judgement.wrong:
            return judgement.blame("Differentiated again", f"the double backward is wrong in {name}", again.case)
        best = _nearer(best, judgement.outcome(""))
    return best
