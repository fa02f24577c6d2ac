"""Settings of torch that outlive a call: a subject that changes one changes the programs around it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

SUBNORMAL = 2.0**-1060  # in float64


def settings() -> dict[str, Any]:
    """Their values by name."""
    import torch

    return {
        "grad mode": torch.is_grad_enabled(),
        "default dtype": torch.get_default_dtype(),
        "number of threads": torch.get_num_threads(),
        "flushing of subnormal numbers": float(torch.tensor(SUBNORMAL, dtype=torch.float64) * 1.0) == 0.0,
        "deterministic algorithms": torch.are_deterministic_algorithms_enabled(),
        "float32 matmul precision": torch.get_float32_matmul_precision(),
    }


@contextlib.contextmanager
def grad_mode_kept(changed: list[str]) -> Iterator[None]:
    """Add the grad mode to what is changed where it is another one at the end; whoever leaves a mode puts it back."""
    import torch

    before = torch.is_grad_enabled()
    try:
        yield
    finally:
        if torch.is_grad_enabled() != before:
            torch.set_grad_enabled(before)
            changed.append("the setting 'grad mode' of torch")


@contextlib.contextmanager
def running_on(threads: int | None) -> Iterator[None]:
    """So many threads for torch while it lasts, and those of before afterwards; None leaves it as it is."""
    import torch

    before = torch.get_num_threads()
    if threads is None or threads == before:
        yield
        return
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def restored(before: dict[str, Any]) -> list[str]:
    """Put the settings back to what they were; 'the setting ...' for each that had changed."""
    import torch

    back: dict[str, Callable[[Any], Any]] = {
        "grad mode": torch.set_grad_enabled,
        "default dtype": torch.set_default_dtype,
        "number of threads": torch.set_num_threads,
        "flushing of subnormal numbers": torch.set_flush_denormal,
        "deterministic algorithms": torch.use_deterministic_algorithms,
        "float32 matmul precision": torch.set_float32_matmul_precision,
    }
    changed = [name for name, value in settings().items() if value != before[name]]
    for name in changed:
        back[name](before[name])
    return [f"the setting '{name}' of torch" for name in changed]
