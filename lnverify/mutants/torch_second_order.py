"""Mutants in torch whose double backward is wrong for some of what requires a gradient, or gets a cotangent."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import gradients, hand_written, project, statistics, wide

Three = tuple[Tensor | None, Tensor | None, Tensor | None]


def frozen_weight(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The differentiable path takes a weight that requires no gradient for an absent one."""
    if not torch.is_grad_enabled() or ctx.needs_input_grad[2]:
        return dx, dweight, dbias
    x = ctx.saved_tensors[0]
    return gradients(dy, x, ctx.shape, None, *statistics(wide(x), ctx.shape, ctx.eps))[0], dweight, dbias


class _Constant(torch.autograd.Function):
    """The identity on a gradient, whose own backward gives back what it is told to."""

    @staticmethod
    def forward(ctx: Any, dx: Tensor, dweight: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        return dx.clone(), dweight.clone()

    @staticmethod
    def backward(ctx: Any, vx: Any, vweight: Any) -> tuple[Any, Any]:
        return (None, None) if vx is None else (vx, vweight)


def cotangent_of_dx(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The double backward returns at once where dx gets no cotangent: what dweight brings is lost."""
    if not torch.is_grad_enabled():
        return dx, dweight, dbias
    dx, dweight = _Constant.apply(dx, dweight)
    return dx, dweight, dbias


def kept_by_the_first(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Three:
    """The first backward keeps xhat for later ones; one without create_graph keeps a constant."""
    x, weight = ctx.saved_tensors[:2]
    mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
    if not hasattr(ctx, "kept"):
        ctx.kept = (wide(x) - mean) * rstd
    g = wide(dy) if weight is None else wide(dy) * wide(weight)
    return rstd * project(g, ctx.kept, ctx.shape), dweight, dbias


def _m(id: str, spoil: Callable[..., Three], affected: tuple[str, ...]) -> Mutant:
    return Mutant(id, (spoil.__doc__ or "").strip(), ("pytorch/pytorch#18233",), framework="torch",
                  target=hand_written(spoil, recompute=True), affected=affected, laws=("LN219",),
                  dtypes=("float64", "float32"))  # fmt: skip


SECOND_ORDER = [
    _m("double-backward-frozen-weight", frozen_weight, ("dx", "d2x")),
    _m("double-backward-cotangent-of-dx", cotangent_of_dx, ("d2x", "d2dy")),
    _m("double-backward-after-the-first", kept_by_the_first, ("d2x",)),
]
