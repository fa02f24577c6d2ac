"""Identify: which variant of a recurrent cell an implementation computes, and in which order its gates are stacked.

With every gain 1 and every shift 0 all variants of a family have the same arguments: weights and, in an LSTM, a bias.
The answer to one such case is compared with every variant in every order of the gates, by the bounds of
lnverify.norms.cells. Nothing here is a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import permutations

import numpy as np

from lnverify.case import Case
from lnverify.floats import FORMATS, Float64Array, FloatArray
from lnverify.identify import Fact
from lnverify.norms.cases import make, reduced
from lnverify.norms.cells import CellBounds, CellExact
from lnverify.norms.judge import judge_values
from lnverify.operation import OPERATIONS, Operation, operation
from lnverify.subject import Subject

SHAPE = ((3, 4), (5,))  # rows, inputs; units
NEAR = 0.25  # of the largest number; what is farther off is not this cell, and its bound is not asked for
CARRIED = {"carry_normalised": "c normalised"}
UPDATE = {"paper": "h' = (1 - z) h + z n", "z_keeps": "h' = z h + (1 - z) n"}


@dataclass(frozen=True)
class Candidate:
    """A variant with an order of gates.

    apart: by output, how far off the answer is, over the largest exact number; normalised: the same for the new c of
    the answer and the LN of the exact one, None without a c.
    """

    variant: str
    gates: str
    fits: bool
    apart: dict[str, float]
    normalised: float | None = None


def variants(name: str) -> tuple[str, ...]:
    """Full names of all variants of an operation's family, the named one first."""
    family = operation(name).family
    return (name, *(other for other, entry in OPERATIONS.items() if entry.family == family and other != name))


def identify_cell(subject: Subject, name: str, dtype: str, device: str = "cpu") -> list[Fact] | str:
    """Facts about a cell in one dtype; the reason where it does not answer. name: what it was resolved as."""
    known = operation(name)
    eps = subject.capabilities.eps
    case = make(name, dtype, SHAPE, "both", 1e-3 if eps is None else eps, seed=7, device=device)
    simple = {n: _constant(case, n, 1.0) for n in known.gains} | {
        n: _constant(case, n, 0.0) for n in known.shifts if n != "bias"
    }
    case = reduced(subject, case.with_arrays(**simple))
    answer = subject.run(case.request(*known.outputs))
    if answer.refusal is not None:
        return answer.refusal
    if missing := [output for output in known.outputs if output not in answer.arrays]:
        return f"it returns no {missing[0]}"
    found = list(_candidates(case, dict(answer.arrays)))
    return list(_facts(found, subject.capabilities.gates or _gates(known), known))


def _constant(case: Case, name: str, value: float) -> FloatArray:
    return FloatArray.of(np.full(case.arrays[name].shape, value), case.dtype)


def _candidates(case: Case, answer: dict[str, FloatArray]) -> Iterator[Candidate]:
    """Every variant in every order of the gates."""
    for name in variants(case.operation):
        entry = operation(name)
        assert entry.cell is not None
        alike = {n: a for n, a in case.arrays.items() if n in (*entry.arguments, *entry.cotangents)}
        for order in permutations(entry.cell.gates):
            arrays = {n: _from(entry.cell.axes.get(n, ""), a, order, entry.cell.gates) for n, a in alike.items()}
            exact = CellExact(replace(case, operation=name, arrays=arrays))
            due = {output: exact.pair(output).hi for output in entry.outputs}
            apart = {output: _apart(answer[output], value) for output, value in due.items()}
            normalised = _apart(answer["cy"], _normalised(due["cy"], case.eps)) if "cy" in due else None
            fits = max(apart.values()) < NEAR
            if fits:
                bounds = CellBounds(exact, FORMATS[case.dtype])
                fits = all(judge_values(bounds, output, answer[output]).state == "holds" for output in due)
            yield Candidate(entry.variant, "".join(order), fits, apart, normalised)


def _apart(got: FloatArray, due: Float64Array) -> float:
    return float(np.abs(got.values - due).max() / np.abs(due).max())


def _normalised(c: Float64Array, eps: float) -> Float64Array:
    return np.asarray((c - c.mean(1, keepdims=True)) / np.sqrt(c.var(1, keepdims=True) + eps))


def _from(axes: str, array: FloatArray, order: tuple[str, ...], gates: str) -> FloatArray:
    """An array whose gates are stacked in `order`, with the gates in ours."""
    if not axes.startswith("q"):
        return array
    blocks = array.bits.reshape(len(order), -1, *array.shape[1:])[[order.index(gate) for gate in gates]]
    return FloatArray(array.dtype, np.ascontiguousarray(blocks.reshape(array.shape)))


def _gates(known: Operation) -> str:
    return known.cell.gates if known.cell else ""


def _facts(found: list[Candidate], declared: str, known: Operation) -> Iterator[Fact]:
    """declared: the order in which the subject was given the gates."""
    family, ours = known.family, _gates(known)

    def stacked(candidate: Candidate) -> str:
        return ", ".join(candidate.gates[ours.index(gate)] for gate in declared)

    fitting = [candidate for candidate in found if candidate.fits]
    if not fitting:
        yield Fact("variant", "none of those that are known", f"{len(found)} combinations of variant and gates")
        for output in found[0].apart:
            best = min(found, key=lambda candidate: candidate.apart[output])
            order = f", gates {stacked(best)}" if ours else ""
            off = f"off by {best.apart[output]:.2g} of the largest number"
            yield Fact(f"nearest on {output}", f"{family} {best.variant}{order}", off)
        best = min(found, key=lambda candidate: candidate.apart["y"])
        if best.normalised is not None and min(best.normalised, best.apart["cy"]) < NEAR:
            normed = best.normalised < best.apart["cy"]
            yield Fact("carried", "c normalised" if normed else "c as it is", "by the c of the nearest on y")
        return
    how = "every output keeps its bound"
    yield Fact("variant", " or ".join(dict.fromkeys(c.variant for c in fitting)), how)
    if ours:
        yield Fact("gates", " or ".join(dict.fromkeys(map(stacked, fitting))), "in the order in which they are stacked")
    if family == "ln_lstm":
        carried = dict.fromkeys(CARRIED.get(candidate.variant, "c as it is") for candidate in fitting)
        yield Fact("carried", " or ".join(carried), "what is returned as the new c")
    if family == "ln_gru":
        yield Fact("update", " or ".join(dict.fromkeys(UPDATE[candidate.variant] for candidate in fitting)), how)
