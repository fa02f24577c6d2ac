"""LN6xx, continued: how the arguments lie in memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import prod

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FloatArray
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law

MATRICES = ("transposed", "padded", "strided", "skipped", "offset", "reversed", "shifted")
DEEPER = ("swapped", "sliced", "permuted", "shifted")  # tell apart from the above with three dimensions or more
DEEPEST = ("cropped", "sliced", "skipped", "swapped")  # with four
LAYOUTS_CAUSE = "the memory layout of an array is ignored"


def _choices(rank: int) -> Iterator[Mapping[str, str]]:
    """Layouts to try: x or dy alone, both alike, and the parameters."""
    for layout in MATRICES + (DEEPER if rank >= 3 else ()):
        yield {"x": layout}
        yield {"dy": layout}
    yield {"x": "permuted", "dy": "permuted"}
    for layout in ("strided", "offset", "reversed", "padded", "transposed"):
        yield {"weight": layout, "bias": layout}


def _deeper(case: Case) -> Case | None:
    """The case with its rows as a matrix of rows, where there is a way to write them so."""
    batch = len(case.arrays["x"].shape) - len(case.normalized_shape)
    divisor = next((p for p in (2, 3, 5, 7) if case.rows % p == 0 and case.rows > p), 0)
    if batch > 1 or not divisor:
        return None
    return _shaped(case, divisor, case.rows // divisor)


def _shaped(case: Case, *batch: int) -> Case:
    """The case with its first rows in a batch of that shape."""
    rows = prod(batch)
    arrays = {
        k: FloatArray(v.dtype, v.bits.reshape(case.rows, -1)[:rows].reshape(*batch, *case.normalized_shape))
        if k in ("x", "dy")
        else v
        for k, v in case.arrays.items()
    }
    return replace(case, arrays=arrays, layouts={}, recipe=None)


def _constant(case: Case) -> Case:
    """Equal rows of x and dy, equal weights and biases: what an expanded array can hold."""
    arrays = {}
    for name, array in case.arrays.items():
        rows = name in ("x", "dy")
        first = array.bits.reshape(case.rows, case.n)[:1] if rows else array.bits.reshape(-1)[:1]
        size = (case.rows, case.n) if rows else (case.n,)
        arrays[name] = FloatArray(array.dtype, np.broadcast_to(first, size).reshape(array.shape).copy())
    return replace(case, arrays=arrays, layouts={}, recipe=None)


def _flat(case: Case, name: str, axis: int) -> Case:
    """An x or dy that is the same in all rows (axis 0), or along each: a stride of 0 in some dimensions alone."""
    array = case.arrays[name]
    bits = array.bits.reshape(case.rows, case.n)
    flat = np.broadcast_to(bits.take([0], axis=axis), bits.shape).reshape(array.shape).copy()
    return replace(case, arrays={**case.arrays, name: FloatArray(array.dtype, flat)})


def _again_and_again(case: Case) -> Case:
    """An x that is the same along the first dimension of its batch alone."""
    x = case.arrays["x"]
    same = np.broadcast_to(x.bits[:1], x.shape).copy()
    return replace(case, arrays={**case.arrays, "x": FloatArray(x.dtype, same)})


@law("LN607", name="memory-layout", severity="error", limit=12, max_elements=1 << 15,
     source="microsoft/DirectML#588; NVIDIA/TransformerEngine#1017; ELS-RD/kernl#193")  # fmt: skip
def memory_layout(ev: Evaluation) -> Outcome:
    """Where the numbers lie in memory does not matter: transposed, permuted, strided, sliced, reversed, unaligned and
    expanded views give what contiguous arrays give, for y and every gradient, by the bounds of LN101 and LN201 to
    LN203.

    x, dy and the parameters each in every layout of lnverify.protocol.LAYOUTS, in two and in three dimensions. A
    subject that refuses a layout is not accused.
    """
    case = ev.case
    if case.rows < 2 or case.n < 2 or case.layouts.get("dy") == "output":
        return INAPPLICABLE
    plain = replace(case, layouts={}, recipe=None)
    expanded: Mapping[str, str] = dict.fromkeys(case.arrays, "expanded")
    runs: list[tuple[Case, list[Mapping[str, str]]]]
    runs = [(plain, list(_choices(len(case.arrays["x"].shape)))), (_constant(case), [expanded])]
    if case.has("dy"):
        runs += [(_flat(plain, "dy", axis), [{"dy": "expanded"}]) for axis in (0, 1)]
    runs.append((_flat(plain, "x", 0), [{"x": "expanded"}]))
    deeper = _deeper(case)
    if deeper is not None:
        runs.append((deeper, [{name: layout} for layout in DEEPER for name in ("x", "dy")]))
        runs.append((_again_and_again(deeper), [{"x": "expanded"}]))
    if case.rows >= 12 and len(case.normalized_shape) == 1:
        runs.append((_shaped(case, 2, 3, 2), [{name: layout} for layout in DEEPEST for name in ("x", "dy")]))
    runs.append((_shaped(case, min(case.rows, 3)), [{name: "far"} for name in ("x", "dy")]))
    return first_bad(_try(ev.again(start), choices) for start, choices in runs)


def _try(start: Evaluation, choices: list[Mapping[str, str]]) -> Outcome:
    """Every choice of layouts on a case that contiguous arrays get right."""
    case = start.case
    outputs = ["y", *(case.gradients() if case.has("dy") else ())]
    if start.response.refusal is not None or any(start.settle(o)[1] == "violated" for o in outputs):
        return INAPPLICABLE
    outcome: Outcome = INAPPLICABLE
    for choice in choices:
        layouts = {k: v for k, v in choice.items() if case.has(k)}
        if not layouts:
            continue
        how = ", ".join(f"{k} {v}" for k, v in layouts.items())
        found = _judged(start.rerun(replace(case, layouts=layouts)), outputs, how)
        if not found.bad and "dy" not in layouts:  # the path of inference reads memory in ways of its own
            plain = replace(case, layouts=layouts, grad_mode="no_grad", requires_grad=())
            found = _judged(start.rerun(plain.forward_alone()), ["y"], f"{how}, under no_grad")
        if found.bad:
            return found
        outcome = found if found.informative else outcome
    return outcome


def _judged(again: Evaluation, outputs: list[str], how: str) -> Outcome:
    """The outputs of one layout."""
    outcome: Outcome = INAPPLICABLE
    if again.response.refusal is not None:
        return outcome
    for output in outputs:
        judgement, kind = again.settle(output)
        if kind == "violated":
            text = f"With {how}, {judgement.sentence()} Contiguous arrays give the right result."
            return replace(judgement.outcome(LAYOUTS_CAUSE, text), case=again.asked)
        if kind in ("holds", "points", "last place"):
            outcome = Outcome("holds", min(judgement.ratio, 1.0), output)
    return outcome
