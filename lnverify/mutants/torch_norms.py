"""Norms other than layer norm in torch, wrong ones with one named bug each, and right ones in unusual styles."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants import Correct, Mutant

EXACT = ("float64", "float32")


def affine(y: Any, weight: Any, bias: Any, channels: int = 1) -> Any:
    """y * weight + bias, the parameters along one dimension."""
    shape = [1] * y.dim()
    shape[channels] = -1
    y = y if weight is None else y * weight.view(shape)
    return y if bias is None else y + bias.view(shape)


def normalized(x: Any, dims: Any, eps: float, correction: int = 0) -> Any:
    """x less its mean, over its deviation, along some dimensions."""
    mean = x.mean(dims, keepdim=True)
    return (x - mean) * torch.rsqrt(x.var(dims, correction=correction, keepdim=True) + eps)


def grouped(x: Any, groups: int) -> Any:
    """x as (rows, groups, all numbers of a group)."""
    return x.reshape(x.shape[0], groups, -1)


# Wrong


def group_one_group(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """All channels share one mean."""
    return affine(normalized(grouped(x, 1), 2, eps).reshape(x.shape), weight, bias)


def group_interleaved(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Group g takes every num_groups-th channel, not those that lie together."""
    parts = x.reshape(x.shape[0], x.shape[1] // num_groups, num_groups, -1).transpose(1, 2)
    y = normalized(parts, (2, 3), eps).transpose(1, 2).reshape(x.shape)
    return affine(y, weight, bias)


def group_one_pass(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The variance is E[x^2] - E[x]^2."""
    rows = grouped(x, num_groups)
    mean = rows.mean(2, keepdim=True)
    variance = (rows * rows).mean(2, keepdim=True) - mean * mean
    return affine(((rows - mean) * torch.rsqrt(variance.clamp(min=0) + eps)).reshape(x.shape), weight, bias)


def group_unbiased(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The variance is divided by N - 1."""
    return affine(normalized(grouped(x, num_groups), 2, eps, 1).reshape(x.shape), weight, bias)


def group_detached_mean(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """No gradient goes through the mean."""
    rows = grouped(x, num_groups)
    mean = rows.mean(2, keepdim=True)
    d = rows - mean.detach()
    y = d * torch.rsqrt(((rows - mean) ** 2).mean(2, keepdim=True) + eps)
    return affine(y.reshape(x.shape), weight, bias)


def instance_over_channels(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The mean is taken over the channels too."""
    return affine(normalized(x, tuple(range(1, x.dim())), eps), weight, bias)


def batch_unbiased(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """What is kept for evaluation, divided by N - 1, is used in training."""
    return affine(normalized(x, (0, *range(2, x.dim())), eps, 1), weight, bias)


def batch_detached(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The statistics of the batch are taken for constants."""
    dims = (0, *range(2, x.dim()))
    mean, variance = x.detach().mean(dims, keepdim=True), x.detach().var(dims, correction=0, keepdim=True)
    return affine((x - mean) * torch.rsqrt(variance + eps), weight, bias)


def batch_first_row(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The statistics are those of all rows but the last, where there are several."""
    dims = (0, *range(2, x.dim()))
    part = x[:-1] if x.shape[0] > 2 else x
    variance = part.var(dims, correction=0, keepdim=True)
    return affine((x - part.mean(dims, keepdim=True)) * torch.rsqrt(variance + eps), weight, bias)


def channels_over_positions(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The mean is taken over the positions too."""
    return affine(normalized(x, tuple(range(1, x.dim())), eps), weight, bias)


def channels_last_weight(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The weight is reversed."""
    return affine(normalized(x, 1, eps), None if weight is None else weight.flip(0), bias)


def outside_is_inside(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """eps is added under the root."""
    return torch.nn.functional.layer_norm(x, normalized_shape, weight, bias, eps)


def outside_unbiased(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The deviation is that of `torch.std`, divided by N - 1."""
    dims = tuple(range(-len(normalized_shape), 0))
    y = (x - x.mean(dims, keepdim=True)) / (x.std(dims, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def wrong(operation: str, function: Any, laws: tuple[str, ...] = ("LN801",), **more: Any) -> Mutant:
    """A mutant that is named and described by its function."""
    sentence = " ".join((function.__doc__ or "").split())
    name = function.__name__.replace("_", "-")
    return Mutant(
        id=f"norms-{name}", bug=sentence, operation=operation, framework="torch", target=function, laws=laws, **more
    )


GRADIENT = ("LN802",)
MUTANTS = [
    wrong("group_norm", group_one_group),
    wrong("group_norm", group_interleaved),
    wrong("group_norm", group_one_pass, dtypes=EXACT),
    wrong("group_norm", group_unbiased),
    wrong("group_norm", group_detached_mean, GRADIENT),
    wrong("instance_norm", instance_over_channels),
    wrong("batch_norm", batch_unbiased),
    wrong("batch_norm", batch_detached, GRADIENT),
    wrong("batch_norm", batch_first_row),
    wrong("layer_norm_channels", channels_over_positions),
    wrong("layer_norm_channels", channels_last_weight),
    wrong("layer_norm_eps_outside", outside_is_inside),
    wrong("layer_norm_eps_outside", outside_unbiased, threads=("harvardnlp/annotated-transformer#119",)),
]


# Right


def rms_wide(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """16 bits are computed in float32 and rounded before the weight, as language models do."""
    dims = tuple(range(-len(normalized_shape), 0))
    wide = x.float() if x.dtype in (torch.bfloat16, torch.float16) else x
    y = (wide * torch.rsqrt(wide.pow(2).mean(dims, keepdim=True) + eps)).to(x.dtype)
    return y if weight is None else weight * y


def rms_op_by_op(x: Any, normalized_shape: Any, weight: Any = None, eps: float = 1e-5) -> Any:
    """Every operation in the dtype of x; a quotient by the root, the weight first."""
    dims = tuple(range(-len(normalized_shape), 0))
    g = x if weight is None else weight * x
    return g / torch.sqrt((x * x).mean(dims, keepdim=True) + eps)


def group_folded(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """One product and one sum for each number: x (weight r) + (bias - mean weight r)."""
    rows = grouped(x, num_groups)
    variance, mean = torch.var_mean(rows, 2, correction=0)
    r = torch.rsqrt(variance + eps)
    per = x.shape[1] // num_groups
    scale, shift = r.repeat_interleave(per, 1), (-mean * r).repeat_interleave(per, 1)
    if weight is not None:
        scale, shift = scale * weight, shift * weight
    shift = shift if bias is None else shift + bias
    trailing = (...,) + (None,) * (x.dim() - 2)
    return x * scale[trailing] + shift[trailing]


def instance_by_layer_norm(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Layer norm of the positions of each channel."""
    rows = x.flatten(2)
    y = torch.nn.functional.layer_norm(rows, (rows.shape[2],), None, None, eps)
    return affine(y.reshape(x.shape), weight, bias)


def batch_by_hand(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Two passes by hand."""
    return affine(normalized(x, (0, *range(2, x.dim())), eps), weight, bias)


def channels_by_hand(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-6) -> Any:
    """As in ConvNeXt: mean and variance over dimension 1, a quotient by the root."""
    mean = x.mean(1, keepdim=True)
    variance = (x - mean).pow(2).mean(1, keepdim=True)
    return affine((x - mean) / torch.sqrt(variance + eps), weight, bias)


def channels_permuted(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-6) -> Any:
    """Layer norm of the channels, moved to the end and back."""
    y = torch.nn.functional.layer_norm(x.movedim(1, -1), (x.shape[1],), weight, None, eps)
    return affine(y.movedim(-1, 1), None, bias)


def outside_by_hand(x: Any, normalized_shape: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The deviation by `torch.std` with no correction."""
    dims = tuple(range(-len(normalized_shape), 0))
    y = (x - x.mean(dims, keepdim=True)) / (x.std(dims, correction=0, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def right(operation: str, function: Any, **more: Any) -> Correct:
    """A right implementation that is named and described by its function."""
    sentence = " ".join((function.__doc__ or "").split())
    name = function.__name__.replace("_", "-")
    return Correct(f"norms-{name}", sentence, operation=operation, framework="torch", target=function, **more)


CORRECT = [
    right("rms_norm", rms_wide),
    right("rms_norm", rms_op_by_op),
    right("group_norm", group_folded),
    right("instance_norm", instance_by_layer_norm),
    right("batch_norm", batch_by_hand),
    right("layer_norm_channels", channels_by_hand),
    right("layer_norm_channels", channels_permuted),
    right("layer_norm_eps_outside", outside_by_hand),
]
