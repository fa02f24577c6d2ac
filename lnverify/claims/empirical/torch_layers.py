"""Many models at once: tensors with a model axis, and normalizers for them.

Models of all seeds and learning rates are trained side by side, in tensors of shape (models, batch, units), and their
losses are added: no model's gradient depends on another. Every network here takes a normalizer, so that the arms of
an experiment differ in it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn import functional

EPS = 1e-5
Params = dict[str, Tensor]
Normalizer = Callable[[Tensor, Tensor, Tensor, str], Tensor]
"""(x, gain, bias, place): place names the layer, and is 'cell' for the cell state of an LSTM."""


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, place: str) -> Tensor:
    """Layer norm over the last dimension."""
    return functional.layer_norm(x, x.shape[-1:], eps=EPS) * gain + bias


def without(x: Tensor, gain: Tensor, bias: Tensor, place: str) -> Tensor:
    """No normalization: the bias of an ordinary layer, which the cell state has not."""
    return x if place == "cell" else x + bias


class BatchNorm:
    """Batch norm over `dims`; running averages while `training`, as in torch: momentum 0.1, unbiased variance."""

    def __init__(self, dims: tuple[int, ...] = (-2,)) -> None:
        self.dims = dims
        self.training = True
        self.running: dict[str, tuple[Tensor, Tensor]] = {}

    def __call__(self, x: Tensor, gain: Tensor, bias: Tensor, place: str) -> Tensor:
        """Standardise each unit over the batch, or by the running averages."""
        if not self.training:
            mean, var = self.running[place]
        else:
            var, mean = torch.var_mean(x, self.dims, correction=0, keepdim=True)
            count = x.numel() // mean.numel()
            new = mean.detach(), var.detach() * count / (count - 1)
            old = self.running.get(place, (torch.zeros_like(mean), torch.ones_like(var)))
            self.running[place] = tuple(torch.lerp(o, n, 0.1) for o, n in zip(old, new, strict=True))
        return (x - mean) * torch.rsqrt(var + EPS) * gain + bias


def generator(seed: int) -> torch.Generator:
    """A generator with this seed."""
    return torch.Generator().manual_seed(seed)


def weight(g: torch.Generator, inputs: int, outputs: int, scale: float = 1.0) -> Tensor:
    """Weights of shape (inputs, outputs), normal with variance scale^2/inputs."""
    return torch.randn(inputs, outputs, generator=g) * (scale / inputs**0.5)


def affine(units: int) -> tuple[Tensor, Tensor]:
    """Gain 1 and bias 0, of shape (1, units)."""
    return torch.ones(1, units), torch.zeros(1, units)


def stack(models: Sequence[Params], copies: int = 1) -> Params:
    """Models as one, along a first axis; that axis `copies` times over."""
    return {k: torch.stack([model[k] for model in models]).repeat(copies, *[1] * models[0][k].ndim) for k in models[0]}


def mlp_start(g: torch.Generator, sizes: Sequence[int], scale: float = 1.0) -> Params:
    """A feed-forward network; `scale` multiplies its hidden weights. ReLU halves a variance, hence the root of 2."""
    p: Params = {}
    for k, (inputs, outputs) in enumerate(pairwise(sizes[:-1])):
        p[f"w{k}"] = weight(g, inputs, outputs, scale * 2**0.5)
        p[f"gain{k}"], p[f"bias{k}"] = affine(outputs)
    p["out"], p["out_bias"] = weight(g, sizes[-2], sizes[-1]), torch.zeros(1, sizes[-1])
    return p


def mlp(p: Params, x: Tensor, normalize: Normalizer) -> Tensor:
    """x of shape (models, batch, inputs) to logits: product, normalizer, ReLU, and a last product."""
    k = 0
    while f"w{k}" in p:
        x = torch.relu(normalize(x @ p[f"w{k}"], p[f"gain{k}"], p[f"bias{k}"], str(k)))
        k += 1
    return x @ p["out"] + p["out_bias"]


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """The mean over the last dimension of labels (models, batch), for each model."""
    return -torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0].mean(-1)
