"""Cell: the arrays of a recurrent cell by their axes, the order of its gates, and where it normalises.

Axes: b rows, k inputs, i the units of the state before, j those of the state after, q the gates. A stored array has its
gates stacked along the first axis: weight_ih of axes 'qjk' is (gates * units, inputs), gate after gate. The formulas of
lnverify.formulas.cells take the same arrays with an axis for the gates; fixed vectors pick each gate out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import prod


@dataclass(frozen=True)
class Normalised:
    """One LN of a cell, or a sum of products that is not normalised (`over` is then empty).

    The formula takes its slack as `slack_<word>` and returns what is normalised as `a_<word>`, of the axes `axes`, with
    statistics over `over`. products: (weight, input) of what it sums, bias: what is added to that. late: it stands
    behind the gates.
    """

    word: str
    axes: str
    over: str
    gain: str = ""
    products: tuple[tuple[str, str], ...] = ()
    bias: str = ""
    late: bool = False

    @property
    def shift(self) -> str:
        """What is added to the normalised."""
        return "bias" if self.gain == "weight" else self.gain.replace("gain", "shift")


@dataclass(frozen=True)
class Cell:
    """axes: of every argument, by name; gates: one letter each, in the order in which they are stacked."""

    axes: Mapping[str, str]
    normalised: tuple[Normalised, ...]
    gates: str = ""
    states: Mapping[str, str] = field(default_factory=lambda: {"y": "h"})  # by output: the state that it replaces

    @property
    def parameters(self) -> tuple[str, ...]:
        """The arguments that are neither x nor a state."""
        return tuple(name for name in self.axes if name not in ("x", *self.states.values()))

    @property
    def norms(self) -> tuple[Normalised, ...]:
        """Those that have statistics."""
        return tuple(entry for entry in self.normalised if entry.over)

    def extents(self, rows: int, inputs: int, units: int) -> dict[str, int]:
        """The extent of each axis."""
        return {"b": rows, "k": inputs, "i": units, "j": units, "q": len(self.gates)}

    def shape(self, name: str, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in which an argument is stored."""
        axes = self.axes[name]
        if axes.startswith("q"):
            return (extents["q"] * extents["j"], *(extents[letter] for letter in axes[2:]))
        return tuple(extents[letter] for letter in axes)

    def apart(self, name: str, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in which the formula takes it, gates apart."""
        return tuple(extents[letter] for letter in self.axes[name])

    def longest(self, extents: Mapping[str, int]) -> int:
        """Terms of the longest sum of a step, forward or backward."""
        sums = [prod(extents[letter] for letter in entry.over) for entry in self.norms]
        return max(extents["k"] + extents["i"], extents["b"], extents["q"] * extents["j"], *sums)


def neutral(name: str) -> float | None:
    """The value that an absent argument stands for: 1 for a gain, 0 for a shift or a bias, None: it must be there."""
    if name == "weight" or name.startswith("gain"):
        return 1.0
    return 0.0 if name.startswith(("bias", "shift")) else None


_STATES = {"x": "bk", "h": "bi"}
_IH, _HH = ("weight_ih", "x"), ("weight_hh", "h")
_RNN = Cell(
    {**_STATES, "weight_ih": "jk", "weight_hh": "ji", "weight": "j", "bias": "j"},
    (Normalised("s", "bj", "j", "weight", (_IH, _HH)),),
)


def _lstm(variant: str) -> Cell:
    axes = {**_STATES, "c": "bj", "weight_ih": "qjk", "weight_hh": "qji", "bias": "qj"}
    if variant.startswith("per_gate"):
        axes |= {"gain": "qj", "shift": "qj"}
        found = [Normalised("g", "bqj", "j", "gain", (_IH, _HH), "bias")]
    elif variant == "cell_only":
        found = [Normalised("z", "bqj", "", "", (_IH, _HH), "bias")]
    else:
        axes |= dict.fromkeys(("gain_h", "shift_h", "gain_x", "shift_x"), "qj")
        found = [Normalised("h", "bqj", "qj", "gain_h", (_HH,)), Normalised("x", "bqj", "qj", "gain_x", (_IH,))]
    if variant != "per_gate_plain_cell":
        axes |= {"gain_c": "j", "shift_c": "j"}
        found.append(Normalised("c", "bj", "j", "gain_c", late=True))
    return Cell(axes, tuple(found), "ifgo", {"y": "h", "cy": "c"})


_GRU = Cell(
    {
        "x": "bk", "h": "bj", "weight_ih": "qjk", "weight_hh": "qji", "weight_in": "jk", "weight_hn": "ji",
        **dict.fromkeys(("gain_h", "shift_h", "gain_x", "shift_x"), "qj"),
        **dict.fromkeys(("gain_in", "shift_in", "gain_hn", "shift_hn"), "j"),
    },
    (
        Normalised("h", "bqj", "qj", "gain_h", (_HH,)), Normalised("x", "bqj", "qj", "gain_x", (_IH,)),
        Normalised("in", "bj", "j", "gain_in", (("weight_in", "x"),)),
        Normalised("hn", "bj", "j", "gain_hn", (("weight_hn", "h"),)),
    ),
    "rz",
)  # fmt: skip

# By operation, the variants of each family; the first is what is meant where none is named.
VARIANTS: dict[str, dict[str, Cell]] = {
    "ln_rnn": {"tanh": _RNN, "relu": _RNN},
    "ln_lstm": {
        name: _lstm(name) for name in ("paper", "per_gate", "per_gate_plain_cell", "cell_only", "carry_normalised")
    },
    "ln_gru": {"paper": _GRU, "z_keeps": _GRU},
}


def named_variants() -> Iterator[tuple[str, str, str, Cell]]:
    """(the full name of an operation, its family, its variant, its cell): 'ln_lstm', 'ln_lstm', 'paper', ..."""
    for family, variants in VARIANTS.items():
        for number, (variant, cell) in enumerate(variants.items()):
            yield family if number == 0 else f"{family}_{variant}", family, variant, cell
