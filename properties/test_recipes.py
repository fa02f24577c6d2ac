"""A recipe is as good as its arrays: the same bits everywhere, through JSON, and each form is what its name says."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given

from lnverify.case import STORED_IN_FULL, Case
from lnverify.errors import UsageError
from lnverify.floats import FORMATS
from lnverify.recipes import BIASES, DYS, REGIMES, WEIGHTS, build, integers, label, normal, restore
from properties.drawing import quiet, recipe, recipes

ALL = tuple(FORMATS)


def x(regime: str, **changes: Any) -> np.ndarray:
    """Rows of a regime in float64."""
    return build(recipe(regime=regime, dtype="float64", shape=[16], batch=[8], **changes)).matrix("x")


def param(name: str, form: str, **changes: Any) -> np.ndarray:
    return build(recipe(**{name: form}, shape=[64], dtype="float64", **changes)).vector(name)


def dy(form: str, rows: int = 70, n: int = 12) -> np.ndarray:
    return build(recipe(dy=form, shape=[n], batch=[rows])).matrix("dy")


# Written down once: whatever NumPy, CPU or release of lnverify, a stored recipe must give these bits.
PINNED = {
    ("float32", "normal"): "1798e20f6ae0ab3d0ee4b965aa7a8d7ffd44581d34bdb073a1e95f0c015df313",
    ("bfloat16", "heavy"): "6d4782e685ba6b476d665f70b4d20f8fe99340f015c0cfeab80c724a34c1aa76",
    ("float16", "outlier"): "7fd1f4e64d923083067149d14aded237621861e2900d13c2f21eb3e55aafd992",
    ("float64", "mixed"): "427865d94a2d75d39c4a2f29422dfd22766781a918868f3053251c816ddcc96f",
}


@pytest.mark.parametrize(("dtype", "regime"), PINNED)
def test_bits_are_pinned(dtype, regime):
    case = build(recipe(dtype=dtype, regime=regime, mean=10.0, scale=3))
    assert case.arrays["x"].sha256 == PINNED[dtype, regime]


def test_raw_numbers_are_pinned():
    assert integers(3, (6,), -4, 4).tolist() == [2.0, -4.0, 3.0, 3.0, 3.0, 1.0]
    assert np.round(normal(3, (3,)) * 37837).tolist() == [-15560.0, -9334.0, 14988.0]


@quiet(60)
@given(recipes(ALL, tangents=True, scales=(-140, 140)))
def test_the_same_recipe_gives_the_same_bits_through_json(drawn):
    case, again = build(drawn), build(json.loads(json.dumps(drawn)))
    assert {k: a.sha256 for k, a in case.arrays.items()} == {k: a.sha256 for k, a in again.arrays.items()}
    back = restore(json.loads(json.dumps(case.to_json())))
    for name, array in case.arrays.items():
        np.testing.assert_array_equal(back.arrays[name].bits, array.bits)
    assert back.arrays.keys() == case.arrays.keys()
    for field in ("dtype", "normalized_shape", "eps", "requires_grad", "layouts", "threads", "label", "recipe"):
        assert getattr(back, field) == getattr(case, field), field


@quiet(60)
@given(recipes(ALL, tangents=True, scales=(-1000, 1000)))
def test_every_number_is_finite_after_rounding(drawn):
    """And nothing warns on the way (warnings are errors)."""
    assert all(np.isfinite(a.values).all() for a in build(drawn).arrays.values())


def test_large_arrays_are_restored_from_the_recipe_and_checked():
    big = recipe(shape=[STORED_IN_FULL + 1], batch=[1])
    case = build(big)
    data = json.loads(json.dumps(case.to_json()))
    assert "bits" not in data["arrays"]["x"]
    with pytest.raises(UsageError, match="too large to be stored in full"):
        Case.from_json(data)
    assert restore(data).arrays["x"].sha256 == case.arrays["x"].sha256
    data["recipe"]["seed"] = 2
    with pytest.raises(UsageError, match="does not give the stored bits of"):
        restore(data)
    assert "bits" in case.with_arrays(bias=None).to_json()["arrays"]["x"]  # no recipe: stored in full


def test_seeds_do_not_share_numbers():
    """x, weight, bias and dy of a case, and x of the next seed, are different streams."""
    one, two = (build(recipe(seed=s, shape=[64], batch=[1], dtype="float64", tangents=True)) for s in (1, 2))
    names = ("x", "weight", "bias", "dy", "tx", "vx", "tweight", "vweight", "tbias", "vbias")
    found = [one.arrays[n].values.ravel() for n in names] + [two.arrays["x"].values.ravel()]
    for i, a in enumerate(found):
        for b in found[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.5


def test_numbers_are_what_they_say():
    z, k = normal(5, (100, 200)), integers(5, (5000,), -3, 4)
    assert abs(z.mean()) < 0.02
    assert abs(z.var() - 1) < 0.02
    assert np.abs(z).max() < 3.5
    assert (z.shape, normal(1, (0, 3)).shape) == ((100, 200), (0, 3))
    assert sorted(set(k.tolist())) == [-3, -2, -1, 0, 1, 2, 3, 4]


def test_regimes_are_what_their_names_say():
    deviation = x("rows").std(axis=1)
    assert deviation.max() > 8 * deviation.min()
    assert np.abs(x("heavy", seed=3)).max() > 8 > np.abs(x("normal", seed=3)).max()
    outlier = np.abs(x("outlier"))
    assert ((outlier > 4 * np.median(outlier, axis=1, keepdims=True) * 8).sum(axis=1) == 1).all()
    assert x("alternating").tolist() == [[1.0, -1.0] * 8] * 8
    assert set(np.unique(x("integers"))) == set(range(-4, 5))
    assert (np.sort(x("one_hot"), axis=1) == [0.0] * 15 + [1.0]).all()
    assert np.ptp(x("constant"), axis=1).max() == 0 < np.ptp(x("constant"))
    assert (np.unique(x("step")[:, :-1]), np.unique(x("step")[:, -1])) == ([1.0], [1 + 2.0**-7])
    assert not x("zero", mean=5.0).any()
    spread = np.ptp(x("mixed"), axis=1) > 0
    assert spread.tolist() == [True, False, False, True] * 2
    assert not x("mixed")[2].any()
    assert (x("mixed")[[3, 7]].mean(axis=1) > 6).all()
    assert {*REGIMES} == {
        "normal", "rows", "heavy", "outlier", "alternating", "integers", "one_hot", "constant", "step", "zero",
        "mixed",
    }  # fmt: skip


def test_mean_and_scale_are_what_they_say():
    z, moved = x("normal"), x("normal", mean=1024.0)
    sign = np.sign(moved[:, :1])
    np.testing.assert_allclose(moved, z + 1024 * sign, rtol=1e-15)
    assert set(np.sign(x("normal", mean=1e6)).ravel()) == {-1.0, 1.0}
    assert (np.ptp(np.sign(moved), axis=1) == 0).all()
    np.testing.assert_array_equal(x("normal", scale=-7), z * 2.0**-7)


def test_weights_and_biases_are_what_their_names_say():
    assert param("weight", "ones").tolist() == [1.0] * 64
    assert np.abs(param("weight", "normal")).min() >= 0.5
    zeros = param("weight", "zeros")
    assert 8 < (zeros == 0).sum() < 40
    assert not param("weight", "zero").any()
    assert (param("weight", "negative") <= -0.25).all()
    assert set(np.log2(param("weight", "powers"))) == set(range(-3, 4))
    assert np.abs(param("weight", "huge")).max() > 2.0**40
    assert build(recipe(dtype="float16", weight="huge")).vector("weight").max() < 2.0**8
    assert not param("bias", "zeros").any()
    assert np.abs(param("bias", "normal")).max() < 3.5 < np.abs(param("bias", "large")).max() < 3.5 * 64
    none = build(recipe(weight=None, bias=None))
    assert set(none.arrays) == {"x", "dy"}
    assert {*WEIGHTS, *BIASES} == {"ones", "normal", "zeros", "zero", "negative", "powers", "huge", "large"}


def test_dy_is_what_its_name_says():
    assert dy("ones").tolist() == np.ones((70, 12)).tolist()
    for form in ("expanded", "output"):
        assert np.unique(dy(form)).tolist() == [0.75]
        assert build(recipe(dy=form)).layouts == {"dy": form}
    assert set(np.unique(dy("integers"))) == set(range(-3, 5))
    assert np.abs(dy("zero_mean").mean(axis=0)).max() < 1e-6 < np.abs(dy("normal").mean(axis=0)).max()
    assert np.sort(dy("one_hot").ravel())[-2:].tolist() == [0.0, 1.0]
    rows, columns = dy("last_row").any(axis=1), dy("last_column").any(axis=0)
    assert rows.tolist() == [False] * 69 + [True]
    assert columns.tolist() == [False] * 11 + [True]
    assert (dy("last_row")[-1] != 0).all()
    assert (dy("last_column")[:, -1] != 0).all()
    edges = dy("block_edges")
    assert np.flatnonzero(edges.any(axis=1)).tolist() == [0, 31, 32, 63, 64, 69]
    assert edges.any(axis=0).all()
    assert len(DYS) == 10


def test_parameters_may_be_wider_than_x():
    case = build(recipe(dtype="bfloat16", parameters="float32", tangents=True))
    kinds = {name: array.dtype for name, array in case.arrays.items()}
    assert {n for n, d in kinds.items() if d == "float32"} == {"weight", "bias", "tweight", "tbias", "vweight", "vbias"}


def test_shapes_and_labels():
    case = build(recipe(batch=[2, 3], shape=[2, 4], mean=-10.0, scale=3, weight=None))
    assert (case.arrays["x"].shape, case.arrays["bias"].shape, case.rows, case.n) == ((2, 3, 2, 4), (2, 4), 6, 8)
    text = "N=8, rows=6, x normal, |mean|/std=10, scale=2^3, weight None, bias normal, eps=1e-05, dy normal"
    assert case.label == label(case.recipe) == text
    assert build(recipe(batch=[])).rows == 1
    assert build(recipe(batch=[0], regime="one_hot", dy="zero_mean")).size == 0
