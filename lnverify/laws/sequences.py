"""LN807, LN808 and LN827: layers over sequences: several steps at once, causality, and lengths."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, VACUOUS, Outcome, law
from lnverify.laws.recurrent import PAPER, operation_of, wrong_anyway
from lnverify.norms.against import judge_against
from lnverify.norms.bound import due
from lnverify.norms.cells import CellBounds
from lnverify.norms.judge import judge_values, measured
from lnverify.norms.unrolled import Unrolled, contracting
from lnverify.operation import Operation
from lnverify.protocol import Response

STEPS = 4


def _several(case: Case, steps: int, turn: int = 0) -> Case:
    """A case of several steps: x, then x with rows and columns in reverse order or with another sign.

    turn: changes every step but the first.
    """
    bits = case.arrays["x"].bits
    other = FloatArray.of(-case.arrays["x"].values, case.dtype).bits
    forms = (bits, bits[::-1, ::-1], other, other[::-1, ::-1])
    chosen = [forms[0], *(forms[(number + turn) % len(forms)] for number in range(1, steps))]
    return case.forward_alone(x=FloatArray(case.dtype, np.ascontiguousarray(np.stack(chosen))))


def _step(several: FloatArray, number: int) -> FloatArray:
    return FloatArray(several.dtype, np.ascontiguousarray(several.bits[number]))


@law("LN807", name="sequence-steps", severity="error", operation="cells", needs=("sequence",), limit=12, source=PAPER)
def sequence_steps(ev: Evaluation) -> Outcome:
    """Several steps at once are as many single steps: each state that a layer returns follows from the one before.

    The layer runs over the first 1, 2, 3 and 4 steps. The state after each is judged as one step from the state after
    the run that is one shorter. Bound: that of LN801, where the state before is uncertain by twice its own bound, since
    the two runs may have rounded it differently; where their outputs differ in bits at that step, c is not known, and
    the step is not judged.
    """
    if wrong_anyway(ev):
        return INAPPLICABLE
    operation, states = operation_of(ev.case)
    whole = _several(ev.case, STEPS)
    before: dict[str, FloatArray] = {name: ev.case.arrays[name] for name in operation.states}
    around: dict[str, np.ndarray] = {}
    outputs: FloatArray | None = None
    best = VACUOUS
    for count in range(1, STEPS + 1):
        x = FloatArray(ev.case.dtype, np.ascontiguousarray(whole.arrays["x"].bits[:count]))
        answer = ev.again(whole.with_arrays(x=x)).ask(*operation.outputs, "hy")
        found, after = answer.arrays.get("y"), _after(answer, operation)
        step = ev.case.forward_alone(x=_step(whole.arrays["x"], count - 1), **before)
        shape = (count, *ev.case.arrays["h"].shape)
        if answer.refusal is not None or found is None or found.shape != shape or set(after) != set(operation.states):
            text = answer.refusal or f"{count} steps give outputs of shape {found.shape if found else ()}, not {shape}."
            return Outcome("violated", float("inf"), "y", message=text, cause="several steps at once are wrong")
        same = outputs is None or np.array_equal(found.bits[: count - 1], outputs.bits)
        bounds = measured(ev.again(step))
        assert isinstance(bounds, CellBounds)
        seeded = CellBounds(bounds.step, bounds.compute)
        seeded.around = around
        for output, state in states.items():
            judgement = judge_values(seeded, output, after[state])
            if same and judgement.wrong:
                what = f"The state after {count} steps at once, from that after {count - 1}"
                return judgement.blame(what, "several steps at once are wrong", step)
            best = judgement.outcome("") if same and count > 1 and judgement.state == "holds" else best
        around = {state: 2 * bounds.bound(output) for output, state in states.items()}
        before, outputs = after, found
    return best


def _after(answer: Response, operation: Operation) -> dict[str, FloatArray]:
    """The state that an answer hands on."""
    names = dict(zip(operation.states, ("hy", *operation.outputs[1:]), strict=True))
    return {state: answer.arrays[name] for state, name in names.items() if name in answer.arrays}


@law("LN808", name="sequence-causal", severity="error", operation="cells", needs=("sequence",), limit=12, source=PAPER)
def sequence_causal(ev: Evaluation) -> Outcome:
    """What comes later in a sequence moves no output of an earlier step.

    Bound: that of LN801 for the first output, which is exactly known, in sequences that go on in four different ways.
    Statistics are those of one step and one row.
    """
    if wrong_anyway(ev):
        return INAPPLICABLE
    right = ev.case.forward_alone()
    best = VACUOUS
    for turn in range(STEPS):
        answer = ev.again(_several(ev.case, STEPS, turn)).ask("y")
        found = answer.arrays.get("y")
        if found is None or found.shape != (STEPS, *ev.case.arrays["h"].shape):
            return INAPPLICABLE  # LN807 says so
        first = FloatArray(found.dtype, np.ascontiguousarray(found.bits[0]))
        judgement = judge_values(measured(ev.again(right)), "y", first)
        if judgement.wrong:
            return judgement.blame(f"The first of {STEPS} outputs", "later steps move earlier outputs", right)
        best = judgement.outcome("") if judgement.state == "holds" else best
    return best


@law("LN827", name="sequence-lengths", severity="error", operation="cells", needs=("lengths",), limit=6,
     dtypes=("float32", "float64"), source=PAPER)  # fmt: skip
def sequence_lengths(ev: Evaluation) -> Outcome:
    """A layer that is told the length of each row gives the outputs and the last state of that length, whatever comes
    behind it.

    Bound: the derived step, chained over at most 4 steps with its running error (lnverify.norms.unrolled), for gains
    and an eps with which errors die out. Outputs behind the end of a row are not judged.
    """
    rows = ev.case.arrays["x"].shape[0]
    if rows < 2 or wrong_anyway(ev):
        return INAPPLICABLE
    operation, states = operation_of(ev.case)
    whole = _several(ev.case if ev.subject.capabilities.eps is not None else contracting(ev.case), STEPS)
    lengths = [STEPS - number % STEPS for number in range(rows)]  # in a batch of 4 they descend, as some demand
    case = whole.with_arrays(lengths=FloatArray.of(np.array(lengths, dtype=np.float64), "float64"))
    answer = Evaluation(case, ev.evaluator).ask(*operation.outputs, "hy")
    found, after = answer.arrays.get("y"), _after(answer, operation)
    if answer.refusal is not None or found is None or set(after) != set(operation.states):
        return INAPPLICABLE
    if found.shape != (STEPS, *ev.case.arrays["h"].shape):
        return INAPPLICABLE  # LN807 says so
    unrolled = Unrolled(whole, measured(ev).compute)
    said = f"With lengths {', '.join(map(str, lengths[:6]))}"
    best = VACUOUS
    for told, output, state, count, got, rows_there in _with_lengths(found, after, states, lengths):
        exact, bound = unrolled.state(state, count)
        limit = np.where(rows_there[:, None], bound, np.inf)
        judgement = judge_against(output, got, exact, limit, due(ev.case, output))
        if judgement.wrong:
            return judgement.blame(f"{said}, {told}", "lengths of rows are not kept", case)
        best = judgement.outcome("") if judgement.state == "holds" else best
    return best


def _with_lengths(
    y: FloatArray, after: Mapping[str, FloatArray], states: Mapping[str, str], lengths: list[int]
) -> Iterator[tuple[str, str, str, int, FloatArray, np.ndarray]]:
    """What is known of a run with lengths: a name, output, state and step, the values, and the rows that have them."""
    for count in range(1, STEPS + 1):
        running = np.array([length >= count for length in lengths])
        yield f"y at step {count}", "y", states["y"], count, _step(y, count - 1), running
        ended = np.array([length == count for length in lengths])
        for output, state in states.items():
            yield f"the last {state} of a row of length {count}", output, state, count, after[state], ended
