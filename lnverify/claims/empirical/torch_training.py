"""Training of many models side by side, and what is read off their losses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lnverify.claims.empirical.tasks import Task
from lnverify.claims.empirical.torch_layers import Normalizer, Params, cross_entropy, generator, stack
from lnverify.claims.empirical.torch_recurrent import CELLS, read_out, start

WINDOW = 10
"""Losses of so many steps are averaged before anything is read off them."""
Array = np.ndarray[Any, np.dtype[Any]]


def train(loss_of: Callable[[Params, int], Tensor], params: Params, rates: Tensor, steps: int, rule: str) -> Array:
    """Losses of shape (steps, models). Trains `params` in place; rates: one for each model; rule: 'sgd' or 'adam'.

    Adam as by Kingma and Ba 2015, with beta 0.9 and 0.999, and epsilon 1e-8. No gradient is clipped.
    """
    leaves = [p.requires_grad_() for p in params.values()]
    by_leaf = [rates.reshape(-1, *[1] * (p.ndim - 1)) for p in leaves]
    first, second = ([torch.zeros_like(p) for p in leaves] for _ in range(2))
    losses = torch.empty(steps, len(rates))
    for step in range(steps):
        loss = loss_of(params, step)
        gradients = torch.autograd.grad(loss.sum(), leaves, allow_unused=True)
        losses[step] = loss.detach()
        with torch.no_grad():
            for p, g, rate, m, v in zip(leaves, gradients, by_leaf, first, second, strict=True):
                if g is None:  # a gain, where there is no norm
                    continue
                if rule == "sgd":
                    p.sub_(rate * g)
                    continue
                m.lerp_(g, 0.1)
                v.lerp_(g * g, 0.001)
                root = (v / (1 - 0.999 ** (step + 1))).sqrt_().add_(1e-8)
                p.sub_(rate / (1 - 0.9 ** (step + 1)) * m / root)
    for p in leaves:
        p.requires_grad_(False)
    return losses.numpy()


def each(rates: Sequence[float], seeds: int) -> Tensor:
    """A rate for each model: the first rate for all seeds, then the second."""
    return torch.tensor(rates, dtype=torch.float32).repeat_interleave(seeds)


def sweep(
    task: Task, cell: str, normalize: Normalizer, seeds: Sequence[int], rates: Sequence[float], *,
    steps: int, batch: int, hidden: int, rule: str,
) -> Array:  # fmt: skip
    """Train a recurrent network for each rate and seed: losses of shape (steps, rates, seeds).

    Weights and data depend on the seed alone: arms and rates share them.
    """
    params = stack([start(cell, generator(s), task.inputs, hidden, task.outputs) for s in seeds], len(rates))
    drawn = [task.draw(np.random.default_rng([s, 1]), steps * batch) for s in seeds]
    x, y = (torch.from_numpy(np.stack(arrays, axis=1)) for arrays in zip(*drawn, strict=True))

    def loss(p: Params, step: int) -> Tensor:
        part = slice(step * batch, (step + 1) * batch)
        xs, ys = (t[:, :, part].repeat(1, len(rates), *[1] * (t.ndim - 2)) for t in (x, y))
        outputs = read_out(p, CELLS[cell](p, xs, normalize), task.read)
        targets = ys.movedim(0, 1).flatten(1)
        if task.outputs == 1:
            return ((outputs[..., 0] - targets) ** 2).mean(-1)
        return cross_entropy(outputs, targets)

    return train(loss, params, each(rates, len(seeds)), steps, rule).reshape(steps, len(rates), len(seeds))


def smooth(losses: Array) -> Array:
    """Means over WINDOW steps up to each; what is not finite counts as infinite. Fewer rows by WINDOW - 1."""
    safe = np.where(np.isfinite(losses), losses, np.inf).astype(np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(safe, WINDOW, axis=0)
    return np.asarray(windows.mean(axis=-1))


def steps_to(losses: Array, target: float) -> Array:
    """The step after which the smoothed loss is at most `target` for the first time; infinite if it never is."""
    reached = smooth(losses) <= target
    return np.where(reached.any(axis=0), reached.argmax(axis=0) + float(WINDOW), np.inf)


def diverged(losses: Array) -> Array:
    """Whether the smoothed loss ends above the loss before the first step, or nowhere finite."""
    return np.asarray(~(smooth(losses)[-1] <= losses[0]))


def best(values: Array) -> int:
    """The row with the smallest median over the seeds, in the second axis; the first of several."""
    return int(np.argmin(np.median(values, axis=1)))
