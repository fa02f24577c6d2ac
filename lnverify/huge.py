"""Huge: batches whose elements cross 2^31 and 2^32, where 32-bit indices end; asked for by --huge.

A few rows are repeated by whoever answers (Request.repeat), so that nothing large travels. What they take is known
before: x, y, and four arrays of float32 in between, for whoever composes the operation; 40 GiB for 2^31 elements of 16
bits. Where that does not fit, the case is listed as not examined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from lnverify.case import Case
from lnverify.floats import FORMATS
from lnverify.protocol import BETWEEN
from lnverify.recipes import build
from lnverify.support import AFFINE, Support

COLUMNS = 4096
PERIOD = 7  # a prime: no power of two brings a wrong index back to an equal row
MANY = 70001  # rows of the case that every run looks at, in 8 columns: more than 65535
MORE = 1_100_003  # rows of 2 columns: more than 65535 blocks of 4 or of 16 rows
BEYOND = (1 << 31, 1 << 32)


def cases(support: Support, huge: bool) -> Iterator[Case]:
    """Two cases beyond the largest grid of blocks; with `huge` also those beyond 2^31 and 2^32 elements, these without
    gradients, which would need twice the memory."""
    yield _case(support, 8, MANY)
    yield _case(support, 2, MORE)
    if huge:
        for elements in BEYOND:
            yield replace(_case(support, COLUMNS, elements // COLUMNS + 3), requires_grad=())


def memory(case: Case) -> int:
    """Bytes that a case may take."""
    return case.repeat * case.n * (2 * FORMATS[case.dtype].bits().itemsize + BETWEEN)


def _case(support: Support, n: int, rows: int) -> Case:
    weight, bias = AFFINE[support.affine[0]]
    case = build({
        "dtype": support.dtype, "batch": [PERIOD], "shape": [n], "regime": "normal", "mean": 0.5, "scale": 0,
        "eps": support.eps[0], "seed": 19, "weight": weight, "bias": bias, "dy": "integers", "device": support.device,
    })  # fmt: skip
    return replace(case, repeat=rows)
