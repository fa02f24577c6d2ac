"""Recurrent cells: exact results and bounds of one step, from the subject's own previous state.

Whatever a cell normalises, or adds up without normalising it, is a = sum of products + slack in its formula, with
slack = 0. Its value is exact; in the bound slack carries, beside what each product and sum of the formula may lose,

    (m + 1) u sum|products and bias|          one sum over inputs and units together, m terms, in any order
    (n + 4) u (|a| + |mu| + w)                what lnverify.norms.bound admits of algorithms on raw a, where it is
                                              normalised

n the longest sum of the case. A bound that is chained through time grows without end, since each step multiplies it by
|V| |weight|/sigma; so each step is judged from the state that the subject itself returned.

Range. Of one LN with the largest r, |a|, |gain| and xhat, all of them 1 at least: forward no product is beyond a^2, r a
gain or sum|products|; backward none is beyond r^3 a^2 gain |cotangent|, and the cotangent that it hands on is at most
r gain (2 + xhat) times the one that it gets. A gate has slopes of at most 1 and is multiplied by a state or by a
candidate. The cotangents of the outputs, taken through the late LN, the gates and the early ones in this way, bound
every product; as in lnverify.norms.bound nothing is judged where `count` of them exceed the range. A product that
underflows is off by t at most, the smallest normal number, and the same factors say what becomes of it.

Derivatives along tangents: the jvp, and the double backward, whose cotangents of the gradients are tangents. The
tangent a' of a carries the seed of lnverify.norms.bound.NormBounds.along, since an algorithm need not subtract its
mean. What the formula sums apart may be one sum in a subject, as in lnverify.norms.blocks, by which the range is judged
too: with the largest number P of the evaluation no product of one LN is beyond r^3 a^2 gain P in the jvp, and
r^5 a^4 gain P^2 in the double backward.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.bounds import roundings
from lnverify.case import Case
from lnverify.cell import Cell, Normalised, neutral
from lnverify.floats import FORMATS, Float64Array, Format
from lnverify.formulas import cells, cells_second_order
from lnverify.norms.bound import LARGEST, NormBounds, due, shift_error, tangent_error
from lnverify.norms.exact import Exact
from lnverify.oracle import Pair
from lnverify.running import Context, Running


class CellExact(Exact):
    """Exact results of one step."""

    module: Any = cells
    twice: Any = cells_second_order

    def __init__(self, case: Case) -> None:
        """Take the case's exact values; nothing is evaluated yet."""
        super().__init__(case)
        assert self.operation.cell is not None
        self.cell: Cell = self.operation.cell
        rows, inputs = self.raw.shape
        self.extents = self.cell.extents(rows, inputs, case.n)

    def argument(self, name: str) -> Float64Array:
        """x, a state or a parameter in the formula's shape; 1 or 0 where it may be absent and is."""
        shape = self.cell.apart(name, self.extents)
        if not self.case.has(name):
            return np.full(shape, neutral(name))
        return self.case.arrays[name].values.reshape(shape)

    def inputs(self, lift: Callable[[Any], Any], slack: Callable[[Normalised], Any] | None = None) -> dict[str, Any]:
        """Everything that the formula takes, by name and in its order. lift: makes numbers of an array.

        slack: what is admitted of each sum; without it zero.
        """
        slacks = {f"slack_{entry.word}": entry for entry in self.cell.normalised}
        found = {}
        for name in self.formal:
            if name in slacks:
                found[name] = slack(slacks[name]) if slack else lift(self.no_slack(name))
            elif name.startswith("pick_"):
                found[name] = lift(np.array([float(gate == name[-1]) for gate in self.cell.gates]))
            else:
                found[name] = lift(self.case.eps if name.startswith("eps") else self.argument(name))
        return found

    @property
    def dys(self) -> list[Float64Array]:
        """The cotangents of the outputs."""
        return [self.case.arrays[name].values for name in self.operation.cotangents]

    @property
    def formal(self) -> list[str]:
        """The names of what the formula takes, in its order."""
        return list(inspect.signature(self.program("forward")).parameters)

    def no_slack(self, name: str) -> Float64Array:
        """Zeros in the shape of a slack."""
        axes = next(entry.axes for entry in self.cell.normalised if name == f"slack_{entry.word}")
        return np.zeros(tuple(self.extents[letter] for letter in axes))

    def given(self, x: Any, lift: Callable[[Any], Any]) -> list[Any]:
        """What the formula takes, in its order; x is that of the case."""
        return list(self.inputs(lift).values())

    def moving(self, prefix: str) -> dict[str, Float64Array]:
        """By what is differentiated, in the formula's order: its tangent (t), or the cotangent of its gradient (v).

        Zero where the case has none; that of a slack is always.
        """
        arrays, found = self.case.arrays, {}
        for name in self.formal:
            if name in self.operation.arguments:
                zero = np.zeros_like(self.argument(name))
                found[name] = arrays[prefix + name].values.reshape(zero.shape) if prefix + name in arrays else zero
            elif name.startswith("slack"):
                found[name] = self.no_slack(name)
        return found

    def along(self, prefix: str) -> list[Float64Array]:
        """The same, in a row."""
        return list(self.moving(prefix).values())

    def place(self, output: str) -> tuple[str, str]:
        """The derived program that an output comes from (lnverify.norms.exact.MODES), and its name there."""
        known, name = self.operation, output[1:]
        if output in known.outputs:
            return "forward", output
        if output.startswith("t") and name in known.outputs:
            return "forward_mode", f"{name}_dot"
        if not output.startswith("d2"):
            return "backward", f"{name}_bar"
        by = output.removeprefix("d2")
        return "double", f"{by[1:]}_bar_bar2" if by in known.cotangents else f"{by}_bar2"

    def result(self, output: str, found: dict[str, Any]) -> Any:
        """An output of its program's results, in the shape in which it is stored. Raises KeyError for another name."""
        return found[self.place(output)[1]].reshape(due(self.case, output).shape)

    def pair(self, output: str) -> Pair:
        """The exact value of an output or of a derivative, as it is stored."""
        value = self.result(output, getattr(self, self.place(output)[0]))
        if self.wide:
            return Pair(value.hi, value.lo)
        return Pair(value, np.zeros_like(value))

    def tangents(self, prefix: str) -> dict[str, Float64Array]:
        """a_<word>_dot of each LN along the tangents (t), or the cotangents of the gradients (v).

        In float64; they decide only what is admitted.
        """
        with np.errstate(all="ignore"):
            return self.program("forward_mode")(*self.given(self.raw, np.asarray), *self.along(prefix))

    def normalised(self, entry: Normalised) -> tuple[Float64Array, Float64Array, Float64Array, tuple[int, ...]]:
        """a, its mean and variance with axes of one, and the axes that they are taken over."""
        value = self.forward[f"a_{entry.word}"]
        a = np.asarray(value.hi if self.wide else value, dtype=np.float64)
        over = tuple(entry.axes.index(letter) for letter in entry.over)
        with np.errstate(all="ignore"):
            mu = a.mean(axis=over, keepdims=True)
            return a, mu, ((a - mu) ** 2).mean(axis=over, keepdims=True), over

    def magnitude(self, entry: Normalised) -> tuple[Float64Array, int]:
        """sum|products| + |bias| of a sum, and how many terms it has."""
        total: Any = np.zeros(tuple(self.extents[letter] for letter in entry.axes))
        terms = 0
        for weight, given in entry.products:
            w, v = np.abs(self.argument(weight)), np.abs(self.argument(given))
            with np.errstate(all="ignore"):
                total = total + np.tensordot(v, w, axes=(1, w.ndim - 1))
            terms += v.shape[1]
        if entry.bias:
            total, terms = total + np.abs(self.argument(entry.bias)), terms + 1
        return total, terms


class CellBounds(NormBounds):
    """Bounds of one step."""

    def __init__(self, exact: CellExact, compute: Format) -> None:
        """compute: the format that the subject computes in."""
        super().__init__(exact, compute)
        self.around: dict[str, Float64Array] = {}  # by state: how far it may be from the one that the case holds
        self.count = exact.cell.longest(exact.extents)
        self.peaks: dict[str, float] = {}  # by derived program: its largest number, where the context keeps it

    @property
    def step(self) -> CellExact:
        """Its exact results."""
        assert isinstance(self.exact, CellExact)
        return self.exact

    def of(self, case: Case) -> CellBounds:
        """Those of a case that differs by tangents and by cotangents of gradients alone."""
        found = super().of(case)
        assert isinstance(found, CellBounds)
        found.peaks = dict(self.peaks)
        return found

    def slack(self, entry: Normalised) -> Running:
        """What the head of this file admits of one sum."""
        exact = self.step
        magnitude, terms = exact.magnitude(entry)
        admitted = (terms + 1) * magnitude if terms else 0 * magnitude
        if entry.over:
            a, mu, var, over = exact.normalised(entry)
            first = tuple(slice(0, 1) if axis in over else slice(None) for axis in range(a.ndim))
            with np.errstate(all="ignore"):
                raw = np.abs(a) + np.abs(mu) + shift_error(a - mu, a[first] - mu, var, over)
                admitted = admitted + (float(roundings(self.count, "det")) + 4) * raw
        return Running(np.zeros_like(magnitude), self.compute.u * admitted, self.context)

    @property
    def _given(self) -> list[Running]:
        given = self.step.inputs(self.context.exact, self.slack)
        for name, error in self.around.items():
            given[name] = Running(given[name].value, error, self.context)
        return list(given.values())

    def _called(self, what: str, *more: Any, given: list[Running] | None = None) -> dict[str, Running]:
        self.context.peak = 1.0
        found = super()._called(what, *more, given=given)
        self.peaks[what] = self.context.peak
        return found

    def reverse(self, cotangents: list[Running]) -> dict[str, Running]:
        """The derived reverse mode for cotangents that have errors of their own."""
        return self._called("backward", *cotangents)

    def along(self, prefix: str) -> list[Running]:
        """Tangents (t) or cotangents of the gradients (v), with the seed of each a' (head of this file)."""
        found = {name: self.context.exact(values) for name, values in self.step.moving(prefix).items()}
        tangents = self.step.tangents(prefix)
        for entry in self.step.cell.norms:
            a, mu, _, over = self.step.normalised(entry)
            e, t = self.slack(entry).error, np.abs(tangents[f"a_{entry.word}_dot"])
            found[f"slack_{entry.word}"] = Running(np.zeros_like(a), tangent_error(a - mu, e, t, over), self.context)
        return list(found.values())

    @cached_property
    def joined(self) -> CellBounds:
        """The same where several sums may be one, by which derivatives along tangents are judged."""
        found = CellBounds(self.step, self.compute)
        found.context = Context(self.compute, longest=self.count)
        return found

    def reach(self, what: str) -> tuple[float, float]:
        """The largest product of a derived program, and by how much at most an error in one of them is multiplied."""
        return self.extremes[what == "backward"] if what in ("forward", "backward") else self.by_peak(what)

    def by_peak(self, what: str) -> tuple[float, float]:
        """The same by the largest number of its evaluation (head of lnverify.norms.blocks)."""
        twice, lifts = what == "double", [1.0, 1.0]  # of early LNs and of the late one
        with np.errstate(all="ignore"):
            for entry in self.step.cell.norms:
                a, mu, var, _ = self.step.normalised(entry)
                r, size = _largest(1 / np.sqrt(var + self.step.case.eps)), _largest(a, mu)
                lift = r * r * r * size * size * _largest(self.step.argument(entry.gain))  # a power of a float raises
                lift *= r * r * size * size if twice else 1.0
                lifts[entry.late] = max(lifts[entry.late], lift)
            peak = self.peaks[what]
            most = peak * peak if twice else peak
            return max(lifts) * most, lifts[0] * lifts[1] * most * peak

    def bound(self, output: str) -> Float64Array:
        """The bound of an output or of a derivative, as it is stored; infinite where nothing is judged."""
        what, _ = self.step.place(output)
        if what in ("forward_mode", "double") and not self.context.longest:
            return self.joined.bound(output)
        result = self.step.result(output, getattr(self, what))
        largest, factor = self.reach(what)
        with np.errstate(all="ignore"):
            if not self.count * largest <= min(self.compute.largest, LARGEST):
                return np.full(result.shape, np.inf)
            small = self.count * self.compute.tiny * factor + FORMATS[due(self.step.case, output).dtype].tiny
            bound = result.error + self.compute.u * np.abs(self.step.pair(output).hi) + small
            return np.where(np.isnan(bound), np.inf, bound)

    @cached_property
    def extremes(self) -> tuple[tuple[float, float], tuple[float, float]]:
        """Forward and backward: the largest product, and by how much at most an error in one of them is multiplied."""
        exact, known = self.step, self.step.operation
        cotangent = _largest(*exact.dys) if all(map(exact.case.has, known.cotangents)) else 1.0
        cotangent *= len(known.outputs)
        weights = _largest(exact.raw, *(exact.argument(n) for n in ("h", *exact.cell.parameters) if neutral(n) is None))
        # what a gate is multiplied by: a state, a candidate, another LN's result
        states = _largest(*(exact.argument(name) for name in known.states))
        forward, backward, factors = 1.0, 1.0, [1.0, 1.0]
        hands_on = [1.0, 1.0]  # by early LNs, and by the late one
        for entry in sorted(exact.cell.normalised, key=lambda entry: not entry.late):
            forward = max(forward, _largest(exact.magnitude(entry)[0]))
            if not entry.over:
                continue
            a_all, mu, var, _ = exact.normalised(entry)
            with np.errstate(all="ignore"):
                root = 1 / np.sqrt(var + exact.case.eps)
                r, a, gain = _largest(root), _largest(a_all), _largest(exact.argument(entry.gain))
                xhat = _largest((a_all - mu) * root)
            if not entry.late:
                states = max(states, gain * xhat + _largest(exact.argument(entry.shift)))
            forward = max(forward, a * a, r * a * gain)
            reaches = cotangent * (1.0 if entry.late else hands_on[1] * states)
            backward = max(backward, r**3 * a * a * gain * reaches)
            hands_on[entry.late] = max(hands_on[entry.late], 1 + r * gain * (2 + xhat))
            factors[entry.late] = max(factors[entry.late], r**3 * a * a * gain)
        backward = max(backward, forward, cotangent * hands_on[0] * hands_on[1] * states * weights)
        late = max(factors[1], factors[0] * states * hands_on[1])
        early = max(factors[0], factors[1] * states * hands_on[0])
        return (forward, late), (backward, early * weights * cotangent)


def _largest(*arrays: Float64Array) -> float:
    """The largest size of a number in some arrays, 1 at least."""
    return max(1.0, *(float(np.abs(array).max(initial=0.0)) for array in arrays))
