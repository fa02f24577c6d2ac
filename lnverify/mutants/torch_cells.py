"""Layer-normalised recurrent cells in torch, wrong ones with one named bug each, and right ones."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants import Correct, Mutant


def _norm(a: Any, weight: Any, bias: Any, eps: float) -> Any:
    return torch.nn.functional.layer_norm(a, (a.shape[-1],), weight, bias, eps)


# Wrong


def cell_normalized_apart(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The two products are normalised apart, and added afterwards."""
    parts = _norm(x @ weight_ih.T, weight, bias, eps) + _norm(h @ weight_hh.T, weight, None, eps)
    return torch.tanh(parts)


def cell_bias_after_tanh(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The bias is added to the new state, not under tanh."""
    y = torch.tanh(_norm(x @ weight_ih.T + h @ weight_hh.T, weight, None, eps))
    return y if bias is None else y + bias


def cell_unbiased(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The variance is divided by H - 1."""
    a = x @ weight_ih.T + h @ weight_hh.T
    y = (a - a.mean(1, keepdim=True)) * torch.rsqrt(a.var(1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return torch.tanh(y if bias is None else y + bias)


def cell_state_detached(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """No gradient reaches the state before, as if every sequence were one step long."""
    return torch.tanh(_norm(x @ weight_ih.T + h.detach() @ weight_hh.T, weight, bias, eps))


def cell_first_statistics() -> Any:
    """A cell that keeps mean and variance of its first step for all later ones with the same weights."""
    kept: dict[Any, Any] = {}

    def cell(
        x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
    ) -> Any:
        a = x @ weight_ih.T + h @ weight_hh.T
        key = (tuple(weight_hh.detach().flatten().tolist()), x.shape, x.dtype, eps)
        if key not in kept:
            kept.clear()
            kept[key] = a.detach().mean(1, keepdim=True), a.detach().var(1, correction=0, keepdim=True)
            return torch.tanh(_norm(a, weight, bias, eps))
        mean, variance = kept[key]
        y = (a - mean) * torch.rsqrt(variance + eps)
        y = y if weight is None else y * weight
        return torch.tanh(y if bias is None else y + bias)

    return cell


def cell_relu_saturated(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The new state is clamped at 6, as by ReLU6."""
    return torch.relu(_norm(x @ weight_ih.T + h @ weight_hh.T, weight, bias, eps)).clamp(max=6)


def _wrong(function: Any, laws: tuple[str, ...] = ("LN801",), **more: Any) -> Mutant:
    sentence = " ".join((function.__doc__ or "").split())
    name = function.__name__.replace("_", "-")
    given = {"operation": "ln_rnn", "framework": "torch", "target": function, "laws": laws, **more}
    return Mutant(id=name, bug=sentence, **given)


MUTANTS = [
    _wrong(cell_normalized_apart),
    _wrong(cell_bias_after_tanh),
    _wrong(cell_unbiased),
    _wrong(cell_state_detached, ("LN802",)),
    _wrong(cell_first_statistics, ("LN803",), fresh=True),
    _wrong(cell_relu_saturated, operation="ln_rnn_relu"),
]


# Right


def cell_by_layer_norm(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Two products, their sum, layer norm, tanh."""
    return torch.tanh(_norm(x @ weight_ih.T + h @ weight_hh.T, weight, bias, eps))


def cell_joined(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """One product of joined inputs and weights; a r - mu r; tanh by two exponentials."""
    a = torch.cat([x, h], 1) @ torch.cat([weight_ih, weight_hh], 1).T
    mean = a.mean(1, keepdim=True)
    r = torch.rsqrt((a - mean).square().mean(1, keepdim=True) + eps)
    z = a * r - mean * r
    z = z if weight is None else z * weight
    z = z if bias is None else z + bias
    return 2 * torch.sigmoid(2 * z) - 1


def cell_relu(
    x: Any, h: Any, weight_ih: Any, weight_hh: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Two products, their sum, layer norm, the larger one of it and 0."""
    return torch.relu(_norm(x @ weight_ih.T + h @ weight_hh.T, weight, bias, eps))


CORRECT = [
    Correct("cell-by-layer-norm", "two products, layer norm, tanh", operation="ln_rnn", framework="torch",
            target=cell_by_layer_norm),
    Correct("cell-joined", "one joined product, tanh as 2 sigmoid(2 z) - 1", operation="ln_rnn", framework="torch",
            target=cell_joined, dtypes=("float64", "float32")),
    Correct("cell-relu", "two products, layer norm, relu", operation="ln_rnn_relu", framework="torch",
            target=cell_relu),
]  # fmt: skip
