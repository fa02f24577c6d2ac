"""Layer norms in torch whose memory comes from a pool: wrong where it is given out again too early; and right ones."""

from __future__ import annotations

import contextlib
import threading
import weakref
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lnverify.mutants import Correct, Mutant
from lnverify.mutants.torch_parts import (
    Function,
    Grads,
    Shape,
    affine,
    applied,
    cast,
    dims,
    gradients,
    hand_written,
    statistics,
    textbook,
    wide,
)

Free = dict[Any, list[Any]]
WIDE = ("float64", "float32")


class _Workspace:
    """Mean and 1/s of one forward, in memory of a pool."""

    def __init__(self, free: Free, mean: Tensor, rstd: Tensor) -> None:
        self.free, self.key, self.given_back = free, (mean.shape, mean.dtype), True
        kept = free.setdefault(self.key, [])
        self.memory = kept.pop() if kept else (torch.empty_like(mean), torch.empty_like(rstd))
        for place, value in zip(self.memory, (mean, rstd), strict=True):
            place.copy_(value)
        self.given_back = False

    def give_back(self) -> None:
        """Let the next forward have it, once."""
        if not self.given_back:
            self.given_back = True
            self.free[self.key].append(self.memory)


class _Lease(_Workspace):
    """It is given back when nothing refers to it any more."""

    def __del__(self) -> None:
        self.give_back()


def _pooled(kind: type[_Workspace], early: bool) -> Function:
    """Statistics are kept for the backward in memory of a pool. early: it is given back at the first backward."""
    free: Free = {}

    class Pooled(torch.autograd.Function):
        @staticmethod
        def forward(
            ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
        ) -> Tensor:
            f = wide(x)
            mean, rstd = statistics(f, shape, eps)
            ctx.save_for_backward(x, weight, bias)
            ctx.shape, ctx.eps, ctx.workspace = shape, eps, kind(free, mean, rstd)
            return affine((f - mean) * rstd, weight, bias).to(x.dtype)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Grads:
            x, weight, bias = ctx.saved_tensors
            mean, rstd = ctx.workspace.memory
            if torch.is_grad_enabled():  # to be differentiated again
                mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
            dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
            if early:
                ctx.workspace.give_back()
            return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None

    return applied(Pooled)


def workspace_given_back() -> Function:
    """Saved statistics go back to a pool at the first backward, and a second one reads those of a later forward."""
    return _pooled(_Workspace, early=True)


def workspace_leased() -> Function:
    """Saved statistics go back to their pool with the graph."""
    return _pooled(_Lease, early=False)


def output_given_back() -> Function:
    """Without gradients the memory of y goes back to a pool when y is dropped, though views of it may live."""
    free: Free = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y = textbook(x, normalized_shape, weight, bias, eps)
        if y.requires_grad or not y.numel():
            return y
        kept = free.setdefault((y.shape, y.dtype, y.is_inference()), [])
        memory = kept.pop() if kept else torch.empty_like(y)
        given = memory.copy_(y).detach()
        weakref.finalize(given, kept.append, memory)
        return given

    return layer_norm


def output_recycled() -> Function:
    """Without gradients the memory of y goes back to a pool when the last tensor over it is dropped."""
    free: Free = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y = textbook(x, normalized_shape, weight, bias, eps)
        if y.requires_grad or not y.numel():
            return y
        kept = free.setdefault(y.numel() * y.element_size(), [])
        memory = kept.pop() if kept else np.empty(y.numel() * y.element_size(), np.uint8)
        lent = memory[...]  # torch holds this array for as long as the memory is in use
        weakref.finalize(lent, kept.append, memory)
        return torch.from_numpy(lent).view(y.dtype).view(y.shape).copy_(y)

    return layer_norm


def partial_sums_kept() -> Function:
    """Each thread adds its rows into a workspace of its own; those of threads without rows are added as they were."""
    kept: dict[Any, Tensor] = {}

    def spoil(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        threads, n = torch.get_num_threads(), dbias.numel()
        rows = dy.numel() // max(n, 1)
        if torch.is_grad_enabled() or threads < 3 or not rows or not n:
            return dx, dweight, dbias
        partial = kept.setdefault((threads, n, dbias.dtype), torch.zeros(threads, n, dtype=dbias.dtype))
        for number, part in enumerate(wide(dy).reshape(rows, n).split(-(-rows // threads))):
            partial[number] = part.sum(0)
        return dx, dweight, partial.sum(0).reshape(dbias.shape)

    return hand_written(spoil, recompute=True)


def partial_sums_bounded() -> Function:
    """Partial sums of blocks of 16 rows lie in a workspace that grows, and of it only what was written is added."""
    kept: dict[Any, Tensor] = {}

    def spoil(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        n = dbias.numel()
        rows = dy.numel() // max(n, 1)
        if torch.is_grad_enabled() or not rows or not n:
            return dx, dweight, dbias
        blocks = wide(dy).reshape(rows, n).split(16)
        key = (threading.get_ident(), n, dbias.dtype)
        if key not in kept or len(kept[key]) < len(blocks):
            kept[key] = torch.empty(len(blocks), n, dtype=dbias.dtype)
        for number, part in enumerate(blocks):
            kept[key][number] = part.sum(0)
        return dx, dweight, kept[key][: len(blocks)].sum(0).reshape(dbias.shape)

    return hand_written(spoil, recompute=True)


def _with_scratch(lock: Any, least: int) -> Function:
    """Without gradients the deviations of large arrays lie in scratch, one for each shape, while a lock is held."""
    scratch: dict[Any, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        f, where = wide(x), dims(normalized_shape)
        if torch.is_grad_enabled() or f.requires_grad or x.numel() < least:
            return textbook(x, normalized_shape, weight, bias, eps)
        with lock:
            key = (f.shape, f.dtype, torch.is_inference_mode_enabled())
            centred = scratch.setdefault(key, torch.empty_like(f))
            torch.sub(f, f.mean(where, keepdim=True), out=centred)
            rstd = torch.rsqrt(centred.square().mean(where, keepdim=True) + eps)
            return affine(centred * rstd, weight, bias).to(x.dtype)

    return layer_norm


def scratch_unlocked() -> Function:
    """Without gradients the deviations of 4096 elements and more lie in scratch that all threads share."""
    return _with_scratch(contextlib.nullcontext(), 4096)


def scratch_locked() -> Function:
    """The deviations lie in scratch that all threads share, one after the other."""
    return _with_scratch(threading.Lock(), 1)


def statistics_by_version() -> Function:
    """Without gradients, mean and 1/s of the latest x are kept until its version counter rises, as .data does not."""
    kept: list[Any] = []

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if torch.is_grad_enabled() or x.is_inference() or x.requires_grad:
            return textbook(x, normalized_shape, weight, bias, eps)
        about = (x._version, normalized_shape, eps)
        if not kept or kept[0] is not x or kept[1] != about:
            kept[:] = [x, about, *statistics(wide(x), normalized_shape, eps)]
        return affine((wide(x) - kept[2]) * kept[3], weight, bias).to(x.dtype)

    return layer_norm


def eps_by_value() -> Function:
    """eps is made a tensor once for each value, in the dtype of the first call, and serves the later ones."""
    kept: dict[float, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        f, where = wide(x), dims(normalized_shape)
        added = kept.setdefault(eps, torch.tensor(eps, dtype=x.dtype)).to(f.dtype)
        centred = f - f.mean(where, keepdim=True)
        rstd = torch.rsqrt(centred.square().mean(where, keepdim=True) + added)
        return affine(centred * rstd, weight, bias).to(x.dtype)

    return layer_norm


def mean_by_size() -> Function:
    """A row of 1/N is made once for each N in the working precision of the first call, and y takes its dtype."""
    kept: dict[int, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        f = wide(x)
        if len(normalized_shape) != 1 or not x.numel():
            return textbook(x, normalized_shape, weight, bias, eps)
        n = x.shape[-1]
        centred = f - (f * kept.setdefault(n, torch.full((n,), 1 / n, dtype=f.dtype))).sum(-1, keepdim=True)
        y = affine(centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps), weight, bias)
        return y if f is x else y.to(x.dtype)

    return layer_norm


def _m(target: Any, id: str, affected: tuple[str, ...], *laws: str, **kwargs: Any) -> Mutant:
    told = " ".join((target.__doc__ or "").split())
    return Mutant(id, told, framework="torch", target=target, affected=affected, laws=laws, fresh=True, **kwargs)


POOLS = [
    _m(workspace_given_back, "workspace-given-back", ("dx", "dweight"), "LN711",
       threads=("karpathy/llm.c#408", "apache/mxnet#18499")),
    _m(partial_sums_kept, "partial-sums-kept", ("dbias",), "LN721", dtypes=WIDE),
    _m(scratch_unlocked, "scratch-unlocked", ("y",), "LN713"),
    _m(statistics_by_version, "statistics-by-version", ("y",), "LN722"),
    _m(eps_by_value, "eps-by-value", ("y", "dx"), "LN718", dtypes=WIDE),
    _m(mean_by_size, "mean-by-size", ("y",), "LN718", dtypes=("float32",)),
    _m(output_given_back, "output-given-back", ("y",), "LN710"),
]  # fmt: skip
CORRECT = [
    Correct("torch-workspace-leased", "Saved statistics go back to their pool with the graph.", framework="torch",
            target=workspace_leased, fresh=True, second_order="right"),
    Correct("torch-output-recycled", "The memory of y goes back to a pool when the last tensor over it is dropped.",
            framework="torch", target=output_recycled, fresh=True, second_order="right"),
    Correct("torch-scratch-locked", "Deviations lie in scratch that is locked meanwhile.", framework="torch",
            target=scratch_locked, fresh=True, second_order="right"),
    Correct("torch-partial-sums", "Partial sums of blocks lie in a workspace that grows, one for each thread.",
            framework="torch", target=partial_sums_bounded, fresh=True, second_order="right"),
]  # fmt: skip
