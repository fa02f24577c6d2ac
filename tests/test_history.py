"""Request.history: what happens around a call, in torch and in NumPy."""

from __future__ import annotations

import contextlib
import threading

import numpy as np
import pytest

from lnverify.adapters.calling import WITHIN
from lnverify.adapters.two_threads import PAUSES, ROUNDS, STEPS, Paused
from lnverify.floats import FloatArray
from lnverify.protocol import CROWD, HISTORIES
from lnverify.subject import declare
from lnverify.target import resolve
from tests.adapter_samples import arrays, ask, assert_right, np_backward, np_forward, plain

torch = pytest.importorskip("torch")


@pytest.mark.parametrize("history", HISTORIES)
@pytest.mark.parametrize("target", [plain, torch.nn.LayerNorm])
def test_a_right_subject_is_right_whatever_happened(history, target):
    """Plain torch raises where its arguments were changed before the backward, and is right in all else."""
    given = arrays()
    response = ask(resolve(target), given, history=history)
    if history == "stream":
        assert response.refusal == "TypeError: streams belong to CUDA, not to cpu"
        return
    if history.startswith("changed"):  # torch keeps the bias too
        assert response.refusal is not None
        assert "modified by an inplace operation" in response.refusal
        assert response.phase == "backward"
        return
    assert_right(response, given)
    assert response.changed == ()
    assert ("dx" in response.arrays) == (history != "detached")


@pytest.mark.parametrize("history", ["overwritten", "followed", "viewed", "detached"])
def test_numpy_subjects_know_the_histories_of_memory(history):
    given = arrays()
    assert_right(ask(resolve(np_forward), given, "y", history=history), given)


@pytest.mark.parametrize("history", WITHIN)
def test_a_separate_backward_gets_what_it_is_given(history):
    response = ask(resolve(np_forward), arrays(), "y", history=history)
    assert response.refusal == (
        f"TypeError: a separate backward gets what it is given: the history {history!r} does not apply to it"
    )


class Recorded:
    """A NumPy layer norm with a backward; `calls` holds what each call got, `memory` where its x lay."""

    def __init__(self):
        self.calls, self.memory = [], []

    def forward(self, x, weight, bias, eps):
        self.memory.append(x.ctypes.data)
        self.calls.append(("forward", np.array(x), np.array(weight)))
        return np_forward(x, weight, bias, eps)

    def backward(self, dy, x, weight, mean, rstd):
        self.calls.append(("backward", np.array(x), np.array(weight)))
        return np_backward(dy, x, weight, mean, rstd)

    def subject(self):
        def forward(x, weight, bias, eps):
            return self.forward(x, weight, bias, eps)

        def backward(dy, x, weight, mean, rstd):
            return self.backward(dy, x, weight, mean, rstd)

        return resolve(declare(framework="numpy", backward=backward, returns=("y", "mean", "rstd"))(forward))


def test_what_a_numpy_subject_sees_of_each_history():
    """Each with the calls in their order: another x before, after or in another thread; the same weight always."""
    given = arrays()
    x, weight = given["x"].values, given["weight"].values

    def seen(history):
        recorded = Recorded()
        assert_right(ask(recorded.subject(), given, history=history), given)
        unlike = history in ("overwritten", "lower", "higher")  # other numbers in place, the same in 16 bits
        assert unlike or all(np.array_equal(w, weight) for kind, _, w in recorded.calls)
        return [(kind, np.array_equal(had, x)) for kind, had, _ in recorded.calls], recorded.memory

    assert seen("")[0] == [("forward", True), ("backward", True)]
    assert seen("followed")[0] == [
        ("forward", True), ("forward", False), ("backward", True), ("backward", True),
    ]  # fmt: skip
    assert seen("repeated")[0] == [("forward", True), ("backward", True), ("backward", True)]
    assert seen("resumed")[0] == [
        ("forward", True), ("backward", True), *[("forward", False)] * CROWD, *[("backward", False)] * CROWD,
        ("backward", True),
    ]  # fmt: skip
    assert seen("viewed")[0] == [("forward", True), *[("forward", False)] * CROWD, ("backward", True)]
    assert seen("higher")[0] == [("forward", True), ("forward", True), ("backward", True)]
    assert seen("lower")[0] == [("forward", False), ("forward", True), ("backward", True)]
    calls, (first, second) = seen("overwritten")
    assert calls == [("forward", False), ("forward", True), ("backward", True)]
    assert first == second  # the same memory
    calls = seen("threads")[0]
    assert calls.count(("forward", True)) >= ROUNDS + 3
    assert calls.count(("forward", False)) > ROUNDS


def test_a_torch_backward_is_called_again_where_it_is_repeated():
    calls = []

    @declare(backward=lambda dy, x, weight: calls.append(1) or (dy * weight, (dy * x).sum(0)))
    def scaled(x, weight, eps):
        return x * weight

    given = {name: array for name, array in arrays().items() if name != "bias"}
    for history, count in (("", 1), ("repeated", 2), ("resumed", 2 + CROWD)):
        calls.clear()
        ask(resolve(scaled), given, "y", "dx", history=history)
        assert len(calls) == count


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


def test_what_is_written_through_data_raises_no_version():
    seen = []

    def looks(x, weight, eps):
        seen.append([(t.data_ptr(), t._version, t.detach().clone()) for t in (x, weight)])
        return x * weight

    ask(resolve(looks), {n: a for n, a in arrays().items() if n in ("x", "weight")}, "y", history="unversioned")
    for (place, version, before), (same, still, now) in zip(*seen, strict=True):
        assert (place, version) == (same, still)
        assert not torch.equal(before, now)


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


def _shared(lock):
    """A layer norm without parameters whose deviations lie in one array, in plain Python."""
    kept = []

    def layer_norm(x):
        with lock:
            kept[:] = [x - x.mean(-1, keepdims=True)]
            rstd = 1 / np.sqrt((kept[0] ** 2).mean(-1, keepdims=True) + 1e-5)
            return kept[0] * rstd

    return layer_norm


def test_a_call_that_is_paused_for_another_shows_what_they_share():
    """Whatever the scheduler does; and a lock is waited for, once."""
    x = np.arange(12.0).reshape(3, 4) ** 2
    for lock, right in ((contextlib.nullcontext(), False), (threading.Lock(), True)):
        call = _shared(lock)
        paused = Paused(lambda call=call: call(x * 3 + x[::-1]), 0.05)
        found = paused.result(lambda call=call: call(x))
        assert np.array_equal(found, call(x)) == right
        assert 5 < paused.steps < 100


def test_a_call_of_very_many_steps_is_paused_at_some_of_them():
    calls = []

    def mine():
        return sum(len(str(i)) for i in range(STEPS))

    assert Paused(lambda: calls.append(1), 0.05).result(mine) == mine()
    assert PAUSES / 2 <= len(calls) <= PAUSES


def test_an_exception_in_a_thread_is_a_refusal():
    def fails(x, eps):
        raise ValueError("no")

    assert ask(resolve(fails), {"x": arrays()["x"]}, "y", history="threads").refusal == "ValueError: no"
