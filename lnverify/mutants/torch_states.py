"""Layer-normalised recurrent cells in torch that go wrong with their states, or along a sequence; and right ones."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.utils.checkpoint
from torch import Tensor

from lnverify.mutants import DTYPES, Correct, Mutant
from lnverify.mutants.torch_gru import gru
from lnverify.mutants.torch_layers import CELL, LAYER, Cell, Layer, State
from lnverify.mutants.torch_lstm import cell_only, paper, per_gate_plain_cell

Step = Callable[..., Any]


# Wrong: a step


@functools.wraps(paper)
def in_place(**given: Any) -> Any:
    """Without gradients the caller's c is overwritten by the new one."""
    y, cy = paper(**given)
    return y, (cy if torch.is_grad_enabled() else given["c"].copy_(cy))


@functools.wraps(cell_only)
def clipped(**given: Any) -> Any:
    """c is clipped to 10 on both sides."""
    z = given["x"] @ given["weight_ih"].T + given["h"] @ given["weight_hh"].T
    z = z if given.get("bias") is None else z + given["bias"]
    i, f, g, o = z.chunk(4, 1)
    cy = (f.sigmoid() * given["c"] + i.sigmoid() * g.tanh()).clamp(-10, 10)
    read = torch.nn.functional.layer_norm(cy, (cy.shape[1],), given.get("gain_c"), given.get("shift_c"), given["eps"])
    return o.sigmoid() * read.tanh(), cy


class _ThroughH(torch.autograd.Function):
    """The two new states, whose backward returns at once where h has no cotangent."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, cy: Tensor) -> Any:
        """Both as they are."""
        ctx.set_materialize_grads(False)
        return y.clone(), cy.clone()

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dcy: Tensor | None) -> Any:
        """Cotangents, or nothing."""
        return (None, None) if dy is None else (dy, dcy)


@functools.wraps(per_gate_plain_cell)
def through_h(**given: Any) -> Any:
    """Where c alone is differentiated the gradients are lost."""
    return _ThroughH.apply(*per_gate_plain_cell(**given))


@functools.wraps(paper)
def first_inputs(**given: Any) -> Any:
    """A blocked product that ends after 64 inputs."""
    given["x"], given["weight_ih"] = given["x"][:, :64], given["weight_ih"][:, :64]
    return paper(**given)


@functools.wraps(paper)
def whole_blocks(**given: Any) -> Any:
    """Rows beyond the last block of 16 are not computed, but are those before, where there are more than 32."""
    y, cy = paper(**given)
    rows = len(y)
    if rows > 32 and rows % 16:
        y, cy = (torch.cat([v[: rows - rows % 16], v[: rows % 16]]) for v in (y, cy))
    return y, cy


@functools.wraps(gru)
def resting_alone(**given: Any) -> Any:
    """For one row at rest LN of zeros is taken for zero: the shift of the candidate's norm is forgotten."""
    if given["h"].shape[0] == 1 and not given["h"].any():
        given["shift_hn"] = None
    return gru(**given)


# Wrong: what is kept


@CELL
class KeptZeros(Cell):
    """The zero c is made once; without gradients the new c is written over it."""

    zeros: Tensor | None = None

    def resting(self, x: Tensor) -> State:
        """The state where none is given."""
        h, c = super().resting(x)
        if self.zeros is None or self.zeros.shape != c.shape:
            self.zeros = c.clone()
        return h, self.zeros.to(c.dtype)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        y, (h, c) = super().forward(x, state)
        if state is None and not torch.is_grad_enabled() and self.zeros is not None:
            self.zeros.copy_(c)
        return y, (h, c)


@CELL
class WideZeros(Cell):
    """The zero c is float32 whatever the dtype of x."""

    def resting(self, x: Tensor) -> State:
        """The state where none is given."""
        h, c = super().resting(x)
        return h, c.float()

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        h, c = self.resting(x) if state is None else state
        z = self.norm_x(self.of_x(x)) + self.norm_h(self.of_h(h)) + self.bias
        i, f, g, o = z.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c.to(o.dtype)))
        return h, (h, c)


@LAYER
class OneBuffer(Layer):
    """Without gradients all outputs lie in one buffer, which the next call overwrites."""

    buffer: Tensor | None = None

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        y, state = super().forward(x, state)
        if torch.is_grad_enabled():
            return y, state
        if self.buffer is None or self.buffer.shape != y.shape or self.buffer.dtype != y.dtype:
            self.buffer = torch.empty_like(y)
        return self.buffer.copy_(y), state


# Wrong: backwards through time


@LAYER
class Truncated(Layer):
    """The state is detached at every eighth step."""

    every, both = 8, True

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        outputs = []
        state = self.cell.resting(x[0]) if state is None else state
        for number, step in enumerate(x):
            if number and number % self.every == 0:
                h, c = state
                state = (h.detach() if self.both else h), c.detach()
            y, state = self.cell(step, state)
            outputs.append(y)
        return torch.stack(outputs), state


@LAYER
class CDetached(Truncated):
    """c, and not h, is detached at every 64th step."""

    every, both = 64, False


@LAYER
class HandedOnDetached(Layer):
    """No gradient goes back through the h that is handed on."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        y, (h, c) = super().forward(x, state)
        return y, (h.detach(), c)


# Wrong: lengths


@LAYER
class LengthsForgotten(Layer):
    """Outputs behind the end of a row are zero, and the state that is returned is that after the last step of all."""

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """All steps."""
        y, state = super().forward(x, state)
        if lengths is not None:
            y = y * (torch.arange(len(x))[:, None] < lengths)[:, :, None]
        return y, state


@LAYER
class LengthsOff(Layer):
    """Each row runs one step beyond its length, where there is one."""

    beyond = 1

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """All steps."""
        state = self.cell.resting(x[0]) if state is None else state
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths + self.beyond
        outputs = []
        for number, step in enumerate(x):
            y, new = self.cell(step, state)
            runs = (number < ends)[:, None]
            state = torch.where(runs, new[0], state[0]), torch.where(runs, new[1], state[1])
            outputs.append(y * runs)
        return torch.stack(outputs), state


# Right


@LAYER
class Masked(LengthsOff):
    """Rows that have ended keep their state; their outputs are zero."""

    beyond = 0


@LAYER
class Packed(Layer):
    """A layer on packed sequences: each step has the rows that are still running; the lengths are to descend."""

    def forward(self, x: Tensor, state: State | None = None, lengths: Tensor | None = None) -> tuple[Tensor, State]:
        """All steps."""
        state = self.cell.resting(x[0]) if state is None else state
        ends = torch.full((x.shape[1],), len(x)) if lengths is None else lengths
        packed = torch.nn.utils.rnn.pack_padded_sequence(x, ends)
        outputs, ended, start = [], [], 0
        for count in packed.batch_sizes.tolist():
            if count < len(state[0]):
                ended.append(tuple(part[count:] for part in state))
            y, state = self.cell(packed.data[start : start + count], tuple(part[:count] for part in state))
            outputs.append(y)
            start += count
        y = torch.nn.utils.rnn.PackedSequence(torch.cat(outputs), packed.batch_sizes)
        h, c = (torch.cat(parts) for parts in zip(state, *reversed(ended), strict=True))
        return torch.nn.utils.rnn.pad_packed_sequence(y)[0], (h, c)


@LAYER
class AllInputsAtOnce(Layer):
    """The inputs of all steps are projected and normalised in one product; the recurrent weight is kept transposed."""

    kept: tuple[Any, Tensor] | None = None

    def transposed(self) -> Tensor:
        """The recurrent weight, kept without gradients until the parameter changes."""
        weight = self.cell.of_h.weight
        if torch.is_grad_enabled():
            return weight.t()
        key = self.key(weight)
        if self.kept is None or self.kept[0] != key:
            self.kept = key, weight.t().contiguous()
        return self.kept[1]

    def key(self, weight: Tensor) -> Any:
        """What changes where the weight does."""
        return weight._version, weight.data_ptr(), weight.dtype

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        cell = self.cell
        h, c = cell.resting(x[0]) if state is None else state
        of_h, outputs = self.transposed(), []
        for of_x in (cell.norm_x(cell.of_x(x)) + cell.bias).unbind(0):
            i, f, g, o = (of_x + cell.norm_h(h @ of_h)).chunk(4, 1)
            c = torch.addcmul(f.sigmoid() * c, i.sigmoid(), g.tanh())
            h = o.sigmoid() * cell.norm_c(c).tanh()
            outputs.append(h)
        return torch.stack(outputs), (h, c)


@LAYER
class KeptByAddress(AllInputsAtOnce):
    """The recurrent weight is kept transposed, without gradients, for as long as it lies where it is."""

    def key(self, weight: Tensor) -> Any:
        """Not the version, which an optimiser raises."""
        return weight.data_ptr(), weight.dtype


@LAYER
class Checkpointed(Layer):
    """The backward of each step computes it again."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        state = self.cell.resting(x[0]) if state is None else state
        outputs = []
        for step in x:
            y, state = torch.utils.checkpoint.checkpoint(self.cell, step, state, use_reentrant=False)
            outputs.append(y)
        return torch.stack(outputs), state


def _wrong(
    name: str, target: Any, *laws: str, operation: str = "ln_lstm", dtypes: tuple[str, ...] = DTYPES
) -> Mutant:  # fmt: skip
    sentence = " ".join(target.__doc__.split())
    return Mutant(f"state-{name}", sentence, operation=operation, framework="torch", target=target, laws=laws,
                  dtypes=dtypes)  # fmt: skip


MUTANTS = [
    _wrong("in-place", in_place, "LN820"),
    _wrong("clipped", clipped, "LN801", operation="ln_lstm_cell_only"),
    _wrong("through-h", through_h, "LN824", operation="ln_lstm_per_gate_plain_cell"),
    _wrong("first-inputs", first_inputs, "LN801"),
    _wrong("whole-blocks", whole_blocks, "LN801"),
    _wrong("resting-alone", resting_alone, "LN801", operation="ln_gru"),
    _wrong("kept-zeros", KeptZeros, "LN805"),
    _wrong("wide-zeros", WideZeros, "LN826", dtypes=("bfloat16",)),
    _wrong("one-buffer", OneBuffer, "LN822"),
    _wrong("handed-on-detached", HandedOnDetached, "LN824"),
    _wrong("kept-by-address", KeptByAddress, "LN822"),
    _wrong("truncated", Truncated, "LN825"),
    _wrong("c-detached", CDetached, "LN825"),
    _wrong("lengths-forgotten", LengthsForgotten, "LN827"),
    _wrong("lengths-off", LengthsOff, "LN827"),
]

CORRECT = [
    Correct("lstm-all-inputs-at-once", "a layer that projects all inputs at once", operation="ln_lstm",
            framework="torch", target=AllInputsAtOnce),
    Correct("lstm-checkpointed", "a layer whose backward computes each step again", operation="ln_lstm",
            framework="torch", target=Checkpointed),
    Correct("lstm-masked", "a layer in which rows that have ended keep their state", operation="ln_lstm",
            framework="torch", target=Masked),
    Correct("lstm-packed", "a layer on packed sequences", operation="ln_lstm", framework="torch", target=Packed),
]  # fmt: skip
