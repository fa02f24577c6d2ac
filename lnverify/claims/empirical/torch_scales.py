"""Initial weights from far too small to far too large, each with several learning rates: which reach a given loss."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from math import log

import numpy as np
import torch
from torch import Tensor

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.tasks import Digits, digits
from lnverify.claims.empirical.torch_layers import Params
from lnverify.claims.empirical.torch_training import each, steps_to, train


@dataclass(frozen=True)
class Size:
    """How much is run. scales: factors of the weights before hidden layers."""

    seeds: int = 6
    scales: tuple[float, ...] = (1 / 64, 1 / 16, 1 / 4, 1, 4, 16, 64)
    rates: tuple[float, ...] = (2**-6, 2**-4, 2**-2, 1)
    steps: int = 120
    batch: int = 16
    layers: int = 4


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, data: Digits | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:  # fmt: skip
    """How many scales work at the best rate of each scale, and at one rate for all scales; with less without."""
    data = data or digits()
    sizes = (64, *[32] * size.layers, 10)
    models = [layers.mlp_start(layers.generator(s), sizes, scale) for scale in size.scales for s in range(size.seeds)]
    which = np.stack([np.random.default_rng([s, 3]).integers(len(data.x), size=(size.steps, size.batch))
                      for s in range(size.seeds)])  # fmt: skip
    x, y, cases = torch.from_numpy(data.x), torch.from_numpy(data.y), torch.from_numpy(which)
    worked, curves = [], []
    for arm, norm in (("without", layers.without), ("layer norm", normalize)):
        tell(arm)

        def loss(p: Params, step: int, norm: layers.Normalizer = norm) -> Tensor:
            rows = cases[:, step].repeat(len(size.rates) * len(size.scales), 1)
            return layers.cross_entropy(layers.mlp(p, x[rows], norm), y[rows])

        rates = each(size.rates, len(models))
        losses = train(loss, layers.stack(models, len(size.rates)), rates, size.steps, "sgd")
        reached = np.isfinite(steps_to(losses, log(10) / 2))
        worked.append(reached.reshape(len(size.rates), len(size.scales), size.seeds))
        curves.append(curve(arm, size.scales, worked[-1].sum(axis=0).tolist()))
    at_best = [found.any(axis=0).sum(axis=0) for found in worked]
    at_one = [found.sum(axis=1).max(axis=0) for found in worked]
    effects = tuple(
        Effect(("B21",), f"{how}: scales, of {len(size.scales)}, that reach the loss, with layer norm less without",
               "difference", 1, exact(counts[1] - counts[0]),
               f"without {np.median(counts[0]):g}, with {np.median(counts[1]):g}")
        for how, counts in (("each scale at its best rate", at_best), ("all scales at one rate", at_one))
    )  # fmt: skip
    text = (
        f"A feed-forward network on digits with {size.layers} hidden layers of 32 units, whose hidden weights are "
        "drawn with the usual deviation (He et al. 2015) times "
        f"{', '.join(str(Fraction(s)) for s in size.scales)}. Plain gradient descent, batches of {size.batch}, "
        f"{size.steps} steps, rates {', '.join(str(Fraction(r)) for r in size.rates)}. It works if half of the loss "
        f"of guessing is reached. {size.seeds} seeds."
    )
    y = f"rates that work, of {len(size.rates)}"
    panel = Panel("digits", "scale of the initial weights", y, tuple(curves), "x")
    return Outcome(text, size.seeds, effects, (panel,))
