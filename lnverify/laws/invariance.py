"""LN3xx: what layer norm does not see, and how it scales. Two runs, judged within the sum of both bounds.

Every law here compares y of two inputs that mathematics ties together. The exact difference comes from the
oracle on the rounded inputs that each run really got; the limit is the sum of both bounds plus half a cell of
each. Equal bits are never demanded.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lnverify.case import Case
from lnverify.diagnosis import forward_cause
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.law import INAPPLICABLE, Outcome, law
from lnverify.recipes import normal

PAPER = "Ba, Kiros, Hinton (2016), section 5.1 and Table 1; exact with eps: LN_eps(d a) = LN_(eps/d^2)(a)"
FACTORS = (3.0, 0.375, 100.0, 0.0078125, 1.7)


def _pick(case: Case, values: tuple[float, ...]) -> float:
    return values[(case.n + 3 * case.rows) % len(values)]


def _x(case: Case, values: Float64Array, eps: float | None = None) -> Case:
    """The case with another x (rounded once to its dtype) and another eps."""
    limit = FORMATS[case.dtype].largest
    x = FloatArray.of(np.clip(values, -limit, limit).reshape(case.arrays["x"].shape), case.dtype)
    arrays = {k: v for k, v in case.arrays.items() if k in ("weight", "bias", "dy")}
    return replace(case, arrays={**arrays, "x": x}, eps=case.eps if eps is None else eps, recipe=None)


def _two_runs(ev: Evaluation, first: Case, second: Case, cause: str, by: str = "") -> Outcome:
    """Compare y of two runs; a violation is named by what is wrong with either run, else by `cause`."""
    a, b = ev.again(first), ev.again(second)
    judgement = a.compare(b, "y")
    if judgement.state == "missing":
        return INAPPLICABLE
    if judgement.state != "violated":
        return judgement.outcome("")
    # The rounding points of op-by-op code are a warning of their own (LN102), not a broken invariance.
    if FORMATS[ev.case.dtype].precision <= 11 and "violated" not in (a.settle("y")[1], b.settle("y")[1]):
        return Outcome("holds", 1.0, "y")
    named = next((c for c in (forward_cause(a), forward_cause(b)) if c != "y is wrong"), cause)
    text = (
        f"{cause[0].upper()}{cause[1:]}{by}: the two results differ by {judgement.got:.6g} where "
        f"{judgement.expected:.6g} is exact, {judgement.ratio:.3g} times the sum of both bounds."
    )
    return judgement.outcome(named, text)


def _plain(ev: Evaluation) -> bool:
    """Whether the case suits a scaling: finite, some spread, far from the ends of the range."""
    case = ev.case
    if case.n < 2 or case.rows == 0 or not np.isfinite(case.matrix("x")).all():
        return False
    reach = float(np.abs(case.matrix("x")).max())
    fmt = FORMATS[case.dtype]
    return 1e4 * fmt.tiny < reach < fmt.largest / 1e3 and not bool((ev.range.excused | ev.range.grey).any())


@law("LN301", name="input-rescaling", severity="error", source=PAPER, limit=20, max_elements=1 << 14)
def input_rescaling(ev: Evaluation) -> Outcome:
    """LN_eps(d x) = LN_(eps/d^2)(x) for every d > 0: with the eps law the invariance is exact.

    Limit: sum of both bounds and half cells, the exact difference taken on the rounded inputs.
    """
    if not _plain(ev) or ev.subject.capabilities.eps is not None:
        return INAPPLICABLE
    factor = _pick(ev.case, FACTORS)
    scaled = _x(ev.case, ev.case.matrix("x") * factor)
    plain = _x(ev.case, ev.case.matrix("x"), float(np.float32(ev.case.eps / factor**2)))
    return _two_runs(ev, scaled, plain, "rescaling x changes y", f" (by {factor:g})")


@law("LN302", name="sign-flip", severity="error", source=PAPER, limit=20, max_elements=1 << 14)
def sign_flip(ev: Evaluation) -> Outcome:
    """xhat(-x) = -xhat(x): with weight negated too, y is the same.

    Limit: sum of both bounds and half cells. (Equal bits are usual, and not demanded: a shift by the row's
    maximum breaks them.)
    """
    if not _plain(ev) or not ev.case.has("weight"):
        return INAPPLICABLE
    flipped = _x(ev.case, -ev.case.matrix("x"))
    weight = FloatArray.of(-ev.case.arrays["weight"].values, ev.case.arrays["weight"].dtype)
    flipped = replace(flipped, arrays={**flipped.arrays, "weight": weight})
    return _two_runs(ev, flipped, _x(ev.case, ev.case.matrix("x")), "flipping the sign of x and of weight changes y")


@law("LN303", name="input-shift", severity="error", source=PAPER, limit=20, max_elements=1 << 14)
def input_shift(ev: Evaluation) -> Outcome:
    """LN(x + c) = LN(x) for every common shift c and every eps.

    Limit: sum of both bounds and half cells; both grow with |c|/std, as the rounding of x + c does.
    """
    if not _plain(ev):
        return INAPPLICABLE
    x = ev.case.matrix("x")
    shift = _pick(ev.case, (1.0, -10.0, 100.0, 1000.0, 0.5)) * float(np.std(x) or 1.0)
    if FORMATS[ev.case.dtype].precision <= 11:
        shift /= 64
    return _two_runs(ev, _x(ev.case, x + shift), _x(ev.case, x), "shifting x changes y", f" (by {shift:.3g})")


@law("LN304", name="power-of-two-bits", severity="warning", source="multiplication by 2^k is exact in IEEE 754-2019",
     limit=12, max_elements=1 << 13)  # fmt: skip
def power_of_two_bits(ev: Evaluation) -> Outcome:
    """Scaling x by 4 and eps by 16 leaves every bit of y as it is, while nothing leaves the normal range.

    Not a theorem for every right algorithm (a path chosen by max|x|, or pow(v, -0.5), breaks it): a warning,
    and only where five repetitions of each run agree with themselves.
    """
    if not _plain(ev) or ev.subject.capabilities.eps is not None or not 1e-30 < ev.case.eps < 1e3:
        return INAPPLICABLE
    st = ev.exact.statistics
    if float(np.abs(ev.case.matrix("x")).max()) > 1e4 or bool((np.ldexp(st.s, st.exponent) < 1e-4).any()):
        return INAPPLICABLE
    plain = ev.again(_x(ev.case, ev.case.matrix("x"), float(np.float32(ev.case.eps))))
    scaled = ev.again(_x(ev.case, ev.case.matrix("x") * 4, float(np.float32(ev.case.eps)) * 16))
    a, b = plain.output("y"), scaled.output("y")
    if a is None or b is None:
        return INAPPLICABLE
    if a.same_bits(b):
        return Outcome("holds", 0.0, "y")
    for run, first in ((plain, a), (scaled, b)):
        for _ in range(4):
            repeated = run.ask("y", fresh=True).arrays.get("y")
            if repeated is None or not repeated.same_bits(first):
                return INAPPLICABLE
    different = int((a.values != b.values).sum())
    text = f"{different} of {a.size} numbers of y change when x is scaled by 4 and eps by 16."
    return Outcome("violated", 1.0, "y", (), text, "scaling by a power of two changes bits of y")


def _layer(case: Case) -> tuple[Float64Array, Float64Array]:
    """A weight matrix W (n, 6) and inputs h (6, rows) of a linear layer a = W h, drawn from the case's shape."""
    weights = normal(31 + case.n, (case.n, 6))
    inputs = normal(37 + case.rows, (6, case.rows))
    return weights, inputs


@law("LN305", name="weight-matrix-rescaling", severity="error", source=PAPER, limit=10, max_elements=1 << 12)
def weight_matrix_rescaling(ev: Evaluation) -> Outcome:
    """Through a linear layer a = W h: LN_eps((d W) h) = LN_(eps/d^2)(W h) for d > 0, and -xhat for d < 0.

    a is rounded once to the dtype for each run; limit as for LN301.
    """
    case = ev.case
    if case.n < 2 or case.rows == 0 or ev.subject.capabilities.eps is not None:
        return INAPPLICABLE
    weights, inputs = _layer(case)
    factor = _pick(case, FACTORS)
    a = (weights @ inputs).T
    scaled = _x(case, ((factor * weights) @ inputs).T)
    plain = _x(case, a, float(np.float32(case.eps / factor**2)))
    outcome = _two_runs(ev, scaled, plain, "rescaling the weight matrix changes y", f" (by {factor:g})")
    if outcome.bad or not case.has("weight"):
        return outcome
    flipped = _x(case, ((-factor * weights) @ inputs).T)
    negated = FloatArray.of(-case.arrays["weight"].values, case.arrays["weight"].dtype)
    flipped = replace(flipped, arrays={**flipped.arrays, "weight": negated})
    return _two_runs(ev, flipped, plain, "rescaling the weight matrix by a negative factor does more than flip xhat")


@law("LN306", name="weight-matrix-shift", severity="error", source=PAPER, limit=10, max_elements=1 << 12)
def weight_matrix_shift(ev: Evaluation) -> Outcome:
    """Through a linear layer a = W h: adding one vector to the incoming weights of all units, W + 1 v^T, moves
    every a_i by v.h and y not at all, for every eps.

    a is rounded once to the dtype for each run; limit: sum of both bounds and half cells.
    """
    case = ev.case
    if case.n < 2 or case.rows == 0:
        return INAPPLICABLE
    weights, inputs = _layer(case)
    vector = normal(41, (6,)) * (2.0 if FORMATS[case.dtype].precision <= 11 else 16.0)
    shifted = _x(case, ((weights + vector) @ inputs).T)
    return _two_runs(ev, shifted, _x(case, (weights @ inputs).T), "shifting all incoming weights changes y")


@law("LN307", name="single-row-rescaling-shows", severity="error", source=PAPER + ": 'weight vector re-scaling: No'",
     limit=10, max_elements=1 << 12)  # fmt: skip
def single_row_rescaling_shows(ev: Evaluation) -> Outcome:
    """Doubling the incoming weights of a single unit DOES change y (batch and weight norm do not see it).

    A counterexample to the invariance must be found: where the exact results of the two runs differ by more
    than twice the sum of both bounds, the returned ones must differ. Outputs that do not look at x fail here.
    """
    case = ev.case
    if case.n < 3 or case.rows == 0:
        return INAPPLICABLE
    weights, inputs = _layer(case)
    doubled = weights.copy()
    doubled[0] *= 2.0
    a, b = ev.again(_x(case, (weights @ inputs).T)), ev.again(_x(case, (doubled @ inputs).T))
    one, two = a.output("y"), b.output("y")
    if one is None or two is None or one.size != case.size or two.size != case.size:
        return INAPPLICABLE
    with np.errstate(all="ignore"):
        apart = np.abs(a.pair("y") - b.pair("y"))
        limit = a.bound("y") + b.bound("y") + FORMATS[case.dtype].u * (np.abs(a.pair("y").hi) + np.abs(b.pair("y").hi))
        seen = apart > 2 * limit
        same = one.values.reshape(apart.shape) == two.values.reshape(apart.shape)
    if not seen.any():
        return Outcome("vacuous")
    if not (seen & same).any() or not same[seen].all():
        return Outcome("holds", 0.0, "y")
    text = "Doubling the weights of one unit leaves y as it is: y does not depend on x as a layer norm does."
    return Outcome("violated", float("inf"), "y", (), text, forward_cause(a))


@law("LN308", name="gradient-rescaling", severity="error", needs=("dx",),
     source="dx of LN_eps at d x is 1/d of dx of LN_(eps/d^2) at x, by the chain rule",
     limit=12, max_elements=1 << 13)  # fmt: skip
def gradient_rescaling(ev: Evaluation) -> Outcome:
    """dx scales as 1/d when x scales as d and eps as d^2.

    Limit: the sum of both bounds D_i (the second divided by d) and half cells.
    """
    if not _plain(ev) or not ev.case.has("dy") or ev.subject.capabilities.eps is not None:
        return INAPPLICABLE
    if ev.case.layouts.get("dy") == "output" or "dx" not in ev.case.gradients():
        return INAPPLICABLE
    factor = _pick(ev.case, (3.0, 0.375, 17.0, 0.0078125, 1.7))
    scaled = ev.again(_x(ev.case, ev.case.matrix("x") * factor))
    plain = ev.again(_x(ev.case, ev.case.matrix("x"), float(np.float32(ev.case.eps / factor**2))))
    if scaled.settle("dx")[1] not in ("holds", "violated") or plain.settle("dx")[1] not in ("holds", "violated"):
        return INAPPLICABLE
    if FORMATS[ev.case.dtype].precision <= 11 and scaled.settle("dx")[1] == plain.settle("dx")[1] == "holds":
        return Outcome("holds", max(scaled.judge("dx").ratio, plain.judge("dx").ratio), "dx")
    from lnverify.diagnosis import dx_cause

    return scaled.compare(plain, "dx", 1 / factor).outcome(
        dx_cause(plain) if plain.judge("dx").ratio > 1 else "dx does not scale as 1/x"
    )
