"""Modules of layer-normalised LSTM cells in torch, and layers over sequences: wrong ones, and right ones.

A layer takes x of (steps, rows, inputs) and a state (h, c) or None, and returns (outputs, (h, c)).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lnverify.mutants import Correct, Mutant
from lnverify.subject import declare

State = tuple[Tensor, Tensor]
PLACES = {
    "weight_ih": "cell.of_x.weight", "weight_hh": "cell.of_h.weight", "bias": "cell.bias",
    "gain_x": "cell.norm_x.weight", "shift_x": "cell.norm_x.bias", "gain_h": "cell.norm_h.weight",
    "shift_h": "cell.norm_h.bias", "gain_c": "cell.norm_c.weight", "shift_c": "cell.norm_c.bias",
}  # fmt: skip
LAYER = declare(operation="ln_lstm", parameters=PLACES, sequence=True)
CELL = declare(operation="ln_lstm", parameters={ours: path.partition(".")[2] for ours, path in PLACES.items()})


@CELL
class Cell(nn.Module):
    """The paper's cell; its state is (h, c), and without one both are zero."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.of_x = nn.Linear(input_size, 4 * hidden_size, bias=False)
        self.of_h = nn.Linear(hidden_size, 4 * hidden_size, bias=False)
        self.bias = nn.Parameter(torch.zeros(4 * hidden_size))
        self.norm_x = nn.LayerNorm(4 * hidden_size, eps=eps)
        self.norm_h = nn.LayerNorm(4 * hidden_size, eps=eps)
        self.norm_c = nn.LayerNorm(hidden_size, eps=eps)

    def resting(self, x: Tensor) -> State:
        """The state where none is given."""
        zeros = x.new_zeros(x.shape[0], self.of_h.in_features)
        return zeros, zeros

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        h, c = self.resting(x) if state is None else state
        z = self.norm_x(self.of_x(x)) + self.norm_h(self.of_h(h)) + self.bias
        i, f, g, o = z.chunk(4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
        return h, (h, c)


@LAYER
class Layer(nn.Module):
    """The cell, step after step."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.cell = Cell(input_size, hidden_size, eps)

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        outputs = []
        state = self.cell.resting(x[0]) if state is None else state
        for step in x:
            y, state = self.cell(step, state)
            outputs.append(y)
        return torch.stack(outputs), state


# Wrong


@CELL
class EvalScaled(Cell):
    """In evaluation mode the output is scaled, as if dropout had been on in training."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        h, (_, c) = super().forward(x, state)
        h = h if self.training else 0.9 * h
        return h, (h, c)


@CELL
class RestingOnes(Cell):
    """Without a state c begins at one, not at zero."""

    def resting(self, x: Tensor) -> State:
        """The state where none is given."""
        h, c = super().resting(x)
        return h, c + 1


@CELL
class KeptState(Cell):
    """Without a state the cell goes on from the last call."""

    last: State | None = None

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        if state is None and self.last is not None and self.last[0].shape[0] == x.shape[0]:
            state = self.last
        y, (h, c) = super().forward(x, state)
        self.last = h.detach(), c.detach()
        return y, (h, c)


@CELL
class OtherOutput(Cell):
    """The h that is handed on is not the output, but that of c without LN."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """One step."""
        y, (_, c) = super().forward(x, state)
        return y, (torch.tanh(c), c)


@LAYER
class ForgetsCarry(Layer):
    """Every step begins at the first state again."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        runs = [self.cell(step, state) for step in x]
        return torch.stack([y for y, _ in runs]), runs[-1][1]


@LAYER
class FirstState(Layer):
    """The state after the first step is returned, not that after the last."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        y, _ = super().forward(x, state)
        return y, self.cell(x[0], state)[1]


@LAYER
class NormalisedCarry(Layer):
    """LN(c) is carried on from step to step; the state that is returned holds c itself."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        outputs = []
        y, carried = self.cell(x[0], state)
        outputs.append(y)
        for step in x[1:]:
            y, carried = self.cell(step, (carried[0], self.cell.norm_c(carried[1])))
            outputs.append(y)
        return torch.stack(outputs), carried


@LAYER
class Backwards(Layer):
    """The sequence is read from its end."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        y, last = super().forward(x.flip(0), state)
        return y.flip(0), last


@LAYER
class OverTime(Layer):
    """The mean of x over all steps is taken off, and that of the first step put back."""

    def forward(self, x: Tensor, state: State | None = None) -> tuple[Tensor, State]:
        """All steps."""
        return super().forward(x - x.mean(0) + x[:1].mean(0), state)


def _wrong(module: type[nn.Module], *laws: str) -> Mutant:
    words = "".join(f"-{c.lower()}" if c.isupper() else c for c in module.__name__).lstrip("-")
    sentence = " ".join((module.__doc__ or "").split())
    return Mutant(f"lstm-{words}", sentence, operation="ln_lstm", framework="torch", target=module, laws=laws)


MUTANTS = [
    _wrong(EvalScaled, "LN804"),
    _wrong(RestingOnes, "LN805"),
    _wrong(KeptState, "LN805"),
    _wrong(OtherOutput, "LN806"),
    _wrong(ForgetsCarry, "LN807"),
    _wrong(FirstState, "LN807"),
    _wrong(NormalisedCarry, "LN807"),
    _wrong(Backwards, "LN808"),
    _wrong(OverTime, "LN808"),
]


# Right, and kept in other ways


@declare(
    operation="ln_lstm", variant="per_gate", gates="fiog",
    parameters={
        "weight_hh": tuple(f"linear_{gate}.weight" for gate in "fiog"),
        "weight_ih": tuple(f"linear_{gate}.weight" for gate in "fiog"),
        "bias": tuple(f"linear_{gate}.bias" for gate in "fiog"),
        "gain": tuple(f"norm_{gate}.weight" for gate in "fiog"),
        "shift": tuple(f"norm_{gate}.bias" for gate in "fiog"),
        "gain_c": "norm_c.weight", "shift_c": "norm_c.bias",
    },
)  # fmt: skip
class GateByGate(nn.Module):
    """A linear map of [h, x] and a norm for each gate."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        for gate in "fiog":
            setattr(self, f"linear_{gate}", nn.Linear(hidden_size + input_size, hidden_size))
            setattr(self, f"norm_{gate}", nn.LayerNorm(hidden_size, eps=eps))
        self.norm_c = nn.LayerNorm(hidden_size, eps=eps)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> State:
        """One step."""
        joined = torch.cat([h, x], dim=1)
        f, i, o, g = (getattr(self, f"norm_{gate}")(getattr(self, f"linear_{gate}")(joined)) for gate in "fiog")
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * self.norm_c(c).tanh(), c


@declare(
    operation="ln_gru", gates="zr", sequence=True, batch_first=True,
    parameters={
        "weight_ih": "kernel.T", "weight_in": "kernel.T", "weight_hh": "recurrent.T", "weight_hn": "recurrent.T",
        "gain_x": "norm_x.weight", "shift_x": "norm_x.bias", "gain_h": "norm_h.weight", "shift_h": "norm_h.bias",
        "gain_in": "norm_in.weight", "shift_in": "norm_in.bias", "gain_hn": "norm_hn.weight",
        "shift_hn": "norm_hn.bias", "zeros": ("spare",),
    },
)  # fmt: skip
class GruKernels(nn.Module):
    """A GRU over sequences of rows, with kernels of (inputs, 3 units), gates z, r and candidate."""

    def __init__(self, input_size: int, hidden_size: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.hidden_size = hidden_size
        self.kernel = nn.Parameter(torch.zeros(input_size, 3 * hidden_size))
        self.recurrent = nn.Parameter(torch.zeros(hidden_size, 3 * hidden_size))
        self.spare = nn.Parameter(torch.ones(hidden_size))
        self.norm_x, self.norm_h = (nn.LayerNorm(2 * hidden_size, eps=eps) for _ in range(2))
        self.norm_in, self.norm_hn = (nn.LayerNorm(hidden_size, eps=eps) for _ in range(2))

    def forward(self, x: Tensor, h: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """All steps."""
        two = 2 * self.hidden_size
        h = x.new_zeros(x.shape[0], self.hidden_size) if h is None else h
        outputs = []
        for of_x in (x @ self.kernel).unbind(1):
            of_h = h @ self.recurrent
            z, r = torch.sigmoid(self.norm_x(of_x[:, :two]) + self.norm_h(of_h[:, :two])).chunk(2, dim=1)
            n = torch.tanh(self.norm_in(of_x[:, two:]) + r * self.norm_hn(of_h[:, two:]) + self.spare)
            h = (1 - z) * h + z * n
            outputs.append(h)
        return torch.stack(outputs, 1), h


CORRECT = [
    Correct("lstm-module", "a module of the paper's cell", operation="ln_lstm", framework="torch", target=Cell),
    Correct("lstm-layer", "a layer over sequences", operation="ln_lstm", framework="torch", target=Layer),
    Correct("lstm-gate-by-gate", "linear maps of [h, x] and norms gate by gate, f, i, o, g",
            operation="ln_lstm_per_gate", framework="torch", target=GateByGate),
    Correct("gru-kernels", "a GRU over rows of steps, transposed kernels of all gates", operation="ln_gru",
            framework="torch", target=GruKernels),
]  # fmt: skip
