"""LN2xx, continued: gradients through the mean and the rstd that a subject returns beside y."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.recipes import integers


@law("LN217", name="statistics-gradient", severity="error", needs=("rstd", "statistics_dx"), dtypes=("float32",),
     limit=16, max_elements=1 << 14, source="d mean/dx_i = 1/N, d rstd/dx_i = -rstd^2 xhat_i/N; Higham (2002), ch. 3-4",
     )  # fmt: skip
def statistics_gradient(ev: Evaluation) -> Outcome:
    """Mean and rstd that are returned with a gradient have the right one: for cotangents v of the mean and w of rstd,
    dx_i = v/N - w rstd^2 xhat_i/N.

    Bound, with t_i = |w| rstd^2 |xhat_i|/N, es and E_i the errors of 1/s and of xhat_i (lnverify.bounds), means over
    the row, and h = N + 1:

        t_i (3 es + 8u) + p_i (1 + 3 es) + mean((h + 8) u t + p)(1 + 3 es) + 4u |v|/N,   p_i = |w| rstd^2 E_i/N

    The mean is what a backward leaves that sends sum_i w rstd^2 xhat_i = 0 through the mean as well. In float32 only,
    where float64 is exact enough beside it. A subject whose statistics carry no gradient is not asked.
    """
    case = ev.case
    if case.rows == 0 or case.n == 0 or "x" not in case.requires_grad or ev.judge("rstd").state != "holds":
        return INAPPLICABLE
    return first_bad(_judge(ev, name) for name in ("rstd", "mean"))


def _judge(ev: Evaluation, name: str) -> Outcome:
    case = ev.case
    cotangent = integers(7, (case.rows,), 1, 4)
    arrays = {k: a for k, a in case.arrays.items() if k != "dy"} | {f"d{name}": FloatArray.of(cotangent, case.dtype)}
    layouts = {k: v for k, v in case.layouts.items() if k != "dy"}
    chosen = replace(case, arrays=arrays, layouts=layouts, recipe=None)
    response = ev.rerun(chosen).ask("statistics_dx")
    got = response.arrays.get("statistics_dx")
    if got is None or got.size != case.size:
        return INAPPLICABLE
    exact, bound = _exact(ev, cotangent, name)
    values = got.values.reshape(exact.shape)
    with np.errstate(all="ignore"):
        apart = distance(values, exact, 0.0, FORMATS[got.dtype])
        judged = np.isfinite(bound) & np.isfinite(exact) & ~ev.skipped("dx", values)
        ratio = np.where(judged & (apart > 0), apart / bound, 0.0)
    if not judged.any():
        return INAPPLICABLE
    at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
    worst = float(ratio[at])
    if worst <= 1:
        return Outcome("holds", worst, "dx")
    place = ev.place("dx", (int(at[0]), int(at[1])))
    text = (
        f"For the gradient {cotangent[at[0]]:g} of {name}, dx{list(place)} is {values[at]:.9g}, exact {exact[at]:.9g}:"
        f" {worst:.3g} times what any summation order may deviate."
    )
    cause = f"the gradient through the returned {name} is {'wrong' if values.any() else 'lost'}"
    return Outcome("violated", worst, "statistics_dx", place, text, cause, float(exact[at]), float(values[at]),
                   float(bound[at]), chosen)  # fmt: skip


def _exact(ev: Evaluation, cotangent: Float64Array, name: str) -> tuple[Float64Array, Float64Array]:
    """The gradient and its bound, (rows, n)."""
    case, bounds, u = ev.case, ev.yardstick.bounds(), ev.precision.compute.u
    tiny = ev.precision.compute.tiny * (2 + np.abs(cotangent)[:, None])
    if name == "mean":
        exact = np.broadcast_to(cotangent[:, None] / case.n, (case.rows, case.n))
        return exact, 4 * u * np.abs(exact) + tiny
    with np.errstate(all="ignore"):
        factor = (cotangent * ev.pair("rstd").hi ** 2 / case.n)[:, None]
        es, xhat = bounds.scale_error[:, None], ev.exact.statistics.xhat
        t, p = np.abs(factor * xhat), np.abs(factor) * bounds.backward_xhat_error
        left = ((bounds.h + 8) * u * t + p).mean(axis=1, keepdims=True)
        return -factor * xhat, t * (3 * es + 8 * u) + (p + left) * (1 + 3 * es) + tiny
