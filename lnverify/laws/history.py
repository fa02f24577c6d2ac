"""LN7xx, continued: what happened before, between and at the same time must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.laws.asked_again import judge, outputs_of, right, with_gradients
from lnverify.protocol import FEW, VIEWS

REPETITIONS = 50
SMALL = FEW  # elements of a case that is asked with many calls in between


def _in_modes(ev: Evaluation, history: str, what: str, cause: str) -> Outcome:
    """The case with a history, as it is, and without gradients in evaluation mode and in inference mode."""
    if not right(ev):
        return INAPPLICABLE
    case = replace(ev.case, layouts={}, history=history, recipe=None)
    kept = {k: v for k, v in case.arrays.items() if k in ("x", "weight", "bias")}
    bare = replace(case, arrays=kept, requires_grad=(), grad_mode="no_grad", train=False)
    modes = [("", case)]
    for mode in ("no_grad", "inference")[: 2 if history in VIEWS else 1]:
        chosen = replace(bare, grad_mode=mode)
        if right(ev.rerun(replace(chosen, history=""))):
            modes.append((f" ({mode}, eval)", chosen))
    outputs = ["y"] if history in VIEWS else None  # where y is dropped there is nothing to differentiate
    return first_bad(judge(ev, chosen, f"{what}{mode}", cause, outputs or outputs_of(chosen)) for mode, chosen in modes)


@law("LN709", name="same-memory", severity="error", limit=16, max_elements=1 << 14,
     source="a data loader and an optimiser write in place; Hsword/Hetu#17")  # fmt: skip
def same_memory(ev: Evaluation) -> Outcome:
    """The numbers count, not where they lie: after a call on other numbers in the same memory, which are then
    overwritten in place, the request is right by the bounds, with and without gradients.

    Catches what is cached by the address or the identity of x, weight or bias.
    """
    what = "After a call on other numbers in the same memory"
    return _in_modes(ev, "overwritten", what, "results are kept by where the arguments lie")


@law("LN710", name="results-are-kept", severity="error", limit=6, max_elements=1 << 14,
     source="outputs and saved statistics belong to one call; apache/mxnet#18499, karpathy/llm.c#408")  # fmt: skip
def results_are_kept(ev: Evaluation) -> Outcome:
    """A later call changes nothing of an earlier one: y and the gradients are right where a call on other numbers runs
    between the forward and the moment in which they are read; for small cases also where 33 run, and one with another
    eps. A view of y, and y.detach(), are right as well where y itself is dropped before that call.

    Catches outputs and saved statistics that live in one buffer or in a ring of them, memory of y that is given out
    again while a view of it lives, and an eps that is kept outside the call.
    """
    what, cause = "After a later call on other numbers", "a later call changes an earlier result"
    outcome = _in_modes(ev, "followed", what, cause)
    if outcome.bad:
        return outcome
    asked = [
        (history, f"{what}, read through {how}") for history, how in (("viewed", "a view"), ("detached", "y.detach()"))
    ]
    if ev.case.size <= SMALL:
        asked.append(("crowded", "After 33 later calls on other numbers and one with another eps"))
    found = first_bad(_in_modes(ev, history, told, cause) for history, told in asked)
    return found if found.bad else outcome


@law("LN711", name="second-backward", severity="error", needs=("dx",), limit=8, max_elements=1 << 14,
     source="torch.autograd.grad with retain_graph=True; karpathy/llm.c#408, apache/mxnet#18499")  # fmt: skip
def second_backward(ev: Evaluation) -> Outcome:
    """A second backward of one forward gives the gradients again: nothing accumulates in hidden scratch, and what the
    forward has saved is not given away at the first, not even to later calls of the same shape.

    With every argument requiring one, and without later calls also x alone and the parameters alone. A subject that
    refuses the second backward is not accused.
    """
    ev = with_gradients(ev)
    if not right(ev):
        return INAPPLICABLE
    every = ev.case.requires_grad
    asked = dict.fromkeys((every, ("x",), tuple(name for name in every if name != "x")))
    cases = [replace(ev.case, requires_grad=names, recipe=None) for names in asked if names]
    return first_bad(
        judge(ev, replace(case, history=history),
               f"In the second of two backwards for {', '.join(case.gradients())}{when}",
               "a second backward gives other gradients", list(case.gradients()))
        for case in cases
        if case.requires_grad == every or right(ev.rerun(case))
        for history, when in (("repeated", ""), ("resumed", ", after later calls"))
        if history == "repeated" or case.requires_grad == every
    )  # fmt: skip


@law("LN712", name="changed-before-backward", severity="error", needs=("dx",), limit=16, max_elements=1 << 14,
     source="torch.autograd: a saved tensor that was changed in place raises in the backward")  # fmt: skip
def changed_before_backward(ev: Evaluation) -> Outcome:
    """Where x, weight and bias, or y, are overwritten between forward and backward, the gradients are those of the
    forward's numbers, or the backward raises.

    A wrong number is the worst answer to a caller's mistake; frameworks compare version counters to prevent it. y is
    overwritten without weight and bias too, where it is xhat itself.
    """
    ev = with_gradients(ev)
    if not right(ev):
        return INAPPLICABLE
    within = (
        ("changed", "arguments that were", "arguments that were changed in place give a wrong gradient, not an error"),
        ("output", "a y that was", "a y that was changed in place gives a wrong gradient, not an error"),
    )
    case = replace(ev.case, layouts={}, recipe=None)
    plain = replace(case, arrays={k: v for k, v in case.arrays.items() if k in ("x", "dy")}, requires_grad=("x",))
    cases = [(case, within[0]), (case, within[1])]
    for name in case.requires_grad:  # alone, for one version counter that is looked at stands for the others
        cases.append((case, (f"changed_{name}", f"{name} that was", within[0][2])))
    if "none" in ev.subject.capabilities.affine and right(ev.again(plain)):
        cases.append((plain, within[1]))
    return first_bad(
        judge(ev, replace(chosen, history=history), f"With {what} overwritten between forward and backward", cause,
               list(chosen.gradients()))
        for chosen, (history, what, cause) in cases
    )  # fmt: skip


@law("LN713", name="two-threads", severity="warning", limit=4, runs=20, max_elements=1 << 16,
     source="kernels run outside the interpreter lock; data-parallel replicas call from several threads")  # fmt: skip
def two_threads(ev: Evaluation) -> Outcome:
    """y is right while another thread calls on other numbers, and so are the gradients: no scratch is shared.

    Both threads call for a while; then one is paused at its lines of Python and behind its calls into C, as far as
    these are not more than can be tried, and the other makes a whole call each time. A result whose bits differ from
    those of a call alone is the one that is judged. The rows are repeated up to 2^14 elements (with gradients 2^12),
    for kernels take turns only while they last.
    """
    if not right(ev):
        return INAPPLICABLE
    bare = replace(ev.case, arrays={k: v for k, v in ev.case.arrays.items() if k != "dy"}, requires_grad=())
    cases = [_repeated(bare, 1 << 14)]
    if ev.subject.framework == "torch" and "dx" in ev.subject.capabilities.outputs:
        full = _repeated(with_gradients(ev).case, 1 << 12)
        cases += [full] if right(ev.rerun(full)) else []
    what, cause = "While another thread calls on other numbers", "two threads at once disturb each other"
    return first_bad(judge(ev, replace(case, history="threads"), what, cause, outputs_of(case)) for case in cases)


def _repeated(case: Case, elements: int) -> Case:
    """The case with its rows repeated up to so many elements."""
    arrays = dict(case.arrays)
    if len(arrays["x"].shape) > len(case.normalized_shape):
        times = max(elements // case.size, 1)
        many = {name: arrays[name] for name in ("x", "dy") if name in arrays}
        arrays |= {name: FloatArray(array.dtype, np.concatenate([array.bits] * times)) for name, array in many.items()}
    return replace(case, arrays=arrays, layouts={}, recipe=None)


@law("LN714", name="repetitions", severity="error", limit=2, max_elements=1 << 13,
     source="races show once in many calls; vllm-project/vllm#44692")  # fmt: skip
def repetitions(ev: Evaluation) -> Outcome:
    """Fifty repetitions, each after a call on other data in the same shape, are right by the bounds, gradients
    included.

    Only what differs in bits from the first answer is judged again.
    """
    if not right(ev):
        return INAPPLICABLE
    case = ev.case
    x = FloatArray.of(np.clip(case.arrays["x"].values[::-1] * -0.5 + 3.0, -8.0, 8.0), case.dtype)
    between = ev.again(replace(case, arrays={**case.arrays, "x": x}, recipe=None))
    for number in range(REPETITIONS):
        between.ask(*outputs_of(case), fresh=True)
        again = ev.rerun(case)
        if again.response.refusal is not None:
            text = f"Repetition {number + 1} is refused: {again.response.refusal}"
            return Outcome("crashed", np.inf, "y", (), text, REPEATED, case=case)
        for output in outputs_of(case):
            first, now = ev.output(output), again.output(output)
            if first is None or now is None or first.same_bits(now):
                continue
            judgement, kind = again.settle(output)
            if kind == "violated":
                return judgement.outcome(REPEATED, f"In repetition {number + 1}, {judgement.sentence()}")
    return Outcome("holds", 0.0, "y")


REPEATED = "a repeated call is sometimes wrong"


@law("LN722", name="changed-through-data", severity="warning", limit=8, max_elements=1 << 14, runs=4,
     source="torch: Tensor.data has a version counter of its own; training loops that write into p.data")  # fmt: skip
def changed_through_data(ev: Evaluation) -> Outcome:
    """y and the gradients are right after x, weight and bias were overwritten through `.data`, which raises no version
    counter, with and without gradients.

    A warning: torch itself calls such writes unsafe, and autograd does not see them either; but many a training loop
    makes them. What LN709 finds, where the counter does tell, is not said again.
    """
    if ev.subject.framework != "torch" or not right(ev) or _in_modes(ev, "overwritten", "", "").bad:
        return INAPPLICABLE
    what = "After a call on other numbers in the same memory, overwritten through .data"
    return _in_modes(ev, "unversioned", what, "results are kept by address and version, which .data does not raise")


@law("LN723", name="gradients-accumulate", severity="error", needs=("dx",), limit=6, max_elements=1 << 14,
     source="torch: backward() adds to .grad, torch.autograd.grad does not touch it")  # fmt: skip
def gradients_accumulate(ev: Evaluation) -> Outcome:
    """Gradients are right by their bounds, and `.grad` stays what it is, where the arguments have one already; and
    backward() adds to a `.grad` of zeros what torch.autograd.grad gives.

    Catches a backward that adds to `.grad` itself, which only looks right while nothing but backward() is called.
    """
    if ev.subject.framework != "torch":
        return INAPPLICABLE
    ev = with_gradients(ev)
    if not right(ev):
        return INAPPLICABLE
    case, cause = replace(ev.case, layouts={}, recipe=None), "the backward depends on the .grad that is there"
    outputs = [name for name in case.gradients() if name in ev.response.arrays]  # of the others LN204 speaks
    beside = replace(case, history="accumulating")
    changed = [name for name in ev.rerun(beside).response.changed if name.startswith("the .grad")]
    if changed:
        text = f"torch.autograd.grad overwrites {', '.join(changed)}."
        return Outcome("violated", np.inf, f"d{changed[0].split()[-1]}", (), text, cause, case=beside)
    return first_bad(
        judge(ev, chosen, what, cause, outputs)
        for chosen, what in (
            (beside, "Where the arguments have a .grad already"),
            (replace(case, history="into_grad"), "Where backward() adds to a .grad of zeros"),
        )
    )
