"""LN2xx, continued: derivatives of derivatives by other ways than the double backward, and vmap."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.laws.autodiff import unless_first_order
from lnverify.recipes import normal

WIDE = ("float64", "float32")  # op-by-op code in 16 bits rounds too often for a third derivative to say anything
HIGHER = "derived formulas evaluated on dual numbers, with running errors; Griewank, Walther (2008), ch. 3"


def _with(ev: Evaluation, names: tuple[str, ...]) -> Evaluation | None:
    """The case with tangents drawn; None where a row has no spread, or its size strains the range of s^-7."""
    case = ev.case
    if not case.has("dy") or case.n < 2 or case.rows == 0 or not np.isfinite(case.matrix("x")).all():
        return None
    st = ev.exact.statistics
    with np.errstate(all="ignore"):
        s = np.ldexp(st.s, st.exponent)
        ordinary = (s > 1e-3) & (s < 1e3) & (np.abs(st.mu) < 32 * st.s)
    if not ordinary.all() or max(np.abs(a.values).max(initial=0.0) for a in case.arrays.values()) > 1e4:
        return None
    shapes = {name: case.arrays[name[1:]] for name in names if case.has(name[1:])}
    drawn = {
        name: FloatArray.of(normal(50 + number, like.shape), like.dtype)
        for number, (name, like) in enumerate(shapes.items())
    }
    grads = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    layouts = {k: v for k, v in case.layouts.items() if not (k == "dy" and v == "output")}
    arrays = {**case.arrays, **drawn}
    return ev.again(replace(case, arrays=arrays, layouts=layouts, requires_grad=grads, recipe=None))


def _judge(ev: Evaluation, output: str, tangents: tuple[str, ...], cause: str) -> Outcome:
    again = _with(ev, tangents)
    if again is None:
        return INAPPLICABLE
    judgement = again.judge(output)
    if judgement.state == "refused":
        if output == "d3x" and again.second_order.refusal is not None:
            return INAPPLICABLE  # refused one derivative earlier: LN209 says so
        text = f"Refused in the {again.ask(output).phase}: {judgement.message}"
        return Outcome("crashed", np.inf, output, (), text, cause.replace("is wrong", "is refused"), case=again.case)
    outcome = judgement.outcome(cause)
    if outcome.bad and output in ("tty", "rty", "fdx") and _all_zero(again, output):
        return INAPPLICABLE
    outcome = unless_first_order(again, outcome)
    return replace(outcome, case=again.case) if outcome.bad else outcome


def _all_zero(ev: Evaluation, output: str) -> bool:
    """Whether nothing but zeros came back: a written forward-mode rule is a constant where torch differentiates it,
    however right it is, and its author can do nothing about that."""
    got = ev.output(output)
    return got is not None and not got.values.any()


@law("LN213", name="nested-forward", severity="error", needs=("tty",), dtypes=WIDE, limit=16, max_elements=1 << 12,
     source=f"pytorch/pytorch#196700; {HIGHER}")  # fmt: skip
def nested_forward(ev: Evaluation) -> Outcome:
    """The jvp can be differentiated in forward mode: the tangent of the tangent of y is the second derivative of y
    along tx and sx, within the running errors of the derived jvp on dual numbers."""
    return _judge(ev, "tty", ("tx", "sx"), "forward mode over forward mode is wrong")


@law("LN214", name="reverse-over-forward", severity="error", needs=("rty",), dtypes=WIDE, limit=16,
     max_elements=1 << 12, source=f"pytorch/pytorch#196700; {HIGHER}")  # fmt: skip
def reverse_over_forward(ev: Evaluation) -> Outcome:
    """The jvp can be differentiated in reverse mode: the gradient of <dy, jvp along tx> is that of <dx, tx>, the
    double backward with tx in the place of vx, within its running errors."""
    return _judge(ev, "rty", ("tx",), "reverse mode over forward mode is wrong")


@law("LN218", name="forward-over-reverse", severity="error", needs=("fdx",), dtypes=WIDE, limit=16,
     max_elements=1 << 12, source=f"torch.func.jvp over vjp, as a Hessian is computed; {HIGHER}")  # fmt: skip
def forward_over_reverse(ev: Evaluation) -> Outcome:
    """The gradient dx can be differentiated in forward mode: its derivative along tx, tweight and tbias is the double
    backward with these in the place of vx, vweight and vbias (second derivatives are symmetric), within its running
    errors.

    A subject that refuses a double backward is not asked: what it saves are constants by its own declaration. Nor is
    one that torch.jit.script compiled: it loses tangents here in torch 2.13, whatever it computes.
    """
    if "d2x" not in ev.subject.capabilities.outputs:
        return INAPPLICABLE
    return _judge(ev, "fdx", ("tx", "tweight", "tbias"), "forward mode over reverse mode is wrong")


@law("LN215", name="third-derivative", severity="error", needs=("d3x",), dtypes=WIDE, limit=16, max_elements=1 << 12,
     source=f"pytorch/pytorch#175754, #176218; {HIGHER}")  # fmt: skip
def third_derivative(ev: Evaluation) -> Outcome:
    """The double backward can be differentiated once more: the gradient of <d2x, wx> is the derivative of d2x along
    wx (a Hessian is symmetric), within the running errors of the derived double backward on dual numbers."""
    return _judge(ev, "d3x", ("vx", "vweight", "vbias", "wx"), "the third derivative is wrong")


@law("LN216", name="vmap", severity="error", needs=("vmap",), dtypes=WIDE, limit=16, max_elements=1 << 12,
     source="torch.func.vmap is a loop; pytorch/functorch#534")  # fmt: skip
def vmap(ev: Evaluation) -> Outcome:
    """vmap over the rows gives what one call gives, in y and in every gradient, by the bounds of LN101 and LN201 to
    LN203, with the batch of x in its first dimension and in its last; each sample, of one row or of three, has a weight
    and a bias of its own, powers of two times the given ones, which cancel exactly. With a weight also vmap over the
    parameters alone, x being the same for all, and the gradients of each sample under parameters that all share, whose
    sum is that of the batch."""
    case = ev.case
    if case.rows < 2 or not case.n or case.layouts.get("dy") == "output" or _with(ev, ()) is None:
        return INAPPLICABLE
    start = ev.again(_by_rows(case))
    outputs = ["y", *start.case.gradients()]
    if not _right(start, outputs):
        return INAPPLICABLE
    outcome = _under_vmap(start, outputs, "vmap")
    if outcome.bad:
        return outcome
    groups = ev.again(_in_groups(case))
    if _right(groups, outputs) and (outcome := _under_vmap(groups, outputs, "vmap_groups")).bad:
        return outcome
    square = ev.again(_by_rows(_square(case)))
    ways = [_under_vmap(square, outputs, "vmap_last")] if _right(square, outputs) else []
    if not case.has("weight"):
        return first_bad((outcome, *ways))
    return first_bad((
        *ways,
        _under_vmap(start, ["y"], "vmap_parameters"),
        _under_vmap(start, start.case.gradients(), "vmap_samples"),
    ))  # fmt: skip


@law("LN220", name="vmap-of-some", severity="error", needs=("vmap",), dtypes=WIDE, limit=8, max_elements=1 << 10,
     source="torch.func.vmap is a loop; pytorch/functorch#534")  # fmt: skip
def vmap_of_some(ev: Evaluation) -> Outcome:
    """vmap with a batch of some of x, weight and bias alone gives each sample what one call gives, in y and in the
    gradients of what has a batch, by the bounds of LN101 and LN201 to LN203. Of x also with the batch in the second
    dimension, where there are as many rows as samples, so that nothing but the numbers tells one from the other."""
    case = ev.case
    if case.rows == 0 or not case.n or case.layouts.get("dy") == "output" or _with(ev, ()) is None:
        return INAPPLICABLE
    grads = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    start = ev.again(replace(case, layouts={}, requires_grad=grads, recipe=None))
    return first_bad(_selections(start)) if _right(start, ["y", *start.case.gradients()]) else INAPPLICABLE


def _selections(start: Evaluation) -> Iterator[Outcome]:
    """With a batch of some of the arguments alone."""
    present = [a for a in ("x", "weight", "bias") if start.case.has(a)]
    for count in range(1, min(len(present), 3)):
        for chosen in combinations(present, count):
            outputs = ["y", *(f"d{a}" for a in chosen if f"d{a}" in start.case.gradients())]
            yield _under_vmap(start, outputs, "vmap_of_" + "_".join(chosen))
    three = start.again(_rows(start.case, 3))
    outputs = ["y", *(["dx"] if "dx" in start.case.gradients() else [])]
    if _right(three, outputs):
        yield _under_vmap(three, outputs, "vmap_second")


WAYS = {
    "vmap": "Under vmap", "vmap_last": "Under vmap with the batch of x in its last dimension",
    "vmap_groups": "Under vmap over as many samples as each has rows",
    "vmap_parameters": "Under vmap over the parameters alone",
    "vmap_samples": "Under vmap with parameters that all samples share",
    "vmap_second": "Under vmap with a batch of x in its second dimension",
}  # fmt: skip


def _under_vmap(start: Evaluation, outputs: Sequence[str], name: str) -> Outcome:
    """Judge what vmap gives: y alone where torch.func has no gradients for the code, under hooks on saved tensors say.

    A refusal accuses nobody: a branch on data, of one affine form alone, is refused loudly.
    """
    asked = "vmap" if name == "vmap_groups" else name
    response = start.ask(*outputs, asked)
    if response.refusal is not None and "y" in outputs and len(outputs) > 1:
        outputs, response = ["y"], start.ask("y", asked)
    if response.refusal is not None:
        return Outcome("holds", 0.0, "y") if name != "vmap" else INAPPLICABLE
    again = start.answered(response)
    outcome: Outcome = INAPPLICABLE
    for output in outputs:
        judgement = again.judge(output)
        if judgement.state == "violated":
            way = WAYS.get(name) or f"Under vmap over {name.removeprefix('vmap_of_').replace('_', ' and ')} alone"
            text = f"{way}, {judgement.sentence()} One call gives the right result."
            return replace(judgement.outcome("vmap is wrong", text), case=start.case)
        if judgement.state == "holds":
            outcome = Outcome("holds", judgement.ratio, output)
    return outcome


def _right(ev: Evaluation, outputs: Sequence[str]) -> bool:
    """Whether one call gives what vmap is to give."""
    return ev.response.refusal is None and all(ev.settle(output)[1] != "violated" for output in outputs)


def _in_groups(case: Case) -> Case:
    """The case as three samples of three rows, the given ones in turn: a weight for each sample meets as many rows, and
    whoever takes it for one of each row gets other numbers."""
    turns = np.arange(9).reshape(3, 3) % case.rows
    arrays = {
        k: FloatArray(v.dtype, v.bits.reshape(case.rows, *case.normalized_shape)[turns]) if k in ("x", "dy") else v
        for k, v in case.arrays.items()
    }
    return replace(_by_rows(case), arrays=arrays)


def _square(case: Case) -> Case:
    """As many rows as the last dimension is long, the given ones in turn: a batch in the wrong dimension fits then,
    and shows in the numbers."""
    rows = case.normalized_shape[-1]
    return _rows(case, rows) if 2 <= rows <= 64 else case


def _rows(case: Case, rows: int) -> Case:
    """So many rows in a batch of one dimension, the given ones in turn."""
    turns = np.arange(rows) % case.rows
    arrays = {
        k: FloatArray(v.dtype, v.bits.reshape(case.rows, *case.normalized_shape)[turns]) if k in ("x", "dy") else v
        for k, v in case.arrays.items()
    }
    return replace(case, arrays=arrays, recipe=None)


def _by_rows(case: Case) -> Case:
    """The case as (rows, 1, *normalized_shape): every sample is a batch of one row."""
    shape = (case.rows, 1, *case.normalized_shape)
    arrays = {k: FloatArray(v.dtype, v.bits.reshape(shape)) if k in ("x", "dy") else v for k, v in case.arrays.items()}
    grads = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    return replace(case, arrays=arrays, layouts={}, requires_grad=grads, recipe=None)
