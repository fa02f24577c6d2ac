"""Mutants in torch that return mean and rstd beside y, with a gradient that is wrong."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants.declared import DeclaredMutant
from lnverify.mutants.torch_parts import Shape, affine, cast, gradients, statistics, wide


class _Returned(torch.autograd.Function):
    """(y, mean, rstd), right but for the gradients of the last two; the extra argument is the sign of that of rstd."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float, sign: int
    ) -> tuple[Tensor, Tensor, Tensor]:
        f = wide(x)
        mean, rstd = statistics(f, shape, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape, ctx.sign = shape, sign
        return affine((f - mean) * rstd, weight, bias).to(x.dtype), mean, rstd

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dmean: Tensor, drstd: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        n = wide(x).numel() // max(mean.numel(), 1)
        if ctx.sign:
            dx = dx + dmean / n - ctx.sign * drstd * rstd**3 * (wide(x) - mean) / n
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None, None


def returned(sign: int) -> Any:
    """The layer norm with its statistics. sign: of the gradient through rstd; 0: none through either."""

    def layer_norm(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Any:
        return _Returned.apply(x, normalized_shape, weight, bias, eps, sign)

    return layer_norm


MUTANTS = [
    DeclaredMutant("statistics-without-gradient", "Gradients of the returned mean and rstd are dropped.", returned(0),
                   ("LN217",), {"returns": ("y", "mean", "rstd")}, backward=None, framework="torch"),
    DeclaredMutant("statistics-gradient-sign", "The gradient of the returned rstd has the wrong sign.", returned(-1),
                   ("LN217",), {"returns": ("y", "mean", "rstd")}, backward=None, framework="torch"),
]  # fmt: skip
