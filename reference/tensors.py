"""Places, indices and sums: the small vocabulary in which programs are written.

A statement's right-hand side is a sum of terms, each one `Sum` of a pointwise expression in `Indexed`
tensors. `terms` is the only reader of that form and `total` its only writer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sympy import Add, Expr, Function, Idx, Indexed, IndexedBase, Integer, Mul, Sum


class ProgramError(ValueError):
    """A program breaks one of the rules above; the message names the statement."""


class step(Function):  # noqa: N801 - a function in formulas, named as SymPy names its own
    """1 where its argument is positive, else 0; its derivative is 0 wherever it has one."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative."""
        return Integer(0)


class exp(Function):  # noqa: N801
    """The exponential function; SymPy's own is a power of E, which has no printed form in the number types."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative."""
        return exp(self.args[0])


class normal_cdf(Function):  # noqa: N801
    """The distribution function of the standard normal, (1 + erf(v / sqrt(2)))/2; its root of 2 stays inside."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative."""
        return normal_pdf(self.args[0])


class normal_pdf(Function):  # noqa: N801
    """The density of the standard normal, exp(-v**2/2)/sqrt(2 pi)."""

    def fdiff(self, argindex: int = 1) -> Expr:
        """The derivative."""
        return -self.args[0] * normal_pdf(self.args[0])


POINTWISE = (exp, normal_cdf, normal_pdf, step)
"""Functions of one number that are printed by their names."""


def name_of(tensor: Indexed) -> str:
    """The name of the tensor that stands at a place: `x` for x[b, i]."""
    return str(tensor.base.label)


def renamed(tensor: Indexed, name: str) -> Indexed:
    """The tensor called `name`, at the indices of `tensor`."""
    return IndexedBase(name)[tensor.indices]


def extent(index: Idx) -> Expr:
    """How many values an index takes."""
    return index.upper - index.lower + 1


def places(value: Expr) -> list[Indexed]:
    """Every place at which a tensor stands in `value`, in an order that does not depend on hashes."""
    return sorted(value.atoms(Indexed), key=str)


def indices(value: Expr) -> set[Idx]:
    """Every index that occurs at some place of `value`."""
    return {index for place in value.atoms(Indexed) for index in place.indices if isinstance(index, Idx)}


def total(body: Expr, over: Iterable[Idx]) -> Expr:
    """The sum of `body` over some indices; an index that `body` lacks contributes its extent."""
    present = indices(body)
    bound = sorted(set(over), key=str)
    factor = Mul(*(extent(index) for index in bound if index not in present))
    bound = [index for index in bound if index in present]
    return factor * (Sum(body, *bound) if bound else body)


def terms(value: Expr) -> Iterator[tuple[Expr, tuple[Idx, ...]]]:
    """The (body, summed indices) of each term of a statement's right-hand side."""
    for term in Add.make_args(value):
        sums = [factor for factor in Mul.make_args(term) if isinstance(factor, Sum)]
        if not sums:
            body, over = term, ()
        elif len(sums) == 1:
            outer = Mul(*(factor for factor in Mul.make_args(term) if factor is not sums[0]))
            over = tuple(limit[0] for limit in sums[0].limits)
            if indices(outer) & set(over):
                raise ProgramError(f"an index is free and bound in {term}: name the sum first")
            body = outer * sums[0].function
        else:
            raise ProgramError(f"a product of sums in {term}: name them first")
        if body.has(Sum):
            raise ProgramError(f"a sum inside an expression in {term}: name it first")
        yield body, over
