"""A layer norm in NumPy to be timed, and a clock that advances by what is called, not by time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

KERNEL = """
import numpy as np

def ln(x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type({eps}))
    y = d * rstd
    y = y if weight is None else y * weight
    return y if bias is None else y + bias

def ln_backward(dy, x, weight=None, bias=None, eps=1e-5):
    d = x - x.mean(-1, keepdims=True)
    rstd = 1 / np.sqrt((d * d).mean(-1, keepdims=True) + x.dtype.type(eps))
    xhat, g = d * rstd, dy if weight is None else dy * weight
    dx = rstd * (g - g.mean(-1, keepdims=True) - xhat * (g * xhat).mean(-1, keepdims=True))
    return dx, (dy * xhat).sum(0), dy.sum(0)
"""


def kernel(folder: Path, name: str = "kernels.py", eps: str = "eps") -> str:
    """Write the file, right or with another eps; the target of its forward and backward."""
    (folder / name).write_text(KERNEL.format(eps=eps))
    return f"./{name}:ln?backward=ln_backward"


class FakeTime:
    """Seconds that pass only where `passing` says so, and 0.1 us for each look at the clock."""

    def __init__(self) -> None:
        self.now = 0.0

    def read(self) -> float:
        self.now += 1e-7
        return self.now

    def passing(self, seconds: float) -> Callable[[], None]:
        """A call that takes that long."""

        def call() -> None:
            self.now += seconds

        return call


WORK = [0.0]  # seconds that counted kernels say they took

COUNTED = """
from tests.timing_samples import WORK

def _work(seconds):
    WORK[0] += seconds
"""


def counted_kernel(folder: Path, cost: float, name: str = "kernels.py", statistics: str = "d") -> str:
    """A kernel whose forward and backward say that they take `cost` ms; the target.

    statistics: what stands for the deviations d in the variance, 'bf16(d)' for an accuracy that is lost.
    """
    source = KERNEL.format(eps="eps").replace("(d * d).mean(-1, keepdims=True)", f"variance({statistics}, x)", 1)
    source = source.replace("    d = x -", f"    _work({cost} * 1e-3)\n    d = x -")
    source += """
def variance(d, x):
    return (d * d).mean(-1, keepdims=True)

def bf16(d):
    bits = np.ascontiguousarray(d, dtype=np.float32).view(np.uint32)
    return (bits & np.uint32(0xFFFF0000)).view(np.float32)
"""
    (folder / name).write_text(COUNTED + source)
    return f"./{name}:ln?backward=ln_backward"


class WorkTime(FakeTime):
    """Seconds that pass where a counted kernel says so, in whichever module it lives."""

    def read(self) -> float:
        self.now += 1e-7
        return self.now + WORK[0]
