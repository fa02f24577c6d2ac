"""Norms that work in blocks and get what lies beyond the last whole block wrong; at small sizes all are right."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants.torch_norms import GRADIENT, affine, grouped, normalized, wrong


def _constant_from(parameter: Any, first: int) -> Any:
    """The parameter, whose numbers from `first` on get no gradient."""
    return None if parameter is None else torch.cat([parameter[:first], parameter[first:].detach()])


def group_32_groups(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """There is room for the statistics of 32 groups; the next groups take those of the first ones."""
    rows = grouped(x, num_groups)
    places = torch.arange(num_groups) % 32
    mean, variance = rows.mean(2, keepdim=True), rows.var(2, correction=0, keepdim=True)
    y = (rows - mean[:, places]) * torch.rsqrt(variance[:, places] + eps)
    return affine(y.reshape(x.shape), weight, bias)


def group_64_channels(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """dweight and dbias are summed for the first 64 channels only."""
    y = normalized(grouped(x, num_groups), 2, eps).reshape(x.shape)
    return affine(y, _constant_from(weight, 64), _constant_from(bias, 64))


def instance_1024_positions(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The statistics are those of the first 1024 positions."""
    flat = x.flatten(2)
    part = flat[:, :, :1024]
    r = torch.rsqrt(part.var(2, correction=0, keepdim=True) + eps)
    return affine(((flat - part.mean(2, keepdim=True)) * r).reshape(x.shape), weight, bias)


def batch_64_rows(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """dweight and dbias are summed over the first 64 rows only."""
    y = normalized(x, (0, *range(2, x.dim())), eps)
    return torch.cat([affine(y[:64], weight, bias), affine(y[64:], _constant_from(weight, 0), _constant_from(bias, 0))])


def channels_whole_blocks(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Beyond 32 channels the statistics are those of the whole blocks of 32."""
    part = x[:, : x.shape[1] // 32 * 32] if x.shape[1] > 32 else x
    r = torch.rsqrt(part.var(1, correction=0, keepdim=True) + eps)
    return affine((x - part.mean(1, keepdim=True)) * r, weight, bias)


def rms_1024_rows(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """dweight is summed over the first 1024 rows only."""
    dims = tuple(range(-len(normalized_shape), 0))
    y = x * torch.rsqrt(x.square().mean(dims, keepdim=True) + eps)
    if weight is None:
        return y
    rows = y.reshape(-1, *normalized_shape)
    return torch.cat([rows[:1024] * weight, rows[1024:] * weight.detach()]).reshape(x.shape)


MUTANTS = [
    wrong("group_norm", group_32_groups),
    wrong("group_norm", group_64_channels, GRADIENT),
    wrong("instance_norm", instance_1024_positions),
    wrong("batch_norm", batch_64_rows, GRADIENT),
    wrong("layer_norm_channels", channels_whole_blocks),
    wrong("rms_norm", rms_1024_rows, GRADIENT),
]
CORRECT: list[Any] = []
