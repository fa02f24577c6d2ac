"""LN2xx, continued: forward mode, its agreement with reverse mode, and the double backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import numpy as np

from lnverify.case import Case
from lnverify.diagnosis import dx_cause
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, FloatArray, quantum
from lnverify.law import INAPPLICABLE, Outcome, first_bad, law
from lnverify.laws.accuracy import SIXTEEN
from lnverify.recipes import normal


def _with_tangents(ev: Evaluation) -> Evaluation:
    """The case with tangents and cotangents of its gradients drawn, where it has none."""
    case = ev.case
    if case.has("tx"):
        return ev
    arrays = {}
    for number, name in enumerate(("x", "weight", "bias")):
        if case.has(name):
            for kind, prefix in enumerate("tv"):
                values = normal(7 + 10 * number + kind, case.arrays[name].shape)
                arrays[prefix + name] = FloatArray.of(values, case.arrays[name].dtype)
    grads = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    layouts = {k: v for k, v in case.layouts.items() if not (k == "dy" and v == "output")}
    return ev.again(replace(case, arrays={**case.arrays, **arrays}, requires_grad=grads, layouts=layouts, recipe=None))


@law("LN207", name="adjoint-identity", severity="error", needs=("ty", "dx"), limit=24, max_elements=1 << 14,
     source="<dy, J t> = <J^T dy, t>; Griewank, Walther, Evaluating Derivatives (2008), ch. 3")  # fmt: skip
def adjoint_identity(ev: Evaluation) -> Outcome:
    """Forward and reverse mode are adjoint: <dy, ty> = <dx, tx> + <dweight, tweight> + <dbias, tbias>.

    Limit: the bound and half a cell of every number on both sides, weighted as it is used, and one 2^-52 for each
    term of our own sums in float64.
    """
    if not ev.case.has("dy"):
        return INAPPLICABLE
    again = _with_tangents(ev)
    case = again.case
    names = case.gradients()
    judged = [again.judge("ty"), *(again.judge(n) for n in names)]
    if any(j.state not in ("holds", "violated") for j in judged):
        return INAPPLICABLE
    total, limit = 0.0, 0.0
    for name, weightname, sign in [("ty", "dy", 1.0), *((n, "t" + n[1:], -1.0) for n in names)]:
        got = again.output(name)
        assert got is not None
        factor = case.arrays[weightname].values.ravel()
        values = got.values.ravel()
        with np.errstate(all="ignore"):
            cell = 0.5 * quantum(values, FORMATS[got.dtype])
            points = got.dtype in SIXTEEN
            bound = again.bound(name, "det", points and name in ("dx", "dweight")).ravel() + (
                3 * cell if points else cell
            )
            total += sign * float((factor * values).sum())
            limit += float((np.abs(factor) * (bound + values.size * 2.0**-52 * np.abs(values))).sum())
    if not np.isfinite(limit) or limit == 0:
        return Outcome("vacuous")
    ratio = abs(total) / limit if total == total else 0.0
    if ratio <= 1:
        return Outcome("holds", ratio, "ty")
    text = f"<dy, ty> and <dx, tx> + ... differ by {abs(total):.6g}, at most {limit:.3g} is admitted."
    wrong = [j.output for j in judged if j.state == "violated"]
    cause = (
        "the jvp is wrong"
        if wrong[:1] == ["ty"]
        else dx_cause(again)
        if "dx" in wrong
        else f"{wrong[0]} is wrong"
        if wrong
        else "forward and reverse mode disagree"
    )
    return Outcome("violated", ratio, "ty", (), text, cause, 0.0, total, limit, case)


@law("LN208", name="jvp-accuracy", severity="error", needs=("ty",), limit=24, max_elements=1 << 14,
     source="the derived forward mode of reference/normalizers.py; running errors, Higham (2002), 3.3")  # fmt: skip
def jvp_accuracy(ev: Evaluation) -> Outcome:
    """The jvp is the derivative along the tangents, within the running errors of the derived formula.

    Along all tangents, and along every selection of them: the others are then no dual numbers at all.
    """
    full = _with_tangents(ev)
    tangents = [t for t in ("tx", "tweight", "tbias") if full.case.has(t)]
    left_out = [names for count in range(1, len(tangents)) for names in combinations(tangents, count)]
    return first_bad(map(_jvp, (full, *(ev.again(full.case.with_arrays(**dict.fromkeys(n))) for n in left_out))))


def _jvp(ev: Evaluation) -> Outcome:
    if ev.ask("ty").refusal is not None or ev.output("ty") is None:
        return INAPPLICABLE
    judgement, kind = ev.settle("ty")
    outcome = judgement.outcome("the jvp is wrong", violated=kind == "violated")
    return replace(outcome, case=ev.case) if outcome.bad else outcome


@law("LN209", name="double-backward", severity="error", needs=("d2x",), limit=24, max_elements=1 << 14,
     source="vjp of the vjp, derived in reference/; pytorch/functorch#807, pytorch/pytorch#79705")  # fmt: skip
def double_backward(ev: Evaluation) -> Outcome:
    """The gradients can be differentiated: d2x, d2weight, d2bias and d2dy are the vjp of the vjp.

    Bound: running errors of the derived double backward, x seeded for forms on raw data (lnverify.running).
    """
    if not ev.case.has("dy") or ev.case.rows == 0:
        return INAPPLICABLE
    again = _with_tangents(ev)
    outcome = unless_first_order(again, _second_order(again))
    if (
        not outcome.bad
        and again.case.has("weight")
        and again.case.has("bias")
        and "bias" in ev.subject.capabilities.affine
    ):
        bare = ev.again(again.case.with_arrays(weight=None, tweight=None, vweight=None))
        return unless_first_order(bare, _second_order(bare))
    return outcome


def unless_first_order(ev: Evaluation, outcome: Outcome) -> Outcome:
    """What is said of a higher derivative, where y and the first gradients of the case are right; LN101 and LN201 to
    LN203 speak of these, and of all that follows."""
    first = ("y", *ev.case.gradients())
    wrong = outcome.state == "violated" and any(ev.settle(output)[1] == "violated" for output in first)
    return INAPPLICABLE if wrong else outcome


def present_parameters(case: Case) -> str:
    """'with a bias and no weight'."""
    return {(True, True): "with weight and bias", (True, False): "with a weight and no bias",
            (False, True): "with a bias and no weight", (False, False): "without parameters",
            }[case.has("weight"), case.has("bias")]  # fmt: skip


@law("LN219", name="double-backward-subsets", severity="error", needs=("d2x",), limit=6, max_elements=1 << 12,
     dtypes=("float64", "float32"), source="the derived vjp of the vjp; pytorch/pytorch#18233, #79705")  # fmt: skip
def double_backward_subsets(ev: Evaluation) -> Outcome:
    """First and second derivatives under create_graph do not depend on which arguments require a gradient, on which
    first gradients get a cotangent, or on an earlier backward of the same forward without create_graph.

    Bounds: those of LN201 to LN203 and of LN209. Looks only at cases where LN209 finds nothing.
    """
    if not ev.case.has("dy") or ev.case.rows == 0:
        return INAPPLICABLE
    full = _with_tangents(ev)
    if full.second_order.refusal is not None or any(full.settle(g)[1] == "violated" for g in full.case.gradients()):
        return INAPPLICABLE
    if _second_order(full).bad:
        return INAPPLICABLE
    return first_bad(_as_asked(full.again(case), what) for case, what in _selections(full.case))


def _selections(case: Case) -> Iterator[tuple[Case, str]]:
    """The case with fewer arguments that require a gradient, or fewer cotangents, or after a first backward."""
    present = tuple(a for a in ("x", "weight", "bias") if case.has(a))
    case = replace(case, create_graph=True)
    yield case, "with create_graph"
    for count in range(1, len(present)):
        for chosen in combinations(present, count):
            words = " and ".join(chosen)
            left_out = dict.fromkeys(f"v{a}" for a in present if a not in chosen)
            fewer = case.with_arrays(**left_out)
            yield replace(fewer, requires_grad=chosen), f"where only {words} require{'s' * (count == 1)} a gradient"
            yield fewer, f"where only d{' and d'.join(chosen)} get{'s' * (count == 1)} a cotangent"
    yield replace(case, history="repeated"), "after a first backward without create_graph"


def _as_asked(again: Evaluation, what: str) -> Outcome:
    """First and second derivatives of one selection; a fault is named by the selection."""
    for name in again.case.gradients():
        judgement, kind = again.settle(name)
        if kind == "violated" or judgement.state in ("missing", "shape"):
            plain = again.rerun(replace(again.case, create_graph=False, history=""))
            if plain.settle(name)[1] in ("violated", "missing", "shape"):
                return INAPPLICABLE  # LN205 says so
            return judgement.blame(what[0].upper() + what[1:], f"{name} is wrong {what}", again.case)
    outcome = _second_order(again)
    return replace(outcome, cause=f"{outcome.cause} {what}") if outcome.bad else outcome


def _second_order(again: Evaluation) -> Outcome:
    if again.second_order.refusal is not None:
        text = f"The double backward is refused: {again.second_order.refusal}"
        return Outcome(
            "crashed",
            np.inf,
            "d2x",
            (),
            text,
            f"the double backward is refused {present_parameters(again.case)}",
            case=again.case,
        )
    best: Outcome = INAPPLICABLE
    missing: tuple[str, ...] = ()
    for name in ("d2x", "d2weight", "d2bias", "d2dy"):
        argument = name[2:]
        if name not in again.subject.capabilities.outputs or argument not in ("dy", *again.case.requires_grad):
            continue
        if argument not in again.case.arrays:
            continue
        judgement, kind = again.settle(name)
        if judgement.state == "missing":
            # autograd returns None where there is no influence: right iff the exact result is zero
            exact = again.pair(name)
            if np.any(np.abs(exact.hi) > again.bound(name)):
                missing = (*missing, name)
            continue
        if kind == "violated":
            outcome = judgement.outcome(f"the double backward is wrong in {name}")
            return replace(outcome, case=again.case)
        outcome = judgement.outcome("")
        best = outcome if outcome.informative else best
    if missing:
        text = f"The double backward gives no {', '.join(missing)} where it is not zero."
        return Outcome(
            "violated", np.inf, missing[0], (), text, f"the double backward lacks {missing[0]}", case=again.case
        )
    return best
