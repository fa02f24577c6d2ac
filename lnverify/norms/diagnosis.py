"""Diagnosis: which mechanism reproduces a wrong y or dx of another norm, within the bound of the right result.

A mechanism is a formula in float64 with one thing changed. It names the cause of a finding and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lnverify.evaluation import Evaluation
from lnverify.floats import Float64Array
from lnverify.norms.exact import Exact
from lnverify.norms.judge import measured, ratios

DEFAULTS = (1e-5, 1e-6, 1e-8, 1e-12)  # the eps that libraries fix


def cause(ev: Evaluation, output: str) -> str:
    """A short phrase for the cause, '<output> is wrong' where no mechanism fits."""
    got = ev.output(output)
    exact = measured(ev).exact
    if got is not None and got.size == exact.raw.size and output in ("y", "dx"):
        for phrase, values in _forward(exact) if output == "y" else _backward(exact):
            if _fits(ev, output, got.values.reshape(exact.view.shape), values):
                return phrase
    return f"{output} is wrong"


def _fits(ev: Evaluation, output: str, returned: Float64Array, values: Float64Array) -> bool:
    """Whether what was returned lies within the bounds around these values, where the right ones do not."""
    bounds = measured(ev)
    bound = bounds.bound(output)
    exact = bounds.exact.pair(output).hi
    with np.errstate(all="ignore"):
        seen = np.isfinite(bound) & np.isfinite(values)
        # as far as the bound and the final rounding of numbers of this size reach
        unit = np.finfo(np.float64).eps if ev.case.dtype == "float64" else 2.0 ** -(ev.precision.output.precision)
        near = np.abs(returned - values) <= 2 * bound + 2 * unit * np.maximum(np.abs(values), np.abs(exact))
    wrong = ratios(ev, output, values, "float64") > 1
    return bool(seen.any() and near[seen].all() and (wrong & seen).any())


def _forward(exact: Exact) -> Iterator[tuple[str, Float64Array]]:
    """y by each mechanism."""
    name, eps = exact.case.operation, exact.case.eps
    over, n = exact.view.over, exact.view.n
    weight, bias = _affine(exact)
    x = np.asarray(exact.x.hi if exact.wide else exact.x)
    raw = exact.raw
    with np.errstate(all="ignore"):
        centred = raw - raw.mean(axis=over, keepdims=True) if name == "rms_norm" else x - exact.statistic("mu")
        square = (raw**2).mean(axis=over, keepdims=True)
        var = (centred**2).mean(axis=over, keepdims=True)
        if name == "rms_norm":
            yield "the mean is subtracted", weight * centred / np.sqrt(var + eps)
            centred, var = raw, square
        else:
            yield "the mean is not subtracted", weight * raw / np.sqrt(square + eps) + bias
            yield "the squares are not centred", weight * centred / np.sqrt(square + eps) + bias
        outside, inside = weight * centred / (np.sqrt(var) + eps) + bias, weight * centred / np.sqrt(var + eps) + bias
        if name == "layer_norm_eps_outside":
            yield "eps is added under the root", inside
        else:
            yield "eps is added outside the root", outside
        yield "eps is missing", weight * centred / np.sqrt(var) + bias
        yield "the squares are summed, not averaged", weight * centred / np.sqrt(var * n + eps) + bias
        if n > 1:
            yield "the squares are divided by N - 1", weight * centred / _root(exact, var * n / (n - 1), eps) + bias
        for fixed in DEFAULTS:
            if fixed != eps:
                yield f"eps is {fixed:g}, whatever is given", weight * centred / _root(exact, var, fixed) + bias
        yield "the weight is taken as 1 + weight", (1 + weight) * centred / _root(exact, var, eps) + bias
        yield "the weight is not applied", centred / _root(exact, var, eps) + bias
        yield "the bias is not applied", weight * centred / _root(exact, var, eps)


def _root(exact: Exact, var: Float64Array, eps: float) -> Float64Array:
    if exact.case.operation == "layer_norm_eps_outside":
        return np.sqrt(var) + eps
    return np.sqrt(var + eps)


def _affine(exact: Exact) -> tuple[Float64Array, Float64Array]:
    weight = exact.view.spread(exact.parameter("weight"))
    return weight, exact.view.spread(exact.parameter("bias"))


def _backward(exact: Exact) -> Iterator[tuple[str, Float64Array]]:
    """dx by each mechanism."""
    over = exact.view.over
    weight, _ = _affine(exact)
    r = exact.statistic("r")
    found = exact.forward["xhat"]
    xhat = np.asarray(found.hi if exact.wide else found)
    rms = exact.case.operation == "rms_norm"

    def mean(values: Float64Array) -> Float64Array:
        return np.asarray(values.mean(axis=over, keepdims=True))

    with np.errstate(all="ignore"):
        g, dy = weight * exact.dy, exact.dy
        middle = 0.0 if rms else mean(g)
        outer = 0.0 if rms else mean(dy)
        yield "the statistics are treated as constants", r * g
        yield "the weight is applied outside the sums", r * weight * (dy - outer - xhat * mean(dy * xhat))
        yield "the gradient through the root is missing", r * (g - middle)
        if rms:
            yield "a mean is subtracted in the backward", r * (g - mean(g) - xhat * mean(g * xhat))
        else:
            yield "the gradient through the mean is missing", r * (g - xhat * mean(g * xhat))
        yield "the factor 1/s is missing", g - middle - xhat * mean(g * xhat)
