"""Batch norms with running statistics in torch: training that tracks them, and evaluation; wrong and right ones."""

from __future__ import annotations

from typing import Any

import torch

from lnverify.mutants.torch_norms import GRADIENT, affine, normalized, right, wrong

CONVENTION = ("LN811",)


def _axes(x: Any) -> tuple[int, ...]:
    return (0, *range(2, x.dim()))


def _given(x: Any, mean: Any, variance: Any, eps: float) -> Any:
    """x less a mean of each channel, over the root of variance plus eps."""
    return affine(x, torch.rsqrt(variance + eps), -mean * torch.rsqrt(variance + eps))


def _training(x: Any, weight: Any, bias: Any, eps: float) -> Any:
    return affine(normalized(x, _axes(x), eps), weight, bias)


# Wrong


def running_biased(x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
                   momentum: float = 0.1, eps: float = 1e-5) -> Any:  # fmt: skip
    """running_var is brought up to date by the variance divided by N."""
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(x.mean(_axes(x)), momentum)
            running_var.lerp_(x.var(_axes(x), correction=0), momentum)
    return _training(x, weight, bias, eps)


def running_decay(x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
                  momentum: float = 0.1, eps: float = 1e-5) -> Any:  # fmt: skip
    """momentum weighs the old value."""
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(x.mean(_axes(x)), 1 - momentum)
            running_var.lerp_(x.var(_axes(x), correction=1), 1 - momentum)
    return _training(x, weight, bias, eps)


def running_deviation(x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
                      momentum: float = 0.1, eps: float = 1e-5) -> Any:  # fmt: skip
    """running_var is brought up to date by the deviation."""
    if running_mean is not None:
        with torch.no_grad():
            running_mean.lerp_(x.mean(_axes(x)), momentum)
            running_var.lerp_(x.std(_axes(x), correction=1), momentum)
    return _training(x, weight, bias, eps)


def eval_batch_statistics(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Evaluation uses the statistics of the batch."""
    return _training(x, weight, bias, eps)


def eval_eps_outside(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """eps is added to the running deviation."""
    r = 1 / (running_var.sqrt() + eps)
    return affine(affine(x, None, -running_mean), r if weight is None else r * weight, bias)


def eval_training_backward(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """The backward of evaluation is that of training."""
    trained = _training(x, weight, bias, eps)
    return affine(_given(x, running_mean, running_var, eps), weight, bias).detach() + (trained - trained.detach())


def eval_updates(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """Evaluation brings the running mean up to date after it has used it."""
    y = eval_folded(x, running_mean.clone(), running_var, weight, bias, eps)
    with torch.no_grad():
        running_mean.lerp_(x.detach().mean(_axes(x)), 0.1)
    return y


# Right


def eval_folded(
    x: Any, running_mean: Any, running_var: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5
) -> Any:
    """One product and one sum for each number: x (weight r) + (bias - m weight r)."""
    scale = torch.rsqrt(running_var + eps)
    scale = scale if weight is None else scale * weight
    shift = -running_mean * scale
    return affine(x, scale, shift if bias is None else shift + bias)


def running_by_hand(x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
                    momentum: float = 0.1, eps: float = 1e-5) -> Any:  # fmt: skip
    """Running statistics by (1 - momentum) old + momentum new."""
    if running_mean is not None:
        with torch.no_grad():
            running_mean.copy_((1 - momentum) * running_mean + momentum * x.mean(_axes(x)))
            running_var.copy_((1 - momentum) * running_var + momentum * x.var(_axes(x)))
    return _training(x, weight, bias, eps)


MUTANTS = [
    wrong("batch_norm", running_biased, CONVENTION),
    wrong("batch_norm", running_decay, CONVENTION),
    wrong("batch_norm", running_deviation, ("LN810",)),
    wrong("batch_norm_eval", eval_batch_statistics),
    wrong("batch_norm_eval", eval_eps_outside),
    wrong("batch_norm_eval", eval_training_backward, GRADIENT),
    wrong("batch_norm_eval", eval_updates, ("LN812",)),
]
CORRECT = [right("batch_norm_eval", eval_folded), right("batch_norm", running_by_hand)]
