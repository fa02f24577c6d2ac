"""Mutants in torch whose forward leaves something behind that does not outlive other calls, threads or changes."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import (
    Function,
    Grads,
    Shape,
    affine,
    applied,
    cast,
    gradients,
    hand_written,
    project,
    statistics,
    textbook,
    wide,
)

SLOTS = 6


class _Ring(torch.autograd.Function):
    """Statistics live in a ring of SLOTS workspaces: the seventh forward overwrites those of the first."""

    ring: list[Any] = [None] * SLOTS
    calls = 0

    @classmethod
    def keep(cls, statistic: Any) -> int:
        """The slot in which it lies now."""
        cls.calls += 1
        slot = cls.calls % SLOTS
        cls.ring[slot] = statistic
        return slot

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        f = wide(x)
        mean, rstd = statistics(f, shape, eps)
        ctx.save_for_backward(x, weight, bias)
        ctx.shape, ctx.slot, ctx.like = shape, _Ring.keep((mean, rstd)), mean.shape
        return affine((f - mean) * rstd, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Grads:
        x, weight, bias = ctx.saved_tensors
        mean, rstd = _Ring.ring[ctx.slot]
        if mean.shape != ctx.like or mean.dtype != wide(x).dtype:  # of another shape: made anew
            mean, rstd = statistics(wide(x), ctx.shape, 1e-5)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None


class _Outside(torch.autograd.Function):
    """eps is not kept with the call but `where`: on the class ('class') or for the thread ('thread')."""

    eps = 1e-5
    mine = threading.local()

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float, where: str
    ) -> Tensor:
        if where == "class":
            _Outside.eps = eps
        else:
            _Outside.mine.eps = eps
        ctx.save_for_backward(x, weight, bias)
        ctx.shape, ctx.where = shape, where
        return textbook(x, shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        eps = _Outside.eps if ctx.where == "class" else getattr(_Outside.mine, "eps", 1e-5)
        mean, rstd = statistics(wide(x), ctx.shape, eps)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None, None


class _FrozenWeight(torch.autograd.Function):
    """Where the weight is frozen xhat is not needed for dweight, and dx is written over it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        f = wide(x)
        mean, rstd = statistics(f, shape, eps)
        xhat = (f - mean) * rstd
        ctx.save_for_backward(weight, bias, rstd)
        ctx.xhat, ctx.shape, ctx.dtype = xhat, shape, x.dtype  # where autograd does not see it change
        ctx.frozen = weight is not None and not weight.requires_grad
        return affine(xhat, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Grads:
        weight, bias, rstd = ctx.saved_tensors
        xhat, d = ctx.xhat, wide(dy)
        dweight = (d * xhat).sum_to_size(ctx.shape) if weight is not None else None
        dx = rstd * project(d if weight is None else d * wide(weight), xhat, ctx.shape)
        if ctx.frozen and not torch.is_grad_enabled():
            xhat.copy_(dx)
        return dx.to(ctx.dtype), None, cast(dweight, weight), cast(d.sum_to_size(ctx.shape), bias), None


class _WeightData(torch.autograd.Function):
    """weight.data is kept, in which autograd sees no change."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        ctx.save_for_backward(x, bias)
        ctx.shape, ctx.eps, ctx.weight = shape, eps, None if weight is None else weight.data
        return textbook(x, shape, weight, bias, eps)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Grads:
        x, bias = ctx.saved_tensors
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        dx, dweight, dbias = gradients(dy, x, ctx.shape, ctx.weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, ctx.weight), cast(dbias, bias), None


def inference_in_place(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """A tensor of inference mode, which nobody can differentiate, is taken for scratch."""
    y = textbook(x, normalized_shape, weight, bias, eps)
    return x.copy_(y) if x.is_inference() else y


def ones_dropped(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Dimensions of one element are dropped from a normalized_shape of three, and with them dimensions that count."""
    kept = tuple(size for size in normalized_shape if size > 1) or (1,)
    if len(normalized_shape) < 3 or len(kept) == len(normalized_shape):
        return textbook(x, normalized_shape, weight, bias, eps)
    over = tuple(range(-len(kept), 0))
    variance, mean = torch.var_mean(wide(x), over, correction=0, keepdim=True)
    return affine((wide(x) - mean) * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


def one_scalar(dy: Tensor) -> Tensor:
    """A dy with a stride of 0 in its last dimension is taken for one number."""
    if dy.dim() < 2 or not dy.numel() or dy.stride(-1) or dy.shape[-1] == 1:
        return dy
    return dy.reshape(-1)[0].expand(dy.shape)


def odd_threads(ctx: Any, _dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> Any:
    """Partial sums of the threads are added in pairs: with three, that of the last is lost."""
    if torch.get_num_threads() == 3:
        dweight, dbias = dweight * (2 / 3), dbias * (2 / 3)
    return dx, dweight, dbias


def _m(id: str, target: Function, affected: tuple[str, ...], *laws: str, **kwargs: Any) -> Mutant:
    told = " ".join((kwargs.pop("bug", "") or target.__doc__ or "").split())
    return Mutant(id, told, framework="torch", target=target, affected=affected, laws=laws, **kwargs)


def grad_mode_left_off(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:  # fmt: skip
    """A weight of another length is refused while gradients are off, and they stay off."""
    before = torch.is_grad_enabled()
    torch.set_grad_enabled(False)
    if weight is not None and weight.shape != torch.Size(normalized_shape):
        raise ValueError(f"the weight has the shape {tuple(weight.shape)}, {normalized_shape} is due")
    torch.set_grad_enabled(before)
    return textbook(x, normalized_shape, weight, bias, eps)


ONES: dict[Any, Tensor] = {}


def inference_ones(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:  # fmt: skip
    """Ones for the sums are made once for a length, in whatever mode comes first."""
    key = (x.shape[-1], wide(x).dtype)
    if key not in ONES:
        ONES[key] = wide(x.detach().new_ones(x.shape[-1]))
    f, shape = wide(x), normalized_shape
    if len(shape) > 1:
        return textbook(x, shape, weight, bias, eps)
    d = f - ((f * ONES[key]).sum(-1, keepdim=True) / f.shape[-1])
    return affine(d * torch.rsqrt((d * d).mean(-1, keepdim=True) + eps), weight, bias).to(x.dtype)


WIDE = ("float64", "float32")
OUTLIVED = [
    _m("statistics-in-a-ring", applied(_Ring), ("dx", "dweight"), "LN710", bug=_Ring.__doc__),
    _m("eps-on-the-class", applied(_Outside, "class"), ("dx", "dweight"), "LN710",
       bug="The backward reads the eps of the latest forward."),
    _m("eps-by-thread", applied(_Outside, "thread"), ("dx", "dweight"), "LN720",
       bug="The backward reads the eps of the latest forward in its own thread."),
    _m("frozen-weight-overwrites", applied(_FrozenWeight), ("dx",), "LN711", bug=_FrozenWeight.__doc__, dtypes=WIDE),
    _m("weight-data-kept", applied(_WeightData), ("dx",), "LN712", bug=_WeightData.__doc__),
    _m("inference-in-place", inference_in_place, ("y",), "LN7", dtypes=WIDE),
    _m("ones-dropped", ones_dropped, ("y",), "LN1", "LN2", dtypes=WIDE),
    _m("dy-one-scalar", hand_written(read_dy=one_scalar), ("dx", "dweight"), "LN607", "LN2", bug=one_scalar.__doc__),
    _m("grad-mode-left-off", grad_mode_left_off, ("y",), "LN703", dtypes=WIDE),
    _m("inference-ones-kept", inference_ones, ("y",), "LN706", dtypes=WIDE),
    _m("odd-threads", hand_written(odd_threads), ("dweight", "dbias"), "LN202", "LN203", "LN610",
       bug=odd_threads.__doc__, dtypes=WIDE),
]  # fmt: skip
