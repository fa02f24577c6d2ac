"""What the generated formulas call: shapes, contractions and square roots over any number type.

A number type takes part as one of

* a NumPy array of float64, float32 or longdouble;
* a NumPy array of objects (mpmath, Arb, ...) with + - * /, and `.sqrt()` or mpmath's `.context`;
* an array class of its own, with `.shape`, `.ndim`, `.transpose(axes)`, `[...]` with None and slices,
  `.sum(axis=...)`, `+ - * /` with its like and with ints on either side, unary minus, `**` with a
  positive int, `.sqrt()` and, for cells, `.tanh()` and `.step()`; for blocks `.exp()`, `.normal_cdf()` and
  `.normal_pdf()` too.

The file must not know layer normalisation, and never converts one number type into another.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class ShapeError(ValueError):
    """An argument of a formula does not have the shape that the formula is stated for."""


def shape_of(value: Any) -> tuple[int, ...]:
    """The shape of an array of any class; a number has shape ()."""
    return tuple(getattr(value, "shape", ()))


def sizes(divisors: str, /, **arguments: tuple[Any, ...]) -> tuple[int, ...]:
    """Check that arguments agree in shape, and return the extents of the indices in `divisors`.

    Each argument is (value, indices) or (value, indices, other indices that are allowed too): with
    `x=(x, "bi"), eps=(eps, "b", "")`, x has shape (b, i) and eps has shape (b,) or is a number. A
    formula divides by the extents it asks for, hence they must not be zero.

    Raises ShapeError.
    """
    extents: dict[str, int] = {}
    for name, (value, *allowed) in arguments.items():
        shape = shape_of(value)
        fitting = [spec for spec in allowed if len(spec) == len(shape)]
        if not fitting or any(
            extents.setdefault(letter, size) != size for letter, size in zip(fitting[0], shape, strict=True)
        ):
            wanted = " or ".join(
                f"({', '.join(f'{c}={extents[c]}' if c in extents else c for c in spec)})" for spec in allowed
            )
            raise ShapeError(f"{name} has shape {shape}, expected {wanted}")
    for letter in divisors:
        if extents[letter] == 0:
            raise ShapeError(f"index {letter} is empty: the formula divides by its extent")
    return tuple(extents[letter] for letter in divisors)


def contract(spec: str, /, *operands: Any) -> Any:
    """Multiply the operands and sum over the indices that the result lacks: `"bi,bi->b"`.

    Plain float64 arrays go to `numpy.einsum`. Every other number type is transposed, multiplied by
    broadcasting and summed, because einsum knows only built-in types (and crashes on some others).
    """
    inputs, result = spec.split("->")
    specs = inputs.split(",")
    if all(type(operand) is np.ndarray and operand.dtype == np.float64 for operand in operands):
        return np.einsum(spec, *operands)
    order = result + "".join(sorted(set("".join(specs)) - set(result)))
    product: Any = None
    for operand, letters in zip(operands, specs, strict=True):
        present = [letter for letter in order if letter in letters]
        axes = tuple(letters.index(letter) for letter in present)
        aligned = operand if axes == tuple(range(len(axes))) else operand.transpose(axes)
        if len(present) < len(order):
            aligned = aligned[tuple(slice(None) if letter in letters else None for letter in order)]
        product = aligned if product is None else product * aligned
    over = tuple(range(len(result), len(order)))
    if not over:
        return product
    # All at once: a bound that counts roundings must see one sum of all its terms, whose order is free.
    return product.sum(axis=over if len(over) > 1 else over[0])


def _element_sqrt(value: Any) -> Any:
    if hasattr(value, "sqrt"):
        return value.sqrt()
    if hasattr(value, "context"):  # mpmath: the precision belongs to the context, not to the number
        return value.context.sqrt(value)
    if isinstance(value, float):
        return math.sqrt(value)
    # An int or a Fraction has no square root of its own type: rounding to float64 would go unseen.
    raise TypeError(f"no square root for {type(value).__name__}")


_object_sqrt = np.frompyfunc(_element_sqrt, 1, 1)


def sqrt(value: Any) -> Any:
    """The square root, element by element, in the number type of `value`.

    Raises TypeError for a type that has no square root of its own, such as int or Fraction.
    """
    if isinstance(value, np.ndarray | np.generic):
        return _object_sqrt(value) if value.dtype == object else np.sqrt(value)
    return _element_sqrt(value)


def _element_tanh(value: Any) -> Any:
    if hasattr(value, "tanh"):
        return value.tanh()
    if hasattr(value, "context"):
        return value.context.tanh(value)
    if isinstance(value, float):
        return math.tanh(value)
    raise TypeError(f"no hyperbolic tangent for {type(value).__name__}")


_object_tanh = np.frompyfunc(_element_tanh, 1, 1)


def tanh(value: Any) -> Any:
    """The hyperbolic tangent, element by element, in the number type of `value`.

    Raises TypeError for a type that has none of its own, such as int or Fraction.
    """
    if isinstance(value, np.ndarray | np.generic):
        return _object_tanh(value) if value.dtype == object else np.tanh(value)
    return _element_tanh(value)


def _element_exp(value: Any) -> Any:
    if callable(getattr(value, "exp", None)):  # of a number of mpmath it is the exponent
        return value.exp()
    if hasattr(value, "context"):
        return value.context.exp(value)
    if isinstance(value, float):
        return float(np.exp(value))  # infinite where math.exp would raise
    raise TypeError(f"no exponential function for {type(value).__name__}")


_object_exp = np.frompyfunc(_element_exp, 1, 1)


def exp(value: Any) -> Any:
    """e to the power of `value`, element by element, in the number type of `value`.

    Raises TypeError for a type that has none of its own, such as int or Fraction.
    """
    if isinstance(value, np.ndarray | np.generic):
        return _object_exp(value) if value.dtype == object else np.exp(value)
    return _element_exp(value)


def _element_normal_cdf(value: Any) -> Any:
    if hasattr(value, "normal_cdf"):
        return value.normal_cdf()
    if hasattr(value, "context"):
        return value.context.ncdf(value)
    if hasattr(value, "erfc"):
        return (-value / (value * 0 + 2).sqrt()).erfc() / 2
    if isinstance(value, float):
        return math.erfc(-value / math.sqrt(2)) / 2
    raise TypeError(f"no normal distribution for {type(value).__name__}")


def _element_normal_pdf(value: Any) -> Any:
    if hasattr(value, "normal_pdf"):
        return value.normal_pdf()
    if hasattr(value, "context"):
        return value.context.npdf(value)
    if hasattr(value, "pi"):
        return (-(value**2) / 2).exp() / (2 * type(value).pi()).sqrt()
    if isinstance(value, float):
        return math.exp(-value * value / 2) / math.sqrt(2 * math.pi)
    raise TypeError(f"no normal density for {type(value).__name__}")


_object_cdf = np.frompyfunc(_element_normal_cdf, 1, 1)
_object_pdf = np.frompyfunc(_element_normal_pdf, 1, 1)
_float_cdf = np.vectorize(_element_normal_cdf, otypes=[np.float64])
_float_pdf = np.vectorize(_element_normal_pdf, otypes=[np.float64])


def _pointwise(value: Any, of_objects: Any, of_floats: Any, of_one: Any) -> Any:
    if isinstance(value, np.ndarray | np.generic):
        if value.dtype == object:
            return of_objects(value)
        if value.dtype.itemsize > 8:  # the C library's erfc is one of float64
            raise TypeError(f"no normal distribution for {value.dtype}")
        return of_floats(value).astype(value.dtype)
    return of_one(value)


def normal_cdf(value: Any) -> Any:
    """The distribution function of the standard normal, erfc(-v / sqrt(2))/2, in the number type of `value`.

    In float64 its relative error is about (2 + v^2) 2^-53 where v is negative. Raises TypeError as `exp` does.
    """
    return _pointwise(value, _object_cdf, _float_cdf, _element_normal_cdf)


def normal_pdf(value: Any) -> Any:
    """The density of the standard normal, exp(-v^2/2)/sqrt(2 pi), in the number type of `value`.

    In float64 its relative error is about (3 + v^2) 2^-53. Raises TypeError as `exp` does.
    """
    return _pointwise(value, _object_pdf, _float_pdf, _element_normal_pdf)


def _element_step(value: Any) -> Any:
    return value * 0 + int(bool(value > 0))


_object_step = np.frompyfunc(_element_step, 1, 1)


def step(value: Any) -> Any:
    """1 where `value` is positive and 0 elsewhere, in the number type of `value`."""
    if isinstance(value, np.ndarray):
        return _object_step(value) if value.dtype == object else (value > 0).astype(value.dtype)
    return value.step()


def zeros_like(value: Any) -> Any:
    """Zeros of the shape and number type of `value`, which must be finite unless it is a float array."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return np.zeros_like(value)
    return value * 0
