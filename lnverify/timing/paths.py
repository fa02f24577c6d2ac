"""Hot paths: what is timed, by shape, dtype and part of the work; their cases and the bytes that each has to move."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod

from lnverify.case import Case
from lnverify.errors import UsageError
from lnverify.floats import FORMATS
from lnverify.recipes import build
from lnverify.subject import Capabilities
from lnverify.support import AFFINE

# Arrays of x's size that go through memory: the forward reads x and writes y, the backward reads x and dy and writes
# dx. Parameters and statistics are left out: under 1 % of the bytes above 32 rows.
ARRAYS = {"forward": 2, "backward": 3, "both": 5}
TEXT = {"forward": "forward", "backward": "backward", "both": "forward+backward"}
SHAPES = ((1, 64), (32, 768), (512, 1024), (4096, 1024))
LARGE = ((4096, 4096), (4096, 8192))
GATE_SHAPES = ((32, 768), (512, 1024))
DRAWN = 256  # rows that are different; more repeat them, for numbers cost time to make, and no layer norm looks at two
SEED = 7


@dataclass(frozen=True)
class HotPath:
    """One thing to time. shape: batch dimensions and N, the last. what: 'forward', 'backward' or 'both'."""

    shape: tuple[int, ...]
    dtype: str
    what: str
    device: str = "cpu"

    @property
    def name(self) -> str:
        """'32x768 float32 forward'."""
        where = "" if self.device == "cpu" else f" {self.device}"
        return f"{'x'.join(map(str, self.shape))} {self.dtype} {TEXT[self.what]}{where}"

    @property
    def bytes(self) -> int:
        """What has to go through memory at least."""
        return ARRAYS[self.what] * prod(self.shape) * int(FORMATS[self.dtype].bits().itemsize)

    @property
    def copied(self) -> int:
        """Elements of a copy that moves as many bytes: it reads each once and writes each once."""
        return ARRAYS[self.what] * prod(self.shape) // 2

    def case(self, able: Capabilities) -> Case:
        """The case, with every parameter that the subject can take."""
        affine = next(mode for mode in AFFINE if mode in able.affine)
        weight, bias = AFFINE[affine]
        rows = prod(self.shape[:-1])
        return build({
            "dtype": self.dtype, "batch": list(self.shape[:-1]), "shape": [self.shape[-1]], "regime": "normal",
            "mean": 0.5, "scale": 0, "weight": weight, "bias": bias, "dy": "normal", "seed": SEED,
            "eps": 1e-5 if able.eps is None else able.eps, "device": self.device, "tile": min(rows, DRAWN),
        })  # fmt: skip


def shape(text: str) -> tuple[int, ...]:
    """'512x1024' as (512, 1024). Raises UsageError."""
    if not re.fullmatch(r"\d+([x×]\d+)+", text) or 0 in (found := tuple(map(int, re.split("[x×]", text)))):
        raise UsageError(f"the shape {text!r} is not rows x N, both from 1: write 512x1024, or 8x128x1024.")
    return found


def paths(
    shapes: Iterable[tuple[int, ...]],
    dtypes: Iterable[str],
    whats: Iterable[str] = tuple(ARRAYS),
    device: str = "cpu",
) -> list[HotPath]:
    """Every combination, shape by shape."""
    kinds, formats = tuple(whats), tuple(dtypes)
    return [HotPath(tuple(s), dtype, what, device) for s in shapes for dtype in formats for what in kinds]
