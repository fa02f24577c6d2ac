"""Running statistics of batch norm: y by statistics that are given, and their update by a step of training.

Evaluation. y = weight (x - m) r + bias with r = 1/sqrt(v + eps), m and v given. Code that never builds x - m, as
x (weight r) + (bias - m weight r) or with sums of dy x and of dy apart, loses u (|x| + |m|) for each rounding, hence x
is seeded, as in lnverify.norms.bound, with (h + 4) u (|x| + |m|), h that of one term in y and of the longest sum in the
gradients; those of x need no seed.

Update. With the weight a = momentum of what is new

    m' = (1 - a) m + a mean,   v' = (1 - a) v + a var n/(n - 1)

(Ioffe, Szegedy 2015, algorithm 2, step 10, for the n/(n - 1); torch.nn.BatchNorm1d for a). Mean and variance carry the
running errors of lnverify.norms.bound, products and the sum four roundings each, which covers m + a (mean - m) for
a <= 1/2 as well.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import numpy as np

from lnverify.bounds import roundings
from lnverify.case import Case
from lnverify.double_double import DoubleDouble
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.judgement import Judgement
from lnverify.norms.against import judge_against
from lnverify.norms.bound import LARGEST, NormBounds
from lnverify.operation import MOMENTUM, RUNNING
from lnverify.oracle import Pair
from lnverify.recipes import normal
from lnverify.running import Running


class EvaluationBounds(NormBounds):
    """Bounds of batch norm by given statistics."""

    def _seed(self, terms: int) -> Running:
        exact = self.exact
        mean = exact.view.spread(exact.case.arrays["running_mean"].values)
        with np.errstate(all="ignore"):
            raw = np.abs(exact.raw) + np.abs(mean)
            return Running(exact.raw, (float(roundings(terms, "det")) + 4) * self.compute.u * raw, self.context)

    @cached_property
    def seeded(self) -> Running:
        """x with the error that the head of this file admits in y."""
        return self._seed(1)

    @cached_property
    def backward(self) -> dict[str, Running]:
        """The derived reverse mode, x seeded for sums."""
        given = self.exact.given(self._seed(self.count), self.context.exact)
        return self._called("backward", *self.exact.dys, given=given)

    def lift(self, what: str) -> Float64Array:
        """That of other norms, m beside x."""
        mean = float(np.abs(self.exact.case.arrays["running_mean"].values).max(initial=1.0))
        return np.asarray(super().lift(what) * max(mean, 1.0) ** 2)


def given_statistics(x: Float64Array, seed: int, channels: int) -> dict[str, Float64Array]:
    """A mean and a variance for each channel of x (rows, channels, *positions), near those of x but not the same."""
    flat = np.moveaxis(x, 1, 0).reshape(channels, -1)
    mean, spread = flat.mean(axis=1), flat.std(axis=1)
    spread = np.where(spread > 0, spread, 2.0**-6 + np.abs(mean) / 8)
    near = normal(seed, (2, channels))
    return {RUNNING[0]: mean + spread * near[0] / 2, RUNNING[1]: spread**2 * (0.5 + np.abs(near[1]))}


def tracking(case: Case) -> Case:
    """The case for the forward alone, with running statistics that it may bring up to date."""
    before = given_statistics(case.arrays["x"].values, 77, case.arrays["x"].shape[1])
    limit = FORMATS[case.dtype].largest
    arrays = {name: FloatArray.of(np.clip(values, -limit, limit), case.dtype) for name, values in before.items()}
    return case.with_arrays(dy=None, **arrays)


def judge_update(
    bounds: NormBounds, name: str, got: FloatArray, new: float = MOMENTUM, biased: bool = False
) -> Judgement:
    """One updated statistic against its bound.

    new: the weight of what is new; biased: the variance as it is, not times n/(n - 1). 'vacuous' where the bound does
    not tell the statistic from what it was before.
    """
    exact = bounds.exact
    before = exact.case.arrays[name]
    n = exact.view.n
    factor = 1.0 if biased or name == RUNNING[0] else float(n)
    divisor = 1.0 if factor == 1.0 else float(n - 1)
    key = {RUNNING[0]: "mu", RUNNING[1]: "var"}[name]
    shift = exact.pivot.reshape(-1) if key == "mu" else np.zeros(before.shape)
    with np.errstate(all="ignore"):
        value = (exact.forward[key] + shift) * factor / divisor * new + exact.lift(before.values) * (1 - new)
        hi, lo = (value.hi, value.lo) if isinstance(value, DoubleDouble) else (value, np.zeros_like(value))
        seen = (bounds.forward[key] + shift) * factor / divisor
        result = seen * new + bounds.context.exact(before.values) * (1 - new)
        size = np.maximum(np.abs(exact.raw).max(axis=exact.view.over, initial=1.0), np.abs(before.values))
        room = bounds.count * size**2 <= min(bounds.compute.largest, LARGEST)
        bound = result.error + bounds.compute.u * np.abs(hi) + bounds.compute.tiny * bounds.count * size
        bound = np.where(room & ~np.isnan(bound), bound, np.inf)
        moved = bool((np.abs(hi - before.values) > 2 * bound).any())
    judgement = judge_against(name, got, Pair(hi, lo), bound, before)
    return judgement if judgement.wrong else replace(judgement, state="holds" if moved else "vacuous")
