"""How a gradient grows or vanishes through the steps of a recurrent network, for several scales of its weights."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.torch_recurrent import rnn
from lnverify.claims.empirical.torch_training import Array


@dataclass(frozen=True)
class Size:
    """How much is run. scales: factors of recurrent weights with variance 1/hidden."""

    seeds: int = 20
    steps: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    scales: tuple[float, ...] = (0.5, 1, 2, 4)
    hidden: int = 64
    inputs: int = 4


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, tell: Tell = lambda text: None
) -> Outcome:
    """How far, in powers of ten, a gradient's norm is from its start after all steps; without layer norm less with."""
    found, panels = {}, []
    for arm, norm in (("without", layers.without), ("layer norm", normalize)):
        tell(arm)
        found[arm] = np.stack([_norms(size, scale, norm) for scale in size.scales])
        curves = [curve(f"scale {scale:g}", size.steps, found[arm][k].tolist()) for k, scale in enumerate(size.scales)]
        panels.append(Panel(arm, "steps", "relative norm of the gradient", tuple(curves), "xy"))
    without, with_norm = (np.log10(found[arm][:, -1]) for arm in ("without", "layer norm"))
    last = size.steps[-1]
    effects = []
    for k, scale in enumerate(size.scales):
        what = f"scale {scale:g}: powers of ten of growth or decay over {last} steps, without layer norm less with"
        told = f"without 10^{np.median(without[k]):.1f}, with 10^{np.median(with_norm[k]):.1f}"
        pairs = exact(np.abs(without[k]) - np.abs(with_norm[k]))
        effects.append(Effect(("A45", "B45", "A80"), what, "difference", 1, pairs, told))
    spread = [values.max(axis=0) - values.min(axis=0) for values in (without, with_norm)]
    what = f"between the scales: powers of ten over {last} steps, without layer norm less with"
    told = f"without {np.median(spread[0]):.1f}, with {np.median(spread[1]):.1f}"
    effects.append(Effect(("A45", "B45", "A80"), what, "difference", 1, exact(spread[0] - spread[1]), told))
    text = (
        f"An untrained RNN of {size.hidden} units, tanh, with {size.inputs} normal inputs per step, whose recurrent "
        f"weights have the variance 1/{size.hidden} times the square of a scale "
        f"({', '.join(f'{s:g}' for s in size.scales)}). A random direction is sent back from the last state, and its "
        f"norm compared with that of what arrives so many steps before, in float64. {size.seeds} seeds."
    )
    return Outcome(text, size.seeds, tuple(effects), tuple(panels))


def _norms(size: Size, scale: float, norm: layers.Normalizer) -> Array:
    """|dL/dh| at so many steps before the last, over |dL/dh| at the last; of shape (steps, seeds)."""
    last = size.steps[-1]
    models, inputs, directions = [], [], []
    for seed in range(size.seeds):
        g = layers.generator(seed)
        gain, bias = layers.affine(size.hidden)
        models.append({"wx": layers.weight(g, size.inputs, size.hidden), "gain": gain, "bias": bias,
                       "wh": layers.weight(g, size.hidden, size.hidden, scale)})  # fmt: skip
        inputs.append(torch.randn(last + 1, 1, size.inputs, generator=g))
        directions.append(torch.randn(1, size.hidden, generator=g))
    params = {name: value.double() for name, value in layers.stack(models).items()}
    x = torch.stack(inputs, dim=1).double().requires_grad_()
    hs = rnn(params, x, norm)
    direction = torch.stack(directions).double()
    before = torch.autograd.grad((hs[-1] * direction).sum(), [hs[-1 - t] for t in size.steps])
    start = direction.norm(dim=(1, 2))
    return torch.stack([g.norm(dim=(1, 2)) / start for g in before]).numpy()
