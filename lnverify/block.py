"""Block: the arrays of a transformer block by their axes, and where it normalises.

Axes: b sequences, t and s positions, i the units of the model, g heads, e the units of a head, f the hidden units of
the network. A stored array has its heads joined, head after head: weight_q of axes 'gei' is (heads * units, model),
weight_o of axes 'ige' is (model, heads * units). The formulas of lnverify.formulas.blocks take the same arrays with
the two axes apart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lnverify.cell import Cell, Normalised

FAMILY = "transformer_block"
MASK = "mask"  # 1 where a position may attend to another, 0 where not; absent: everywhere
_AXES = {
    "x": "bti", "weight_q": "gei", "bias_q": "ge", "weight_k": "gei", "bias_k": "ge", "weight_v": "gei",
    "bias_v": "ge", "weight_o": "ige", "bias_o": "i", "weight_1": "fi", "bias_1": "f", "weight_2": "if",
    "bias_2": "i", "gain_1": "i", "shift_1": "i", "gain_2": "i", "shift_2": "i",
}  # fmt: skip


@dataclass(frozen=True)
class Block(Cell):
    """As a Cell, without gates and states. pre: the norms stand before attention and network."""

    pre: bool = False
    gelu: bool = False

    def shape(self, name: str, extents: Mapping[str, int]) -> tuple[int, ...]:
        """The shape in which an argument is stored."""
        sizes = {**extents, "ge": extents["g"] * extents["e"]}
        axes = self.axes[name]
        joined = [axes[: axes.index("ge")], "ge", axes[axes.index("ge") + 2 :]] if "ge" in axes else [axes]
        return tuple(sizes[part] for word in joined for part in ([word] if word == "ge" else word))

    def longest(self, extents: Mapping[str, int]) -> int:
        """Terms of the longest sum, forward or backward.

        What reaches one number of x in the backward may be one sum over q, k and v of all heads, with the residual;
        what reaches a number of a weight is one over all positions of all sequences.
        """
        model, positions = extents["i"], extents["b"] * extents["t"]
        return max(3 * model + 2, extents["f"] + 2, positions, extents["t"] + 1)


def extents(x: tuple[int, ...], heads: tuple[int, ...], hidden: int) -> dict[str, int]:
    """The extent of each axis. heads: their number and the units of one."""
    return dict(zip("btsigef", (x[0], x[1], x[1], x[2], *heads, hidden), strict=True))


def _block(pre: bool, gelu: bool) -> Block:
    norms = (Normalised("1", "bti", "i", "gain_1"), Normalised("2", "bti", "i", "gain_2", late=True))
    return Block(_AXES, norms, states={}, pre=pre, gelu=gelu)


# The variants; the first is what is meant where none is named.
VARIANTS = {
    "post_ln": _block(pre=False, gelu=False), "pre_ln": _block(pre=True, gelu=False),
    "post_ln_gelu": _block(pre=False, gelu=True), "pre_ln_gelu": _block(pre=True, gelu=True),
}  # fmt: skip


def named_variants() -> Iterator[tuple[str, str, Block]]:
    """(the full name of an operation, its variant, its block)."""
    for number, (variant, block) in enumerate(VARIANTS.items()):
        yield FAMILY if number == 0 else f"{FAMILY}_{variant}", variant, block
