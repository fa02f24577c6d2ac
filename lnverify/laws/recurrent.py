"""LN804 to LN806 and LN826: how recurrent cells are called: modes, and states that are given or made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, law
from lnverify.laws.operation_calls import in_modes, judged
from lnverify.norms.cases import resting
from lnverify.norms.judge import judge
from lnverify.operation import Operation, operation

PAPER = "Ba, Kiros, Hinton (2016), 3.1"


def operation_of(case: Case) -> tuple[Operation, Mapping[str, str]]:
    """The operation, and the state that each output replaces."""
    known = operation(case.operation)
    assert known.cell is not None
    return known, known.cell.states


def wrong_anyway(ev: Evaluation) -> bool:
    """Whether LN801 finds fault with the step itself, so that nothing can be learned of how it is called."""
    return any(judge(ev, output).state not in ("holds", "vacuous") for output in operation_of(ev.case)[0].outputs)


@law("LN804", name="cell-modes", severity="error", operation="cells", needs=("module",), limit=24, source=PAPER)
def cell_modes(ev: Evaluation) -> Outcome:
    """A cell in evaluation mode is right, and so is it without gradients: layer norm is the same in both.

    Bound: that of LN801. There are no running statistics; what differs between the modes, dropout say, is to be off.
    """
    if wrong_anyway(ev):
        return INAPPLICABLE
    return in_modes(ev, ("eval", "enabled"), ("eval", "no_grad"), ("train", "no_grad"))


@law("LN805", name="cell-resting", severity="error", operation="cells", needs=("resting",), limit=24, source=PAPER)
def cell_resting(ev: Evaluation) -> Outcome:
    """Without a state a cell begins at zero states, also after another sequence has run, and without gradients.

    Bound: that of LN801 at zero states, for what is returned where no state is given: at once, again, and after a call
    with a state. A mode in which the cell is wrong with zero states that are given is LN804's.
    """
    if wrong_anyway(ev):
        return INAPPLICABLE
    known, _ = operation_of(ev.case)
    best = VACUOUS
    for train, grad_mode, said in ((True, "enabled", ""), (False, "no_grad", ", no gradients")):
        given = ev.again(replace(ev.case.forward_alone(**_zeros(ev.case)), train=train, grad_mode=grad_mode))
        if judged(given, "", "").bad:
            continue
        for when in ("at once", "again", "after another sequence"):
            if when == "after another sequence":
                ev.again(ev.case.forward_alone()).ask(*known.outputs, fresh=True)
            asked = replace(resting(ev.case), train=train, grad_mode=grad_mode)
            answer = ev.evaluator.subject.run(asked.request(*known.outputs))
            run = Evaluation(given.case, ev.evaluator, answer)
            outcome = judged(run, f"No state{said}, {when}", "no state is not a zero state")
            if outcome.bad:
                return outcome
            best = outcome if outcome.informative else best
    return best


def _zeros(case: Case) -> dict[str, FloatArray]:
    """Zero states."""
    return {name: FloatArray.of(np.zeros(case.arrays[name].shape), case.dtype) for name in operation_of(case)[0].states}


@law("LN826", name="cell-resting-dtype", severity="warning", operation="cells", needs=("resting",), limit=6,
     source=PAPER)  # fmt: skip
def cell_resting_dtype(ev: Evaluation) -> Outcome:
    """What a cell returns without a state has the dtype that it has with zero states.

    Bound: none. A state made in the framework's default dtype promotes all that follows.
    """
    known, _ = operation_of(ev.case)
    given = ev.again(ev.case.forward_alone(**_zeros(ev.case))).ask(*known.outputs).arrays
    found = ev.evaluator.subject.run(resting(ev.case).request(*known.outputs)).arrays
    for name in known.outputs:
        if name not in given or name not in found:
            return INAPPLICABLE
        if found[name].dtype != given[name].dtype:
            text = f"Without a state {name} is {found[name].dtype}, with a zero state {given[name].dtype}."
            cause = "the state that is made has another dtype"
            return Outcome("violated", float("inf"), name, message=text, cause=cause)
    return Outcome("holds", 0.0, "y")


@law("LN806", name="cell-output", severity="error", operation="cells", limit=24, source=PAPER)
def cell_output(ev: Evaluation) -> Outcome:
    """The output of a step is the h that it hands on, bit for bit.

    Bound: none; both are one array in every cell of these operations. Where only one of them is returned there is
    nothing to compare, and the law holds.
    """
    answer = ev.again(ev.case.forward_alone()).ask("y", "hy")
    y, hy = answer.arrays.get("y"), answer.arrays.get("hy")
    if y is None or hy is None:
        return INAPPLICABLE
    if y.same_bits(hy):
        return Outcome("holds", 0.0, "y")
    text = f"The output begins {_first(y)}, the h of the state {_first(hy)}."
    return Outcome("violated", float("inf"), "y", message=text, cause="the state that is handed on is not the output")


def _first(array: FloatArray) -> str:
    return ", ".join(f"{value:.6g}" for value in array.values.reshape(-1)[:3])
