"""LN80x: values and gradients of other norms, of recurrent cells and of blocks, each by its own formulas."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.judgement import Judgement
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, law
from lnverify.norms.diagnosis import cause
from lnverify.norms.judge import judge
from lnverify.operation import operation

DERIVED = "the programs of reference/norms.py and their derived reverse mode; Higham (2002), 3.3 and ch. 4"


def _outcome(ev: Evaluation, output: str) -> Outcome:
    judgement = judge(ev, output)
    if judgement.state == "refused":
        phase = ev.response.phase
        if phase == "placement":
            return INAPPLICABLE  # nothing was asked
        if (phase == "forward") != (output in operation(ev.case.operation).outputs):
            return INAPPLICABLE  # the law of the other phase says so
        text = f"An input of a kind that is supported is refused in the {phase}: {judgement.message}"
        return Outcome("crashed", float("inf"), output, message=text, cause=f"the {phase} refuses a valid input")
    if judgement.state == "missing":
        text = f"{output} is asked for, and nothing is returned."
        return Outcome("violated", float("inf"), output, message=text, cause=f"{output} is missing")
    if judgement.state == "shape":
        text = f"{judgement.message}"
        return Outcome("violated", float("inf"), output, message=text, cause=f"{output} has a wrong shape")
    bad = judgement.state == "violated"
    return judgement.outcome(cause(ev, output) if bad else "", _sentence(ev, judgement) if bad else None)


def _sentence(ev: Evaluation, judgement: Judgement) -> str:
    """The judgement's sentence; in 16 bits with what it is measured by."""
    text = judgement.sentence()
    if FORMATS[ev.case.dtype].precision <= 11 and ev.case.dtype not in ev.subject.capabilities.compute:
        text += f" Rounding every intermediate result to {ev.case.dtype} would explain less."
    return text


@law("LN801", name="operation-accuracy", severity="error", operation="derived", source=DERIVED)
def operation_accuracy(ev: Evaluation) -> Outcome:
    """y of a norm other than layer norm or of a transformer block, or every new state of a cell, is what an admissible
    error before the final rounding explains.

    Bound: the running error of the operation's formula for every order of summation, with x seeded for algorithms on
    raw data (lnverify.norms.bound; of a block lnverify.norms.blocks). In 16 bits every intermediate result may be
    rounded to 16 bits, unless the subject declares what it computes in. An input of a kind that the subject supports
    and then refuses is a violation too.
    """
    return _together(_outcome(ev, name) for name in operation(ev.case.operation).outputs)


def _together(outcomes: Iterable[Outcome]) -> Outcome:
    """The first of several outputs that is bad, else the one that is nearest to its bound."""
    found = list(outcomes)
    if bad := [outcome for outcome in found if outcome.bad]:
        return bad[0]
    if seen := [outcome for outcome in found if outcome.informative]:
        return max(seen, key=lambda outcome: outcome.ratio)
    return VACUOUS if any(outcome.state == "vacuous" for outcome in found) else INAPPLICABLE


@law("LN802", name="operation-gradient", severity="error", operation="derived", needs=("dx",), source=DERIVED)
def operation_gradient(ev: Evaluation) -> Outcome:
    """Every gradient of another norm, of one step of a cell or of a block is within the bound, and is there.

    Bound: the running error of the derived reverse mode (lnverify.norms.bound), which counts every term of a sum over
    rows and positions. Statistics depend on x, and the gradients go through them.
    """
    wanted = [name for name in ev.case.gradients() if name in ev.subject.capabilities.outputs]
    if not ev.case.has("dy") or not wanted:
        return INAPPLICABLE
    return _together(_outcome(ev, name) for name in wanted)


STEPS = 4


@law("LN803", name="cell-steps", severity="error", operation="cells", limit=24, source="Ba, Kiros, Hinton (2016), 3.1")
def cell_steps(ev: Evaluation) -> Outcome:
    """A cell that runs on from its own state is right in every step, whatever it did in the steps before.

    Bound: that of LN801 for each step, from the state that the subject itself returned. A bound that is chained through
    time would multiply at each step by |V| |weight|/sigma and soon admit everything; the exact step from the same state
    needs no chain. Each step's x is the one before with its rows and columns in reverse order.
    """
    step, best = ev, INAPPLICABLE
    known = operation(ev.case.operation)
    assert known.cell is not None
    for number in range(1, STEPS):
        states = {before: step.output(output) for output, before in known.cell.states.items()}
        if any(state is None or not _alike(state, step.case.arrays[name]) for name, state in states.items()):
            return best
        x = step.case.arrays["x"]
        turned = FloatArray(x.dtype, np.ascontiguousarray(x.bits[::-1, ::-1]))
        step = ev.again(step.case.with_arrays(x=turned, **states))
        for output in known.outputs:
            judgement = judge(step, output)
            if judgement.state == "violated":
                text = f"Step {number + 1} from its own state: {judgement.sentence()}"
                return replace(judgement.outcome("a later step of the cell is wrong", text), case=step.case)
            outcome = judgement.outcome("")
            best = outcome if outcome.informative else best
    return best


def _alike(state: FloatArray, before: FloatArray) -> bool:
    return state.dtype == before.dtype and state.shape == before.shape
