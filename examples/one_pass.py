"""A layer norm with a plausible bug: the variance in one pass, as E[x^2] - E[x]^2."""

import torch


def layer_norm(x, normalized_shape, weight=None, bias=None, eps=1e-5):
    dims = tuple(range(-len(normalized_shape), 0))
    mean = x.mean(dims, keepdim=True)
    variance = (x * x).mean(dims, keepdim=True) - mean * mean
    y = (x - mean) / torch.sqrt(variance.clamp(min=0) + eps)
    if weight is not None:
        y = y * weight
    return y if bias is None else y + bias
