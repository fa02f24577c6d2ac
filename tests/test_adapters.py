"""Adapters: bits in, bits out; gradients, layouts, purity and refusals of torch and NumPy subjects."""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import subprocess
import sys
import types
import warnings

import numpy as np
import pytest

import lnverify.adapters
from lnverify.adapters.layouts import NAN_BITS, place
from lnverify.errors import SignatureError, TargetError
from lnverify.floats import FORMATS, FloatArray
from lnverify.protocol import LAYOUTS, Request
from lnverify.subject import Subject, declare, resolve

torch = pytest.importorskip("torch")

DTYPES = tuple(FORMATS)
GRADIENTS = ("dx", "dweight", "dbias")


def arrays(dtype="float64", shape=(3, 8), n=1, **more):
    """Ordinary arrays by name: x, weight, bias, dy and whatever else is asked for."""
    rng = np.random.default_rng(0)
    shapes = {"x": shape, "weight": shape[-n:], "bias": shape[-n:], "dy": shape, **more}
    return {name: FloatArray.of(rng.standard_normal(s), dtype) for name, s in shapes.items()}


def ask(subject, given, *wanted, n=1, **changes):
    request = Request("layer_norm", given, given["x"].shape[-n:], 1e-5, wanted or ("y", *GRADIENTS))
    requires = tuple(name for name in ("x", "weight", "bias") if name in given)
    return subject.run(dataclasses.replace(request, **{"requires_grad": requires, **changes}))


def expected(given, eps=1e-5):
    """y, dx, dweight, dbias in float64 by the formulas."""
    x, dy = given["x"].values, given["dy"].values
    weight = given["weight"].values if "weight" in given else np.ones(x.shape[-1])
    bias = given["bias"].values if "bias" in given else 0.0
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + eps)
    xhat = (x - x.mean(-1, keepdims=True)) * rstd
    g = dy * weight
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    return {"y": xhat * weight + bias, "dx": dx, "dweight": (dy * xhat).sum(0), "dbias": dy.sum(0)}


def assert_right(response, given, tolerance=1e-12):
    assert response.refusal is None
    for name, value in expected(given).items():
        if name in response.arrays:
            np.testing.assert_allclose(response.arrays[name].values, value, rtol=tolerance, atol=tolerance)


# Subjects


def plain(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def by_axis(input, axis, gamma, beta, epsilon):
    var, mean = torch.var_mean(input, dim=axis, correction=0, keepdim=True)
    return (input - mean) * torch.rsqrt(var + epsilon) * gamma + beta


class Doubled(torch.autograd.Function):
    """y = 2x, differentiable once."""

    @staticmethod
    def forward(ctx, x, eps):
        return x * 2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        return dy * 2, None


class Annotated(torch.nn.Module):
    """The layer norm of a well-known tutorial: other names, one dimension."""

    def __init__(self, features, eps=1e-6):
        super().__init__()
        self.a_2 = torch.nn.Parameter(torch.ones(features))
        self.b_2 = torch.nn.Parameter(torch.zeros(features))
        self.eps = eps

    def forward(self, hidden_states):
        mean = hidden_states.mean(-1, keepdim=True)
        var = hidden_states.var(-1, keepdim=True, correction=0)
        return self.a_2 * (hidden_states - mean) / torch.sqrt(var + self.eps) + self.b_2


class Passes(torch.nn.LayerNorm):
    """Hands its constructor arguments on."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)


class Wrapped(torch.nn.Module):
    """Parameters with a shape of their own inside another module, eps fixed."""

    def __init__(self, dim):
        super().__init__()
        self.gamma = torch.nn.Parameter(torch.ones(1, dim))
        self.layer_norm_eps = 1e-5

    def forward(self, x):
        return torch.nn.functional.layer_norm(x, x.shape[-1:], self.gamma[0], None, self.layer_norm_eps)


class Counting(torch.nn.Module):
    """State from call to call, and another result in training."""

    def __init__(self, normalized_shape, eps=1e-5):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls * (1 if self.training else -1)


def np_forward(x, weight=None, bias=None, eps=1e-5):
    mean = x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt(x.var(-1, keepdims=True) + np.asarray(eps, x.dtype))
    y = (x - mean) * rstd
    y = y if weight is None else y * weight
    return (y if bias is None else y + bias), mean, rstd


def np_backward(dy, x, weight, mean, rstd):
    xhat = (x - mean) * rstd
    g = dy * weight
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    return {"dx": dx, "dweight": (dy * xhat).sum(0), "dbias": dy.sum(0)}


declare(framework="numpy", backward="np_backward", dtypes=DTYPES)(np_forward)


# Registry


def test_the_built_in_adapters_are_found_by_walking_the_package():
    names = {getattr(a, "__name__", "").rpartition(".")[2] for a in lnverify.adapters.registry()}
    assert {"torch_function", "torch_module", "numpy_function"} <= names


def test_importing_the_adapters_imports_no_framework():
    code = "import sys, lnverify.adapters as a; a.registry(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)}, timeout=120)


def test_third_party_adapters_come_first_and_a_broken_one_is_a_warning(monkeypatch):
    class Special:
        def __call__(self, x):
            return x

    def adapt(obj, target, options):
        return Subject(f"special {options.extra['depth']}", options.capabilities(), run=lambda request: None)

    good = types.SimpleNamespace(claims=lambda obj: isinstance(obj, Special), adapt=adapt, OPTIONS=("depth",))

    def broken():
        raise RuntimeError("no licence")

    entries = [
        types.SimpleNamespace(name="good", value="good:adapter", load=lambda: good),
        types.SimpleNamespace(name="bad", value="bad:adapter", load=broken),
    ]
    real = importlib.metadata.entry_points
    monkeypatch.setattr(
        importlib.metadata,
        "entry_points",
        lambda **kw: entries if kw == {"group": "lnverify.adapters"} else real(**kw),
    )
    lnverify.adapters.registry.cache_clear()
    try:
        with pytest.warns(UserWarning, match="adapter 'bad' .* no licence"):
            found = lnverify.adapters.registry()
        assert found[0] is good
        options = dataclasses.replace(declare.__globals__["Declaration"](), extra={"depth": "3"})
        assert lnverify.adapters.adapt(Special(), "t", options).target == "special 3"
    finally:
        lnverify.adapters.registry.cache_clear()


# Bits and layouts


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS[:-1])
@pytest.mark.parametrize("shape", [(8,), (3, 8), (2, 3, 4), (0, 4), (2, 1, 3, 5)])
def test_every_layout_has_the_same_bits_in_torch_and_numpy(dtype, layout, shape):
    from lnverify.adapters.numpy_function import hold as numpy_hold
    from lnverify.adapters.torch_tensors import hold, to_array

    array = FloatArray.of(np.random.default_rng(1).standard_normal(shape), dtype)
    assert to_array(hold(array, layout, "cpu").tensor, "x").sha256 == array.sha256
    held = numpy_hold(array, layout)
    assert np.array_equal(held.array.astype(np.float64), array.values)
    assert not np.may_share_memory(held.array, array.bits)
    assert not hold(array, layout, "cpu").changed()


def test_special_bits_survive():
    from lnverify.adapters.torch_tensors import hold, to_array

    for name, fmt in FORMATS.items():
        # A NaN with a payload, the smallest subnormal, -0 and infinity.
        top = fmt.bits(1) << fmt.bits(fmt.bits().itemsize * 8 - 1)
        bits = np.array([NAN_BITS[name] + 1, 1, top, FloatArray.of([np.inf], name).bits[0]], fmt.bits)
        assert to_array(hold(FloatArray(name, bits), "strided", "cpu").tensor, "x").bits.tolist() == bits.tolist()


def test_strides_are_what_the_layouts_say():
    x = FloatArray.of(np.arange(24.0).reshape(2, 3, 4), "float32")
    same = FloatArray.of(np.tile(np.arange(4.0), (2, 3, 1)), "float32")
    assert place(x, "transposed").strides == (12, 1, 3)
    assert place(x, "permuted").strides == (12, 1, 3)
    assert place(x, "strided").strides == (24, 8, 2)
    assert (place(x, "reversed").strides, place(x, "reversed").offset) == ((12, 4, -1), 3)
    assert place(x, "reversed", negative=False).strides == (24, 8, 2)
    assert place(x, "offset").offset % 2 == 1
    assert place(x, "offset").buffer.size > 24
    assert place(same, "expanded").strides == (0, 0, 1)
    assert place(x, "expanded").strides == (12, 4, 1)
    assert place(FloatArray.of(np.ones((2, 3)), "float16"), "expanded").strides == (0, 0)
    four = FloatArray.of(np.zeros((2, 3, 4, 5)), "float32")
    assert place(four, "permuted").strides == (60, 1, 15, 3)  # channels last
    gaps = place(x, "strided").buffer[1::2]
    assert (gaps == NAN_BITS["float32"]).all()


# Torch


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
    assert full.outputs == ("y", *GRADIENTS, "ty", "d2x", "d2weight", "d2bias", "d2dy")
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


# Purity and refusals


def identity(x, eps):
    print("noise")
    return x


def writes(x, weight, eps):
    weight.data.mul_(2)
    return x * 1


def warns(x, eps):
    warnings.warn("careful", RuntimeWarning, stacklevel=2)
    return x * 1


def fails(x, eps):
    raise ValueError("first line\nsecond line")


def leaves(x, eps):
    sys.exit(3)


def interrupts(x, eps):
    raise KeyboardInterrupt


def integer(x, eps):
    return x.long()


def nothing(x, eps):
    return None


def test_changes_aliases_warnings_and_prints(capsys):
    x = {"x": arrays()["x"]}
    same = ask(resolve(identity), x, "y")
    assert same.aliases == ("y",)
    assert same.changed == ()
    assert capsys.readouterr().out == ""
    given = {k: v for k, v in arrays().items() if k in ("x", "weight")}
    before = given["weight"].bits.copy()
    for layout in ("contiguous", "strided"):
        assert ask(resolve(writes), given, "y", layouts={"weight": layout}).changed == ("weight",)
    assert np.array_equal(given["weight"].bits, before)
    assert ask(resolve(warns), x, "y").warnings == ("RuntimeWarning: careful",)


def test_a_write_beside_the_view_is_seen():
    def spills(x, eps):
        torch.as_strided(x, (1,), (1,), 1).fill_(5.0)
        return x * 1

    assert ask(resolve(spills), {"x": arrays()["x"]}, "y", layouts={"x": "strided"}, requires_grad=()).changed == ("x",)


@pytest.mark.parametrize(
    ("function", "refusal"),
    [
        (fails, "ValueError: first line"),
        (leaves, "SystemExit: 3"),
        (integer, "TypeError: y has dtype int64, one of float64, float32, float16, bfloat16 is expected"),
        (nothing, "TypeError: y is a NoneType, a tensor is expected"),
    ],
)
def test_exceptions_become_refusals(function, refusal):
    response = ask(resolve(function), {"x": arrays()["x"]}, "y")
    assert (response.refusal, response.phase, dict(response.arrays)) == (refusal, "forward", {})


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        ask(resolve(interrupts), {"x": arrays()["x"]}, "y")


def test_a_backward_that_raises_is_a_refusal_in_its_phase():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, eps):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            raise NotImplementedError("no backward")

    response = ask(resolve(Broken), {k: v for k, v in arrays().items() if k in ("x", "dy")})
    assert (response.refusal, response.phase) == ("NotImplementedError: no backward", "backward")


def test_a_parameter_that_the_function_cannot_take_is_refused():
    assert ask(resolve(identity), arrays()).refusal.endswith("has no parameter for weight")


def test_the_thread_count_is_set_and_kept():
    before = torch.get_num_threads()
    try:
        ask(resolve(identity), {"x": arrays()["x"]}, "y", threads=before + 1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


# A separate backward, and NumPy


@declare(backward=lambda dout, x, gamma, saved: (dout * gamma, (dout * saved[0]).sum(0), dout.sum(0)))
def torch_pair(x, gamma, beta, eps):
    return x * gamma + beta, x


def test_a_separate_backward_in_torch_gets_what_the_forward_saved():
    given = arrays()
    subject = resolve(torch_pair)
    assert subject.capabilities.outputs == ("y", *GRADIENTS)
    response = ask(subject, given, requires_grad=("x", "weight"))
    assert set(response.arrays) == {"y", "dx", "dweight"}
    dy = given["dy"].values
    np.testing.assert_allclose(response.arrays["dx"].values, dy * given["weight"].values)
    np.testing.assert_allclose(response.arrays["dweight"].values, (dy * given["x"].values).sum(0))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-12), ("float32", 2e-5)])
def test_numpy_forward_and_backward(dtype, tolerance):
    given = arrays(dtype)
    subject = resolve(np_forward)
    assert (subject.framework, subject.capabilities.dtypes) == ("numpy", DTYPES)
    response = ask(subject, given)
    assert {array.dtype for array in response.arrays.values()} == {dtype}
    assert_right(response, given, tolerance)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numpy_in_16_bits_computes_in_float32_and_rounds_once(dtype):
    seen = []

    @declare(framework="numpy", dtypes=(dtype,))
    def fn(x, eps, dtype):
        seen.append((x.dtype, dtype))
        return x + np.float32(2**-20)

    given = {"x": FloatArray.of(np.array([[1.0, 3.0, -2.0]]), dtype)}
    response = ask(resolve(fn), given, "y")
    assert seen == [(np.dtype(np.float32), dtype)]
    right = FloatArray.of(given["x"].values + 2**-20, dtype)
    assert response.arrays["y"].sha256 == right.sha256


def test_numpy_gradients_are_stored_as_their_arguments_are():
    wide = arrays("float32")
    given = {**arrays("bfloat16"), "weight": wide["weight"], "bias": wide["bias"]}
    response = ask(resolve(np_forward), given)
    stored = {name: array.dtype for name, array in response.arrays.items()}
    assert stored == {"y": "bfloat16", "dx": "bfloat16", "dweight": "float32", "dbias": "float32"}


def test_numpy_changes_aliases_and_refusals():
    @declare(framework="numpy", returns=("y", "mean", "rstd"))
    def writes(x, eps):
        x[0] = 7
        return x, x, x

    x = {"x": arrays()["x"]}
    response = ask(resolve(writes), x, "y", "mean")
    assert (response.changed, set(response.aliases)) == (("x",), {"y", "mean"})

    @declare(framework="numpy")
    def lists(x, eps):
        return "text"

    assert ask(resolve(lists), x, "y").refusal == "TypeError: y is a str, a NumPy array is expected"


def test_numpy_warnings_are_caught():
    @declare(framework="numpy")
    def divides(x, eps):
        return x / np.zeros_like(x)

    response = ask(resolve(divides), {"x": arrays()["x"]}, "y")
    assert response.warnings == ("RuntimeWarning: divide by zero encountered in divide",)


def test_call_text_is_a_script_that_gives_the_same_result(tmp_path):
    (tmp_path / "k.py").write_text(
        "import torch\n\ndef ln(x, dim, eps):\n"
        "    return torch.nn.functional.layer_norm(x, (x.shape[-1],), None, None, eps)\n"
    )
    given = arrays("float32")
    names = {name: torch.tensor(given[name].values, dtype=torch.float32) for name in ("x", "weight", "bias")}
    texts = {"x": "x", "weight": "weight", "bias": "bias", "eps": "1e-5", "normalized_shape": "(8,)"}
    for target in (
        "torch.nn.functional.layer_norm",
        "torch.nn.LayerNorm",
        "torch.ops.aten.native_layer_norm",
    ):
        subject = resolve(target)
        scope = dict(names)
        exec(subject.call_text.format(**texts), scope)
        assert np.array_equal(scope["y"].detach().numpy(), ask(subject, given, "y").arrays["y"].values)
    scope = dict(names)
    exec(resolve(f"{tmp_path}/k.py:ln").call_text.format(**texts), scope)
    assert scope["y"].shape == (3, 8)
    assert resolve(lambda x, eps: x).call_text == ""


def test_a_class_that_is_no_module_is_a_target_error():
    with pytest.raises(TargetError, match="is a class that no adapter knows"):
        resolve(dict)
