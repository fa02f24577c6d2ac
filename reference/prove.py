"""Proofs about layer normalisation that hold for every H: the size stays a symbol.

Two expressions are compared in a normal form: every named value is replaced by its definition, sums
are distributed over their terms, what does not depend on the summed index moves out (and becomes the
extent where nothing is left), and bound indices get canonical names. The one value kept as a letter
is r, of which no proof uses more than r**2 * (var + eps) = 1.

Equal normal forms prove equality. Different ones prove nothing, so that a claim is refuted only by
an exact rational counterexample. `python reference/prove.py` prints every theorem and its verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import count, product

from normalizers import AFFINE, H, b, i, layer_norm, layer_norm_vjp_closed, mean, tensor
from program import Let, Program, jvp, vjp
from sympy import Add, Expr, Idx, Indexed, Integer, KroneckerDelta, Mul, Rational, Sum, Symbol, expand
from tensors import extent, name_of

j, k = Idx("j", H), Idx("k", H)


def inline(p: Program, value: Expr, given: Sequence[Let] = (), keep: frozenset[str] = frozenset({"r"})) -> Expr:
    """`value`, with every name but `keep` replaced by its definition in `p`, or among the `given`."""
    definitions = {name_of(let.target): let for let in (*p.body, *given) if isinstance(let, Let)}
    number = count()

    def walk(value: Expr) -> Expr:
        if isinstance(value, Indexed):
            if name_of(value) in keep or name_of(value) not in definitions:
                return value
            let = definitions[name_of(value)]
            home = let.target.indices
            # Bound indices first: an index that is moved in must not be captured.
            return walk(fresh(let.value).xreplace(dict(zip(home, value.indices, strict=True))))
        if isinstance(value, Sum):
            value = fresh(value)
            return Sum(walk(value.function), *(limit[0] for limit in value.limits))
        if not value.args or isinstance(value, Idx | KroneckerDelta):
            return value
        return value.func(*map(walk, value.args))

    def fresh(value: Expr) -> Expr:
        for inner in value.atoms(Sum):
            new = {limit[0]: Idx(f"~{next(number)}", extent(limit[0])) for limit in inner.limits}
            value = value.xreplace({inner: Sum(inner.function.xreplace(new), *new.values())})
        return value

    return walk(value)


def depth(value: Expr) -> int:
    """How many canonical sums are nested in `value`."""
    return max((1 + depth(inner.function) for inner in value.atoms(Sum)), default=0)


def spread(value: Expr) -> Expr:
    """The normal form: a sum of products, with each sum over one index and one product."""
    if isinstance(value, Sum):
        body = spread(value.function)
        for index, *_ in value.limits:
            body = Add(*(summed(term, index) for term in Add.make_args(body)))
        return body
    if not value.args or isinstance(value, Indexed | Idx | KroneckerDelta):
        return value
    return expand(value.func(*map(spread, value.args)))


def summed(term: Expr, index: Idx) -> Expr:
    """The sum of one product over one index."""
    inside = [part for part in Mul.make_args(term) if part.has(index)]
    outside = Mul(*(part for part in Mul.make_args(term) if not part.has(index)))
    if not inside:
        return outside * extent(index)
    # The name says how deep the sum is: equal sums get equal names, and an inner one is never captured.
    name = Idx(f"#{1 + depth(Mul(*inside))}", extent(index))
    return outside * Sum(Mul(*inside).xreplace({index: name}), name)


def sifted(value: Expr) -> Expr:
    """A normal form in which a product with delta_ij names its other factors at i, never at j."""
    found = []
    for term in Add.make_args(value):
        for delta in sorted(term.atoms(KroneckerDelta), key=str):
            kept, dropped = delta.args
            term = delta * (term / delta).xreplace({dropped: kept})
        found.append(term)
    return Add(*found)


def coefficient(value: Expr, of: Indexed) -> Expr:
    """The coefficient of one entry of a tensor in an expression that is linear in that tensor."""
    found = []
    for term in Add.make_args(spread(value)):
        for part in Mul.make_args(term):
            inner = part.function if isinstance(part, Sum) else part
            at = [place for place in inner.atoms(Indexed) if name_of(place) == name_of(of)]
            if not at:
                continue
            rest = term / part * (inner / at[0])
            pairs = list(zip(at[0].indices, of.indices, strict=True))
            if isinstance(part, Sum):
                found.append(rest.xreplace(dict(pairs)))
            else:
                found.append(rest * Mul(*(KroneckerDelta(*pair) for pair in pairs)))
    return Add(*found)


@dataclass(frozen=True)
class Theorem:
    """`left = right` in the names of program `p`, for every H, under the assumptions `given`."""

    name: str
    words: str
    p: Program
    left: Expr
    right: Expr
    given: tuple[Let, ...] = ()
    shown: str = ""  # LaTeX of the left side where it is more than an expression

    def difference(self) -> Expr:
        """The normal form of left - right: 0 if the theorem is proved."""
        return sifted(spread(inline(self.p, self.left - self.right, self.given)))

    def proved(self) -> bool:
        """Whether the two sides have one normal form."""
        return self.difference() == 0


P, FORWARD, REVERSE = layer_norm(), jvp(layer_norm()), vjp(layer_norm())
x, gamma, y_bar, xhat, d = (REVERSE.homes[name] for name in ("x", "gamma", "y_bar", "xhat", "d"))
r, var, eps, x_bar = (REVERSE.homes[name] for name in ("r", "var", "eps", "x_bar"))


def at(value: Expr, new: Idx) -> Expr:
    """`value` at another index in the place of i."""
    return value.xreplace({i: new})


def average(value: Expr) -> Expr:
    """The mean over the row, with k as the bound index so that i stays free."""
    return mean(at(value, k), (k,))


SEED = gamma * r * (y_bar - average(y_bar) - xhat * average(xhat * y_bar))
"""A formula in circulation that takes gamma out of the means: right only for a uniform gamma."""


def theorems() -> list[Theorem]:
    """Everything that is proved here; `refuted` holds what is not."""
    g = gamma * y_bar
    x_dot, gamma_dot, beta_dot = (FORWARD.homes[f"{name}_dot"] for name in ("x", "gamma", "beta"))
    delta, entry = KroneckerDelta(i, j), r"\partial y_{bi} / \partial x_{bj}"
    jacobian = gamma * r * (delta - 1 / H - xhat * at(xhat, j) / H)
    by_reverse = coefficient(inline(REVERSE, at(x_bar, j)), y_bar)
    by_forward = coefficient(inline(FORWARD, FORWARD.outputs[0]), tensor("x_dot", b, j))
    return [
        Theorem("closed-form", "The compact reverse mode.", REVERSE, x_bar,
                r * (g - average(g) - xhat * average(g * xhat))),
        Theorem("closed-jvp", "The compact forward mode.", FORWARD, FORWARD.outputs[0],
                gamma * r * (x_dot - average(x_dot) - xhat * average(xhat * x_dot))
                + gamma_dot * xhat + beta_dot),
        Theorem("gradient-sum", "A gradient has no component along a common shift.", REVERSE,
                Sum(x_bar, i), Integer(0)),
        Theorem("euler-defect", "The component along the input itself is what eps leaves of it.", REVERSE,
                Sum(x * x_bar, i), eps * r**3 * Sum(g * d, i), (Let(eps, r**-2 - var),)),
        Theorem("jacobian", "The entries of the Jacobian, from the reverse mode.", REVERSE,
                by_reverse, jacobian, shown=entry),
        Theorem("jacobian-forward", "The same entries from the forward mode.", FORWARD,
                by_forward, jacobian, shown=entry),
        Theorem("jacobian-off-diagonal", "Off the diagonal they are not zero: units stay coupled.", REVERSE,
                by_reverse.subs(delta, 0), -gamma * r * (1 + xhat * at(xhat, j)) / H,
                shown=entry + r" \;(i \ne j)"),
        Theorem("gamma-outside-uniform", "Gamma may leave the means if it is uniform.", REVERSE,
                x_bar, SEED, (Let(gamma, Symbol("c")),)),
        Theorem("gamma-outside-defect", "What the formula with gamma outside the means is wrong by.",
                REVERSE, x_bar - SEED,
                r * mean((gamma - at(gamma, j)) * at(y_bar, j) * (1 + xhat * at(xhat, j)), (j,))),
    ]  # fmt: skip


def closed_forms() -> list[Theorem]:
    """Every output of every variant of `layer_norm_vjp_closed` against the derived reverse mode."""
    found = []
    for suffix in AFFINE:
        derived, closed = vjp(layer_norm(suffix)), layer_norm_vjp_closed(suffix)
        for left, right in zip(derived.outputs, closed.outputs, strict=True):
            name = f"{closed.name}-{name_of(right)}"
            found.append(Theorem(name, "The function that is emitted.", derived, left, inline(closed, right)))
    return found


def evaluate(p: Program, value: Expr, data: Mapping[str, Callable[..., object]], size: int) -> Rational:
    """The exact value of `value` in row 0 at index i = 0, with H = `size` and entries from `data`."""

    def walk(value: Expr) -> Expr:
        if isinstance(value, Indexed):
            return Rational(str(data[name_of(value)](*map(int, value.indices))))
        if isinstance(value, Sum):
            names = [limit[0] for limit in value.limits]
            spots = product(range(size), repeat=len(names))
            return Add(*(walk(value.function.xreplace(dict(zip(names, spot, strict=True)))) for spot in
                         ([Integer(n) for n in spot] for spot in spots)))  # fmt: skip
        return value.func(*map(walk, value.args)) if value.args else value

    return walk(inline(p, value, keep=frozenset()).xreplace({b: Integer(0), i: Integer(0), H: Integer(size)}))


def refuted() -> Fraction:
    """By how much `SEED` is wrong at x = (-1, -1, 2), eps = 2, gamma = (1, 2, 3), y_bar = (0, 1, 0), i = 0.

    Not zero, hence the formula is false for a general gamma: here var = 2, and r = 1/2 is rational.
    """
    data = {
        "x": lambda b, i: (-1, -1, 2)[i],
        "gamma": lambda i: (1, 2, 3)[i],
        "y_bar": lambda b, i: (0, 1, 0)[i],
        "eps": lambda b: 2,
    }
    value = evaluate(REVERSE, x_bar - SEED, data, 3)
    return Fraction(int(value.p), int(value.q))


if __name__ == "__main__":
    for theorem in [*theorems(), *closed_forms()]:
        print(f"{'proved' if theorem.proved() else 'NOT PROVED'}  {theorem.name}: {theorem.words}")
    print(f"refuted  gamma-outside, for a general gamma: off by {refuted()} at the counterexample")
