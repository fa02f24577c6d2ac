"""LN7xx, continued: what happened before, between and at the same time must not matter."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case, single
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.protocol import FEW, VIEWS
from lnverify.recipes import build, integers

REPETITIONS = 50
SMALL = FEW  # elements of a case that is asked with many calls in between


def _outputs(case: Case) -> list[str]:
    return ["y", *(case.gradients() if case.has("dy") and case.grad_mode == "enabled" else ())]


def _right(ev: Evaluation) -> bool:
    """Whether the plain request is answered, and rightly: only then does its history say anything."""
    if ev.response.refusal is not None or ev.case.layouts.get("dy") == "output" or not ev.case.size:
        return False
    return all(ev.settle(o)[1] != "violated" for o in _outputs(ev.case) if o in ev.response.arrays)


def _with_gradients(ev: Evaluation) -> Evaluation:
    """The case with a dy, and with every gradient asked for; itself where it is so already."""
    case, full = ev.case, tuple(a for a in ("x", "weight", "bias") if ev.case.has(a))
    if case.has("dy") and case.requires_grad == full:
        return ev
    dy = case.arrays.get("dy") or FloatArray.of(integers(5, case.arrays["x"].shape, -2, 3), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    return ev.again(replace(case, arrays={**case.arrays, "dy": dy}, requires_grad=full, layouts=layouts, recipe=None))


def _judge(start: Evaluation, case: Case, what: str, cause: str, outputs: list[str]) -> Outcome:
    """Outputs of the case with its history, by the bounds; a refusal is no violation."""
    again = start.rerun(case)
    if again.response.refusal is not None:
        return INAPPLICABLE
    outcome: Outcome = INAPPLICABLE
    for output in outputs:
        judgement, kind = again.settle(output)
        if kind == "violated":
            return replace(judgement.outcome(cause, f"{what}, {judgement.sentence()}"), case=case)
        if kind in ("holds", "points", "last place"):
            outcome = Outcome("holds", min(judgement.ratio, 1.0), output)
    return outcome


def _in_modes(ev: Evaluation, history: str, what: str, cause: str) -> Outcome:
    """The case with a history, as it is, and without gradients in evaluation mode and in inference mode."""
    if not _right(ev):
        return INAPPLICABLE
    case = replace(ev.case, layouts={}, history=history, recipe=None)
    kept = {k: v for k, v in case.arrays.items() if k in ("x", "weight", "bias")}
    bare = replace(case, arrays=kept, requires_grad=(), grad_mode="no_grad", train=False)
    modes = [("", case)]
    for mode in ("no_grad", "inference")[: 2 if history in VIEWS else 1]:
        chosen = replace(bare, grad_mode=mode)
        if _right(ev.rerun(replace(chosen, history=""))):
            modes.append((f" ({mode}, eval)", chosen))
    outputs = ["y"] if history in VIEWS else None  # where y is dropped there is nothing to differentiate
    return first_bad(_judge(ev, chosen, f"{what}{mode}", cause, outputs or _outputs(chosen)) for mode, chosen in modes)


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
    ev = _with_gradients(ev)
    if not _right(ev):
        return INAPPLICABLE
    every = ev.case.requires_grad
    asked = dict.fromkeys((every, ("x",), tuple(name for name in every if name != "x")))
    cases = [replace(ev.case, requires_grad=names, recipe=None) for names in asked if names]
    return first_bad(
        _judge(ev, replace(case, history=history),
               f"In the second of two backwards for {', '.join(case.gradients())}{when}",
               "a second backward gives other gradients", list(case.gradients()))
        for case in cases
        if case.requires_grad == every or _right(ev.rerun(case))
        for history, when in (("repeated", ""), ("resumed", ", after later calls"))
        if history == "repeated" or case.requires_grad == every
    )  # fmt: skip


@law("LN720", name="backward-in-a-thread", severity="error", needs=("dx",), limit=8, max_elements=1 << 14,
     source="torch.autograd runs the backward in a thread of the device; torch.nn.DataParallel")  # fmt: skip
def backward_in_a_thread(ev: Evaluation) -> Outcome:
    """The gradients are right where the backward runs in another thread than the forward.

    By the bounds of LN201 to LN203. Catches what is kept for each thread: statistics, scratch, an eps.
    """
    ev = _with_gradients(ev)
    if not _right(ev):
        return INAPPLICABLE
    case = replace(ev.case, history="handed", recipe=None)
    what = "With the backward in another thread"
    return _judge(ev, case, what, "the backward depends on its thread", list(case.gradients()))


@law("LN712", name="changed-before-backward", severity="error", needs=("dx",), limit=16, max_elements=1 << 14,
     source="torch.autograd: a saved tensor that was changed in place raises in the backward")  # fmt: skip
def changed_before_backward(ev: Evaluation) -> Outcome:
    """Where x, weight and bias, or y, are overwritten between forward and backward, the gradients are those of the
    forward's numbers, or the backward raises.

    A wrong number is the worst answer to a caller's mistake; frameworks compare version counters to prevent it. y is
    overwritten without weight and bias too, where it is xhat itself.
    """
    ev = _with_gradients(ev)
    if not _right(ev):
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
    if "none" in ev.subject.capabilities.affine and _right(ev.again(plain)):
        cases.append((plain, within[1]))
    return first_bad(
        _judge(ev, replace(chosen, history=history), f"With {what} overwritten between forward and backward", cause,
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
    if not _right(ev):
        return INAPPLICABLE
    bare = replace(ev.case, arrays={k: v for k, v in ev.case.arrays.items() if k != "dy"}, requires_grad=())
    cases = [_repeated(bare, 1 << 14)]
    if ev.subject.framework == "torch" and "dx" in ev.subject.capabilities.outputs:
        full = _repeated(_with_gradients(ev).case, 1 << 12)
        cases += [full] if _right(ev.rerun(full)) else []
    what, cause = "While another thread calls on other numbers", "two threads at once disturb each other"
    return first_bad(_judge(ev, replace(case, history="threads"), what, cause, _outputs(case)) for case in cases)


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
    if not _right(ev):
        return INAPPLICABLE
    case = ev.case
    x = FloatArray.of(np.clip(case.arrays["x"].values[::-1] * -0.5 + 3.0, -8.0, 8.0), case.dtype)
    between = ev.again(replace(case, arrays={**case.arrays, "x": x}, recipe=None))
    for number in range(REPETITIONS):
        between.ask(*_outputs(case), fresh=True)
        again = ev.rerun(case)
        if again.response.refusal is not None:
            text = f"Repetition {number + 1} is refused: {again.response.refusal}"
            return Outcome("crashed", np.inf, "y", (), text, REPEATED, case=case)
        for output in _outputs(case):
            first, now = ev.output(output), again.output(output)
            if first is None or now is None or first.same_bits(now):
                continue
            judgement, kind = again.settle(output)
            if kind == "violated":
                return judgement.outcome(REPEATED, f"In repetition {number + 1}, {judgement.sentence()}")
    return Outcome("holds", 0.0, "y")


REPEATED = "a repeated call is sometimes wrong"


@law("LN715", name="side-stream", severity="error", limit=8, max_elements=1 << 14,
     source="CUDA C++ Programming Guide, streams; torch.cuda.stream: kernels go into the current stream")  # fmt: skip
def side_stream(ev: Evaluation) -> Outcome:
    """On CUDA, y is right in a stream of its own, behind work of that stream that still writes x, weight and bias.

    Catches kernels that are launched into the default stream. Elsewhere than on CUDA the law is inapplicable.
    """
    if not ev.case.device.startswith("cuda") or not _right(ev):
        return INAPPLICABLE
    arrays = {k: v for k, v in ev.case.arrays.items() if k in ("x", "weight", "bias")}
    case = replace(ev.case, arrays=arrays, layouts={}, requires_grad=(), history="stream", recipe=None)
    return _judge(ev, case, "In a stream of its own", "kernels run outside the current CUDA stream", ["y"])


@law("LN716", name="second-device", severity="error", limit=4, max_elements=1 << 14,
     source="torch.cuda: the device of the tensors counts, not the current one")  # fmt: skip
def second_device(ev: Evaluation) -> Outcome:
    """On a second CUDA device, which is not the current one, y and the gradients are what they are on the first.

    Inapplicable where there is no second device.
    """
    if not ev.case.device.startswith("cuda") or ev.case.device == "cuda:1" or not _right(ev):
        return INAPPLICABLE
    case = replace(ev.case, device="cuda:1", recipe=None)
    refusal = ev.rerun(case).response.refusal
    if refusal is not None and "device ordinal" not in refusal:
        text = f"On a second device it is refused: {refusal}"
        return Outcome("crashed", np.inf, "y", (), text, "a second device is refused", case=case)
    return _judge(ev, case, "On a second device", "a second device gives other results", _outputs(case))


@law("LN717", name="surroundings", severity="warning", limit=8, max_elements=1 << 14,
     source="torch.autocast and torch.set_default_dtype: torch's own layer norm depends on neither")  # fmt: skip
def surroundings(ev: Evaluation) -> Outcome:
    """y and the gradients are as accurate under torch.autocast, and with bfloat16 as the default dtype, as without: by
    the bounds of the dtype of x. Both are on around the forward and around the backward.

    Asked of the case, of three rows of 771, and of 771 rows of 6: counts that bfloat16 rounds, and sums that it stops
    adding to. A warning: autocast is free to lower what it lowers, a product with a matrix of ones, say.
    """
    if ev.subject.framework != "torch":
        return INAPPLICABLE
    ev = _with_gradients(ev) if "dx" in ev.subject.capabilities.outputs else ev
    if not _right(ev):
        return INAPPLICABLE
    others = [_plain(ev.case, [771]), _plain(ev.case, [6], rows=771)]
    cases = [replace(ev.case, layouts={}, recipe=None), *(case for case in others if _right(ev.again(case)))]
    return first_bad(
        _judge(ev, replace(case, history=history), what, f"less accurate {cause}", _outputs(case))
        for case in cases
        for history, what, cause in (
            ("autocast", "Under autocast to bfloat16", "under autocast"),
            ("low_default", "With bfloat16 as the default dtype", "with another default dtype"),
        )
    )


@law("LN718", name="dtypes-in-turn", severity="error", limit=4, max_elements=1 << 14,
     source="what is kept by size alone, or by eps alone, outlives the dtype that it was made in")  # fmt: skip
def dtypes_in_turn(ev: Evaluation) -> Outcome:
    """After a call on the same numbers in 16 bits, y and the gradients are right by the bounds of this dtype, and after
    one in float64 they are right as well and y has the dtype that it has without.

    Catches constants and scratch that are kept by N or by the value of eps and not by dtype. N, and eps where it can be
    chosen, are such that no other case has: what was made in this dtype before, and kept, would hide the fault. Asked
    of what is right, without such a call, at an N that is 840 more, of the same remainders. In 16 bits only after
    float64, in float64 only after narrower ones.
    """
    if not _right(ev):
        return INAPPLICABLE
    outcome: Outcome = INAPPLICABLE
    for history, which, dtypes in (
        ("lower", "16 bits", ("float64", "float32")),
        ("higher", "float64", ("float32", "bfloat16", "float16")),
    ):
        if ev.case.dtype in dtypes:
            found = _in_turn(ev, history, f"After a call on the same numbers in {which}")
            if found.bad:
                return found
            outcome = found if found.informative else outcome
    return outcome


def _in_turn(ev: Evaluation, history: str, what: str) -> Outcome:
    """The case of an N and an eps of its own, after a call in another dtype."""
    number = (ev.case.size * 31 + FORMATS[ev.case.dtype].precision * 7) % 281 + (281 if history == "higher" else 0)
    eps = (number + 300.3) / 1024  # of the size of the variance, and no number of 16 bits

    def case(n: int, eps: float) -> Case:
        chosen = _plain(ev.case, [n])
        return chosen if ev.subject.capabilities.eps is not None else replace(chosen, eps=eps)

    fresh = replace(case(461 + 2 * number, eps), history=history)
    cause = "an earlier call in another dtype changes the result"
    now = ev.rerun(fresh)
    plain = ev.again(case(461 + 2 * number + 840, eps + 1))
    if not _right(plain):
        return INAPPLICABLE
    if now.response.refusal is not None:
        return Outcome("crashed", np.inf, "y", (), f"{what} it is refused: {now.response.refusal}", cause, case=fresh)
    due, got = (found.output("y") for found in (plain, now))
    if due is not None and got is not None and due.dtype != got.dtype:
        text = f"{what}, y is {got.dtype}, {due.dtype} is due."
        return Outcome("violated", np.inf, "y", (), text, cause, case=fresh)
    return _judge(ev, fresh, what, cause, _outputs(fresh))


@law("LN719", name="deterministic-algorithms", severity="error", limit=8, max_elements=1 << 14,
     source="torch.use_deterministic_algorithms: another algorithm, the same function")  # fmt: skip
def deterministic_algorithms(ev: Evaluation) -> Outcome:
    """Under torch.use_deterministic_algorithms y and the gradients keep their bounds, or the call is refused.

    Catches a branch for determinism that computes something else.
    """
    if ev.subject.framework != "torch" or not _right(ev):
        return INAPPLICABLE
    case = replace(ev.case, layouts={}, history="deterministic", recipe=None)
    cause = "deterministic algorithms give other results"
    return _judge(ev, case, "With deterministic algorithms", cause, _outputs(case))


@law("LN721", name="several-threads", severity="error", limit=2, max_elements=1 << 12, runs=20,
     source="dweight and dbias are sums of partial sums, of a thread or a block each: karpathy/llm.c#408")  # fmt: skip
def several_threads(ev: Evaluation) -> Outcome:
    """y and the gradients are right by the bounds on five, four and three threads, for rows that these do not divide
    and for fewer rows than threads, after calls with more rows.

    Asked of single rows and of blocks of 32. Catches partial sums that a thread, or a block of rows, has left from an
    earlier call where now there is none. In 16 bits dy is 1, 0 or -1, of which every sum is exact, and dweight is not
    asked: sums in 16 bits are what LN202 and LN203 speak of.
    """
    ev = _with_gradients(ev) if ev.subject.framework == "torch" else ev
    if not _right(ev):
        return INAPPLICABLE
    low = FORMATS[ev.case.dtype].precision <= 11
    shape, declared = list(ev.case.normalized_shape), ev.subject.capabilities.threads
    counts = declared or ((5, 4, 3) if ev.subject.framework == "torch" else (1,))
    outcome: Outcome = INAPPLICABLE
    for threads, block in ((threads, block) for threads in counts for block in (1, 32)):
        more = Evaluation(replace(_plain(ev.case, shape, 2 * threads * block), threads=threads), ev.evaluator)
        if not _right(more):
            continue
        for rows in ((threads + 1) * block, 2):
            case = replace(_plain(ev.case, shape, rows), threads=threads, requires_grad=ev.case.requires_grad)
            if low and case.has("dy"):
                dy = FloatArray.of(integers(5, case.arrays["dy"].shape, -1, 1), case.arrays["dy"].dtype)
                case = replace(case, arrays={**case.arrays, "dy": dy})
            what = f"On {threads} threads, after a call with {2 * threads * block} rows"
            outputs = [name for name in _outputs(case) if not (low and name == "dweight")]
            found = _judge(ev, case, what, "several threads, or more rows before, give other results", outputs)
            if found.bad and found.output in ("y", "dx") and not _right(ev.again(single(case, found.index[0]))):
                continue  # the row is wrong whatever is around it
            if found.bad:
                return found
            outcome = found if found.informative else outcome
    return outcome


@law("LN722", name="changed-through-data", severity="warning", limit=8, max_elements=1 << 14, runs=4,
     source="torch: Tensor.data has a version counter of its own; training loops that write into p.data")  # fmt: skip
def changed_through_data(ev: Evaluation) -> Outcome:
    """y and the gradients are right after x, weight and bias were overwritten through `.data`, which raises no version
    counter, with and without gradients.

    A warning: torch itself calls such writes unsafe, and autograd does not see them either; but many a training loop
    makes them. What LN709 finds, where the counter does tell, is not said again.
    """
    if ev.subject.framework != "torch" or not _right(ev) or _in_modes(ev, "overwritten", "", "").bad:
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
    ev = _with_gradients(ev)
    if not _right(ev):
        return INAPPLICABLE
    case, cause = replace(ev.case, layouts={}, recipe=None), "the backward depends on the .grad that is there"
    outputs = [name for name in case.gradients() if name in ev.response.arrays]  # of the others LN204 speaks
    beside = replace(case, history="accumulating")
    changed = [name for name in ev.rerun(beside).response.changed if name.startswith("the .grad")]
    if changed:
        text = f"torch.autograd.grad overwrites {', '.join(changed)}."
        return Outcome("violated", np.inf, f"d{changed[0].split()[-1]}", (), text, cause, case=beside)
    return first_bad(
        _judge(ev, chosen, what, cause, outputs)
        for chosen, what in (
            (beside, "Where the arguments have a .grad already"),
            (replace(case, history="into_grad"), "Where backward() adds to a .grad of zeros"),
        )
    )


def _plain(case: Case, shape: list[int], rows: int = 3) -> Case:
    """Ordinary rows of a shape, three of them, with the parameters and the modes of a case."""
    recipe = {"dtype": case.dtype, "batch": [rows], "shape": shape, "regime": "normal", "eps": case.eps, "seed": 1}
    present = {name: "normal" if case.has(name) else None for name in ("weight", "bias", "dy")}
    chosen = build({**recipe, **present, "grads": [name for name in ("x", "weight", "bias") if case.has(name)]})
    return replace(chosen, device=case.device, threads=case.threads, train=case.train, recipe=None)
