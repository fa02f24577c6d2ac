"""Torch subjects: values, gradients, derivatives, modules."""

from __future__ import annotations

import functools
import warnings

import numpy as np
import pytest

from lnverify.errors import SignatureError
from lnverify.floats import FloatArray
from lnverify.protocol import LAYOUTS, live_rows
from lnverify.subject import declare
from lnverify.target import resolve
from tests.adapter_samples import (
    DTYPES,
    GRADIENTS,
    Annotated,
    Counting,
    Doubled,
    Passes,
    Wrapped,
    arrays,
    ask,
    assert_right,
    by_axis,
    expected,
    np_forward,
    plain,
)

torch = pytest.importorskip("torch")


@pytest.mark.parametrize(
    "target",
    [
        "torch.nn.functional.layer_norm",
        "torch.layer_norm",
        "torch.nn.LayerNorm",
        "torch.native_layer_norm",
        "torch.ops.aten.native_layer_norm",
        "torch.ops.aten.native_layer_norm.default",
        by_axis,
        Annotated,
        Passes,
    ],
)
def test_torch_subjects_give_the_right_values_and_gradients(target):
    given = arrays()
    response = ask(resolve(target), given)
    assert set(response.arrays) == {"y", *GRADIENTS}
    assert_right(response, given)
    assert (response.changed, response.aliases, response.warnings) == ((), (), ())


@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
@pytest.mark.parametrize("dtype", DTYPES)
def test_function_and_module_agree_with_torch_in_bits(target, dtype):
    given = arrays(dtype)
    response = ask(resolve(target), given)
    tensors = [torch.tensor(given[n].values, dtype=getattr(torch, dtype)) for n in ("x", "weight", "bias", "dy")]
    leaves = [t.requires_grad_() for t in tensors[:3]]
    y = torch.nn.functional.layer_norm(leaves[0], (8,), leaves[1], leaves[2], 1e-5)
    for name, value in zip(("y", *GRADIENTS), (y, *torch.autograd.grad(y, leaves, tensors[3])), strict=True):
        assert response.arrays[name].dtype == dtype
        assert np.array_equal(response.arrays[name].values, value.detach().double().numpy()), name


def test_the_capabilities_follow_from_the_signature():
    full = resolve("torch.nn.functional.layer_norm").capabilities
    second = ("ty", "d2x", "d2weight", "d2bias", "d2dy")
    transforms = ("tty", "rty", "fdx", "d3x", "vmap", "vmap_last", "vmap_parameters", "vmap_samples", "vmap_second")
    some = ("x", "weight", "bias", "x_weight", "x_bias", "weight_bias")
    assert full.outputs == ("y", *GRADIENTS, *second, *transforms, *(f"vmap_of_{chosen}" for chosen in some))
    assert (full.eps, full.max_dims, full.affine) == (None, None, ("both", "weight", "bias", "none"))
    native = resolve("torch.ops.aten.native_layer_norm").capabilities
    assert native.outputs[:3] == ("y", "mean", "rstd")
    module = resolve("torch.nn.LayerNorm").capabilities
    assert (module.affine, module.module, module.eps) == (("both", "weight", "none"), True, None)
    annotated = resolve(Annotated).capabilities
    assert (annotated.affine, annotated.max_dims, annotated.eps) == (("both",), 1, None)
    wrapped = resolve(Wrapped).capabilities
    assert (wrapped.affine, wrapped.eps) == (("weight",), 1e-5)


def test_statistics_are_given_when_declared():
    given = arrays()
    response = ask(resolve("torch.ops.aten.native_layer_norm"), given, "y", "mean", "rstd")
    x = given["x"].values
    np.testing.assert_allclose(response.arrays["mean"].values, x.mean(-1, keepdims=True), rtol=1e-13)
    np.testing.assert_allclose(response.arrays["rstd"].values, 1 / np.sqrt(x.var(-1, keepdims=True) + 1e-5))


@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
@pytest.mark.parametrize("present", [("weight", "bias"), ("weight",), ()])
def test_absent_parameters(target, present):
    given = {k: v for k, v in arrays().items() if k in ("x", "dy", *present)}
    response = ask(resolve(target), given)
    assert set(response.arrays) == {"y", "dx", *(f"d{name}" for name in present)}
    assert_right(response, given)


@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
@pytest.mark.parametrize("requires", [("x",), ("weight",), ("bias", "x"), ()])
def test_only_what_requires_a_gradient_gets_one(target, requires):
    response = ask(resolve(target), arrays(), requires_grad=requires)
    assert set(response.arrays) == {"y", *(f"d{name}" for name in requires)}


@pytest.mark.parametrize("mode", ["no_grad", "inference"])
@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
def test_without_grad_mode_the_gradients_are_absent(target, mode):
    response = ask(resolve(target), arrays(), grad_mode=mode)
    assert set(response.arrays) == {"y"}
    assert response.refusal is None


@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
def test_jvp_and_double_backward_agree_with_the_linear_map(target):
    given = arrays(tx=(3, 8), tweight=(8,), tbias=(8,), vx=(3, 8), vweight=(8,), vbias=(8,))
    response = ask(resolve(target), given, "y", "ty", *GRADIENTS, "d2x", "d2weight", "d2bias", "d2dy")
    got = {name: array.values for name, array in response.arrays.items()}
    assert_right(response, given)
    # <dy, J t> = <J^T dy, t>
    right = sum((got[f"d{n}"] * given[f"t{n}"].values).sum() for n in ("x", "weight", "bias"))
    assert (got["ty"] * given["dy"].values).sum() == pytest.approx(right, rel=1e-12)
    # The first gradients are linear in dy: <d2dy, dy> = <v, first gradients>.
    right = sum((got[f"d{n}"] * given[f"v{n}"].values).sum() for n in ("x", "weight", "bias"))
    assert (got["d2dy"] * given["dy"].values).sum() == pytest.approx(right, rel=1e-12)
    assert {"d2x", "d2weight"} <= set(got)
    assert "d2bias" not in got


def test_an_autograd_function_is_called_by_apply_and_refuses_to_be_differentiated_twice():
    given = {k: v for k, v in arrays(vx=(3, 8), tx=(3, 8)).items() if k not in ("weight", "bias")}
    for target in (Doubled, Doubled.apply):
        subject = resolve(target)
        assert subject.capabilities.affine == ("none",)
        assert np.array_equal(ask(subject, given).arrays["dx"].values, 2 * given["dy"].values)
        twice = ask(subject, given, "d2x", "d2dy")
        assert twice.phase == "double backward"
        assert "differentiate twice" in twice.refusal
        assert not twice.arrays
        assert ask(subject, given, "ty").phase == "jvp"


def test_gradients_keep_the_shape_of_ours_where_the_module_has_its_own():
    given = {k: v for k, v in arrays().items() if k != "bias"}
    response = ask(resolve(Wrapped), given)
    assert response.arrays["dweight"].shape == (8,)
    assert_right(response, given)


def test_several_dimensions():
    given = arrays(shape=(2, 3, 4), n=2)
    flat = {
        k: FloatArray(v.dtype, v.bits.reshape(-1, 12) if v.bits.ndim == 3 else v.bits.ravel()) for k, v in given.items()
    }
    for target in (plain, by_axis, torch.nn.LayerNorm):
        response = ask(resolve(target), given, "y", "dx", n=2)
        for name in ("y", "dx"):
            right = expected(flat)[name].reshape(2, 3, 4)
            np.testing.assert_allclose(response.arrays[name].values, right, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("layout", LAYOUTS[:-1])
@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm, np_forward])
def test_layouts_do_not_change_a_right_subject(layout, target):
    given = arrays()
    response = ask(resolve(target), given, layouts=dict.fromkeys(given, layout))
    assert_right(response, given)
    assert response.changed == ()


def test_dy_may_be_the_output_itself():
    given = {k: v for k, v in arrays().items() if k != "dy"}
    response = ask(resolve(plain), given, layouts={"dy": "output"})
    assert response.arrays["dy"].same_bits(response.arrays["y"])
    assert_right(response, {**given, "dy": response.arrays["y"]})


def test_a_prototype_works_at_its_own_shape_and_eps():
    module = torch.nn.LayerNorm(8, eps=1e-3, dtype=torch.float64)
    subject = resolve(module)
    found = subject.capabilities
    assert (found.fixed_shape, found.eps, found.affine, found.module) == ((8,), 1e-3, ("both",), True)
    given = arrays()
    response = ask(subject, given, "y")
    np.testing.assert_allclose(response.arrays["y"].values, expected(given, 1e-3)["y"], rtol=1e-12)
    assert "normalises the shape (8,)" in ask(subject, arrays(shape=(3, 4))).refusal
    assert module.weight.tolist() == [1.0] * 8  # the user's own module is left alone


def test_a_partial_keeps_the_eps_that_it_was_given():
    subject = resolve(functools.partial(torch.nn.functional.layer_norm, eps=1e-3))
    assert subject.capabilities.eps == 1e-3
    assert subject.target == "functools.partial(torch.nn.functional.layer_norm)"
    given = arrays()
    response = ask(subject, given, "y")
    np.testing.assert_allclose(response.arrays["y"].values, expected(given, 1e-3)["y"], rtol=1e-12)


def test_a_scripted_module():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch deprecates scripting; people still use it
        module = torch.jit.script(torch.nn.LayerNorm(8))
    given = arrays("float32")
    assert_right(ask(resolve(module), given), given, 2e-3)  # its eps is 1e-5 as well


def test_a_factory_declared_as_a_module():
    @declare(module=True, arguments={"width": "normalized_shape"})
    def build(width: int, eps: float = 1e-5):
        return torch.nn.LayerNorm(width, eps)

    given = arrays()
    assert_right(ask(resolve(build), given), given)


def test_the_module_factory_builds_modules():
    build = resolve("torch.nn.LayerNorm").module
    module = build((4,), 1e-3, True, False, "bfloat16", "cpu")
    assert module.weight.dtype is torch.bfloat16
    assert module.bias is None
    assert module.eps == 1e-3


def test_a_module_is_kept_so_that_its_state_shows_and_train_is_set():
    subject = resolve(Counting)
    given = {"x": arrays()["x"]}
    first, second = ask(subject, given, "y"), ask(subject, given, "y", train=False)
    assert np.array_equal(first.arrays["y"].values, given["x"].values)
    assert np.array_equal(second.arrays["y"].values, -2 * given["x"].values)


def test_two_parameters_alike_must_be_declared():
    class Two(torch.nn.Module):
        def __init__(self, dim, eps=1e-5):
            super().__init__()
            self.first = torch.nn.LayerNorm(dim, eps, bias=False)
            self.second = torch.nn.LayerNorm(dim, eps, bias=False)

        def forward(self, x):
            return self.first(x)

    with pytest.raises(SignatureError, match=r"'first.weight' and 'second.weight': declare one"):
        resolve(Two)


def test_an_unknown_constructor_parameter_is_named():
    class Needs(torch.nn.Module):
        def __init__(self, dim, mystery):
            super().__init__()

    with pytest.raises(SignatureError, match="constructor parameter 'mystery' cannot be matched"):
        resolve(Needs)


def test_a_few_rows_are_repeated_and_what_differs_comes_back():
    """Of 7 rows that become 70001: y of the 7, and the rows that differ, the first 64 of them."""

    def loses(x, normalized_shape, weight=None, bias=None, eps=1e-5):
        y = plain(x, normalized_shape, weight, bias, eps)
        return y if x.shape[0] < 65536 else torch.cat((y[:65535], torch.zeros_like(y[65535:])))

    given = {name: array for name, array in arrays(shape=(7, 8)).items() if name != "dy"}
    right = ask(resolve(plain), given, "y", requires_grad=(), repeat=70001)
    np.testing.assert_allclose(right.arrays["y"].values, expected(arrays(shape=(7, 8)))["y"], rtol=1e-12)
    assert right.arrays["odd"].shape == (0, 8)
    wrong = ask(resolve(loses), given, "y", requires_grad=(), repeat=70001)
    np.testing.assert_array_equal(wrong.arrays["odd_rows"].values, np.arange(65535, 65535 + 64))
    assert not wrong.arrays["odd"].values.any()


def test_gradients_of_many_rows_come_from_those_that_have_a_dy():
    """Of 7 rows that become 70001 a few repetitions have a dy: gradients are those of these rows alone."""
    given = arrays(shape=(7, 8))
    live = live_rows(70001, 7)
    assert (live[:8], live[-7:]) == ([0, 1, 2, 3, 4, 5, 6, 7168], list(range(69994, 70001)))
    kinds = np.array(live) % 7
    alone = expected({k: FloatArray(a.dtype, a.bits[kinds]) if k in ("x", "dy") else a for k, a in given.items()})
    found = ask(resolve(plain), given, "dx", "dweight", "dbias", repeat=70001)
    for name in ("dx", "dweight", "dbias"):
        np.testing.assert_allclose(found.arrays[name].values, alone[name], rtol=1e-9, atol=1e-12)
    assert found.arrays["odd"].shape == (0, 8)


def test_what_would_not_fit_is_refused_before_it_is_allocated():
    response = ask(resolve(plain), {"x": arrays()["x"]}, "y", requires_grad=(), repeat=1 << 40)
    assert response.refusal is not None
    assert response.refusal.startswith("MemoryError: 262144 GiB, ")
