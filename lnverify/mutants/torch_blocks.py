"""Transformer blocks in torch, wrong ones with one named bug each, and right ones in several styles.

Every function takes (x, parameters, heads, mask, eps); the mask is added to the scores.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import torch
from torch.nn import functional

from lnverify.mutants import Correct, Mutant
from lnverify.mutants.torch_differentiated import SOFTMAX, Softmax


def _norm(a: Any, gain: Any, shift: Any, eps: float) -> Any:
    return functional.layer_norm(a, (a.shape[-1],), gain, shift, eps)


def _apart(a: Any, heads: int) -> Any:
    """(sequences, positions, units) as (sequences, heads, positions, units of a head)."""
    return a.reshape(*a.shape[:2], heads, -1).transpose(1, 2)


def _joined(a: Any) -> Any:
    """The inverse."""
    return a.transpose(1, 2).reshape(a.shape[0], a.shape[2], -1)


def _attention(q: Any, k: Any, v: Any, heads: int, mask: Any, bug: str) -> Any:
    """Softmax of the scores, times v, all heads joined; q, k, v: (sequences, positions, units)."""
    if bug == "view without transpose":
        q, k, v = (a.reshape(a.shape[0], heads, a.shape[1], -1) for a in (q, k, v))
    elif bug == "heads of k reversed":
        q, k, v = _apart(q, heads), _apart(k, heads).flip(1), _apart(v, heads)
    else:
        q, k, v = (_apart(a, heads) for a in (q, k, v))
    width = q.shape[-1] * heads if bug == "scale by the model" else q.shape[-1]
    if bug == "from 64 sequences on" and k.shape[0] > 64:
        k = torch.cat([k[:64], k[: k.shape[0] - 64]])
    scores = q @ k.transpose(-2, -1) * (1.0 if bug == "no scale" else 1 / math.sqrt(width))
    if mask is not None and bug == "mask off by one":
        mask = torch.cat([mask[1:], torch.zeros_like(mask[:1])])
    if mask is not None and bug == "mask by a number":
        mask = mask.clamp(min=-1e4)
    if mask is not None and bug not in ("mask ignored", "mask after softmax"):
        scores = scores + mask
    if bug == "no maximum":
        weights = scores.exp()
        weights = weights / weights.sum(-1, keepdim=True)
    elif bug in SOFTMAX:
        weights = Softmax.apply(scores, bug)[0]
    else:
        weights = torch.softmax(scores, -2 if bug == "softmax over queries" else -1)
    if mask is not None and bug == "mask after softmax":
        weights = weights * mask.exp()
    if bug == "from 64 positions on":
        weights = torch.cat([weights[..., :64], 0 * weights[..., 64:]], -1)
    out = _in_parts(scores, v, bug) if bug.startswith("in parts") else weights @ v
    return out.reshape(out.shape[0], out.shape[2], -1) if bug == "joined without transpose" else _joined(out)


def _in_parts(scores: Any, v: Any, bug: str) -> Any:
    """Attention over 64 keys at a time, with the largest score and the sum of weights so far; the first key is seen."""
    largest, total, out = scores.new_full((*scores.shape[:-1], 1), -torch.inf), 0.0, 0.0
    for part, values in zip(scores.split(64, -1), v.split(64, -2), strict=True):
        before, largest = largest, torch.maximum(largest, part.amax(-1, keepdim=True))
        factor, weights = (before - largest).exp(), (part - largest).exp()
        total = total * (1.0 if bug == "in parts, sum not rescaled" else factor) + weights.sum(-1, keepdim=True)
        out = out * factor + weights @ values
    return out / total


def block(
    x: Any, weight_q: Any, weight_k: Any, weight_v: Any, weight_o: Any, weight_1: Any, weight_2: Any,
    bias_q: Any = None, bias_k: Any = None, bias_v: Any = None, bias_o: Any = None, bias_1: Any = None,
    bias_2: Any = None, gain_1: Any = None, shift_1: Any = None, gain_2: Any = None, shift_2: Any = None,
    heads: int = 1, mask: Any = None, eps: float = 1e-5, pre: bool = False, gelu: bool = False, bug: str = "",
) -> Any:  # fmt: skip
    """Separate projections, softmax of the scores, a layer norm after each sum, or before each branch."""

    def attend(a: Any) -> Any:
        raw = x if bug == "k and v raw" else a
        q = functional.linear(a, weight_q, bias_q)
        k, v = functional.linear(raw, weight_k, bias_k), functional.linear(raw, weight_v, bias_v)
        return functional.linear(_attention(q, k, v, heads, mask, bug), weight_o, bias_o)

    def feed(a: Any) -> Any:
        hidden = functional.linear(a, weight_1, bias_1)
        if gelu:
            active = functional.gelu(hidden, approximate="tanh" if bug == "tanh" else "none")
        else:
            active = functional.relu(hidden)
            active = functional.gelu(hidden) if bug == "gelu" else active
        return functional.linear(active, weight_2, bias_2)

    def first(a: Any) -> Any:
        return _norm(a, gain_1, shift_1, eps)

    def second(a: Any) -> Any:
        if bug == "parameters of the first norm":
            return first(a)
        if bug == "no eps in the second norm":
            d = a - a.mean(-1, keepdim=True)
            xhat = d * torch.rsqrt(d.square().mean(-1, keepdim=True))
            xhat = xhat if gain_2 is None else xhat * gain_2
            return xhat if shift_2 is None else xhat + shift_2
        if bug == "over the batch":
            d = a - a.mean((0, 1), keepdim=True)
            xhat = d * torch.rsqrt(d.square().mean((0, 1), keepdim=True) + eps)
            xhat = xhat if gain_2 is None else xhat * gain_2
            return xhat if shift_2 is None else xhat + shift_2
        return _norm(a, gain_2, shift_2, eps)

    if pre:
        normed = first(x)
        middle = (normed if bug == "residual from the norm" else x) + attend(normed)
        return middle + feed(second(middle))
    middle = first(x + (attend(x).detach() if bug == "attention detached" else attend(x)))
    if bug == "no residual":
        return second(feed(middle))
    return middle + feed(middle) if bug == "no final norm" else second(middle + feed(middle))


def fused(
    x: Any, weight_q: Any, weight_k: Any, weight_v: Any, weight_o: Any, weight_1: Any, weight_2: Any,
    bias_q: Any = None, bias_k: Any = None, bias_v: Any = None, bias_o: Any = None, bias_1: Any = None,
    bias_2: Any = None, gain_1: Any = None, shift_1: Any = None, gain_2: Any = None, shift_2: Any = None,
    num_heads: int = 1, attn_mask: Any = None, eps: float = 1e-5, pre: bool = False, gelu: bool = False,
) -> Any:  # fmt: skip
    """One product for q, k and v; torch's scaled_dot_product_attention; residuals added in the products."""
    model = x.shape[-1]

    def none(bias: Any, size: int) -> Any:
        return x.new_zeros(size) if bias is None else bias

    def attend(a: Any) -> Any:
        qkv = functional.linear(a, torch.cat([weight_q, weight_k, weight_v]),
                                torch.cat([none(bias, model) for bias in (bias_q, bias_k, bias_v)]))  # fmt: skip
        q, k, v = (_apart(part, num_heads) for part in qkv.chunk(3, -1))
        return _joined(functional.scaled_dot_product_attention(q, k, v, attn_mask))

    def added(residual: Any, a: Any, weight: Any, bias: Any) -> Any:
        start = (residual + none(bias, model)).reshape(-1, model)
        return torch.addmm(start, a.reshape(-1, a.shape[-1]), weight.T).reshape(residual.shape)

    def hidden(a: Any) -> Any:
        h = functional.linear(a, weight_1, bias_1)
        return h * 0.5 * (1 + torch.erf(h * math.sqrt(0.5))) if gelu else h.clamp(min=0)

    if pre:
        middle = added(x, attend(_norm(x, gain_1, shift_1, eps)), weight_o, bias_o)
        return added(middle, hidden(_norm(middle, gain_2, shift_2, eps)), weight_2, bias_2)
    middle = _norm(added(x, attend(x), weight_o, bias_o), gain_1, shift_1, eps)
    return _norm(added(middle, hidden(middle), weight_2, bias_2), gain_2, shift_2, eps)


def online(
    x: Any, weight_q: Any, weight_k: Any, weight_v: Any, weight_o: Any, weight_1: Any, weight_2: Any,
    bias_q: Any = None, bias_k: Any = None, bias_v: Any = None, bias_o: Any = None, bias_1: Any = None,
    bias_2: Any = None, gain_1: Any = None, shift_1: Any = None, gain_2: Any = None, shift_2: Any = None,
    heads: int = 1, mask: Any = None, eps: float = 1e-5, pre: bool = False, gelu: bool = False,
) -> Any:  # fmt: skip
    """einsum for each head; softmax position by position with a running maximum; norms on raw sums, a r - mu r."""
    model, size = x.shape[-1], x.shape[-1] // heads

    def norm(a: Any, gain: Any, shift: Any) -> Any:
        mean = a.mean(-1, keepdim=True)
        r = 1 / torch.sqrt((a - mean).square().mean(-1, keepdim=True) + eps)
        y = a * r - mean * r
        y = y if gain is None else y * gain
        return y if shift is None else y + shift

    def head(a: Any, weight: Any, bias: Any) -> Any:
        part = torch.einsum("bti,gei->btge", a, weight.reshape(heads, size, model))
        return part if bias is None else part + bias.reshape(heads, size)

    def attend(a: Any) -> Any:
        q = head(a, weight_q, bias_q) * size**-0.5
        k, v = head(a, weight_k, bias_k), head(a, weight_v, bias_v)
        most = torch.full_like(q[..., 0], -math.inf)
        total, out = torch.zeros_like(most), torch.zeros_like(q)
        for s in range(a.shape[1]):
            score = torch.einsum("btge,bge->btg", q, k[:, s])
            score = score if mask is None else score + mask[:, s, None]
            above = torch.maximum(most, score)
            start = torch.where(above.isneginf(), 0.0, above)
            old, new = torch.exp(most - start), torch.exp(score - start)
            total = total * old + new
            out = out * old[..., None] + new[..., None] * v[:, None, s]
            most = above
        joined = torch.einsum("btge,ige->bti", out / total[..., None], weight_o.reshape(model, heads, size))
        return joined if bias_o is None else joined + bias_o

    def feed(a: Any) -> Any:
        h = a @ weight_1.T
        h = h if bias_1 is None else h + bias_1
        f = (h * torch.special.ndtr(h) if gelu else torch.where(h > 0, h, 0.0)) @ weight_2.T
        return f if bias_2 is None else f + bias_2

    if pre:
        middle = x + attend(norm(x, gain_1, shift_1))
        return middle + feed(norm(middle, gain_2, shift_2))
    middle = norm(x + attend(x), gain_1, shift_1)
    return norm(middle + feed(middle), gain_2, shift_2)


def _wrong(
    name: str, sentence: str, bug: str, laws: tuple[str, ...] = ("LN801",), variant: str = "",
    dtypes: tuple[str, ...] = ("float64", "float32"), **more: Any,
) -> Mutant:  # fmt: skip
    return Mutant(
        id=f"block-{name}", bug=sentence, operation="_".join(filter(None, ("transformer_block", variant))),
        framework="torch", laws=laws, dtypes=dtypes,
        target=functools.partial(block, bug=bug, **{"pre": "pre" in variant, "gelu": "gelu" in variant, **more}),
    )  # fmt: skip


MUTANTS = [
    _wrong("norms-before", "the norms stand before the branches, not behind the sums", "", pre=True),
    _wrong("norms-behind", "the norms stand behind the sums, not before the branches", "", ("LN801",), "pre_ln",
           pre=False),
    _wrong("k-v-raw", "k and v are made of x, only q of the normalised x", "k and v raw", ("LN801",), "pre_ln"),
    _wrong("no-scale", "the scores are not scaled", "no scale"),
    _wrong("scale-by-model", "the scores are scaled by the units of the model, not of a head", "scale by the model"),
    _wrong("mask-off-by-one", "each position attends to the one after it too", "mask off by one"),
    _wrong("mask-ignored", "the mask is ignored", "mask ignored"),
    _wrong("mask-after-softmax", "the mask is applied to the weights, which then do not sum to 1",
           "mask after softmax"),
    _wrong("residual-from-norm", "the residual is the normalised x", "residual from the norm", ("LN801",), "pre_ln"),
    _wrong("first-parameters", "the second norm has the parameters of the first", "parameters of the first norm"),
    _wrong("no-final-norm", "the last norm is missing", "no final norm"),
    _wrong("no-residual", "the network has no residual", "no residual"),
    _wrong("view-without-transpose", "heads are taken apart by a view alone, across positions",
           "view without transpose"),
    _wrong("joined-without-transpose", "heads are joined by a view alone, across positions",
           "joined without transpose"),
    _wrong("heads-reversed", "the heads of k are in reverse order", "heads of k reversed"),
    _wrong("softmax-over-queries", "softmax runs over the positions that ask", "softmax over queries"),
    _wrong("no-eps", "eps is missing in the second norm", "no eps in the second norm"),
    _wrong("over-the-batch", "the second norm has statistics over the batch", "over the batch", ("LN801",), "pre_ln"),
    _wrong("tanh-gelu", "gelu by its tanh approximation", "tanh", ("LN801",), "pre_ln_gelu",
           ("float64",)),
    _wrong("gelu-for-relu", "gelu in the place of relu", "gelu"),
    _wrong("no-maximum", "softmax subtracts no maximum, and overflows", "no maximum"),
    _wrong("64-positions", "only the first 64 positions are attended to", "from 64 positions on", ("LN904",)),
    _wrong("sum-not-rescaled", "keys are taken by 64, and the sum of weights is not rescaled from one part to the next",
           "in parts, sum not rescaled", ("LN907",)),
    _wrong("64-sequences", "sequences from the 65th on attend to the first ones", "from 64 sequences on",
           ("LN905",)),
    _wrong("mask-by-a-number", "the mask is -10000, not -inf", "mask by a number", ("LN906",)),
    _wrong("attention-detached", "no gradient goes through attention", "attention detached", ("LN802",)),
    _wrong("weights-constant", "the backward of softmax takes the weights as they were saved, without a graph",
           "weights constant", ("LN814",)),
    _wrong("sum-without-tangent", "the forward mode of softmax leaves out the tangent of the sum of weights",
           "sum without tangent", ("LN813",), "pre_ln_gelu"),
]  # fmt: skip


def _right(name: str, description: str, function: Any) -> list[Correct]:
    found = []
    for variant in ("post_ln", "pre_ln", "post_ln_gelu", "pre_ln_gelu"):
        operation = "transformer_block" + ("" if variant == "post_ln" else f"_{variant}")
        target = functools.partial(function, pre="pre" in variant, gelu="gelu" in variant)
        found.append(Correct(f"block-{name}-{variant.replace('_', '-')}", description, operation=operation,
                             framework="torch", target=target))  # fmt: skip
    return found


CORRECT = [
    *_right("separate", "separate projections, softmax", block),
    *_right("fused", "one projection, scaled_dot_product_attention, residuals in the products", fused),
    Correct(
        "block-in-parts",
        "keys are taken by 64, with the largest score and the sum of weights so far",
        operation="transformer_block_pre_ln",
        framework="torch",
        target=functools.partial(block, pre=True, bug="in parts"),
    ),
    Correct(
        "block-own-softmax",
        "softmax with a backward and a forward mode of its own",
        operation="transformer_block",
        framework="torch",
        target=functools.partial(block, bug=SOFTMAX[0]),
    ),
    *_right("online", "einsum, softmax with a running maximum, norms on raw sums", online),
]
