"""Parts of layer norms in torch: the textbook in working precision, and a hand-written autograd function.

16-bit tensors are computed in float32, as good kernels do; the result is cast back to the dtype of x.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

Shape = tuple[int, ...]
Function = Callable[[Tensor, Shape, Tensor | None, Tensor | None, float], Tensor]
Grads = tuple[Tensor | None, None, Tensor | None, Tensor | None, None]


def dims(shape: Shape) -> Shape:
    """The normalised dimensions as negative numbers."""
    return tuple(range(-len(shape), 0))


def wide(t: Tensor) -> Tensor:
    """The tensor in working precision; an alias where it is that already."""
    return t.float() if t.dtype in (torch.bfloat16, torch.float16) else t


def statistics(x: Tensor, shape: Shape, eps: float) -> tuple[Tensor, Tensor]:
    """Mean and 1/sqrt(variance + eps), two passes."""
    mean = x.mean(dims(shape), keepdim=True)
    variance = (x - mean).square().mean(dims(shape), keepdim=True)
    return mean, torch.rsqrt(variance + eps)


def affine(xhat: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
    """Weight times xhat plus bias."""
    y = xhat if weight is None else xhat * wide(weight)
    return y if bias is None else y + wide(bias)


def textbook(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Plain composed operations, differentiated by autograd to any order."""
    f = wide(x)
    mean, rstd = statistics(f, normalized_shape, eps)
    return affine((f - mean) * rstd, weight, bias).to(x.dtype)


def output_promoted(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The dtype of y follows type promotion with the parameters: float32 for 16-bit x and float32 weight."""
    f = wide(x)
    mean, rstd = statistics(f, normalized_shape, eps)
    dtype = x.dtype if weight is None else torch.promote_types(x.dtype, weight.dtype)
    return affine((f - mean) * rstd, weight, bias).to(dtype)


def project(g: Tensor, xhat: Tensor, shape: Shape) -> Tensor:
    """g - mean(g) - xhat mean(g xhat): the derivative of xhat over rstd, which is symmetric."""
    d = dims(shape)
    return g - g.mean(d, keepdim=True) - xhat * (g * xhat).mean(d, keepdim=True)


def gradients(
    dy: Tensor, x: Tensor, shape: Shape, weight: Tensor | None, mean: Tensor, rstd: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """(dx, dweight, dbias) from mean and rstd, in working precision."""
    d, xhat = wide(dy), (wide(x) - mean) * rstd
    dx = rstd * project(d if weight is None else d * wide(weight), xhat, shape)
    rows = tuple(range(x.ndim - len(shape)))
    if not rows:
        return dx, d * xhat, d
    return dx, (d * xhat).sum(rows), d.sum(rows)


def applied(function: Any, *extra: Any) -> Function:
    """A layer norm of a torch.autograd.Function that takes (x, shape, weight, bias, eps, *extra)."""

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y: Tensor = function.apply(x, normalized_shape, weight, bias, eps, *extra)
        return y

    return layer_norm


class Composed(torch.autograd.Function):
    """The textbook with a written backward, right to first order: what forward mode and vmap rules are added to.

    extra: more arguments of a subclass; they get no gradient.
    """

    @staticmethod
    def forward(x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float, *extra: Any) -> Tensor:
        """y."""
        return textbook(x, shape, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Keep what both modes need."""
        x, ctx.shape, weight, bias, ctx.eps, *ctx.extra = inputs
        ctx.save_for_backward(x, weight, bias)
        ctx.save_for_forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        """The gradients, right to first order."""
        x, weight, bias = ctx.saved_tensors
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None, *(None for _ in ctx.extra)


Spoil = Callable[[Any, Tensor, Tensor, Tensor, Tensor], tuple[Tensor | None, Tensor | None, Tensor | None]]
Read = Callable[[Tensor], Tensor]


def as_it_is(t: Tensor) -> Tensor:
    """Nothing is changed."""
    return t


def cast(t: Tensor | None, like: Tensor | None) -> Tensor | None:
    """A gradient in the dtype of its argument, None where there is no argument."""
    return None if t is None or like is None else t.to(like.dtype)


def hand_written(
    spoil: Spoil | None = None,
    read_x: Read = as_it_is,
    read_dy: Read = as_it_is,
    recompute: bool = False,
    change_x: Callable[[Tensor, Tensor], None] | None = None,
) -> Function:
    """A layer norm as an autograd.Function with a written backward; the arguments say what is wrong in it.

    spoil: changes (ctx, dy, dx, dweight, dbias) to the gradients returned. recompute: the backward computes
    the statistics again from x, so that it can itself be differentiated; else they are saved as constants.
    """

    class HandWritten(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
        ) -> Tensor:
            f = read_x(wide(x))
            mean, rstd = statistics(f, shape, eps)
            y = affine((f - mean) * rstd, weight, bias).to(x.dtype)
            # Autograd would notice that a saved x was changed: what is saved is then a copy.
            ctx.save_for_backward(x if change_x is None else x.clone(), weight, bias, mean, rstd)
            ctx.shape, ctx.eps = shape, eps
            if change_x is not None:
                change_x(wide(x), mean)
            return y

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Grads:
            x, weight, bias, mean, rstd = ctx.saved_tensors
            if recompute:
                mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
            dy = read_dy(dy)
            out: tuple[Tensor | None, Tensor | None, Tensor | None]
            out = dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
            if spoil is not None:
                out = spoil(ctx, dy, dx, dweight, dbias)
            return cast(out[0], x), None, cast(out[1], weight), cast(out[2], bias), None

    return applied(HandWritten)


class Module(nn.Module):
    """A layer norm module as people write them; right, and the base of the wrong ones."""

    weight: nn.Parameter | None
    bias: nn.Parameter | None

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        """The arguments of torch.nn.LayerNorm."""
        super().__init__()
        self.normalized_shape = (normalized_shape,) if isinstance(normalized_shape, int) else tuple(normalized_shape)
        self.eps = eps
        self.elementwise_affine = elementwise_affine
        place = {"device": device, "dtype": dtype}
        ones, zeros = torch.ones(self.normalized_shape, **place), torch.zeros(self.normalized_shape, **place)
        self.weight = nn.Parameter(ones) if elementwise_affine else None
        self.bias = nn.Parameter(zeros) if elementwise_affine and bias else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        return textbook(x, self.normalized_shape, self.weight, self.bias, self.eps)
