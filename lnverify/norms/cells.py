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
from lnverify.formulas import cells
from lnverify.norms.bound import LARGEST, NormBounds, due, shift_error
from lnverify.norms.exact import Exact
from lnverify.oracle import Pair
from lnverify.running import Running


class CellExact(Exact):
    """Exact results of one step."""

    module: Any = cells

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
        for name in inspect.signature(getattr(self.module, self.operation.formula)).parameters:
            if name in slacks:
                entry = slacks[name]
                shape = tuple(self.extents[letter] for letter in entry.axes)
                found[name] = slack(entry) if slack else lift(np.zeros(shape))
            elif name.startswith("pick_"):
                found[name] = lift(np.array([float(gate == name[-1]) for gate in self.cell.gates]))
            else:
                found[name] = lift(self.case.eps if name.startswith("eps") else self.argument(name))
        return found

    @property
    def dys(self) -> list[Float64Array]:
        """The cotangents of the outputs."""
        return [self.case.arrays[name].values for name in self.operation.cotangents]

    @cached_property
    def forward(self) -> dict[str, Any]:
        """The outputs, and a_<word> of each LN."""
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(self.module, self.operation.formula)(*self.inputs(self.lift).values())
        return found

    @cached_property
    def backward(self) -> dict[str, Any]:
        """<argument>_bar of each argument."""
        given = [*self.inputs(self.lift).values(), *map(self.lift, self.dys)]
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(self.module, f"{self.operation.formula}_vjp")(*given)
        return found

    def result(self, output: str, forward: dict[str, Any], backward: dict[str, Any] | None) -> Any:
        """An output or gradient in the shape in which it is stored. Raises KeyError for another name."""
        value = forward[output] if backward is None else backward[f"{output[1:]}_bar"]
        return value.reshape(due(self.case, output).shape)

    def pair(self, output: str) -> Pair:
        """The exact value of an output or of a gradient, as it is stored."""
        value = self.result(output, self.forward, None if output in self.operation.outputs else self.backward)
        if self.wide:
            return Pair(value.hi, value.lo)
        return Pair(value, np.zeros_like(value))

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
        self.step = exact
        self.around: dict[str, Float64Array] = {}  # by state: how far it may be from the one that the case holds
        self.count = exact.cell.longest(exact.extents)

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

    @cached_property
    def backward(self) -> dict[str, Running]:
        """The derived reverse mode."""
        return self.reverse(list(map(self.context.exact, self.step.dys)))

    def reverse(self, cotangents: list[Running]) -> dict[str, Running]:
        """The same for cotangents that have errors of their own."""
        with np.errstate(all="ignore"):
            found: dict[str, Running] = getattr(self.step.module, f"{self.step.operation.formula}_vjp")(
                *self._given, *cotangents
            )
        return found

    def bound(self, output: str) -> Float64Array:
        """The bound of an output or of a gradient, as it is stored; infinite where nothing is judged."""
        forward = output in self.step.operation.outputs
        result = self.step.result(output, self.forward, None if forward else self.backward)
        largest, factor = self.extremes[0 if forward else 1]
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
