"""A pre-LN transformer block as people write it, and one whose residual is the normalised x: check each of them."""

from torch import nn
from torch.nn.functional import gelu, scaled_dot_product_attention

import lnverify

PLACES = {
    "weight_q": "qkv.weight",
    "weight_k": "qkv.weight",
    "weight_v": "qkv.weight",
    "bias_q": "qkv.bias",
    "bias_k": "qkv.bias",
    "bias_v": "qkv.bias",
    "weight_o": "project.weight",
    "bias_o": "project.bias",
    "weight_1": "wide.weight",
    "bias_1": "wide.bias",
    "weight_2": "narrow.weight",
    "bias_2": "narrow.bias",
    "gain_1": "norm_1.weight",
    "shift_1": "norm_1.bias",
    "gain_2": "norm_2.weight",
    "shift_2": "norm_2.bias",
}


@lnverify.subject(operation="transformer_block", variant="pre_ln_gelu", mask="causal", parameters=PLACES)
class Block(nn.Module):
    """Causal self-attention and a network, each behind a layer norm and beside a residual."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.project = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.wide, self.narrow = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attention(self, x):
        """Every position attends to those up to itself."""
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        return self.project(scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))

    def network(self, x):
        """Four times as many hidden units."""
        return self.narrow(gelu(self.wide(x)))

    def forward(self, x):
        """x: (sequences, positions, dim)."""
        x = x + self.attention(self.norm_1(x))
        return x + self.network(self.norm_2(x))


@lnverify.subject(operation="transformer_block", variant="pre_ln_gelu", mask="causal", parameters=PLACES)
class NormalisedResidual(Block):
    """The same with x = norm(x) first: it trains, and what a deep stack of blocks would carry is lost."""

    def forward(self, x):
        """x: (sequences, positions, dim)."""
        x = self.norm_1(x)
        x = x + self.attention(x)
        x = self.norm_2(x)
        return x + self.network(x)
