"""Mutants in torch that accept what they should refuse."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Shape, affine, gradients, hand_written, textbook, wide


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


def few_positions(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """With a batch of sequences, positions past 65535, the largest second dimension of a grid, are never written."""
    y = textbook(x, normalized_shape, weight, bias, eps)
    if x.dim() < 3 or len(normalized_shape) != 1 or x.shape[-2] <= 65535:
        return y
    return torch.cat((y[..., :65535, :], torch.zeros_like(y[..., 65535:, :])), -2)


def few_sums(ctx: Any, dy: Tensor, dx: Tensor, dweight: Tensor, dbias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A grid of at most 1024 blocks of 1024 rows adds up the gradients of the parameters."""
    if len(ctx.shape) != 1 or dy.dim() != 2 or dy.shape[0] <= 1 << 20:
        return dx, dweight, dbias
    x, _, _, mean, rstd = ctx.saved_tensors
    _, *sums = gradients(dy[: 1 << 20], x[: 1 << 20], ctx.shape, None, mean[: 1 << 20], rstd[: 1 << 20])
    return dx, sums[0], sums[1]


def chunks_of_one_weight(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Rows longer than 2^18 are read in chunks; the means of all chunks count alike, that of a short last one too."""
    if len(normalized_shape) != 1 or x.shape[-1] <= 1 << 18:
        return textbook(x, normalized_shape, weight, bias, eps)
    f = wide(x)
    mean = torch.stack([part.mean(-1) for part in f.split(1 << 18, -1)]).mean(0).unsqueeze(-1)
    rstd = (
        torch.stack([p.mean(-1) for p in (f - mean).square().split(1 << 18, -1)]).mean(0).unsqueeze(-1) + eps
    ).rsqrt()
    return affine((f - mean) * rstd, weight, bias).to(x.dtype)


SHAPES = [
    Mutant("sums-of-2-to-20-rows", "dweight and dbias are the sums of the first 2^20 rows.", ("NVIDIA/apex#411",),
           framework="torch", target=hand_written(few_sums), affected=("dweight", "dbias"), laws=("LN610",)),
    Mutant("positions-lost", "In a batch of sequences, positions past 65535 are not written.", ("NVIDIA/apex#411",),
           framework="torch", target=few_positions, affected=("y",), laws=("LN1",)),
    Mutant("chunks-of-one-weight", "Means of chunks of a long row count alike, that of a short last chunk too.", (),
           framework="torch", target=chunks_of_one_weight, affected=("y",), laws=("LN1", "LN2")),
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
