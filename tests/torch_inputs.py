"""Inputs that the scenarios of the mutants in torch share."""

from __future__ import annotations

from typing import Any

import torch

SHAPE = (6,)


def normal(*shape: int, seed: int = 0, grad: bool = True, dtype: Any = torch.float64) -> Any:
    """Normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def inputs(**kwargs: Any) -> tuple[Any, Any, Any]:
    """x, weight and bias, leaves."""
    return normal(4, 6, **kwargs), normal(6, seed=1, **kwargs), normal(6, seed=2, **kwargs)
