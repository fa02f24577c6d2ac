"""Layer-normalised LSTM cells in torch, wrong ones with one named bug each, and right ones in several styles.

Gates are stacked in the order i, f, g, o. Every cell takes (x, h, c, parameters, eps) and returns (h, c).
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from lnverify.mutants import Correct, Mutant


def _norm(a: Any, gain: Any, shift: Any, eps: float, bug: str = "") -> Any:
    if bug == "unbiased":
        r = torch.rsqrt(a.var(1, keepdim=True) + eps)
    elif bug == "eps outside":
        r = 1 / (a.var(1, correction=0, keepdim=True).sqrt() + eps)
    elif bug == "over the batch":
        r = torch.rsqrt(a.var(0, correction=0, keepdim=True) + eps)
    else:
        return torch.nn.functional.layer_norm(a, (a.shape[1],), gain, shift, eps)
    y = (a - a.mean(0 if bug == "over the batch" else 1, keepdim=True)) * r
    y = y if gain is None else y * gain
    return y if shift is None else y + shift


def _stacked(a: Any, gain: Any, shift: Any, eps: float) -> Any:
    """One norm for each of four gates."""
    parts = [None] * 4
    gains = parts if gain is None else gain.chunk(4)
    shifts = parts if shift is None else shift.chunk(4)
    return torch.cat([_norm(p, g, s, eps) for p, g, s in zip(a.chunk(4, 1), gains, shifts, strict=True)], 1)


def _state(z: Any, c: Any, read: Any, order: str = "ifgo") -> tuple[Any, Any]:
    """h and c from the gates; `read` is what h sees of the new c."""
    i, f, g, o = (z.chunk(4, 1)[order.index(gate)] for gate in "ifgo")
    cy = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(read(cy)), cy


def paper(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain_h: Any = None, shift_h: Any = None,
    gain_x: Any = None, shift_x: Any = None, gain_c: Any = None, shift_c: Any = None, eps: float = 1e-5, bug: str = "",
) -> tuple[Any, Any]:  # fmt: skip
    """LN(V h) + LN(U x) + bias, each over all gates at once; h reads LN(c)."""
    of_h, of_x = h @ weight_hh.T, x @ weight_ih.T
    if bug == "one norm":
        z = _norm(of_h + of_x, gain_h, shift_h, eps)
        z = z if shift_x is None else z + shift_x
    elif bug == "gate by gate":
        z = _stacked(of_h, gain_h, shift_h, eps) + _stacked(of_x, gain_x, shift_x, eps)
    elif bug == "bias inside":
        of_x = of_x if bias is None else of_x + bias
        z = _norm(of_h, gain_h, shift_h, eps) + _norm(of_x, gain_x, shift_x, eps)
    elif bug == "not normalised":
        z = of_h + of_x
    else:
        z = _norm(of_h, gain_h, shift_h, eps, bug) + _norm(of_x, gain_x, shift_x, eps, bug)
    if bias is not None and bug not in ("bias dropped", "bias inside"):
        z = z + (bias + 1 if bug == "forget bias" else bias)
    if bug == "c read":
        c = _norm(c, gain_c, shift_c, eps)
    if bug == "state detached":
        c = c.detach()
    y, cy = _state(z, c, lambda v: _norm(v, gain_c, shift_c, eps, bug), "ifog" if bug == "gate order" else "ifgo")
    if bug == "carry":
        return y, _norm(cy, gain_c, shift_c, eps)
    if bug == "h not through LN":
        return _state(z, c, lambda v: v)
    return y, cy


def per_gate(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain: Any = None, shift: Any = None,
    gain_c: Any = None, shift_c: Any = None, eps: float = 1e-5, bug: str = "",
) -> tuple[Any, Any]:  # fmt: skip
    """One LN of W [h, x] + bias for each gate; h reads LN(c)."""
    a = x @ weight_ih.T + h @ weight_hh.T
    a = a if bias is None else a + bias
    z = _norm(a, gain, shift, eps) if bug == "stacked" else _stacked(a, gain, shift, eps)
    return _state(z, c, lambda v: _norm(v, gain_c, shift_c, eps))


def per_gate_plain_cell(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain: Any = None, shift: Any = None,
    eps: float = 1e-5, bug: str = "",
) -> tuple[Any, Any]:  # fmt: skip
    """One LN of W [h, x] + bias for each gate; c is not normalised."""
    a = x @ weight_ih.T + h @ weight_hh.T
    z = _stacked(a if bias is None else a + bias, gain, shift, eps)
    y, cy = _state(z, c, lambda v: v)
    return (torch.sigmoid(z.chunk(4, 1)[3]) * cy if bug == "no tanh" else y), cy


def cell_only(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain_c: Any = None, shift_c: Any = None,
    eps: float = 1e-5, bug: str = "",
) -> tuple[Any, Any]:  # fmt: skip
    """The gates of a plain LSTM; h reads LN(c)."""
    z = x @ weight_ih.T + h @ weight_hh.T
    return _state(z if bias is None else z + bias, c, lambda v: _norm(v, gain_c, shift_c, eps, bug))


def _wrong(
    name: str, sentence: str, bug: str, laws: tuple[str, ...] = ("LN801",), cell: Any = paper,
    operation: str = "ln_lstm", threads: tuple[str, ...] = (),
) -> Mutant:  # fmt: skip
    return Mutant(
        id=f"lstm-{name}", bug=sentence, operation=operation, framework="torch",
        target=functools.partial(cell, bug=bug), laws=laws, threads=threads,
    )  # fmt: skip


MUTANTS = [
    _wrong("one-norm", "one LN over U x + V h in the place of one each", "one norm",
           threads=("tensorflow/tensorflow#15861",)),
    _wrong("gate-by-gate", "each gate is normalised on its own, not all at once", "gate by gate"),
    _wrong("gate-order", "o and g change places", "gate order", threads=("pytorch/pytorch#11335",)),
    _wrong("bias-dropped", "the bias of the gates is dropped", "bias dropped",
           threads=("tensorflow/tensorflow#13600", "tensorflow/addons#210")),
    _wrong("bias-inside", "the bias is added before the LN of U x", "bias inside"),
    _wrong("forget-bias", "1 is added to the bias of every gate", "forget bias"),
    _wrong("not-normalised", "the gates are not normalised", "not normalised", threads=("seba-1511/lstms.pth#3",)),
    _wrong("carry", "LN(c) is carried on", "carry", threads=("tensorflow/addons#210", "lmnt-com/haste#1")),
    _wrong("c-read", "LN is applied to c as it enters", "c read"),
    _wrong("c-plain", "h reads c without LN", "h not through LN"),
    _wrong("unbiased", "variances are divided by one less", "unbiased"),
    _wrong("eps-outside", "eps is added outside the root", "eps outside"),
    _wrong("over-the-batch", "statistics are taken over the batch", "over the batch",
           threads=("GokuMohandas/fast-weights#9",)),
    _wrong("c-detached", "no gradient reaches the c before", "state detached", ("LN802",)),
    _wrong("per-gate-stacked", "one LN over all gates", "stacked", cell=per_gate, operation="ln_lstm_per_gate"),
    _wrong("plain-cell-no-tanh", "h is o c without tanh", "no tanh", cell=per_gate_plain_cell,
           operation="ln_lstm_per_gate_plain_cell"),
    _wrong("cell-only-unbiased", "the variance of c is divided by H - 1", "unbiased", cell=cell_only,
           operation="ln_lstm_cell_only"),
    _wrong("carry-plain", "c is carried on as it is", "", operation="ln_lstm_carry_normalised"),
]  # fmt: skip


def carry_normalised(
    x: Any, state: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain_h: Any = None, shift_h: Any = None,
    gain_x: Any = None, shift_x: Any = None, gain_c: Any = None, shift_c: Any = None, eps: float = 1e-5,
) -> tuple[Any, tuple[Any, Any]]:  # fmt: skip
    """The paper's gates, LN(c) carried on; the state is a pair, as of torch.nn.LSTM."""
    h, c = state
    z = _norm(x @ weight_ih.T, gain_x, shift_x, eps) + _norm(h @ weight_hh.T, gain_h, shift_h, eps)
    i, f, g, o = (z if bias is None else z + bias).chunk(4, 1)
    cy = _norm(f.sigmoid() * c + i.sigmoid() * g.tanh(), gain_c, shift_c, eps)
    hy = o.sigmoid() * cy.tanh()
    return hy, (hy, cy)


def by_unbind(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain_h: Any = None, shift_h: Any = None,
    gain_x: Any = None, shift_x: Any = None, gain_c: Any = None, shift_c: Any = None, eps: float = 1e-5,
) -> tuple[Any, Any]:  # fmt: skip
    """Norms by hand on raw sums, a r - mu r; gates by unbind; sigmoid by tanh."""

    def norm(a: Any, gain: Any, shift: Any) -> Any:
        mean = a.mean(1, keepdim=True)
        r = 1 / torch.sqrt((a - mean).pow(2).mean(1, keepdim=True) + eps)
        y = a * r - mean * r
        y = y if gain is None else gain * y
        return y if shift is None else y + shift

    units = h.shape[1]
    z = norm(torch.nn.functional.linear(h, weight_hh), gain_h, shift_h)
    z = z + norm(torch.nn.functional.linear(x, weight_ih), gain_x, shift_x)
    i, f, g, o = (z if bias is None else bias + z).reshape(-1, 4, units).unbind(1)

    def gate(v: Any) -> Any:
        return 0.5 * torch.tanh(0.5 * v) + 0.5

    cy = gate(f) * c + gate(i) * torch.tanh(g)
    return gate(o) * torch.tanh(norm(cy, gain_c, shift_c)), cy


def joined(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain: Any = None, shift: Any = None,
    gain_c: Any = None, shift_c: Any = None, eps: float = 1e-5,
) -> tuple[Any, Any]:  # fmt: skip
    """One product of [h, x] for all gates, and one layer norm over a gate axis."""
    units = h.shape[1]
    both = torch.cat([weight_hh, weight_ih], 1)
    a = torch.nn.functional.linear(torch.cat([h, x], 1), both, bias).reshape(-1, 4, units)
    z = torch.nn.functional.layer_norm(a, (units,), None, None, eps)
    z = z if gain is None else z * gain.reshape(4, units)
    z = z if shift is None else z + shift.reshape(4, units)
    i, f, g, o = z.unbind(1)
    cy = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
    return o.sigmoid() * _norm(cy, gain_c, shift_c, eps).tanh(), cy


def _right(name: str, description: str, operation: str, cell: Any) -> Correct:
    return Correct(f"lstm-{name}", description, operation=operation, framework="torch", target=cell)


CORRECT = [
    _right("paper", "two products, a layer norm each", "ln_lstm", paper),
    _right("by-unbind", "norms by hand as a r - mu r, gates by unbind, sigmoid by tanh", "ln_lstm", by_unbind),
    _right("per-gate", "a layer norm for each gate", "ln_lstm_per_gate", per_gate),
    _right("joined", "one product of joined inputs, one norm over a gate axis", "ln_lstm_per_gate", joined),
    _right("plain-cell", "a layer norm for each gate, none of c", "ln_lstm_per_gate_plain_cell", per_gate_plain_cell),
    _right("cell-only", "a layer norm of c alone", "ln_lstm_cell_only", cell_only),
    _right("carry-normalised", "LN(c) carried on, the state a pair", "ln_lstm_carry_normalised", carry_normalised),
]
