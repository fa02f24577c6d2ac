"""LN2xx: gradients of first order, forward mode, and the double backward."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np

from lnverify.case import single
from lnverify.diagnosis import (
    EMPTY_WRONG,
    ENOUGH,
    STATISTICS_16,
    SUMS_16,
    dx_cause,
    fresh,
    rounded_statistics,
)
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, quantum, round_values
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.laws.accuracy import SIXTEEN
from lnverify.sixteen_bits import STORED_16, kept_in_16_bits

SUBSETS = "{} depends on which arguments require a gradient"
DERIVED = "the derived backward of reference/normalizers.py; Higham (2002), ch. 3 and 4"


def _accuracy(ev: Evaluation, output: str) -> Outcome:
    if not ev.case.has("dy") or output not in ev.case.gradients():
        return INAPPLICABLE
    judgement, kind = ev.settle(output)
    if kind == "points" and (kept := kept_in_16_bits(ev, output)):
        return judgement.outcome(kept, violated=True)
    if kind != "violated":
        return judgement.outcome("", violated=False)
    return judgement.outcome(_by_subset(ev, output) or _sum_cause(ev, output), violated=True)


def _by_subset(ev: Evaluation, output: str) -> str:
    """The cause of LN205, where the gradient is right as soon as every argument requires one."""
    present = tuple(a for a in ("x", "weight", "bias") if ev.case.has(a))
    if set(ev.case.requires_grad) >= set(present):
        return ""
    full = ev.rerun(replace(ev.case, requires_grad=present, recipe=None))
    return SUBSETS.format(output) if full.settle(output)[1] in ("holds", "points", "last place") else ""


@law("LN201", name="dx-accuracy", severity="error", needs=("dx",), source=DERIVED)
def dx_accuracy(ev: Evaluation) -> Outcome:
    """dx = (g - mean g - xhat mean(g xhat))/s with g = weight * dy, element by element within the bound.

    Bound: D_i of lnverify.bounds.Bounds.dx; sums over terms of which m are not zero count m + 1 roundings.
    """
    if not ev.case.has("dy") or "dx" not in ev.case.gradients():
        return INAPPLICABLE
    judgement, kind = ev.settle("dx")
    if kind == "points" and (kept := kept_in_16_bits(ev, "dx")):
        return judgement.outcome(kept, violated=True)
    if kind != "violated":
        return judgement.outcome("", violated=False)
    follows = ev.settle("y")[1] == "violated"  # then nothing is said of how dx came about
    cause = "dx is wrong" if follows else _by_subset(ev, "dx") or dx_cause(ev)
    return judgement.outcome(cause, violated=True)


@law("LN202", name="dweight-accuracy", severity="error", needs=("dweight",), source=DERIVED)
def dweight_accuracy(ev: Evaluation) -> Outcome:
    """dweight = sum over rows of dy * xhat, within (h_j + 2) u sum|dy xhat| + sum|dy| a (Bounds.dweight).

    h_j counts the rows where dy is not zero, so that a row which is left out, or sums kept in 16 bits, show. What
    rounding points would explain is violated too where statistics or partial sums kept in 16 bits reproduce it
    (lnverify.sixteen_bits).
    """
    return _accuracy(ev, "dweight")


@law("LN203", name="dbias-accuracy", severity="error", needs=("dbias",), source=DERIVED)
def dbias_accuracy(ev: Evaluation) -> Outcome:
    """dbias = sum over rows of dy, within h_j u sum|dy| (Bounds.dbias); exact for a single row."""
    return _accuracy(ev, "dbias")


def _sum_cause(ev: Evaluation, output: str) -> str:
    """Names rounded statistics, sums kept in 16 bits (wrong over many rows), swapped gradients; else no cause.

    After ENOUGH violations the causes that were found before are tried on the case alone.
    """
    mine = ev.output(output)
    if mine is None or mine.size != ev.case.n or not ev.case.has("dy"):
        return f"{output} is wrong"
    known = ev.evaluator.causes.setdefault(output, Counter())
    settled = known.total() >= ENOUGH
    cause = next((c for c, holds in _sum_causes(ev, output, settled) if (not settled or c in known) and holds()), "")
    known[cause] += 1
    return cause or f"{output} is wrong"


def _sum_causes(ev: Evaluation, output: str, settled: bool) -> Iterator[tuple[str, Callable[[], bool]]]:
    """Causes, each with its test."""
    case = ev.case
    runs = 1 if settled else 3
    if case.has("weight") and case.has("bias"):
        yield SWAPPED, lambda: all(_swapped(run, output) for run in (ev, *(fresh(ev, s) for s in range(runs - 1))))
    if output == "dweight":
        yield STATISTICS_16, lambda: rounded_statistics(ev, "dweight")
    if case.dtype in SIXTEEN:
        # Many rows tell one rounding of a sum from many within it.
        yield STORED_16, lambda: all(_rounded_at_the_end(run, output) for run in (ev, fresh(ev, 0, rows=256)))
    if case.dtype in SIXTEEN and case.rows > 16:
        finite = bool(np.isfinite(_returned(ev, output)).all())
        yield SUMS_16, lambda: finite and (settled or (_right_row_by_row(ev, output) and _counts_ones(ev)))


def _rounded_at_the_end(ev: Evaluation, output: str) -> bool:
    """Whether a wider gradient is the right one, rounded once to the dtype of x."""
    mine, fmt = ev.output(output), FORMATS[ev.case.dtype]
    if mine is None or FORMATS[mine.dtype].precision <= fmt.precision:
        return False
    values, exact = mine.values.reshape(-1), ev.pair(output)
    with np.errstate(all="ignore"):
        near = distance(values, exact.hi, exact.lo, fmt) <= ev.bound(output)
        return bool(near.all() and (round_values(values, ev.case.dtype) == values).all())


def _returned(ev: Evaluation, output: str) -> Float64Array:
    """What was returned for an output, or nothing."""
    mine = ev.output(output)
    return np.zeros(0) if mine is None else mine.values


SWAPPED = "dweight and dbias are returned in each other's place"


def _right_row_by_row(ev: Evaluation, output: str) -> bool:
    """Whether rows that reach the sum are right each alone, so that only summing them is wrong."""
    case = ev.case
    reaching = np.flatnonzero((case.matrix("dy") != 0).any(axis=1))
    if reaching.size < 3:
        return False
    chosen = reaching[np.linspace(0, reaching.size - 1, 3).astype(int)]
    return all(ev.again(single(case, int(row))).settle(output)[1] != "violated" for row in chosen)


def _counts_ones(ev: Evaluation) -> bool:
    """Whether dbias counts rows whose dy is 1, so few that sums in 16 bits are exact in any order: the last ones, where
    rows are lost or added twice."""
    case = ev.case
    if not case.has("bias"):
        return True
    dy = np.zeros((case.rows, case.n))
    dy[-min(case.rows, 1 << FORMATS[case.dtype].precision) :] = 1.0
    array = FloatArray.of(dy.reshape(case.arrays["dy"].shape), case.dtype)
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    grads = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    ones = replace(case, arrays={**case.arrays, "dy": array}, layouts=layouts, requires_grad=grads, recipe=None)
    return ev.again(ones).settle("dbias")[1] != "violated"


def _swapped(ev: Evaluation, output: str) -> bool:
    """Whether what was returned as one parameter gradient is the other one."""
    other = {"dweight": "dbias", "dbias": "dweight"}[output]
    mine = ev.output(output)
    if mine is None or mine.size != ev.case.n:
        return False
    return ev.judge_values(other, mine.values.reshape(-1), mine.dtype).state == "holds" and ev.judge(output).ratio > 1


@law(
    "LN204",
    name="gradients-exist",
    severity="error",
    needs=("dx",),
    source="torch.autograd.grad; huggingface/candle#3613, pytorch/pytorch#193016",
)
def gradients_exist(ev: Evaluation) -> Outcome:
    """Every argument that requires a gradient gets one, with the argument's shape and dtype."""
    if not ev.case.has("dy") or ev.response.refusal is not None:
        return INAPPLICABLE
    for name in ev.case.gradients():
        gradient, argument = ev.output(name), ev.case.arrays[name[1:]]
        if gradient is None:
            text = f"{name} does not exist: no gradient reaches {name[1:]}."
            cause = f"no gradient reaches {name[1:]}" if ev.case.rows else EMPTY_WRONG
            return Outcome("violated", np.inf, name, (), text, cause)
        if gradient.shape != argument.shape:
            text = f"{name} has shape {gradient.shape}, {name[1:]} has {argument.shape}."
            return Outcome("violated", np.inf, name, (), text, f"{name} has the wrong shape")
        if gradient.dtype != argument.dtype:
            text = f"{name} is {gradient.dtype}, {name[1:]} is {argument.dtype}."
            return Outcome("violated", np.inf, name, (), text, f"{name} has the wrong dtype")
    return Outcome("holds")


@law(
    "LN205",
    name="gradient-subsets",
    severity="error",
    needs=("dx",),
    limit=16,
    max_elements=1 << 14,
    source="pytorch/pytorch#18233, #79705, #193016",
)
def gradient_subsets(ev: Evaluation) -> Outcome:
    """A gradient does not depend on which other arguments require one: every subset is right by LN201 to LN203."""
    case = ev.case
    present = [a for a in ("x", "weight", "bias") if case.has(a)]
    if not case.has("dy") or len(present) < 2:
        return INAPPLICABLE
    full = ev.rerun(replace(case, requires_grad=tuple(present)))
    if any(full.settle(f"d{a}")[1] == "violated" for a in present):
        return INAPPLICABLE  # wrong anyway: LN201 to LN203 say so
    worst = 0.0
    for mask in range(1, 2 ** len(present) - 1):
        subset = tuple(a for i, a in enumerate(present) if mask >> i & 1)
        chosen = replace(case, requires_grad=subset)
        again = full.rerun(chosen)
        for name in subset:
            judgement, kind = again.settle(f"d{name}")
            worst = max(worst, judgement.ratio if kind != "violated" else 0.0)
            if judgement.state in ("missing", "shape") or kind == "violated":
                what = "is missing" if judgement.state == "missing" else "is wrong"
                text = f"d{name} {what} when a gradient is asked of {', '.join(subset)} alone, and right when of all."
                return Outcome("violated", max(judgement.ratio, 1.0), f"d{name}", judgement.index, text,
                               SUBSETS.format(f"d{name}") if case.rows else EMPTY_WRONG, judgement.expected,
                               judgement.got, judgement.bound, chosen)  # fmt: skip
    return Outcome("holds", min(worst, 1.0))


@law(
    "LN206",
    name="dx-sums-to-zero",
    severity="error",
    needs=("dx",),
    source="sum_i dx_i = 0, proved for every N in reference/prove.py",
)
def dx_sums_to_zero(ev: Evaluation) -> Outcome:
    """Over each row dx sums to zero: a common shift of x does not move y.

    Limit: sum_i (D_i + half an ulp of dx_i), evaluated on the returned numbers; nothing else is admitted.
    """
    if not ev.case.has("dy") or ev.judge("dx").state not in ("holds", "violated"):
        return INAPPLICABLE
    got = ev.output("dx")
    assert got is not None
    values = got.values.reshape(ev.case.rows, ev.case.n)
    with np.errstate(all="ignore"):
        limit = (ev.bound("dx") + 0.5 * quantum(values, FORMATS[got.dtype])).sum(axis=1)
        if ev.case.dtype in SIXTEEN:
            limit = (
                limit
                + (ev.bound("dx", "det", True) - ev.bound("dx")).sum(axis=1)
                + quantum(values, FORMATS[got.dtype]).sum(axis=1)
            )
        total = values.sum(axis=1)
        # An infinity is overflow of the output format: LN201 judges it.
        skipped = ev.skipped("dx", values).any(axis=1) | np.isinf(values).any(axis=1)
        ratio = np.where(skipped | ~np.isfinite(limit), 0.0, np.abs(total) / np.where(limit > 0, limit, 1.0))
        ratio = np.where(np.isnan(ratio), 0.0, ratio)
    if not ratio.size or skipped.all():
        return INAPPLICABLE
    row = int(np.argmax(ratio))
    if ratio[row] <= 1:
        return Outcome("holds", float(ratio[row]), "dx")
    text = f"dx of row {row} sums to {total[row]:.6g}, at most {limit[row]:.3g} is admitted."
    return Outcome(
        "violated", float(ratio[row]), "dx", (row,), text, dx_cause(ev), 0.0, float(total[row]), float(limit[row])
    )


@law(
    "LN210",
    name="gradient-rounding-points",
    severity="warning",
    needs=("dx",),
    dtypes=SIXTEEN,
    source="IEEE 754-2019, 4.3",
)
def gradient_rounding_points(ev: Evaluation) -> Outcome:
    """In 16 bits each gradient is rounded once, at the end.

    Op-by-op code rounds weight * dy, xhat and dy * xhat to 16 bits on the way; the bounds that explain it are
    those of Bounds.dx and Bounds.dweight with `points`.
    """
    return _sixteen(ev, "points", "weight*dy or dy*xhat are rounded to 16 bits on the way to the gradients")


@law(
    "LN211",
    name="gradient-last-place",
    severity="warning",
    needs=("dx",),
    dtypes=SIXTEEN,
    source="Higham (2002), ch. 2 and 4",
)
def gradient_last_place(ev: Evaluation) -> Outcome:
    """In 16 bits each gradient is the exact one rounded to nearest, up to the error of a float32 computation.

    One beyond the bound that lies within one ulp everywhere is a warning.
    """
    return _sixteen(ev, "last place", "a gradient is off in the last place")


def _sixteen(ev: Evaluation, wanted: str, cause: str) -> Outcome:
    if not ev.case.has("dy"):
        return INAPPLICABLE
    best: Outcome = INAPPLICABLE
    for name in ev.case.gradients():
        judgement, kind = ev.settle(name)
        if kind == wanted:
            if name in ("dx", "dweight") and rounded_statistics(ev, name):
                continue  # an error of its own, where it goes beyond this
            return judgement.outcome(cause, violated=True)
        if kind == "holds":
            best = Outcome("holds", judgement.ratio, name)
    return best


@law("LN212", name="every-row-counts", severity="error", needs=("dweight",), limit=40, max_elements=1 << 18,
     source="NVIDIA/apex#411; BobMcDear/attorch#18; sparse dy makes the bound of LN202 sharp")  # fmt: skip
def every_row_counts(ev: Evaluation) -> Outcome:
    """Every row reaches dweight and dbias: with dy nonzero in the last row only, or at block edges only, the
    sums over rows are those few terms.

    The bound of LN202 and LN203 counts only terms that are not zero, so that a lost row shows at any length.
    """
    case = ev.case
    if not case.has("dy") or case.rows < 2 or not (case.has("weight") or case.has("bias")):
        return INAPPLICABLE
    best: Outcome = INAPPLICABLE
    row = np.arange(case.rows)[:, None]
    column = np.arange(case.n)[None, :]
    small = 1.0 + (row + column) % 3
    for rows in (row == case.rows - 1, (row % 32 == 31) & (row % 96 == 31) | (row == case.rows - 2)):
        dy = np.where(rows, small, 0.0).reshape(case.arrays["x"].shape)
        layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
        arrays = {**case.arrays, "dy": FloatArray.of(dy, case.dtype)}
        full = ("x", "weight", "bias")
        chosen = replace(case, arrays=arrays, layouts=layouts, recipe=None, requires_grad=full)
        again = ev.again(chosen)
        for name in ("dweight", "dbias"):
            if name not in chosen.gradients():
                continue
            judgement, kind = again.settle(name)
            if kind == "violated":
                return replace(
                    judgement.outcome(f"rows are left out of {name}" if name == "dbias" else _sum_cause(again, name)),
                    case=chosen,
                )
            if kind == "holds":
                best = Outcome("holds", judgement.ratio, name)
    return best
