"""Parts of cells and blocks with a backward and a forward mode of their own, and cells that are made of them.

A part that saves what its forward computed, as fused kernels do, has the right gradients; whether these can be
differentiated again depends on what it saves. Torch knows the graph of inputs and of outputs; whatever else is saved is
a constant.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from lnverify.mutants import Correct, Mutant


class Softmax(torch.autograd.Function):
    """Softmax of the last dimension; `bug` names what is wrong."""

    @staticmethod
    def forward(scores: Tensor, bug: str) -> Any:
        """The weights, and again, as a number that is saved."""
        weights = torch.softmax(scores, -1)
        return weights, weights.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        """Save the weights that are returned, which have a graph, or those that have none."""
        ctx.bug = inputs[1]
        ctx.mark_non_differentiable(output[1])
        kept = output[1 if ctx.bug == "weights constant" else 0]
        ctx.save_for_backward(kept)
        ctx.save_for_forward(kept)

    @staticmethod
    def backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, None]:
        """w (dy - sum w dy)."""
        (weights,) = ctx.saved_tensors
        return weights * (dy - (weights * dy).sum(-1, keepdim=True)), None

    @staticmethod
    def jvp(ctx: Any, t: Tensor, _: Any) -> tuple[Any, None]:
        """w (t - sum w t)."""
        (weights,) = ctx.saved_tensors
        mean = 0.0 if ctx.bug == "sum without tangent" else (weights * t).sum(-1, keepdim=True)
        return weights * (t - mean), None


SOFTMAX = ("own softmax", "weights constant", "sum without tangent")  # the first is right


def _gates(z: Tensor) -> Tensor:
    """i, f, g, o of their arguments, stacked."""
    i, f, g, o = z.chunk(4, 1)
    return torch.cat([i.sigmoid(), f.sigmoid(), g.tanh(), o.sigmoid()], 1)


class _Pointwise(torch.autograd.Function):
    """(z, c) -> h = sigma(o) tanh(c'), c' = sigma(f) c + sigma(i) tanh(g); `bug` names what is wrong."""

    @staticmethod
    def forward(z: Tensor, c: Tensor, bug: str) -> Any:
        """h, c', and the gates, as numbers that are saved."""
        gates = _gates(z)
        i, f, g, o = gates.chunk(4, 1)
        cy = f * c + i * g
        return o * cy.tanh(), cy, gates

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        """Save the inputs, and the gates, which have no graph."""
        z, c, ctx.bug = inputs
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(z, c, output[2])
        ctx.save_for_forward(z, c, output[2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor, dcy: Tensor, _: Any) -> tuple[Any, ...]:
        """From z and c, or from the gates as they were saved."""
        z, c, saved = ctx.saved_tensors
        i, f, g, o = (saved if ctx.bug == "gates constant" else _gates(z)).chunk(4, 1)
        dy = dy.detach() if ctx.bug == "cotangent constant" else dy
        t = (f * c + i * g).tanh()
        dc = dcy + dy * o * (1 - t * t)
        dz = [dc * g * i * (1 - i), dc * c * f * (1 - f), dc * i * (1 - g * g), dy * t * o * (1 - o)]
        return torch.cat(dz, 1), dc * f, None

    @staticmethod
    def jvp(ctx: Any, tz: Tensor, tc: Tensor, _: Any) -> tuple[Any, ...]:
        """Along z and c, or along z alone."""
        _, c, saved = ctx.saved_tensors
        i, f, g, o = saved.chunk(4, 1)
        ti, tf, tg, to = tz.chunk(4, 1)
        t = (f * c + i * g).tanh()
        tcy = ti * i * (1 - i) * g + tf * f * (1 - f) * c + tg * (1 - g * g) * i
        tcy = tcy if ctx.bug == "state without tangent" else tcy + f * tc
        return to * o * (1 - o) * t + o * (1 - t * t) * tcy, tcy, None


class _Once(_Pointwise):
    """The same, which says that it can be differentiated once only, and has no forward mode."""

    backward = staticmethod(torch.autograd.function.once_differentiable(_Pointwise.backward))
    jvp = torch.autograd.Function.jvp


def fused(
    x: Any, h: Any, c: Any, weight_ih: Any, weight_hh: Any, bias: Any = None, gain: Any = None, shift: Any = None,
    eps: float = 1e-5, bug: str = "", part: Any = _Pointwise,
) -> tuple[Any, Any]:  # fmt: skip
    """One LN of W [h, x] + bias for each gate, then everything pointwise in one part."""
    units = h.shape[1]
    a = torch.nn.functional.linear(torch.cat([h, x], 1), torch.cat([weight_hh, weight_ih], 1), bias)
    z = torch.nn.functional.layer_norm(a.reshape(-1, 4, units), (units,), None, None, eps).reshape(a.shape)
    z = z if gain is None else z * gain
    y, cy, _ = part.apply(z if shift is None else z + shift, c, bug)
    return y, cy


def _wrong(name: str, sentence: str, bug: str, laws: tuple[str, ...]) -> Mutant:
    return Mutant(id=f"lstm-{name}", bug=sentence, operation="ln_lstm_per_gate_plain_cell", framework="torch",
                  target=functools.partial(fused, bug=bug), laws=laws, dtypes=("float64", "float32"))  # fmt: skip


def _right(name: str, description: str, **more: Any) -> Correct:
    return Correct(f"lstm-{name}", description, operation="ln_lstm_per_gate_plain_cell", framework="torch",
                   target=functools.partial(fused, **more))  # fmt: skip


MUTANTS = [
    _wrong("gates-constant", "the backward takes the gates as they were saved, without a graph", "gates constant",
           ("LN814",)),
    _wrong("cotangent-constant", "the backward takes the cotangent of h for a constant", "cotangent constant",
           ("LN814",)),
    _wrong("state-without-tangent", "the forward mode does not go through c", "state without tangent", ("LN813",)),
]  # fmt: skip
CORRECT = [
    _right("pointwise", "everything behind the norms in one part, which can be differentiated again"),
    _right("once", "the same, differentiable once, which it says", part=_Once),
]
