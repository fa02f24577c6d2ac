"""Numbers of the ledger: arrays of balls (python-flint), each of which encloses the exact value.

A ball is a midpoint and a radius; every operation rounds outwards, so that the exact result of the formula on the
exact input lies inside (Johansson, "Arb: efficient arbitrary-precision midpoint-radius interval arithmetic", IEEE
Trans. Comput. 66, 2017). What is decided on balls is decided for the exact values: no error is estimated by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from typing import Any

import flint
import numpy as np
import numpy.typing as npt

from lnverify.recipes import integers

Array = np.ndarray[Any, Any]
BITS = 256


@contextmanager
def precision(bits: int = BITS) -> Iterator[None]:
    """Compute in so many bits; the precision of everybody else is put back."""
    before = flint.ctx.prec
    flint.ctx.prec = bits
    try:
        yield
    finally:
        flint.ctx.prec = before


def ball(value: Any) -> Any:
    """One number as a ball: exact for an int, a float or a power of two, an enclosure for another Fraction."""
    if isinstance(value, Fraction):
        return flint.arb(flint.fmpq(value.numerator, value.denominator))
    return value if isinstance(value, flint.arb) else flint.arb(value)


def balls(values: npt.ArrayLike) -> Array:
    """An array of balls from numbers, nested lists, or arrays."""
    plain = np.asarray(values, dtype=object)
    return np.asarray(np.frompyfunc(lambda v: ball(v.item() if isinstance(v, np.generic) else v), 1, 1)(plain), object)


def drawn(seed: int, *shape: int, low: int = -9, high: int = 9) -> Array:
    """Whole numbers between low and high, the same on every machine."""
    return balls(integers(seed, shape, low, high).astype(int))


def middle(value: Any) -> float:
    """The midpoint of a ball as a float, for people to read and never to decide."""
    return float(ball(value).mid())


def _each(name: str) -> Any:
    function = np.frompyfunc(lambda value: getattr(value, name)(), 1, 1)
    return lambda values: np.asarray(function(values), dtype=object)


tanh, exp, log, sqrt = _each("tanh"), _each("exp"), _each("log"), _each("sqrt")


def sigmoid(values: Array) -> Array:
    """1 / (1 + exp(-v))."""
    return 1 / (1 + exp(-values))


def norm(values: Array) -> Any:
    """The Euclidean norm of all entries."""
    return sum(v * v for v in values.flat).sqrt()
