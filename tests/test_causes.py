"""Causes that findings name: one for one fault, and none that is untrue."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from lnverify.case import Case
from lnverify.diagnosis import IN_FLOAT32, computed_in_float32, forward_cause
from lnverify.evaluation import Evaluator
from lnverify.floats import FloatArray
from lnverify.laws.accuracy import eps_inside_root
from lnverify.recipes import normal
from lnverify.runner import check
from lnverify.sixteen_bits import STORED_16
from lnverify.target import resolve

torch = pytest.importorskip("torch")


def one_pass(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Squares in the dtype of x, which overflow."""
    mean = x.mean(-1, keepdim=True)
    y = (x - mean) / torch.sqrt((x * x).mean(-1, keepdim=True) - mean * mean + eps)
    return y if weight is None else y * weight + bias


def test_an_overflow_is_no_missing_eps() -> None:
    x = FloatArray.of(np.full((4, 16), 1000.0), "float16")
    evaluation = Evaluator(resolve(one_pass)).evaluate(Case("layer_norm", "float16", (16,), {"x": x}, 1e-12))
    assert evaluation.settle("y")[1] == "violated"
    assert forward_cause(evaluation) == "y is wrong"


def single(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """The textbook in float32, as many models have it."""
    f = x.float()
    f = (f - f.mean(-1, keepdim=True)) * torch.rsqrt(f.var(-1, correction=0, keepdim=True) + eps)
    f = f if weight is None else f * weight.float()
    return (f if bias is None else f + bias.float()).to(x.dtype)


def test_float64_that_is_computed_in_float32_is_called_so() -> None:
    for dtype, kind in (("float64", "violated"), ("float32", "holds")):
        x = FloatArray.of(normal(1, (4, 16)), dtype)
        evaluation = Evaluator(resolve(single)).evaluate(Case("layer_norm", dtype, (16,), {"x": x}, 1e-5))
        assert evaluation.settle("y")[1] == kind
        assert computed_in_float32(evaluation) == (dtype == "float64")
        assert kind == "holds" or forward_cause(evaluation) == IN_FLOAT32


def test_an_eps_that_16_bits_make_infinite_is_not_outside_the_root() -> None:
    x = FloatArray.of([[2048.0, -2048.0]], "float16")  # of which four times the variance is infinite
    evaluation = Evaluator(resolve(one_pass)).evaluate(Case("layer_norm", "float16", (2,), {"x": x}, 1e-5))
    assert not eps_inside_root(evaluation).bad


def unbiased(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Group norm with a variance divided by N - 1."""
    g = x.reshape(x.shape[0], num_groups, -1)
    y = ((g - g.mean(-1, keepdim=True)) * torch.rsqrt(g.var(-1, keepdim=True) + eps)).reshape(x.shape)
    shape = (1, -1, *(1 for _ in x.shape[2:]))
    y = y if weight is None else y * weight.reshape(shape)
    return y if bias is None else y + bias.reshape(shape)


def test_two_numbers_do_not_make_a_sum_of_squares_of_n_minus_1() -> None:
    report = check(unbiased, operation="group_norm", dtypes=["float32"], select=["LN801"], profile="score")
    assert {f.cause for f in report.findings} == {"the squares are divided by N - 1"}


class Rounded(torch.autograd.Function):
    """The identity, whose gradient is rounded to bfloat16."""

    @staticmethod
    def forward(ctx: Any, t: Any) -> Any:
        return t.clone()

    @staticmethod
    def backward(ctx: Any, dt: Any) -> Any:
        return dt.bfloat16().to(dt.dtype)


def rounded(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Gradients of float32 parameters are right, and rounded once."""
    given = [None if t is None else Rounded.apply(t.float()) for t in (weight, bias)]
    return torch.nn.functional.layer_norm(x.float(), x.shape[-1:], *given, eps).to(x.dtype)


def test_sums_that_are_rounded_once_have_one_cause() -> None:
    report = check(rounded, dtypes=["bfloat16"], select=["LN202", "LN203"], profile="score")
    assert {f.law for f in report.findings} == {"LN202", "LN203"}
    assert {f.cause for f in report.findings} == {STORED_16}


def narrow(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Right, for rows of up to 8 numbers."""
    if x.shape[-1] > 8:
        raise ValueError("at most 8 columns")
    d = x - x.mean(-1, keepdim=True)
    y = d / torch.sqrt((d * d).mean(-1, keepdim=True) + eps)
    y = y if weight is None else y * weight
    return y if bias is None else y + bias


def test_what_refuses_a_size_refuses_it_for_one_cause() -> None:
    laws = ("LN602", "LN606", "LN701", "LN706", "LN209", "LN213")
    report = check(narrow, dtypes=("float64",), profile="gate", select=laws, max_examples=20)
    assert {finding.cause for finding in report.findings} == {"an ordinary request is refused in the forward"}
    assert {finding.law for finding in report.findings} == {"LN606"}


def at_most_100(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
    """Right, for as many numbers as it says that it takes."""
    if x.shape[-1] > 100:
        raise NotImplementedError(f"rows of at most 100 numbers, not {x.shape[-1]}")
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


def test_a_size_that_is_not_implemented_accuses_nobody() -> None:
    report = check(at_most_100, dtypes=["float32"], select=["LN101", "LN606"], profile="score", max_examples=2)
    assert report.findings == []
    assert max(report.coverage["N"]) <= 100
    assert any("NotImplementedError" in reason for reason in report.coverage["not_examined"])
