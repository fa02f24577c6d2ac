"""The screen of sizes: a right subject passes it at every size, and each output that is wrong in one row fails it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from lnverify.edges import LARGEST, Screen, edge, kinds, sizes
from lnverify.evaluation import Evaluator
from lnverify.floats import FloatArray
from lnverify.mutants import all_correct
from lnverify.profiles import profile
from lnverify.protocol import Request, Response
from lnverify.subject import Subject
from lnverify.support import Support, find_support

RIGHT = next(entry for entry in all_correct() if entry.id == "two-pass-pairwise")
OUTPUTS = ("y", "dx", "dweight", "dbias")
SIZES = ((1, 1), (1, 3), (7, 2), (8, 0), (8, 17), (8, 1023), (129, 3), (4097, 2), (8193, 1))


def support(dtype: str, subject: Subject | None = None) -> Support:
    found = find_support(subject or RIGHT.subject(), dtype, "cpu")
    assert isinstance(found, Support)
    return found


def changed(dtype: str, change: Callable[[Request, Response], Response]) -> Screen:
    """A screen of a subject whose answers are changed after the warm-up."""
    given = support(dtype)
    run = given.subject.run
    subject = replace(given.subject, run=lambda request: change(request, run(request)))
    return Screen(replace(given, subject=subject), Evaluator(subject))


@pytest.mark.parametrize("dtype", RIGHT.dtypes)
def test_a_right_subject_passes(dtype: str) -> None:
    given = support(dtype)
    screen = Screen(given, Evaluator(given.subject))
    for n, rows in SIZES:
        assert screen.failing(edge(given, n, rows)) == "", (n, rows)


@pytest.mark.parametrize("output", OUTPUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_output_that_is_wrong_in_its_last_element_fails(dtype: str, output: str) -> None:
    def spoil(request: Request, response: Response) -> Response:
        got = response.arrays[output]
        values = got.values.copy()
        values.flat[-1] = values.flat[-1] * 1.25 + 1
        return replace(response, arrays={**response.arrays, output: FloatArray.of(values, got.dtype)})

    screen = changed(dtype, spoil)
    for n, rows in ((8, 17), (129, 3), (4097, 2)):
        case = edge(screen.support, n, rows)
        assert screen.failing(case) == output
        assert screen.failing(case, {output}) == ""


@pytest.mark.parametrize("output", OUTPUTS)
def test_an_output_that_is_missing_or_of_another_dtype_or_shape_fails(output: str) -> None:
    def without(request: Request, response: Response) -> Response:
        return replace(response, arrays={k: v for k, v in response.arrays.items() if k != output})

    def wide(request: Request, response: Response) -> Response:
        array = FloatArray.of(response.arrays[output].values, "float64")
        return replace(response, arrays={**response.arrays, output: array})

    def flat(request: Request, response: Response) -> Response:
        array = response.arrays[output]
        array = FloatArray(array.dtype, array.bits.reshape(1, -1))
        return replace(response, arrays={**response.arrays, output: array})

    for change in (without, wide, flat):
        screen = changed("float32", change)
        assert screen.failing(edge(screen.support, 8, 5)) == output


def test_no_answer_and_changed_arguments_fail() -> None:
    for change in (
        lambda request, response: Response(refusal="ValueError: no"),
        lambda request, response: replace(response, changed=("x",)),
    ):
        screen = changed("float32", change)
        assert screen.failing(edge(screen.support, 8, 5)) == "answer"


@pytest.mark.parametrize(("times", "failing"), [(0.9, False), (3.0, True)])
@pytest.mark.parametrize("output", ["dweight", "dbias"])
def test_sums_are_held_to_the_bound_of_their_law(output: str, times: float, failing: bool) -> None:
    """The bound of LN202 and LN203 on the whole case is what the screen asks of its kinds of rows."""
    given = support("float32")
    case = edge(given, 9, 1024)
    evaluation = Evaluator(given.subject).evaluate(case)
    pair, bound = evaluation.pair(output), evaluation.bound(output)

    def moved(request: Request, response: Response) -> Response:
        array = FloatArray.of(pair.hi + times * bound, "float32")
        return replace(response, arrays={**response.arrays, output: array})

    screen = changed("float32", moved)
    assert (screen.failing(case) == output) is failing


def test_sizes_come_small_ones_first_and_ci_has_all_pairs() -> None:
    quick, ci = list(sizes(profile("quick"))), list(sizes(profile("ci")))
    assert set(quick) < set(ci)
    for pairs in (quick, ci):
        products = [n * rows for n, rows in pairs]
        assert products == sorted(products)
    assert max(n * rows for n, rows in ci) <= LARGEST
    assert {(8, 65537), (65537, 3), (384, 2), (8, 13), (4097, 129)} <= set(quick)
    assert {(64, 65536), (65537, 33), (4097, 1023)} <= set(ci)


def test_no_power_of_two_divides_the_period_of_the_rows() -> None:
    case = edge(support("float32"), 16, 64)
    x = case.matrix("x")
    assert np.unique(x, axis=0).shape[0] == kinds(16) == 7
    assert not np.array_equal(x[:32], x[32:])
