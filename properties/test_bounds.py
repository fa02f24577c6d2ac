"""The bounds admit right algorithms, flag what deviates by more, and say where nothing can be said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import event, given, target
from hypothesis import strategies as st

from lnverify import row_range as row_ranges
from lnverify.bounds import Bounds, Precision, roundings
from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray, distance, round_values
from lnverify.oracle import Exact
from lnverify.recipes import build
from lnverify.row_range import row_range
from properties.drawing import quiet, recipe, recipes
from properties.right_algorithms import BACKWARDS, OUTPUTS, STATISTICS, SUMS

OUT = ("y", "dx", "dweight", "dbias")
WIDE = ("float64", "float32", "bfloat16")  # as wide as what they compute in
WORST: dict[str, tuple[float, str]] = {}


@pytest.fixture(scope="module", autouse=True)
def report():
    """Print the worst ratios (shown by pytest -s)."""
    yield
    for key, (ratio, where) in sorted(WORST.items()):
        print(f"error over bound: {key} {ratio:.3f} ({where})")


def parts(case: Case, kind: type) -> tuple[np.ndarray, ...]:
    """x, weight, bias, dy, eps in the format that the algorithm computes in."""
    weight = case.vector("weight") if case.has("weight") else np.ones(case.n)
    bias = case.vector("bias") if case.has("bias") else np.zeros(case.n)
    return tuple(np.asarray(v).astype(kind) for v in (case.matrix("x"), weight, bias, case.matrix("dy"), case.eps))


def run(case: Case, statistics: str, total: str, output: str, backward: str) -> dict[str, Float64Array]:
    """One right algorithm, its results rounded to the formats of the case."""
    kind = np.float64 if case.dtype == "float64" else np.float32
    x, weight, bias, dy, eps = parts(case, kind)
    with np.errstate(all="ignore"):
        mean, rstd = STATISTICS[statistics](x, eps, SUMS[total])
        found = {"y": OUTPUTS[output](x, mean, rstd, weight, bias)}
        gradients = BACKWARDS[backward](x, mean, rstd, weight, dy, SUMS[total])
    found |= dict(zip(OUT[1:], gradients, strict=True))
    return {name: round_values(value.astype(np.float64), case.dtype) for name, value in found.items()}


def ratios(case: Case, found: dict[str, Float64Array], tier: str = "det") -> dict[str, float]:
    """Largest error over bound by output, over what is judged: rows in range, and finite bounds."""
    exact, precision = Exact(case), Precision.of(case.dtype)
    bounds, limits = Bounds(case, exact, precision, tier), row_range(case, exact, precision)
    judged = {}
    for name in (n for n in OUT if n in ("y", "dx") or case.has(n[1:])):
        pair, bound = exact.pair(name), bounds.of(name)
        apart = distance(found[name], pair.hi, pair.lo, FORMATS[case.dtype])
        with np.errstate(all="ignore"):
            ratio = np.where((apart == 0) | ~np.isfinite(bound), 0.0, apart / bound)
        rows = limits.excused | limits.grey | (limits.backward if name == "dx" else False)
        if ratio.ndim == 2:
            ratio = np.where(rows[:, None], 0.0, ratio)
        elif rows.any():
            ratio = np.zeros_like(ratio)
        judged[name] = float(ratio.max(initial=0.0))
    return judged


@pytest.mark.parametrize(("statistics", "total", "output", "backward"), [
    ("two-pass", "serial", "plain", "textbook"), ("two-pass", "tree", "plain", "raw sums"),
    ("Welford", "serial", "plain", "reciprocal"), ("shifted", "serial", "affine", "textbook"),
    ("two-pass", "lanes", "folded", "raw sums"), ("Welford", "serial", "affine", "reciprocal"),
    ("shifted", "tree", "folded", "raw sums"),
])  # fmt: skip
def test_right_algorithms_stay_within_the_bounds(statistics, total, output, backward):
    """Hypothesis climbs towards the largest ratio; what it reaches is printed, and stays below 1."""

    @quiet(120)
    @given(recipes(("float32", "float32", "float32", "bfloat16", "float16", "float64"), scales=(-30, 30)))
    def climb(drawn):
        case = build(drawn)
        found = ratios(case, run(case, statistics, total, output, backward))
        for name, ratio in found.items():
            key = f"{name} {case.dtype} {f'{statistics}, {total}, {output}' if name == 'y' else backward}"
            WORST[key] = max(WORST.get(key, (0.0, "")), (ratio, case.label))
            assert ratio < 1, (name, ratio, case.label)
        target(max(found.values()), label="error over bound")

    climb()


@pytest.mark.parametrize("size", [64, 257, 1025])
def test_pairwise_two_pass_attains_the_pair_tier(size):
    for seed, mean in ((1, 0.0), (2, 10.0), (3, 1e3)):
        case = build(recipe(shape=[size], mean=mean, seed=seed, batch=[4]))
        assert ratios(case, run(case, "two-pass", "tree", "plain", "textbook"), "pair")["y"] < 1


DEFECTS = {
    "n-1 variance": lambda d, n, eps: 1 / np.sqrt((d * d).sum(axis=1) / (n - 1) + eps),
    "eps outside the root": lambda d, n, eps: 1 / (np.sqrt((d * d).sum(axis=1) / n) + eps),
    "ten times eps": lambda d, n, eps: 1 / np.sqrt((d * d).sum(axis=1) / n + 10 * eps),
    "variance of all but the last": lambda d, n, eps: 1 / np.sqrt((d[:, :-1] ** 2).sum(axis=1) / n + eps),
}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("defect", DEFECTS)
def test_defects_are_far_beyond_the_bound(defect, dtype):
    """Evaluated in float64 and rounded once: the deviation is the defect's alone."""
    case = build(recipe(dtype=dtype, shape=[17], eps=1e-3))
    x, weight, bias, _, eps = parts(case, np.float64)
    d = x - x.mean(axis=1, keepdims=True)
    wrong = d * DEFECTS[defect](d, 17, eps)[:, None] * weight + bias
    right = d / np.sqrt((d * d).mean(axis=1) + eps)[:, None] * weight + bias
    found = run(case, "two-pass", "tree", "plain", "textbook")
    assert ratios(case, {**found, "y": round_values(wrong, dtype)})["y"] > 30
    assert ratios(case, {**found, "y": round_values(right, dtype)})["y"] < 1


@quiet(60)
@given(recipes(("float32", "bfloat16", "float16"), scales=(-30, 30)), st.sampled_from((-1, 1)))
def test_four_times_the_bound_is_flagged(drawn, sign):
    """Not vacuous: the exact result moved by four bounds, and rounded, is beyond the bound wherever the move
    is more than an ulp of the output; and half a bound never is."""
    case = build(drawn)
    exact, precision = Exact(case), Precision.of(case.dtype)
    bounds, fmt = Bounds(case, exact, precision), precision.output
    for name in (n for n in OUT if n in ("y", "dx") or case.has(n[1:])):
        truth, bound = exact.pair(name).hi, bounds.of(name)
        for factor in (0.5, 4.0):
            moved = round_values(truth + sign * factor * bound, case.dtype)
            apart = distance(moved, truth, 0.0, fmt)
            if factor < 1:
                assert (apart <= bound)[np.isfinite(bound)].all(), name
                continue
            ulp = np.maximum(np.abs(np.nextafter(np.abs(truth), np.inf)) * 4 * fmt.u, fmt.smallest)
            seen = np.isfinite(bound) & np.isfinite(moved) & (np.abs(truth) + 4 * bound < fmt.largest) & (bound > ulp)
            event(f"{name}: {'seen' if seen.any() else 'not seen'}")
            assert (apart > bound)[seen].all(), name


@pytest.mark.parametrize("output", OUT)
def test_bounds_are_sharp_on_ordinary_data(output):
    """A bound is a few dozen unit roundoffs of the largest result, in both tiers, and det is never below pair."""
    case = build(recipe(shape=[16], batch=[4]))
    exact = Exact(case)
    det, pair = (Bounds(case, exact, Precision.of("float32"), tier).of(output) for tier in ("det", "pair"))
    scale = np.abs(exact.pair(output).hi).max()
    assert (det >= pair).all()
    assert (det > pair).any()
    assert (det > 2.0**-24 * 1e-3 * scale).all()
    # dx of the pivot collects the errors of its whole row (Bounds.dx).
    plain = det[:, 1:] if output == "dx" else det
    assert plain.max() < 1000 * 2.0**-24 * scale


def test_roundings_by_tier():
    assert roundings(np.array([0, 1, 2, 3, 8, 9, 1000]), "det").tolist() == [1, 1, 3, 4, 9, 10, 1001]
    assert roundings(np.array([0, 1, 2, 3, 8, 9, 1000]), "pair").tolist() == [1, 1, 2, 3, 4, 5, 11]


@pytest.mark.parametrize("output", ["y", "dx", "dweight"])
def test_rounding_points_and_declarations_only_widen(output):
    case = build(recipe(dtype="bfloat16", batch=[4], shape=[16]))
    exact = Exact(case)
    plain, points = (Bounds(case, exact, Precision.of("bfloat16"), points=p).of(output) for p in (False, True))
    assert (points >= plain).all()
    assert points.max() > 10 * plain.max()
    half = Bounds(case, exact, Precision.of("bfloat16", compute="bfloat16")).of(output)
    assert (half > 1000 * plain).all()
    if output != "y":
        rebuilt = Bounds(case, exact, Precision.of("bfloat16", backward_from="output")).of(output)
        assert (rebuilt > plain).all()


def test_terms_of_dy_that_are_zero_cost_nothing():
    """One row of 33 that is not zero: dbias and dweight are as sharp as for that row alone, and dx elsewhere
    carries nothing but the smallest normal numbers."""
    case = build(recipe(batch=[33], dy="last_row"))
    alone = case.with_arrays(
        x=FloatArray.of(case.matrix("x")[-1:], "float32"), dy=FloatArray.of(case.matrix("dy")[-1:], "float32")
    )
    bounds, single = (Bounds(c, Exact(c), Precision.of("float32")) for c in (case, alone))
    np.testing.assert_allclose(bounds.dbias, single.dbias, rtol=1e-12)
    np.testing.assert_allclose(bounds.dweight, single.dweight, rtol=1e-12)
    np.testing.assert_allclose(bounds.dx[-1:], single.dx, rtol=1e-12)
    assert bounds.dx[:-1].max() < 1e-30
    # The same dy spread over every row pays for 33 terms.
    spread = case.with_arrays(dy=FloatArray.of(np.ones((33, 5)), "float32"))
    np.testing.assert_allclose(Bounds(spread, Exact(spread), Precision.of("float32")).dbias, 34 * 33 * 2.0**-24)


@pytest.mark.parametrize("eps", [1e-5, 1e-12])
@pytest.mark.parametrize("value", [0.0, 3.0, 1e4])
def test_a_constant_row_with_eps_has_a_finite_bound(value, eps):
    """var_hat >= 0 in any reasonable algorithm, so that 1/s is at most eps^-1/2: zero rows are sharp, others as
    sharp as an error of the mean times eps^-1/2 allows."""
    case = build(recipe(eps=eps)).with_arrays(x=FloatArray.of(np.full((3, 5), value), "float32"))
    exact = Exact(case)
    bounds, limits = Bounds(case, exact, Precision.of("float32")), row_range(case, exact, Precision.of("float32"))
    assert np.isfinite(bounds.y).all()
    assert not (limits.excused | limits.grey | limits.backward).any()
    gamma, beta = np.abs(case.vector("weight")), np.abs(case.vector("bias"))
    admitted = gamma * (6 + 2 + 4) * 2.0**-24 * value / eps**0.5 * 1.01 + 2 * 2.0**-24 * beta + 1e-30
    assert (bounds.y <= admitted * (1 + bounds.scale_error[:, None])).all()


def test_a_constant_row_without_eps_is_vacuous_and_harms_no_other():
    case = build(recipe(eps=0.0))
    x = case.matrix("x").copy()
    x[1] = 0.5
    case = case.with_arrays(x=FloatArray.of(x, "float32"))
    bounds = Bounds(case, Exact(case), Precision.of("float32"))
    for output in ("y", "dx"):
        assert not np.isfinite(bounds.of(output)[1]).any()
        assert np.isfinite(bounds.of(output)[[0, 2]]).all()


def ranged(row: list[float], dtype: str = "float32", **changes: float) -> tuple[bool, bool, bool]:
    """Whether a row is excused, grey, and out of range in the backward."""
    case = build(recipe(dtype=dtype, batch=[1], shape=[len(row)], weight="ones", bias="zeros", dy="ones"))
    case = replace(case.with_arrays(x=FloatArray.of([row], dtype)), eps=changes.get("eps", 1e-5))
    found = row_range(case, Exact(case), Precision.of(dtype))
    assert not found.column
    return bool(found.excused[0]), bool(found.grey[0]), bool(found.backward[0])


@pytest.mark.parametrize(("row", "dtype", "want"), [
    ([1.0, 2.0, 4.0], "float32", (False, False, False)),
    ([1e-3, -2e-3, 0.0], "float32", (False, False, False)),
    ([0.0, 0.0, 0.0], "float32", (False, False, False)),
    ([5.0, 5.0, 5.0], "float32", (False, False, False)),
    ([1e6, 1e6 + 1, 1e6 - 1], "float32", (False, False, False)),
    ([2e19, -2e19, 0.0], "float32", (True, True, True)),  # deviations overflow when squared
    ([1e38, 1e38, 1e38, 1e38], "float32", (True, True, True)),  # so does the sum
    ([2e19, 2e19, 2e19], "float32", (False, True, True)),  # squares of raw data alone, and sums of g x times x
    ([1e-25, -1e-25, 0.0], "float32", (False, True, False)),  # squares below the smallest normal number
    ([65504.0, -65504.0, 0.0], "float16", (False, False, False)),  # float16 is computed in float32
    ([1e200, -1e200, 0.0], "float64", (True, True, True)),
    ([1e100, -1e100, 0.0], "float64", (False, False, False)),
    ([1e15, -1e15, 0.0], "float32", (False, False, True)),  # s^-3 below the smallest normal number
])  # fmt: skip
def test_classes_of_range(row, dtype, want):
    assert ranged(row, dtype) == want


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_a_look_at_the_largest_elements_tells_what_all_of_them_tell(dtype, monkeypatch):
    """Scales from the middle of the range to its ends, a NaN in x, in dy, and an infinite weight among them."""
    top, told = FORMATS[dtype].max_exponent, set()
    for number, scale in enumerate([*range(-top, top, max(top // 12, 1)), 0, 0, 0]):
        weight = "huge" if number % 3 == 1 else "normal"
        drawn = {"dtype": dtype, "batch": [5], "shape": [9], "regime": "rows", "mean": 2.0, "scale": scale, "eps": 1e-5,
                 "seed": number, "weight": weight, "bias": "normal", "dy": "normal", "tangents": True}  # fmt: skip
        case = build(drawn)
        odd = {"x": number % 5 == 1 and np.nan, "dy": number % 7 == 3 and np.nan, "weight": number % 11 == 5 and np.inf}
        if number % 4 == 3:  # sums over rows beyond the range
            case = case.with_arrays(dy=FloatArray.of(case.arrays["dy"].values * 2.0 ** (top - 2), dtype))
        for name in (name for name, value in odd.items() if value):
            values = case.arrays[name].values.copy()
            values.ravel()[3] = odd[name]
            case = case.with_arrays(**{name: FloatArray.of(values, dtype)})
        found = []
        for large in (1, 1 << 30):
            monkeypatch.setattr(row_ranges, "LARGE", large)
            found.append(row_range(case, Exact(case), Precision.of(dtype)))
        assert found[0] == found[1]
        told |= {name for name, value in vars(found[0]).items() if np.any(value)}
    assert told == {"grey", "backward", "derivatives"} | ({"excused", "column"} if dtype in WIDE else set())


def test_range_is_by_row():
    case = build(recipe(batch=[3], shape=[3]))
    x = FloatArray.of([[1.0, 2.0, 4.0], [1e19, -1e19, 0.0], [0.0, 0.0, 0.0]], "float32")
    case = case.with_arrays(x=x)
    found = row_range(case, Exact(case), Precision.of("float32"))
    assert found.excused.tolist() == [False, True, False]
    assert found.grey.tolist() == [False, True, False]


def test_large_sums_over_rows_are_a_matter_of_columns():
    case = build(recipe(batch=[3]))
    huge = case.with_arrays(dy=FloatArray.of(np.full((3, 5), 1e38), "float32"))
    assert row_range(huge, Exact(huge), Precision.of("float32")).column
    assert not row_range(case, Exact(case), Precision.of("float32")).column
