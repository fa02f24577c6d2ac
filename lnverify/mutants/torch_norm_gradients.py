"""Norms whose gradients are wrong in some combinations only (frozen parameters, parameters alone) or when they are
differentiated again, and norms whose forward mode is wrong."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants.torch_norms import affine, grouped, normalized, right, wrong

SUBSETS = ("LN809",)


class _Rms(torch.autograd.Function):
    """RMS norm with a backward of its own; `bug` names what it gets wrong."""

    @staticmethod
    def forward(ctx: Any, x: Any, weight: Any, dims: tuple[int, ...], eps: float, bug: str) -> Any:
        r = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
        ctx.save_for_backward(x, weight, r)
        ctx.dims, ctx.bug = dims, bug
        return x * r * weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        x, weight, r = ctx.saved_tensors
        of_x, of_weight = ctx.needs_input_grad[:2]
        xhat = x * r
        g = dy if ctx.bug == "frozen weight" and not of_weight else dy * weight
        dx = r * (g - xhat * (g * xhat).mean(ctx.dims, keepdim=True)) if of_x else None
        asked = of_weight and (of_x or ctx.bug != "weight alone")
        dweight = (dy * xhat).sum_to_size(weight.shape) if asked else None
        return dx, dweight, None, None, None


def _rms(x: Any, normalized_shape: Any, weight: Any, eps: float, bug: str) -> Any:
    dims = tuple(range(-len(normalized_shape), 0))
    if weight is None:
        return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    return _Rms.apply(x, weight, dims, eps, bug)


def rms_frozen_weight(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """dx leaves the weight out where the weight is frozen."""
    return _rms(x, normalized_shape, weight, eps, "frozen weight")


def rms_weight_alone(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """dweight is computed beside dx only."""
    return _rms(x, normalized_shape, weight, eps, "weight alone")


def rms_own_backward(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """A backward of its own, which computes what is asked for."""
    return _rms(x, normalized_shape, weight, eps, "")


def group_frozen_bias(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Where the bias is frozen the weight is taken for frozen too."""
    if bias is not None and weight is not None and not bias.requires_grad:
        weight = weight.detach()
    return affine(normalized(grouped(x, num_groups), 2, eps).reshape(x.shape), weight, bias)


def cell_frozen_weights(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Where its weights are frozen no gradient reaches the state before."""
    h = h if weight_hh.requires_grad else h.detach()
    a = x @ weight_ih.T + h @ weight_hh.T
    return torch.tanh(torch.nn.functional.layer_norm(a, (a.shape[-1],), weight, bias, eps))


class _Twice(torch.autograd.Function):
    """RMS norm whose backward and forward mode can be differentiated; `bug` names what is wrong."""

    @staticmethod
    def forward(x: Any, weight: Any, dims: tuple[int, ...], eps: float, bug: str) -> tuple[Any, Any]:
        r = torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
        return x * r * weight, r

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, Any]) -> None:
        x, weight, ctx.dims, ctx.eps, ctx.bug = inputs
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, weight, output[1])
        ctx.save_for_forward(x, weight, output[1])

    @staticmethod
    def backward(ctx: Any, dy: Any, _: Any) -> tuple[Any, ...]:
        x, weight, r = ctx.saved_tensors
        if ctx.bug != "constant":
            r = torch.rsqrt(x.square().mean(ctx.dims, keepdim=True) + ctx.eps)
        g = dy * weight
        dx = r * (g - x * r * (g * x * r).mean(ctx.dims, keepdim=True))
        return dx, (dy * x * r).sum_to_size(weight.shape), None, None, None

    @staticmethod
    def jvp(ctx: Any, tx: Any, tweight: Any, *_: Any) -> tuple[Any, None]:
        x, weight, r = ctx.saved_tensors
        xhat = x * r
        inner = 0.0 if ctx.bug == "tangent" else (tx * xhat).mean(ctx.dims, keepdim=True)
        return weight * r * (tx - xhat * inner) + tweight * xhat, None


def _twice(x: Any, normalized_shape: Any, weight: Any, eps: float, bug: str) -> Any:
    dims = tuple(range(-len(normalized_shape), 0))
    if weight is None:
        return x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    return _Twice.apply(x, weight, dims, eps, bug)[0]


def rms_constant_in_backward(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """The backward takes 1/rms as it was saved, without a graph: the double backward loses what goes through it."""
    return _twice(x, normalized_shape, weight, eps, "constant")


def rms_constant_in_jvp(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """The forward mode takes 1/rms for a constant."""
    return _twice(x, normalized_shape, weight, eps, "tangent")


def rms_differentiable_backward(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """A backward of its own that builds 1/rms again, and a forward mode of its own."""
    return _twice(x, normalized_shape, weight, eps, "")


def group_detached_in_backward(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Second derivatives do not go through the deviation."""
    rows = grouped(x, num_groups)
    d = rows - rows.mean(2, keepdim=True)
    y = _Root.apply(d, eps)
    return affine(y.reshape(x.shape), weight, bias)


class _Root(torch.autograd.Function):
    """d/sqrt(mean d^2 + eps), which is differentiable once, and says nothing of it."""

    @staticmethod
    def forward(ctx: Any, d: Any, eps: float) -> Any:
        r = torch.rsqrt(d.square().mean(2, keepdim=True) + eps)
        ctx.save_for_backward(d * r, r)
        return d * r

    @staticmethod
    def backward(ctx: Any, g: Any) -> tuple[Any, None]:
        xhat, r = ctx.saved_tensors
        return r * (g - xhat * (g * xhat).mean(2, keepdim=True)), None


MUTANTS = [
    wrong("rms_norm", rms_frozen_weight, SUBSETS),
    wrong("rms_norm", rms_weight_alone, SUBSETS),
    wrong("group_norm", group_frozen_bias, SUBSETS),
    wrong("ln_rnn", cell_frozen_weights, SUBSETS),
    wrong("rms_norm", rms_constant_in_backward, ("LN814",)),
    wrong("rms_norm", rms_constant_in_jvp, ("LN813",)),
    wrong("group_norm", group_detached_in_backward, ("LN814",)),
]
CORRECT = [right("rms_norm", rms_own_backward), right("rms_norm", rms_differentiable_backward)]
