"""Norms other than layer norm: the formulas against torch and certified balls, the bounds, and the laws' mutants."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import flint
import numpy as np
import pytest

from lnverify.case import Case
from lnverify.evaluation import Evaluator
from lnverify.floats import FORMATS, FloatArray
from lnverify.formulas import norms as formulas
from lnverify.mutants import norm_correct, norm_mutants
from lnverify.norm_examination import FIXED
from lnverify.norm_shrink import NormShrinker, flattened
from lnverify.norms.bound import NormBounds
from lnverify.norms.cases import cases, make, shapes
from lnverify.norms.exact import KEYS, Exact
from lnverify.norms.judge import judge
from lnverify.norms.support import find_support
from lnverify.norms.views import view
from lnverify.operation import blocks, cells, norms, operation
from lnverify.runner import check
from lnverify.selftest import examine_correct
from lnverify.subject import Subject
from lnverify.target import resolve

OUTPUTS = ("y", "dx", "dweight", "dbias")
DTYPES = ("float64", "float32", "bfloat16", "float16")
RIGHT = {"layer_norm_channels": "norms-channels-by-hand", "layer_norm_eps_outside": "norms-outside-by-hand"}


def subject(name: str) -> Subject:
    """A right subject: torch's own function where there is one."""
    if name in RIGHT:
        return next(entry for entry in norm_correct() if entry.id == RIGHT[name]).subject()
    return resolve(operation(name).default, operation=name)


def outputs(case: Case) -> list[str]:
    return ["y", *case.gradients()]


def ordinary(name: str, dtype: str = "float64") -> list[Case]:
    affine = "both" if "bias" in operation(name).parameters else "weight"
    return [make(name, dtype, shape, affine, 1e-5, seed=k + 1) for k, shape in enumerate(shapes(name)[:6])]


@pytest.mark.parametrize("name", norms())
def test_the_derived_formulas_agree_with_float64_autograd(name: str) -> None:
    pytest.importorskip("torch")
    for case in ordinary(name):
        answer = subject(name).run(case.request(*outputs(case)))
        assert answer.refusal is None
        for output in outputs(case):
            exact = Exact(case).pair(output).hi
            got = answer.arrays[output].values.reshape(exact.shape)
            assert np.abs(got - exact).max() <= 1e-13 * max(1.0, np.abs(exact).max()), output


@pytest.mark.parametrize("name", norms())
def test_exact_results_lie_in_certified_balls(name: str) -> None:
    """Balls of 300 bits on the raw x enclose what double-double gives, to 2^-90 of the largest result and dy."""
    ball = np.frompyfunc(flint.arb, 1, 1)
    before = flint.ctx.prec
    try:
        flint.ctx.prec = 300
        for case in ordinary(name)[:3]:
            exact = Exact(case)
            given = exact.given(ball(exact.raw), lambda v: ball(v) if isinstance(v, np.ndarray) else flint.arb(v))
            found = getattr(formulas, operation(name).formula)(*given)
            found |= getattr(formulas, f"{operation(name).formula}_vjp")(*given, ball(exact.dys[0]))
            for output in outputs(case):
                pair = exact.pair(output)
                # a row of one weight has dx = 0: what cancels there is of the size of dy
                scale = max(np.abs(pair.hi).max(), np.abs(exact.dys[0]).max()) * 2.0**-90
                for value, hi, low in zip(found[KEYS[output]].flat, pair.hi.flat, pair.lo.flat, strict=True):
                    assert abs(float((value - flint.arb(hi) - flint.arb(low)).mid())) <= scale, output
                    assert float(value.rad()) <= scale
    finally:
        flint.ctx.prec = before


@pytest.mark.parametrize("name", norms())
def test_forward_mode_and_reverse_mode_are_adjoint(name: str) -> None:
    case = ordinary(name)[0]
    exact = Exact(case)
    formula = operation(name).formula
    tangent = np.cos(np.arange(exact.raw.size)).reshape(exact.raw.shape)
    moving = [np.full(exact.view.parameters, 0.5 + k) for k in range(len(exact.parameters))]
    given = exact.given(exact.raw, lambda v: v)
    forward = getattr(formulas, f"{formula}_jvp")(*given, tangent, *moving)["y_dot"]
    reverse = getattr(formulas, f"{formula}_vjp")(*given, exact.dys[0])
    right = (reverse["x_bar"] * tangent).sum()
    right += sum((reverse[k] * m).sum() for k, m in zip(("gamma_bar", "beta_bar"), moving, strict=False))
    assert (forward * exact.dys[0]).sum() == pytest.approx(right, rel=1e-12)


def test_one_channel_to_a_group_is_instance_norm_and_one_group_is_layer_norm() -> None:
    x, normalized = (2, 4, 3), (1, 3)
    group = make("group_norm", "float64", (x, normalized), "both", 1e-5)
    instance = make("instance_norm", "float64", (x, normalized), "both", 1e-5)
    assert np.array_equal(Exact(group).pair("y").hi, Exact(instance).pair("y").hi)
    whole = Exact(make("group_norm", "float64", (x, (4, 3)), "none", 1e-5))
    rows = formulas.layer_norm_eps_outside(whole.raw.reshape(2, 12), np.ones(12), np.zeros(12), 0.0)["y"]
    free = Exact(make("group_norm", "float64", (x, (4, 3)), "none", 0.0))
    assert np.abs(free.pair("y").hi.reshape(2, 12) - rows).max() < 1e-14


@pytest.mark.parametrize("dtype", DTYPES[:3])  # in float16 the smallest normal number decides beside u of float32
@pytest.mark.parametrize("name", norms())
def test_the_bound_moves_with_u_and_sees_an_ordinary_case(name: str, dtype: str) -> None:
    case = ordinary(name, dtype)[0]
    exact = Exact(case)
    fine, coarse = NormBounds(exact, FORMATS["float32"]), NormBounds(exact, FORMATS["bfloat16"])
    for output in outputs(case):
        size = np.abs(exact.pair(output).hi).max()
        assert fine.bound(output).max() < 1e-3 * size
        assert (coarse.bound(output) > 1000 * fine.bound(output)).all()


def test_what_leaves_the_range_is_not_judged() -> None:
    case = make("rms_norm", "float32", ((2, 8), (8,)), "weight", 1e-5)
    huge = case.with_arrays(x=FloatArray.of(case.arrays["x"].values * [[1.0], [2.0**70]], "float32"))
    bound = NormBounds(Exact(huge), FORMATS["float32"]).bound("y")
    assert np.isfinite(bound[0]).all()
    assert np.isinf(bound[1]).all()


def test_algorithms_on_raw_and_on_shifted_data_are_admitted() -> None:
    """x r - mu r, dweight as a difference of sums, Welford's update, one pass on data shifted by an outlier."""
    one = np.float32
    for regime in ("offset", "outlier", "far"):
        case = make("group_norm", "float32", ((2, 4, 17), (2, 17)), "both", 1e-3, regime)
        exact = Exact(case)
        x, dy = exact.raw.astype(one), exact.dys[0].astype(one)
        shifted = x - x[:, :, :1, :1]
        total, square = shifted.sum((2, 3), dtype=one), (shifted * shifted).sum((2, 3), dtype=one)
        n = one(exact.view.n)
        variance = np.maximum(square / n - (total / n) ** 2, one(0))
        mean = total / n + x[:, :, 0, 0]
        r = (1 / np.sqrt(variance + one(case.eps)))[:, :, None, None]
        mu = mean[:, :, None, None]
        weight, bias = (exact.parameter(p).astype(one)[:, :, None] for p in ("weight", "bias"))
        bounds = NormBounds(exact, FORMATS["float32"])
        y = x * (r * weight) + (bias - mu * r * weight)
        assert (np.abs(y - exact.pair("y").hi) <= bounds.bound("y")).all(), regime
        dweight = (((dy * x).sum(3) - mu[..., 0] * dy.sum(3)) * r[..., 0]).sum(0, dtype=one)
        assert (np.abs(dweight - exact.pair("dweight").hi) <= bounds.bound("dweight")).all(), regime


def test_cases_are_the_same_each_time_and_of_the_right_shape() -> None:
    support = find_support(subject("rms_norm"), "rms_norm", "float32", "cpu")
    assert not isinstance(support, str)
    first, again = (list(cases(support, "rms_norm", 40, 0)) for _ in range(2))
    assert [c.arrays["x"].sha256 for c in first] == [c.arrays["x"].sha256 for c in again]
    assert {c.has("weight") for c in first} == {True, False}
    for name in norms():
        for shape in shapes(name):
            case = make(name, "float64", shape, "none", 1e-5)
            assert view(case).n * view(case).groups == case.size


@pytest.mark.parametrize("name", norms())
def test_every_shape_meets_every_affine_form_and_most_regimes(name: str) -> None:
    support = find_support(subject(name), name, "float32", "cpu")
    assert not isinstance(support, str)
    met: dict[tuple[int, ...], set[str]] = {}
    for case in cases(support, name, FIXED, 0):
        met.setdefault(case.arrays["x"].shape, set()).update((case.affine, case.label.split(", ")[-2]))
    assert len(met) in (11, 17, 19, 23)  # primes: in step with no other level
    assert all(len(levels) >= len(support.affine) + 6 for levels in met.values())


def test_shapes_reach_beyond_the_blocks_of_kernels() -> None:
    views = [view(make("group_norm", "float32", shape, "none", 1e-5)) for shape in shapes("group_norm")]
    assert any(seen.shape[1] == 48 for seen in views)
    assert any(seen.shape[1] * seen.shape[2] > 64 for seen in views)
    assert any(seen.shape[2] > 32 or seen.shape[1] % 32 for seen in views)
    assert any(seen.shape[3] > 1024 for seen in views)
    assert any(seen.shape[0] > 64 for seen in views)


@pytest.mark.parametrize("name", norms())
def test_shrinking_ends_at_a_smallest_case(name: str) -> None:
    case = ordinary(name)[5]

    def always(candidate: Case):
        from lnverify.law import Outcome

        Exact(candidate).pair("y")  # every candidate is a case of the operation
        return Outcome("violated", 2.0, "y")

    found, _ = NormShrinker(always, 1.0, ("none",), "", (1e-5,)).run(case, always(case))
    assert found.size <= 4
    assert set(found.arrays) == {"x", "dy", *operation(name).data}


def test_dimensions_are_flattened_without_changing_the_result() -> None:
    for name, shape in (("group_norm", ((2, 6, 2, 2), (3, 2, 2))), ("batch_norm", ((4, 4, 4, 4), (4, 4, 4)))):
        case = make(name, "float64", shape, "both", 1e-5)
        assert np.array_equal(Exact(case).pair("dx").hi, Exact(flattened(case)).pair("dx").hi)


def test_every_operation_has_two_mutants_or_more_and_a_right_one() -> None:
    for name in norms():
        wrong = [m.id for m in norm_mutants() if m.operation == name]
        assert len(wrong) >= (1 if name == "instance_norm" else 2), name
        assert [c.id for c in norm_correct() if c.operation == name], name
    assert len([m for m in norm_mutants() if m.operation == "rms_norm"]) == 18


@pytest.mark.heavy
@pytest.mark.parametrize("mutant", norm_mutants(), ids=lambda m: m.id)
def test_a_mutant_is_killed(mutant) -> None:
    dtype = "float32" if "float32" in mutant.dtypes else mutant.dtypes[0]
    report = check(
        mutant.subject(), operation=mutant.operation, dtypes=[dtype], select=mutant.laws, profile="score",
        fail_fast=True,
    )  # fmt: skip
    assert {f.law for f in report.findings} == set(mutant.laws)
    assert all(f.operation == mutant.operation for f in report.findings)


@pytest.mark.parametrize("entry", norm_correct(), ids=lambda c: c.id)
def test_a_right_one_is_not_accused(entry) -> None:
    """On a part of the list in every dtype; `lnverify selftest` runs the whole of it."""
    # a cell has up to 14 outputs and gradients, a block 18
    judged, count = 0, 4 if entry.operation in blocks() else 10 if entry.operation in cells() else 26
    for dtype in DTYPES:
        support = find_support(entry.subject(), entry.operation, dtype, "cpu")
        assert not isinstance(support, str)
        evaluator = Evaluator(support.subject)
        for case in cases(support, entry.operation, count, 0):
            evaluation = evaluator.evaluate(case)
            for output in outputs(case):
                judgement = judge(evaluation, output)
                assert judgement.state in ("holds", "vacuous"), (dtype, case.label, judgement.sentence())
                judged += judgement.state == "holds"
    assert judged > 5 * count


@pytest.mark.heavy
@pytest.mark.parametrize("entry", norm_correct(), ids=lambda c: c.id)
def test_no_law_accuses_a_right_one(entry) -> None:
    """Every law, in one dtype each; `lnverify selftest` has them in all. Blocks in float64 take minutes."""
    dtypes = [dtype for dtype in entry.dtypes if dtype != "float64" or entry.operation not in blocks()]
    number = [other.id for other in norm_correct()].index(entry.id)
    row = examine_correct(replace(entry, dtypes=(dtypes[number % len(dtypes)],)))
    assert row[3], row


@pytest.mark.parametrize(
    ("name", "target"),
    [
        ("rms_norm", "torch.nn.RMSNorm"),
        ("group_norm", "torch.nn.GroupNorm"),
        ("instance_norm", "torch.nn.InstanceNorm1d"),
        ("batch_norm", "torch.nn.BatchNorm2d"),
        ("batch_norm_eval", "torch.nn.BatchNorm1d"),
        ("weight_norm", "lnverify.mutants.torch_weight_norm:weight_by_hand"),
    ],
)
def test_torch_holds(name: str, target: str) -> None:
    pytest.importorskip("torch")
    # LN821: docs/found.md, of layouts that torch gets wrong
    report = check(target, operation=name, dtypes=["float32"], ignore=["LN821"], profile="score", max_examples=1)
    assert report.verdict == "holds", [f.message for f in report.findings]
    assert all(r.informative > 150 for r in report.results if r.law in ("LN801", "LN802"))
    able = [r for r in report.results if r.verdict != "inapplicable"]
    assert all(r.informative > 5 for r in able if r.law in ("LN809", "LN813", "LN814"))
    assert {"LN809", "LN814"} <= {r.law for r in able}
    assert max(r.worst_ratio for r in report.results) < 0.5


@pytest.mark.parametrize(
    ("name", "said"),
    [("instance_norm", "With dy permuted: dx"), ("batch_norm", "With weight strided, bias strided: dx")],
)
def test_layouts_that_torch_gets_wrong_are_found(name: str, said: str) -> None:
    """What docs/found.md shows without lnverify."""
    pytest.importorskip("torch")
    target = f"torch.nn.functional.{name}"
    report = check(target, operation=name, dtypes=["float64"], select=["LN821"], profile="score", max_examples=1)
    assert report.findings[0].message.startswith(said), report.findings[0].message


def test_group_norm_of_torch_refuses_a_backward_with_a_bias_and_no_weight() -> None:
    pytest.importorskip("torch")
    report = check(
        "torch.nn.functional.group_norm", operation="group_norm", dtypes=["float32"], profile="score", fail_fast=True
    )
    assert [(f.law, f.cause) for f in report.findings] == [("LN802", "the backward refuses a valid input")]
    assert set(report.findings[0].smallest.case["arrays"]) == {"x", "bias", "dy"}


def test_double_backward_of_torch_takes_the_norm_of_weights_for_a_constant() -> None:
    torch = pytest.importorskip("torch")
    from torch.autograd.gradcheck import GradcheckError

    laws = ["LN801", "LN802", "LN809", "LN814"]
    report = check("torch._weight_norm", operation="weight_norm", dtypes=["float64"], select=laws, profile="score",
                   fail_fast=True)  # fmt: skip
    assert [(f.law, f.cause) for f in report.findings] == [("LN814", "the double backward is wrong in d2x")]
    v, g = (torch.tensor(values, dtype=torch.float64, requires_grad=True) for values in ([[3.0, 4.0]], [[1.0]]))
    with pytest.raises(GradcheckError):
        torch.autograd.gradgradcheck(lambda v, g: torch._weight_norm(v, g, 0), (v, g))


def test_a_missing_gradient_is_found() -> None:
    entry = next(c for c in norm_correct() if c.id == "rms-compact")

    def without(dy, x, weight, eps, normalized_shape, saved):
        found = entry.backward(dy, x, weight, eps, normalized_shape, saved)
        return {"dx": found[0]}

    wrong = replace(entry, backward=without)
    report = check(wrong.subject(), operation="rms_norm", dtypes=["float32"], profile="score", fail_fast=True)
    assert [f.cause for f in report.findings] == ["dweight is missing"]


ROWS = """import torch


def rms_rows(x, weight=None, eps=1e-6):
    y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)
    return y if weight is None else y * weight
"""


def test_a_function_without_a_shape_is_asked_for_one_dimension(tmp_path: Path) -> None:
    """As of layer norm: nothing tells it how many dimensions share a root mean square."""
    file = tmp_path / "rows.py"
    file.write_text(ROWS)
    report = check(f"{file}:rms_rows", operation="rms_norm", dtypes=["float64"], profile="selftest")
    assert [f"{f.law}: {f.message}" for f in report.findings] == []
    assert report.verdict == "holds"
