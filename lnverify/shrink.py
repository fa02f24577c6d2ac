"""Shrink: make a violating case small, on the concrete arrays, within a budget that is counted, not timed.

Order of attempts: fewer rows, fewer columns, simpler setting (modes, layouts, absent parameters), simpler
numbers (dy, weight, bias, eps, then x: fewer bits, then 0, 1 and -1). A candidate is kept if the law is still
violated. Shrinking hides severity (a shrunk case sits just over the bound), so reports show the worst case too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.floats import Float64Array, FloatArray
from lnverify.law import Outcome
from lnverify.operation import operation

SIMPLE_EPS = 1e-5  # the default of most frameworks
Check = Callable[[Case], Outcome]
MATRICES = ("x", "dy", "tx", "vx", "sx", "wx")  # arrays of x's shape


def cost(case: Case) -> float:
    """Model seconds of one check of a case: the budget's unit, so that the same seed shrinks the same way."""
    per_element = 4e-6 if case.dtype == "float64" else 1e-6
    return 3e-3 + per_element * max(array.size for array in case.arrays.values())  # of x, or of a cell's weights


def preference(case: Case) -> tuple[bool, float]:
    """What to shrink from: the cheapest case, an empty one last, for it shows nothing."""
    return case.size == 0, cost(case)


@dataclass
class Shrinker:
    """Greedy search from a violating case. `check` judges a candidate with the one law; budget in model seconds;
    affine, eps: what the subject accepts; cause: the one to keep, '' for any."""

    check: Check
    budget: float
    affine: tuple[str, ...]
    cause: str = ""
    eps: tuple[float, ...] = (SIMPLE_EPS,)
    calls: int = 0

    def run(self, case: Case, outcome: Outcome) -> tuple[Case, Outcome]:
        """The smallest case found and its outcome."""
        best = (case, outcome)
        for step in (self._rows, self._columns, self._setting, self._rows, self._columns, self._numbers):
            progress = True
            while progress and self.budget > 0:
                progress = False
                for candidate in step(*best):
                    found = self._try(candidate)
                    if found is not None:
                        best, progress = found, step is not self._setting
                        break
                    if self.budget <= 0:
                        break
            if step is self._setting:
                best = self._each(best)
        return best

    def _each(self, best: tuple[Case, Outcome]) -> tuple[Case, Outcome]:
        """Setting changes are independent: try each once, keep those that still violate."""
        for number in range(12):
            options = list(self._setting(*best))
            if number >= len(options) or self.budget <= 0:
                break
            found = self._try(options[number])
            if found is not None:
                best = found
        return best

    def _try(self, case: Case) -> tuple[Case, Outcome] | None:
        self.budget -= cost(case)
        self.calls += 1
        outcome = self.check(case)
        return (case, outcome) if outcome.bad and self.cause in ("", outcome.cause) else None

    # Candidates

    def _rows(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        rows = case.rows
        if rows <= 1:
            return
        shown = outcome.case or case
        alike = shown.arrays["x"].shape == case.arrays["x"].shape
        if outcome.index and outcome.output in ("y", "dx") and alike:
            batch = case.arrays["x"].shape[: len(case.arrays["x"].shape) - len(case.normalized_shape)]
            if len(outcome.index) >= len(batch) > 0:
                row = int(np.ravel_multi_index(outcome.index[: len(batch)], batch))
                yield take_rows(case, slice(row, row + 1))
        sizes = {1, 2, 3, 9, 17, 33, 65, 129, 257, 258, 513, rows // 2, rows - rows // 4, rows - 1}
        for size in sorted(s for s in sizes if 0 < s < rows):
            yield take_rows(case, slice(0, size))
            if size < rows // 2:
                yield take_rows(case, slice(rows - size, rows))

    def _columns(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        n = case.n
        if len(case.normalized_shape) > 1 or len(case.arrays["x"].shape) != 2:
            yield take_columns(case, slice(0, n))
        if n > 1:
            sizes = {1, 2, 3, 4, 5, 7, 8, 9, 17, 33, 65, 257, n // 2, n - n // 4, n - 1}
            for size in sorted(s for s in sizes if 0 < s < n):
                yield take_columns(case, slice(0, size))
                if size < n // 2:
                    yield take_columns(case, slice(n - size, n))

    def _setting(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        full = ("x", "weight", "bias")
        if case.has("weight") and case.has("bias") and "none" in self.affine:
            yield case.with_arrays(weight=None, bias=None, tweight=None, tbias=None, vweight=None, vbias=None)
        if case.has("bias") and ("weight" if case.has("weight") else "none") in self.affine:
            yield case.with_arrays(bias=None, tbias=None, vbias=None)
        if case.has("weight") and ("bias" if case.has("bias") else "none") in self.affine:
            yield case.with_arrays(weight=None, tweight=None, vweight=None)
        if case.requires_grad != full:
            yield replace(case, requires_grad=full)
        if case.threads is not None:
            yield replace(case, threads=None)
        if case.layouts:
            yield replace(case, layouts={})
        if not case.train:
            yield replace(case, train=True)
        if case.eps != SIMPLE_EPS and SIMPLE_EPS in self.eps:
            yield replace(case, eps=SIMPLE_EPS)

    def _numbers(self, case: Case, outcome: Outcome) -> Iterator[Case]:
        yield from self._simpler_arrays(case)
        x = case.arrays["x"].values
        if any(np.array_equal(x, values) for values in _familiar(case)):
            return  # what people know is not made simpler: from there the search would go round in circles
        with np.errstate(all="ignore"):
            yield from self._familiar(case, x)
            for bits in (1, 2, 3, 5, 8, 12):
                mantissa, exponent = np.frexp(x)
                rounded = np.ldexp(np.round(mantissa * 2.0**bits), exponent - bits)
                if not np.array_equal(rounded, x) and np.isfinite(rounded).all():
                    yield self._with(case, "x", rounded)
            if np.isfinite(x).all() and x.size and x.size <= 64:
                whole = np.round(x)
                if not np.array_equal(whole, x):
                    yield self._with(case, "x", whole)
                base = np.round(x.ravel()[0])
                if base != 0:
                    yield self._with(case, "x", x - base)
                for at in range(x.size):
                    for value in (0.0, 1.0, -1.0):
                        if abs(x.ravel()[at]) > abs(value) or (value == 1.0 and x.ravel()[at] == -1.0):
                            changed = x.copy().ravel()
                            changed[at] = value
                            yield self._with(case, "x", changed.reshape(x.shape))

    def _familiar(self, case: Case, x: Float64Array) -> Iterator[Case]:
        """The numbers that people write into a bug report: small integers, alone or on 100, 1000 or 10000."""
        if not 0 < x.size <= 64 or not np.isfinite(x).all():
            return
        for values in _familiar(case):
            if np.abs(x).max() > values.min() + 3 or not np.array_equal(x, np.round(x)):
                yield self._with(case, "x", values)

    def _simpler_arrays(self, case: Case) -> Iterator[Case]:
        """Parameters, states and cotangents one after the other: constant, signs, whole numbers."""
        known = operation(case.operation)
        ones = [name for name in known.parameters if name not in known.shifts]
        simplest = dict.fromkeys(ones, 1.0) | dict.fromkeys((*known.shifts, *known.states), 0.0)
        for name, simple in (simplest | dict.fromkeys(known.cotangents, 1.0)).items():
            if case.has(name):
                values = case.arrays[name].values
                for target in (np.full(values.shape, simple), np.sign(values), np.round(values)):
                    if not np.array_equal(values, target):
                        yield self._with(case, name, target)

    @staticmethod
    def _with(case: Case, name: str, values: Float64Array) -> Case:
        array = FloatArray.of(values, case.arrays[name].dtype)
        layouts = {k: v for k, v in case.layouts.items() if not (k == name and v in ("expanded", "output"))}
        return replace(case, arrays={**case.arrays, name: array}, layouts=layouts, recipe=None)


def _familiar(case: Case) -> Iterator[Float64Array]:
    """0, 1, 2, 3, 0, ... on 0, 10, 100, 1000 and 10000, in the shape of x."""
    ladder = np.arange(case.n, dtype=np.float64) % 4
    for base in (0.0, 10.0, 100.0, 1000.0, 10000.0):
        yield np.broadcast_to(base + ladder, (case.rows, case.n)).reshape(case.arrays["x"].shape)


def _cut(case: Case, arrays: dict[str, FloatArray], shape: tuple[int, ...]) -> Case:
    cut = replace(case, arrays=arrays, normalized_shape=shape, recipe=None)
    grads = ", ".join(case.requires_grad)
    return replace(cut, label=f"N={cut.n}, rows={cut.rows}, eps={cut.eps:g}, gradients of {grads}")


def take_rows(case: Case, rows: slice) -> Case:
    """The case with some of its rows, as (rows, *normalized_shape)."""
    arrays: dict[str, FloatArray] = {}
    for name, array in case.arrays.items():
        if array.shape == case.arrays["x"].shape and name in MATRICES:
            bits: Any = array.bits.reshape(case.rows, *case.normalized_shape)[rows]
            arrays[name] = FloatArray(array.dtype, np.ascontiguousarray(bits))
        else:
            arrays[name] = array
    return _cut(case, arrays, case.normalized_shape)


def take_columns(case: Case, columns: slice) -> Case:
    """The case with some of its columns, as (rows, n)."""
    arrays: dict[str, FloatArray] = {}
    for name, array in case.arrays.items():
        if name in MATRICES:
            bits: Any = array.bits.reshape(case.rows, case.n)[:, columns]
        else:
            bits = array.bits.reshape(case.n)[columns]
        arrays[name] = FloatArray(array.dtype, np.ascontiguousarray(bits))
    n = len(range(*columns.indices(case.n)))
    return _cut(case, arrays, (n,))
