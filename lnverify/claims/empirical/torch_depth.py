"""Gradients of the weights of each block of a Transformer, at initialisation, for several depths.

Blocks as in Xiong et al. 2020 (On Layer Normalization in the Transformer Architecture): attention, then a feed-forward
network, each a residual branch; layer norm after the sum (post-LN), before the branch (pre-LN, with a last one at the
end), or nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.torch_layers import Params
from lnverify.claims.empirical.torch_training import Array

PLACES = ("post-LN", "pre-LN", "none")


@dataclass(frozen=True)
class Size:
    """How much is run. depths: numbers of blocks."""

    seeds: int = 8
    depths: tuple[int, ...] = (4, 8, 16, 32, 64)
    units: int = 32
    tokens: int = 8
    classes: int = 10


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, tell: Tell = lambda text: None
) -> Outcome:
    """How gradients of the first block's weights, and of the last one's, change from the least depth to the largest."""
    found: dict[str, Array] = {}
    for place in PLACES:
        tell(place)
        found[place] = np.stack([_gradients(size, depth, place, normalize) for depth in size.depths])
    least, most = size.depths[0], size.depths[-1]
    effects = []
    for end, where in enumerate(("first", "last")):
        change = {place: found[place][-1, end] / found[place][0, end] for place in PLACES}
        told = ", ".join(f"{place} {np.median(change[place]):.3g}" for place in PLACES)
        for place in PLACES[:2]:
            what = f"{place}: gradient of the {where} block with {most} blocks over that with {least}"
            effects.append(Effect(("B47",), what, "ratio", 0, exact(change[place]), told))
        if end == 0:
            what = f"first block, {most} blocks over {least}: gradient, pre-LN over post-LN"
            effects.append(Effect(("B47",), what, "ratio", 1, exact(change["pre-LN"] / change["post-LN"]), told))
    share = {place: found[place][-1, 0] / found[place][-1, 1] for place in PLACES}
    told = ", ".join(f"{place} {np.median(share[place]):.3g}" for place in PLACES)
    what = f"first block over last, {most} blocks: gradient, pre-LN over post-LN"
    effects.append(Effect(("B47",), what, "ratio", 1, exact(share["pre-LN"] / share["post-LN"]), told))
    panels = tuple(
        Panel(f"the {where} block", "blocks", "norm of the gradient of its weights",
              tuple(curve(place, size.depths, found[place][:, end].tolist()) for place in PLACES[:2]), "xy")
        for end, where in enumerate(("first", "last"))
    )  # fmt: skip
    text = (
        f"Untrained Transformers of {least} to {most} blocks: {size.tokens} tokens of {size.units} units, attention "
        "with one head, a feed-forward network four times as wide with ReLU, weights with the variance of Glorot and "
        f"Bengio 2010, cross entropy for {size.classes} random classes at each token. The gradient is that of the "
        f"feed-forward weights of the first and the last block. In float64, {size.seeds} seeds. A claim that nothing "
        "vanishes expects pre-LN to keep more of the first block's gradient than post-LN."
    )
    return Outcome(text, size.seeds, tuple(effects), panels)


def _start(g: torch.Generator, size: Size) -> Params:
    """One block: queries, keys and values, output; up and down."""
    d = size.units
    shapes = {"qkv": (d, 3 * d, 2 * d), "o": (d, d, 2 * d), "up": (d, 4 * d, 5 * d), "down": (4 * d, d, 5 * d)}
    p = {name: torch.randn(i, o, generator=g) * (2 / fans) ** 0.5 for name, (i, o, fans) in shapes.items()}
    for name in ("first", "second"):
        p[f"{name}_gain"], p[f"{name}_bias"] = layers.affine(d)
    return p


def _attention(p: Params, x: Tensor) -> Tensor:
    q, k, v = (x @ p["qkv"]).chunk(3, -1)
    return torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, -1) @ v @ p["o"]


def _feed_forward(p: Params, x: Tensor) -> Tensor:
    return torch.relu(x @ p["up"]) @ p["down"]


def _network(blocks: list[Params], x: Tensor, place: str, norm: layers.Normalizer) -> Tensor:
    """x of shape (models, tokens, units)."""
    for p in blocks:
        for name, branch in (("first", _attention), ("second", _feed_forward)):
            gain, bias = p[f"{name}_gain"], p[f"{name}_bias"]
            if place == "post-LN":
                x = norm(x + branch(p, x), gain, bias, name)
            else:
                x = x + branch(p, norm(x, gain, bias, name) if place == "pre-LN" else x)
    return norm(x, blocks[0]["first_gain"], blocks[0]["first_bias"], "end") if place == "pre-LN" else x


def _gradients(size: Size, depth: int, place: str, norm: layers.Normalizer) -> Array:
    """Norms of the gradients of the feed-forward weights of the first and the last block, of shape (2, seeds)."""
    models: list[list[Params]] = []
    inputs, heads, labels = [], [], []
    for seed in range(size.seeds):
        g = layers.generator(seed)
        inputs.append(torch.randn(size.tokens, size.units, generator=g))
        heads.append(layers.weight(g, size.units, size.classes))
        labels.append(torch.randint(size.classes, (size.tokens,), generator=g))
        models.append([_start(g, size) for _ in range(depth)])
    blocks = [{n: v.double() for n, v in layers.stack(list(same)).items()} for same in zip(*models, strict=True)]
    asked = [blocks[end][name].requires_grad_() for end in (0, -1) for name in ("up", "down")]
    out = _network(blocks, torch.stack(inputs).double(), place, norm) @ torch.stack(heads).double()
    found = torch.autograd.grad(layers.cross_entropy(out, torch.stack(labels)).sum(), asked)
    squares = [(g * g).sum(dim=(1, 2)) for g in found]
    return torch.stack([(squares[0] + squares[1]).sqrt(), (squares[2] + squares[3]).sqrt()]).numpy()
