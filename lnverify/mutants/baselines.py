"""What the usual tests find: the two baselines that the mutation score is set beside.

ordinary: standard normal x of 2 and of 8 rows of 32, weight 1, bias 0, eps 1e-5, dy of `y.sum().backward()`, compared
by the default tolerances of torch.testing.assert_close. opinfo: the samples of torch's OpInfo for layer_norm, forward
by the same tolerances, and gradients as gradcheck and gradgradcheck compare them in float64 (atol 1e-5, rtol 1e-3).
Both are stated on Requests, so that NumPy subjects take part; what is right comes from the oracle.
"""

from __future__ import annotations

from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.floats import Float64Array, FloatArray
from lnverify.oracle import Exact
from lnverify.recipes import normal
from lnverify.subject import Subject

# torch.testing.assert_close: (rtol, atol) by dtype
CLOSE = {"float64": (1e-7, 1e-7), "float32": (1.3e-6, 1e-5), "bfloat16": (1.6e-2, 1e-5), "float16": (1e-3, 1e-5)}
GRADCHECK = (1e-3, 1e-5)
ROWS = (2, 8)
# torch/testing/_internal/common_methods_invocations.py, sample_inputs_layer_norm: shape, normalized_shape, eps, affine.
# (One of its samples has eps = -0.5, where a variance below it has no square root: 0.5 stands for it.)
OPINFO = (
    ((1, 2, 3), (1, 2, 3), 0.5, True), ((2, 2, 3), (2, 3), 0.5, True), ((1,), (1,), 1e-5, True),
    ((1, 2), (2,), 1e-5, True), ((0, 1), (1,), 1e-5, True), ((1, 2), (2,), 1e-5, False),
)  # fmt: skip
FIRST = ("dx", "dweight", "dbias")
SECOND = ("d2x", "d2weight", "d2bias", "d2dy")


def _case(dtype: str, shape: tuple[int, ...], normalized: tuple[int, ...], eps: float, **arrays: Float64Array) -> Case:
    given = {name: FloatArray.of(values, dtype) for name, values in arrays.items()}
    return Case("layer_norm", dtype, normalized, given, eps)


def _far(subject: Subject, case: Case, outputs: tuple[str, ...], rtol: float, atol: float) -> bool:
    """Whether an output is missing, refused, or further off than the tolerances."""
    present = {*case.arrays, "y"}
    wanted = tuple(
        o for o in outputs if o in subject.capabilities.outputs and o.removeprefix("d2").removeprefix("d") in present
    )
    if not wanted:
        return False
    answer = subject.run(case.request(*wanted))
    if answer.refusal is not None:
        return True
    exact = Exact(case)
    for name in wanted:
        got, due = answer.arrays.get(name), exact.pair(name).hi
        if got is None:
            if name in SECOND and not due.any():
                continue
            return True
        if got.size != due.size or not np.allclose(got.values.ravel(), due.ravel(), rtol, atol, equal_nan=True):
            return True
    return False


def ordinary(subject: Subject, dtype: str) -> bool:
    """Whether the ordinary check fails on the subject, in one dtype."""
    for rows in ROWS:
        ones = {"weight": np.ones(32), "bias": np.zeros(32), "dy": np.ones((rows, 32))}
        case = _case(dtype, (rows, 32), (32,), 1e-5, x=normal(rows, (rows, 32)), **ones)
        if _far(subject, case, ("y", *FIRST), *CLOSE[dtype]):
            return True
    return False


def opinfo(subject: Subject) -> bool:
    """Whether the OpInfo samples, gradcheck or gradgradcheck fail on the subject; False where it has no float64."""
    if "float64" not in subject.capabilities.dtypes:
        return False
    for number, (shape, normalized, eps, affine) in enumerate(OPINFO):
        arrays: dict[str, Any] = {"x": normal(20 + number, shape), "dy": normal(40 + number, shape)}
        if affine:
            arrays |= {"weight": normal(60 + number, normalized), "bias": normal(80 + number, normalized)}
        case = _case("float64", shape, normalized, eps, **arrays)
        if _far(subject, case, ("y",), *CLOSE["float64"]) or _far(subject, case, FIRST, *GRADCHECK):
            return True
        drawn = {
            f"v{name}": FloatArray.of(normal(100 + number, case.arrays[name].shape), "float64")
            for name in ("x", "weight", "bias")
            if case.has(name)
        }
        if prod(shape) and _far(
            subject, replace(case, arrays={**case.arrays, **drawn}), SECOND, *GRADCHECK
        ):  # gradgradcheck
            return True
    return False
