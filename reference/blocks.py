"""Transformer blocks with layer normalisation: self-attention, a network of two layers, and where the norms stand.

    post_ln   n = LN1(x + A(x)),   y = LN2(n + F(n))               Vaswani et al. 2017, section 3.1
    pre_ln    m = x + A(LN1(x)),   y = m + F(LN2(m))               Xiong et al. 2020, table 1; no final norm

    A(a)      of each head: softmax(scale q k' over the positions that the mask lets through) v, of all heads joined
              W_o [...] + bias_o;  q = W_q a + bias_q, likewise k and v;  scale is 1/sqrt(units of a head)
    F(a)      W_2 f(W_1 a + bias_1) + bias_2, f(v) = max(0, v), or v times the normal distribution function (gelu)

LN is the template of normalizers.py with eps under the root. What the mask hides has the weight mask exp(mask (score -
top)) = 0: mask is 1 or 0, and fixed. `top` is fixed too: any number, the largest score of the row so that nothing
overflows; softmax does not depend on it, neither does its derivative. `scale` is an input because a root has no exact
value in float64. The inputs whose names begin with `slack` are fixed and zero: they carry what a bound admits
(lnverify.norms.blocks).

Heads are an index, g, with the units of a head, e, beside it; i counts the units of the model.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cells import norm
from normalizers import b, i, tensor
from program import Let, Program
from sympy import Idx, Indexed, Sum, Symbol
from tensors import exp, name_of, normal_cdf, step

t, s = (Idx(name, Symbol("T", integer=True, positive=True)) for name in "ts")
g, e, f = (Idx(name, Symbol(name.upper(), integer=True, positive=True)) for name in "gef")


def attention(a: Indexed) -> tuple[Indexed, list[Let], list[Indexed]]:
    """A of a[b, t, i]: the result, the statements that make it, and the inputs that it needs."""
    seen = tensor(name_of(a), b, s, i)  # where the positions are those that are attended to
    inputs: list[Indexed] = []
    body: list[Let] = []
    parts = {}
    for word, at, given in (("q", t, a), ("k", s, seen), ("v", s, seen)):
        weight, bias = tensor(f"weight_{word}", g, e, i), tensor(f"bias_{word}", g, e)
        parts[word] = tensor(word, b, at, g, e)
        inputs += [weight, bias]
        body += [Let(parts[word], Sum(weight * given, i) + bias)]
    scale, mask, top = tensor("scale", g), tensor("mask", t, s), tensor("top", b, g, t)
    score, slack, logit, z, p, w = (
        tensor(name, b, g, t, s) for name in ("score", "slack_score", "logit", "z", "p", "w")
    )
    total, context, out = tensor("total", b, g, t), tensor("context", b, t, g, e), tensor("out", b, t, i)
    weight, bias = tensor("weight_o", i, g, e), tensor("bias_o", i)
    body += [
        Let(score, Sum(scale * parts["q"] * parts["k"], e)),
        Let(logit, score - top + slack),
        Let(z, mask * logit),
        Let(p, mask * exp(z)),
        Let(total, Sum(p, s)),
        Let(w, p / total),
        Let(context, Sum(w * parts["v"], s)),
        Let(out, Sum(weight * context, g, e) + bias),
    ]
    return out, body, [*inputs, weight, bias, mask, top, scale, slack]


def feed_forward(a: Indexed, gelu: bool) -> tuple[Indexed, list[Let], list[Indexed]]:
    """F of a[b, t, i], likewise."""
    first, second = tensor("weight_1", f, i), tensor("weight_2", i, f)
    inner, outer = tensor("bias_1", f), tensor("bias_2", i)
    hidden, active, cdf = (tensor(name, b, t, f) for name in ("hidden", "active", "cdf"))
    ff = tensor("ff", b, t, i)
    gate = [Let(cdf, normal_cdf(hidden))] if gelu else []
    body = [
        Let(hidden, Sum(first * a, i) + inner),
        *gate,
        Let(active, (cdf if gelu else step(hidden)) * hidden),
        Let(ff, Sum(second * active, f) + outer),
    ]
    return ff, body, [first, inner, second, outer]


def transformer_block(pre: bool = False, gelu: bool = False) -> Program:
    """One block; pre: the norms stand before attention and network, and not behind the sums."""
    x, eps = tensor("x", b, t, i), tensor("eps", b, t)
    a, slack, gain, shift = (
        {n: tensor(f"{word}_{n}", *at) for n in "12"}
        for word, at in (("a", (b, t, i)), ("slack", (b, t, i)), ("gain", (i,)), ("shift", (i,)))
    )
    middle, y = tensor("middle", b, t, i), tensor("y", b, t, i)

    def normalised(n: str, value: Indexed) -> tuple[Indexed, list[Let]]:
        result, made = norm(n, a[n], (i,), gain[n], shift[n])
        return result, [Let(a[n], value + slack[n]), *made]

    if pre:
        first, body = normalised("1", x)
        out, attended, inputs = attention(first)
        second, normed = normalised("2", middle)
        ff, fed, more = feed_forward(second, gelu)
        body += [*attended, Let(middle, x + out), *normed, *fed, Let(y, middle + ff)]
    else:
        out, attended, inputs = attention(x)
        first, normed = normalised("1", x + out)
        ff, fed, more = feed_forward(first, gelu)
        second, last = normalised("2", first + ff)
        body = [*attended, *normed, *fed, *last, Let(y, second)]
    order = (x, *inputs, *more, *(word[n] for n in "12" for word in (gain, shift, slack)), eps)
    fixed = {name for name in map(name_of, order) if name.startswith("slack")} | {"mask", "top", "scale", "eps"}
    name = "_".join(["transformer_block", *["pre_ln"] * pre, *["post_ln"] * (gelu and not pre), *["gelu"] * gelu])
    return Program(name, order, tuple(body), (y,), frozenset(fixed))


BLOCK = "A transformer block"
POST, PRE = "Vaswani et al. 2017, section 3", "Xiong et al. 2020, table 1"
GELU = "Hendrycks and Gimpel 2016, section 2"
BLOCKS: tuple[tuple[Callable[[], Program], str, str], ...] = (
    (transformer_block, f"{BLOCK} with its norms behind the residual sums", POST),
    (partial(transformer_block, pre=True), f"{BLOCK} with its norms before attention and network", PRE),
    (partial(transformer_block, gelu=True), f"{BLOCK} with its norms behind the sums, and gelu", f"{POST}; {GELU}"),
    (partial(transformer_block, pre=True, gelu=True), f"{BLOCK} with its norms before, and gelu", f"{PRE}; {GELU}"),
)
"""Each program with what it is, and where it is from."""
