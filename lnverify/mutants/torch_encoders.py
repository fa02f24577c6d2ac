"""Modules of transformer blocks in torch: wrong ones, and right ones that keep their parameters in several ways."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from lnverify.mutants import Correct, Mutant
from lnverify.subject import declare

# Wrong


class DropoutInEval(nn.TransformerEncoderLayer):
    """Dropout is on in evaluation mode, where it should be off."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """One block."""
        y = super().forward(src, src_mask)
        return y if self.training else functional.dropout(y, 0.1, training=True)


class FirstNormTwice(nn.TransformerEncoderLayer):
    """In evaluation mode the first norm stands for both."""

    def forward(self, src: Tensor, src_mask: Tensor | None = None) -> Tensor:
        """One block."""
        if self.training:
            return super().forward(src, src_mask)
        middle = self.norm1(src + self._sa_block(src, src_mask, None))
        return self.norm1(middle + self._ff_block(middle))


MUTANTS = [
    Mutant("encoder-dropout-in-eval", "dropout is on in evaluation mode", operation="transformer_block",
           framework="torch", target=DropoutInEval, laws=("LN901",)),
    Mutant("encoder-first-norm-twice", "in evaluation mode the first norm stands for both",
           operation="transformer_block", framework="torch", target=FirstNormTwice, laws=("LN901",)),
]  # fmt: skip


# Right


@declare(
    operation="transformer_block", variant="pre_ln_gelu", mask="causal",
    parameters={
        "weight_q": "kernel.T", "weight_k": "kernel.T", "weight_v": "kernel.T", "bias_q": "offset",
        "bias_k": "offset", "bias_v": "offset", "weight_o": "project.weight", "bias_o": "project.bias",
        "weight_1": "wide.weight", "bias_1": "wide.bias", "weight_2": "narrow.weight", "bias_2": "narrow.bias",
        "gain_1": "first.weight", "shift_1": "first.bias", "gain_2": "second.weight", "shift_2": "second.bias",
    },
)  # fmt: skip
class CausalBlock(nn.Module):
    """A block of a language model: one transposed kernel for q, k and v, 4 D hidden units, a mask of its own."""

    def __init__(self, n_embd: int, n_head: int, eps: float = 1e-5) -> None:
        super().__init__()
        self.heads = n_head
        self.kernel = nn.Parameter(torch.zeros(n_embd, 3 * n_embd))
        self.offset = nn.Parameter(torch.zeros(3 * n_embd))
        self.project = nn.Linear(n_embd, n_embd)
        self.wide, self.narrow = nn.Linear(n_embd, 4 * n_embd), nn.Linear(4 * n_embd, n_embd)
        self.first, self.second = nn.LayerNorm(n_embd, eps=eps), nn.LayerNorm(n_embd, eps=eps)

    def attend(self, a: Tensor) -> Tensor:
        """Self-attention to the positions before."""
        parts = (a @ self.kernel + self.offset).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        context = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.project(context.transpose(1, 2).flatten(2))

    def forward(self, x: Tensor) -> Tensor:
        """One block."""
        x = x + self.attend(self.first(x))
        return x + self.narrow(functional.gelu(self.wide(self.second(x))))


@declare(operation="transformer_block", batch_first=False)
class PositionsFirst(nn.TransformerEncoderLayer):
    """torch's own with x of (positions, sequences, units)."""


def _right(name: str, description: str, variant: str, target: Any) -> Correct:
    operation = "transformer_block" + ("" if variant == "post_ln" else f"_{variant}")
    return Correct(f"encoder-{name}", description, operation=operation, framework="torch", target=target)


CORRECT = [
    *(
        _right(f"torch-{variant.replace('_', '-')}", "torch.nn.TransformerEncoderLayer", variant,
               nn.TransformerEncoderLayer)
        for variant in ("post_ln", "pre_ln", "post_ln_gelu", "pre_ln_gelu")
    ),
    _right("positions-first", "torch.nn.TransformerEncoderLayer, positions first", "post_ln", PositionsFirst),
    _right("causal", "a block of a language model with a mask of its own", "pre_ln_gelu", CausalBlock),
]  # fmt: skip
