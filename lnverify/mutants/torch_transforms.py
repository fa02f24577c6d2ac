"""Mutants in torch that only a transform shows: forward over forward mode, third derivatives, vmap."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Shape, cast, gradients, statistics, textbook, wide


def second_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value and first derivative are right; the second one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 2


def third_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value, first and second derivative are right; the third one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 3


class _Batched(torch.autograd.Function):
    """Composed operations with a batching rule of their own, which forgets the batch of the parameters."""

    @staticmethod
    def forward(x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        return textbook(x, shape, weight, bias, eps)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, ctx.shape, weight, bias, ctx.eps = inputs
        ctx.save_for_backward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None

    @staticmethod
    def vmap(
        _info: Any, in_dims: tuple[Any, ...], x: Tensor, shape: Shape, weight: Any, bias: Any, eps: float
    ) -> tuple[Tensor, int]:
        moved = x if in_dims[0] is None else x.movedim(in_dims[0], 0)
        weight, bias = (
            t if t is None or dim is None else t.select(dim, 0)
            for t, dim in zip((weight, bias), (in_dims[2], in_dims[3]), strict=True)
        )
        y: Tensor = _Batched.apply(moved, shape, weight, bias, eps)
        return y, 0


def first_parameters(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """A function of _Batched."""
    y: Tensor = _Batched.apply(x, normalized_shape, weight, bias, eps)
    return y


def _m(id: str, bug: str, target: Any, laws: tuple[str, ...], threads: tuple[str, ...]) -> Mutant:
    return Mutant(id, bug, threads, framework="torch", target=target, affected=("y",), laws=laws,
                  dtypes=("float64", "float32"))  # fmt: skip


TRANSFORMS = [
    _m("second-derivative-off", "The second derivative is wrong, value and first derivative are right.", second_order,
       ("LN213", "LN214", "LN209"), ("pytorch/pytorch#196700",)),
    _m("third-derivative-off", "The third derivative is wrong, all lower ones are right.", third_order, ("LN215",),
       ("pytorch/pytorch#175754", "pytorch/pytorch#176218")),
    _m("vmap-first-parameters", "The batching rule takes the parameters of the first sample for all.",
       first_parameters, ("LN216",), ("pytorch/functorch#534",)),
]  # fmt: skip
