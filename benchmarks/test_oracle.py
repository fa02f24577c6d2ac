"""Cost of what is right and what is admissible, per element of x."""

from __future__ import annotations

from typing import Any

import pytest

from lnverify.bounds import Bounds, Precision
from lnverify.case import Case
from lnverify.oracle import Exact
from lnverify.recipes import build

SHAPES = [(8, 64), (32, 768), (64, 4096)]


def case(dtype: str, rows: int, n: int) -> Case:
    """An ordinary case with weight, bias and dy."""
    return build({
        "dtype": dtype, "batch": [rows], "shape": [n], "regime": "normal", "mean": 3.0, "scale": 0, "weight": "normal",
        "bias": "normal", "dy": "normal", "eps": 1e-5, "seed": 7,
    })  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), SHAPES)
def test_oracle(benchmark: Any, dtype: str, rows: int, n: int) -> None:
    given = case(dtype, rows, n)

    def exact() -> None:
        oracle = Exact(given)
        oracle.pair("y"), oracle.pair("dx"), oracle.pair("dweight")

    benchmark(exact)
    _per_element(benchmark, rows * n)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("rows", "n"), SHAPES)
def test_bounds(benchmark: Any, dtype: str, rows: int, n: int) -> None:
    given = case(dtype, rows, n)
    exact = Exact(given)
    exact.pair("y"), exact.pair("dx"), exact.pair("dweight")

    def bounds() -> None:
        limit = Bounds(given, exact, Precision.of(dtype))
        limit.of("y"), limit.of("dx"), limit.of("dweight"), limit.of("dbias")

    benchmark(bounds)
    _per_element(benchmark, rows * n)


def _per_element(benchmark: Any, elements: int) -> None:
    if benchmark.stats is not None:  # None where benchmarks only run, untimed
        benchmark.extra_info["ns per element"] = benchmark.stats.stats.median / elements * 1e9
