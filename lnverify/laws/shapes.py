"""LN6xx, continued: parameters of another length, and rows without elements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, Outcome, law


@law("LN608", name="parameter-length", severity="warning", once=True,
     source="torch.nn.functional.layer_norm refuses them; microsoft/onnxruntime#27455, #17060")  # fmt: skip
def parameter_length(ev: Evaluation) -> Outcome:
    """A weight or bias one element longer or shorter than N is refused, not cut, repeated or read past its end.

    A warning: the caller is wrong too. Nothing is judged but whether there is an answer.
    """
    case = ev.case
    present = [name for name in ("weight", "bias") if case.has(name)]
    if not present or case.n < 3 or len(case.normalized_shape) != 1 or ev.response.refusal is not None:
        return INAPPLICABLE
    for name in present:
        for length in (case.n + 1, case.n - 1):
            array = FloatArray.of(np.resize(case.vector(name), length), case.arrays[name].dtype)
            arrays = {k: v for k, v in case.arrays.items() if k in ("x", "weight", "bias")}
            chosen = replace(case, arrays={**arrays, name: array}, requires_grad=(), layouts={}, recipe=None)
            if Evaluation(chosen, ev.evaluator).ask("y").refusal is None:
                text = f"A {name} of {length} elements is accepted beside rows of {case.n}."
                return Outcome("violated", 1.0, "y", (), text, "a parameter of another length is accepted", case=chosen)
    return Outcome("holds", 0.0, "y")


@law("LN609", name="empty-rows", severity="error", once=True,
     source="an empty tensor keeps its shape; pytorch/pytorch#78444, tensorflow/tensorflow#46366")  # fmt: skip
def empty_rows(ev: Evaluation) -> Outcome:
    """Rows of no elements give an empty y of the shape of x, or an exception.

    What such a row means is for the subject to say: nothing else is judged, and gradients are not asked for.
    """
    if ev.subject.capabilities.fixed_shape is not None or ev.response.refusal is not None:
        return INAPPLICABLE
    arrays = {
        name: FloatArray.of(np.zeros((2, 0) if name == "x" else (0,)), ev.case.arrays[name].dtype)
        for name in ("x", "weight", "bias")
        if ev.case.has(name)
    }
    chosen = replace(ev.case, arrays=arrays, normalized_shape=(0,), requires_grad=(), layouts={}, recipe=None)
    answer = Evaluation(chosen, ev.evaluator).ask("y")
    y = answer.arrays.get("y")
    if answer.refusal is not None or (y is not None and y.shape == (2, 0)):
        return Outcome("holds", 0.0, "y")
    text = f"For x of shape (2, 0), y has shape {None if y is None else y.shape}."
    return Outcome("violated", np.inf, "y", (), text, "rows without elements give something", case=chosen)
