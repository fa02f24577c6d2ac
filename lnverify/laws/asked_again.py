"""What the laws about calls in turn share: the request again, with something around it, judged by its bounds."""

from __future__ import annotations

from dataclasses import replace

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, Outcome
from lnverify.recipes import build, integers


def outputs_of(case: Case) -> list[str]:
    """y, and the gradients that the case asks for."""
    return ["y", *(case.gradients() if case.has("dy") and case.grad_mode == "enabled" else ())]


def right(ev: Evaluation) -> bool:
    """Whether the plain request is answered, and rightly: only then does its history say anything."""
    if ev.response.refusal is not None or ev.case.layouts.get("dy") == "output" or not ev.case.size:
        return False
    return all(ev.settle(o)[1] != "violated" for o in outputs_of(ev.case) if o in ev.response.arrays)


def with_gradients(ev: Evaluation) -> Evaluation:
    """The case with a dy, and with every gradient asked for; itself where it is so already."""
    case, full = ev.case, tuple(a for a in ("x", "weight", "bias") if ev.case.has(a))
    if case.has("dy") and case.requires_grad == full:
        return ev
    dy = case.arrays.get("dy") or FloatArray.of(integers(5, case.arrays["x"].shape, -2, 3), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    return ev.again(replace(case, arrays={**case.arrays, "dy": dy}, requires_grad=full, layouts=layouts, recipe=None))


def judge(start: Evaluation, case: Case, what: str, cause: str, outputs: list[str]) -> Outcome:
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


def ordinary_rows(case: Case, shape: list[int], rows: int = 3) -> Case:
    """Ordinary rows of a shape, three of them, with the parameters and the modes of a case."""
    recipe = {"dtype": case.dtype, "batch": [rows], "shape": shape, "regime": "normal", "eps": case.eps, "seed": 1}
    present = {name: "normal" if case.has(name) else None for name in ("weight", "bias", "dy")}
    chosen = build({**recipe, **present, "grads": [name for name in ("x", "weight", "bias") if case.has(name)]})
    return replace(chosen, device=case.device, threads=case.threads, train=case.train, recipe=None)
