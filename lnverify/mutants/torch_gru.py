"""Layer-normalised GRU cells in torch, wrong ones with one named bug each, and right ones.

Gates r and z are stacked in that order. Every cell takes (x, h, parameters, eps) and returns the new h.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lnverify.mutants import Correct, Mutant


def _norm(a: Any, gain: Any, shift: Any, eps: float) -> Any:
    return torch.nn.functional.layer_norm(a, (a.shape[1],), gain, shift, eps)


def gru(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight_in: Any, weight_hn: Any, gain_h: Any = None,
    shift_h: Any = None, gain_x: Any = None, shift_x: Any = None, gain_in: Any = None, shift_in: Any = None,
    gain_hn: Any = None, shift_hn: Any = None, eps: float = 1e-5, bug: str = "", z_keeps: bool = False,
) -> Any:  # fmt: skip
    """Gates of LN(V h) + LN(U x); the candidate is tanh(LN(W x) + r LN(Y h))."""
    if bug == "one norm":
        a = _norm(h @ weight_hh.T + x @ weight_ih.T, gain_h, shift_h, eps)
        a = a if shift_x is None else a + shift_x
    else:
        a = _norm(h @ weight_hh.T, gain_h, shift_h, eps) + _norm(x @ weight_ih.T, gain_x, shift_x, eps)
    r, z = torch.sigmoid(a).chunk(2, 1)
    r, z = (z, r) if bug == "gate order" else (r, z)
    if bug == "reset before":
        recurrent = _norm((r * h) @ weight_hn.T, gain_hn, shift_hn, eps)
    else:
        recurrent = r * _norm(h @ weight_hn.T, gain_hn, shift_hn, eps)
    if bug == "one candidate norm":
        n = torch.tanh(_norm(x @ weight_in.T + r * (h @ weight_hn.T), gain_in, shift_in, eps))
    else:
        n = torch.tanh(_norm(x @ weight_in.T, gain_in, shift_in, eps) + recurrent)
    old = h.detach() if bug == "state detached" else h
    return z * old + (1 - z) * n if z_keeps else (1 - z) * old + z * n


def gru_fused(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight_in: Any, weight_hn: Any, gain_h: Any = None,
    shift_h: Any = None, gain_x: Any = None, shift_x: Any = None, gain_in: Any = None, shift_in: Any = None,
    gain_hn: Any = None, shift_hn: Any = None, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """One product for gates and candidate; h + z (n - h)."""
    units = h.shape[1]
    of_x = torch.nn.functional.linear(x, torch.cat([weight_ih, weight_in]))
    of_h = torch.nn.functional.linear(h, torch.cat([weight_hh, weight_hn]))
    a = _norm(of_x[:, : 2 * units], gain_x, shift_x, eps) + _norm(of_h[:, : 2 * units], gain_h, shift_h, eps)
    r, z = a[:, :units].sigmoid(), a[:, units:].sigmoid()
    inner = torch.addcmul(
        _norm(of_x[:, 2 * units :], gain_in, shift_in, eps), r, _norm(of_h[:, 2 * units :], gain_hn, shift_hn, eps)
    )
    return h + z * (inner.tanh() - h)


def _wrong(
    name: str, sentence: str, bug: str, laws: tuple[str, ...] = ("LN801",), operation: str = "ln_gru",
    threads: tuple[str, ...] = (), **more: Any,
) -> Mutant:  # fmt: skip
    return Mutant(
        id=f"gru-{name}", bug=sentence, operation=operation, framework="torch",
        target=functools.partial(gru, bug=bug, **more), laws=laws, threads=threads,
    )  # fmt: skip


MUTANTS = [
    _wrong("one-norm", "one LN over U x + V h in the place of one each", "one norm"),
    _wrong("gate-order", "r and z change places", "gate order"),
    _wrong("reset-before", "the reset gate is applied to h before the product and its LN", "reset before",
           threads=("tensorflow/tensorflow#14578",)),
    _wrong("one-candidate-norm", "one LN over both terms of the candidate", "one candidate norm"),
    _wrong("z-keeps", "z and 1 - z change places", "", z_keeps=True),
    _wrong("state-detached", "no gradient reaches h along z", "state detached", ("LN802",)),
    _wrong("z-replaces", "z and 1 - z change places", "", operation="ln_gru_z_keeps"),
]  # fmt: skip
CORRECT = [
    Correct("gru-paper", "four products, a layer norm each", operation="ln_gru", framework="torch", target=gru),
    Correct("gru-fused", "two products, h + z (n - h)", operation="ln_gru", framework="torch", target=gru_fused),
    Correct("gru-z-keeps", "z keeps the old state", operation="ln_gru_z_keeps", framework="torch",
            target=functools.partial(gru, z_keeps=True)),
]  # fmt: skip
