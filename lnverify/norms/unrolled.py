"""Unrolled: a recurrent cell over several steps, forward and backward, with bounds: the derived step, chained.

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

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from lnverify.case import Case
from lnverify.floats import Float64Array, FloatArray, Format
from lnverify.norms.bound import LARGEST
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.operation import operation
from lnverify.oracle import Pair
from lnverify.running import Running

Errors = dict[str, Float64Array]
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


@dataclass(frozen=True)
class _State:
    """States by name, their errors, and whether everything before is within the range."""

    values: dict[str, Any]
    around: Errors
    judged: bool


def _values(number: Any, wide: bool) -> Float64Array:
    return np.asarray(number.hi if wide else number, dtype=np.float64)


class Unrolled:
    """Exact results and bounds of a case whose x is (steps, rows, inputs), each evaluated when first asked for.

    For gradients its dy is (steps, rows, units), and a case of an LSTM also has dcy, the cotangent of the last c.
    """

    def __init__(self, case: Case, compute: Format) -> None:
        """compute: the format that the subject computes in."""
        self.case, self.compute = case, compute
        self.known = operation(case.operation)
        assert self.known.cell is not None
        self.states = dict(self.known.cell.states)  # by output: the state that it replaces
        self.wide = case.dtype == "float64"
        self.count = case.arrays["x"].shape[0]
        self.start = _Step(self._case_of(0, {}), self.wide, {})

    # One step after the other

    def _case_of(self, number: int, arrays: dict[str, Any]) -> Case:
        """The case of a step, with states and cotangents rounded to float64."""
        x = self.case.arrays["x"]
        given = {name: FloatArray.of(_values(value, self.wide), "float64") for name, value in arrays.items()}
        return self.case.with_arrays(**{
            **dict.fromkeys(self.known.cotangents), **given,
            "x": FloatArray(x.dtype, np.ascontiguousarray(x.bits[number])),
        })  # fmt: skip

    def _bounds(self, number: int, states: dict[str, Any], around: Errors, cotangents: dict[str, Any]) -> CellBounds:
        """A step with its states and cotangents, all in the number type of this case."""
        step = _Step(self._case_of(number, {**states, **cotangents}), self.wide, states)
        bounds = CellBounds(step, self.compute)
        bounds.around = around
        return bounds

    def _rounded(self, number: Running) -> Float64Array:
        """The error of a number that is stored in the subject's format."""
        return number.error + self.compute.u * np.abs(number.value) + self.compute.tiny

    def _in_range(self, bounds: CellBounds, backward: bool) -> bool:
        largest, _ = bounds.extremes[backward]
        return bool(bounds.count * largest <= min(self.compute.largest, LARGEST))

    @cached_property
    def _forward(self) -> list[_State]:
        """The state before each step and after the last one."""
        states = {name: self.start.lift(self.case.arrays[name].values) for name in self.known.states}
        around = {name: np.zeros(self.case.arrays[name].shape) for name in self.known.states}
        found = [_State(states, around, True)]
        for number in range(self.count):
            bounds = self._bounds(number, states, around, {})
            outputs = bounds.step.forward
            states = {state: outputs[output] for output, state in self.states.items()}
            around = {state: self._rounded(bounds.forward[output]) for output, state in self.states.items()}
            found.append(_State(states, around, found[-1].judged and self._in_range(bounds, backward=False)))
        return found

    def state(self, name: str, count: int) -> tuple[Pair, Float64Array]:
        """A state after so many steps, and its bound."""
        found = self._forward[count]
        value, bound = found.values[name], found.around[name]
        hi = _values(value, self.wide)
        lo = np.asarray(value.lo) if self.wide else np.zeros_like(hi)
        return Pair(hi, lo), np.where(found.judged & ~np.isnan(bound), bound, np.inf)

    # And backwards

    def _given(self, number: int) -> dict[str, Any]:
        """What the caller gives to the outputs of a step."""
        found = {"dy": self.case.arrays["dy"].values[number]}
        for name in self.known.cotangents[1:]:
            found[name] = self.case.arrays[name].values * (number == self.count - 1)
        return {name: self.start.lift(value) for name, value in found.items()}

    @cached_property
    def _backward(self) -> tuple[dict[str, Any], Errors, bool]:
        """Gradients, their errors, and whether all of it is within the range; that of x by steps, as dx0, dx1, ..."""
        exact: dict[str, Any] = {}
        errors: Errors = {}
        handed: dict[str, Any] = {}
        admitted: dict[str, Running] = {}
        judged = True
        for number in reversed(range(self.count)):
            before, given = self._forward[number], self._given(number)
            for output, state in self.states.items():
                if handed:
                    given[f"d{output}"] = given[f"d{output}"] + handed[f"{state}_bar"]
            bounds = self._bounds(number, before.values, before.around, given)
            judged &= before.judged and self._in_range(bounds, backward=True)
            cotangents = []
            for output, state in self.states.items():
                error = self._rounded(admitted[f"{state}_bar"]) if admitted else 0.0
                value = Running(_values(given[f"d{output}"], self.wide), error, bounds.context)
                cotangents.append(value + 0.0)  # the sum of both rounds
            assert isinstance(bounds.step, _Step)
            handed = bounds.step.reverse([given[f"d{output}"] for output in self.states])
            admitted = bounds.reverse(cotangents)
            for name in filter(self.case.has, self.known.parameters):
                value, error = handed[f"{name}_bar"], admitted[f"{name}_bar"].error
                seen = f"d{name}" in exact
                exact[f"d{name}"] = exact[f"d{name}"] + value if seen else value
                errors[f"d{name}"] = errors[f"d{name}"] + error if seen else error
            exact[f"dx{number}"], errors[f"dx{number}"] = handed["x_bar"], admitted["x_bar"].error
        for state in self.known.states:
            exact[f"d{state}"], errors[f"d{state}"] = handed[f"{state}_bar"], admitted[f"{state}_bar"].error
        return exact, errors, judged

    def _parts(self, output: str) -> list[str]:
        """What a gradient consists of: that of x of one part for each step."""
        return [f"dx{number}" for number in range(self.count)] if output == "dx" else [output]

    def pair(self, output: str) -> Pair:
        """The exact gradient, as it is stored."""
        shape = self.case.arrays[output[1:]].shape
        parts = [self._backward[0][name] for name in self._parts(output)]
        hi = np.stack([_values(part, self.wide) for part in parts])
        lo = np.stack([np.asarray(part.lo) for part in parts]) if self.wide else np.zeros_like(hi)
        return Pair(hi.reshape(shape), lo.reshape(shape))

    def bound(self, output: str) -> Float64Array:
        """The bound of a gradient, as it is stored; infinite where nothing is judged."""
        exact = self.pair(output).hi
        times = self.count if output[1:] in self.known.parameters else 1
        error = np.stack([self._backward[1][name] for name in self._parts(output)]).reshape(exact.shape)
        found = times * error + self.compute.u * np.abs(exact) + self.compute.tiny
        return np.where(self._backward[2] & ~np.isnan(found), found, np.inf)
