"""LN7xx, continued: what is around a call must not matter: streams, devices, threads, settings, other dtypes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case, single
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.laws.asked_again import judge, ordinary_rows, outputs_of, right, with_gradients
from lnverify.recipes import integers


@law("LN715", name="side-stream", severity="error", limit=8, max_elements=1 << 14,
     source="CUDA C++ Programming Guide, streams; torch.cuda.stream: kernels go into the current stream")  # fmt: skip
def side_stream(ev: Evaluation) -> Outcome:
    """On CUDA, y is right in a stream of its own, behind work of that stream that still writes x, weight and bias.

    Catches kernels that are launched into the default stream. Elsewhere than on CUDA the law is inapplicable.
    """
    if not ev.case.device.startswith("cuda") or not right(ev):
        return INAPPLICABLE
    arrays = {k: v for k, v in ev.case.arrays.items() if k in ("x", "weight", "bias")}
    case = replace(ev.case, arrays=arrays, layouts={}, requires_grad=(), history="stream", recipe=None)
    return judge(ev, case, "In a stream of its own", "kernels run outside the current CUDA stream", ["y"])


@law("LN716", name="second-device", severity="error", limit=4, max_elements=1 << 14,
     source="torch.cuda: the device of the tensors counts, not the current one")  # fmt: skip
def second_device(ev: Evaluation) -> Outcome:
    """On a second CUDA device, which is not the current one, y and the gradients are what they are on the first.

    Inapplicable where there is no second device.
    """
    if not ev.case.device.startswith("cuda") or ev.case.device == "cuda:1" or not right(ev):
        return INAPPLICABLE
    case = replace(ev.case, device="cuda:1", recipe=None)
    refusal = ev.rerun(case).response.refusal
    if refusal is not None and "device ordinal" not in refusal:
        text = f"On a second device it is refused: {refusal}"
        return Outcome("crashed", np.inf, "y", (), text, "a second device is refused", case=case)
    return judge(ev, case, "On a second device", "a second device gives other results", outputs_of(case))


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
    ev = with_gradients(ev) if "dx" in ev.subject.capabilities.outputs else ev
    if not right(ev):
        return INAPPLICABLE
    others = [ordinary_rows(ev.case, [771]), ordinary_rows(ev.case, [6], rows=771)]
    cases = [replace(ev.case, layouts={}, recipe=None), *(case for case in others if right(ev.again(case)))]
    return first_bad(
        judge(ev, replace(case, history=history), what, f"less accurate {cause}", outputs_of(case))
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
    if not right(ev):
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
        chosen = ordinary_rows(ev.case, [n])
        return chosen if ev.subject.capabilities.eps is not None else replace(chosen, eps=eps)

    fresh = replace(case(461 + 2 * number, eps), history=history)
    cause = "an earlier call in another dtype changes the result"
    now = ev.rerun(fresh)
    plain = ev.again(case(461 + 2 * number + 840, eps + 1))
    if not right(plain):
        return INAPPLICABLE
    if now.response.refusal is not None:
        return Outcome("crashed", np.inf, "y", (), f"{what} it is refused: {now.response.refusal}", cause, case=fresh)
    due, got = (found.output("y") for found in (plain, now))
    if due is not None and got is not None and due.dtype != got.dtype:
        text = f"{what}, y is {got.dtype}, {due.dtype} is due."
        return Outcome("violated", np.inf, "y", (), text, cause, case=fresh)
    return judge(ev, fresh, what, cause, outputs_of(fresh))


@law("LN719", name="deterministic-algorithms", severity="error", limit=8, max_elements=1 << 14,
     source="torch.use_deterministic_algorithms: another algorithm, the same function")  # fmt: skip
def deterministic_algorithms(ev: Evaluation) -> Outcome:
    """Under torch.use_deterministic_algorithms y and the gradients keep their bounds, or the call is refused.

    Catches a branch for determinism that computes something else.
    """
    if ev.subject.framework != "torch" or not right(ev):
        return INAPPLICABLE
    case = replace(ev.case, layouts={}, history="deterministic", recipe=None)
    cause = "deterministic algorithms give other results"
    return judge(ev, case, "With deterministic algorithms", cause, outputs_of(case))


@law("LN721", name="several-threads", severity="error", limit=2, max_elements=1 << 12, runs=20,
     source="dweight and dbias are sums of partial sums, of a thread or a block each: karpathy/llm.c#408")  # fmt: skip
def several_threads(ev: Evaluation) -> Outcome:
    """y and the gradients are right by the bounds on five, four and three threads, for rows that these do not divide
    and for fewer rows than threads, after calls with more rows.

    Asked of single rows and of blocks of 32. Catches partial sums that a thread, or a block of rows, has left from an
    earlier call where now there is none. In 16 bits dy is 1, 0 or -1, of which every sum is exact, and dweight is not
    asked: sums in 16 bits are what LN202 and LN203 speak of.
    """
    ev = with_gradients(ev) if ev.subject.framework == "torch" else ev
    if not right(ev):
        return INAPPLICABLE
    low = FORMATS[ev.case.dtype].precision <= 11
    shape, declared = list(ev.case.normalized_shape), ev.subject.capabilities.threads
    counts = declared or ((5, 4, 3) if ev.subject.framework == "torch" else (1,))
    outcome: Outcome = INAPPLICABLE
    for threads, block in ((threads, block) for threads in counts for block in (1, 32)):
        more = Evaluation(replace(ordinary_rows(ev.case, shape, 2 * threads * block), threads=threads), ev.evaluator)
        if not right(more):
            continue
        for rows in ((threads + 1) * block, 2):
            case = replace(ordinary_rows(ev.case, shape, rows), threads=threads, requires_grad=ev.case.requires_grad)
            if low and case.has("dy"):
                dy = FloatArray.of(integers(5, case.arrays["dy"].shape, -1, 1), case.arrays["dy"].dtype)
                case = replace(case, arrays={**case.arrays, "dy": dy})
            what = f"On {threads} threads, after a call with {2 * threads * block} rows"
            outputs = [name for name in outputs_of(case) if not (low and name == "dweight")]
            found = judge(ev, case, what, "several threads, or more rows before, give other results", outputs)
            if found.bad and found.output in ("y", "dx") and not right(ev.again(single(case, found.index[0]))):
                continue  # the row is wrong whatever is around it
            if found.bad:
                return found
            outcome = found if found.informative else outcome
    return outcome


@law("LN720", name="backward-in-a-thread", severity="error", needs=("dx",), limit=8, max_elements=1 << 14,
     source="torch.autograd runs the backward in a thread of the device; torch.nn.DataParallel")  # fmt: skip
def backward_in_a_thread(ev: Evaluation) -> Outcome:
    """The gradients are right where the backward runs in another thread than the forward.

    By the bounds of LN201 to LN203. Catches what is kept for each thread: statistics, scratch, an eps.
    """
    ev = with_gradients(ev)
    if not right(ev):
        return INAPPLICABLE
    case = replace(ev.case, history="handed", recipe=None)
    what = "With the backward in another thread"
    return judge(ev, case, what, "the backward depends on its thread", list(case.gradients()))
