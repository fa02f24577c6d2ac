"""The proofs behind the ledger of claims (`lnverify claims`), for every H; those of prove.py are among them.

`python reference/prove_claims.py` proves them all and prints each with its verdict, `... odd projection` these two.
Exit status 1 if one is not proved. `lnverify/claims/` names theorems, and never imports this folder.

eps stands for itself: a theorem that needs 1/r^2 = var + eps says so by `given`. A claim for eps = 0 is proved with
the term that eps leaves, which is a product with eps.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass

from normalizers import H, b, i, mean, normalizer, tensor
from program import Let, Program, vjp
from prove import REVERSE, P, Theorem, at, average, inline, spread, theorems
from sympy import Expr, Idx, Integer, Sum, Symbol, simplify, sqrt
from tensors import name_of

K = Symbol("K", integer=True, positive=True)
k = Idx("k", K)
delta = Symbol("delta")
x, gamma, beta, y_bar, xhat, d, var, r, eps = (
    {**P.homes, **REVERSE.homes}[name] for name in ("x", "gamma", "beta", "y_bar", "xhat", "d", "var", "r", "eps")
)
EPS = Let(eps, r**-2 - var)
"""What r is: 1/sqrt(var + eps)."""


@dataclass(frozen=True)
class Scalar:
    """`left = right` for scalars, by simplification."""

    name: str
    words: str
    left: Expr
    right: Expr

    def proved(self) -> bool:
        """Whether SymPy simplifies the difference to 0."""
        return simplify(self.left - self.right) == 0


@dataclass(frozen=True)
class Same:
    """An expression of one program equals one of another, every name replaced by its definition."""

    name: str
    words: str
    p: Program
    left: Expr
    q: Program
    right: Expr

    def proved(self) -> bool:
        """Whether the two normal forms are one."""
        left, right = (
            spread(inline(p, value, keep=frozenset())) for p, value in ((self.p, self.left), (self.q, self.right))
        )
        return left - right == 0


Proof = Theorem | Scalar | Same


def together(*pairs: tuple[Expr, Expr]) -> tuple[Expr, Expr]:
    """Several equations as one, each with a letter of its own as a factor."""
    letters = [Symbol(f"t_{n}") for n in range(len(pairs))]
    left, right = (sum(letter * pair[side] for letter, pair in zip(letters, pairs, strict=True)) for side in (0, 1))
    return left, right


def standardised(first: Let, inputs: Sequence[object]) -> Program:
    """Layer norm of the tensor that `first` defines."""
    p = normalizer("of", first.target, (i,), (i,))
    return Program("of", (*inputs, *p.inputs[1:]), (first, *p.body), p.outputs, p.fixed)


def moved(name: str, words: str, value: Expr, inputs: Sequence[object], factor: Expr, before: Expr) -> Theorem:
    """The deviations of `value` are `factor` times those of `before`, and the variance is factor^2 times its variance.

    mu, d and var of `value` are those of a program that standardises it. With factor 1 nothing after d and var sees
    the difference, for any eps; with factor -1 they see a sign.
    """
    p = standardised(Let(tensor("z", b, i), value), inputs)
    centred = before - average_of(before)
    left, right = together((p.homes["d"], factor * centred), (p.homes["var"], factor**2 * mean(centred**2, (i,))))
    return Theorem(name, words, p, left, right)


def average_of(value: Expr) -> Expr:
    """The mean over the units, with an index of its own."""
    j = Idx("j", H)
    return mean(at(value, j), (j,))


def invariances() -> list[Proof]:
    """What deviations and variance do when the input is scaled or shifted."""
    c, weights, h, g = tensor("c", b), tensor("W", i, k), tensor("h", b, k), tensor("g", k)
    v, e, s = (Symbol(name, positive=True) for name in "ves")
    row = tensor("x", b, i)
    return [
        moved("scaled-deviation", "A factor delta goes through the deviations, a common shift c does not.",
              delta * row + c, (row, c), delta, row),
        moved("scaled-variance", "A factor delta goes through the variance as delta^2.",
              delta * row, (row,), delta, row),
        Scalar("scaled-root", "For s > 0, variance and eps times s^2 make the root s times as large.",
               1 / sqrt(s**2 * v + s**2 * e), 1 / (s * sqrt(v + e))),
        moved("shift", "A common shift changes neither deviations nor variance.", row + c, (row, c), Integer(1), row),
        moved("odd", "The other sign of x is the other sign of the deviations, and the same variance.",
              -row, (row,), Integer(-1), row),
        moved("weight-matrix", "(delta W + 1 g') h has delta times the deviations of W h.",
              Sum((delta * weights + g) * h, k), (weights, h, g), delta, Sum(weights * h, k)),
    ]  # fmt: skip


def moments() -> list[Proof]:
    """Mean and second moment of the standardised row."""
    return [
        Theorem("mean-zero", "The standardised row has mean 0.", P, mean(xhat, (i,)), Integer(0)),
        Theorem("second-moment", "Its mean square is var/(var + eps).",
                P, mean(xhat**2, (i,)) * (var + eps), var, (EPS,)),
    ]  # fmt: skip


def batch_norm() -> Same:
    """Batch norm is the template over the other index."""
    batch = normalizer("batch", tensor("x", b, i), (b,), (i,), weight=False, bias=False)
    rows = normalizer("rows", tensor("t", i, b), (b,), (b,), weight=False, bias=False)
    transposed = Program("rows", (tensor("x", b, i), *rows.inputs[1:]),
                         (Let(tensor("t", i, b), tensor("x", b, i)), *rows.body), rows.outputs, rows.fixed)  # fmt: skip
    return Same("batch-norm", "Batch norm is layer norm of the transpose, transposed.",
                batch, batch.homes["xhat"], transposed, transposed.homes["xhat"])  # fmt: skip


def gradients() -> list[Proof]:
    """What the reverse mode cannot see."""
    bars = {name_of(out): out for out in REVERSE.outputs}
    v = tensor("v", b, i)
    once, twice = tensor("once", b, i), tensor("twice", b, i)

    def project(value: Expr) -> Expr:
        return value - average(value) - xhat * average(xhat * value)

    applied = Program("applied", (*P.inputs, v), (*P.body, Let(once, project(v)), Let(twice, project(once))), (twice,))
    weights, h = tensor("W", i, k), tensor("h", b, k)
    a = tensor("a", b, i)
    layer = vjp(standardised(Let(a, Sum(weights * h, k)), (weights, h)))
    inner = Sum(layer.homes["gamma"] * layer.homes["y_bar"] * layer.homes["d"], i)
    root, spreading = layer.homes["r"], layer.homes["var"]
    # W_bar is one sum over the cases: its terms are the parts.
    (made,) = (let.value for let in layer.body if name_of(let.targets[0]) == "W_bar")
    part = made.function
    return [
        Theorem("parameters-euler", "dgamma gamma + dbeta beta, over the units, is dy y over everything.", REVERSE,
                Sum(bars["gamma_bar"] * gamma + bars["beta_bar"] * beta, i), Sum(y_bar * (gamma * xhat + beta), b, i)),
        Theorem("projection", "Taking the two means away twice is taking them away once, but for a product with eps.",
                applied, twice - once, -eps * r**2 * xhat * average(xhat * v), (EPS,)),
        Theorem("radial-gradient", "Each case's part of the gradient for W has no component along W, but for a product "
                "with eps.", layer, Sum(weights * part, k, i), layer.homes["eps"] * root**3 * inner,
                (Let(layer.homes["eps"], root**-2 - spreading),)),
    ]  # fmt: skip


def proofs() -> list[Proof]:
    """Every proof, those of prove.py first."""
    return [*theorems(), *moments(), *invariances(), batch_norm(), *gradients()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Prove what is asked for, or all; returns the exit status."""
    wanted = list(sys.argv[1:] if arguments is None else arguments)
    known = {proof.name: proof for proof in proofs()}
    if unknown := [name for name in wanted if name not in known]:
        print(f"there is no proof {unknown[0]!r}: the names are {', '.join(known)}.", file=sys.stderr)
        return 2
    status = 0
    for name in wanted or known:
        proved = known[name].proved()
        status |= not proved
        print(f"{'proved' if proved else 'NOT PROVED'}  {name}: {known[name].words}")
    return status


if __name__ == "__main__":
    raise SystemExit(main())
