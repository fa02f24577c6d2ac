"""LN1xx: the values of y, and of the mean and rstd where the subject returns them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.diagnosis import MISSING, OUTSIDE, computed_in_float32, explained, forward_cause
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray
from lnverify.law import HOLDS, INAPPLICABLE, Outcome, law
from lnverify.recipes import build
from lnverify.sixteen_bits import kept_in_16_bits

SIXTEEN = ("bfloat16", "float16")
BOUND = "Higham, Accuracy and Stability (2002), ch. 4; Chan, Golub, LeVeque (1983), The American Statistician 37"


@law("LN101", name="forward-accuracy", severity="error", source=BOUND)
def forward_accuracy(ev: Evaluation) -> Outcome:
    """y is what some admissible rounding error before the final rounding explains, element by element.

    Bound: B_i of lnverify.bounds.Bounds.y with h = N + 1, which holds for every order of summation, for
    two-pass, updating and shifted one-pass variances, plain and folded affine forms, with and without flush to
    zero. 16-bit results that only extra rounding points or the last place explain are LN102 and LN103, unless
    statistics kept in 16 bits reproduce them (lnverify.sixteen_bits).
    """
    judgement, kind = ev.settle("y")
    if kind == "points" and (kept := kept_in_16_bits(ev, "y")):
        return judgement.outcome(kept, violated=True)
    return judgement.outcome(forward_cause(ev) if kind == "violated" else "", violated=kind == "violated")


@law("LN102", name="forward-rounding-points", severity="warning", dtypes=SIXTEEN, source="IEEE 754-2019, 4.3")
def forward_rounding_points(ev: Evaluation) -> Outcome:
    """In 16 bits y is rounded once, at the end.

    Op-by-op module code rounds xhat, and weight * xhat, to 16 bits on the way: right, but less accurate than
    the format allows. The bound that explains it is B_i + 2 u_out |gamma xhat_i|.
    """
    judgement, kind = ev.settle("y")
    if kind != "points":
        return judgement.outcome("", violated=False)
    text = f"{judgement.sentence()} Rounding xhat and weight*xhat to {ev.case.dtype} on the way explains it."
    return judgement.outcome("xhat and weight*xhat are rounded to 16 bits on the way to y", text)


@law("LN103", name="forward-last-place", severity="warning", dtypes=SIXTEEN, source="Higham (2002), ch. 2 and 4")
def forward_last_place(ev: Evaluation) -> Outcome:
    """In 16 bits y is the exact result rounded to nearest, up to the error of a float32 computation.

    A result beyond the bound that lies within one ulp of the output everywhere is a warning, not an error.
    """
    judgement, kind = ev.settle("y")
    return judgement.outcome("y is off in the last place", violated=kind == "last place")


def _ladder(dtype: str, n: int, rows: int) -> list[Any]:
    """Cases with |mean|/std from 10 upwards, as far as the dtype can hold it with the deviations intact."""
    top = {"float64": 22, "float32": 14, "float16": 9}[dtype]
    low = 10 if dtype == "float64" else 4
    step = 2 if dtype == "float64" else 1
    base = {"dtype": dtype, "batch": [rows], "shape": [n], "regime": "normal", "weight": None, "bias": None,
            "dy": None, "eps": 2.0**-17}  # fmt: skip
    return [build({**base, "mean": 2.0**k, "seed": 100 + k}) for k in range(low, top + 1, step)]


Points = list[tuple[float, float]]


def _scale_errors(ev: Evaluation) -> tuple[Points | None, tuple[float, Evaluation] | None, Evaluation]:
    """(kappa, alpha) over the ladder, those that inform; the worst violation of y, if any; and the last run."""
    plain = "none" in ev.subject.capabilities.affine
    points: Points = []
    worst: tuple[float, Evaluation] | None = None
    again = ev
    out = FORMATS[ev.case.dtype].u
    for case in _ladder(ev.case.dtype, 768, 8):
        case = fit(case, ev, plain)
        again = ev.again(case)
        y = again.output("y")
        if y is None or y.size != case.size:
            return None, None, again
        xhat = again.exact.statistics.xhat
        weight = case.vector("weight") if case.has("weight") else 1.0
        error = (y.values.reshape(case.rows, case.n) - again.pair("y").hi) - again.pair("y").lo
        with np.errstate(all="ignore"):
            alpha = np.abs((error / weight * xhat).sum(axis=1) / (xhat**2).sum(axis=1))
            x = again.exact.statistics.x
            kappa = np.sqrt((x**2).mean(axis=1)) / again.exact.statistics.s
        size = float(np.median(np.where(np.isfinite(alpha), alpha, np.inf)))
        noise = 16 * out / np.sqrt(case.n)
        if noise < size < 0.25:
            points.append((float(np.median(kappa)), size))
        judgement = again.judge("y")
        if judgement.state == "violated" and (worst is None or judgement.ratio > worst[0]):
            worst = judgement.ratio, again
    return points, worst, again


def _fitted(points: Points, u: float) -> tuple[float, float]:
    """Slope of log alpha over log kappa, and the median of alpha/(u kappa^2)."""
    logs = np.log(np.array(points))
    slope = float(np.polyfit(logs[:, 0], logs[:, 1], 1)[0])
    magnitude = float(np.exp(np.median(logs[:, 1] - 2 * logs[:, 0] - np.log(u))))
    return slope, magnitude


def growth(ev: Evaluation) -> tuple[float, float] | None:
    """How the scale error of y grows with |mean|/std: slope, and the multiple of u; None where it does not show."""
    points, _, _ = _scale_errors(ev)
    return _fitted(points, ev.precision.compute.u) if points and len(points) >= 3 else None


@law(
    "LN104",
    name="one-pass-variance",
    severity="error",
    dtypes=("float64", "float32", "float16"),
    once=True,
    source="Chan, Golub, LeVeque (1983); pytorch/pytorch#40302, #51102; tracel-ai/burn#5607",
)
def one_pass_variance(ev: Evaluation) -> Outcome:
    """The variance is not E[x^2] - E[x]^2: its error must not grow with the square of |mean|/std.

    Over a ladder of kappa = rms(x)/s the scale error alpha = |sum(e xhat)|/sum(xhat^2) of each row is fitted
    as alpha ~ kappa^slope. Two passes, Welford, Chan and shifted data grow like kappa^1 or less; the textbook
    one-pass formula grows like u kappa^2. It is that formula iff slope > 1.5 AND alpha/(u kappa^2) > 0.05
    (measured 0.8 to 8 for the formula, below 1.2e-3 for all others: magnitude and slope decide together, since
    accurate two-pass code also shows slope 2, thousands of times lower). Points that are saturated
    (alpha > 1/4) or within 16 times the noise of the output's own rounding are left out; three must remain.
    """
    points, worst, last = _scale_errors(ev)
    if points is None:
        return INAPPLICABLE
    if len(points) < 3:
        return Outcome("holds" if worst is None else "inapplicable")
    slope, magnitude = _fitted(points, ev.precision.compute.u)
    ratio = magnitude / 0.05 if slope > 1.5 else min(1.0, slope / 1.5)
    if not (slope > 1.5 and magnitude > 0.05):
        return Outcome("holds", min(ratio, 1.0), "y")
    if computed_in_float32(ev):
        return INAPPLICABLE  # u is another one then
    shown = worst[1] if worst else last
    judgement = shown.judge("y")
    text = (
        f"The scale error of y grows like (|mean|/std)^{slope:.2f}, {magnitude:.2g} u (|mean|/std)^2: the variance is "
        "computed in one pass as E[x^2] - E[x]^2, which cancels when the mean is large."
    )
    single = worst_row(shown, judgement.index[0] if judgement.index else 0)
    return Outcome("violated", ratio, "y", judgement.index, text, ONE_PASS, judgement.expected, judgement.got,
                   judgement.bound, single)  # fmt: skip


ONE_PASS = "the variance is computed in one pass as E[x^2] - E[x]^2"


def fit(case: Any, ev: Evaluation, plain: bool) -> Any:
    """Give the case a weight of ones (and a bias of zeros) where the subject cannot do without."""
    fixed = ev.subject.capabilities.eps
    if fixed is not None:
        case = replace(case, eps=fixed)
    case = replace(case, device=ev.case.device)
    if plain:
        return case
    ones = FloatArray.of(np.ones(case.n), case.dtype)
    zeros = FloatArray.of(np.zeros(case.n), case.dtype)
    if "weight" in ev.subject.capabilities.affine:
        return replace(case, arrays={**case.arrays, "weight": ones})
    if "bias" in ev.subject.capabilities.affine and "both" not in ev.subject.capabilities.affine:
        return replace(case, arrays={**case.arrays, "bias": zeros})
    return replace(case, arrays={**case.arrays, "weight": ones, "bias": zeros})


def worst_row(ev: Evaluation, row: int) -> Any:
    """The single row of a 2-D case as a case of its own."""
    case = ev.case
    x = case.arrays["x"]
    return replace(case, arrays={**case.arrays, "x": FloatArray(x.dtype, x.bits[row : row + 1])}, recipe=None)


def _ordinary(ev: Evaluation) -> bool:
    """Rows with a spread, |mean|/std below 32, and nothing near the ends of the range."""
    case = ev.case
    if case.n < 2 or case.rows == 0 or not np.isfinite(case.matrix("x")).all():
        return False
    st = ev.exact.statistics
    with np.errstate(all="ignore"):
        spread = np.sqrt(st.var)
        fine = (spread > 0) & (np.abs(st.mu) < 32 * spread)
    limits = ev.range
    return bool(fine.all()) and not bool((limits.excused | limits.grey).any())


@law(
    "LN105",
    name="eps-inside-root",
    severity="error",
    limit=24,
    max_elements=1 << 14,
    source="Ba, Kiros, Hinton (2016), with eps as in Ioffe, Szegedy (2015); pyg-team/pytorch_geometric#2917; "
    "huggingface/transformers#38025; xlite-dev/LeetCUDA#309",
)
def eps_inside_root(ev: Evaluation) -> Outcome:
    """eps is the one that was given, and it is added to the variance under the square root.

    The law sets eps to a quarter of the rows' median variance and to four times it, where another place or
    value of eps moves y by 10 % or more, far beyond the bound of LN101. It is violated iff y lies beyond that
    bound and y with eps outside the root, missing, fixed at a common default, ten times larger or smaller, or
    added to the count lies within it.
    """
    if ev.subject.capabilities.eps is not None or not _ordinary(ev):
        return INAPPLICABLE
    st = ev.exact.statistics
    variance = float(np.median(np.ldexp(st.var, 2 * st.exponent)))
    if not 1e-30 < variance < 1e30:
        return INAPPLICABLE
    outcome: Outcome = INAPPLICABLE
    for share in (0.25, 4.0):
        case = replace(ev.case, eps=float(np.float32(variance * share)), recipe=None)
        if case.eps > FORMATS[case.dtype].largest:
            continue  # statistics in 16 bits make infinity of it, and y 0: LN101 says what that is
        again = ev.again(case)
        judgement, kind = again.settle("y")
        if judgement.state not in ("holds", "violated"):
            continue
        if kind != "violated":
            outcome = Outcome("holds", judgement.ratio, "y")
            continue
        fitting = [] if explained(again, "variance") else explained(again, "eps")
        if OUTSIDE in fitting and MISSING in fitting:
            continue  # eps is too small to tell them apart
        if fitting:
            cause = fitting[0]
            text = f"With eps = {case.eps:.4g} beside a variance of {variance:.4g}, {judgement.sentence()}"
            text += f" {cause[0].upper()}{cause[1:]}."
            return replace(judgement.outcome(cause, text), case=case)
    return outcome


@law(
    "LN106",
    name="population-variance",
    severity="error",
    source="Ba, Kiros, Hinton (2016), eq. 3: 1/H; harvardnlp/annotated-transformer#119",
    limit=60,
)
def population_variance(ev: Evaluation) -> Outcome:
    """The variance is the population variance: the sum of squares divided by N, not by N - 1.

    Violated iff y with N - 1 lies within the bound and the right y does not. The bound is LN101's for small N;
    from N = 1024 it is the `pair` tier of both, where `det` is blind in float32 (N u > 1/(2N)): there the right
    y must fail and the N - 1 form must pass on the case and on three fresh ones of its size, so that serial
    sums, which also miss `pair`, are not accused.
    """
    if not _ordinary(ev):
        return INAPPLICABLE
    judgement, kind = ev.settle("y")
    if judgement.state not in ("holds", "violated", "vacuous"):
        return INAPPLICABLE
    if kind == "violated" and explained(ev, "variance"):
        return judgement.outcome("the variance is divided by N - 1")
    if ev.case.n < 1024 or ev.case.dtype in SIXTEEN or ev.case.size > 1 << 16 or ev.judge("y", "pair").ratio <= 1:
        return HOLDS if kind == "holds" else INAPPLICABLE
    for seed in range(4):
        fresh = ev if seed == 0 else ev.again(_fresh(ev, seed))
        if fresh.judge("y", "pair").ratio <= 1 or not explained(fresh, "variance", "pair"):
            return HOLDS
    pair = ev.judge("y", "pair")
    text = f"{pair.sentence()[:-1]} summed pairwise, and dividing the variance by N - 1 reproduces y in 4 of 4 cases."
    return replace(pair.outcome("the variance is divided by N - 1", text), case=ev.case)


def _fresh(ev: Evaluation, seed: int) -> Any:
    """Another draw of ordinary x in the shape, dtype and parameters of the case."""
    case = ev.case
    x = np.random.Generator(np.random.PCG64(seed)).standard_normal(case.arrays["x"].shape)
    return replace(case, arrays={**case.arrays, "x": FloatArray.of(x, case.dtype)}, recipe=None)


@law("LN107", name="returned-statistics", severity="error", needs=("mean",), source=BOUND)
def returned_statistics(ev: Evaluation) -> Outcome:
    """The mean and rstd that the subject returns are those of the row.

    Bounds: em s for the mean and es/s for rstd (lnverify.bounds.Bounds.mean, .rstd), beyond the rounding cell
    in the dtype in which they are returned.
    """
    worst: Outcome = INAPPLICABLE
    for name in ("mean", "rstd"):
        outcome = ev.judge(name).outcome(f"the returned {name} is wrong")
        if outcome.bad:
            return outcome
        worst = outcome if outcome.informative else worst
    return worst
