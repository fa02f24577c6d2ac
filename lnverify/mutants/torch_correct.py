"""Right layer norms in torch, as people write them.

second_order: 'right'; 'refused' (a second derivative raises rather than lies); 'native': torch's own double
backward, which up to 2.13 loses the second derivative of the bias without a weight (pytorch/pytorch#79705).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from lnverify.mutants import Correct
from lnverify.mutants.torch_parts import (
    Grads,
    Module,
    Shape,
    affine,
    cast,
    dims,
    gradients,
    hand_written,
    statistics,
    textbook,
    wide,
)


def var_mean(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch.var_mean with correction=0."""
    if not x.numel():  # var_mean warns of zero degrees of freedom
        return textbook(x, normalized_shape, weight, bias, eps)
    f = wide(x)
    variance, mean = torch.var_mean(f, dims(normalized_shape), correction=0, keepdim=True)
    return affine((f - mean) / torch.sqrt(variance + eps), weight, bias).to(x.dtype)


def _wide_or_none(t: Tensor | None) -> Tensor | None:
    return None if t is None else wide(t)


def functional(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch.nn.functional.layer_norm in float32, cast back.

    16-bit tensors are cast first: torch's CPU kernel saves their statistics and adds up their parameter
    gradients in 16 bits (pytorch/pytorch#139923).
    """
    w, b = _wide_or_none(weight), _wide_or_none(bias)
    return torch.nn.functional.layer_norm(wide(x), normalized_shape, w, b, eps).to(x.dtype)


def native(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """torch.native_layer_norm, the operator below it."""
    w, b = _wide_or_none(weight), _wide_or_none(bias)
    y: Tensor = torch.native_layer_norm(wide(x), normalized_shape, w, b, eps)[0]
    return y.to(x.dtype)


def einsum(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Means by contraction of each row with a vector, over rows laid flat."""
    rows = x.shape[: x.ndim - len(normalized_shape)]
    f = wide(x).reshape(rows.numel(), torch.Size(normalized_shape).numel())
    mean = torch.einsum("rn,n->r", f, f.new_ones(f.shape[1])) / f.shape[1]
    d = f - mean[:, None]
    variance = torch.einsum("rn,rn->r", d, d) / f.shape[1]
    xhat = d * torch.rsqrt(variance + eps)[:, None]
    return affine(xhat.reshape(x.shape), weight, bias).to(x.dtype)


class _Once(torch.autograd.Function):
    """A fused layer norm: saved statistics, and a backward that declares it cannot be differentiated."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        f = wide(x)
        mean, rstd = statistics(f, shape, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape = shape
        return affine((f - mean) * rstd, weight, bias).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> Grads:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None


def once(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The function of _Once."""
    y: Tensor = _Once.apply(x, normalized_shape, weight, bias, eps)
    return y


def checkpointed(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The forward is run again in the backward."""
    y: Tensor = checkpoint(textbook, x, normalized_shape, weight, bias, eps, use_reentrant=False)
    return y


class KeptWide(Module):
    """Without gradients a weight in float32 is kept, by the version of the parameter and where it lies."""

    kept: tuple[Any, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Layer norm over the last dimensions."""
        weight = self.weight
        if torch.is_grad_enabled() or weight is None:
            return super().forward(x)
        key = (weight.data_ptr(), weight._version, weight.dtype)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, wide(weight).clone()
        return textbook(x, self.normalized_shape, self.kept[1], self.bias, self.eps)


def _t(id: str, description: str, target: Any, second_order: str = "right") -> Correct:
    return Correct(id, description, framework="torch", target=target, second_order=second_order)


CORRECT = [
    _t("torch-composed", "Plain operations, differentiated by autograd.", textbook),
    _t("torch-var-mean", "torch.var_mean and a division by the root.", var_mean),
    _t("torch-functional", "torch.nn.functional.layer_norm in float32, cast back.", functional, "native"),
    _t("torch-native", "torch.native_layer_norm in float32, cast back.", native, "native"),
    _t("torch-einsum", "Means by contraction.", einsum),
    _t("torch-function-once", "A fused autograd.Function; a second derivative raises.", once, "refused"),
    _t("torch-function-twice", "An autograd.Function whose backward can be differentiated.",
       hand_written(recompute=True)),
    _t("torch-checkpoint", "Plain operations under torch.utils.checkpoint.", checkpointed),
    _t("torch-module", "A module as people write it.", Module),
    _t("torch-module-kept", "A module that keeps a float32 weight until the parameter changes.", KeptWide),
]  # fmt: skip
