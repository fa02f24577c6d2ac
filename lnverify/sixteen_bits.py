"""Sixteen bits: statistics or sums that are kept in 16 bits, told from rounding points by the mutant that makes them.

In 16 bits the bound with rounding points is as wide as one rounding of a statistic or of a partial sum: it cannot tell
them apart. A mutant can. Its result is exact but for the roundings that it is about; where one of them may go either
way, since the value lies within its admitted error of a tie, the elements that it reaches are left out. The rest must
lie within the deciding bound, without rounding points, around the mutant's result, every one of them, while the right
result misses that bound, and for y also the right one with xhat rounded. How far a value may be off before it is
rounded is taken from either tier: the wider one leaves out more, the narrower one asks more of the subject; neither
makes an agreement by chance more likely.

How much that says: of a right implementation an element meets both conditions by chance alone. Its own roundings
spread it over a cell of relative size u_out, and the bound has relative size h u, so that one in u_out/(h u) elements
would; were it one in two, TOLD elements would still agree by chance in one of 2^TOLD runs only. So many are asked for
in each of two fresh cases; the case itself and every fresh case that is looked at must not contradict.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product

import numpy as np

from lnverify.bounds import roundings
from lnverify.diagnosis import STATISTICS_16, STATISTICS_KEPT_16, SUMS_16, fresh
from lnverify.evaluation import Evaluation
from lnverify.floats import FORMATS, Float64Array, distance, round_values

TOLD = 32  # elements: agreement by chance would be one in 2^32
FRESH_ROWS, FRESH_COLUMNS, MOST_ROWS = 8, 256, 2049
ENOUGH = 3  # cases of a size that showed nothing
SEEDS = 6  # fresh cases that are tried: one may leave out too much to tell
BLOCK_ROWS = (8, 16, 32, 64, 128, 256, 512, 1024)
BLOCK_COLUMNS = (64, 128, 256, 512, 1024, 2048)
EPS_16 = "eps is rounded to 16 bits"
STORED_16 = "gradients of float32 parameters are rounded to 16 bits"
# The results of every mutant of a kind, with each value that it rounds moved down, and up, by its error in a tier.
Mutants = Callable[[Evaluation, str], Iterator[tuple[Float64Array, Float64Array]]]


def kept_in_16_bits(ev: Evaluation, output: str) -> str:
    """The cause where statistics or sums kept in 16 bits reproduce y, dx or dweight, else ''.

    Nothing is asked of a subject that computes in 16 bits by its own declaration, nor again of sizes at which ENOUGH
    cases showed nothing.
    """
    if FORMATS[ev.case.dtype].precision > 11 or ev.precision.compute.precision <= 11:
        return ""
    size = f"{output} kept, N to 2^{ev.case.n.bit_length()}, rows to 2^{ev.case.rows.bit_length()}"
    known = ev.evaluator.causes.setdefault(size, Counter())
    if known.total() >= ENOUGH and set(known) == {""}:
        return ""
    cause = next((named for named, mutants, rows in _kinds(ev, output) if _confirmed(ev, output, mutants, rows)), "")
    known[cause] += 1
    return cause


def _kinds(ev: Evaluation, output: str) -> Iterator[tuple[str, Mutants, int]]:
    """Causes with their mutants, and how many rows a fresh case needs to show them."""
    if output == "y":
        yield EPS_16, _eps, FRESH_ROWS
    statistics = {"y": (STATISTICS_KEPT_16, _forward), "dx": (STATISTICS_16, _dx), "dweight": (STATISTICS_16, _dweight)}
    yield *statistics[output], FRESH_ROWS
    if output == "dweight":
        if ev.case.arrays["weight"].dtype != ev.case.dtype:
            yield STORED_16, _stored, FRESH_ROWS
        yield SUMS_16, _partial_sums, min(ev.case.rows, MOST_ROWS)


def _confirmed(ev: Evaluation, output: str, mutants: Mutants, rows: int) -> bool:
    """Whether mutants reproduce TOLD elements of each of two fresh cases, and nothing contradicts."""
    if reproduced(ev, output, mutants, TOLD) is False:
        return False
    times, known = 0, ev.evaluator.told
    for seed in range(SEEDS):
        again = fresh(ev, seed, rows, FRESH_COLUMNS)
        drawn = {name: (array.shape, array.dtype) for name, array in again.case.arrays.items()}
        key = (output, mutants, seed, again.case.eps, again.case.requires_grad, str(drawn))
        if key not in known:
            known[key] = reproduced(again, output, mutants, TOLD)
        found = known[key]
        if found is False:
            return False
        times += found is True
        if times == 2:
            return True
    return False


def reproduced(ev: Evaluation, output: str, mutants: Mutants, told: int) -> bool | None:
    """Whether one of the mutants gives an output, and the right result does not, in `told` elements at least.

    None where too few elements tell them apart; False where every mutant misses an element that is not left out.
    """
    got, pair = ev.output(output), ev.pair(output)
    if got is None or got.size != pair.hi.size:
        return False
    values, fmt = got.values.reshape(pair.hi.shape), FORMATS[got.dtype]
    found: bool | None = False
    with np.errstate(all="ignore"):
        bound = ev.bound(output)
        judged = ~ev.skipped(output, values) & np.isfinite(bound) & np.isfinite(values)
        own = 8 * ev.precision.compute.u  # of our evaluation in float64

        def near(result: Float64Array) -> np.ndarray:
            return np.asarray(distance(values, result, 0.0, fmt) <= bound + own * np.abs(result))

        right = judged & (distance(values, pair.hi, pair.lo, fmt) > bound)
        for tier in ("det", "pair"):
            apart = right.copy()
            for low, high in _points(ev, tier) if output == "y" else ():
                apart &= (low == high) & ~near(low)
            for low, high in mutants(ev, tier):
                settled = judged & (low == high)
                if not near(low)[settled].all():
                    continue
                if int((apart & settled).sum()) >= told:
                    return True
                found = None
    return found


def _both_ways(results: Callable[[Evaluation, float, str], Iterator[Float64Array]]) -> Mutants:
    """Mutants from their results for one direction: -1 or 1."""

    def mutants(ev: Evaluation, tier: str) -> Iterator[tuple[Float64Array, Float64Array]]:
        yield from zip(results(ev, -1.0, tier), results(ev, 1.0, tier), strict=True)

    return mutants


def _low(ev: Evaluation, value: Float64Array, error: Float64Array | float, nudge: float) -> Float64Array:
    """A value that lies `nudge` errors off, rounded to the dtype of x."""
    return round_values(value + nudge * error, ev.case.dtype)


def _parameters(ev: Evaluation) -> tuple[Float64Array, Float64Array]:
    case = ev.case
    weight = case.vector("weight") if case.has("weight") else np.ones(case.n)
    return weight, case.vector("bias") if case.has("bias") else np.zeros(case.n)


@_both_ways
def _forward(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    """y with the mean, the variance and 1/s in 16 bits, all or some, xhat rounded or not; and with sums of squares of
    blocks of columns in 16 bits."""
    weight, bias = _parameters(ev)
    bounds, x = ev.yardstick.bounds(tier), ev.case.matrix("x")
    true, es = ev.pair("mean").hi[:, None], bounds.scale_error[:, None]
    for mean_16, var_16, rstd_16, xhat_16 in product((False, True), repeat=4):
        if not (mean_16 or var_16 or rstd_16):
            continue
        mean = _low(ev, true, ev.bound("mean", tier)[:, None], nudge) if mean_16 else true
        var = ((x - mean) ** 2).mean(axis=1, keepdims=True)
        var = _low(ev, var, 2 * es * var, nudge) if var_16 else var
        rstd = 1 / np.sqrt(var + ev.case.eps)
        rstd = _low(ev, rstd, es * rstd, nudge) if rstd_16 else rstd
        xhat = (x - mean) * rstd
        yield weight * (_low(ev, xhat, bounds.xhat_error, nudge) if xhat_16 else xhat) + bias
    for width in BLOCK_COLUMNS:
        if width < ev.case.n:
            sums = np.add.reduceat((x - true) ** 2, np.arange(0, ev.case.n, width), axis=1)
            var = _low(ev, sums, 2 * es * sums, nudge).sum(axis=1, keepdims=True) / ev.case.n
            yield weight * (x - true) / np.sqrt(var + ev.case.eps) + bias


@_both_ways
def _points(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    """y with xhat rounded and no statistic: what it explains nothing in 16 bits need explain, where eps outweighs the
    variance or the mean is next to nothing."""
    weight, bias = _parameters(ev)
    yield weight * _low(ev, ev.exact.statistics.xhat, ev.yardstick.bounds(tier).xhat_error, nudge) + bias


@_both_ways
def _eps(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    """y with eps in 16 bits, of either format: it is an input, and nothing about it is uncertain."""
    weight, bias = _parameters(ev)
    d = ev.case.matrix("x") - ev.pair("mean").hi[:, None]
    var = (d**2).mean(axis=1, keepdims=True)
    for kind in ("bfloat16", "float16"):
        yield weight * d / np.sqrt(var + round_values(np.array(ev.case.eps), kind)) + bias


def _backward(ev: Evaluation, nudge: float, tier: str) -> Iterator[tuple[Float64Array, Float64Array]]:
    """xhat and 1/s of mean and 1/s in 16 bits, both or one of them."""
    for mean_16, rstd_16 in ((True, True), (False, True), (True, False)):
        mean, rstd = ev.pair("mean").hi[:, None], ev.pair("rstd").hi[:, None]
        mean = _low(ev, mean, ev.bound("mean", tier)[:, None], nudge) if mean_16 else mean
        rstd = _low(ev, rstd, ev.bound("rstd", tier)[:, None], nudge) if rstd_16 else rstd
        yield (ev.case.matrix("x") - mean) * rstd, rstd


@_both_ways
def _dx(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    g = _parameters(ev)[0] * ev.case.matrix("dy")
    for xhat, rstd in _backward(ev, nudge, tier):
        yield rstd * (g - g.mean(axis=1, keepdims=True) - xhat * (g * xhat).mean(axis=1, keepdims=True))


@_both_ways
def _dweight(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    for xhat, _ in _backward(ev, nudge, tier):
        yield (ev.case.matrix("dy") * xhat).sum(axis=0)


@_both_ways
def _stored(ev: Evaluation, nudge: float, tier: str) -> Iterator[Float64Array]:
    """dweight rounded to the dtype of x at the end. Of one row it is the rounding point of a product."""
    if _filled(ev) > 1:
        yield _low(ev, ev.pair("dweight").hi, ev.bound("dweight", tier), nudge)


def _partial_sums(ev: Evaluation, tier: str) -> Iterator[tuple[Float64Array, Float64Array]]:
    """dweight of sums over blocks of rows that are rounded. Of one term that is the rounding of a product."""
    dy, xhat = ev.case.matrix("dy"), ev.exact.statistics.xhat
    terms, u = dy * xhat, ev.precision.compute.u
    for rows in BLOCK_ROWS:
        edges = np.arange(0, ev.case.rows, rows)
        if len(edges) < 2 or _filled(ev) < 2 * len(edges):
            continue
        h = roundings(np.add.reduceat((dy != 0).astype(float), edges, axis=0), tier)
        size = np.add.reduceat(np.abs(terms), edges, axis=0)
        carried = np.add.reduceat(np.abs(dy) * ev.yardstick.bounds(tier).backward_xhat_error, edges, axis=0)
        sums, error = np.add.reduceat(terms, edges, axis=0), (h + 2) * u * size + carried
        yield _low(ev, sums, error, -1.0).sum(axis=0), _low(ev, sums, error, 1.0).sum(axis=0)


def _filled(ev: Evaluation) -> int:
    """Rows in which dy is not all zero."""
    return int((ev.case.matrix("dy") != 0).any(axis=1).sum())
