"""Mutants in torch that are wrong by where numbers lie, and by what lives longer than a call."""

from __future__ import annotations

import math
import time
from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import (
    Function,
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

STRIDES = ("microsoft/DirectML#588", "NVIDIA/TransformerEngine#1017", "ELS-RD/kernl#193")
STATE = ("karpathy/llm.c#408", "apache/mxnet#18499")


def _storage(x: Tensor) -> int:
    """Elements from the first one of x to the end of its storage."""
    return x.untyped_storage().nbytes() // x.element_size() - x.storage_offset()


def _read(x: Tensor, row: int, column: int) -> Tensor:
    """The numbers at these two strides, where the storage holds them."""
    n = x.shape[-1]
    rows = x.numel() // max(n, 1)
    if x.is_contiguous() or (rows - 1) * row + (n - 1) * column >= _storage(x):
        return x
    return x.as_strided((rows, n), (row, column)).reshape(x.shape)


def stride_guessed(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """One row stride for the whole batch: that of the last but one dimension."""
    if x.dim() >= 3 and len(normalized_shape) == 1:
        x = _read(x, x.stride(-2), x.stride(-1))
    return textbook(x, normalized_shape, weight, bias, eps)


def stride_assumed(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Rows lie N apart; the step within a row is read."""
    if x.dim() == 2 and len(normalized_shape) == 1:
        x = _read(x, x.shape[-1] * x.stride(-1), x.stride(-1))
    return textbook(x, normalized_shape, weight, bias, eps)


def vector_start(t: Tensor) -> Tensor:
    """A slice that does not start at a multiple of four elements is read from the one before it."""
    odd = t.storage_offset() % 4
    if not odd or not t.is_contiguous() or not t.numel():
        return t
    return t.detach().as_strided(t.shape, t.stride(), t.storage_offset() - odd)


def bias_for_one_element(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Without gradients, rows of one element are the bias: its memory is returned."""
    one = x.numel() and set(normalized_shape) == {1} and bias is not None and bias.dtype == x.dtype
    if one and bias is not None and not torch.is_grad_enabled():
        return bias.expand(x.shape)
    return textbook(x, normalized_shape, weight, bias, eps)


def in_place_without_grad(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The path without gradients saves a buffer: it centres x where it lies."""
    if torch.is_grad_enabled() or wide(x) is not x:
        return textbook(x, normalized_shape, weight, bias, eps)
    x -= x.mean(dims(normalized_shape), keepdim=True)
    return affine(x * torch.rsqrt(x.square().mean(dims(normalized_shape), keepdim=True) + eps), weight, bias)


def weight_by_identity() -> Function:
    """The weight in working precision is kept by the identity of its tensor, whose numbers change."""
    kept: dict[int, tuple[Tensor, Tensor]] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if weight is not None and not torch.is_grad_enabled():
            _, weight = kept.setdefault(id(weight), (weight, wide(weight).clone()))
        return textbook(x, normalized_shape, weight, bias, eps)

    return layer_norm


def weight_by_address() -> Function:
    """The weight in working precision is kept by address and version, which a later tensor may have again."""
    kept: dict[Any, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if weight is not None and not torch.is_grad_enabled():
            key = weight.data_ptr(), weight._version, weight.dtype, weight.shape
            weight = kept.setdefault(key, wide(weight).clone())
        return textbook(x, normalized_shape, weight, bias, eps)

    return layer_norm


def reciprocal_by_size() -> Function:
    """1/N is made once for each N, in the dtype of the first call, and serves the later ones."""
    kept: dict[int, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        n, where = math.prod(normalized_shape), dims(normalized_shape)
        reciprocal = kept.setdefault(n, torch.full((), 1 / max(n, 1), dtype=x.dtype)).to(wide(x).dtype)
        centred = wide(x) - wide(x).sum(where, keepdim=True) * reciprocal
        variance = centred.square().sum(where, keepdim=True) * reciprocal
        return affine(centred * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)

    return layer_norm


def one_output_buffer() -> Function:
    """Without gradients, y is one buffer for each shape: the next call writes over the last result."""
    buffers: dict[Any, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y = textbook(x, normalized_shape, weight, bias, eps)
        if torch.is_grad_enabled():
            return y
        return buffers.setdefault((y.shape, y.dtype), torch.empty_like(y)).copy_(y)

    return layer_norm


class _Memory(torch.autograd.Function):
    """A written backward; `fault` says what lives too long."""

    shared: tuple[Tensor, Tensor]

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float, fault: str
    ) -> Tensor:
        f = wide(x)
        _Memory.shared = mean, rstd = statistics(f, shape, eps)
        ctx.save_for_backward(x, weight, bias, mean, rstd)
        ctx.shape, ctx.fault, ctx.scratch = shape, fault, None
        return affine((f - mean) * rstd, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias, mean, rstd = ctx.saved_tensors
        if ctx.fault == "shared":
            mean, rstd = _Memory.shared
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, mean, rstd)
        if ctx.fault == "accumulates":
            dweight = dweight if ctx.scratch is None else ctx.scratch + dweight
            ctx.scratch = dweight
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None, None


class _Alias(torch.autograd.Function):
    """What the backward needs is kept as attributes, which autograd does not watch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        ctx.kept, ctx.shape = (x.detach(), weight, bias), shape
        ctx.mean, ctx.rstd = statistics(wide(x), shape, eps)
        return affine((wide(x) - ctx.mean) * ctx.rstd, weight, bias).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.kept
        dx, dweight, dbias = gradients(dy, x, ctx.shape, weight, ctx.mean, ctx.rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None


class _FromOutput(torch.autograd.Function):
    """xhat is rebuilt from y, which is kept as an attribute: a y that is changed in place goes unnoticed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
        y = textbook(x, shape, weight, bias, eps)
        ctx.save_for_backward(x, weight, bias)
        ctx.y, ctx.shape, ctx.eps = y.detach(), shape, eps
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Any, ...]:
        x, weight, bias = ctx.saved_tensors
        mean, rstd = statistics(wide(x), ctx.shape, ctx.eps)
        xhat = wide(ctx.y) if bias is None else wide(ctx.y) - wide(bias)
        if weight is not None:
            xhat = torch.where(weight == 0, (wide(x) - mean) * rstd, xhat / wide(weight))
        dx, dweight, dbias = gradients(dy, xhat / rstd + mean, ctx.shape, weight, mean, rstd)
        return cast(dx, x), None, cast(dweight, weight), cast(dbias, bias), None


def shared_scratch() -> Function:
    """The statistics go through scratch that all calls share; the kernel between runs without the lock."""
    scratch: dict[Any, Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        f = wide(x)
        key = (x.shape, x.dtype)
        scratch[key] = f.mean(dims(normalized_shape), keepdim=True)
        time.sleep(1e-3)  # a kernel runs, and the interpreter lock is free
        centred = f - scratch[key]
        variance = centred.square().mean(dims(normalized_shape), keepdim=True)
        return affine(centred * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)

    return layer_norm


def flushing(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Subnormal numbers are flushed for speed, and ever after."""
    torch.set_flush_denormal(True)
    return textbook(x, normalized_shape, weight, bias, eps)


def by_products(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """The sums are products with ones, which autocast computes in bfloat16."""
    if len(normalized_shape) != 1 or not x.numel():
        return textbook(x, normalized_shape, weight, bias, eps)
    f = wide(x)
    ones = torch.ones(f.shape[-1], 1, dtype=f.dtype, device=f.device)
    centred = f - (f @ ones) / f.shape[-1]
    variance = ((centred * centred) @ ones) / f.shape[-1]
    return affine(centred * torch.rsqrt(variance + eps), weight, bias).to(x.dtype)


def branch_for_determinism(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Where deterministic algorithms are asked for, eps is the usual one."""
    if torch.are_deterministic_algorithms_enabled():
        eps = 1e-5
    return textbook(x, normalized_shape, weight, bias, eps)


def one_gradient_buffer() -> Function:
    """dweight is one buffer for each shape: the next backward writes over the last result."""
    buffers: dict[Any, Tensor] = {}

    def spoil(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        if torch.is_grad_enabled():
            return dx, dweight, dbias
        buffer = buffers.setdefault((dweight.shape, dweight.dtype), torch.empty_like(dweight))
        return dx, buffer.copy_(dweight), dbias

    return hand_written(spoil)


def wrong_at_times() -> Function:
    """One call in 31 reads a row before it is written."""
    calls = [0]

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        y = textbook(x, normalized_shape, weight, bias, eps)
        calls[0] += 1
        if calls[0] % 31 or y.dim() < 2 or y.shape[0] == 0:
            return y
        return torch.cat((torch.zeros_like(y[:1]), y[1:]))

    return layer_norm


def _m(id: str, bug: str, target: Any, affected: tuple[str, ...], laws: tuple[str, ...],
       threads: tuple[str, ...] = (), **kwargs: Any) -> Mutant:  # fmt: skip
    return Mutant(id, bug, threads, framework="torch", target=target, affected=affected, laws=laws, **kwargs)


MEMORY = [
    _m("row-stride-guessed", "One row stride serves the whole batch: right for matrices.", stride_guessed, ("y",),
       ("LN607",), STRIDES),
    _m("row-stride-assumed", "Rows are taken to lie N apart.", stride_assumed, ("y",), ("LN607",), STRIDES),
    _m("start-rounded-down", "x is read from a multiple of four elements: slices that start elsewhere are shifted.",
       hand_written(read_x=vector_start), ("y",), ("LN607", "LN6"), STRIDES),
    _m("dy-start-rounded-down", "dy is read from a multiple of four elements.", hand_written(read_dy=vector_start),
       ("dx",), ("LN607", "LN6"), STRIDES),
    _m("bias-for-one-element", "Without gradients and with N = 1, y is a view of the bias.", bias_for_one_element,
       ("y",), ("LN7",)),
    _m("no-grad-in-place", "Without gradients, x is centred where it lies.", in_place_without_grad, ("y",), ("LN7",),
       ("GeeeekExplorer/nano-vllm#170",), dtypes=("float64", "float32")),
    _m("weight-by-identity", "Without gradients, the weight is kept by the identity of its tensor.",
       weight_by_identity, ("y",), ("LN7",), ("Hsword/Hetu#17",), fresh=True),
    _m("weight-by-address", "Without gradients, the weight is kept by the address and version of its tensor.",
       weight_by_address, ("y",), ("LN7", "LN1"), ("Hsword/Hetu#17",), fresh=True),
    _m("one-output-buffer", "Without gradients, every y of a shape is the same tensor.", one_output_buffer, ("y",),
       ("LN7",), fresh=True),
    _m("statistics-of-last-forward", "The backward uses the statistics of the latest forward.",
       applied(_Memory, "shared"), ("dx", "dweight"), ("LN7",), STATE),
    _m("second-backward-accumulates", "A second backward adds to the dweight of the first.",
       applied(_Memory, "accumulates"), ("dweight",), ("LN711",), STATE),
    _m("kept-as-attributes", "x is kept for the backward where autograd cannot see that it is changed.",
       applied(_Alias), ("dx", "dweight"), ("LN712",)),
    _m("y-kept-as-attribute", "y is kept for the backward where autograd cannot see that it is changed.",
       applied(_FromOutput), ("dx", "dweight"), ("LN712",), dtypes=("float64", "float32")),
    _m("shared-scratch", "Scratch is shared by calls in two threads.", shared_scratch, ("y",), ("LN713",), fresh=True),
    _m("subnormals-flushed-for-all", "Flushing of subnormal numbers is switched on and stays on.", flushing, ("y",),
       ("LN703",)),
    _m("sums-by-products", "Sums are products with ones: autocast computes them in bfloat16.", by_products, ("y",),
       ("LN717",), dtypes=("float32",)),
    _m("eps-lost-where-deterministic", "The branch for deterministic algorithms does not get eps.",
       branch_for_determinism, ("y",), ("LN719",)),
    _m("one-gradient-buffer", "Every dweight of a shape is the same tensor.", one_gradient_buffer, ("dweight",),
       ("LN710",), dtypes=("float64", "float32"), fresh=True),
    _m("reciprocal-by-size", "1/N is made once for each N, in the dtype of the first call.", reciprocal_by_size,
       ("y",), ("LN718",), dtypes=("float64", "float32"), fresh=True),
    _m("wrong-at-times", "One call in 31 loses the first row.", wrong_at_times, ("y",), ("LN1", "LN7", "LN3", "LN6"),
       ("vllm-project/vllm#44692",), fresh=True),
]  # fmt: skip
