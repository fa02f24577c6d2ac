"""Modules of torch as subjects: the ones that were built, their mode, and a request's tensors as their parameters.

Rule of this file: nothing happens to a module here that a program would not do. In a program parameters stay where they
are and their version counters go up, so that a module which keeps something by address and version is right. A function
that does is wrong: the tensors of two modules may lie at one place, one after the other.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lnverify.adapters.calling import NoPlaceError

KEPT = 64  # modules of one subject; the one not used for longest is dropped
CHANGES = 8  # more than are made to one tensor in place


def in_mode(module: Any, train: bool) -> Any:
    """The module, in training or evaluation mode."""
    if module.training != train:
        module.train(train)
    return module


def write(parameter: Any, tensor: Any) -> None:
    """Let a parameter be the tensor, with the strides that it has."""
    import torch

    parameter.data = tensor if tensor.shape == parameter.shape else tensor.reshape(parameter.shape)
    with torch.no_grad():
        parameter.copy_(parameter)  # raises the version, as an optimiser and a checkpoint do


def called_with(module: Any, parameters: Mapping[str, Any]) -> Callable[..., Any]:
    """The module as a function, with tensors in the place of its parameters and buffers; autograd goes on to them."""
    import torch

    placed = dict(parameters)

    def call(*args: Any, **kwargs: Any) -> Any:
        return torch.func.functional_call(module, placed, args, kwargs)

    return call


class Places:
    """The places of a module's parameters and buffers, by path.

    What is put there stays until the next call, as in a program: a backward may compute the forward again.
    """

    staying = False  # whether what is put there goes into the tensors that are there

    def __init__(self, module: Any) -> None:
        self.module = module
        self.first = dict((*module.named_parameters(), *module.named_buffers()))
        shared: dict[int, list[tuple[Any, str, str]]] = {}
        for kind in ("_parameters", "_buffers"):
            for owner in module.modules():
                for name, tensor in getattr(owner, kind).items():
                    shared.setdefault(id(tensor), []).append((owner, kind, name))
        self.slots = {path: shared[id(tensor)] for path, tensor in self.first.items()}

    def put(self, tensors: Mapping[str, Any]) -> Any:
        """The module with these tensors; autograd goes on to them."""
        for path, tensor in tensors.items():
            if path not in self.slots:
                raise NoPlaceError(f"a {type(self.module).__name__} of these sizes has no parameter {path}")
            owner, kind, name = self.slots[path][0]
            there = getattr(owner, kind)[name]
            if Places.staying and there.data_ptr() != tensor.data_ptr():
                there.copy_(tensor)
                continue
            for owner, kind, name in self.slots[path]:
                getattr(owner, kind)[name] = tensor
        return self.module


@contextlib.contextmanager
def staying() -> Iterator[None]:
    """While it lasts new parameters are written where those of the call before lie, as an optimiser writes them."""
    Places.staying = True
    try:
        yield
    finally:
        Places.staying = False


class Apart:
    """Tensors of which none has an address and a version that an earlier one had, though memory is given out again.

    Those of one epoch are all kept alive, and so lie apart; those of another epoch have other versions. A view has the
    version of what it is a view on.
    """

    def __init__(self, room: int = 1 << 25) -> None:
        """room: bytes that are kept alive."""
        self.room = room
        self.epoch = self.filled = 0
        self.alive: list[Any] = []

    def add(self, tensor: Any) -> Any:
        """A tensor that is fresh, told apart from all before. One of a transform has no address, and is left alone."""
        import torch

        if tensor.is_inference():  # it has no version, and no parameter is one
            with torch.inference_mode(False):
                tensor = tensor.clone()
        try:
            tensor.data_ptr()
            size = tensor.untyped_storage().nbytes()
        except RuntimeError:
            return tensor
        if self.filled + size > self.room:
            self.alive.clear()
            self.epoch, self.filled = self.epoch + 1, 0
        self.alive.append(tensor.detach())
        self.filled += size
        for _ in range(tensor._version, CHANGES * self.epoch):
            torch.autograd.graph.increment_version(tensor)
        return tensor


APART = Apart()
