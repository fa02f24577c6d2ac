"""Operation: a mathematical map by its names alone, independent of any code that computes it.

Everything that travels between laws and subjects is a named array; the names come from here. For an output
`y` the cotangent is `dy`; for an argument `x` the gradient is `dx`, the tangent `tx`; the cotangent of the
gradient `dx` in the double backward is `vx`, and its results are `d2x`, `d2weight`, ... and `d2dy`. Of an LSTM cell
`cy` is the new c beside the new h, `y`; its cotangent is `dcy`, its tangent `tcy`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lnverify.block import FAMILY, MASK, Block
from lnverify.block import named_variants as named_blocks
from lnverify.cell import Cell, named_variants, neutral
from lnverify.errors import UsageError


@dataclass(frozen=True)
class Operation:
    """Names of inputs, parameters, outputs and scalars of a map. Parameters may be absent in a case."""

    name: str
    inputs: tuple[str, ...]
    parameters: tuple[str, ...]
    outputs: tuple[str, ...]
    scalars: tuple[str, ...]
    statistics: tuple[str, ...] = ()
    states: tuple[str, ...] = ()
    formula: str = ""  # its program in reference/norms.py, cells.py or blocks.py, '' for what has an oracle of its own
    default: str = "torch.nn.functional.layer_norm"  # checked where no target is named; '' for none
    family: str = ""  # what several variants have in common: ln_lstm
    variant: str = ""
    cell: Cell | None = None  # axes and normalisations of a recurrent cell
    block: Block | None = None  # those of a transformer block
    fixed: tuple[str, ...] = ()  # arrays that are not differentiated; they may be absent
    data: tuple[str, ...] = ()  # arrays that the formula takes and nothing is differentiated by
    tracked: tuple[str, ...] = ()  # arrays that a subject may be given to bring up to date, and that decide nothing
    required: tuple[str, ...] = ()  # parameters that may not be absent
    centred: bool = True  # a mean of x is subtracted

    @property
    def arguments(self) -> tuple[str, ...]:
        """Every differentiable argument."""
        return self.inputs + self.states + self.parameters

    @property
    def beside(self) -> tuple[str, ...]:
        """Every array that is neither an argument nor a cotangent."""
        return self.data + self.tracked

    @property
    def gains(self) -> tuple[str, ...]:
        """The parameters that multiply what is normalised; they may be absent, and are then 1."""
        return tuple(name for name in self.parameters if neutral(name) == 1)

    @property
    def shifts(self) -> tuple[str, ...]:
        """The parameters that are added; they may be absent, and are then 0."""
        return tuple(name for name in self.parameters if neutral(name) == 0)

    @property
    def cotangents(self) -> tuple[str, ...]:
        """Names of the cotangents of the outputs."""
        return tuple(f"d{name}" for name in self.outputs)

    @property
    def gradients(self) -> tuple[str, ...]:
        """First-order results of the backward."""
        return tuple(f"d{name}" for name in self.arguments)


OPERATIONS = {
    "layer_norm": Operation(
        name="layer_norm",
        inputs=("x",),
        parameters=("weight", "bias"),
        outputs=("y",),
        scalars=("eps",),
        statistics=("mean", "rstd"),
    ),
}


MOMENTUM = 0.25  # of running statistics, wherever one can be given
RUNNING = ("running_mean", "running_var")


def _norm(name: str, formula: str = "", bias: bool = True, eps: bool = True, **more: Any) -> None:
    parameters = ("weight", "bias") if bias else ("weight",)
    OPERATIONS[name] = Operation(
        name, ("x",), parameters, ("y",), ("eps",) * eps, formula=formula or name, **{"default": "", **more}
    )


_norm("rms_norm", bias=False, centred=False, default="torch.nn.functional.rms_norm")
_norm("group_norm", default="torch.nn.functional.group_norm")
_norm("instance_norm", formula="group_norm", default="torch.nn.functional.instance_norm")  # one channel in each group
_norm("batch_norm", tracked=RUNNING, default="torch.nn.functional.batch_norm")
_norm("batch_norm_eval", data=RUNNING, centred=False, default="torch.nn.functional.batch_norm")
_norm("layer_norm_channels")
_norm("layer_norm_eps_outside")
_norm("weight_norm", bias=False, eps=False, centred=False, required=("weight",), default="torch._weight_norm")


for _name, _family, _variant, _cell in named_variants():
    OPERATIONS[_name] = Operation(
        _name, ("x",), _cell.parameters, tuple(_cell.states), ("eps",), states=tuple(_cell.states.values()),
        formula=_name, default="", family=_family, variant=_variant, cell=_cell,
    )  # fmt: skip


for _name, _variant, _block in named_blocks():
    OPERATIONS[_name] = Operation(
        _name, ("x",), _block.parameters, ("y",), ("eps",), formula=_name, default="", family=FAMILY,
        variant=_variant, block=_block, fixed=(MASK,),
    )  # fmt: skip


def derived() -> tuple[str, ...]:
    """The operations that are judged by generated formulas alone: norms, then cells, then blocks."""
    return norms() + cells() + blocks()


def norms() -> tuple[str, ...]:
    """The operations whose formulas come from reference/norms.py."""
    return tuple(name for name, entry in OPERATIONS.items() if entry.formula and not (entry.states or entry.block))


def cells() -> tuple[str, ...]:
    """The operations whose formulas come from reference/cells.py."""
    return tuple(name for name, entry in OPERATIONS.items() if entry.formula and entry.states)


def blocks() -> tuple[str, ...]:
    """The operations whose formulas come from reference/blocks.py."""
    return tuple(name for name, entry in OPERATIONS.items() if entry.block)


def operation(name: str, variant: str | None = None) -> Operation:
    """Look an operation up by name, and by its variant where it has several.

    Raises UsageError for an unknown one.
    """
    if name not in OPERATIONS:
        raise UsageError(f"unknown operation {name!r}: choose from {', '.join(sorted(OPERATIONS))}.")
    if variant is None:
        return OPERATIONS[name]
    found = {entry.variant: entry for entry in OPERATIONS.values() if entry.family and entry.family == name}
    if variant not in found:
        allowed = f"choose from {', '.join(found)}" if found else "leave the variant out"
        raise UsageError(f"{name} has no variant {variant!r}: {allowed}.")
    return found[variant]
