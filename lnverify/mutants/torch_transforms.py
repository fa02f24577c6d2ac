"""Mutants in torch that only a transform shows: forward over forward mode, third derivatives, vmap."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Composed, Shape, applied, textbook


def second_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value and first derivative are right; the second one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 2


def third_order(x: Tensor, normalized_shape: Shape, weight: Tensor | None, bias: Tensor | None, eps: float) -> Tensor:
    """Value, first and second derivative are right; the third one is off by a constant."""
    return textbook(x, normalized_shape, weight, bias, eps) + (x - x.detach()) ** 3


def _sample(t: Any, dim: int | None, number: int) -> Any:
    """One sample of a batched tensor, or the tensor where it has no batch."""
    return t if t is None or dim is None else t.select(dim, number)


class _Batched(Composed):
    """A batching rule of its own; the extra argument says what it forgets.

    'parameters': that they have a batch. 'alone': that they may have one where x has none. 'dimension': that the batch
    of x need not come first, whose memory is read as if it did.
    """

    @staticmethod
    def vmap(
        _info: Any, in_dims: tuple[Any, ...], x: Tensor, shape: Shape, weight: Any, bias: Any, eps: float,
        lost: str,
    ) -> tuple[Tensor, int]:  # fmt: skip
        dims = [in_dims[0], in_dims[2], in_dims[3]]
        if lost == "dimension" and dims[0]:
            x, dims[0] = x.reshape(-1, *(size for dim, size in enumerate(x.shape) if dim != dims[0])), 0
        first = lost == "parameters" or (lost == "alone" and dims[0] is None)
        ys = [
            _Batched.apply(_sample(x, dims[0], i), shape, *(
                _sample(t, dim, 0 if first else i) for t, dim in ((weight, dims[1]), (bias, dims[2]))
            ), eps, lost)
            for i in range(_info.batch_size)
        ]  # fmt: skip
        return torch.stack(ys), 0


def _m(id: str, bug: str, target: Any, laws: tuple[str, ...], threads: tuple[str, ...]) -> Mutant:
    return Mutant(id, bug, threads, framework="torch", target=target, affected=("y",), laws=laws,
                  dtypes=("float64", "float32"))  # fmt: skip


TRANSFORMS = [
    _m("second-derivative-off", "The second derivative is wrong, value and first derivative are right.", second_order,
       ("LN213", "LN214", "LN209"), ("pytorch/pytorch#196700",)),
    _m("third-derivative-off", "The third derivative is wrong, all lower ones are right.", third_order, ("LN215",),
       ("pytorch/pytorch#175754", "pytorch/pytorch#176218")),
    _m("vmap-first-parameters", "The batching rule takes the parameters of the first sample for all.",
       applied(_Batched, "parameters"), ("LN216",), ("pytorch/functorch#534",)),
    _m("vmap-parameters-alone", "Where x has no batch, the parameters of the first sample serve all.",
       applied(_Batched, "alone"), ("LN216",), ("pytorch/functorch#534",)),
    _m("vmap-other-dimension", "The batch is taken to come first.", applied(_Batched, "dimension"), ("LN216",),
       ("pytorch/functorch#534",)),
]  # fmt: skip
