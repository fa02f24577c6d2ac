"""Cells and a transformer block around a norm, as they are written with one: `norm(x)` on the last dimension.

Rules of this file: all that differs between two sides is the norm; weights come from a seed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from lnverify.adapters.locate import locate
from lnverify.adapters.signature import match, parameters
from lnverify.target import parse_target

Norm = Callable[[Any], Any]


def norm(target: str, n: int) -> Norm:
    """A norm over the last n numbers with weight and bias: a module of a class; a function is given ones and zeros."""
    import torch

    found = locate(parse_target(target))
    if isinstance(found, type):
        module: Norm = found(n)
        return module
    signature = match(parameters(found), target)
    values = {"normalized_shape": (n,), "weight": torch.ones(n, requires_grad=True),
              "bias": torch.zeros(n, requires_grad=True), "eps": 1e-5, "axis": -1}  # fmt: skip
    return lambda x: signature.call(found, {**values, "x": x})


def weights(seed: int, *shape: int) -> Any:
    """Normal numbers, scaled by the first extent, that require a gradient."""
    import torch

    made = torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) / shape[0] ** 0.5
    return made.requires_grad_()


def lstm(make: Callable[[int], Norm], units: int) -> Callable[[Any, tuple[Any, Any]], tuple[Any, Any]]:
    """One step of an LSTM with norms on both products and on the cell (Ba, Kiros and Hinton 2016, eqs. 20 to 22)."""
    import torch

    inputs, state, cell = make(4 * units), make(4 * units), make(units)
    w, u = weights(1, units, 4 * units), weights(2, units, 4 * units)

    def step(x: Any, before: tuple[Any, Any]) -> tuple[Any, Any]:
        h, c = before
        i, f, o, g = (inputs(x @ w) + state(h @ u)).chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell(c)), c

    return step


def gru(make: Callable[[int], Norm], units: int) -> Callable[[Any, tuple[Any, Any]], tuple[Any, Any]]:
    """One step of a GRU with norms on both products."""
    import torch

    inputs, state = make(3 * units), make(3 * units)
    w, u = weights(1, units, 3 * units), weights(2, units, 3 * units)

    def step(x: Any, before: tuple[Any, Any]) -> tuple[Any, Any]:
        h, c = before
        (rx, zx, nx), (rh, zh, nh) = inputs(x @ w).chunk(3, dim=-1), state(h @ u).chunk(3, dim=-1)
        z = torch.sigmoid(zx + zh)
        return (1 - z) * torch.tanh(nx + torch.sigmoid(rx + rh) * nh) + z * h, c

    return step


def rnn(make: Callable[[int], Norm], units: int) -> Callable[[Any, tuple[Any, Any]], tuple[Any, Any]]:
    """One step of a recurrent network with a norm on the summed input (ibid., eq. 4)."""
    import torch

    summed = make(units)
    w, u = weights(1, units, units), weights(2, units, units)

    def step(x: Any, before: tuple[Any, Any]) -> tuple[Any, Any]:
        h, c = before
        return torch.tanh(summed(x @ w + h @ u)), c

    return step


CELLS = {"lstm": lstm, "gru": gru, "rnn": rnn}


def block(make: Callable[[int], Norm], width: int, heads: int) -> Callable[[Any], Any]:
    """A transformer block that normalises before attention and before the feed-forward part."""
    import torch

    first, second = make(width), make(width)
    qkv, out = weights(1, width, 3 * width), weights(2, width, width)
    up, down = weights(3, width, 4 * width), weights(4, 4 * width, width)

    def forward(x: Any) -> Any:
        batch, length, _ = x.shape
        parts = (first(x) @ qkv).reshape(batch, length, 3, heads, width // heads).permute(2, 0, 3, 1, 4)
        attended = torch.nn.functional.scaled_dot_product_attention(parts[0], parts[1], parts[2])
        x = x + attended.transpose(1, 2).reshape(batch, length, width) @ out
        return x + torch.nn.functional.gelu(second(x) @ up) @ down

    return forward
