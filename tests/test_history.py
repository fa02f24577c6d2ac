"""Request.history: what happens around a call, in torch and in NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.floats import FloatArray
from lnverify.protocol import HISTORIES
from lnverify.subject import resolve
from tests.adapter_samples import arrays, ask, assert_right, np_forward, plain

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
def test_a_right_subject_is_right_whatever_happened(history, target):
    """Plain torch raises where its arguments were changed before the backward, and is right in all else."""
    given = arrays()
    response = ask(resolve(target), given, history=history)
    if history == "changed":
        assert response.refusal is not None
        assert "modified by an inplace operation" in response.refusal
        assert response.phase == "backward"
        return
    assert_right(response, given)
    assert response.changed == ()
    assert ("dx" in response.arrays) == (history != "threads")


@pytest.mark.parametrize("history", ["overwritten", "followed"])
def test_numpy_subjects_know_the_histories_of_memory(history):
    given = arrays()
    assert_right(ask(resolve(np_forward), given, "y", history=history), given)


def test_numpy_subjects_refuse_the_histories_of_autograd():
    response = ask(resolve(np_forward), arrays(), "y", history="repeated")
    assert response.refusal == "NotImplementedError: the history 'repeated' is not known to NumPy subjects"


def test_the_arguments_hold_other_numbers_meanwhile_and_their_own_afterwards():
    seen = []

    def looks(x, eps):
        seen.append((x.data_ptr(), x.detach().clone()))
        return x + 1

    x = np.array([[1.0, np.nan, -0.0], [np.inf, 1e300, 5.0]])
    given = {"x": FloatArray.of(x, "float64")}
    response = ask(resolve(looks), given, "y", history="overwritten", requires_grad=())
    (first, before), (second, now) = seen
    assert first == second  # the same memory
    assert FloatArray("float64", now.numpy().view(np.uint64)).same_bits(given["x"])
    np.testing.assert_array_equal(before.numpy(), [[3.0, 2.5, 2.5], [0.5, -1.0, 2.5]])
    assert response.changed == ()


def test_a_later_call_gets_other_numbers_and_the_same_parameters():
    seen = []

    def looks(x, weight, eps):
        seen.append((x.detach().clone(), weight.detach().clone()))
        return x * weight

    ask(resolve(looks), {n: a for n, a in arrays().items() if n in ("x", "weight")}, "y", history="followed")
    (x, weight), (other, same) = seen
    assert not torch.equal(x, other)
    assert x.shape == other.shape
    assert torch.equal(weight, same)


def test_an_exception_in_a_thread_is_a_refusal():
    def fails(x, eps):
        raise ValueError("no")

    assert ask(resolve(fails), {"x": arrays()["x"]}, "y", history="threads").refusal == "ValueError: no"
