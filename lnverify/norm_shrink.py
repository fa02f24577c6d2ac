"""Shrink a violating case of a norm other than layer norm: fewer indices along each axis, then simpler numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from lnverify.block import MASK, extents
from lnverify.case import Case
from lnverify.floats import Float64Array, FloatArray
from lnverify.law import Outcome
from lnverify.norms.cases import BY_ROWS
from lnverify.norms.views import view
from lnverify.operation import blocks, operation
from lnverify.shrink import SIMPLE_EPS, Shrinker

OF_X = ("x", "dy", "tx", "vx")  # arrays of x's shape
SIZES = (1, 2, 3, 4, 5, 8)


class NormShrinker(Shrinker):
    """The search of lnverify.shrink with the candidates of these operations."""

    def _rows(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        """The first of the rows alone, then fewer of them; likewise positions."""
        plain = flattened(case)
        if plain is not case:
            yield plain
        axes = (0,) if _matrix(case) or case.has("h") else (0, 1) if case.operation in blocks() else (0, 2)
        for axis in axes:
            yield from self._along(plain, axis)

    def _columns(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        """Fewer columns, or fewer channels; inputs and then units of a cell; heads, their units and hidden ones."""
        if case.operation in blocks():
            for axis in (2, 3, 4):
                yield from self._along(case, axis)
            return
        yield from self._along(flattened(case), 1)
        if case.has("h"):
            yield from self._along(case, 2)

    def _along(self, case: Case, axis: int) -> Iterator[Case]:
        extents = (*case.arrays["x"].shape, *(case.normalized_shape if case.has("h") else ()))
        if case.operation in blocks():
            extents = (*case.arrays["x"].shape[:2], *case.normalized_shape, case.arrays["weight_1"].shape[0])
        size = extents[axis] if axis < len(extents) else 0
        for smaller in sorted({s for s in (*SIZES, size // 2, size - 1) if 0 < s < size}):
            cut = taken(case, axis, smaller)
            if cut is not None:
                yield cut

    def _setting(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        known = operation(case.operation)
        for dropped in ((*known.gains, *known.shifts), known.shifts, known.gains):
            fewer = case.with_arrays(**dict.fromkeys(dropped))
            if fewer.affine != case.affine and fewer.affine in self.affine:
                yield fewer
        if case.eps != SIMPLE_EPS and SIMPLE_EPS in self.eps:
            yield _cut(replace(case, eps=SIMPLE_EPS), dict(case.arrays), case.normalized_shape)

    def _numbers(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        yield from self._simpler_arrays(case)
        x = case.arrays["x"].values
        ladder: Float64Array = np.arange(x.size, dtype=np.float64).reshape(x.shape) % 4
        ladders = [base + ladder for base in (0.0, 10.0, 100.0, 1000.0, 10000.0)]
        if not 0 < x.size <= 64 or any(np.array_equal(x, familiar) for familiar in ladders):
            return
        for familiar in ladders:
            yield self._with(case, "x", familiar)
        for bits in (1, 2, 4, 8):
            mantissa, exponent = np.frexp(x)
            rounded: Float64Array = np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)
            if not np.array_equal(rounded, x):
                yield self._with(case, "x", rounded)


def _matrix(case: Case) -> bool:
    """Whether x can be looked at as rows of numbers."""
    return case.operation in BY_ROWS or case.operation == "weight_norm"


def flattened(case: Case) -> Case:
    """The case with one batch and one normalised dimension, or one of positions; itself where it is so already."""
    x = case.arrays["x"]
    if case.operation in blocks():
        return case
    seen = view(case)
    if _matrix(case):
        shape: tuple[int, ...] = seen.shape
        normalized: tuple[int, ...] = (seen.n,)
    elif len(x.shape) <= 3:
        return case
    else:
        shape = (x.shape[0], x.shape[1], int(np.prod(x.shape[2:])))
        normalized = _normalized(case, shape)
    if x.shape == shape:
        return case
    arrays = {
        name: FloatArray(array.dtype, array.bits.reshape(shape if name in OF_X else _parameter(case, shape)))
        for name, array in case.arrays.items()
    }
    return _cut(case, arrays, normalized)


def taken(case: Case, axis: int, size: int) -> Case | None:
    """The case with the first indices along an axis of x; None where the groups would not come out even."""
    if case.has("h"):
        return _cell(case, axis, size)
    if case.operation in blocks():
        return _block(case, axis, size)
    x = case.arrays["x"].shape
    shape = tuple(size if place == axis else extent for place, extent in enumerate(x))
    normalized = (size,) if _matrix(case) and axis == 1 else case.normalized_shape
    if not _matrix(case):
        if case.operation == "group_norm" and shape[1] % case.normalized_shape[0]:
            return None
        normalized = _normalized(case, shape)
    arrays = {}
    for name, array in case.arrays.items():
        bits = array.bits
        if name in OF_X:
            bits = np.take(bits, range(size), axis=axis)
        elif axis == (0 if case.operation == "weight_norm" else 1):
            bits = bits[:size]
        arrays[name] = FloatArray(array.dtype, np.ascontiguousarray(bits))
    cut = _cut(case, arrays, normalized)
    return cut if view(cut).n > 1 or not operation(case.operation).centred else None


def _cell(case: Case, axis: int, size: int) -> Case | None:
    """A cell with fewer rows, inputs or units (0, 1, 2): of every gate the first ones."""
    known = operation(case.operation)
    cell = known.cell
    if cell is None or (axis == 2 and size < 2):
        return None
    rows, inputs = case.arrays["x"].shape
    extents = cell.extents(rows, inputs, case.n)
    arrays = {}
    for name, array in case.arrays.items():
        letters = "bj" if name in known.cotangents else cell.axes[name]
        kept = tuple(slice(0, size) if letter in ("b", "k", "ij")[axis] else slice(None) for letter in letters)
        bits = array.bits.reshape(tuple(extents[letter] for letter in letters))[kept]
        shape = (-1, *bits.shape[2:]) if letters.startswith("q") else bits.shape
        arrays[name] = FloatArray(array.dtype, np.ascontiguousarray(bits.reshape(shape)))
    return _cut(case, arrays, (size,) if axis == 2 else case.normalized_shape)


def _block(case: Case, axis: int, size: int) -> Case | None:
    """A block with fewer sequences, positions, heads, units of a head or hidden units (0 to 4): the first ones."""
    block = operation(case.operation).block
    heads = list(case.normalized_shape)
    if axis in (2, 3):
        heads[axis - 2] = size
    if block is None or heads[0] * heads[1] < 2:
        return None
    whole = extents(case.arrays["x"].shape, case.normalized_shape, case.arrays["weight_1"].shape[0])
    left = {**whole, **dict.fromkeys(("b", "ts", "g", "e", "f")[axis], size), "i": heads[0] * heads[1]}
    # the units of the model go with those of the heads
    kept = np.arange(whole["i"]).reshape(case.normalized_shape)[: heads[0], : heads[1]].reshape(-1)
    arrays = {}
    for name, array in case.arrays.items():
        letters = {MASK: "ts", "dy": "bti"}.get(name) or block.axes[name]
        bits = array.bits.reshape(tuple(whole[letter] for letter in letters))
        for place, letter in enumerate(letters):
            bits = np.take(bits, kept if letter == "i" else range(left[letter]), axis=place)
        shape = bits.shape if name in (MASK, "dy") else block.shape(name, left)
        arrays[name] = FloatArray(array.dtype, np.ascontiguousarray(bits.reshape(shape)))
    return _cut(case, arrays, tuple(heads))


def _normalized(case: Case, shape: tuple[int, ...]) -> tuple[int, ...]:
    if case.operation.startswith("batch_norm"):
        return (shape[0], *shape[2:])
    if case.operation == "layer_norm_channels":
        return (shape[1],)
    return (case.normalized_shape[0], *shape[2:])


def _parameter(case: Case, shape: tuple[int, ...]) -> tuple[int, ...]:
    return (shape[0], 1) if case.operation == "weight_norm" else (shape[1],)


def _cut(case: Case, arrays: dict[str, FloatArray], normalized: tuple[int, ...]) -> Case:
    cut = replace(case, arrays=arrays, normalized_shape=normalized, recipe=None)
    seen = view(cut)
    label = f"{cut.operation}, x {list(arrays['x'].shape)}, N={seen.n}, {seen.groups} groups, eps={cut.eps:g}"
    return replace(cut, label=label)
