"""Recurrent networks with a model axis: plain RNN, LSTM and GRU, where layer norm stands as in the paper's supplement.

Inputs have the shape (steps, models, batch, inputs). The normalizer `without` gives the ordinary cells.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lnverify.claims.empirical.torch_layers import Normalizer, Params, affine, weight

Step = Callable[[Tensor], Tensor]


def start(kind: str, g: torch.Generator, inputs: int, hidden: int, outputs: int) -> Params:
    """Weights of one model. The forget gate starts with a bias of 1 (Jozefowicz et al. 2015), with and without norm."""
    rows = {"rnn": 1, "lstm": 4, "gru": 2}[kind] * hidden
    p = {"wx": weight(g, inputs, rows), "wh": weight(g, hidden, rows), "out": weight(g, hidden, outputs)}
    p["out_bias"] = torch.zeros(1, outputs)
    p["gain"], p["bias"] = affine(rows)
    if kind == "lstm":
        p["bias"][:, :hidden] = 1
        p["x_gain"], p["x_bias"] = affine(rows)
        p["c_gain"], p["c_bias"] = affine(hidden)
    if kind == "gru":
        p["x_gain"], p["x_bias"] = affine(rows)
        p["w"], p["u"] = weight(g, inputs, hidden), weight(g, hidden, hidden)
        for name in ("w", "u"):
            p[f"{name}_gain"], p[f"{name}_bias"] = affine(hidden)
    return p


def rnn(p: Params, x: Tensor, n: Normalizer) -> list[Tensor]:
    """h = tanh(LN(W_x x + W_h h))."""
    hs: list[Tensor] = []
    h = _zeros(x, p["wh"])
    for xt in x @ p["wx"]:
        h = torch.tanh(n(xt + h @ p["wh"], p["gain"], p["bias"], "h"))
        hs.append(h)
    return hs


def lstm(p: Params, x: Tensor, n: Normalizer) -> list[Tensor]:
    """f, i, o, g = LN(W_h h) + LN(W_x x); c = f c + i g; h = o tanh(LN(c))."""
    hs: list[Tensor] = []
    h = c = _zeros(x, p["wh"])
    units = h.shape[-1]
    for xt in n(x @ p["wx"], p["x_gain"], p["x_bias"], "x"):
        gates = n(h @ p["wh"], p["gain"], p["bias"], "h") + xt
        f, i, o = torch.sigmoid(gates[..., : 3 * units]).chunk(3, -1)
        c = f * c + i * torch.tanh(gates[..., 3 * units :])
        h = o * torch.tanh(n(c, p["c_gain"], p["c_bias"], "cell"))
        hs.append(h)
    return hs


def gru(p: Params, x: Tensor, n: Normalizer) -> list[Tensor]:
    """z, r = LN(W_h h) + LN(W_x x); h = (1 - z) h + z tanh(LN(W x) + r LN(U h))."""
    hs: list[Tensor] = []
    h = _zeros(x, p["u"])
    gated = n(x @ p["wx"], p["x_gain"], p["x_bias"], "x")
    candidates = n(x @ p["w"], p["w_gain"], p["w_bias"], "w")
    for xt, candidate in zip(gated, candidates, strict=True):
        z, r = torch.sigmoid(n(h @ p["wh"], p["gain"], p["bias"], "h") + xt).chunk(2, -1)
        h = (1 - z) * h + z * torch.tanh(candidate + r * n(h @ p["u"], p["u_gain"], p["u_bias"], "u"))
        hs.append(h)
    return hs


CELLS = {"rnn": rnn, "lstm": lstm, "gru": gru}


def _zeros(x: Tensor, square: Tensor) -> Tensor:
    """States of shape (models, batch, units); `square` has as many rows as there are units."""
    return x.new_zeros(*x.shape[1:-1], square.shape[-2])


def read_out(p: Params, hs: list[Tensor], last: int) -> Tensor:
    """The outputs at so many last steps, of shape (models, last * batch, outputs), step by step."""
    return torch.cat(hs[-last:], dim=-2) @ p["out"] + p["out_bias"]
