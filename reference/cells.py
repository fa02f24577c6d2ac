"""Recurrent cells with layer normalisation, one step of each.

    ln_rnn   a = U x + V h + c,   y = tanh(gamma * (a - mu)/sigma + beta)

mu and sigma over the units j of one row. Source: Ba, Kiros and Hinton 2016, section 3.1, equation 4, with eps under the
root and f = tanh. c is zero: it carries what a bound admits for algorithms that never build a - mu.
"""

from __future__ import annotations

from normalizers import H, b, i, mean, tensor
from program import Let, Program
from sympy import Idx, Sum, Symbol, sqrt, tanh

k = Idx("k", Symbol("K", integer=True, positive=True))
j = Idx("j", H)


def ln_rnn() -> Program:
    """One step of the layer-normalised recurrent cell."""
    x, h, U, V = tensor("x", b, k), tensor("h", b, i), tensor("U", j, k), tensor("V", j, i)
    gamma, beta, c, eps = tensor("gamma", j), tensor("beta", j), tensor("c", b, j), tensor("eps", b)
    mu, var, r = (tensor(word, b) for word in ("mu", "var", "r"))
    a, d, xhat, z, y = (tensor(word, b, j) for word in ("a", "d", "xhat", "z", "y"))
    body = (
        Let(a, Sum(U * x, k) + Sum(V * h, i) + c),
        Let(mu, mean(a, (j,))),
        Let(d, a - mu),
        Let(var, mean(d**2, (j,))),
        Let(r, 1 / sqrt(var + eps)),
        Let(xhat, d * r),
        Let(z, gamma * xhat + beta),
        Let(y, tanh(z)),
    )
    return Program("ln_rnn", (x, h, U, V, gamma, beta, c, eps), body, (y,), fixed=frozenset({"c", "eps"}))


CELLS = ((ln_rnn, "One step of a layer-normalised recurrent cell", "Ba, Kiros and Hinton 2016, equation 4"),)
"""Each program with what it is, and where it is from."""
