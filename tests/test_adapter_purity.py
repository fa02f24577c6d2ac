"""What a subject changes, aliases, prints, warns of and raises."""

from __future__ import annotations

import sys
import warnings

import numpy as np
import pytest

from lnverify.target import resolve
from tests.adapter_samples import arrays, ask

torch = pytest.importorskip("torch")


def identity(x, eps):
    print("noise")
    return x


def writes(x, weight, eps):
    weight.data.mul_(2)
    return x * 1


def warns(x, eps):
    warnings.warn("careful", RuntimeWarning, stacklevel=2)
    return x * 1


def fails(x, eps):
    raise ValueError("first line\nsecond line")


def leaves(x, eps):
    sys.exit(3)


def interrupts(x, eps):
    raise KeyboardInterrupt


def integer(x, eps):
    return x.long()


def nothing(x, eps):
    return None


def test_changes_aliases_warnings_and_prints(capsys):
    x = {"x": arrays()["x"]}
    same = ask(resolve(identity), x, "y")
    assert same.aliases == ("y",)
    assert same.changed == ()
    assert capsys.readouterr().out == ""
    given = {k: v for k, v in arrays().items() if k in ("x", "weight")}
    before = given["weight"].bits.copy()
    for layout in ("contiguous", "strided"):
        assert ask(resolve(writes), given, "y", layouts={"weight": layout}).changed == ("weight",)
    assert np.array_equal(given["weight"].bits, before)
    assert ask(resolve(warns), x, "y").warnings == ("RuntimeWarning: careful",)


def test_a_write_beside_the_view_is_seen():
    def spills(x, eps):
        torch.as_strided(x, (1,), (1,), 1).fill_(5.0)
        return x * 1

    assert ask(resolve(spills), {"x": arrays()["x"]}, "y", layouts={"x": "strided"}, requires_grad=()).changed == ("x",)


@pytest.mark.parametrize(
    ("function", "refusal"),
    [
        (fails, "ValueError: first line"),
        (leaves, "SystemExit: 3"),
        (integer, "TypeError: y has dtype int64, one of float64, float32, float16, bfloat16 is expected"),
        (nothing, "TypeError: y is a NoneType, a tensor is expected"),
    ],
)
def test_exceptions_become_refusals(function, refusal):
    response = ask(resolve(function), {"x": arrays()["x"]}, "y")
    assert (response.refusal, response.phase, dict(response.arrays)) == (refusal, "forward", {})


def test_an_interrupt_passes():
    with pytest.raises(KeyboardInterrupt):
        ask(resolve(interrupts), {"x": arrays()["x"]}, "y")


def test_a_backward_that_raises_is_a_refusal_in_its_phase():
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, eps):
            return x * 2

        @staticmethod
        def backward(ctx, dy):
            raise RuntimeError("the backward was not built")

    response = ask(resolve(Broken), {k: v for k, v in arrays().items() if k in ("x", "dy")})
    assert (response.refusal, response.phase) == ("RuntimeError: the backward was not built", "backward")


def test_a_parameter_that_the_function_cannot_take_is_refused():
    assert ask(resolve(identity), arrays()).refusal.endswith("has no parameter for weight")


def test_the_thread_count_is_set_and_put_back():
    before, seen = torch.get_num_threads(), []

    def looks(x, eps):
        seen.append(torch.get_num_threads())
        return x

    for threads in (before + 1, None):
        ask(resolve(looks), {"x": arrays()["x"]}, "y", threads=threads)
        assert torch.get_num_threads() == before
    assert seen == [before + 1, before]
