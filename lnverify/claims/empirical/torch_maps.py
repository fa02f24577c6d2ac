"""A small convolutional network on digits: layer norm over channels and places, batch norm per channel, none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.tasks import Digits, digits
from lnverify.claims.empirical.torch_layers import Params
from lnverify.claims.empirical.torch_training import Array, best, each, train


@dataclass(frozen=True)
class Size:
    """How much is run. channels: of the two convolutions."""

    tuning: int = 2
    seeds: int = 6
    rates: tuple[float, ...] = (2**-7, 2**-5, 2**-3)
    batch: int = 32
    steps: int = 100
    channels: tuple[int, int] = (8, 8)


def layer_norm(x: Tensor, gain: Tensor, bias: Tensor, place: str) -> Tensor:
    """Over channels and places: x has the shape (batch, models, channels, 8, 8)."""
    return functional.layer_norm(x, x.shape[-3:], eps=layers.EPS) * gain + bias


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layer_norm, places: int = 8, data: Digits | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:  # fmt: skip
    """Test losses of layer norm over batch norm, and over none. places: along a side, that have a gain of their own."""
    data = data or digits()
    arms: dict[str, tuple[layers.Normalizer, int]] = {
        "none": (layers.without, 1), "batch norm": (layers.BatchNorm((0, 3, 4)), 1), "layer norm": (normalize, places),
    }  # fmt: skip
    found: dict[str, Array] = {}
    told, curves = {}, []
    for arm, (norm, side) in arms.items():
        tell(arm)
        train_losses, losses, wrong = _train(size, data, norm, side)
        rate = best(losses[:, : size.tuning])
        found[arm] = losses[rate, size.tuning :]
        errors = np.median(wrong[rate, size.tuning :])
        told[arm] = f"{arm}: loss {np.median(found[arm]):.3g}, errors {errors:.1%}, rate {size.rates[rate]:.2g}"
        thin = slice(0, None, max(1, size.steps // 50))
        steps = range(1, size.steps + 1)
        curves.append(curve(arm, list(steps)[thin], train_losses[thin, rate, size.tuning :].tolist()))
    effects = tuple(
        Effect(("A60",), f"layer norm over {other}: test loss", "ratio", says,
               exact((found["layer norm"] / found[other]).tolist()), f"{told['layer norm']}; {told[other]}")
        for other, says in (("batch norm", 1), ("none", 0))
    )  # fmt: skip
    text = (
        f"Two convolutions of 3 x 3 with {size.channels[0]} and {size.channels[1]} channels on the 8 x 8 digits, each "
        "followed by the norm and ReLU, then the mean over blocks of 4 x 4 places and a product. Layer norm is over "
        "channels and places, with a gain and a bias for each element; batch norm is per channel. Adam, batches of "
        f"{size.batch}, {size.steps} steps; loss of {len(data.test_x)} cases that were not trained on. {size.tuning} "
        "seeds choose the rate of each arm by that loss from "
        f"{', '.join(f'{rate:.2g}' for rate in size.rates)}, {size.seeds} "
        "others are measured."
    )
    panel = Panel("small convolutional network", "step", "training loss", tuple(curves), "y")
    return Outcome(text, size.seeds, effects, (panel,))


def _start(seed: int, channels: tuple[int, int], places: int) -> Params:
    g = layers.generator(seed)
    p: Params = {}
    for k, (inputs, outputs) in enumerate(((1, channels[0]), channels)):
        p[f"w{k}"] = torch.randn(outputs, inputs, 3, 3, generator=g) * (2 / (9 * inputs)) ** 0.5
        p[f"gain{k}"], p[f"bias{k}"] = (torch.full((outputs, places, places), v) for v in (1.0, 0.0))
    p["out"], p["out_bias"] = layers.weight(g, 4 * channels[1], 10), torch.zeros(1, 10)
    return p


def _network(p: Params, x: Tensor, norm: layers.Normalizer) -> Tensor:
    """x of shape (batch, models, 64) to logits (models, batch, 10)."""
    models = x.shape[1]
    x = x.reshape(len(x), models, 8, 8)
    for k in range(2):
        x = functional.conv2d(x, p[f"w{k}"].flatten(0, 1), padding=1, groups=models)
        x = torch.relu(norm(x.unflatten(1, (models, -1)), p[f"gain{k}"], p[f"bias{k}"], str(k))).flatten(1, 2)
    pooled = functional.avg_pool2d(x, 4).reshape(len(x), models, -1)
    return pooled.transpose(0, 1) @ p["out"] + p["out_bias"]


def _train(size: Size, data: Digits, norm: layers.Normalizer, places: int) -> tuple[Array, Array, Array]:
    """Training losses (steps, rates, seeds), then test losses and shares of errors (rates, seeds)."""
    seeds, rates = range(size.tuning + size.seeds), len(size.rates)
    params = layers.stack([_start(s, size.channels, places) for s in seeds], rates)
    draw: Callable[[int], Array] = lambda s: np.random.default_rng([s, 5]).integers(  # noqa: E731
        len(data.x), size=(size.steps, size.batch)
    )
    cases = torch.from_numpy(np.stack([draw(s) for s in seeds], axis=-1))
    x, y = torch.from_numpy(data.x), torch.from_numpy(data.y)

    def loss(p: Params, step: int) -> Tensor:
        rows = cases[step].repeat(1, rates)
        return layers.cross_entropy(_network(p, x[rows], norm), y[rows].T)

    losses = train(loss, params, each(size.rates, len(seeds)), size.steps, "adam")
    if isinstance(norm, layers.BatchNorm):
        norm.training = False
    with torch.no_grad():
        test = torch.from_numpy(data.test_x)[:, None].expand(-1, rates * len(seeds), -1)
        logits = _network(params, test, norm)
        labels = torch.from_numpy(data.test_y).expand(len(logits), -1)
        ends = layers.cross_entropy(logits, labels), (logits.argmax(-1) != labels).double().mean(-1)
    safe = [np.nan_to_num(t.double().numpy(), nan=np.inf).reshape(rates, -1) for t in ends]
    return losses.reshape(size.steps, rates, -1), safe[0], safe[1]
