"""Cases of the other norms: a fixed list, then seeded draws; all small enough to be stored in full.

The numbers come from raw integers of PCG64 (lnverify.recipes), so that a seed gives the same bits everywhere. Every
group has two numbers or more where a mean is subtracted: one alone is its own mean, and batch norm refuses it rightly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from lnverify.block import MASK, extents
from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray, round_values
from lnverify.norms.running_statistics import given_statistics
from lnverify.norms.views import view_of
from lnverify.operation import Operation, blocks, cells
from lnverify.operation import operation as find_operation
from lnverify.recipes import integers, normal
from lnverify.subject import Subject
from lnverify.support import AFFINE, Support

Shape = tuple[tuple[int, ...], tuple[int, ...]]  # of x, and what shares one mean and variance
BY_ROWS = ("rms_norm", "layer_norm_eps_outside")  # the others have channels

ROWS: tuple[Shape, ...] = (
    ((2, 8), (8,)), ((3, 7), (7,)), ((1, 16), (16,)), ((5, 33), (33,)), ((33, 5), (5,)), ((2, 257), (257,)),
    ((4, 64), (64,)), ((6, 2), (2,)), ((65, 3), (3,)), ((1, 1025), (1025,)), ((8,), (8,)), ((2, 3, 12), (12,)),
    ((4, 2, 3), (2, 3)), ((2, 2, 2, 9), (2, 9)), ((1, 4099), (4099,)), ((1027, 2), (2,)), ((130, 34), (34,)),
)  # fmt: skip
# Prime numbers of these (and of ROWS) meet every level of the walk in `cases`; 48 groups, 34, 66, 67 and 96 channels,
# 1031 positions and 67 and 70 rows are beyond 32, 64 and 1024, where code that works in blocks has tails.
CHANNELS = (
    (2, 4, 3), (1, 6, 4), (3, 8, 5), (2, 4, 17), (5, 2, 33), (2, 6, 2, 2), (1, 8, 3, 5), (4, 4, 4, 4), (2, 12, 3, 1),
    (3, 6), (8, 4), (33, 2), (2, 2, 2, 3, 2), (1, 96, 3), (1, 4, 2, 2, 4), (2, 3, 129), (17, 3, 9), (70, 34),
    (2, 2, 1031), (67, 3, 4), (2, 33, 2, 3), (1, 66, 2), (1, 67, 1, 2),
)  # fmt: skip
MATRICES = (  # of weights, of which each row has a norm
    (4, 3), (1, 8), (8, 1), (33, 5), (6, 4, 3), (3, 257), (2, 3, 2, 2), (70, 34), (1, 2, 2, 3, 2), (5, 33), (2, 1031),
)  # fmt: skip
CELLS: tuple[Shape, ...] = (  # (rows, inputs), (units,)
    ((2, 3), (4,)), ((1, 5), (8,)), ((3, 2), (2,)), ((5, 7), (16,)), ((2, 1), (33,)), ((17, 4), (5,)), ((4, 64), (32,)),
    ((1, 1), (3,)), ((2, 130), (6,)), ((65, 3), (4,)), ((3, 4), (65,)), ((1, 257), (9,)), ((2, 5), (129,)),
)  # fmt: skip
BLOCKS: tuple[Shape, ...] = (  # (sequences, positions, units), (heads, units of a head, hidden units)
    ((2, 3, 4), (2, 2, 6)), ((1, 5, 8), (2, 4, 16)), ((3, 2, 6), (3, 2, 5)), ((2, 4, 8), (1, 8, 12)),
    ((1, 1, 4), (2, 2, 4)), ((1, 9, 4), (4, 1, 3)), ((2, 7, 12), (6, 2, 8)), ((4, 3, 6), (2, 3, 7)),
    ((1, 17, 8), (4, 2, 9)), ((2, 2, 16), (4, 4, 32)),
)  # fmt: skip
LARGEST = 1 << 14  # elements of x, where a fixed number of channels makes a shape larger
REGIMES = (
    "normal", "offset", "normal", "outlier", "integers", "scaled", "normal", "far", "alternating", "tiny", "constant",
    "huge", "step",
)  # fmt: skip
RESTING = 6  # zero states in every sixth case of a cell
LARGE = 32  # a c of that size in every case of that number
EPS = (1e-5, 1e-3, "near", 0.1, 1e-12, 10.0, 0.0, 1e-6)
WEIGHTS = ("normal", "ones", "negative", "zero", "large")
MASKS = ("none", "causal", "none", "random")
DYS = ("normal", "ones", "one_hot", "normal", "integers")
OFFSETS = {"float64": (1e3, 1e6), "float32": (30.0, 1e3), "bfloat16": (2.0, 16.0), "float16": (2.0, 8.0)}
POWERS = {"float64": 200, "float32": 18, "bfloat16": 12, "float16": 3}  # of x, far and still within the range


def shapes(operation: str, fixed: tuple[int, ...] | None = None) -> list[Shape]:
    """Shapes of an operation.

    fixed: Capabilities.fixed_shape, what a module instance accepts; of a norm with channels (channels, groups).
    """
    if operation in cells():
        return list(CELLS) if fixed is None else [((rows, fixed[0]), fixed[1:]) for rows in (2, 1, 5, 17)]
    if operation in blocks():
        return _blocks(fixed)
    if operation in BY_ROWS:
        return list(ROWS) if fixed is None else [((rows, *fixed), fixed) for rows in (2, 1, 5, 33)]
    if operation == "weight_norm":
        return [(x, x[1:]) for x in MATRICES]
    found: list[Shape] = []
    for place, template in enumerate(CHANNELS):
        x = template if fixed is None else (template[0], fixed[0], *template[2:])
        if fixed is not None and (prod(x) > LARGEST or x in (shape for shape, _ in found)):
            continue
        channels, positions = x[1], x[2:]
        divisors = [d for d in range(1, channels + 1) if channels % d == 0]
        normalized = {
            "group_norm": (divisors[place % len(divisors)] if fixed is None else channels // fixed[1], *positions),
            "instance_norm": (1, *positions),
            "batch_norm": (x[0], *positions),
            "batch_norm_eval": (x[0], *positions),
        }.get(operation, (channels,))
        if view_of(operation, x, normalized).n > 1 or operation == "batch_norm_eval":
            found.append((x, normalized))
    return found


def _blocks(fixed: tuple[int, ...] | None) -> list[Shape]:
    """fixed: (heads,), 0 for any number, and the hidden units by units; or (heads, units of a head, hidden units)."""
    if fixed is not None and len(fixed) == 3:
        units = fixed[0] * fixed[1]
        return [((rows, positions, units), fixed) for rows, positions in ((2, 3), (1, 5), (3, 1), (2, 4))]
    heads, times = fixed or (0, 0)
    found: list[Shape] = []
    for x, (own, _, hidden) in BLOCKS:
        count = heads or own
        if x[2] % count == 0:
            found.append((x, (count, x[2] // count, times * x[2] or hidden)))
    return found


def fits(case: Case, fixed: tuple[int, ...]) -> bool:
    """Whether a module instance that is fixed to these sizes (see `shapes`) takes a case."""
    x, normalized = case.arrays["x"].shape, case.normalized_shape
    if case.operation in BY_ROWS:
        return normalized == fixed
    if case.operation in cells():
        return (x[1], *normalized) == fixed
    return x[1] == fixed[0] and (case.operation != "group_norm" or normalized[0] * fixed[1] == x[1])


def kind(operation: str, shape: Shape) -> tuple[int, int]:
    """Batch and normalised dimensions, or positional ones and 1: what a subject may refuse as a whole."""
    x, normalized = shape
    if operation in cells() + blocks():
        return 1, 1
    # the dimensions of a row of weights count as positions do
    return (len(x) - len(normalized), len(normalized)) if operation in BY_ROWS else (len(x) - 2, 1)


def _values(regime: str, seed: int, shape: tuple[int, ...], dtype: str) -> Float64Array:
    z = normal(seed, shape)
    near, far = OFFSETS[dtype]
    if regime == "offset":
        return z + near
    if regime == "far":
        return z - far
    if regime == "outlier":
        z.reshape(-1)[seed % z.size] *= 1000.0 if dtype in ("float64", "float32") else 4.0
        return z
    if regime == "integers":
        return integers(seed, shape, -4, 4)
    if regime == "alternating":
        return np.where(np.arange(z.size).reshape(shape) % 2 == 0, 1.0, -1.0)
    if regime == "constant":
        return np.full(shape, 1.5)
    if regime == "step":
        z = np.ones(shape)
        z.reshape(-1)[-1] += 2.0**-3
        return z
    power = {"scaled": 4, "tiny": -POWERS[dtype], "huge": POWERS[dtype]}.get(regime, 0)
    return np.ldexp(z, power if dtype != "float16" or power < 2 else 2)


def _weight(kind: str, seed: int, shape: tuple[int, ...]) -> Float64Array:
    z = normal(seed, shape)
    if kind == "ones":
        return np.ones(shape)
    if kind == "zero":  # as the last norm of a residual branch begins
        return np.zeros(shape)
    if kind == "negative":
        return -np.abs(z) - 0.25
    return z * (16.0 if kind == "large" else 1.0) + np.copysign(0.5, z)


def _dy(kind: str, seed: int, shape: tuple[int, ...]) -> Float64Array:
    if kind == "ones":
        return np.ones(shape)
    if kind == "integers":
        return integers(seed, shape, -3, 4)
    z = normal(seed, shape)
    if kind == "one_hot":
        return np.where(np.arange(z.size).reshape(shape) == seed % z.size, 2.0, 0.0)
    return z


def make(
    operation: str, dtype: str, shape: Shape, affine: str, eps: float, regime: str = "normal", weight: str = "normal",
    dy: str = "normal", seed: int = 1, device: str = "cpu",
) -> Case:  # fmt: skip
    """One case."""
    x, normalized = shape
    seen = view_of(operation, x, normalized)
    if weight == "zero" and operation in cells() + blocks():
        weight = "normal"  # behind a gain of zero nothing informs
    parameter = normalized if operation in BY_ROWS else (x[1],)
    known = find_operation(operation)
    if operation == "weight_norm":
        parameter = (x[0], *(1 for _ in normalized))
    limit = FORMATS[dtype].largest

    def array(values: Float64Array) -> FloatArray:
        return FloatArray.of(np.clip(values, -limit, limit), dtype)

    # ||x|| may rightly be clamped at 1e-12, as in torch.nn.functional.normalize: no weights are that small
    range_of = "float32" if operation == "weight_norm" and dtype == "float64" else dtype
    values = {"x": _values(regime, 16 * seed, x, range_of)}
    if operation in cells():
        values |= _cell(operation, shape, affine, weight, dy, seed)
    elif operation in blocks():
        values |= _block(operation, shape, affine, weight, dy, seed)
        normalized = normalized[:2]
    else:
        has_weight, has_bias = AFFINE[affine]
        if has_weight:
            values["weight"] = _weight(weight, 16 * seed + 5, parameter)
        if has_bias:
            values["bias"] = normal(16 * seed + 7, parameter)
        values["dy"] = _dy(dy, 16 * seed + 8, x)
        if find_operation(operation).data:
            values |= given_statistics(values["x"], 16 * seed + 11, x[1])
    arrays = {name: array(found) for name, found in values.items()}
    label = f"{operation}, x {list(x)}, N={seen.n}, {seen.groups} groups, {regime}, eps={eps:g}"
    return Case(
        operation=operation, dtype=dtype, normalized_shape=normalized, arrays=arrays, eps=eps,
        requires_grad=tuple(name for name in known.arguments if name in arrays), device=device, label=label,
    )  # fmt: skip


def _cell(
    operation: str, shape: Shape, affine: str, weight: str, dy: str, seed: int
) -> dict[str, Float64Array]:  # fmt: skip
    """States, parameters and cotangents of a cell; every RESTING-th case begins at zero states."""
    known = find_operation(operation)
    assert known.cell is not None
    (rows, inputs), (units,) = shape
    extents = known.cell.extents(rows, inputs, units)
    found: dict[str, Float64Array] = {}
    for place, name in enumerate((*known.states, *known.parameters, *known.cotangents)):
        own = 64 * seed + place + 1_000_003
        z: Float64Array
        if name in known.cotangents:
            z = _dy(dy, own, (rows, units))
        elif name in known.states:
            z = normal(own, (rows, units)) * (seed % RESTING != 0)
            # h is bounded, c is not: a long sequence adds up to much
            z = np.tanh(z) if name == "h" else z * (LARGE if seed % LARGE == 0 else 1.0)
        elif name in known.gains:
            z = _weight(weight, own, known.cell.shape(name, extents))
        else:
            z = normal(own, known.cell.shape(name, extents)) / (2 if name.startswith("weight_h") else 1)
        if name not in _absent(known, affine):
            found[name] = z
    return found


def _absent(known: Operation, affine: str) -> tuple[str, ...]:
    """The gains and shifts that a case of this affine mode does not have."""
    weight, bias = AFFINE[affine]
    return (*(() if weight else known.gains), *(() if bias else known.shifts))


def _block(
    operation: str, shape: Shape, affine: str, weight: str, dy: str, seed: int
) -> dict[str, Float64Array]:  # fmt: skip
    """Parameters, mask and cotangent of a block; matrices keep the size of what they multiply."""
    known = find_operation(operation)
    assert known.block is not None
    x, (heads, units, hidden) = shape
    found: dict[str, Float64Array] = {}
    for place, name in enumerate((*known.parameters, *known.cotangents)):
        own = 64 * seed + place + 2_000_003
        z: Float64Array
        if name in known.cotangents:
            z = _dy(dy, own, x)
        else:
            stored = known.block.shape(name, extents(x, (heads, units), hidden))
            kind = "normal" if name == "gain_1" and weight == "large" else weight  # scores and hidden units follow it
            z = _weight(kind, own, stored) if name in known.gains else normal(own, stored)
            z = z / np.sqrt(stored[-1]) if len(stored) == 2 else z
        if name not in _absent(known, affine):
            found[name] = z
    mask = mask_of(MASKS[seed % len(MASKS)], seed, x[1])
    return found if mask is None else {**found, MASK: mask}


def mask_of(kind: str, seed: int, positions: int) -> Float64Array | None:
    """A mask of a kind of MASKS: 1 where the first index may attend to the second, always to itself; None for none."""
    if kind == "none":
        return None
    causal = np.tri(positions)
    drawn = integers(64 * seed + 3_000_017, (positions, positions), 0, 1)
    return causal if kind == "causal" else np.maximum(drawn, np.eye(positions))


def cases(support: Support, operation: str, count: int, seed: int) -> Iterator[Case]:
    """`count` cases: a fixed walk through all levels, each with a stride of its own, that `seed` shifts.

    The strides have no divisor in common with the numbers of levels, so that pairs of levels meet soon.
    """
    places = [
        place for place in shapes(operation, support.subject.capabilities.fixed_shape)
        if (found := kind(operation, place))[0] in support.ranks and found[1] in support.dims
    ]  # fmt: skip
    for number in range(count):
        k = number + 1009 * seed
        regime = REGIMES[(k + k // len(places)) % len(REGIMES)]
        yield reduced(support.subject, make(
            operation, support.dtype, places[k % len(places)], support.affine[k // 2 % len(support.affine)],
            _eps(support, EPS[(k + k // 8) % len(EPS)], regime), regime, WEIGHTS[k % len(WEIGHTS)],
            DYS[(k // 3) % len(DYS)], k + 1, support.device,
        ))  # fmt: skip


def with_tangents(case: Case) -> Case:
    """The case with a tangent of each argument and a cotangent of each gradient, and all gradients asked for."""
    arrays = {}
    present = [name for name in find_operation(case.operation).arguments if case.has(name)]
    for number, name in enumerate(present):
        for kind, prefix in enumerate("tv"):
            array = case.arrays[name]
            arrays[prefix + name] = FloatArray.of(normal(7 + 10 * number + kind, array.shape), array.dtype)
    return replace(case.with_arrays(**arrays), requires_grad=tuple(present))


def resting(case: Case) -> Case:
    """The case of a cell with no state given, and no cotangents, for the forward alone."""
    return case.forward_alone(**dict.fromkeys(find_operation(case.operation).states))


def reduced(subject: Subject, case: Case) -> Case:
    """The case without the gains and shifts that the subject does not have, and with a mask of the kind it has."""
    declared = subject.capabilities.parameters
    known = find_operation(case.operation)
    absent = [n for n in (*known.gains, *known.shifts) if declared is not None and n not in declared and case.has(n)]
    changed: dict[str, FloatArray | None] = dict.fromkeys(absent)
    if known.block is not None and subject.capabilities.mask in ("", "causal"):
        causal = FloatArray.of(np.tri(case.arrays["x"].shape[1]), case.dtype)
        changed[MASK] = causal if subject.capabilities.mask else None
    return case.with_arrays(**changed) if changed else case


def _eps(support: Support, wanted: Any, regime: str) -> float:
    """An eps that the subject accepts; 'near' is of the order of the variance, where a wrong place of eps shows."""
    declared = support.subject.capabilities
    if declared.eps is not None:
        return declared.eps
    power = {"scaled": 8, "tiny": -2 * POWERS[support.dtype], "huge": 2 * POWERS[support.dtype]}.get(regime, 0)
    value = 0.25 * 2.0 ** min(power, 6) if wanted == "near" else float(wanted)
    value = float(round_values(value, declared.eps_dtype))
    return value if wanted == "near" or value in support.eps else support.eps[0]
