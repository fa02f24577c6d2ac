"""A few rows repeated to very many, and what a torch subject makes of them: nothing large leaves this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lnverify.floats import FloatArray
from lnverify.protocol import BETWEEN, live_rows

BLOCK = 1 << 22  # elements that are compared at a time
SHOWN = 64  # rows that are given back
Tensors = Mapping[str, Any]


def repeated(run: Any, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
    """Give what is wanted of very many rows (Request.repeat).

    run: the request in progress (torch_call). Raises MemoryError, before anything is allocated, where it may not
    fit.
    """
    import torch

    x, rows = leaves["x"].detach(), run.request.repeat
    period, n = x.shape[0], x[0].numel()
    need, free = rows * n * (2 * x.element_size() + BETWEEN), _free(x.device)
    if need > free:
        raise MemoryError(f"{need / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free")
    step = period * max(BLOCK // (period * n), 1)
    block = x.repeat(step // period, *[1] * (x.dim() - 1))
    many = torch.empty((rows, *x.shape[1:]), dtype=x.dtype, device=x.device)
    for start in range(0, rows, step):
        many[start : start + step] = block[: rows - start]
    if "y" not in run.request.wanted:
        _gradients(run, {**leaves, "x": many}, call, period)
        return
    with torch.no_grad():
        y = run.first(call({**leaves, "x": many}))
    _demand(y, many)
    run.give("y", y[:period])
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[y.element_size()]
    bits = y.detach().reshape(rows, n).view(whole)
    _odd(run, y, bits, bits[:period].repeat(step // period, 1))


def _gradients(run: Any, leaves: dict[str, Any], call: Callable[[Tensors], Any], period: int) -> None:
    """The gradients of very many rows, dy being zero in most."""
    import torch

    many, names = leaves["x"], run.request.requires_grad
    leaves["x"] = many.requires_grad_("x" in names)
    with torch.enable_grad():
        y = run.first(call(leaves))
    _demand(y, many)
    if not y.requires_grad:
        return
    run.state.phase = "backward"
    live = torch.tensor(live_rows(len(many), period), device=many.device)
    dy = torch.zeros_like(y, memory_format=torch.contiguous_format)
    dy[live] = run.fresh("dy")[live % period]
    found = torch.autograd.grad(y, [leaves[name] for name in names], dy, allow_unused=True)
    for name, grad in zip(names, found, strict=True):
        if grad is None or f"d{name}" not in run.request.wanted:
            continue
        run.give(f"d{name}", grad[live] if name == "x" else run.as_asked(grad, name, leaves))
        if name == "x":
            rest = grad.detach().reshape(len(many), -1).clone()
            rest[live] = 0
            _odd(run, grad, rest, torch.zeros_like(rest[:1]))


def _demand(y: Any, x: Any) -> None:
    if y.shape != x.shape:
        raise TypeError(f"y has shape {tuple(y.shape)}, {tuple(x.shape)} is due")


def _odd(run: Any, tensor: Any, matrix: Any, expected: Any) -> None:
    """Give the rows of a tensor whose values are not the expected ones, at most SHOWN.

    matrix: the values, (rows, n). expected: (rows of a block, n), or one row for all.
    """
    found: list[int] = []
    step = len(expected) if len(expected) > 1 else BLOCK
    for start in range(0, len(matrix), step):
        part = matrix[start : start + step]
        odd = (part != expected[: len(part)]).any(1).nonzero().flatten()
        found += (odd[: SHOWN - len(found)] + start).tolist()
        if len(found) == SHOWN:
            break
    run.give("odd", tensor[found])
    run.state.arrays["odd_rows"] = FloatArray.of(np.array(found, dtype=np.float64), "float64")


def _free(device: Any) -> int:
    """Bytes that are free where the tensors go."""
    import torch

    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    try:
        with open("/proc/meminfo", encoding="ascii") as file:
            return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable"))
    except (OSError, StopIteration, ValueError, IndexError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
