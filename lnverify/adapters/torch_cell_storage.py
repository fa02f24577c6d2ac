"""Where a module keeps the parameters of a cell or block: the declared places, and the tensors that go there.

    parameters={"weight_ih": "cell.weight"}                       one parameter, gates stacked in the declared order
    parameters={"weight_ih": "linear.weight.T"}                   transposed
    parameters={"gain": ("norm_i.weight", ..., "norm_o.weight")}  a parameter for each gate, in the declared order
    parameters={"weight_ih": "both.weight", "weight_hh": "both.weight"}
                                                                  one parameter, joined in the order of the mapping:
                                                                  by columns, or by rows where both multiply the same
    parameters={"zeros": ("bias_hh",)}                            what has no counterpart and is to be zero

Every parameter of the module must have a place, so that nothing is left at its initial value unseen.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lnverify.adapters.cell_calls import reordered
from lnverify.adapters.torch_parameters import APART
from lnverify.errors import SignatureError
from lnverify.operation import Operation
from lnverify.subject import Declaration

TRANSPOSED = ".T"
ZEROS = "zeros"


class Storage:
    """The places of one module."""

    def __init__(
        self, known: Operation, module: Any, target: str, options: Declaration, extents: Mapping[str, int]
    ) -> None:
        """module: of these extents by axis. Raises SignatureError where names, places or shapes do not fit."""
        cell = known.cell or known.block
        assert cell is not None
        self.known, self.cell, self.target = known, cell, target
        self.order = options.gates or cell.gates
        self.shapes = {name: tuple(p.shape) for name, p in (*module.named_parameters(), *module.named_buffers())}
        needed = {name for name, _ in module.named_parameters()}
        declared = options.parameters or {name: path for path in needed if (name := self._alike(path))}
        self.places = {name: (p,) if isinstance(p, str) else tuple(p) for name, p in declared.items()}
        self.zeros = self.places.pop(ZEROS, ())
        self.names = tuple(name for name in known.parameters if name in self.places)
        self._check(needed)
        self._try(module, extents)

    def _alike(self, path: str) -> str:
        """Our name of a parameter that bears it, alone or with dots for underscores."""
        return next((n for n in (path.rpartition(".")[2], path.replace(".", "_")) if n in self.known.parameters), "")

    def _check(self, needed: set[str]) -> None:
        known = self.known
        if unknown := [name for name in self.places if name not in known.parameters]:
            raise SignatureError(
                f"{self.target}: {known.name} has no parameter {unknown[0]!r}: choose from "
                f"{', '.join(known.parameters)}."
            )
        optional = (*known.gains, *known.shifts)
        if missing := [name for name in known.parameters if name not in self.places and name not in optional]:
            raise SignatureError(
                f"{self.target}: nothing says where it keeps {missing[0]} of {known.name}: declare it, "
                f"@lnverify.subject(parameters={{{missing[0]!r}: ...}}); it has {', '.join(sorted(needed))}."
            )
        paths = {path.removesuffix(TRANSPOSED) for paths in (*self.places.values(), self.zeros) for path in paths}
        if unknown := sorted(paths - set(self.shapes)):
            raise SignatureError(
                f"{self.target} has no parameter {unknown[0]!r}: it has {', '.join(sorted(self.shapes))}."
            )
        if left := sorted(needed - paths):
            raise SignatureError(
                f"{self.target}: its parameter {left[0]!r} has no place in {known.name} "
                f"({', '.join(known.parameters)}): declare one, or 'zeros': ({left[0]!r},) if it is to be zero."
            )
        for name, places in self.places.items():
            if len(places) > 1 and len(places) != len(self.order):
                each = f", or one for each of the {len(self.order)} gates {', '.join(self.order)}" if self.order else ""
                raise SignatureError(
                    f"{self.target}: {name} is declared in {len(places)} parts: one is expected{each}."
                )

    def _try(self, module: Any, extents: Mapping[str, int]) -> None:
        """Put zeros of the right shapes everywhere."""
        like = next(module.parameters())
        given = {name: like.new_zeros(self.cell.shape(name, extents)) for name in self.names}
        for path, tensor in self.placed(given).items():
            if tuple(tensor.shape) != self.shapes[path]:
                if self.known.cell:
                    built = f"{extents['k']} inputs meet {extents['j']} units"
                else:
                    built = f"{extents['g']} heads of {extents['e']} units meet {extents['f']} hidden ones"
                raise SignatureError(
                    f"{self.target}: {path} has the shape {self.shapes[path]} where {built}, and what is declared to "
                    f"be there has {tuple(tensor.shape)}: add .T if it is transposed, or see which parameters it holds."
                )

    def placed(self, leaves: Mapping[str, Any]) -> dict[str, Any]:
        """The tensor of each place, but for what is to be zero."""
        import torch

        pieces: dict[str, list[tuple[str, Any]]] = {}
        for name, places in self.places.items():
            tensor = reordered(self.known, name, leaves[name], self.order)
            if tensor is not leaves[name]:
                tensor = APART.add(tensor.clone())
            parts = tensor.chunk(len(places)) if len(places) > 1 else (tensor,)
            for place, part in zip(places, parts, strict=True):
                pieces.setdefault(place, []).append((self.cell.axes[name], part))
        found = {}
        for place, given in pieces.items():
            by_rows = len({axes[-1] for axes, _ in given}) == 1
            whole = given[0][1]
            if len(given) > 1:
                whole = APART.add(torch.cat([part for _, part in given], 0 if by_rows else 1))
            path = place.removesuffix(TRANSPOSED)
            found[path] = whole.T if place.endswith(TRANSPOSED) else whole
        return found
