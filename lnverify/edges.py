"""Edges: sizes at which kernels choose another path, each pair of N and rows screened for the price of a few rows.

A case of this file repeats a few different rows, so that the exact result of these is the exact result of all. A
screened case whose every row is right by the bounds of LN101 and LN201, and whose sums over rows are right by those of
LN202 and LN203, is done; any other is handed to the laws, which decide. Screening alone accuses nobody.
Source of the sizes: block sizes of published kernels, grids of 65535, and the reports NVIDIA/apex#411,
facebookresearch/xformers#785, tenstorrent/tt-metal#14222, apache/mxnet#14870.
"""

from __future__ import annotations

from collections.abc import Container, Iterator

import numpy as np

from lnverify.bounds import roundings
from lnverify.case import Case
from lnverify.evaluation import Evaluation, Evaluator
from lnverify.floats import FORMATS, FloatArray, distance
from lnverify.profiles import Profile
from lnverify.recipes import build
from lnverify.support import AFFINE, Support

COLUMNS = (
    1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 511, 512, 513, 767, 768,
    769, 1023, 1024, 1025, 2047, 2048, 2049, 4095, 4096, 4097, 8191, 8192, 8193, 16385, 32769, 65535, 65536, 65537,
    # widths of published models that are no powers of two
    24, 40, 48, 80, 96, 160, 192, 320, 384, 640, 896, 1152, 1280, 1536, 1600, 1920, 2304, 2560, 2816, 3072, 3200, 3584,
    3840, 4544, 4608, 5120, 5632, 6144, 6656, 7168, 9216, 10240, 11008, 12288, 13824, 14336, 18432,
)  # fmt: skip
ROWS = (
    0, 1, 2, 3, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 1023, 1024, 1025, 4097, 8193, 65535, 65536, 65537,
    65600,
)  # fmt: skip
LARGEST = 1 << 22  # elements of a case
SMALL = 1 << 16
FEW_ROWS = (1, 2, 3)
SEVERAL_ROWS = range(4, 18)
LARGE = ((513, 1025), (1025, 513), (4097, 129))  # more than 2^19 elements, where sums over rows may go in two stages
LONG = ((262145, 1), (524309, 1))  # rows longer than what one pass of several blocks takes
DEEP = ((1, 65539), (65539, 1))  # batches of two dimensions, one of them beyond a grid of 65535
FEW_COLUMNS = 4
PAIRED = 45  # of COLUMNS: the sizes around powers of two
NARROW = 8


def sizes(profile: Profile) -> Iterator[tuple[int, int]]:
    """Pairs (N, rows), small cases first: every N with few rows and every number of rows with N = 8; from profile ci
    on, all pairs of at most LARGEST elements."""
    pairs = {(n, rows) for n in COLUMNS for rows in FEW_ROWS} | {(NARROW, rows) for rows in (*ROWS, *SEVERAL_ROWS)}
    pairs |= {*LARGE, *LONG}
    if profile.cap < SMALL:  # the selftest's, for two hundred subjects
        pairs = {(n, rows) for n, rows in pairs if n * rows <= profile.cap}
    if profile.effort > 1:  # every pair of the sizes around powers of two; the widths with few rows only
        pairs |= {(n, rows) for n in COLUMNS[:PAIRED] for rows in ROWS if n * rows <= LARGEST}
    yield from sorted(pairs, key=lambda pair: (pair[0] * pair[1], pair))


def kinds(n: int) -> int:
    """How many different rows a case has: a prime, so that no power of two divides the period."""
    return 7 if n <= 4097 else 3 if n <= 65537 else 1


def deep(support: Support, profile: Profile, threads: int | None = None) -> Iterator[Case]:
    """Cases whose many rows lie along one of two dimensions of the batch."""
    if profile.cap >= SMALL and 3 in support.ranks:
        for batch in DEEP:
            yield edge(support, FEW_COLUMNS, max(batch), threads, batch)


def edge(support: Support, n: int, rows: int, threads: int | None = None, batch: tuple[int, ...] | None = None) -> Case:
    """The case of one pair; its rows in a batch of that shape, (rows,) by default."""
    weight, bias = AFFINE[support.affine[0]]
    return build({
        "dtype": support.dtype, "batch": list(batch or (rows,)), "shape": [n], "regime": "normal", "mean": 0.5,
        "scale": 0, "eps": support.eps[0], "seed": 17, "weight": weight, "bias": bias, "dy": "integers",
        "tile": kinds(n), "device": support.device, "threads": threads,
    })  # fmt: skip


class Screen:
    """Screens the cases of one examination; the exact results of an N serve every number of rows."""

    def __init__(self, support: Support, evaluator: Evaluator) -> None:
        """Nothing is evaluated yet."""
        self.support, self.evaluator = support, evaluator
        self._bases: dict[int, Evaluation] = {}

    def failing(self, case: Case, known: Container[str] = ()) -> str:
        """The first output, but those in `known`, that is not right as far as the screen can see; '' for none.

        'answer' where there is no answer, or an argument was changed.
        """
        evaluation = Evaluation(case, self.evaluator)  # not kept: these are large, and none comes twice
        response = evaluation.response
        if response.refusal is not None or response.changed:
            return "answer"
        expected = self._base(case.n)
        points = FORMATS[case.dtype].precision <= 11
        for output in ("y", *(g for g in case.gradients() if g in self.support.outputs)):
            got = response.arrays.get(output)
            like = case.arrays["x"] if output in ("y", "dx") else case.arrays[output[1:]]
            if output in known:
                continue
            if got is None or got.shape != like.shape or got.dtype != like.dtype:
                return output
            if case.rows and not (
                self._rows(expected, output, got, case, points)
                if output in ("y", "dx")
                else self._sums(expected, output, got, case, points)
            ):
                return output
        return ""

    def _base(self, n: int) -> Evaluation:
        """The different rows of an N; the latest one only is kept, for they come sorted by size."""
        if n not in self._bases:
            case = edge(self.support, n, kinds(n))
            self._bases = dict(list(self._bases.items())[-64:])
            self._bases[n] = Evaluation(case, self.evaluator)
        return self._bases[n]

    @staticmethod
    def _rows(base: Evaluation, output: str, got: FloatArray, case: Case, points: bool) -> bool:
        """Every row within the bound of its kind; rows with the bits of the first one of their kind are as right."""
        period = min(kinds(case.n), case.rows)
        kind = np.arange(case.rows) % period
        bits = got.bits.reshape(case.rows, case.n)
        odd = np.flatnonzero((bits != bits[:period][kind]).any(axis=1))
        chosen = np.concatenate([np.arange(period), odd])
        values = FloatArray(got.dtype, np.ascontiguousarray(bits[chosen])).values
        exact, bound = base.pair(output), base.bound(output, "det", points)[kind[chosen]]
        apart = distance(values, exact.hi[kind[chosen]], exact.lo[kind[chosen]], FORMATS[got.dtype])
        return bool((apart <= bound).all())

    @staticmethod
    def _sums(base: Evaluation, output: str, got: FloatArray, case: Case, points: bool) -> bool:
        """Sums over rows within the bounds of Bounds.dweight and Bounds.dbias, each kind counted as often as it comes.

        (K + 3) u64 sum|terms| more for our own sum of K kinds in float64.
        """
        period = min(kinds(case.n), case.rows)
        times = np.bincount(np.arange(case.rows) % period, minlength=period).astype(np.float64)[:, None]
        dy = base.case.matrix("dy")[:period]
        bounds, compute = base.yardstick.bounds("det", points), base.precision.compute
        terms = dy * base.exact.statistics.xhat[:period] if output == "dweight" else dy
        carried = times * np.abs(dy) * bounds.backward_xhat_error[:period] if output == "dweight" else np.zeros_like(dy)
        total, counts = (times * np.abs(terms)).sum(axis=0), (times * (dy != 0)).sum(axis=0)
        h = roundings(counts, "det") + (2 if output == "dweight" else 0)
        bound = h * compute.u * total + carried.sum(axis=0) * (1 + h * compute.u)
        bound += compute.tiny * (1 + 2 * counts) + FORMATS[got.dtype].tiny
        bound += (compute.u + (period + 3) * 2.0**-53) * total
        if points:
            bound += 2 * FORMATS[case.dtype].u * total
        apart = distance(got.values.ravel(), (times * terms).sum(axis=0), 0.0, FORMATS[got.dtype])
        return bool((apart <= bound).all())
