"""LN809, LN813, LN814: gradients that are asked for alone; forward mode and double backward."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, first_bad, law
from lnverify.laws.autodiff import present_parameters
from lnverify.norms.bound import NormBounds
from lnverify.norms.cases import with_tangents
from lnverify.norms.judge import judge, judge_values, measure, measured
from lnverify.operation import norms, operation

DERIVED = "the derived programs of reference/; running errors, Higham (2002), 3.3"
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


def _place(case: Case) -> int:
    """A number that is another one in each case."""
    return int(case.arrays["x"].bits.sum())


def _subsets(case: Case, present: list[str]) -> Iterator[tuple[str, ...]]:
    """Sets of arguments, neither empty nor all: every one of a few arguments, and some of many."""
    known = operation(case.operation)
    if len(present) <= FEW:
        for mask in range(1, 2 ** len(present) - 1):
            yield tuple(name for place, name in enumerate(present) if mask >> place & 1)
        return
    affine = (*known.gains, *known.shifts)
    matrices = tuple(name for name in known.parameters if name not in affine)
    frozen = present[_place(case) % len(present)]
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


@law("LN813", name="operation-jvp", severity="error", operation="derived", needs=("ty",), limit=16, source=DERIVED)
def operation_jvp(ev: Evaluation) -> Outcome:
    """The jvp of a norm, cell or block is the derivative of every output along the tangents: along all of them, and
    along each alone; of many arguments along one of them, another one in each case.

    Bound: the running error of the derived forward mode, x (or what a cell or block normalises) seeded as in LN802; in
    16 bits with u of the storage format. A tangent that is missing is zero.
    """
    known = operation(ev.case.operation)
    if not _right(ev, *known.outputs):
        return INAPPLICABLE
    full = with_tangents(ev.case)
    present = full.requires_grad
    alone = (full.with_arrays(**{f"t{n}": None for n in present if n != kept}) for kept in _alone(full))
    bounds = _bounds(ev)
    return first_bad(_along(ev.again(case), bounds.of(case)) for case in (full, *alone))


def _alone(case: Case) -> list[str]:
    """The arguments along which alone a case is differentiated."""
    present = case.requires_grad
    if len(present) > FEW:
        return [present[_place(case) % len(present)]]
    return [*present] if len(present) > 1 else []


def _along(ev: Evaluation, bounds: NormBounds) -> Outcome:
    tangents = tuple(f"t{name}" for name in operation(ev.case.operation).outputs)
    answer = ev.ask(*tangents)
    if answer.refusal is not None:
        return INAPPLICABLE  # what is refused misleads nobody
    return _together(bounds, dict.fromkeys(tangents, "the jvp is wrong"), answer.arrays, "In forward mode")


def _together(bounds: NormBounds, causes: Mapping[str, str], arrays: Mapping[str, FloatArray], what: str) -> Outcome:
    """The derivatives of a case; what is missing is right iff zero is. causes: of a wrong one, by name."""
    best, case = INAPPLICABLE, bounds.exact.case
    for name, cause in causes.items():
        got = arrays.get(name)
        if got is None:
            if (np.abs(bounds.exact.pair(name).hi) > bounds.bound(name)).any():
                text = f"{what}: there is no {name} where it is not zero."
                return Outcome("violated", np.inf, name, message=text, cause=f"{name} is missing", case=case)
            continue
        judgement = judge_values(bounds, name, got)
        if judgement.wrong:
            return judgement.blame(what, cause, case)
        outcome = judgement.outcome("")
        best = outcome if best is INAPPLICABLE else _nearer(best, outcome)
    return best


@law("LN814", name="operation-double-backward", severity="error", operation="derived", needs=("d2x",), limit=16,
     source=DERIVED)  # fmt: skip
def operation_double_backward(ev: Evaluation) -> Outcome:
    """The gradients of a norm, cell or block can be differentiated: d2x, d2weight, ... and d2dy are the vjp of the vjp,
    by every argument and by the cotangent of every output.

    Bound: the running error of that derived program, seeded as in LN813; in 16 bits with u of the storage format. What
    is missing is right iff the exact result is within the bound of zero. A norm that has a double backward has it in
    every case; a cell or block may refuse it where one of its parts does.
    """
    known, single = operation(ev.case.operation), ev.case.operation in norms()
    if not all(map(ev.case.has, known.cotangents)) or not _right(ev, *known.outputs, *ev.case.gradients()):
        return INAPPLICABLE
    again = ev.again(with_tangents(ev.case))
    answer = again.second_order
    if answer.refusal is not None:
        if not single:
            return INAPPLICABLE  # one of the parts refuses it, for which whoever composed them is not to blame
        text = f"The double backward is refused: {answer.refusal}"
        cause = f"the double backward is refused {present_parameters(again.case)}"
        return Outcome("crashed", np.inf, "d2x", message=text, cause=cause, case=again.case)
    names = [f"d2{name}" for name in (*again.case.requires_grad, *known.cotangents)]
    # of many arguments most are wrong together
    causes = {name: f"the double backward is wrong{f' in {name}' if single else ''}" for name in names}
    return _together(_bounds(ev).of(again.case), causes, answer.arrays, "Differentiated again")
