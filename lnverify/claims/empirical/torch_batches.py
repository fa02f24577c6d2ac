"""Layer norm and batch norm in a feed-forward network, with batches of 128 and of 4, as in Section 6.6 of the paper."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.claims.empirical.tasks import Digits, digits
from lnverify.claims.empirical.torch_layers import Params
from lnverify.claims.empirical.torch_training import Array, best, each, train


@dataclass(frozen=True)
class Size:
    """How much is run. epochs: how often all cases are seen, whatever the batch."""

    tuning: int = 2
    seeds: int = 6
    rates: tuple[float, ...] = (2**-11, 2**-9, 2**-7, 2**-5)
    batches: tuple[int, ...] = (128, 4)
    epochs: int = 3
    hidden: tuple[int, ...] = (64, 64)


def run(
    size: Size = Size(), *, normalize: layers.Normalizer = layers.layer_norm, data: Digits | None = None,
    tell: Tell = lambda text: None,
) -> Outcome:  # fmt: skip
    """Test losses of batch norm over layer norm for each batch, of both over none, and of each at 4 over 128."""
    data = data or digits()
    arms: dict[str, Callable[[], layers.Normalizer]] = {
        "none": lambda: layers.without, "batch norm": layers.BatchNorm, "layer norm": lambda: normalize,
    }  # fmt: skip
    found: dict[tuple[str, int], Array] = {}
    told: dict[tuple[str, int], str] = {}
    for arm, norm in arms.items():
        for batch in size.batches:
            tell(f"{arm}, batches of {batch}")
            losses, wrong = _train(size, data, batch, norm())
            rate = best(losses[:, : size.tuning])
            found[arm, batch] = losses[rate, size.tuning :]
            errors = np.median(wrong[rate, size.tuning :])
            loss = np.median(found[arm, batch])
            told[arm, batch] = f"{arm} {batch}: loss {loss:.3g}, errors {errors:.1%}, rate {size.rates[rate]:.2g}"
    effects = []
    for batch in size.batches:
        claims = ("B11",) if batch == max(size.batches) else ("A81",)
        for arm in ("batch norm", "none"):
            says = 1 if arm == "batch norm" and claims == ("A81",) else 0
            effects.append(_effect(claims, f"batches of {batch}, {arm} over layer norm: test loss", says,
                                   found, told, (arm, batch), ("layer norm", batch)))  # fmt: skip
    large, small = max(size.batches), min(size.batches)
    for arm, says in (("batch norm", 1), ("layer norm", 0)):
        what = f"{arm}, batches of {small} over {large}: test loss"
        effects.append(_effect(("A81",), what, says, found, told, (arm, small), (arm, large)))
    ordered = sorted(size.batches)
    curves = tuple(curve(arm, ordered, [found[arm, batch].tolist() for batch in ordered]) for arm in arms)
    text = (
        f"A feed-forward network 64-{'-'.join(map(str, size.hidden))}-10 on scikit-learn's digits, as the paper's on "
        f"MNIST but smaller; Adam, {size.epochs} epochs with either batch. The loss is that of {len(data.test_x)} "
        "cases that were not trained on; batch norm is tested with its running averages. The claim expects batch "
        f"norm to lose by the small batch, and layer norm not to. {size.tuning} seeds choose the rate of each arm and "
        f"batch by that loss from {', '.join(f'{rate:.2g}' for rate in size.rates)}, {size.seeds} others are measured."
    )
    return Outcome(text, size.seeds, tuple(effects), (Panel("digits", "cases in a batch", "test loss", curves, "xy"),))


def _effect(
    claims: tuple[str, ...], what: str, says: int, found: dict[tuple[str, int], Array],
    told: dict[tuple[str, int], str], above: tuple[str, int], below: tuple[str, int],
) -> Effect:  # fmt: skip
    values = (found[above] / found[below]).tolist()
    return Effect(claims, what, "ratio", says, exact(values), f"{told[above]}; {told[below]}")


def _train(size: Size, data: Digits, batch: int, norm: layers.Normalizer) -> tuple[Array, Array]:
    """Test losses and shares of errors, of shape (rates, seeds)."""
    seeds = range(size.tuning + size.seeds)
    sizes = (64, *size.hidden, 10)
    params = layers.stack([layers.mlp_start(layers.generator(s), sizes) for s in seeds], len(size.rates))
    per_epoch = len(data.x) // batch
    orders = [np.random.default_rng([s, 4]) for s in seeds]
    which = np.stack([np.concatenate([g.permutation(len(data.x))[: per_epoch * batch] for _ in range(size.epochs)])
                      for g in orders]).reshape(len(seeds), -1, batch)  # fmt: skip
    x, y, cases = torch.from_numpy(data.x), torch.from_numpy(data.y), torch.from_numpy(which)

    def loss(p: Params, step: int) -> Tensor:
        rows = cases[:, step].repeat(len(size.rates), 1)
        return layers.cross_entropy(layers.mlp(p, x[rows], norm), y[rows])

    train(loss, params, each(size.rates, len(seeds)), which.shape[1], "adam")
    if isinstance(norm, layers.BatchNorm):
        norm.training = False
    with torch.no_grad():
        logits = layers.mlp(params, torch.from_numpy(data.test_x).expand(len(size.rates) * len(seeds), -1, -1), norm)
        labels = torch.from_numpy(data.test_y).expand(len(logits), -1)
        losses = layers.cross_entropy(logits, labels)
        wrong = (logits.argmax(-1) != labels).double().mean(-1)
    return tuple(np.nan_to_num(t.double().numpy(), nan=np.inf).reshape(len(size.rates), -1) for t in (losses, wrong))
