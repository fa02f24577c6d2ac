"""A few rows repeated to very many, and what a torch subject makes of them: nothing large leaves this file."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lnverify.floats import FloatArray
from lnverify.protocol import BETWEEN

BLOCK = 1 << 22  # elements that are compared at a time
SHOWN = 64  # rows that are given back
Tensors = Mapping[str, Any]


def repeated(run: Any, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
    """Give y of the first rows, and the rows that differ from theirs (Request.repeat).

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
    with torch.no_grad():
        y = run.first(call({**leaves, "x": many}))
    if y.shape != many.shape:
        raise TypeError(f"y has shape {tuple(y.shape)}, {tuple(many.shape)} is due")
    run.give("y", y[:period])
    whole = {2: torch.int16, 4: torch.int32, 8: torch.int64}[y.element_size()]
    bits = y.detach().reshape(rows, n).view(whole)
    expected = bits[:period].repeat(step // period, 1)
    odd: list[int] = []
    for start in range(0, rows, step):
        part = bits[start : start + step]
        found = (part != expected[: part.shape[0]]).any(1).nonzero().flatten()
        odd += (found[: SHOWN - len(odd)] + start).tolist()
        if len(odd) == SHOWN:
            break
    run.give("odd", y[odd])
    run.state.arrays["odd_rows"] = FloatArray.of(np.array(odd, dtype=np.float64), "float64")


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
