"""Operation: a mathematical map by its names alone, independent of any code that computes it.

Everything that travels between laws and subjects is a named array; the names come from here. For an output
`y` the cotangent is `dy`; for an argument `x` the gradient is `dx`, the tangent `tx`; the cotangent of the
gradient `dx` in the double backward is `vx`, and its results are `d2x`, `d2weight`, ... and `d2dy`.
"""

from __future__ import annotations

from dataclasses import dataclass

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
    formula: str = ""  # its program in reference/norms.py or cells.py, '' for what has an oracle of its own
    default: str = "torch.nn.functional.layer_norm"  # checked where no target is named; '' for none

    @property
    def arguments(self) -> tuple[str, ...]:
        """Every differentiable argument."""
        return self.inputs + self.states + self.parameters

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


def _norm(name: str, formula: str = "", bias: bool = True, default: str = "") -> None:
    parameters = ("weight", "bias") if bias else ("weight",)
    OPERATIONS[name] = Operation(name, ("x",), parameters, ("y",), ("eps",), formula=formula or name, default=default)


_norm("rms_norm", bias=False, default="torch.nn.functional.rms_norm")
_norm("group_norm", default="torch.nn.functional.group_norm")
_norm("instance_norm", formula="group_norm", default="torch.nn.functional.instance_norm")  # one channel in each group
_norm("batch_norm", default="torch.nn.functional.batch_norm")
_norm("layer_norm_channels")
_norm("layer_norm_eps_outside")


OPERATIONS["ln_rnn"] = Operation(
    "ln_rnn", ("x",), ("weight_ih", "weight_hh", "weight", "bias"), ("y",), ("eps",), states=("h",), formula="ln_rnn",
    default="",
)  # fmt: skip


def derived() -> tuple[str, ...]:
    """The operations that are judged by generated formulas alone: norms, then cells."""
    return norms() + cells()


def norms() -> tuple[str, ...]:
    """The operations whose formulas come from reference/norms.py."""
    return tuple(name for name, entry in OPERATIONS.items() if entry.formula and not entry.states)


def cells() -> tuple[str, ...]:
    """The operations whose formulas come from reference/cells.py."""
    return tuple(name for name, entry in OPERATIONS.items() if entry.formula and entry.states)


def operation(name: str) -> Operation:
    """Look an operation up by name. Raises UsageError for an unknown one."""
    if name not in OPERATIONS:
        raise UsageError(f"unknown operation {name!r}: choose from {', '.join(sorted(OPERATIONS))}.")
    return OPERATIONS[name]
