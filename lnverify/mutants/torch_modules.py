"""Mutants that are torch modules: their parameters, their copies, their state, train and eval."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from lnverify.mutants import Mutant
from lnverify.mutants.torch_parts import Module, Shape, affine, output_promoted, statistics, textbook, wide


class EpsNotForwarded(Module):
    """eps is an argument of the constructor, and 1e-5 is used."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        return textbook(x, self.normalized_shape, self.weight, self.bias, 1e-5)


class WeightStartsAtZero(Module):
    """A new module returns its bias."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.weight is not None:
            nn.init.zeros_(self.weight)


class BiasStartsAtOne(Module):
    """A new module adds 1."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.bias is not None:
            nn.init.ones_(self.bias)


class BiasAlways(Module):
    """bias=False is ignored: there is a bias, it is trained and added."""

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, elementwise_affine, True, device, dtype)


class AffineAlways(Module):
    """elementwise_affine=False is ignored."""

    def __init__(
        self,
        normalized_shape: int | Shape,
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(normalized_shape, eps, True, bias, device, dtype)


class StaysWide(Module):
    """.to(bfloat16) and .half() leave the parameters as they are, and y takes their dtype."""

    def _apply(self, fn: Any, recurse: bool = True) -> StaysWide:
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        return output_promoted(x, self.normalized_shape, self.weight, self.bias, self.eps)


class BiasNotInState(Module):
    """The bias is a plain tensor: state_dict and parameters() do not hold it."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.bias is not None:
            values = self.bias.detach().clone().requires_grad_()
            del self._parameters["bias"]
            self.register_buffer("bias", values, persistent=False)


class SharedCopies(Module):
    """A deep copy trains the original."""

    def __deepcopy__(self, memo: dict[int, Any]) -> SharedCopies:
        """A shallow copy: the dictionary of parameters is the same object."""
        return copy.copy(self)


class KeptParameters(Module):
    """The parameters are kept in a list when the module is built, as a fused optimiser wants them."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.flat = [self.weight, self.bias]

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        weight, bias = self.flat
        return textbook(x, self.normalized_shape, weight, bias, self.eps)


class ResetAnew(Module):
    """Resetting makes new parameters: an optimiser goes on with the old ones."""

    def reset_parameters(self) -> None:
        """A weight of ones and a bias of zeros."""
        self.weight = None if self.weight is None else torch.nn.Parameter(torch.ones_like(self.weight))
        self.bias = None if self.bias is None else torch.nn.Parameter(torch.zeros_like(self.bias))


class RegisteredParameters(Module):
    """The parameters are looked up where they are registered, which is not where parametrizations put them."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        weight, bias = (self._parameters.get(name) for name in ("weight", "bias"))
        return textbook(x, self.normalized_shape, weight, bias, self.eps)


class StaleWeight(Module):
    """The weight is copied when the module is built; loading or training does not reach the copy."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.folded = None if self.weight is None else self.weight.detach().clone()

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        weight = self.weight
        if self.folded is not None and not self.training and weight is not None:
            weight = nn.Parameter(self.folded.to(weight.dtype), requires_grad=False)
        return textbook(x, self.normalized_shape, weight, self.bias, self.eps)


class LastTrainingStatistics(Module):
    """In eval mode, the statistics of the last training batch of that shape are used."""

    kept: tuple[Tensor, Tensor] | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        f = wide(x)
        mean, rstd = statistics(f, self.normalized_shape, self.eps)
        if self.training:
            self.kept = (mean.detach(), rstd.detach())
        elif self.kept is not None and self.kept[0].shape == mean.shape:
            mean, rstd = (t.to(f.dtype) for t in self.kept)
        return affine((f - mean) * rstd, self.weight, self.bias).to(x.dtype)


class DropoutInTraining(Module):
    """A dropout of 0.1 was left in the norm: train mode differs from eval, and from itself."""

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        return nn.functional.dropout(super().forward(x), 0.1, self.training)


class RunningMean(Module):
    """A running mean in eval mode, as batch norm has it, with momentum 0.1."""

    running: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        """Normalise the last dimensions of x."""
        f = wide(x)
        mean, rstd = statistics(f, self.normalized_shape, self.eps)
        if x.numel():
            average = mean.detach().mean()
            self.running = average if self.running is None else torch.lerp(self.running.to(f.dtype), average, 0.1)
        used = mean if self.training or self.running is None else self.running.to(f.dtype)
        return affine((f - used) * rstd, self.weight, self.bias).to(x.dtype)


def _m(id: str, bug: str, target: type[Module], threads: tuple[str, ...] = (), laws: tuple[str,
...] = ("LN7",),
       affected: tuple[str, ...] = ("module",), **kwargs: Any) -> Mutant:  # fmt: skip
    return Mutant(id, bug, threads, framework="torch", target=target, laws=laws, affected=affected, **kwargs)


MODULES = [
    _m("module-eps-not-forwarded", "The module does not forward its eps.", EpsNotForwarded,
       ("tensorflow/tensorflow#58863", "huggingface/transformers#38025", "apache/tvm#15856"), ("LN1", "LN7"),
       ("y",)),
    _m("module-weight-zero", "A new module has weight 0.", WeightStartsAtZero,
       ("torch-spyre/torch-spyre#1980",)),
    _m("module-bias-one", "A new module has bias 1.", BiasStartsAtOne),
    _m("module-bias-always", "bias=False still makes, trains and adds a bias.", BiasAlways,
       ("tensorflow/tensorflow#13600",)),
    _m("module-affine-always", "elementwise_affine=False still makes parameters.", AffineAlways,
       ("torch-spyre/torch-spyre#1980",)),
    _m("module-stays-wide", ".to(bfloat16) leaves float32 parameters.", StaysWide,
       ("pytorch/pytorch#81851",)),
    _m("module-state-without-bias", "state_dict holds no bias.", BiasNotInState,
       ("tensorflow/tensorflow#13600",)),
    _m("module-shared-copies", "A deep copy shares its parameters with the original.", SharedCopies),
    _m("module-kept-parameters", "The parameters are kept in a list at construction.", KeptParameters, (), ("LN724",),
       ("y",), hidden=False),
    _m("module-registered-parameters", "Parameters that a parametrization computes are ignored.",
       RegisteredParameters, (), ("LN724",), ("y",)),
    _m("module-reset-anew", "Resetting makes new parameters.", ResetAnew, (), ("LN725",), ("y",)),
    _m("module-stale-weight", "In eval mode, the weight is the one of construction.", StaleWeight,
       ("Hsword/Hetu#17",), ("LN7", "LN1"), ("y",)),
    _m("module-last-statistics", "Eval uses the statistics of the last training batch.",
       LastTrainingStatistics,
       ("Hsword/Hetu#17",), ("LN7", "LN1"), ("y",)),
    _m("module-dropout", "A dropout was left on in train mode.", DropoutInTraining,
       ("Dao-AILab/flash-attention#314",), ("LN7", "LN1"), ("y",), hidden=False),
    _m("module-running-mean", "Eval subtracts a running mean of past calls.", RunningMean,
       ("Hsword/Hetu#17",),
       ("LN7", "LN1"), ("y",)),
]  # fmt: skip
