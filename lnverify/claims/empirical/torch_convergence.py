"""Steps until a given loss is reached, with layer norm and without, in plain RNN, LSTM and GRU, on three tasks.

Each arm trains with the rate that is best for it on seeds of their own, for one rate for both would favour one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, ratios
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.tasks import Digits, adding, copying, digits, rows_of
from lnverify.claims.empirical.torch_recurrent import CELLS
from lnverify.claims.empirical.torch_training import Array, best, smooth, steps_to, sweep


@dataclass(frozen=True)
class Size:
    """How much is run. tuning and seeds: how many seeds choose the rate, and how many are measured."""

    tuning: int = 2
    seeds: int = 6
    rates: tuple[float, ...] = (2**-7, 2**-5, 2**-3)
    steps: int = 300
    batch: int = 8
    hidden: int = 16


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, data: Digits | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:  # fmt: skip
    """An effect for each cell and task: steps without layer norm over steps with it."""
    tasks = (copying(), adding(), rows_of(data or digits()))
    effects, panels = [], []
    for task in tasks:
        for cell in CELLS:
            reached, curves, chosen = [], [], []
            for arm, norm in (("without", layers.without), ("layer norm", normalize)):
                tell(f"{cell}, {task.name}, {arm}")
                losses = sweep(task, cell, norm, range(size.tuning + size.seeds), size.rates, steps=size.steps,
                               batch=size.batch, hidden=size.hidden, rule="adam")  # fmt: skip
                steps = steps_to(losses, task.chance / 2)
                rate = _best(losses[:, :, : size.tuning], steps[:, : size.tuning])
                reached.append(steps[rate, size.tuning :])
                chosen.append(size.rates[rate])
                means = smooth(losses[:, rate, size.tuning :])
                x = np.arange(len(means)) + losses.shape[0] - len(means) + 1
                thin = slice(0, None, max(1, len(means) // 60))
                curves.append(curve(arm, x[thin].tolist(), means[thin].tolist()))
            arms = "; ".join(
                f"{name} {_steps(values)} at a rate of {rate:.2g}"
                for name, values, rate in zip(("without", "with"), reached, chosen, strict=True)
            )
            what = f"{task.name}, {cell.upper()}: steps without layer norm over steps with"
            pairs = ratios(reached[0].tolist(), reached[1].tolist(), size.steps)
            effects.append(Effect(("A80", "B12"), what, "ratio", 1, pairs, arms))
            panels.append(Panel(f"{cell.upper()}, {task.name}", "step", "loss", tuple(curves), "y"))
    text = (
        f"RNN, LSTM and GRU of {size.hidden} units; layer norm as in the paper's supplement. Tasks: copying three "
        "letters after three blanks, adding two of ten numbers, and scikit-learn's digits, read row by row: 8 to 10 "
        "steps of time, so that nothing here is about long sequences. Adam "
        f"without clipping, batches of {size.batch}, {size.steps} steps; the loss to reach is half of that of the "
        f"best constant answer, averaged over ten steps. {size.tuning} seeds choose the rate of each arm from "
        f"{', '.join(f'{rate:.2g}' for rate in size.rates)}, {size.seeds} others are measured."
    )
    return Outcome(text, size.seeds, tuple(effects), tuple(panels))


def _best(losses: Array, steps: Array) -> int:
    """The rate with the fewest steps; with the smallest loss at the end where no rate gets there."""
    rate = best(steps)
    return rate if np.isfinite(np.median(steps[rate])) else best(smooth(losses)[-1])


def _steps(values: Sequence[float] | Array) -> str:
    middle, never = np.median(values), int(np.isinf(values).sum())
    text = f"{middle:.0f}" if np.isfinite(middle) else "more than the budget"
    return text + (f" ({never} of {len(values)} seeds never)" if never else "")
