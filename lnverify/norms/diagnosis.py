"""Diagnosis: which mechanism reproduces a wrong y or dx of another norm, within the bound of the right result.

A mechanism is a formula in float64 with one thing changed. It names the cause of a finding and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lnverify.case import Case
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.norms.exact import Exact
from lnverify.norms.judge import judge, measured
from lnverify.operation import blocks, cells
from lnverify.recipes import normal

DEFAULTS = (1e-5, 1e-6, 1e-8, 1e-12)  # the eps that libraries fix
ALIKE = 0.25  # bounds: mechanisms whose misfits are as near as that are alike here, and the simpler one is named
FRESH = 2  # other numbers on which a mechanism must fit as well: on one case several may do so by chance


def cause(ev: Evaluation, output: str) -> str:
    """A short phrase for the cause: the mechanism that fits best, else '<output> is wrong'.

    Where y is wrong already nothing is said of how dx came about: it follows.
    """
    generic = f"{output} is wrong"
    if ev.case.operation in cells() + blocks() or output not in ("y", "dx"):
        return generic
    if output == "dx" and judge(ev, "y").state == "violated":
        return generic
    runs = [ev]
    fits = _fits(ev, output)
    for number in range(FRESH):
        if not fits:
            return generic
        runs.append(ev.again(_fresh(ev.case, number)))
        again = _fits(runs[-1], output)
        fits = {phrase: max(misfit, again[phrase]) for phrase, misfit in fits.items() if phrase in again}
    right = all(judge(run, output).state in ("holds", "vacuous") for run in runs[1:])
    if right or not fits:
        return generic
    least = min(fits.values())
    return next(phrase for phrase, misfit in fits.items() if misfit <= least + ALIKE)


def _fits(ev: Evaluation, output: str) -> dict[str, float]:
    """Mechanisms that give what was returned, within the bounds, with the largest misfit in bounds."""
    got = ev.output(output)
    bounds = measured(ev)
    exact = bounds.exact
    if got is None or got.size != exact.raw.size:
        return {}
    returned, bound = got.values.reshape(exact.view.shape), bounds.bound(output)
    # the final rounding of numbers of this size, and that of the mechanism in float64
    unit = 4 * FORMATS["float64"].u if ev.case.dtype == "float64" else FORMATS[ev.case.dtype].u
    found = {}
    for phrase, values in _forward(exact) if output == "y" else _backward(exact):
        with np.errstate(all="ignore"):
            seen = np.isfinite(bound) & np.isfinite(values)
            misfit = np.abs(returned - values) / (bound + unit * np.abs(values))
        if seen.any() and (largest := float(misfit.max(where=seen, initial=0.0))) <= 1:
            found[phrase] = largest
    return found


def _fresh(case: Case, number: int) -> Case:
    """Other numbers of the same mean and size in the case's shape."""
    x = case.arrays["x"]
    size = max(float(np.abs(x.values - x.values.mean()).max(initial=0.0)) / 2, np.sqrt(case.eps), 2.0**-8)
    values = x.values.mean() + size * normal(7001 + 16 * number, x.shape)
    arrays = {"x": FloatArray.of(values, case.dtype)}
    if case.has("dy"):
        arrays["dy"] = FloatArray.of(normal(7009 + 16 * number, x.shape), case.dtype)
    return case.with_arrays(**arrays)


def _forward(exact: Exact) -> Iterator[tuple[str, Float64Array]]:
    """y by each mechanism."""
    name, eps = exact.case.operation, exact.case.eps
    over, n = exact.view.over, exact.view.n
    weight, bias = _affine(exact)
    x = np.asarray(exact.x.hi if exact.wide else exact.x)
    raw = exact.raw
    with np.errstate(all="ignore"):
        if exact.operation.data:
            d = raw - raw.mean(axis=over, keepdims=True)
            var = (d**2).mean(axis=over, keepdims=True)
            yield "the statistics of the batch are used, not the given ones", weight * d / np.sqrt(var + eps) + bias
            return
        if name == "weight_norm":
            yield "all rows are divided by one norm", weight * raw / np.sqrt((raw**2).sum())
            yield "the norm is that of each column", weight * raw / np.sqrt((raw**2).sum(axis=0))
            yield "the squares are averaged", weight * raw / np.sqrt((raw**2).mean(axis=over, keepdims=True))
            return
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
        if n > 2:  # of two numbers the sum of squares is as large as with N - 1
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
    name = exact.case.operation
    rms = name == "rms_norm"

    def mean(values: Float64Array) -> Float64Array:
        return np.asarray(values.mean(axis=over, keepdims=True))

    with np.errstate(all="ignore"):
        g, dy = weight * exact.dys[0], exact.dys[0]
        if name in ("batch_norm_eval", "weight_norm"):
            constant = "the norm is treated as a constant"
            yield (
                ("the backward is that of training" if exact.operation.data else constant),
                (r * (g - mean(g) - xhat * mean(g * xhat)) if exact.operation.data else r * g),
            )
            return
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
