"""Mutants in torch that only a CUDA device shows; they are in no list where there is none."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Function, Shape, textbook


def default_stream(
    x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Tensor:
    """Kernels are launched into the default stream, whatever the current one is."""
    if x.device.type != "cuda":
        return textbook(x, normalized_shape, weight, bias, eps)
    with torch.cuda.stream(torch.cuda.default_stream(x.device)):
        return textbook(x, normalized_shape, weight, bias, eps)


def first_device() -> Function:
    """The weight in working precision stays on the device where it was seen first."""
    kept: dict[tuple[int, ...], Tensor] = {}

    def layer_norm(
        x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float
    ) -> Tensor:
        if weight is not None:
            place = kept.setdefault(tuple(weight.shape), torch.zeros_like(weight))
            weight = weight + place
        return textbook(x, normalized_shape, weight, bias, eps)

    return layer_norm


@dataclass(frozen=True, eq=False)
class CudaMutant(Mutant):
    """One that runs on a CUDA device."""

    device: str = "cuda"


MUTANTS = [
    CudaMutant("default-stream", "Kernels are launched into the default stream.", framework="torch",
               target=default_stream, laws=("LN715",), affected=("y",)),
    CudaMutant("kept-on-first-device", "State stays on the device where it was made.", framework="torch",
               target=first_device, fresh=True, laws=("LN716",), affected=("y",)),
]  # fmt: skip
