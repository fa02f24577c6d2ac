"""A separate backward, NumPy subjects, and the script that calls a subject."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.errors import TargetError
from lnverify.floats import FloatArray
from lnverify.subject import declare
from lnverify.target import resolve
from tests.adapter_samples import DTYPES, GRADIENTS, arrays, ask, assert_right, np_forward

torch = pytest.importorskip("torch")


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
