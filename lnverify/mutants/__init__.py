"""Layer norms that are wrong on purpose, one named bug each, and unusual ones that are right.

What a law is worth is the mutants that it kills and the right code that it lets pass. Most mutants re-create
a publicly reported bug, scaled down where the report needs millions of rows; the others are relatives.
A NumPy implementation is a pair of functions

    forward(x, normalized_shape, weight, bias, eps, dtype) -> (y, mean, rstd)
    backward(dy, x, weight, bias, eps, normalized_shape, saved, dtype) -> (dx, dweight, dbias)

where `saved` is what the forward returned beside y,
and a backward that rebuilds xhat from the output takes `y`
as its last parameter. Arrays are float64 or float32; for the 16-bit formats they are float32 that hold 16-bit
values, `dtype` names the storage format, and the caller rounds the results once. A torch implementation is a
`target`: a function `(x, normalized_shape, weight, bias, eps)` or a module class.

This file must not import torch: `all_mutants()` leaves the torch ones out where it is not installed.
"""

from __future__ import annotations

import importlib
import importlib.util
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from lnverify.mutants.sample import Sample as Sample

if TYPE_CHECKING:
    from lnverify.mutants.parts import Backward, Forward
    from lnverify.subject import Subject

DTYPES = ("float64", "float32", "bfloat16", "float16")
SINGLE_UP = ("float32", "bfloat16", "float16")
SIXTEEN = ("bfloat16", "float16")
FORWARD = ("y", "dx", "dweight")  # what a wrong forward spoils: the gradients use its statistics
GRADIENTS = ("dx", "dweight", "dbias")
NORMS = (
    "torch_norms", "torch_norm_calls", "torch_norm_blocks", "torch_norm_gradients", "torch_running",
    "torch_weight_norm",
)  # fmt: skip
CELLS = ("torch_cells", "torch_lstm", "torch_gru", "torch_layers", "torch_states", "torch_differentiated")
BLOCKS = ("torch_blocks", "torch_encoders")
WRONG = ("numerics", "numerics_root", "numerics_layout", "numerics_backward", "numerics_columns")


@dataclass(frozen=True, eq=False)
class Mutant:
    """An implementation with one known bug.

    bug: one sentence, the mechanism; threads: public reports ('owner/repo#number'), empty where it is ours.
    dtypes: those in which the bug can be seen. laws: prefixes of the law ids that should kill it.
    affected: outputs that come out wrong; hidden: all of them are right on the `ordinary` sample, to the
    2e-3 of a usual test; `trigger`: a sample where they are wrong (None: the tests hold a scenario for it).
    target: a torch function or module class; with `fresh` a factory of one, since it keeps state.
    """

    id: str
    bug: str
    threads: tuple[str, ...] = ()
    forward: Forward | None = None
    backward: Backward | None = None
    framework: str = "numpy"
    dtypes: tuple[str, ...] = DTYPES
    laws: tuple[str, ...] = ("LN1",)
    affected: tuple[str, ...] = FORWARD
    hidden: bool = True
    target: Any = None
    fresh: bool = False
    ordinary: Sample = field(default_factory=Sample)
    trigger: Sample | None = None
    operation: str = "layer_norm"

    @property
    def name(self) -> str:
        """The id as words."""
        return self.id.replace("-", " ")

    def subject(self) -> Subject:
        """A new subject that runs this implementation."""
        return _subject(self, f"mutant:{self.id}", DTYPES)


@dataclass(frozen=True, eq=False)
class Correct:
    """An implementation that is unusual and right, in `dtypes`.

    rounding_points: it rounds to the storage format between operations, as 16-bit code written op by op does.
    backward_from: 'output' where the backward rebuilds xhat from y. second_order: 'right' or 'refused' (a
    second derivative raises) for torch, '' for NumPy.
    """

    id: str
    description: str
    forward: Forward | None = None
    backward: Backward | None = None
    framework: str = "numpy"
    dtypes: tuple[str, ...] = DTYPES
    target: Any = None
    fresh: bool = False
    rounding_points: bool = False
    backward_from: str = "input"
    second_order: str = ""
    operation: str = "layer_norm"

    @property
    def name(self) -> str:
        """The id as words."""
        return self.id.replace("-", " ")

    def subject(self) -> Subject:
        """A new subject that runs this implementation."""
        return _subject(self, f"correct:{self.id}", self.dtypes)


def _subject(entry: Mutant | Correct, label: str, dtypes: tuple[str, ...]) -> Subject:
    # By name: adapters stand on the same floor, and neither imports the other.
    adapters = importlib.import_module("lnverify.adapters")
    declared = importlib.import_module("lnverify.subject").Declaration
    options = declared(
        operation=entry.operation,
        framework=entry.framework,
        dtypes=dtypes,
        backward=entry.backward,
        backward_from=getattr(entry, "backward_from", "input"),
    )
    target = entry.forward if entry.framework == "numpy" else entry.target
    options = options.over(importlib.import_module("lnverify.subject").declared(target))
    if entry.fresh:
        target = entry.target()
    subject: Subject = adapters.adapt(target, label, options)
    return subject


def all_mutants() -> list[Mutant]:
    """Every mutant, sorted by id; those in torch only where torch can be imported."""
    found: list[Mutant] = _collect("MUTANTS", WRONG, "torch_autograd")
    return found


def all_correct() -> list[Correct]:
    """Every right implementation, sorted by id; those in torch only where torch can be imported."""
    found: list[Correct] = _collect("CORRECT", ("correct", "correct_backward"), "torch_correct", "torch_pools")
    return found


def _collect(name: str, modules: tuple[str, ...], *torch_modules: str) -> list[Any]:
    entries: list[Any] = []
    for module in modules:
        entries += getattr(importlib.import_module(f"lnverify.mutants.{module}"), name)
    try:
        importlib.import_module("torch")
    except ImportError:
        return sorted(entries, key=lambda entry: str(entry.id))
    for module in torch_modules:
        entries += getattr(importlib.import_module(f"lnverify.mutants.{module}"), name)
    return sorted(entries, key=lambda entry: str(entry.id))


def norm_mutants() -> list[Mutant]:
    """Wrong norms other than layer norm, wrong cells and blocks, sorted by id."""
    found: list[Mutant] = _collect("MUTANTS", ("norms",), *NORMS, *CELLS, *BLOCKS)
    return found


def norm_correct() -> list[Correct]:
    """Right norms other than layer norm, right cells and blocks, sorted by id."""
    found: list[Correct] = _collect("CORRECT", ("norms",), *NORMS, *CELLS, *BLOCKS)
    return found


def declared_mutants() -> list[Any]:
    """Those that break what they declare or return beside y; they have the same id, bug and subject."""
    found = list(importlib.import_module("lnverify.mutants.declared").MUTANTS)
    if importlib.util.find_spec("torch") is not None:
        found += importlib.import_module("lnverify.mutants.torch_declared").MUTANTS
    return found


def cuda_mutants() -> list[Mutant]:
    """Those that only a CUDA device shows; none where torch sees no such device."""
    if importlib.util.find_spec("torch") is None or not importlib.import_module("torch").cuda.is_available():
        return []
    found: list[Mutant] = importlib.import_module("lnverify.mutants.torch_cuda").MUTANTS
    return found
