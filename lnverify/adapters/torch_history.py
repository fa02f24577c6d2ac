"""What happens around a call of a torch subject besides the call itself (Request.history).

Rules of this file: what is changed in place is put back bit by bit; the other numbers are finite and ordinary, in the
memory and of the shape of those asked for.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

Tensors = Mapping[str, Any]
ROUNDS = 8  # calls of each of two threads


def _other(tensor: Any) -> Any:
    """Other numbers in a tensor of the same shape: another mean, spread and order."""
    flipped = tensor.detach().flip(-1) if tensor.dim() else tensor.detach()
    return flipped.nan_to_num(1.0, 1.0, 1.0).clamp(-8, 8) * -0.5 + 3


@contextlib.contextmanager
def overwritten(leaves: Tensors) -> Iterator[None]:
    """Other numbers in the memory of the leaves while it lasts; their own afterwards."""
    import torch

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


def at_once(leaves: Tensors, call: Callable[[Tensors], Any], first: Callable[[Any], Any]) -> Any:
    """y of a call that runs in one thread while another thread calls on other numbers, eight times each.

    The y that differs in bits from the first, where there is one: one wrong result among many is to be judged.
    first: takes what the subject returned apart. Raises what the subject raises in either thread.
    """
    import torch

    results: list[Any] = []
    problems: list[BaseException] = []
    start = threading.Barrier(2)

    def repeat(given: Tensors, keep: bool) -> None:
        try:
            start.wait(10)
            with torch.no_grad():
                for _ in range(ROUNDS):
                    y = first(call(given))
                    if keep:
                        results.append(y)
        except BaseException as error:  # handed on to the thread that asks
            problems.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [
            threading.Thread(target=repeat, args=(dict(leaves), True), daemon=True),
            threading.Thread(target=repeat, args=(others(leaves), False), daemon=True),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    if problems:
        raise problems[0]
    odd = (y for y in results if not torch.equal(y.nan_to_num(), results[0].nan_to_num()))
    return next(odd, results[0])
