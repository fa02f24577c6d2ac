"""LN804 to LN808: how recurrent cells, and layers over sequences, are called: modes, states, one step or several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, law
from lnverify.norms.cases import resting
from lnverify.norms.cells import CellBounds
from lnverify.norms.judge import judge, judge_values, measured
from lnverify.operation import Operation, operation
from lnverify.protocol import Response

STEPS = 4
PAPER = "Ba, Kiros, Hinton (2016), 3.1"


def _known(case: Case) -> tuple[Operation, Mapping[str, str]]:
    """The operation, and the state that each output replaces."""
    known = operation(case.operation)
    assert known.cell is not None
    return known, known.cell.states


def _plain(case: Case, **arrays: FloatArray | None) -> Case:
    """The case for the forward alone, with other arrays."""
    return case.with_arrays(**dict.fromkeys(_known(case)[0].cotangents), **arrays)


def _wrong_anyway(ev: Evaluation) -> bool:
    """Whether LN801 finds fault with the step itself, so that nothing can be learned of how it is called."""
    return any(judge(ev, output).state not in ("holds", "vacuous") for output in _known(ev.case)[0].outputs)


def _judged(run: Evaluation, what: str, cause: str) -> Outcome:
    """Every output of a run by LN801's bound; a refusal is a crash."""
    if run.response.refusal is not None:
        text = f"{what}: {run.response.refusal}"
        return replace(Outcome("crashed", float("inf"), "y", message=text, cause=cause), case=run.case)
    best = INAPPLICABLE
    for output in _known(run.case)[0].outputs:
        judgement = judge(run, output)
        if judgement.state in ("violated", "missing", "shape"):
            told = judgement.sentence() if judgement.state == "violated" else judgement.message or f"no {output}"
            return replace(judgement.outcome(cause, f"{what}: {told}"), state="violated", case=run.case)
        outcome = judgement.outcome("")
        best = outcome if outcome.informative else best
    return best if best.informative else VACUOUS


@law("LN804", name="cell-modes", severity="error", operation="cells", needs=("module",), limit=24, source=PAPER)
def cell_modes(ev: Evaluation) -> Outcome:
    """A cell in evaluation mode is right, and so is it without gradients: layer norm is the same in both.

    Bound: that of LN801. There are no running statistics; what differs between the modes, dropout say, is to be off.
    """
    if _wrong_anyway(ev):
        return INAPPLICABLE
    for mode, grad_mode in (("eval", "enabled"), ("eval", "no_grad"), ("train", "no_grad")):
        case = replace(_plain(ev.case), train=mode == "train", grad_mode=grad_mode)
        outcome = _judged(ev.again(case), f"In {mode} mode, {grad_mode}", f"it is wrong in {mode} mode")
        if outcome.bad:
            return outcome
    return outcome


@law("LN805", name="cell-resting", severity="error", operation="cells", needs=("resting",), limit=24, source=PAPER)
def cell_resting(ev: Evaluation) -> Outcome:
    """Without a state a cell begins at zero states, also after another sequence has run, and without gradients.

    Bound: that of LN801 at zero states, for what is returned where no state is given: at once, again, and after a call
    with a state. A mode in which the cell is wrong with zero states that are given is LN804's.
    """
    if _wrong_anyway(ev):
        return INAPPLICABLE
    known, _ = _known(ev.case)
    best = VACUOUS
    for train, grad_mode, said in ((True, "enabled", ""), (False, "no_grad", ", no gradients")):
        given = ev.again(replace(_plain(ev.case, **_zeros(ev.case)), train=train, grad_mode=grad_mode))
        if _judged(given, "", "").bad:
            continue
        for when in ("at once", "again", "after another sequence"):
            if when == "after another sequence":
                ev.again(_plain(ev.case)).ask(*known.outputs, fresh=True)
            asked = replace(resting(ev.case), train=train, grad_mode=grad_mode)
            answer = ev.evaluator.subject.run(asked.request(*known.outputs))
            run = Evaluation(given.case, ev.evaluator, answer)
            outcome = _judged(run, f"No state{said}, {when}", "no state is not a zero state")
            if outcome.bad:
                return outcome
            best = outcome if outcome.informative else best
    return best


def _zeros(case: Case) -> dict[str, FloatArray]:
    """Zero states."""
    return {name: FloatArray.of(np.zeros(case.arrays[name].shape), case.dtype) for name in _known(case)[0].states}


@law("LN826", name="cell-resting-dtype", severity="warning", operation="cells", needs=("resting",), limit=6,
     source=PAPER)  # fmt: skip
def cell_resting_dtype(ev: Evaluation) -> Outcome:
    """What a cell returns without a state has the dtype that it has with zero states.

    Bound: none. A state made in the framework's default dtype promotes all that follows.
    """
    known, _ = _known(ev.case)
    given = ev.again(_plain(ev.case, **_zeros(ev.case))).ask(*known.outputs).arrays
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
    answer = ev.again(_plain(ev.case)).ask("y", "hy")
    y, hy = answer.arrays.get("y"), answer.arrays.get("hy")
    if y is None or hy is None:
        return INAPPLICABLE
    if y.same_bits(hy):
        return Outcome("holds", 0.0, "y")
    text = f"The output begins {_first(y)}, the h of the state {_first(hy)}."
    return Outcome("violated", float("inf"), "y", message=text, cause="the state that is handed on is not the output")


def _first(array: FloatArray) -> str:
    return ", ".join(f"{value:.6g}" for value in array.values.reshape(-1)[:3])


def _several(case: Case, steps: int, turn: int = 0) -> Case:
    """A case of several steps: x, then x with rows and columns in reverse order or with another sign.

    turn: changes every step but the first.
    """
    bits = case.arrays["x"].bits
    other = FloatArray.of(-case.arrays["x"].values, case.dtype).bits
    forms = (bits, bits[::-1, ::-1], other, other[::-1, ::-1])
    chosen = [forms[0], *(forms[(number + turn) % len(forms)] for number in range(1, steps))]
    return _plain(case, x=FloatArray(case.dtype, np.ascontiguousarray(np.stack(chosen))))


def _step(case: Case, number: int) -> FloatArray:
    x = case.arrays["x"]
    return FloatArray(x.dtype, np.ascontiguousarray(x.bits[number]))


@law("LN807", name="sequence-steps", severity="error", operation="cells", needs=("sequence",), limit=12, source=PAPER)
def sequence_steps(ev: Evaluation) -> Outcome:
    """Several steps at once are as many single steps: each state that a layer returns follows from the one before.

    The layer runs over the first 1, 2, 3 and 4 steps. The state after each is judged as one step from the state after
    the run that is one shorter. Bound: that of LN801, where the state before is uncertain by twice its own bound, since
    the two runs may have rounded it differently; where their outputs differ in bits at that step, c is not known, and
    the step is not judged.
    """
    if _wrong_anyway(ev):
        return INAPPLICABLE
    known, states = _known(ev.case)
    whole = _several(ev.case, STEPS)
    before: dict[str, FloatArray] = {name: ev.case.arrays[name] for name in known.states}
    around: dict[str, np.ndarray] = {}
    outputs: FloatArray | None = None
    best = VACUOUS
    for count in range(1, STEPS + 1):
        x = FloatArray(ev.case.dtype, np.ascontiguousarray(whole.arrays["x"].bits[:count]))
        answer = ev.again(whole.with_arrays(x=x)).ask(*known.outputs, "hy")
        found, after = answer.arrays.get("y"), _after(answer, known)
        step = _plain(ev.case, x=_step(whole, count - 1), **before)
        shape = (count, *ev.case.arrays["h"].shape)
        if answer.refusal is not None or found is None or found.shape != shape or set(after) != set(known.states):
            text = answer.refusal or f"{count} steps give outputs of shape {found.shape if found else ()}, not {shape}."
            return Outcome("violated", float("inf"), "y", message=text, cause="several steps at once are wrong")
        same = outputs is None or np.array_equal(found.bits[: count - 1], outputs.bits)
        bounds = measured(ev.again(step))
        assert isinstance(bounds, CellBounds)
        seeded = CellBounds(bounds.step, bounds.compute)
        seeded.around = around
        for output, state in states.items():
            judgement = judge_values(seeded, output, after[state])
            if same and judgement.state in ("violated", "shape"):
                told = judgement.sentence() if judgement.state == "violated" else judgement.message
                text = f"The state after {count} steps at once, from that after {count - 1}: {told}"
                return replace(judgement.outcome("several steps at once are wrong", text), state="violated", case=step)
            best = judgement.outcome("") if same and count > 1 and judgement.state == "holds" else best
        around = {state: 2 * bounds.bound(output) for output, state in states.items()}
        before, outputs = after, found
    return best


def _after(answer: Response, known: Operation) -> dict[str, FloatArray]:
    """The state that an answer hands on."""
    names = dict(zip(known.states, ("hy", *known.outputs[1:]), strict=True))
    return {state: answer.arrays[name] for state, name in names.items() if name in answer.arrays}


@law("LN808", name="sequence-causal", severity="error", operation="cells", needs=("sequence",), limit=12, source=PAPER)
def sequence_causal(ev: Evaluation) -> Outcome:
    """What comes later in a sequence moves no output of an earlier step.

    Bound: that of LN801 for the first output, which is exactly known, in sequences that go on in four different ways.
    Statistics are those of one step and one row.
    """
    if _wrong_anyway(ev):
        return INAPPLICABLE
    right = _plain(ev.case)
    best = VACUOUS
    for turn in range(STEPS):
        answer = ev.again(_several(ev.case, STEPS, turn)).ask("y")
        found = answer.arrays.get("y")
        if found is None or found.shape != (STEPS, *ev.case.arrays["h"].shape):
            return INAPPLICABLE  # LN807 says so
        first = FloatArray(found.dtype, np.ascontiguousarray(found.bits[0]))
        judgement = judge_values(measured(ev.again(right)), "y", first)
        if judgement.state == "violated":
            text = f"The first of {STEPS} outputs: {judgement.sentence()}"
            return replace(judgement.outcome("later steps move earlier outputs", text), case=right)
        best = judgement.outcome("") if judgement.state == "holds" else best
    return best
