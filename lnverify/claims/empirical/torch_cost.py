"""Time of layer norm over that of the recurrent product before it, for growing H: the four gates of an LSTM."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.effect import Effect, Outcome, Panel, curve, exact
from lnverify.claims.empirical.experiments import Tell
from lnverify.timing.clock import HostClock

Block = Callable[[Callable[[], Any], int], float]
"""CPU seconds per call, from a call and how often it is made."""


@dataclass(frozen=True)
class Size:
    """How much is run. seconds: that a block of calls takes, about."""

    hidden: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048)
    batch: int = 8
    rounds: int = 15
    seconds: float = 0.01


def run(size: Size = Size(), *, block: Block | None = None, tell: Tell = lambda text: None) -> Outcome:
    """The share at each H, and that at each doubling of H over that before."""
    tell("layer norm beside the product")
    shares = [_shares(size, hidden, block or thread_time) for hidden in size.hidden]
    effects = []
    for k, hidden in enumerate(size.hidden):
        effects.append(Effect(("B70",), f"H = {hidden}: layer norm over product", "share", 0, exact(shares[k])))
    ends = [b / a for a, b in zip(shares[0], shares[-1], strict=True)]
    what = f"H = {size.hidden[-1]} over H = {size.hidden[0]}: share of layer norm"
    effects.append(Effect(("B70",), what, "ratio", 1, exact(ends)))
    panel = Panel("LSTM gates", "H", "layer norm over product, time", (curve("share", size.hidden, shares),), "xy")
    text = (
        f"The product of {size.batch} states of H units with weights of shape (4 H, H), and layer norm of the 4 H "
        "gates with gain and bias, forward, in float32, on one thread. CPU time of that thread, both in turn within "
        f"one process, {size.rounds} rounds: rounds stand in the place of seeds, and share a machine. No GPU. The "
        "claim expects the share to grow with H."
    )
    return Outcome(text, size.rounds, tuple(effects), (panel,))


def thread_time(call: Callable[[], Any], times: int) -> float:
    """CPU seconds of this thread per call."""
    return HostClock().block(call, times).cpu


def _shares(size: Size, hidden: int, block: Block) -> Sequence[float]:
    """Layer norm over product, round by round, in turn."""
    g = layers.generator(hidden)
    h, w = torch.randn(size.batch, hidden, generator=g), torch.randn(hidden, 4 * hidden, generator=g)
    gates = h @ w
    gain, bias = torch.ones(4 * hidden), torch.zeros(4 * hidden)
    calls = (
        lambda: torch.nn.functional.layer_norm(gates, (4 * hidden,), gain, bias, layers.EPS),
        lambda: torch.mm(h, w),
    )
    times = [max(1, round(size.seconds / max(block(call, 3), 1e-9))) for call in calls]
    found = []
    for _ in range(size.rounds):
        norm, product = (block(call, count) for call, count in zip(calls, times, strict=True))
        found.append(norm / product)
    return found
