"""Mutants in torch that read memory wrongly where only dy, a parameter or a call without gradients shows it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import GRADIENTS, Mutant
from lnverify.mutants.torch_parts import Shape, hand_written, textbook

THREADS = ("microsoft/DirectML#588", "NVIDIA/TransformerEngine#1017", "ELS-RD/kernl#193")


def third_dimension_assumed(dy: Tensor) -> Tensor:
    """The step of the third dimension from the end is computed from those after it."""
    if dy.dim() != 4 or not dy.numel():
        return dy
    strides = list(dy.stride())
    strides[-3] = strides[-2] * dy.shape[-2]
    return dy.detach().as_strided(dy.shape, strides, dy.storage_offset())


def dx_as_x(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """dx gets the strides of x: where x is expanded, rows are written over one another."""
    x = ctx.saved_tensors[0]
    if 0 not in x.stride() or not x.numel():
        return dx, dweight, dbias
    kept = dx.new_zeros(max(x.untyped_storage().nbytes() // x.element_size(), 1)).as_strided(x.shape, x.stride(), 0)
    for index in range(len(dx)):
        kept[index] = dx[index]
    return kept.clone(memory_format=torch.contiguous_format), dweight, dbias


def start_lost(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Without gradients, a transposed x is read from the start of its memory."""
    if not torch.is_grad_enabled() and x.dim() >= 2 and x.stride(-1) != 1 and x.storage_offset():
        x = x.as_strided(x.shape, x.stride(), 0)
    return textbook(x, normalized_shape, weight, bias, eps)


def weight_as_one_block(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """A weight of several dimensions is read as one block of memory, whatever its strides."""
    if weight is not None and weight.dim() > 1 and weight.numel():
        block = weight.new_zeros(0).set_(weight.untyped_storage())[weight.storage_offset() :][: weight.numel()]
        read = torch.cat((block, block.new_zeros(weight.numel() - block.numel()))).view(weight.shape)
        weight = weight + (read - weight).detach()
    return textbook(x, normalized_shape, weight, bias, eps)


def row_offset_of_32_bits(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """The place of a row, its number by its stride, is kept in 31 bits."""
    if x.dim() == 2 and x.numel() and (len(x) - 1) * x.stride(0) >= 1 << 31:
        places = [row * x.stride(0) % (1 << 31) + x.storage_offset() for row in range(len(x))]
        read = torch.stack([x.detach().as_strided(x.shape[1:], x.stride()[1:], place) for place in places])
        x = x + (read - x).detach()
    return textbook(x, normalized_shape, weight, bias, eps)


def _m(id: str, bug: str, target: Any, affected: tuple[str, ...]) -> Mutant:
    return Mutant(id, bug, THREADS, framework="torch", target=target, affected=affected, laws=("LN607",),
                  dtypes=("float64", "float32"))  # fmt: skip


TORCH_STRIDES = [
    _m("dy-third-dimension-assumed", "The step of a middle dimension of dy is computed, not read.",
       hand_written(read_dy=third_dimension_assumed), GRADIENTS),
    _m("dx-lies-as-x-does", "dx gets the strides of x: rows of an expanded x are written over one another.",
       hand_written(dx_as_x), ("dx",)),
    _m("start-lost-without-gradients", "Without gradients, a transposed x is read from the start of its memory.",
       start_lost, ("y",)),
    _m("weight-as-one-block", "A weight of several dimensions is read as one block of memory.", weight_as_one_block,
       ("y",)),
    _m("row-offset-of-32-bits", "The place of a row in memory is kept in 31 bits.", row_offset_of_32_bits, ("y",)),
]  # fmt: skip
