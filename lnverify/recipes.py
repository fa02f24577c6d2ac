"""Recipes: plain data from which a layer-norm case is built, the same bits on every version and machine.

A recipe is a dict that fits in JSON. Its numbers come from raw 64-bit integers of PCG64 (a stream that NumPy
keeps stable) by single IEEE operations, so that a stored recipe is as good as the stored array; reports keep
the SHA-256 of each array to prove it.

Keys: dtype; parameters (dtype of weight and bias, default dtype); batch and shape (lists: leading dimensions,
normalized_shape); regime of x (REGIMES); mean (|mean|/std, signed); scale (x times 2^scale); weight, bias
(WEIGHTS, BIASES or None for absent); dy (DYS or None); eps; grads (list of arguments that require grad);
threads; layouts (dict); seed; tile (that many different rows, repeated); tangents (True: tx, tweight, tbias, vx,
vweight, vbias are drawn too).
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray, scaled

REGIMES = (
    "normal", "rows", "heavy", "outlier", "alternating", "integers", "one_hot", "constant", "step", "zero", "mixed",
)  # fmt: skip
WEIGHTS = ("ones", "normal", "zeros", "zero", "negative", "powers", "huge")  # zeros among others; nothing but zero
BIASES = ("zeros", "normal", "large")
DYS = (
    "normal", "ones", "expanded", "output", "one_hot", "last_row", "last_column", "block_edges", "integers",
    "zero_mean",
)  # fmt: skip
OTHER = ("alternating", "integers", "one_hot", "constant", "step", "zero")  # regimes that begin with no normal numbers
Recipe = Mapping[str, Any]


def _raw(seed: int, count: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    return np.asarray(np.random.PCG64(seed).random_raw(count), dtype=np.uint64)


def normal(seed: int, shape: tuple[int, ...]) -> Float64Array:
    """Numbers with mean 0 and variance 1, nearly normal (sum of four 16-bit integers, |z| < 3.5)."""
    raw = _raw(seed, prod(shape))
    # Added two and two within the 64 bits, in 32 each, where nothing carries over.
    for shift, kept in ((16, 0x0000FFFF0000FFFF), (32, 0xFFFFFFFF)):
        others = raw >> np.uint64(shift)
        others &= np.uint64(kept)
        raw &= np.uint64(kept)
        raw += others
    total = raw.view(np.int64).astype(np.float64)
    total -= 131070.0
    total /= 37837.0
    return total.reshape(shape)


def integers(seed: int, shape: tuple[int, ...], low: int, high: int) -> Float64Array:
    """Integers from low to high inclusive, as float64."""
    raw = (_raw(seed, prod(shape)) >> np.uint64(11)) % np.uint64(high - low + 1)
    return (raw.astype(np.int64) + low).astype(np.float64).reshape(shape)


def _x(recipe: Recipe, rows: int, n: int) -> Float64Array:
    seed, regime, mean = recipe["seed"], recipe["regime"], recipe.get("mean", 0.0)
    z = np.empty((rows, n)) if regime in OTHER else normal(seed, (rows, n))
    # no z is -0.0, to which a zero with a sign would make a difference
    offset = mean * np.where(integers(seed + 1, (rows, 1), 0, 1) == 0, 1.0, -1.0) if mean else np.zeros((1, 1))
    if regime == "rows":  # every row has a scale of its own: statistics that leak between rows show
        z = z * np.ldexp(1.0, integers(seed + 2, (rows, 1), -4, 4).astype(int))
        if mean:
            offset = offset * (1.0 + 0.5 * integers(seed + 3, (rows, 1), 0, 3))
    elif regime == "heavy":
        z = z * np.ldexp(1.0, (integers(seed + 2, (rows, n), 0, 255) >= 224).astype(int) * 5)
    elif regime == "outlier" and n and rows:
        z[np.arange(rows), integers(seed + 2, (rows,), 0, n - 1).astype(int)] *= 1000.0
    elif regime == "alternating":
        z = np.where(np.arange(n) % 2 == 0, 1.0, -1.0) * np.ones((rows, 1))
    elif regime == "integers":
        z = integers(seed + 2, (rows, n), -4, 4)
    elif regime == "one_hot" and n and rows:
        z = np.zeros((rows, n))
        z[np.arange(rows), integers(seed + 2, (rows,), 0, n - 1).astype(int)] = 1.0
    elif regime == "constant":
        z = np.zeros((rows, n)) + normal(seed + 2, (rows, 1)) + 1.0
    elif regime == "step":
        z = np.ones((rows, n))
        if n:
            z[:, -1] += 2.0**-7
    elif regime == "zero":
        return np.zeros((rows, n))
    elif regime == "mixed":  # ordinary, constant, zero and shifted rows side by side
        kind = np.arange(rows)[:, None] % 4
        constant = normal(seed + 2, (rows, 1)) + np.zeros((rows, n))
        z = np.where(kind == 1, constant, np.where(kind == 2, 0.0, np.where(kind == 3, z + 8.0, z)))
    with np.errstate(over="ignore", under="ignore"):  # build clips what overflows
        return scaled(z + offset if mean else z, np.asarray(recipe.get("scale", 0)))


def _weight(form: str, seed: int, n: int, dtype: str) -> Float64Array:
    if form == "ones":
        return np.ones(n)
    if form == "zero":
        return np.zeros(n)
    if form == "powers":
        return np.ldexp(1.0, integers(seed + 1, (n,), -3, 3).astype(int))
    z = normal(seed, (n,))
    if form == "zeros":
        return np.where(integers(seed + 1, (n,), 0, 2) == 0, 0.0, z)
    if form == "negative":
        return -np.abs(z) - 0.25
    if form == "huge":
        return np.ldexp(z, 6 if dtype == "float16" else 40)
    return z + np.copysign(0.5, z)


def _bias(form: str, seed: int, n: int) -> Float64Array:
    return np.zeros(n) if form == "zeros" else normal(seed, (n,)) * (64.0 if form == "large" else 1.0)


def _dy(form: str, seed: int, rows: int, n: int) -> Float64Array:
    if form == "ones":
        return np.ones((rows, n))
    if form in ("expanded", "output"):  # 'output' is replaced by the subject's own y
        return np.full((rows, n), 0.75)
    if form == "integers":
        return integers(seed + 1, (rows, n), -3, 4)
    if form in ("normal", "zero_mean"):
        z = normal(seed, (rows, n))
        return z - z.mean(axis=0) if form == "zero_mean" and rows else z
    row, column = np.arange(rows)[:, None], np.arange(n)[None, :]
    if form == "one_hot":
        at = int(_raw(seed + 2, 1)[0] % np.uint64(max(rows * n, 1)))
        return np.where(row * n + column == at, 1.0, 0.0)
    small = integers(seed + 1, (rows, n), 1, 4)
    if form == "last_row":
        return np.where(row == rows - 1, small, 0.0)
    if form == "last_column":
        return np.where(column == n - 1, small, 0.0)
    # block_edges: first and last row of every block of 32 and the rows around powers of two
    edge = (row % 32 == 0) | (row % 32 == 31) | (row == rows - 1)
    return np.where(edge & ((column + row) % 3 == 0), small, 0.0)


def build(recipe: Recipe) -> Case:
    """The case of a recipe (see the head of this file)."""
    dtype, shape, batch = recipe["dtype"], tuple(recipe["shape"]), tuple(recipe["batch"])
    parameters = recipe.get("parameters") or dtype
    rows, n, seed = prod(batch), prod(shape), int(recipe["seed"]) * 16
    full = batch + shape
    arrays: dict[str, FloatArray] = {}

    made = min(rows, int(recipe.get("tile") or rows))

    def add(name: str, values: Float64Array, where: tuple[int, ...], kind: str) -> None:
        limit = FORMATS[kind].largest
        array = FloatArray.of(np.clip(values, -limit, limit, out=values), kind)
        bits = array.bits if values.size == prod(where) else array.bits[np.arange(rows) % made]
        arrays[name] = FloatArray(kind, bits.reshape(where))

    add("x", _x({**recipe, "seed": seed}, made, n), full, dtype)
    layouts = dict(recipe.get("layouts") or {})
    if recipe["weight"]:
        add("weight", _weight(recipe["weight"], seed + 5, n, dtype), shape, parameters)
    if recipe["bias"]:
        add("bias", _bias(recipe["bias"], seed + 7, n), shape, parameters)
    if recipe.get("dy"):
        add("dy", _dy(recipe["dy"], seed + 8, made, n), full, dtype)
        if recipe["dy"] in ("expanded", "output"):
            layouts["dy"] = recipe["dy"]
    if recipe.get("tangents"):
        for offset, name in enumerate(("tx", "vx")):
            add(name, normal(seed + 11 + offset, (rows, n)), full, dtype)
        # 16 would be the next seed's x
        for offset, name in ((13, "tweight"), (14, "tbias"), (15, "vweight"), (4, "vbias")):
            if name[1:] in arrays:
                add(name, normal(seed + offset, (n,)), shape, parameters)
    return Case(
        operation="layer_norm",
        dtype=dtype,
        normalized_shape=shape,
        arrays=arrays,
        eps=float(recipe["eps"]),
        requires_grad=tuple(recipe.get("grads") or ("x", "weight", "bias")),
        layouts=layouts,
        threads=recipe.get("threads"),
        device=recipe.get("device", "cpu"),
        label=label(recipe),
        recipe=dict(recipe),
    )


def label(recipe: Recipe) -> str:
    """One line for people."""
    parts = [f"N={prod(recipe['shape'])}", f"rows={prod(recipe['batch'])}", f"x {recipe['regime']}"]
    if recipe.get("mean"):
        parts.append(f"|mean|/std={abs(recipe['mean']):g}")
    if recipe.get("scale"):
        parts.append(f"scale=2^{recipe['scale']}")
    parts.append(f"weight {recipe['weight'] or 'None'}, bias {recipe['bias'] or 'None'}, eps={recipe['eps']:g}")
    if recipe.get("dy"):
        parts.append(f"dy {recipe['dy']}")
    return ", ".join(parts)


def restore(data: Mapping[str, Any]) -> Case:
    """A case from its JSON form, arrays that were too large to store rebuilt from the recipe and their bits
    checked by SHA-256. Raises UsageError where they do not match."""
    from lnverify.errors import UsageError

    if data.get("recipe") is None or all("bits" in a for a in data["arrays"].values()):
        return Case.from_json(data)
    case = build(data["recipe"])
    for name, array in data["arrays"].items():
        if name not in case.arrays or case.arrays[name].sha256 != array["sha256"]:
            raise UsageError(f"the recipe of this case does not give the stored bits of {name!r}: report a bug.")
    return case
