"""The experiments of `lnverify claims --empirical` at a size of seconds, on pictures that need no scikit-learn."""

from __future__ import annotations

from typing import Any

import numpy as np

from lnverify.claims.empirical import (
    torch_batches,
    torch_convergence,
    torch_cost,
    torch_depth,
    torch_maps,
    torch_rates,
    torch_scales,
    torch_time,
)
from lnverify.claims.empirical import torch_layers as layers
from lnverify.claims.empirical.tasks import Digits


def pictures() -> Digits:
    """Ten pictures of noise, each with noise of its own on top: easy to tell apart."""
    g = np.random.default_rng(7)
    centres = g.random((10, 64))
    y = np.arange(120) % 10
    x = (centres[y] + 0.1 * g.random((120, 64))).astype(np.float32)
    return Digits(x[20:], y[20:], x[:20], y[:20])


def same_time(call: Any, times: int) -> float:
    """A clock for which every call takes a second."""
    return 1.0


RUNS: dict[str, tuple[Any, dict[str, Any]]] = {
    "convergence": (torch_convergence.run, {
        "size": torch_convergence.Size(tuning=1, seeds=2, rates=(2**-5,), steps=11, batch=2, hidden=4),
        "data": pictures()}),
    "rates": (torch_rates.run, {
        "size": torch_rates.Size(seeds=2, lowest=-2, highest=-1, steps=11, batch=2, hidden=4, layers=2),
        "data": pictures()}),
    "scales": (torch_scales.run, {
        "size": torch_scales.Size(seeds=2, scales=(0.5, 2), rates=(0.5,), steps=12, batch=4, layers=2),
        "data": pictures()}),
    "batches": (torch_batches.run, {
        "size": torch_batches.Size(tuning=1, seeds=2, rates=(2**-7,), batches=(50, 10), epochs=1, hidden=(8,)),
        "data": pictures()}),
    "maps": (torch_maps.run, {
        "size": torch_maps.Size(tuning=1, seeds=2, rates=(2**-7,), batch=4, steps=3, channels=(2, 2)),
        "data": pictures()}),
    "time": (torch_time.run, {"size": torch_time.Size(seeds=6, steps=(1, 4, 16), scales=(0.5, 4), hidden=16)}),
    "depth": (torch_depth.run, {"size": torch_depth.Size(seeds=6, depths=(2, 32), units=8, tokens=3)}),
    "cost": (torch_cost.run, {
        "size": torch_cost.Size(hidden=(4, 8), batch=2, rounds=6), "block": same_time}),
}  # fmt: skip
"""By the name of the experiment: its `run`, and a tiny size with all else that it takes."""

WITHOUT: dict[str, dict[str, Any]] = {
    name: {"normalize": layers.without, **({"places": 1} if name == "maps" else {})} for name in RUNS if name != "cost"
}
"""No normalization in the place of layer norm: both sides of a comparison are then the same."""
