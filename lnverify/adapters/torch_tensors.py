"""FloatArray to torch tensor and back, by bits: no floating-point conversion anywhere in this file."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import numpy as np

from lnverify.adapters.layouts import Placed, place
from lnverify.floats import FORMATS, BitsArray, FloatArray

SIGNED: dict[str, type[np.signedinteger[Any]]] = {
    "float64": np.int64,
    "float32": np.int32,
    "float16": np.int16,
    "bfloat16": np.int16,
}
LARGEST = 1 << 28  # elements that are copied; beyond it a shape is wrong, an expanded scalar say
NATIVE: dict[str, type[np.floating[Any]]] = {
    "float64": np.float64,
    "float32": np.float32,
    "float16": np.float16,
}


@functools.cache
def _integers() -> dict[Any, tuple[str, Any]]:
    """By torch dtype: our name and the integer dtype of the same width."""
    import torch

    widths = {2: torch.int16, 4: torch.int32, 8: torch.int64}
    return {getattr(torch, name): (name, widths[f.bits().itemsize]) for name, f in FORMATS.items()}


@dataclass(frozen=True, eq=False)
class Held:
    """A tensor that the subject is given, with what is needed to see whether it was changed."""

    tensor: Any
    placed: Placed
    pristine: BitsArray
    storage: Any = None  # the whole storage on another device; on the CPU it is placed.buffer itself

    def changed(self) -> bool:
        """Whether any bit of the whole storage, or the tensor's shape or place, is not what it was."""
        if tuple(self.tensor.shape) != self.placed.view.shape:
            return True
        now = self.placed.view if self.placed.sparse else self.placed.buffer
        if self.storage is not None:
            now = to_bits(self.storage)
        return bool((now != self.pristine).any())


def hold(array: FloatArray, layout: str, device: str) -> Held:
    """A tensor with the bits of the array, in that layout, on that device, over memory of its own."""
    import torch

    placed = place(array, layout, negative=False, sparse=device == "cpu")
    plain = layout == "contiguous" or placed.buffer.size == 0
    pristine = array.bits.reshape(-1) if plain else array.bits if placed.sparse else placed.buffer.copy()
    if plain and device == "cpu":
        return Held(to_tensor(placed.view, array.dtype), placed, pristine)
    # A view of the whole storage, as slicing in torch makes it: with an offset of its own.
    storage = to_tensor(placed.buffer, array.dtype)
    storage = storage if device == "cpu" else storage.to(device)
    tensor = torch.as_strided(storage, placed.view.shape, placed.strides, placed.offset)
    return Held(tensor, placed, pristine, None if device == "cpu" else storage)


def to_tensor(bits: BitsArray, dtype: str) -> Any:
    """A tensor on the CPU over the memory of the bits."""
    import torch

    if dtype in NATIVE:
        return torch.from_numpy(bits.view(NATIVE[dtype]))
    return torch.from_numpy(bits.view(SIGNED[dtype])).view(getattr(torch, dtype))


def to_bits(tensor: Any) -> BitsArray:
    """A fresh array of the bits of a tensor."""
    name, integer = _integers()[tensor.dtype]
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        tensor = tensor.cpu()
    bits: BitsArray = tensor.contiguous().view(integer).numpy().copy()
    return bits.view(FORMATS[name].bits)


def to_array(tensor: Any, name: str) -> FloatArray:
    """The bits of what a subject returned. Raises TypeError if it is no tensor of a known format."""
    import torch

    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"{name} is a {type(tensor).__name__}, a tensor is expected")
    if tensor.dtype not in _integers():
        raise TypeError(f"{name} has dtype {str(tensor.dtype)[6:]}, one of {', '.join(FORMATS)} is expected")
    if tensor.numel() > LARGEST:
        raise TypeError(f"{name} has shape {tuple(tensor.shape)}, more than {LARGEST} elements")
    return FloatArray(_integers()[tensor.dtype][0], to_bits(tensor))
