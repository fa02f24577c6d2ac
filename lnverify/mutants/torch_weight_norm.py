"""Weight norms in torch, wrong ones with one named bug each, and right ones: v of (rows, *D), g of (rows, 1, ...)."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants.torch_norms import GRADIENT, right, wrong


def _dims(v: Any) -> tuple[int, ...]:
    return tuple(range(1, v.dim()))


def _norm(v: Any) -> Any:
    return v.square().sum(_dims(v), keepdim=True).sqrt()


# Wrong


def weight_columns(v: Any, g: Any) -> Any:
    """The norm is that of each column."""
    return g * v / v.square().sum(0, keepdim=True).sqrt()


def weight_whole(v: Any, g: Any) -> Any:
    """All rows are divided by one norm."""
    return g * v / v.square().sum().sqrt()


def weight_detached(v: Any, g: Any) -> Any:
    """The norm is taken for a constant."""
    return g * v / _norm(v).detach()


def weight_eps(v: Any, g: Any) -> Any:
    """1e-5 is added to the norm."""
    return g * v / (_norm(v) + 1e-5)


# Right


def weight_by_hand(v: Any, g: Any) -> Any:
    """The direction first, then the length."""
    return v / _norm(v) * g


def weight_clamped(v: Any, g: Any) -> Any:
    """By `normalize`, which clamps the norm at 1e-12."""
    return g * torch.nn.functional.normalize(v.flatten(1), dim=1).reshape(v.shape)


def weight_parametrized(v: Any, g: Any) -> Any:
    """The weight of a layer to which `parametrizations.weight_norm` was applied."""
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.ones_like(v))
    torch.nn.utils.parametrizations.weight_norm(layer)
    names = ("parametrizations.weight.original0", "parametrizations.weight.original1")

    class Weight(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self) -> Any:
            return self.layer.weight

    given = dict(zip((f"layer.{name}" for name in names), (g, v), strict=True))
    return torch.func.functional_call(Weight(), given, ())


MUTANTS = [
    wrong("weight_norm", weight_columns),
    wrong("weight_norm", weight_whole),
    wrong("weight_norm", weight_eps),
    wrong("weight_norm", weight_detached, GRADIENT),
]
CORRECT = [
    right("weight_norm", weight_by_hand), right("weight_norm", weight_clamped),
    right("weight_norm", weight_parametrized, second_order="native"),
]  # fmt: skip
