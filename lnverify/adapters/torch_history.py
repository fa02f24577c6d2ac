"""What happens around a call of a torch subject besides the call itself (Request.history).

Rules of this file: what is changed in place is put back bit by bit; the other numbers are finite and ordinary, in the
memory and of the shape of those asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from lnverify.adapters.two_threads import at_once
from lnverify.protocol import CROWD, later

Tensors = Mapping[str, Any]


def _other(tensor: Any) -> Any:
    """Other numbers in a tensor of the same shape: another mean, spread and order."""
    flipped = tensor.detach().flip(-1) if tensor.dim() else tensor.detach()
    return flipped.nan_to_num(1.0, 1.0, 1.0).clamp(-8, 8) * -0.5 + 3


def other_eps(eps: float) -> float:
    """An eps that gives other results wherever eps matters."""
    return 1.0 if eps < 0.1 else 1e-5


@contextlib.contextmanager
def overwritten(leaves: Tensors, versioned: bool = True) -> Iterator[None]:
    """Other numbers in the memory of the leaves while it lasts; their own afterwards.

    versioned: whether their version counters tell.
    """
    import torch

    leaves = leaves if versioned else {name: leaf.data for name, leaf in leaves.items()}
    kept = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.copy_(_other(leaf))
    try:
        yield
    finally:
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(kept[name])


def others(leaves: Tensors) -> dict[str, Any]:
    """The leaves with another x, the parameters the same."""
    x = leaves["x"]
    return {**leaves, "x": _other(x).requires_grad_(x.requires_grad)}


def view_alone(history: str, y: Any) -> Any:
    """What is kept of y where y itself is dropped: a view, or the tensor that shares its memory and no more."""
    return y.detach() if history == "detached" else y.view(-1)


def later_calls(leaves: Tensors, call: Callable[[Tensors], Any]) -> list[Any]:
    """What calls on other numbers return, all of it alive."""
    return [call(others(leaves)) for _ in range(later(leaves["x"].numel()))]


def crowd(
    leaves: Tensors, call: Callable[[Tensors], Any], with_other_eps: Callable[[], Callable[[Tensors], Any]] | None
) -> None:
    """CROWD calls on other numbers, whose results stay alive, and one with another eps where the subject takes one."""
    results = [call(others(leaves)) for _ in range(CROWD)]
    if with_other_eps is not None:
        with contextlib.suppress(Exception):
            results.append(with_other_eps()(leaves))


def in_other_precision(history: str, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
    """The call on the same numbers in bfloat16 and, where x is wider, float32 ('lower'), or in float64 ('higher');
    whether the subject takes them does not matter."""
    import torch

    own = leaves["x"].dtype
    lower = (torch.bfloat16, torch.float32) if own == torch.float64 else (torch.bfloat16,)
    for dtype in lower if history == "lower" else (torch.float64,):
        with contextlib.suppress(Exception):
            call({name: leaf.detach().to(dtype) for name, leaf in leaves.items()})


def on_a_stream(leaves: Tensors, call: Callable[[Tensors], Any]) -> Any:
    """What the subject returns on a stream of its own, where its arguments hold other numbers until work that comes
    before it in that stream is done: a kernel in another stream reads those. Raises TypeError elsewhere than on CUDA.
    """
    import torch

    device = leaves["x"].device
    if device.type != "cuda":
        raise TypeError(f"streams belong to CUDA, not to {device.type}")
    kept = {name: leaf.detach().clone() for name, leaf in leaves.items()}
    with torch.no_grad():
        for leaf in leaves.values():
            leaf.copy_(_other(leaf))
    torch.cuda.synchronize(device)
    stream = torch.cuda.Stream(device)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # cycles: some 10 ms
        with torch.no_grad():
            for name, leaf in leaves.items():
                leaf.copy_(kept[name])
        returned = call(leaves)
    torch.cuda.synchronize(device)
    return returned


@contextlib.contextmanager
def _deterministic() -> Iterator[None]:
    """Deterministic algorithms while it lasts; what has none raises."""
    import torch

    before, warns = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=warns)


@contextlib.contextmanager
def surrounded(history: str, device: str) -> Iterator[None]:
    """What is switched on around a call: 'autocast', 'low_default', 'deterministic', or nothing."""
    import torch

    if history == "deterministic":
        with _deterministic():
            yield
        return
    if history == "autocast":
        with torch.autocast(device.partition(":")[0], torch.bfloat16):
            yield
        return
    before = torch.get_default_dtype()
    if history == "low_default":
        torch.set_default_dtype(torch.bfloat16)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def without_gradients(call: Callable[[Tensors], Any]) -> Callable[[Tensors], Any]:
    """The call under no_grad: grad modes belong to a thread."""
    import torch

    def called(given: Tensors) -> Any:
        with torch.no_grad():
            return call(given)

    return called


def while_others_call(
    leaves: Tensors, call: Callable[[Tensors], Any], first: Callable[[Any], Any] | None = None
) -> Any:
    """What the call gives while another thread makes it on other numbers. first: takes what counts out of it."""
    import torch

    def same(one: Any, two: Any) -> bool:
        pairs = zip(one, two, strict=True) if first is None else [(first(one), first(two))]
        return all(a is b or torch.equal(a.nan_to_num(), b.nan_to_num()) for a, b in pairs)

    other = others(leaves)
    return at_once(lambda: call(leaves), lambda: call(other), same)
