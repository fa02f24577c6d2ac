"""Arrays that a subject writes its results into (`out=`, kernels in the style of C), with guard bands around them.

Rules of this file: every call gets fresh arrays. What the forward writes into is full of NaN, what a backward writes
into is 0, for some kernels add to it. A band of a row and more lies on either side, filled with bits that no
result has; a bit of it that changes was written out of bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lnverify.adapters.signature import DESTINATIONS, Signature
from lnverify.floats import FORMATS, BitsArray
from lnverify.protocol import Request

BAND = 64  # elements
GUARD = 0x5A  # of every byte
FORWARD, BACKWARD = DESTINATIONS[:3], DESTINATIONS[3:]
WIDE = {"float64": "float64"}  # of statistics; float32 for all others


def results(signature: Signature, declared: tuple[str, ...] | None) -> tuple[str, ...]:
    """Names of what a forward returns: as declared, or what it writes into."""
    written = tuple(name for name in FORWARD if name in signature.wants)
    return written if written and declared in (None, ("y",)) else declared or ("y",)


@dataclass(frozen=True, eq=False)
class Destination:
    """A flat buffer of bits with the place of the array in it."""

    buffer: BitsArray
    dtype: str
    shape: tuple[int, ...]
    band: int

    @property
    def inner(self) -> BitsArray:
        """The bits of the array, a view."""
        return self.buffer[self.band : self.buffer.size - self.band].reshape(self.shape)

    @property
    def intact(self) -> bool:
        """Whether both bands are as they were."""
        bands = np.concatenate([self.buffer[: self.band], self.buffer[self.buffer.size - self.band :]])
        return bool((bands.view(np.uint8) == GUARD).all())


def destinations(
    signature: Signature, request: Request, names: tuple[str, ...], given_as: Callable[[str], str] = str
) -> dict[str, Destination]:
    """Fresh ones, by name, for those of `names` that the signature asks for; none for a parameter that is absent.

    given_as: the dtype in which arrays of a storage dtype are given.
    """
    found: dict[str, Destination] = {}
    x = request.arrays["x"]
    batch = x.shape[: len(x.shape) - len(request.normalized_shape)]
    for name in names:
        if name not in signature.wants:
            continue
        argument = request.arrays.get(name[1:]) if name.startswith("d") else x
        if argument is None:
            continue
        statistics = name in ("mean", "rstd")
        dtype = WIDE.get(x.dtype, "float32") if statistics else given_as(argument.dtype)
        found[name] = _fresh(dtype, batch if statistics else argument.shape, x.shape[-1:], name.startswith("d"))
    return found


def _fresh(dtype: str, shape: tuple[int, ...], row: tuple[int, ...], zeros: bool) -> Destination:
    # A multiple of BAND, which keeps the alignment of the buffer.
    fmt, band = FORMATS[dtype], BAND * (2 + int(np.prod(row, dtype=int)) // BAND)
    size = int(np.prod(shape, dtype=int))
    buffer = np.full((size + 2 * band) * np.dtype(fmt.bits).itemsize, GUARD, dtype=np.uint8).view(fmt.bits)
    made = Destination(buffer, dtype, shape, band)
    made.inner[...] = 0 if zeros else np.array(-1, dtype=np.int64).astype(fmt.bits)  # all ones: a NaN in every format
    return made


@dataclass(frozen=True, eq=False)
class Writing:
    """The signature of a callable that writes into arrays; `call` is what Signature.call is.

    names: FORWARD or BACKWARD. given_as: the dtype in which arrays of a storage dtype are given. give: an array of the
    framework over a destination, and what brings its bits back into the buffer. overrun: filled with 'the memory around
    y', for each whose bands were written into.
    """

    signature: Signature
    request: Request
    names: tuple[str, ...]
    give: Callable[[Destination], tuple[Any, Callable[[], None]]]
    overrun: list[str]
    given_as: Callable[[str], str] = str

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Call it; what it wrote by our names where it returns None."""
        made = destinations(self.signature, self.request, self.names, self.given_as)
        given = {name: self.give(destination) for name, destination in made.items()}
        arrays = {name: array for name, (array, _) in given.items()}
        returned = self.signature.call(function, {**values, **arrays})
        for name, destination in made.items():
            given[name][1]()
            text = f"the memory around {name}"
            if not destination.intact and text not in self.overrun:
                self.overrun.append(text)
        return arrays if returned is None and arrays else returned
