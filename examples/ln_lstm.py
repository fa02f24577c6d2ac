"""An LSTM cell with layer norm as people write it, and one that is subtly wrong: `lnverify check` on each."""

import torch
from torch import nn

import lnverify

GATES = "fiog"
PLACES = {
    "weight_hh": "linear.weight",
    "weight_ih": "linear.weight",
    "bias": "linear.bias",
    "gain": tuple(f"norm_{gate}.weight" for gate in GATES),
    "shift": tuple(f"norm_{gate}.bias" for gate in GATES),
    "gain_c": "norm_c.weight",
    "shift_c": "norm_c.bias",
}


@lnverify.subject(operation="ln_lstm", variant="per_gate", gates=GATES, parameters=PLACES)
class LSTMCell(nn.Module):
    """One linear map of [h, x], one norm for each gate, one of c on its way to h."""

    def __init__(self, input_size, hidden_size):
        super().__init__()
        self.hidden_size = hidden_size
        self.linear = nn.Linear(hidden_size + input_size, 4 * hidden_size)
        for gate in (*GATES, "c"):
            setattr(self, f"norm_{gate}", nn.LayerNorm(hidden_size))

    def gates(self, x, h):
        """The normalised gates, in the order of GATES."""
        parts = self.linear(torch.cat([h, x], dim=1)).chunk(4, dim=1)
        return [getattr(self, f"norm_{gate}")(part) for gate, part in zip(GATES, parts, strict=True)]

    def forward(self, x, state=None):
        """One step: the output, and the state (h, c)."""
        if state is None:
            state = (x.new_zeros(x.shape[0], self.hidden_size),) * 2
        h, c = state
        f, i, o, g = self.gates(x, h)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(self.norm_c(c))
        return h, (h, c)


@lnverify.subject(operation="ln_lstm", variant="per_gate", gates=GATES, parameters=PLACES)
class CarriesNormalised(LSTMCell):
    """The same, with the normalised c kept: the first h is right, and what is carried is not."""

    def forward(self, x, state=None):
        """One step: the output, and the state (h, c)."""
        if state is None:
            state = (x.new_zeros(x.shape[0], self.hidden_size),) * 2
        h, c = state
        f, i, o, g = self.gates(x, h)
        c = self.norm_c(torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g))
        h = torch.sigmoid(o) * torch.tanh(c)
        return h, (h, c)
