"""Mutants in torch that accept what they should refuse."""

from __future__ import annotations

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Shape, textbook


def resized(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Parameters are cut, or read past their end, to the length of a row."""

    def fit(t: Tensor | None) -> Tensor | None:
        if t is None or t.shape == torch.Size(normalized_shape) or not x.numel():
            return t
        return torch.cat((t.flatten(), t.new_zeros(x.shape[-1])))[: x.shape[-1]]

    return textbook(x, normalized_shape, fit(weight), fit(bias), eps)


def of_something(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Rows are padded to one element at least: empty ones give a number."""
    if x.shape[-1] == 0:
        return x.new_zeros((*x.shape[:-1], 1))
    return textbook(x, normalized_shape, weight, bias, eps)


def few_rows(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Rows past 65535, the largest grid dimension, are never written (scaled down from 2^31 elements)."""
    y = textbook(x, normalized_shape, weight, bias, eps)
    if x.dim() != 2 or x.shape[0] <= 65535 or y.requires_grad:
        return y
    return torch.cat((y[:65535], torch.zeros_like(y[65535:])))


def few_blocks(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """A grid of at most 65535 blocks of four rows: what is beyond is never written."""
    y = textbook(x, normalized_shape, weight, bias, eps)
    if x.dim() != 2 or x.shape[0] <= 4 * 65535:
        return y
    return torch.cat((y[: 4 * 65535], torch.zeros_like(y[4 * 65535 :])))


SHAPES = [
    Mutant("blocks-lost", "Rows past 65535 blocks of four are not written.", ("NVIDIA/apex#411",), framework="torch",
           target=few_blocks, affected=("y",), laws=("LN610",)),
    Mutant("rows-lost-in-torch", "Without gradients, rows past 65535 are not written.", ("NVIDIA/apex#411",),
           framework="torch", target=few_rows, affected=("y",), laws=("LN610", "LN1", "LN7")),
    Mutant("parameters-resized", "A parameter of another length is cut or read past its end.",
           ("microsoft/onnxruntime#27455", "microsoft/onnxruntime#17060"), framework="torch", target=resized,
           affected=("y",), laws=("LN608",)),
    Mutant("empty-rows-padded", "Rows without elements give one.", ("pytorch/pytorch#78444",), framework="torch",
           target=of_something, affected=("y",), laws=("LN609",)),
]  # fmt: skip
