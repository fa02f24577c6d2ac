"""Scenarios in which mutants in torch show: second derivatives, forward mode, vmap."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from tests.torch_inputs import SHAPE, inputs, normal


def second_order(f: Any, wanted: str, weight: bool = True) -> Any:
    """The gradient of a random combination of the first gradients for x, dy or the weight."""
    x, w, b = inputs()
    dy = normal(4, 6, seed=3)
    leaves = {"x": x, **({"weight": w} if weight else {}), "bias": b}
    y = f(x, SHAPE, w if weight else None, b, 1e-5)
    first = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True)
    total = sum((g * normal(*g.shape, seed=9, grad=False)).sum() for g in first)
    return torch.autograd.grad(total, {**leaves, "dy": dy}[wanted])


def frozen_weight(f: Any) -> Any:
    """dx of a weight that requires no gradient, under create_graph."""
    x, w, b = inputs()
    y = f(x, SHAPE, w.detach(), b, 1e-5)
    return torch.autograd.grad(y, x, normal(4, 6, seed=3), create_graph=True)


def dweight_alone(f: Any) -> Any:
    """The gradient of a random combination of dweight for x."""
    x, w, b = inputs()
    _, dweight = torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), (x, w), normal(4, 6, seed=3), create_graph=True)
    total = (dweight * normal(6, seed=9, grad=False)).sum()
    return torch.autograd.grad(total, x, allow_unused=True, materialize_grads=True)


def after_a_first(f: Any) -> Any:
    """The gradient of a random combination of dx for x, after a backward without create_graph."""
    x, w, b = inputs()
    y, dy = f(x, SHAPE, w, b, 1e-5), normal(4, 6, seed=3)
    torch.autograd.grad(y, x, dy, retain_graph=True)
    (dx,) = torch.autograd.grad(y, x, dy, create_graph=True)
    return torch.autograd.grad((dx * normal(4, 6, seed=9, grad=False)).sum(), x)


def tangent(f: Any) -> Any:
    """The derivative along (tx, tweight, tbias)."""
    given = inputs(grad=False)
    along = [normal(*t.shape, seed=7 + i, grad=False) + 1 for i, t in enumerate(given)]
    forward_ad = torch.autograd.forward_ad
    # torch compiles its own forward rules with torch.jit.script, which it deprecates.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        x, w, b = (forward_ad.make_dual(t, v) for t, v in zip(given, along, strict=True))
        return forward_ad.unpack_dual(f(x, SHAPE, w, b, 1e-5)).tangent


def second_tangent(f: Any) -> Any:
    """The second derivative of y along one direction, forward mode over forward mode."""
    x, t = normal(4, 6, grad=False), normal(4, 6, seed=7, grad=False)

    def jvp(x: Any) -> Any:
        return torch.func.jvp(lambda x: f(x, SHAPE, None, None, 1e-5), (x,), (t,))[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(jvp, (x,), (t,))[1]


def third_order(f: Any) -> Any:
    """The third derivative of one output by one input."""
    x = normal(4, 6)
    g = f(x, SHAPE, None, None, 1e-5)[0, 0]
    for _ in range(3):
        g = torch.autograd.grad(g, x, create_graph=True)[0][0, 0]
    return g


def own_parameters(f: Any) -> Any:
    """Y where each sample has a weight of its own."""
    x, w, _ = inputs(grad=False)
    weights = torch.stack([w * k for k in range(1, 5)])
    return torch.func.vmap(lambda x, w: f(x, SHAPE, w, None, 1e-5))(x, weights)


def weights_alone(f: Any) -> Any:
    """Y of one x with several weights."""
    x, w, _ = inputs(grad=False)
    return torch.func.vmap(lambda w: f(x, SHAPE, w, None, 1e-5))(torch.stack([w, w * 2, w * 3]))


def biases_alone(f: Any) -> Any:
    """Y of one x and one weight with several biases."""
    x, w, b = inputs(grad=False)
    return torch.func.vmap(lambda b: f(x, SHAPE, w, b, 1e-5))(torch.stack([b, b * 2, b * 3]))


def batch_second(f: Any) -> Any:
    """Y where the batch is the second dimension of x, and the parameters have none."""
    x, w, b = normal(3, 3, 6, grad=False), *inputs(grad=False)[1:]
    return torch.func.vmap(lambda x: f(x, SHAPE, w, b, 1e-5), in_dims=1)(x)


def batch_last(f: Any) -> Any:
    """Y where the batch is the last dimension of x."""
    x = normal(6, 6, 6, grad=False)
    return torch.func.vmap(lambda x: f(x, SHAPE, None, None, 1e-5), in_dims=2)(x)


def weight_tangent(f: Any) -> Any:
    """The derivative along the weight alone."""
    x, w, b = inputs(grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(lambda w: f(x, SHAPE, w, b, 1e-5), (w,), (normal(6, seed=8, grad=False),))[1]


def parameters_tangent(f: Any) -> Any:
    """The derivative along weight and bias, x being no dual number."""
    x, w, b = inputs(grad=False)
    forward_ad = torch.autograd.forward_ad
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        w, b = (forward_ad.make_dual(t, normal(6, seed=7, grad=False) + 1) for t in (w, b))
        return forward_ad.unpack_dual(f(x, SHAPE, w, b, 1e-5)).tangent


def samples_of_as_many_rows(f: Any) -> Any:
    """Y of three samples of three rows, each with a weight and a bias of its own."""
    x, w, b = normal(3, 3, 6, grad=False), normal(3, 6, seed=1, grad=False), normal(3, 6, seed=2, grad=False)
    return torch.func.vmap(lambda x, w, b: f(x, SHAPE, w, b, 1e-5))(x, w, b)


def weight_and_gradient(f: Any) -> Any:
    """The derivative of dx along the weight, forward over reverse."""
    x, w, b = inputs(grad=False)
    dy, t = normal(4, 6, seed=3, grad=False), normal(6, seed=8, grad=False)

    def dx(w: Any) -> Any:
        return torch.func.vjp(lambda x: f(x, SHAPE, w, b, 1e-5), x)[1](dy)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(dx, (w,), (t,))[1]


def per_sample(f: Any) -> Any:
    """Dweight of each sample, the weight being the same for all."""
    x, w, b = inputs(grad=False)

    def dweight(x: Any, dy: Any) -> Any:
        return torch.func.vjp(lambda w: f(x[None], SHAPE, w, b, 1e-5), w)[1](dy[None])[0]

    return torch.func.vmap(dweight)(x, normal(4, 6, seed=3, grad=False))
