"""Subjects and requests that the tests of the adapters share."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from lnverify.floats import FORMATS, FloatArray
from lnverify.protocol import Request
from lnverify.subject import declare

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
