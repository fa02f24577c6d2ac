"""Lay an array out in memory as a request asks: same shape and values, other strides.

What lies between the elements is NaN, so that code which reads there shows it.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from dataclasses import dataclass
from math import prod

import numpy as np
from numpy.lib.stride_tricks import as_strided

from lnverify.floats import FORMATS, BitsArray, FloatArray, encode

NAN_BITS = {name: int(encode(np.array(np.nan), name)) for name in FORMATS}
OFFSET = 3  # odd, so that no vector load is aligned
MOVED = {"transposed": (-2, -1), "permuted": (1, -1), "swapped": (0, 1)}  # the axis, and where it lies in memory
LARGER = {
    "padded": -1,
    "skipped": 0,
    "sliced": 1,
    "cropped": 2,
}  # the axis along which the array is a part of a larger one
APART = (1 << 31) + 64  # elements from row to row: no row but the first can be reached by an index of 32 bits
FAR_ROWS = 3
# Pages that nobody touches take no memory. Python names the flag from 3.13 on; its value is Linux's.
SPARSE = getattr(mmap, "MAP_NORESERVE", 0x4000 if sys.platform == "linux" else None)


@dataclass(frozen=True, eq=False)
class Placed:
    """A writable array of bits in a buffer of its own. buffer: the whole storage, one-dimensional."""

    buffer: BitsArray
    view: BitsArray
    sparse: bool = False  # a buffer that is not to be read, for it would then take memory

    @property
    def offset(self) -> int:
        """Elements in front of the first one of the view."""
        start = self.view.__array_interface__["data"][0] - self.buffer.__array_interface__["data"][0]
        return int(start) // self.buffer.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        """Steps in elements."""
        return tuple(s // self.buffer.itemsize for s in self.view.strides)


def place(array: FloatArray, layout: str = "contiguous", negative: bool = True, sparse: bool = False) -> Placed:
    """Copy an array into a fresh buffer in that layout, or the nearest that its rank allows (effective).

    negative: whether 'reversed' may use negative steps (torch cannot: 'strided' then). sparse: whether 'far' may be a
    buffer of which little exists ('skipped' otherwise, and where there are not so many addresses).
    """
    bits = array.bits
    rank = bits.ndim
    if layout == "far" and sparse and SPARSE is not None and rank > 1 and bits.size and len(bits) <= FAR_ROWS:
        with contextlib.suppress(OSError):
            return _far(bits)
    if layout == "reversed" and not negative:
        layout = "strided"
    layout = effective(layout, rank)
    if layout in MOVED:
        return _moved(bits, *MOVED[layout])
    if layout == "strided" and bits.size:
        return _part(array, rank - 1, 2, 2 * bits.shape[-1])
    if layout in LARGER and bits.size:
        axis = LARGER[layout] % rank
        step = 2 if layout == "skipped" else 1
        return _part(array, axis, step, bits.shape[axis] * step + (0 if step > 1 else OFFSET))
    if layout == "reversed" and rank:
        buffer = np.ascontiguousarray(bits[..., ::-1])
        buffer = buffer.copy() if buffer is bits or buffer.base is bits else buffer
        return Placed(buffer.reshape(-1), buffer[..., ::-1])
    if layout in ("offset", "shifted"):
        buffer = np.full(bits.size + 2 * OFFSET + 1, NAN_BITS[array.dtype], bits.dtype)
        inner = buffer[OFFSET : OFFSET + bits.size]
        shape = bits.shape
        view = (
            inner.reshape(shape) if layout == "offset" else inner.reshape(*shape[:-2], *shape[:-3:-1]).swapaxes(-1, -2)
        )
        view[...] = bits
        return Placed(buffer, view)
    if layout == "expanded" and bits.size:
        return _expanded(bits)
    buffer = np.array(bits, order="C", copy=True)
    return Placed(buffer.reshape(-1), buffer)


def effective(layout: str, rank: int) -> str:
    """The layout that an array of so many dimensions can have: a simpler one where it has too few."""
    if layout == "far":  # where it cannot be had
        layout = "skipped"
    if layout == "permuted" and rank < 3:
        layout = "transposed"
    if layout == "cropped" and rank < 4:
        layout = "sliced"
    if layout == "shifted" and rank < 2:
        layout = "offset"
    if layout in ("swapped", "sliced") and rank < 3:
        layout = "padded"
    if (layout == "transposed" and rank < 2) or (rank == 0 and layout != "offset"):
        return "contiguous"
    return layout


def _part(array: FloatArray, axis: int, step: int, length: int) -> Placed:
    """Every step-th index along an axis of a larger array, whose other elements are NaN."""
    shape = list(array.shape)
    count = shape[axis]
    shape[axis] = length
    buffer = np.full(shape, NAN_BITS[array.dtype], array.bits.dtype)
    view = buffer[(*(slice(None),) * (axis % len(shape)), slice(0, count * step, step))]
    view[...] = array.bits
    return Placed(buffer.reshape(-1), view)


def _far(bits: BitsArray) -> Placed:
    """Rows 2^31 elements apart, in memory of which only the pages of the rows exist."""
    inner = prod(bits.shape[1:])
    length = (len(bits) - 1) * APART + inner
    pages = mmap.mmap(-1, length * bits.itemsize, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (SPARSE or 0))
    buffer = np.frombuffer(pages, bits.dtype)
    steps = np.array((APART, *(prod(bits.shape[axis + 1 :]) for axis in range(1, bits.ndim)))) * bits.itemsize
    view = as_strided(buffer, bits.shape, tuple(int(step) for step in steps))
    view[...] = bits
    return Placed(buffer, view, sparse=True)


def _moved(bits: BitsArray, source: int, destination: int) -> Placed:
    buffer = np.array(np.moveaxis(bits, source, destination), order="C", copy=True)
    return Placed(buffer.reshape(-1), np.moveaxis(buffer, destination, source))


def _expanded(bits: BitsArray) -> Placed:
    """Step 0 along every dimension along which the array is constant."""
    base = bits
    constant = []
    for dim in range(bits.ndim):
        first = base.take([0], axis=dim)
        constant.append(bool((base == first).all()))
        if constant[-1]:
            base = first
    buffer = np.array(base, order="C", copy=True)
    strides = tuple(0 if same else step for same, step in zip(constant, buffer.strides, strict=True))
    return Placed(buffer.reshape(-1), as_strided(buffer, bits.shape, strides))
