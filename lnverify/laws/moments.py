"""LN4xx: moments of the normalised row. Run with weight 1 and bias 0 (absent where the subject allows it)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.diagnosis import forward_cause
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, quantum
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.laws.accuracy import SIXTEEN, fit


def _normalised(ev: Evaluation) -> tuple[Evaluation, Float64Array, Float64Array] | None:
    """The run without affine part: evaluation, returned xhat, and its limit B + half a cell (both (rows, n))."""
    case = ev.case
    if case.n == 0 or case.rows == 0:
        return None
    bare = replace(case, arrays={"x": case.arrays["x"]}, recipe=None)
    again = ev.again(fit(bare, ev, "none" in ev.subject.capabilities.affine))
    got = again.output("y")
    if got is None or got.size != case.size or again.settle("y")[1] not in ("holds", "violated"):
        return None
    values = got.values.reshape(case.rows, case.n)
    with np.errstate(all="ignore"):
        limit = again.bound("y", "det", case.dtype in SIXTEEN) + 0.5 * quantum(values, FORMATS[got.dtype])
    return again, values, limit


def _rows(ev: Evaluation, values: Float64Array, error: Float64Array, limit: Float64Array, what: str) -> Outcome:
    skipped = ev.skipped("y", values).any(axis=1)
    with np.errstate(all="ignore"):
        ratio = np.where(skipped | ~np.isfinite(limit), 0.0, error / np.where(limit > 0, limit, 1.0))
        ratio = np.where(np.isnan(ratio), np.inf, ratio)
    if skipped.all():
        return INAPPLICABLE
    row = int(np.argmax(ratio))
    if ratio[row] <= 1:
        return Outcome("holds" if bool((limit < 0.5).any()) else "vacuous", float(ratio[row]), "y")
    text = f"{what} of row {row} is off by {error[row]:.6g}, at most {limit[row]:.3g} is admitted."
    return Outcome("violated", float(ratio[row]), "y", (row,), text, forward_cause(ev), 0.0, float(error[row]),
                   float(limit[row]), ev.case)  # fmt: skip


@law(
    "LN401",
    name="mean-zero",
    severity="error",
    source="sum_i xhat_i = 0 by definition; triangle inequality",
    limit=24,
    max_elements=1 << 16,
)
def mean_zero(ev: Evaluation) -> Outcome:
    """Each normalised row has mean 0. Limit: mean over the row of B_i plus half a cell."""
    run = _normalised(ev)
    if run is None:
        return INAPPLICABLE
    again, values, limit = run
    with np.errstate(all="ignore"):  # of infinities too
        error = np.abs(values.mean(axis=1))
    return _rows(again, values, error, limit.mean(axis=1), "the mean")


@law(
    "LN402",
    name="second-moment",
    severity="error",
    source="mean xhat_i^2 = var/(var + eps), exactly",
    limit=24,
    max_elements=1 << 16,
)
def second_moment(ev: Evaluation) -> Outcome:
    """Each normalised row has second moment var/(var + eps), and not 1 and not N/(N - 1) of it.

    Limit: mean(2 |xhat_i| b_i + b_i^2) with b_i = B_i plus half a cell, and N 2^-52 for our own sums in float64.
    """
    run = _normalised(ev)
    if run is None:
        return INAPPLICABLE
    again, values, limit = run
    st = again.exact.statistics
    with np.errstate(all="ignore"):
        due = st.var / st.s**2
        admitted = (2 * np.abs(st.xhat) * limit + limit**2).mean(axis=1) + again.case.n * 2.0**-52
        error = np.abs((values**2).mean(axis=1) - due)
    return _rows(again, values, error, admitted, "the second moment")


@law(
    "LN403",
    name="largest-value",
    severity="error",
    source="|xhat_i| <= sqrt(N - 1), reached by one-hot rows (Cauchy-Schwarz)",
    limit=24,
    max_elements=1 << 16,
)
def largest_value(ev: Evaluation) -> Outcome:
    """No normalised value exceeds sqrt(N - 1). Limit: B_i plus half a cell beyond it."""
    run = _normalised(ev)
    if run is None:
        return INAPPLICABLE
    again, values, limit = run
    top = np.sqrt(max(ev.case.n - 1, 0))
    at = np.argmax(np.abs(values) - limit, axis=1)
    pick = np.arange(values.shape[0])
    excess = np.maximum(np.abs(values[pick, at]) - top, 0.0)
    return _rows(again, values, excess, limit[pick, at], "the largest value")
