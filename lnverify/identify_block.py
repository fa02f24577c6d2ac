"""Identify: which variant of a transformer block an implementation computes, and whether it hides later positions.

All variants have the same arguments. The answer to one ordinary case is compared with every variant, and where the
subject takes no mask with every variant behind a causal one, by the bounds of lnverify.norms.blocks. Nothing here is
a verdict.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from lnverify.block import MASK
from lnverify.case import Case
from lnverify.floats import FORMATS, FloatArray
from lnverify.identify import Fact
from lnverify.norms.blocks import BlockBounds, BlockExact
from lnverify.norms.cases import make, reduced, shapes
from lnverify.norms.judge import judge_values
from lnverify.operation import blocks, operation
from lnverify.subject import Subject

NORMS = {False: "behind the residual sums", True: "before attention and network"}
ACTIVATIONS = {False: "relu", True: "gelu"}
MASKS = {False: "every position attends to every other", True: "every position attends to those up to itself"}


@dataclass(frozen=True)
class Candidate:
    """A variant, by the operation's full name. apart: how far off the answer is, over the largest exact number."""

    name: str
    causal: bool
    fits: bool
    apart: float


def identify_block(subject: Subject, name: str, dtype: str, device: str = "cpu") -> list[Fact] | str:
    """Facts about a block in one dtype; the reason where it does not answer. name: what it was resolved as."""
    eps = subject.capabilities.eps
    found = [shape for shape in shapes(name, subject.capabilities.fixed_shape) if shape[0][1] > 2]
    case = make(name, dtype, found[0], "both", 1e-3 if eps is None else eps, seed=8, device=device)
    case = reduced(subject, case.with_arrays(mask=None))
    answer = subject.run(case.request("y"))
    if answer.refusal is not None:
        return answer.refusal
    if "y" not in answer.arrays or answer.arrays["y"].shape != case.arrays["x"].shape:
        return "it returns no y of the shape of x"
    declared = subject.capabilities.mask
    return list(_facts(list(_candidates(case, answer.arrays["y"], bool(declared))), declared))


def _candidates(case: Case, y: FloatArray, masked: bool) -> Iterator[Candidate]:
    """Every variant; masked: with the mask of the case alone."""
    causal = FloatArray.of(np.tri(case.arrays["x"].shape[1]), case.dtype)
    for name in blocks():
        for hidden in (case.has(MASK),) if masked else (False, True):
            other = replace(case, operation=name).with_arrays(mask=causal if hidden else None)
            exact = BlockExact(other)
            due = exact.pair("y").hi
            apart = float(np.abs(y.values - due).max() / np.abs(due).max())
            fits = judge_values(BlockBounds(exact, FORMATS[case.dtype]), "y", y).state == "holds"
            yield Candidate(name, hidden, fits, apart)


def _facts(found: list[Candidate], declared: str) -> Iterator[Fact]:
    fitting = [candidate for candidate in found if candidate.fits]
    if not fitting:
        best = min(found, key=lambda candidate: candidate.apart)
        off = f"off by {best.apart:.2g} of the largest number"
        yield Fact("variant", "none of those that are known", f"{len(found)} combinations of variant and mask")
        yield Fact("nearest", operation(best.name).variant + (", causal" if best.causal else ""), off)
        return
    how = "y keeps its bound"
    kinds = [block for candidate in fitting if (block := operation(candidate.name).block)]
    yield Fact("variant", " or ".join(dict.fromkeys(operation(c.name).variant for c in fitting)), how)
    yield Fact("norms", " or ".join(dict.fromkeys(NORMS[block.pre] for block in kinds)), how)
    yield Fact("activation", " or ".join(dict.fromkeys(ACTIVATIONS[block.gelu] for block in kinds)), how)
    if declared in ("", "causal"):
        yield Fact("mask", " or ".join(dict.fromkeys(MASKS[c.causal] for c in fitting)), how)
