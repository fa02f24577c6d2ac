"""Modules of torch as subjects: the ones that were built, their mode, and a request's tensors as their parameters.

Rule of this file: nothing happens to a module here that a program would not do. In a program parameters stay where they
are and their version counters go up, so that a module which keeps something by address and version is right.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

KEPT = 64  # modules of one subject; the one not used for longest is dropped
RECENT: deque[Any] = deque(maxlen=64)  # the latest parameters, kept alive so that the next ones lie elsewhere
VERSIONS: dict[int, int] = {}  # the latest version of a parameter at an address


def in_mode(module: Any, train: bool) -> Any:
    """The module, in training or evaluation mode."""
    if module.training != train:
        module.train(train)
    return module


def write(parameter: Any, tensor: Any) -> None:
    """Let a parameter be the tensor, with the strides that it has."""
    import torch

    parameter.data = tensor if tensor.shape == parameter.shape else tensor.reshape(parameter.shape)
    RECENT.append(tensor)
    with torch.no_grad():
        parameter.copy_(parameter)  # raises the version, as an optimiser and a checkpoint do


def called_with(module: Any, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The module as a function, with tensors in the place of its parameters and buffers; autograd goes on to them."""
    import torch

    placed = _told_apart(parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, placed, args, kwargs)

    return call


def _told_apart(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors of which none has an address and a version that an earlier one had: memory is given out again.

    Those of a transform have no address, and none can be kept by it.
    """
    import torch

    placed, known = {}, {}
    for name, tensor in parameters.items():
        if tensor.is_inference():  # it has no version, and no parameter is one
            with torch.inference_mode(False):
                tensor = tensor.clone()
        placed[name] = tensor
        try:
            known[tensor.data_ptr()] = tensor
        except RuntimeError:
            continue
    for address, tensor in known.items():
        for _ in range(tensor._version, VERSIONS.get(address, -1) + 1):
            torch.autograd.graph.increment_version(tensor)
    VERSIONS.update((address, tensor._version) for address, tensor in known.items())  # views raise that of each other
    RECENT.extend(placed.values())
    return placed
