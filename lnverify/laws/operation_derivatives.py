"""LN809 and on: gradients of norms and cells that are asked for alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, law
from lnverify.norms.judge import judge, judge_values, measured
from lnverify.operation import operation

ASKED = "a gradient depends on which arguments require one"


@law("LN809", name="operation-subsets", severity="error", operation="derived", needs=("dx",), limit=24,
     source="pytorch/pytorch#18233, #79705, #193016")  # fmt: skip
def operation_subsets(ev: Evaluation) -> Outcome:
    """A gradient of a norm or of a cell does not depend on which other arguments require one.

    Bound: that of LN802, which the case keeps where all gradients are asked for; what is wrong or refused there is left
    to it. Of a norm every subset is asked for: parameters alone, x alone, one of them frozen. Of a cell x, the states,
    the weight matrices, or gains and shifts alone, and all but one argument.
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
            if got is None:
                text = f"d{name} is missing {alone}."
                return Outcome("violated", np.inf, f"d{name}", message=text, cause=ASKED, case=case)
            judgement = judge_values(bounds, f"d{name}", got)
            if judgement.state in ("violated", "shape"):
                told = judgement.sentence() if judgement.state == "violated" else judgement.message
                text = f"d{name} is wrong {alone}: {told}"
                return replace(judgement.outcome(ASKED, text), state="violated", case=case)
            best = _nearer(best, judgement.outcome(""))
    return best


def _nearer(best: Outcome, outcome: Outcome) -> Outcome:
    """The one that informs and is nearer to its bound."""
    if not outcome.informative:
        return best
    return outcome if not best.informative or outcome.ratio > best.ratio else best


def _subsets(case: Case, present: list[str]) -> Iterator[tuple[str, ...]]:
    """Sets of arguments, neither empty nor all."""
    known = operation(case.operation)
    if known.cell is None:
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
