"""Mutants in torch that depend on what is around a call: autocast, a default dtype, a `.grad` that is there."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import hand_written, statistics, wide

Three = tuple[Tensor | None, Tensor | None, Tensor | None]


def products(ctx: Any, dy: Tensor, dx: Tensor | None, dweight: Tensor | None, dbias: Tensor | None) -> Three:
    """The two sums of dx are products with ones, which autocast computes in bfloat16."""
    x, weight = ctx.saved_tensors[:2]
    if dx is None or len(ctx.shape) != 1 or not x.numel():
        return dx, dweight, dbias
    mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
    xhat, g = (wide(x) - mean) * rstd, wide(dy) if weight is None else wide(dy) * wide(weight)
    ones = torch.full((x.shape[-1], 1), 1 / x.shape[-1], dtype=g.dtype, device=g.device)
    return (g - g @ ones - xhat * ((g * xhat) @ ones)) * rstd, dweight, dbias


def accumulators(ctx: Any, dy: Tensor, dx: Tensor | None, dweight: Tensor | None, dbias: Tensor | None) -> Three:
    """The accumulator of dbias is made without a dtype: it has the default one."""
    rows = tuple(range(dy.dim() - len(ctx.shape)))
    if dbias is not None and torch.get_default_dtype() in (torch.bfloat16, torch.float16):
        total = torch.zeros(ctx.shape, device=dy.device)
        for row in dy.reshape(-1, *ctx.shape) if rows else [dy]:
            total += row
        dbias = total
    return dx, dweight, dbias


def adding(ctx: Any, dy: Tensor, dx: Tensor | None, dweight: Tensor | None, dbias: Tensor | None) -> Three:
    """Where the weight has a `.grad`, dweight is added to it here, and zeros are returned."""
    weight = ctx.saved_tensors[1]
    if dweight is not None and weight.is_leaf and weight.grad is not None and not torch.is_grad_enabled():
        weight.grad.add_(dweight.to(weight.dtype))
        dweight = torch.zeros_like(dweight)
    return dx, dweight, dbias


def _m(target: Any, id: str, affected: str, told: str, law: str = "LN717", dtypes: Any = ("float32",)) -> Mutant:
    return Mutant(id, told, framework="torch", target=target, affected=(affected,), laws=(law,), dtypes=dtypes)


SURROUNDINGS = [
    _m(hand_written(products), "dx-sums-by-products", "dx",
       "The sums of dx are products with ones: autocast computes them in bfloat16."),
    _m(hand_written(accumulators), "accumulators-of-the-default-dtype", "dbias",
       "dbias is accumulated in the default dtype."),
    _m(hand_written(adding), "adds-to-grad-itself", "dweight",
       "The backward adds dweight to the .grad that is there itself, and returns zeros.", "LN723",
       ("float64", "float32")),
]  # fmt: skip
