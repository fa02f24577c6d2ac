"""Identify: how a layer norm computes what it computes, right or wrong, as far as its answers show it.

Every fact is a comparison with the exact result, or of bits with bits, on a few cases; what the answers do not tell
apart is said to be unknown. Nothing here is a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lnverify.case import Case, single
from lnverify.diagnosis import dx_cause, forward_cause
from lnverify.evaluation import Evaluation, Evaluator
from lnverify.floats import FORMATS, FloatArray
from lnverify.laws.accuracy import growth
from lnverify.recipes import build
from lnverify.support import AFFINE, Support, find_support

UNKNOWN = "unknown"
AXES = (
    ("all dimensions of normalized_shape", (-2, -1)), ("the last dimension alone", (-1,)), ("the batch", (0,)),
    ("everything", (0, 1, 2)),
)  # fmt: skip


@dataclass(frozen=True)
class Fact:
    """One line: what was asked, what was found, and how."""

    name: str
    value: str
    how: str


def identify(subject: Any, dtype: str, device: str = "cpu") -> list[Fact] | str:
    """Facts about a subject in one dtype; the reason where it answers nothing in it."""
    support = find_support(subject, dtype, device)
    if isinstance(support, str):
        return support
    asking = _Asking(support)
    return [fact for name, ask in QUESTIONS for fact in [_fact(name, ask, asking)] if fact is not None]


def _fact(name: str, ask: Callable[[_Asking], tuple[str, str] | None], asking: _Asking) -> Fact | None:
    found = ask(asking)
    return None if found is None else Fact(name, *found)


class _Asking:
    """A subject in one dtype, and cases to ask it."""

    def __init__(self, support: Support) -> None:
        self.support, self.evaluator = support, Evaluator(support.subject)

    def case(self, rows: int = 4, n: int = 16, shape: list[int] | None = None, **changes: Any) -> Case:
        fixed = self.support.subject.capabilities.fixed_shape
        weight, bias = AFFINE[self.support.affine[0]]
        recipe = {
            "dtype": self.support.dtype, "batch": [rows], "shape": list(fixed or shape or [n]), "regime": "normal",
            "mean": 0.5, "scale": 0, "weight": weight, "bias": bias, "dy": "normal", "seed": 3,
            "eps": self.support.eps[0], "device": self.support.device, **changes,
        }  # fmt: skip
        return build(recipe)

    def ask(self, case: Case) -> Evaluation:
        return Evaluation(case, self.evaluator)

    def same(self, first: Evaluation, second: Evaluation) -> Iterator[tuple[str, bool]]:
        """Output by output, whether two answers have the same bits."""
        for name, array in first.response.arrays.items():
            other = second.response.arrays.get(name)
            if other is not None and name != "dy":
                yield name, array.same_bits(other)


def _statistics(asking: _Asking) -> tuple[str, str]:
    eps = 0.1 if 0.1 in asking.support.eps else asking.support.eps[0]  # where its place shows
    run = asking.ask(asking.case(n=24, eps=eps))
    if run.settle("y")[1] in ("holds", "points", "last place"):
        return "mean and population variance (1/N), eps inside the root", "y keeps its bound"
    cause = forward_cause(run)
    return (UNKNOWN if cause == "y is wrong" else cause), "the formula that reproduces y on four cases"


def _axes(asking: _Asking) -> tuple[str, str] | None:
    if 2 not in asking.support.dims or asking.support.subject.capabilities.fixed_shape:
        return "the last dimension", "it takes one normalised dimension"
    case = asking.case(shape=[3, 4])
    run = asking.ask(case)
    how = "normalized_shape (3, 4)"
    if run.settle("y")[1] != "violated":
        return "all dimensions of normalized_shape", how
    y, x = run.output("y"), case.arrays["x"].values
    if y is None:
        return UNKNOWN, how
    weight = case.arrays["weight"].values if case.has("weight") else 1.0
    bias = case.arrays["bias"].values if case.has("bias") else 0.0
    apart = {}
    for name, axes in AXES:
        centred = x - x.mean(axes, keepdims=True)
        other = centred / np.sqrt((centred**2).mean(axes, keepdims=True) + case.eps) * weight + bias
        apart[name] = float(np.abs(y.values - other).mean() / np.abs(other).mean())
    best = min(apart, key=apart.__getitem__)
    # N - 1 in the place of N is 4 % for N = 12; other axes are of the order of 1.
    return (best if apart[best] < 0.2 else UNKNOWN), how


def _eps(asking: _Asking) -> tuple[str, str]:
    """From a row of -t, t, -t, ...: y = t/sqrt(t^2 + e)."""
    declared = asking.support.subject.capabilities.eps
    given = declared if declared is not None else (1e-2 if 0.1 in asking.support.eps else asking.support.eps[0])
    t = np.sqrt(given) if given > 0 else 1e-3
    case = asking.case(rows=1, n=64)
    values = np.resize([-t, t], case.n).reshape(case.arrays["x"].shape)
    case = replace(case, eps=given, arrays={**case.arrays, "x": FloatArray.of(values, case.dtype)}, recipe=None)
    y = asking.ask(case).output("y")
    if y is None or case.n % 2:
        return UNKNOWN, "a row of +-t"
    weight = case.vector("weight")[1] if case.has("weight") else 1.0
    bias = case.vector("bias")[1] if case.has("bias") else 0.0
    xhat = (float(y.values.ravel()[1]) - bias) / weight
    exact = float(case.arrays["x"].values.ravel()[1])
    with np.errstate(all="ignore"):
        effective = exact**2 * (1 / xhat**2 - 1)
    said = f"{given:g} is {'declared' if declared is not None else 'given'}"
    return f"about {effective:.3g} beside the variance", f"a row of +-sqrt(eps); {said}"


def _passes(asking: _Asking) -> tuple[str, str] | None:
    if asking.support.dtype == "bfloat16" or asking.support.subject.capabilities.fixed_shape:
        return None
    grown = growth(asking.ask(asking.case()))
    how = "error of the scale over |mean|/std from 16 up"
    if grown is None:
        return "no sign of one pass", f"{how}: it does not leave the rounding of y"
    slope, magnitude = grown
    one = slope > 1.5 and magnitude > 0.05
    value = "one pass, E[x^2] - E[x]^2" if one else "two passes, Welford or shifted"
    return value, f"{how}: (|mean|/std)^{slope:.2f}, {magnitude:.2g} u at 1"


def _form(asking: _Asking) -> tuple[str, str]:
    """A constant row of few bits: x - mean is 0, x*scale + (bias - mean*scale) need not be the bias."""
    case = asking.case(rows=3, n=16)
    rows = np.broadcast_to(np.array([[1.25], [-1.75], [896.0]]), (3, case.n)).reshape(case.arrays["x"].shape)
    case = replace(case, arrays={**case.arrays, "x": FloatArray.of(rows, case.dtype)}, recipe=None)
    y = asking.ask(case).output("y")
    how = "constant rows of three bits"
    if y is None:
        return UNKNOWN, how
    bias = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    exact = bool((y.values.reshape(3, case.n) == bias).all())
    return ("deviations from the mean" if exact else "a scale and a shift for each row (x*scale + shift)"), how


def _rounding(asking: _Asking) -> tuple[str, str] | None:
    if FORMATS[asking.support.dtype].precision > 11:
        return None
    kinds = {asking.ask(asking.case(n=64, rows=8, seed=seed)).settle("y")[1] for seed in range(5, 10)}
    value = (
        "beyond float32 statistics and the usual rounding points" if "violated" in kinds
        else "xhat or weight*xhat rounded to 16 bits on the way" if "points" in kinds
        else "not always to nearest" if "last place" in kinds else "once, at the end"
    )  # fmt: skip
    return value, "five cases of 8 x 64"


def _batch(asking: _Asking) -> tuple[str, str]:
    case = asking.case(rows=65, n=40)
    whole = asking.ask(case).output("y")
    how = "a row alone and in a batch of 65"
    if whole is None:
        return UNKNOWN, how
    bits = whole.bits.reshape(case.rows, case.n)
    for row in (0, 31, 64):
        alone = asking.ask(single(case, row)).output("y")
        if alone is None or not np.array_equal(alone.bits.ravel(), bits[row]):
            return "no: other bits", how
    return "yes: the same bits", how


def _repeats(asking: _Asking) -> tuple[str, str]:
    case = asking.case(rows=129, n=64)
    first = asking.ask(case)
    moved = {name for _ in range(4) for name, same in asking.same(first, asking.ask(case)) if not same}
    return (f"no: {', '.join(sorted(moved))}" if moved else "yes: the same bits"), "five calls on 129 x 64"


def _threads(asking: _Asking) -> tuple[str, str] | None:
    counts = asking.support.subject.capabilities.threads or (1, 2)
    if len(counts) < 2 or asking.support.subject.framework != "torch":
        return None
    case = asking.case(rows=1025, n=64)
    one, two = (asking.ask(replace(case, threads=count)) for count in counts[:2])
    moved = sorted(name for name, same in asking.same(one, two) if not same)
    value = f"yes: {', '.join(moved)}" if moved else "no: the same bits"
    return value, f"{counts[0]} and {counts[1]} threads on 1025 x 64"


def _backward(asking: _Asking) -> tuple[str, str] | None:
    if "dx" not in asking.support.outputs:
        return "none", "an ordinary input"
    run = asking.ask(asking.case(rows=8, n=24, mean=8.0))
    how = "8 x 24, |mean|/std = 8"
    if run.settle("dx")[1] != "violated":
        return "the derivative of the forward", how
    cause = dx_cause(run)
    return (UNKNOWN if cause == "dx is wrong" else cause), how


QUESTIONS: tuple[tuple[str, Callable[[_Asking], tuple[str, str] | None]], ...] = (
    ("formula", _statistics), ("statistics over", _axes), ("eps", _eps), ("variance", _passes), ("form", _form),
    ("rounding", _rounding), ("backward", _backward), ("batch-invariant", _batch), ("deterministic", _repeats),
    ("bits depend on threads", _threads),
)  # fmt: skip
