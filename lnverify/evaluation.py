"""Evaluation: a case, evaluated once for every law: the subject's response, the exact result, the bounds.

Judging an output means: does an admissible error before the final rounding explain what was returned?

    ratio = distance(exact value, rounding cell of the returned number) / bound before rounding

and ratio <= 1 passes. In 16 bits, where the bound is often far below an ulp, this asks for the correctly
rounded result except next to ties. Rows where right algorithms may overflow are not judged (bounds.row_range);
what happens there is kept apart as `range_note`, which no law turns into an error.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.bounds import Precision
from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray, Format, distance, error_in_ulp, quantum
from lnverify.judgement import ALONE, COLUMN_OUTPUTS, ROW_OUTPUTS, Judgement
from lnverify.law import Outcome
from lnverify.operation import operation
from lnverify.oracle import Exact, Pair
from lnverify.protocol import Response
from lnverify.row_range import Range
from lnverify.subject import Subject
from lnverify.worst import Worst, most_ulps, worst
from lnverify.yardstick import Stopwatch, Yardstick


class Evaluator:
    """Evaluates cases of one subject; keeps the latest evaluations, so that laws share them."""

    def __init__(self, subject: Subject, stopwatch: Stopwatch | None = None, keep: int = 24) -> None:
        """`keep`: how many evaluations stay in the cache (by identity of the case)."""
        self.subject = subject
        self.stopwatch = stopwatch or Stopwatch()
        self._kept: OrderedDict[int, Evaluation] = OrderedDict()
        self._keep = keep
        self.causes: dict[str, Counter[str]] = {}  # by output: what diagnosis has found so far (lnverify.diagnosis)
        self.told: dict[
            Any, bool | None
        ] = {}  # by draw: what it told of values kept in 16 bits (lnverify.sixteen_bits)

    def evaluate(self, case: Case) -> Evaluation:
        """The evaluation of a case; the same object for the same Case."""
        found = self._kept.get(id(case))
        if found is not None and found.case is case:
            self._kept.move_to_end(id(case))
            return found
        evaluation = Evaluation(case, self)
        self._kept[id(case)] = evaluation
        while len(self._kept) > self._keep:
            self._kept.popitem(last=False)
        return evaluation

    def precision(self, dtype: str) -> Precision:
        """What the subject computes in for a dtype, by its declarations."""
        declared = self.subject.capabilities
        return Precision.of(dtype, declared.compute.get(dtype), declared.backward_from)


class Evaluation:
    """A case with the subject's response, the exact result and the bounds, each evaluated when first needed."""

    def __init__(self, case: Case, evaluator: Evaluator, response: Response | None = None) -> None:
        """`response`: a stored answer to judge instead of running the subject (replay)."""
        self.asked, self.evaluator = case, evaluator
        self._stored = response
        self._like: Yardstick | None = None
        self.judged: dict[tuple[str, str, bool], Judgement] = {}
        self._responses: dict[tuple[str, ...], Response] = {}

    @property
    def subject(self) -> Subject:
        """The subject."""
        return self.evaluator.subject

    def again(self, case: Case) -> Evaluation:
        """Evaluate a transformed case with the same subject."""
        return self.evaluator.evaluate(case)

    def rerun(self, case: Case) -> Evaluation:
        """A fresh run of a case with the same numbers in another setting (modes, layouts, gradients asked for)."""
        run = Evaluation(case, self.evaluator)
        mine = self.case.arrays
        # dy and tangents may be left out: what is right of y does not depend on them.
        alike = case.eps == self.case.eps and all(case.has(p) == self.case.has(p) for p in ("weight", "bias"))
        if alike and all(array is mine.get(name) for name, array in case.arrays.items()):
            run._like = self.yardstick
        return run

    def answered(self, response: Response) -> Evaluation:
        """The same numbers with another answer to judge, one that came by another way."""
        run = Evaluation(self.asked, self.evaluator, response)
        run._like = self.yardstick
        return run

    # What the subject answered

    def ask(self, *wanted: str, fresh: bool = False) -> Response:
        """The subject's response for the wanted outputs; the same object for the same outputs unless fresh."""
        if self._stored is not None:
            return self._stored
        if not fresh and wanted in self._responses:
            return self._responses[wanted]
        start = time.perf_counter()
        response = self.subject.run(self.asked.request(*wanted))
        self.evaluator.stopwatch.timed("subject", start)
        self.evaluator.stopwatch.requests += 1
        if not fresh:
            self._responses[wanted] = response
        return response

    def _wanted(self) -> tuple[str, ...]:
        can = self.subject.capabilities.outputs
        grads = self.asked.gradients() if self.asked.has("dy") else ()
        outputs = operation(self.asked.operation).outputs
        return (*outputs, *(o for o in ("mean", "rstd") if o in can), *(g for g in grads if g in can))

    @cached_property
    def response(self) -> Response:
        """The response for y, the statistics and the gradients of the case, as far as the subject has them."""
        return self.ask(*self._wanted())

    @cached_property
    def case(self) -> Case:
        """The case as the subject saw it: with dy = 'output' it holds the dy that the subject reported."""
        asked = self.asked
        if asked.layouts.get("dy") == "output":
            reported = self.response.arrays.get("dy")
            if reported is not None and reported.shape == asked.arrays["x"].shape:
                return replace(asked, arrays={**asked.arrays, "dy": reported})
        return asked

    def output(self, name: str) -> FloatArray | None:
        """A returned array, or None where it is missing."""
        if name in ALONE or name in (f"t{output}" for output in operation(self.asked.operation).outputs):
            return self.ask(name).arrays.get(name)
        if name.startswith("d2"):
            return self.second_order.arrays.get(name)
        return self.response.arrays.get(name)

    @cached_property
    def second_order(self) -> Response:
        """The response of the double backward for every argument and every cotangent of the case."""
        known = operation(self.asked.operation)
        names = [f"d2{a}" for a in known.arguments if self.asked.has(a)] + [f"d2{dy}" for dy in known.cotangents]
        return self.ask(*(n for n in names if n in self.subject.capabilities.outputs))

    # What is right, and what is admitted

    @cached_property
    def yardstick(self) -> Yardstick:
        """Exact results, bounds and range of the case."""
        if self._like is not None and self.case is self.asked:
            return self._like
        return Yardstick(self.case, self.evaluator.precision(self.case.dtype), self.evaluator.stopwatch)

    @property
    def exact(self) -> Exact:
        """The exact results."""
        return self.yardstick.exact

    @property
    def precision(self) -> Precision:
        """Formats of computation and output."""
        return self.yardstick.precision

    @property
    def range(self) -> Range:
        """Rows near the ends of the range."""
        return self.yardstick.range

    def pair(self, output: str) -> Pair:
        """The exact value of an output."""
        return self.yardstick.pair(output)

    def bound(self, output: str, tier: str = "det", points: bool = False) -> Float64Array:
        """The bound of an output, in its shape (Yardstick.bound)."""
        return self.yardstick.bound(output, tier, points)

    # Judging

    def _shape(self, output: str) -> tuple[int, ...]:
        if output in ROW_OUTPUTS:
            return (self.case.rows, self.case.n)
        return (self.case.n,) if output in COLUMN_OUTPUTS else (self.case.rows,)

    def judge(self, output: str, tier: str = "det", points: bool = False) -> Judgement:
        """Judge one output (y, mean, rstd, dx, dweight, dbias, ty, d2x, d2weight, d2bias, d2dy)."""
        key = (output, tier, points)
        if key not in self.judged:
            self.judged[key] = self._judge(output, tier, points)
        return self.judged[key]

    def _judge(self, output: str, tier: str, points: bool) -> Judgement:
        got = self.output(output)
        source = (
            self.second_order if output.startswith("d2") else self.ask(output) if output in ALONE else self.response
        )
        if source.refusal is not None:
            return Judgement(output, "refused", message=source.refusal)
        if got is None:
            return Judgement(output, "missing")
        shape = self._shape(output)
        if got.size != int(np.prod(shape)):
            return Judgement(output, "shape")
        if got.size == 0:
            return Judgement(output, "vacuous")
        return self.judge_values(output, got.values.reshape(shape), got.dtype, tier, points)

    def settle(self, output: str) -> tuple[Judgement, str]:
        """The judgement in the deciding tier, and its class: the judgement's state, or in 16 bits 'points'
        (explained by the rounding points of op-by-op code) or 'last place' (within one ulp everywhere)."""
        judgement = self.judge(output)
        if judgement.state != "violated" or FORMATS[self.case.dtype].precision > 11:
            return judgement, judgement.state
        if output in ("y", "dx", "dweight") and self.judge(output, points=True).ratio <= 1:
            return judgement, "points"
        return judgement, "last place" if judgement.ulps <= 1 else "violated"

    def skipped(self, output: str, returned: Float64Array) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
        """Elements that are not judged, in the output's shape."""
        broken = self.yardstick.broken
        limits = self.range
        second = output in ALONE or output.startswith("d2")
        unsafe = limits.excused | limits.grey | limits.backward | (limits.derivatives if second else False)
        if output in COLUMN_OUTPUTS:
            off = bool(broken.any()) or (output != "dbias" and bool(unsafe.any()))
            return np.full(returned.shape, off or limits.column)
        rows = broken | limits.excused
        if output in ("dx", "d2x", "d2dy", *ALONE):
            rows = rows | unsafe
        else:
            if limits.grey.any():
                lost = ~np.isfinite(returned) if returned.ndim == 1 else ~np.isfinite(returned).all(axis=1)
                rows = rows | (limits.grey & lost)
        return np.broadcast_to(rows[:, None], returned.shape) if returned.ndim == 2 else rows

    def judge_values(
        self, output: str, returned: Float64Array, dtype: str, tier: str = "det", points: bool = False
    ) -> Judgement:
        """Judge given values as this output of this case; `dtype` is the format that they were rounded to."""
        exact, bound = self.pair(output), self.bound(output, tier, points)
        # A result wider than its due format is judged by the due one: the dtype has a law of its own.
        due = (
            self.case.arrays.get(output[1:], self.case.arrays["x"]).dtype if output.startswith("d") else self.case.dtype
        )
        fmt = FORMATS[due] if FORMATS[dtype].precision > FORMATS[due].precision else FORMATS[dtype]
        start = time.perf_counter()
        skipped = self.skipped(output, returned)
        with np.errstate(all="ignore"):
            found = None if skipped.any() else worst(returned, exact, bound, fmt)
            if found is not None:
                judgement = self._plainly(output, returned, exact, bound, fmt, found)
                self.evaluator.stopwatch.timed("bound", start)
                return judgement
            apart = distance(returned, exact.hi, exact.lo, fmt)
            # A bound that is infinite or NaN admits everything, a NaN included.
            blind = ~np.isfinite(bound)
            ratio = np.where(apart == 0, 0.0, apart / np.where(blind, 1.0, bound))
            ratio = np.where(blind, 0.0, ratio)
            wrong = skipped & (ratio > 1) & ~np.isnan(exact.hi)
            ratio = np.where(skipped, 0.0, ratio)
        note = self._range_note(output, returned, wrong)
        judged = ~skipped & ~blind & np.isfinite(exact.hi)
        if not judged.any():
            self.evaluator.stopwatch.timed("bound", start)
            return Judgement(output, "vacuous" if (~skipped).any() else "unjudged", range_note=note)
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        most = float(ratio[at])
        size = np.abs(exact.hi)
        scale = size.max(where=judged, initial=0.0)
        sees = bool((judged & (bound < scale)).any()) if scale > 0 else True
        state = "violated" if most > 1 else "holds" if sees else "vacuous"
        ulps = 0.0
        if most > 1:
            ulps = float(error_in_ulp(returned, exact.hi, exact.lo, fmt).max(where=judged, initial=0.0))
        self.evaluator.stopwatch.timed("bound", start)
        return Judgement(
            output,
            state,
            most,
            self.place(output, tuple(int(i) for i in at)),
            float(exact.hi[at]),
            float(returned[at]),
            float(bound[at]),
            ulps,
            note,
        )

    def _plainly(
        self, output: str, returned: Float64Array, exact: Pair, bound: Float64Array, fmt: Format, found: Worst
    ) -> Judgement:
        """The judgement where every element is judged and every number finite."""
        at = np.unravel_index(found.at, returned.shape)
        sees = found.least < found.scale or found.scale == 0
        bad = found.ratio > 1
        return Judgement(
            output,
            "violated" if bad else "holds" if sees else "vacuous",
            found.ratio,
            self.place(output, tuple(int(i) for i in at)),
            float(exact.hi[at]),
            float(returned[at]),
            float(bound[at]),
            most_ulps(returned, exact, fmt) if bad else 0.0,
        )

    def place(self, output: str, at: tuple[int, ...]) -> tuple[int, ...]:
        """Index in the output's real shape of an index in its (rows, n) or (n,) form."""
        x = self.case.arrays["x"].shape
        batch = x[: len(x) - len(self.case.normalized_shape)]
        if output in ROW_OUTPUTS:
            row = np.unravel_index(at[0], batch) if batch else ()
            return tuple(int(i) for i in (*row, *np.unravel_index(at[1], self.case.normalized_shape)))
        return tuple(
            int(i)
            for i in np.unravel_index(at[0], self.case.normalized_shape if output in COLUMN_OUTPUTS else batch or (1,))
        )

    def _range_note(
        self, output: str, returned: Float64Array, wrong: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]
    ) -> str:
        if not wrong.any():
            return ""
        at = np.unravel_index(int(np.argmax(wrong)), wrong.shape)
        value = returned[at]
        kind = (
            "NaN" if np.isnan(value) else "infinity" if np.isinf(value) else "zero" if value == 0 else "a wrong value"
        )
        return f"{output}{list(self.place(output, tuple(int(i) for i in at)))} is {kind}"

    def compare(self, other: Evaluation, output: str, scale: float | Float64Array = 1.0) -> Judgement:
        """Two runs: is (this - scale * other) what the exact results on the inputs of each run say?

        Limit: the sum of both bounds plus both half cells (the other's times |scale|); the exact difference
        comes from the oracle on the rounded inputs that each run really got.
        """
        mine, theirs = self.output(output), other.output(output)
        if mine is None or theirs is None or mine.size != theirs.size or mine.size == 0:
            return Judgement(output, "missing")
        shape = self._shape(output)
        a, b = mine.values.reshape(shape), theirs.values.reshape(shape)
        exact_a, exact_b = self.pair(output), other.pair(output)
        with np.errstate(all="ignore"):
            limit = self.bound(output) + np.abs(scale) * other.bound(output)
            limit = (
                limit + 0.5 * quantum(a, FORMATS[mine.dtype]) + 0.5 * np.abs(scale) * quantum(b, FORMATS[theirs.dtype])
            )
            expected = (exact_a.hi - scale * exact_b.hi) + (exact_a.lo - scale * exact_b.lo)
            got = a - scale * b
            apart = np.abs(got - expected)
            blind = ~np.isfinite(limit)
            # An infinity is overflow, which the accuracy laws judge run by run.
            skipped = self.skipped(output, a) | other.skipped(output, b) | np.isinf(a) | np.isinf(b)
            ratio = np.where(
                blind | skipped, 0.0, np.where(np.isnan(apart), np.inf, apart / np.where(blind, 1.0, limit))
            )
        if not (~blind & ~skipped).any():
            return Judgement(output, "vacuous")
        at = np.unravel_index(int(np.argmax(ratio)), ratio.shape)
        most = float(ratio[at])
        scale_here = np.abs(exact_a.hi).max(where=~skipped, initial=0.0)
        sees = bool(((limit < scale_here) & ~skipped).any()) if scale_here > 0 else True
        return Judgement(
            output,
            "violated" if most > 1 else "holds" if sees else "vacuous",
            most,
            self.place(output, tuple(int(i) for i in at)),
            float(np.asarray(expected)[at]),
            float(np.asarray(got)[at]),
            float(np.asarray(limit)[at]),
        )


Checker = Callable[[Evaluation], Outcome]
