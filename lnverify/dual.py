"""Dual numbers: a value with its derivative along one direction, over any number type of the formulas.

Every argument of a formula is made dual, constants too: the number types below do not know this one.

A generated formula that is evaluated on duals gives one derivative more than it was derived for: the nested jvp from
the jvp, the third derivative from the double backward. Source: Griewank, Walther, Evaluating Derivatives (2008), 3.1.
"""

from __future__ import annotations

from typing import Any

from lnverify.formulas.runtime import sqrt, zeros_like


class Dual:
    """value + e tangent, e^2 = 0; both of one number type and one shape."""

    __slots__ = ("tangent", "value")
    __array_ufunc__ = None

    def __init__(self, value: Any, tangent: Any) -> None:
        """An array and its derivative."""
        self.value, self.tangent = value, tangent

    @classmethod
    def constant(cls, value: Any) -> Dual:
        """A number that does not change along the direction."""
        return cls(value, zeros_like(value))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape."""
        return tuple(self.value.shape)

    @property
    def ndim(self) -> int:
        """Number of axes."""
        return len(self.shape)

    def __getitem__(self, key: Any) -> Dual:
        return Dual(self.value[key], self.tangent[key])

    def transpose(self, *axes: Any) -> Dual:
        """As numpy.ndarray.transpose."""
        return Dual(self.value.transpose(*axes), self.tangent.transpose(*axes))

    def sum(self, axis: int) -> Dual:
        """Sum over one axis."""
        return Dual(self.value.sum(axis=axis), self.tangent.sum(axis=axis))

    def sqrt(self) -> Dual:
        """sqrt(v), t/(2 sqrt(v))."""
        root = sqrt(self.value)
        return Dual(root, self.tangent / (root * 2))

    def __neg__(self) -> Dual:
        return Dual(-self.value, -self.tangent)

    def __add__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value + other.value, self.tangent + other.tangent)
        value = self.value + other
        return Dual(value, self.tangent + value * 0)  # in the shape of the sum

    __radd__ = __add__

    def __sub__(self, other: Any) -> Dual:
        return self + (-other)

    def __rsub__(self, other: Any) -> Dual:
        return (-self) + other

    def __mul__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            return Dual(self.value * other.value, self.tangent * other.value + self.value * other.tangent)
        return Dual(self.value * other, self.tangent * other)

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Dual:
        if isinstance(other, Dual):
            quotient = self.value / other.value
            return Dual(quotient, (self.tangent - quotient * other.tangent) / other.value)
        return Dual(self.value / other, self.tangent / other)

    def __rtruediv__(self, other: Any) -> Dual:
        quotient = other / self.value
        return Dual(quotient, -(quotient * self.tangent) / self.value)

    def __pow__(self, power: int) -> Dual:
        if power == 1:
            return self
        return Dual(self.value**power, self.value ** (power - 1) * self.tangent * power)
