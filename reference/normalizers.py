"""Normalisers from one template whose index set is a parameter.

    mu  = mean of x               over the indices `over`
    d   = x - mu
    var = mean of d**2            over the same indices (divided by their number: not the sample variance)
    r   = 1 / sqrt(var + eps)
    y   = gamma * d * r + beta    gamma and beta each optional

Layer normalisation (Ba, Kiros and Hinton 2016, section 3, equation 3) takes `over = (i,)`, the
units of one row b. The same template with `over = (b,)` is batch normalisation, so that the
difference of the two is one argument. The paper has no eps; here eps may differ from row to row,
because scaling a row by c is exactly scaling its eps by c**2.
"""

from __future__ import annotations

from collections.abc import Sequence

from program import Let, Program
from sympy import Expr, Idx, Indexed, IndexedBase, Mul, Sum, Symbol, sqrt
from tensors import extent, name_of

B, H = Symbol("B", integer=True, positive=True), Symbol("H", integer=True, positive=True)
b, i = Idx("b", B), Idx("i", H)

AFFINE = {"": (True, True), "_weight": (True, False), "_bias": (False, True), "_plain": (False, False)}
"""Suffix of a function's name: (it has gamma, it has beta)."""


def tensor(name: str, *at: Idx) -> Indexed:
    """The tensor called `name`, with its home at the indices `at`."""
    return IndexedBase(name)[at]


def mean(body: Expr, over: Sequence[Idx]) -> Expr:
    """The mean of `body` over some indices."""
    return Sum(body / Mul(*map(extent, over)), *over)


def normalizer(
    name: str, x: Indexed, over: Sequence[Idx], affine: Sequence[Idx], weight: bool = True, bias: bool = True
) -> Program:
    """Normalise `x` by its mean and variance over `over`; gamma and beta live on the indices `affine`."""
    rest = [index for index in x.indices if index not in over]
    mu, var, r, eps = (tensor(word, *rest) for word in ("mu", "var", "r", "eps"))
    d, xhat, y = (tensor(word, *x.indices) for word in ("d", "xhat", "y"))
    gamma, beta = tensor("gamma", *affine), tensor("beta", *affine)
    body = (
        Let(mu, mean(x, over)),
        Let(d, x - mu),
        Let(var, mean(d**2, over)),
        Let(r, 1 / sqrt(var + eps)),
        Let(xhat, d * r),
        Let(y, (gamma if weight else 1) * xhat + (beta if bias else 0)),
    )
    inputs = (x, *[gamma] * weight, *[beta] * bias, eps)
    return Program(name, inputs, body, (y,), fixed=frozenset({"eps"}))


def layer_norm(suffix: str = "") -> Program:
    """Layer normalisation of each row of x[b, i], in one of the four variants of `AFFINE`."""
    weight, bias = AFFINE[suffix]
    return normalizer(f"layer_norm{suffix}", tensor("x", b, i), (i,), (i,), weight, bias)


def layer_norm_vjp_closed(suffix: str = "") -> Program:
    """The compact reverse mode of `layer_norm(suffix)`, claimed here and proved in prove.py.

    With g = gamma * y_bar:  x_bar = r * (g - mean g - xhat * mean(xhat * g)).
    """
    weight, bias = AFFINE[suffix]
    forward = layer_norm(suffix)
    xhat, r, y_bar = forward.homes["xhat"], forward.homes["r"], tensor("y_bar", b, i)
    g, g_mean, g_xhat_mean = tensor("g", b, i), tensor("g_mean", b), tensor("g_xhat_mean", b)
    body = [Let(g, tensor("gamma", i) * y_bar)] if weight else []
    g = g if weight else y_bar
    body += [
        Let(g_mean, mean(g, (i,))),
        Let(g_xhat_mean, mean(g * xhat, (i,))),
        Let(tensor("x_bar", b, i), r * (g - g_mean - xhat * g_xhat_mean)),
    ]
    body += [Let(tensor("gamma_bar", i), Sum(xhat * y_bar, b))] if weight else []
    body += [Let(tensor("beta_bar", i), Sum(y_bar, b))] if bias else []
    outputs = [let.target for let in body if name_of(let.target) in ("x_bar", "gamma_bar", "beta_bar")]
    before = [let for let in forward.body if name_of(let.targets[0]) != "y"]
    return Program(
        f"{forward.name}_vjp_closed",
        (*forward.inputs, y_bar),
        (*before, *body),
        tuple(outputs),
        forward.fixed,
    )
