"""LN5xx: NaN and infinity, exact values, and the ends of the range."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, round_values
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.recipes import normal


def _poisoned(case: Case, value: float) -> tuple[Case, int]:
    """The case with one element of a middle row replaced, and that row."""
    row = case.rows // 2
    x = case.matrix("x").copy()
    x[row, (case.rows + case.n) % case.n] = value
    array = FloatArray.of(x.reshape(case.arrays["x"].shape), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if not (k == "dy" and v == "output")}
    return replace(case, arrays={**case.arrays, "x": array}, layouts=layouts, recipe=None), row


@law("LN501", name="nan-stays-in-its-row", severity="error", limit=24, max_elements=1 << 15,
     source="IEEE 754-2019, 6.2; layer norm treats rows independently (Ba et al. 2016, 3)")  # fmt: skip
def nan_stays_in_its_row(ev: Evaluation) -> Outcome:
    """A NaN or an infinity in one row of x does not reach y and dx of other rows, nor one in dy their dx.

    The other rows are judged by LN101 and LN201. dweight and dbias sum over rows and may be NaN.
    """
    case = ev.case
    if case.rows < 2 or case.n == 0 or ev.settle("y")[1] == "violated":
        return INAPPLICABLE
    for value in (np.nan, np.inf):
        chosen, row = _poisoned(case, value)
        again = ev.again(chosen)
        for name in ("y", "dx"):
            if name == "dx" and (
                not case.has("dy") or "dx" not in case.gradients() or ev.settle("dx")[1] == "violated"
            ):
                continue
            judgement, kind = again.settle(name)
            if kind == "violated":
                text = f"Row {row} holds {value}; {judgement.sentence()}"
                return replace(judgement.outcome("a NaN or infinity reaches other rows", text), case=chosen)
    return _poisoned_dy(ev)


def _poisoned_dy(ev: Evaluation) -> Outcome:
    """A NaN in one row of dy: dx of every other row is what it is without it, within the sum of both bounds."""
    case, row = ev.case, ev.case.rows // 2
    if not case.has("dy") or "dx" not in case.gradients() or case.layouts.get("dy") == "output":
        return Outcome("holds", 0.0, "y")
    dy = case.matrix("dy").copy()
    dy[row, case.n // 2] = np.nan
    array = FloatArray.of(dy.reshape(case.arrays["dy"].shape), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    chosen = replace(case, arrays={**case.arrays, "dy": array}, layouts=layouts, recipe=None)
    before, after = ev.output("dx"), ev.again(chosen).output("dx")
    if before is None or after is None or before.size != case.size or after.size != case.size:
        return Outcome("holds", 0.0, "y")
    lost = np.isnan(after.values.reshape(case.rows, case.n)) & np.isfinite(before.values.reshape(case.rows, case.n))
    lost[row] = False
    if not lost.any():
        return Outcome("holds", 0.0, "y")
    at = int(np.argmax(lost.any(axis=1)))
    text = f"dy holds a NaN in row {row}, and dx of row {at} becomes NaN."
    return Outcome("violated", np.inf, "dx", (at,), text, "a NaN or infinity reaches other rows", case=chosen)


@law("LN502", name="nan-row-is-nan", severity="error", limit=24, max_elements=1 << 15, source="IEEE 754-2019, 6.2")
def nan_row_is_nan(ev: Evaluation) -> Outcome:
    """A row that holds a NaN gives NaN in all of its y: no part of the row is well defined. A NaN in dy gives NaN in
    dweight and dbias of its column: a sum that hides it hides a failure of training."""
    case = ev.case
    if case.rows == 0 or case.n < 2:
        return INAPPLICABLE
    if case.has("weight") and not np.all(case.vector("weight") != 0):
        return INAPPLICABLE
    chosen, row = _poisoned(case, np.nan)
    got = ev.again(chosen).output("y")
    if got is None or got.size != case.size:
        return INAPPLICABLE
    values = got.values.reshape(case.rows, case.n)[row]
    if np.isnan(values).all():
        return _nan_in_sums(ev)
    text = f"Row {row} holds a NaN, {int((~np.isnan(values)).sum())} of its {case.n} outputs are numbers."
    return Outcome("violated", float("inf"), "y", (row,), text, "a NaN in x is lost", np.nan,
                   float(values[~np.isnan(values)][0]), 0.0, chosen)  # fmt: skip


def _nan_in_sums(ev: Evaluation) -> Outcome:
    """A NaN in one element of dy is in dweight and dbias of its column."""
    case = ev.case
    if not case.has("dy") or case.layouts.get("dy") == "output" or ev.response.refusal is not None:
        return Outcome("holds", 0.0, "y")
    column = case.n // 2
    dy = case.matrix("dy").copy()
    dy[case.rows // 2, column] = np.nan
    array = FloatArray.of(dy.reshape(case.arrays["dy"].shape), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    chosen = replace(case, arrays={**case.arrays, "dy": array}, layouts=layouts, recipe=None)
    again = ev.again(chosen)
    for name in ("dweight", "dbias"):
        got = again.output(name) if name in chosen.gradients() else None
        if got is None or got.size != case.n or np.isnan(got.values.ravel()[column]):
            continue
        value = float(got.values.ravel()[column])
        text = f"dy holds a NaN in column {column}, and {name}[{column}] is {value:.6g}."
        return Outcome("violated", np.inf, name, (column,), text, f"a NaN in dy is lost from {name}", np.nan, value,
                       0.0, chosen)  # fmt: skip
    return Outcome("holds", 0.0, "y")


def _exact_miss(ev: Evaluation, case: Case, cause: str) -> Outcome:
    """y must be beta, dweight 0: a warning where a result within the bound misses it."""
    again = ev.again(case)
    judgement, kind = again.settle("y")
    if judgement.state not in ("holds", "vacuous", "violated", "unjudged"):
        return INAPPLICABLE
    got = again.output("y")
    if got is None or kind == "violated":
        return INAPPLICABLE  # LN101 says so
    # A bias in float32 beside a 16-bit x: its rounding is exact.
    beta = round_values(case.vector("bias"), got.dtype) if case.has("bias") else np.zeros(case.n)
    values = got.values.reshape(case.rows, case.n)
    wrong = values != beta
    if wrong.any():
        at = np.unravel_index(int(np.argmax(np.abs(np.where(wrong, values - beta, 0)))), wrong.shape)
        place = again.place("y", (int(at[0]), int(at[1])))
        text = f"y{list(place)} is {values[at]:.9g} where {beta[at[1]]:.9g} (the bias) is exact: "
        text += "within what rounding admits."
        return Outcome("violated", 1.0, "y", place, text, cause, float(beta[at[1]]), float(values[at]), 0.0, case)
    return Outcome("holds", 0.0, "y")


@law("LN503", name="single-element-rows", severity="warning", limit=12, max_elements=1 << 14,
     source="pytorch/pytorch#188372, #188375, #108956: N = 1 gives y = beta and dweight = 0")  # fmt: skip
def single_element_rows(ev: Evaluation) -> Outcome:
    """With N = 1 the deviation is 0: y is exactly the bias, and dx and dweight are exactly 0.

    A miss within the bound is a warning (forms such as x*rstd - mean*rstd leave a residue); beyond the bound
    LN101, LN201 and LN202 report an error.
    """
    case = ev.case
    if case.rows == 0 or case.n == 0 or case.eps == 0 or ev.subject.capabilities.fixed_shape:
        return INAPPLICABLE
    rows = min(case.rows, 8)
    arrays = {"x": FloatArray.of(case.matrix("x")[:rows, :1] + 1.0, case.dtype)}
    for name in ("weight", "bias"):
        if case.has(name):
            arrays[name] = FloatArray(case.arrays[name].dtype, case.arrays[name].bits.reshape(-1)[:1])
    if case.has("dy"):
        arrays["dy"] = FloatArray.of(np.ones((rows, 1)), case.dtype)
    for magnitude in (1.0, 1e3 if case.dtype == "float16" else 1e6):
        arrays["x"] = FloatArray.of((1.0 + np.abs(normal(3, (rows, 1)))) * magnitude, case.dtype)
        full = ("x", "weight", "bias")
        chosen = replace(case, arrays=arrays, normalized_shape=(1,), layouts={}, requires_grad=full, recipe=None)
        outcome = _exact_miss(ev, chosen, "a row of one element does not give exactly the bias")
        if outcome.state != "holds":
            return outcome
        again = ev.again(chosen)
        for name in ("dx", "dweight"):
            if not chosen.has("dy") or name not in chosen.gradients() or again.settle(name)[1] == "violated":
                continue
            got = again.output(name)
            if got is not None and got.size and bool((got.values != 0).any()):
                worst = float(got.values.ravel()[int(np.argmax(np.abs(got.values)))])
                text = f"With N = 1, {name} is {worst:.9g} where 0 is exact: "
                text += f"within what rounding admits at |x| = {magnitude:g}."
                cause = f"{name} of a row of one element is not 0"
                return Outcome("violated", 1.0, name, (), text, cause, 0.0, worst, 0.0, chosen)
    return Outcome("holds", 0.0, "y")


@law("LN504", name="constant-rows", severity="warning", limit=16, max_elements=1 << 15,
     source="x - mean is 0 when the sums are exact; pytorch/pytorch#98075, #188375")  # fmt: skip
def constant_rows(ev: Evaluation) -> Outcome:
    """A constant row gives exactly the bias, for values whose sums are exact (three significant bits).

    Forms such as x*rstd - mean*rstd, or statistics rounded to 16 bits, miss it within the bound: a warning.
    """
    case = ev.case
    if case.rows == 0 or case.n == 0 or case.eps == 0 or case.n > 1 << 16:
        return INAPPLICABLE
    rows = min(case.rows, 4)
    levels = np.array([1.25, -150.0 / 128, 96.0, 1536.0])[:rows]
    arrays = {n: a for n, a in case.arrays.items() if n in ("weight", "bias")}
    values = np.broadcast_to(levels[:, None], (rows, case.n))
    arrays["x"] = FloatArray.of(values.reshape((rows, *case.normalized_shape)), case.dtype)
    chosen = replace(case, arrays=arrays, layouts={}, recipe=None)
    return _exact_miss(ev, chosen, "a constant row does not give exactly the bias")


OVERFLOW = "pytorch/pytorch#162489, #178123: squares overflow although the result is representable"


@law("LN505", name="large-constant-rows", severity="warning", limit=4, max_elements=1 << 12, source=OVERFLOW)
def large_constant_rows(ev: Evaluation) -> Outcome:
    """A constant row whose squares overflow the format of computation still gives the bias.

    Never an error (RANGE): nearly every implementation fails here. The row lies just above the square root of the
    largest number, where the numbers themselves are representable. Lost is an infinity or NaN where a number is right.
    """
    return _overflowing(ev, "a constant row", np.ones(_width(ev.case)))


@law("LN506", name="large-deviations", severity="warning", limit=4, max_elements=1 << 12, source=OVERFLOW)
def large_deviations(ev: Evaluation) -> Outcome:
    """A row whose deviations are representable, and their squares are not, still gives the right y.

    Never an error (RANGE): nearly every implementation fails here. The row is +c, -c, ... just above the square root of
    the largest number. Lost is an infinity or NaN where a number is right, or the bare bias (1/s became 0); another
    wrong number has another reason.
    """
    return _overflowing(ev, "a finite row", np.where(np.arange(_width(ev.case)) % 2 == 0, 1.0, -1.0))


def _width(case: Case) -> int:
    return min(max(case.n, 2), 8)


def _overflowing(ev: Evaluation, what: str, signs: Float64Array) -> Outcome:
    """One row of +-c with c^2 beyond the largest number, with the parameters of the case."""
    case, compute, n = ev.case, ev.precision.compute, _width(ev.case)
    if case.rows == 0 or FORMATS[case.dtype].largest < compute.largest / 1e6 or case.eps == 0:
        return INAPPLICABLE
    root = 1.0842 * float(np.sqrt(compute.largest))
    arrays = {"x": FloatArray.of(root * signs[None, :], case.dtype)}
    for name in ("weight", "bias"):
        if case.has(name):
            flat = np.resize(case.arrays[name].values.ravel(), n) if case.n else np.ones(n)
            arrays[name] = FloatArray.of(np.where(flat == 0, 1.0, flat) if name == "weight" else flat, case.dtype)
    chosen = replace(case, arrays=arrays, normalized_shape=(n,), layouts={}, recipe=None)
    again = ev.again(chosen)
    got = again.output("y")
    if got is None or got.size != n:
        return INAPPLICABLE
    y, exact = got.values.reshape(1, n), again.pair("y").hi
    with np.errstate(all="ignore"):
        beyond = distance(y, exact, 0.0, FORMATS[got.dtype]) > again.bound("y", "det", True)
    beta = chosen.vector("bias") if chosen.has("bias") else np.zeros(n)
    lost = ~np.isfinite(y) | (beyond & (y == beta))
    if not lost.any():
        return Outcome("holds", 0.0, "y")
    at = int(np.argmax(lost[0]))
    kind = "NaN" if np.isnan(y[0, at]) else f"{y[0, at]:.6g}"
    text = f"{what[0].upper()}{what[1:]} of magnitude {root:.3g} gives {kind} where {exact[0, at]:.6g} is right: "
    text += "squares overflow."
    cause = f"squares overflow: {what} of about {root:.1g} is lost"
    return Outcome("violated", 1.0, "y", (at,), text, cause, float(exact[0, at]), float(y[0, at]), None, chosen)


@law("LN507", name="invalid-eps", severity="warning", limit=4, max_elements=1 << 12,
     source="IEEE 754-2019, 5.4.1 and 7.2: the square root of a negative number, and of NaN, is NaN")  # fmt: skip
def invalid_eps(ev: Evaluation) -> Outcome:
    """An eps with which the root does not exist is refused, or gives NaN: a negative eps beyond the variance, and NaN.

    A finite y hides a mistake of the caller (a clamp at 0, an absolute value): a warning.
    """
    case = ev.case
    if case.rows == 0 or case.n == 0 or ev.subject.capabilities.eps is not None:
        return INAPPLICABLE
    if not np.isfinite(case.matrix("x")).all():
        return INAPPLICABLE
    with np.errstate(all="ignore"):
        # beyond every row's variance by a factor, so that no rounding of it decides
        beyond = -4.0 * float(np.square(case.matrix("x")).mean(axis=1).max()) - 1.0
    if not np.isfinite(beyond) or -beyond > FORMATS[case.dtype].largest / 4:
        return INAPPLICABLE
    for eps in (beyond, float("nan")):
        chosen = replace(case, eps=eps, recipe=None)
        got = ev.again(chosen).ask("y").arrays.get("y")
        if got is not None and got.size == case.size and np.isfinite(got.values).any():
            shown = "NaN" if np.isnan(eps) else f"{eps:.6g}, below minus the variance,"
            text = f"With eps = {shown} y is finite, where the root of variance + eps does not exist."
            return Outcome("violated", 1.0, "y", (), text, "an eps without a root gives numbers", np.nan,
                           float(got.values.ravel()[0]), None, chosen)  # fmt: skip
    return Outcome("holds", 0.0, "y")


@law("LN508", name="tiny-rows", severity="warning", limit=4, max_elements=1 << 12,
     source="rows scaled by their largest element m, eps with them: eps/m^2 overflows for m^2 < eps/Omega")  # fmt: skip
def tiny_rows(ev: Evaluation) -> Outcome:
    """A row far below the root of eps gives y = weight (x - mean)/sqrt(eps) and a dx as large as any other row's.

    Limits: the bounds of LN101 and LN201. A warning (RANGE): code that scales a row, and eps with it, loses the row
    where eps/m^2 overflows; the row then trains no more.
    """
    case, compute = ev.case, ev.precision.compute
    n = _width(case)
    size = float(np.sqrt(case.eps / compute.largest)) / 8 if case.eps > 0 else 0.0
    # eps itself must not be lost beside the smallest numbers, and x must stay far from them
    if case.rows == 0 or case.eps < 2 * compute.tiny / compute.u or size < FORMATS[case.dtype].tiny * 2.0**20:
        return INAPPLICABLE
    if any(ev.settle(name)[1] == "violated" for name in ("y", "dx") if name in ev.response.arrays):
        return INAPPLICABLE  # such a row is lost with the others
    arrays = {"x": FloatArray.of(size * normal(5, (2, n)), case.dtype)}
    if case.has("weight"):
        arrays["weight"] = FloatArray.of(1.0 + np.arange(n) / 8, case.arrays["weight"].dtype)
    if case.has("dy"):
        arrays["dy"] = FloatArray.of(normal(6, (2, n)), case.dtype)
    chosen = replace(case, arrays=arrays, normalized_shape=(n,), layouts={}, requires_grad=("x", "weight"), recipe=None)
    again = ev.again(chosen)
    for name in ("dx", "y"):  # dx first: a row that trains no more tells its user more than a y of 1e-20
        got = again.output(name)
        if got is None or got.size != 2 * n:
            continue
        values, exact = got.values.reshape(2, n), again.pair(name).hi
        with np.errstate(all="ignore"):
            bound = again.bound(name, "det", True)
            beyond = np.isfinite(bound) & ~(distance(values, exact, 0.0, FORMATS[got.dtype]) <= bound)
        if beyond.any():
            row, column = (int(i) for i in np.argwhere(beyond)[0])
            text = f"A row of magnitude {size:.2g} beside eps = {case.eps:g}: {name}[{row}, {column}] is "
            text += f"{values[row, column]:.6g} where {exact[row, column]:.6g} is right."
            cause = "a row far below the root of eps is lost"
            return Outcome("violated", 1.0, name, (row, column), text, cause, float(exact[row, column]),
                           float(values[row, column]), float(bound[row, column]), chosen)  # fmt: skip
    return Outcome("holds", 0.0, "y")
