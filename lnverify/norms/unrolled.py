"""Unrolled: the gradients of a recurrent cell over several steps, and their bounds: the derived step, chained.

Forward each step begins at the exact states of the one before; backward the cotangent of a state at step t is what the
caller gives to it plus what step t + 1 hands back (backpropagation through time, Werbos 1990). Both are evaluated in
the number type of lnverify.norms.exact. The bound carries the error of every state and cotangent along in
lnverify.running.Running, each rounded to the format of the subject where a step ends. A parameter's gradient sums the
rows of all T steps in any order, in one product perhaps: T (m + 1) u sum|terms| where a step has m rows, which is T
times what the steps admit apart.

Such a bound grows with every step by up to |V| |gain|/sigma, so it is only of use for cells that contract
(`contracting`); lnverify.laws.operations judges single steps, and needs no chain.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.floats import Float64Array, FloatArray, Format
from lnverify.norms.bound import LARGEST
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.operation import operation
from lnverify.oracle import Pair
from lnverify.running import Running

GAIN = 0.25  # of a contracting cell, at most
EPS = 1.0


class _Step(CellExact):
    """One step, whose states and cotangents may hold more digits than the arrays of its case."""

    def __init__(self, case: Case, wide: bool, given: dict[str, Any]) -> None:
        super().__init__(case)
        self.wide = wide
        self.more = given

    def inputs(self, lift: Any, slack: Any = None) -> dict[str, Any]:
        found = super().inputs(lift, slack)
        return found if slack else {**found, **{name: self.more[name] for name in self.operation.states}}

    def reverse(self, cotangents: list[Any]) -> dict[str, Any]:
        """The derived reverse mode of this step."""
        with np.errstate(all="ignore"):
            found: dict[str, Any] = getattr(self.module, f"{self.operation.formula}_vjp")(
                *self.inputs(self.lift).values(), *cotangents
            )
        return found


def contracting(case: Case) -> Case:
    """The case with gains of at most GAIN and eps = EPS at least, so that errors die out along the steps."""
    known = operation(case.operation)
    gains = {name: case.arrays[name] for name in known.gains if case.has(name)}
    tame = {
        name: FloatArray.of(GAIN * array.values / max(1.0, float(np.abs(array.values).max())), array.dtype)
        for name, array in gains.items()
    }
    return replace(case.with_arrays(**tame), eps=max(case.eps, EPS))


def _values(number: Any, wide: bool) -> Float64Array:
    return np.asarray(number.hi if wide else number, dtype=np.float64)


class Unrolled:
    """Exact gradients and bounds of a case whose x is (steps, rows, inputs) and whose dy is (steps, rows, units).

    A case of an LSTM also has dcy, the cotangent of the last c.
    """

    def __init__(self, case: Case, compute: Format) -> None:
        """Evaluate everything. compute: the format that the subject computes in."""
        self.case, self.compute = case, compute
        self.known = operation(case.operation)
        assert self.known.cell is not None
        self.states = dict(self.known.cell.states)  # by output: the state that it replaces
        self.wide = case.dtype == "float64"
        self.count = case.arrays["x"].shape[0]
        self.judged = True
        self._exact: dict[str, Any] = {}
        self._bound: dict[str, Float64Array] = {}
        self._run()

    def _step(self, number: int, states: dict[str, Any], cotangents: dict[str, Any]) -> _Step:
        """A step with its states and cotangents, all in the number type of this case."""
        arrays = {n: a for n, a in self.case.arrays.items() if n not in self.known.cotangents}
        x = self.case.arrays["x"]
        arrays["x"] = FloatArray(x.dtype, np.ascontiguousarray(x.bits[number]))
        for name, value in {**states, **cotangents}.items():
            arrays[name] = FloatArray.of(_values(value, self.wide), "float64")
        return _Step(replace(self.case, arrays=arrays, recipe=None), self.wide, states)

    def _rounded(self, number: Running) -> Float64Array:
        """The error of a number that is stored in the subject's format."""
        return number.error + self.compute.u * np.abs(number.value) + self.compute.tiny

    def _given(self, number: int) -> dict[str, Float64Array]:
        """What the caller gives to the outputs of a step."""
        found = {"dy": self.case.arrays["dy"].values[number]}
        last = number == self.count - 1
        for name in self.known.cotangents[1:]:
            found[name] = self.case.arrays[name].values * last
        return found

    def _run(self) -> None:
        probe = CellExact(self._case_of_start())
        states = {name: probe.lift(self.case.arrays[name].values) for name in self.known.states}
        around = {name: np.zeros(self.case.arrays[name].shape) for name in self.known.states}
        before = []
        for number in range(self.count):
            before.append((states, around))
            none = {name: probe.lift(value) for name, value in self._given(number).items()}
            step = self._step(number, states, none)
            bounds = CellBounds(step, self.compute)
            bounds.around = around
            states = {state: step.forward[output] for output, state in self.states.items()}
            around = {state: self._rounded(bounds.forward[output]) for output, state in self.states.items()}
        handed: dict[str, Any] = {}
        errors: dict[str, Running] = {}
        for number in reversed(range(self.count)):
            states, around = before[number]
            given = {name: probe.lift(value) for name, value in self._given(number).items()}
            for output, state in self.states.items():
                if state in handed:
                    given[f"d{output}"] = given[f"d{output}"] + handed[state]
            step = self._step(number, states, given)
            bounds = CellBounds(step, self.compute)
            bounds.around = around
            largest, _ = bounds.extremes[1]
            self.judged &= bool(bounds.count * largest <= min(self.compute.largest, LARGEST))
            found = step.reverse([given[f"d{output}"] for output in self.states])
            cotangents = [
                Running(_values(given[f"d{output}"], self.wide), 0.0, bounds.context)
                + (Running(np.zeros_like(errors[state].value), self._rounded(errors[state]), bounds.context)
                   if state in errors else 0.0)
                for output, state in self.states.items()
            ]  # fmt: skip
            admitted = bounds.reverse(cotangents)
            handed = {state: found[f"{state}_bar"] for state in self.known.states}
            errors = {state: admitted[f"{state}_bar"] for state in self.known.states}
            self._add(number, found, admitted)
        for state in self.known.states:
            self._exact[f"d{state}"], self._bound[f"d{state}"] = handed[state], errors[state].error

    def _case_of_start(self) -> Case:
        x = self.case.arrays["x"]
        return self.case.with_arrays(
            x=FloatArray(x.dtype, np.ascontiguousarray(x.bits[0])), **dict.fromkeys(self.known.cotangents)
        )

    def _add(self, number: int, found: dict[str, Any], admitted: dict[str, Running]) -> None:
        """Keep the gradient of this step's x, and add up what the step contributes to those of the parameters."""
        self._exact[f"dx{number}"], self._bound[f"dx{number}"] = found["x_bar"], admitted["x_bar"].error
        for name in filter(self.case.has, self.known.parameters):
            key, value, error = f"d{name}", found[f"{name}_bar"], admitted[f"{name}_bar"].error
            if key in self._exact:
                value, error = self._exact[key] + value, self._bound[key] + error
            self._exact[key], self._bound[key] = value, error

    def _parts(self, output: str) -> list[str]:
        """What a gradient consists of: that of x of one part for each step."""
        return [f"dx{number}" for number in range(self.count)] if output == "dx" else [output]

    def pair(self, output: str) -> Pair:
        """The exact gradient, as it is stored."""
        shape = self.case.arrays[output[1:]].shape
        parts = [self._exact[name] for name in self._parts(output)]
        hi = np.stack([_values(part, self.wide) for part in parts])
        lo = np.stack([np.asarray(part.lo) for part in parts]) if self.wide else np.zeros_like(hi)
        return Pair(hi.reshape(shape), lo.reshape(shape))

    def bound(self, output: str) -> Float64Array:
        """The bound of a gradient, as it is stored; infinite where nothing is judged."""
        times = self.count if output[1:] in self.known.parameters else 1
        error = np.stack([self._bound[name] for name in self._parts(output)]).reshape(self.pair(output).hi.shape)
        found = times * error + self.compute.u * np.abs(self.pair(output).hi) + self.compute.tiny
        return np.where(self.judged & ~np.isnan(found), found, np.inf)
