"""Norms whose gradients are wrong in some combinations only: frozen parameters, parameters alone."""

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
        rows = tuple(range(x.dim() - len(ctx.dims)))
        asked = of_weight and (of_x or ctx.bug != "weight alone")
        dweight = (dy * xhat).sum(rows) if asked else None
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


MUTANTS = [
    wrong("rms_norm", rms_frozen_weight, SUBSETS),
    wrong("rms_norm", rms_weight_alone, SUBSETS),
    wrong("group_norm", group_frozen_bias, SUBSETS),
    wrong("ln_rnn", cell_frozen_weights, SUBSETS),
]
CORRECT = [right("rms_norm", rms_own_backward)]
