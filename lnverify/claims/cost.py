"""Cost: how many operations the formulas take, counted by running them. Nothing here is timed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np

from lnverify.claims.ledger import claim
from lnverify.claims.reading import Reading, at_most, exactly, refute
from lnverify.formulas import layer_norm as formulas


class Counted:
    """A number that is never computed: each operation on it is counted in `done`."""

    done = 0
    __array_ufunc__ = None

    def _one(self, *_others: Any) -> Counted:
        Counted.done += 1
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = sqrt = _one


def _numbers(*shape: int) -> Any:
    return np.full(shape, Counted(), dtype=object)


def _count(run: Callable[[], Any]) -> int:
    """Operations that `run` takes."""
    before = Counted.done
    run()
    return Counted.done - before


def layer_norm_operations(cases: int, units: int) -> int:
    """Operations of layer norm with gain and bias."""
    x, gamma, beta, eps = _numbers(cases, units), _numbers(units), _numbers(units), _numbers(cases)
    return _count(lambda: formulas.layer_norm(x, gamma, beta, eps))


def plain_operations(cases: int, units: int) -> int:
    """Operations of standardising `cases` rows of `units` entries; batch norm standardises the columns."""
    return _count(lambda: formulas.layer_norm_plain(_numbers(cases, units), _numbers(cases)))


def product_operations(out: int, units: int) -> int:
    """Operations of a matrix of shape (out, units) times a vector."""
    return _count(lambda: [sum((w * _numbers(units))[1:], w[0]) for w in _numbers(out, units)])


def share(hidden: int, normalizer: Callable[[int, int], int] = layer_norm_operations) -> Fraction:
    """Operations of layer norm on the 4 H gates of an LSTM over those of the recurrent product."""
    return Fraction(normalizer(1, 4 * hidden), product_operations(4 * hidden, hidden))


@claim(
    "B70",
    "Limits 4",
    "The O(H) cost of the statistics becomes noticeable for large H, from about 4096 on, at 5 to 10 %.",
    "false",
    "The reasoning runs the wrong way round: layer norm takes O(H) operations and the product before it O(H^2), so "
    "that its share falls like 1/H. (How long a small kernel takes on a GPU is another matter, and not measured here.)",
)
def falling_share(normalizer: Callable[[int, int], int] = layer_norm_operations) -> Iterator[Reading]:
    """Counted: 7 H + 3 for layer norm of H units, M (2 H - 1) for a product with M x H weights, M = 4 H for the gates.

    (56 H + 3)(2 H - 1) < (28 H + 3)(4 H - 1), hence the share at 2 H is less than half of that at H.
    """
    for units in (8, 32):
        yield exactly(f"operations of layer norm on {units} units, and 7 H + 3", normalizer(1, units), 7 * units + 3)
        product = product_operations(units, units)
        yield exactly(f"operations of a {units} x {units} product, and H (2 H - 1)", product, units * (2 * units - 1))
    yield refute("share of the operations at H = 2, smaller, and at H = 1", share(2, normalizer), share(1, normalizer))
    for hidden in (1, 2, 8, 16):
        half = share(hidden, normalizer) / 2
        yield at_most(f"share at H = {2 * hidden}, and half of that at {hidden}", share(2 * hidden, normalizer), half)
    hidden = 4096
    at_4096 = Fraction(7 * 4 * hidden + 3, 4 * hidden * (2 * hidden - 1))
    yield at_most("share at H = 4096, by the counts above, and 5 %", at_4096, Fraction(5, 100))


@claim(
    "B71",
    "Limits 4",
    "Batch norm amortises the cost of its statistics over the batch, layer norm does not.",
    "false",
    "Both take the same operations on each of the B H numbers. Only three operations per set of statistics are left, a "
    "share that falls like 1/B for batch norm, and like 1/H for layer norm.",
    proofs=("batch-norm",),
)
def equal_operations(normalizer: Callable[[int, int], int] = plain_operations) -> Iterator[Reading]:
    """Batch norm is the same program on the transpose, so that one count with B and H exchanged is both."""
    cases, units = 8, 16
    layer, batch = normalizer(cases, units), normalizer(units, cases)
    yield exactly("layer norm of 8 cases of 16 units, and 5 B H + 3 B", layer, 5 * cases * units + 3 * cases)
    yield exactly("batch norm of them, and 5 B H + 3 H", batch, 5 * cases * units + 3 * units)
    few, more = normalizer(1, 2), normalizer(2, 1)
    yield refute("operations of batch norm, not fewer but more, and of layer norm, 1 case of 2 units", more, few)
    yield at_most("operations of layer norm, and of batch norm, 1 case of 2 units", few, more)
    yield at_most("operations of layer norm, and of batch norm, 8 cases of 16 units", layer, batch)
