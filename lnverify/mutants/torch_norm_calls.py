"""Norms other than layer norm in torch: wrong with layouts, history or modes, right when asked plainly; a right one."""

from __future__ import annotations

import threading
from typing import Any

import torch

from lnverify.mutants import Mutant
from lnverify.mutants.torch_norms import affine, grouped, normalized, right


def _group(x: Any, num_groups: int, weight: Any, bias: Any, eps: float) -> Any:
    return affine(normalized(grouped(x, num_groups), 2, eps).reshape(x.shape), weight, bias)


def strides_ignored(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """x is read as if it lay contiguously in channels, whatever its strides."""
    if x.dim() == 4 and x.is_contiguous(memory_format=torch.channels_last):
        x = torch.as_strided(x, x.shape, torch.empty(x.shape, device="meta").stride())
    return _group(x, num_groups, weight, bias, eps)


def statistics_by_address() -> Any:
    """The variance is kept by the address of x, for the next call without gradients."""
    kept: dict[Any, Any] = {}

    def norm(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
        if torch.is_grad_enabled():
            return _group(x, num_groups, weight, bias, eps)
        rows = grouped(x, num_groups)
        key = (x.data_ptr(), x.shape, x.dtype, num_groups)
        if key not in kept:
            kept.clear()
            kept[key] = rows.var(2, correction=0, keepdim=True)
        y = (rows - rows.mean(2, keepdim=True)) * torch.rsqrt(kept[key] + eps)
        return affine(y.reshape(x.shape), weight, bias)

    return norm


def inference_unbiased(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Where nothing requires a gradient the variance is divided by N - 1."""
    correction = 0 if torch.is_grad_enabled() and x.requires_grad else 1
    rows = grouped(x, num_groups)
    correction *= rows.shape[2] > 1
    return affine(normalized(rows, 2, eps, correction).reshape(x.shape), weight, bias)


class _Kept(torch.autograd.Function):
    """Group norm whose backward asks what is kept outside the call: `where` says what, and where."""

    ring: list[Any] = [None] * 4
    calls = 0
    mine = threading.local()

    @staticmethod
    def forward(ctx: Any, x: Any, groups: int, eps: float, where: str) -> Any:
        rows = grouped(x, groups)
        variance, mean = torch.var_mean(rows, 2, correction=0, keepdim=True)
        r = torch.rsqrt(variance + eps)
        _Kept.calls += 1
        ctx.slot, _Kept.mine.eps = _Kept.calls % 4, eps
        _Kept.ring[ctx.slot] = r
        ctx.save_for_backward(rows - mean)
        ctx.where = where
        return ((rows - mean) * r).reshape(x.shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, dy: Any) -> tuple[Any, ...]:
        (d,) = ctx.saved_tensors
        eps = getattr(_Kept.mine, "eps", 1e-5)
        r = torch.rsqrt(d.square().mean(2, keepdim=True) + eps)
        kept = _Kept.ring[ctx.slot]
        if ctx.where == "ring" and kept.shape == r.shape and kept.dtype == r.dtype:
            r = kept
        g, xhat = dy.reshape(d.shape), d * r
        dx = r * (g - g.mean(2, keepdim=True) - xhat * (g * xhat).mean(2, keepdim=True))
        return dx.reshape(dy.shape), None, None, None


def in_a_ring(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Statistics live in a ring of four workspaces."""
    return affine(_Kept.apply(x, num_groups, eps, "ring"), weight, bias)


def by_thread(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The backward reads the eps of the latest forward in its own thread."""
    return affine(_Kept.apply(x, num_groups, eps, "thread"), weight, bias)


def _wrong(name: str, target: Any, *laws: str, **more: Any) -> Mutant:
    sentence = " ".join(target.__doc__.split())
    return Mutant(
        f"group-{name}", sentence, operation="group_norm", framework="torch", target=target, laws=laws, **more
    )


MUTANTS = [
    _wrong("strides-ignored", strides_ignored, "LN821"),
    _wrong("statistics-by-address", statistics_by_address, "LN822", fresh=True),
    _wrong("statistics-in-a-ring", in_a_ring, "LN822", dtypes=("float64", "float32")),
    _wrong("eps-by-thread", by_thread, "LN822", dtypes=("float64", "float32")),
    _wrong("inference-unbiased", inference_unbiased, "LN823"),
]


def channels_last_path(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Where the channels lie last they are summed there, without a copy in another order."""
    if x.dim() != 4 or not x.is_contiguous(memory_format=torch.channels_last):
        return _group(x, num_groups, weight, bias, eps)
    last = x.permute(0, 2, 3, 1)
    y = normalized(last.unflatten(3, (num_groups, -1)), (1, 2, 4), eps).flatten(3)
    y = y if weight is None else y * weight
    y = y if bias is None else y + bias
    return y.permute(0, 3, 1, 2)


CORRECT = [right("group_norm", channels_last_path)]
