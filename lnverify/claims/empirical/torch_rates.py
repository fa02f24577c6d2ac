"""Learning rates from very small to very large: which reach a given loss, and from which on training diverges."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, differences, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.tasks import Digits, digits, rows_of
from lnverify.claims.empirical.torch_layers import Params
from lnverify.claims.empirical.torch_recurrent import CELLS
from lnverify.claims.empirical.torch_training import Array, diverged, each, smooth, steps_to, sweep, train

CUT = 20.0
"""Losses beyond it, infinite ones among them, are drawn there."""


@dataclass(frozen=True)
class Size:
    """How much is run. lowest, highest: powers of two, the rates between them."""

    seeds: int = 6
    lowest: int = -6
    highest: int = 5
    steps: int = 200
    batch: int = 8
    hidden: int = 16
    layers: int = 4

    @property
    def rates(self) -> tuple[float, ...]:
        """Every power of two."""
        return tuple(2.0**k for k in range(self.lowest, self.highest + 1))


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, data: Digits | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:  # fmt: skip
    """For each network: how many rates work, and from which on all diverge; with layer norm less without."""
    data = data or digits()
    task = rows_of(data)
    effects, panels = [], []
    for network in (*CELLS, "mlp"):
        name = network.upper()
        works, stable, curves = [], [], []
        for arm, norm in (("without", layers.without), ("layer norm", normalize)):
            tell(f"{network}, {arm}")
            losses = (
                _feed_forward(size, data, norm) if network == "mlp" else
                sweep(task, network, norm, range(size.seeds), size.rates, steps=size.steps, batch=size.batch,
                      hidden=size.hidden, rule="sgd")
            )  # fmt: skip
            works.append(np.isfinite(steps_to(losses, task.chance / 2)).sum(axis=0))
            stable.append(divergence(diverged(losses)))
            ends = np.minimum(smooth(losses)[-1], CUT)
            curves.append(curve(arm, size.rates, ends.tolist()))
        told = f"without {np.median(works[0]):g}, with {np.median(works[1]):g} of {len(size.rates)}"
        what = f"{name}, rates that reach the loss: with layer norm less without, in doublings"
        effects.append(Effect(("B21",), what, "difference", 1, exact(works[1] - works[0]), told))
        told = f"without {_rate(size, stable[0])}, with {_rate(size, stable[1])}"
        what = f"{name}, rate from which on all diverge: with layer norm less without, in doublings"
        pairs = differences(stable[0].tolist(), stable[1].tolist(), len(size.rates))
        effects.append(Effect(("B21",), what, "difference", 1, pairs, told))
        panels.append(Panel(name, "learning rate", f"loss at the end, cut at {CUT:g}", tuple(curves), "xy"))
    text = (
        f"RNN, LSTM and GRU of {size.hidden} units on digits by rows, and a feed-forward network with {size.layers} "
        f"hidden layers of 32 units. Plain gradient descent without momentum or clipping, batches of {size.batch}, "
        f"{size.steps} steps, rates from 2^{size.lowest} to 2^{size.highest}. A rate works if half of the loss of "
        f"guessing is reached; it diverges if the loss ends above where it began, or is not finite. {size.seeds} "
        "seeds."
    )
    return Outcome(text, size.seeds, tuple(effects), tuple(panels))


def _feed_forward(size: Size, data: Digits, norm: layers.Normalizer) -> Array:
    sizes = (64, *[32] * size.layers, 10)
    seeds = range(size.seeds)
    params = layers.stack([layers.mlp_start(layers.generator(s), sizes) for s in seeds], len(size.rates))
    which = np.stack(
        [np.random.default_rng([s, 2]).integers(len(data.x), size=(size.steps, size.batch)) for s in seeds]
    )
    x, y, cases = torch.from_numpy(data.x), torch.from_numpy(data.y), torch.from_numpy(which)

    def loss(p: Params, step: int) -> Tensor:
        rows = cases[:, step].repeat(len(size.rates), 1)
        return layers.cross_entropy(layers.mlp(p, x[rows], norm), y[rows])

    return train(loss, params, each(size.rates, size.seeds), size.steps, "sgd").reshape(size.steps, -1, size.seeds)


def divergence(bad: Array) -> Array:
    """The index of the rate from which on all diverge, of shape (rates, seeds); their number if the last does not.

    Counted from above: a rate so small that nothing is learned may end above its first loss by chance.
    """
    good = ~bad[::-1]
    return len(bad) - np.where(good.any(axis=0), good.argmax(axis=0), len(bad))


def _rate(size: Size, first: Array) -> str:
    middle = float(np.median(first))
    return f"2^{size.lowest + middle:g}" if middle < len(size.rates) else f"beyond 2^{size.highest}"
