"""Every mutant is wrong on its trigger and, where it hides, right on ordinary input; the correct are right.

'Right' is what a usual test would accept: 2e-3 of the largest element,
2e-2 in 16 bits. 'Wrong' is an error of
more than 20 times that of the textbook pipeline in the same dtype, before the last rounding: the mutants of
working precision are far inside any usual tolerance.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lnverify.mutants import GRADIENTS, SIXTEEN, Correct, Mutant, Sample, all_correct, all_mutants
from lnverify.mutants.parts import TEXTBOOK_BACKWARD, TEXTBOOK_FORWARD, Array

MUTANTS = {m.id: m for m in all_mutants()}
CORRECT = {c.id: c for c in all_correct()}
NAMES = ("y", *GRADIENTS)
Answers = dict[str, Array]


def exact(arrays: dict[str, Array], shape: tuple[int, ...], eps: float) -> Answers:
    """All results in float64, deviations taken from the first element first."""
    axes = tuple(range(-len(shape), 0))
    with np.errstate(all="ignore"):
        x, dy, weight = arrays["x"], arrays["dy"], arrays.get("weight", np.ones(shape))
        first_one: tuple[Any, ...] = (..., *[slice(0, 1)] * len(shape))
        pivot = x[first_one]
        d = (x - pivot) - np.mean(x - pivot, axis=axes, keepdims=True)
        rstd = 1 / np.sqrt(np.mean(d * d, axis=axes, keepdims=True) + eps)
        xhat, g = d * rstd, dy * weight
        first, second = (np.mean(a, axis=axes, keepdims=True) for a in (g, g * xhat))
        rows = tuple(range(x.ndim - len(shape)))
        out = {
            "y": xhat * weight + arrays.get("bias", np.zeros(shape)),
            "dx": rstd * (g - first - xhat * second),
        }
        for name, value in (("weight", dy * xhat), ("bias", dy)):
            if name in arrays:
                out[f"d{name}"] = np.sum(value, axis=rows)
        return out


def in_numpy(forward: Any, backward: Any, arrays: dict[str, Array], sample: Sample, dtype: str) -> Answers:
    """What a pair of NumPy functions answers, unrounded."""
    real = np.float64 if dtype == "float64" else np.float32
    x, dy, weight, bias = (arrays[k].astype(real) if k in arrays else None for k in ("x", "dy", "weight", "bias"))
    y, *saved = forward(x, sample.shape, weight, bias, sample.eps, dtype)
    extra = (y,) if "y" in backward.__annotations__ else ()
    results = backward(dy, x, weight, bias, sample.eps, sample.shape, tuple(saved), dtype, *extra)
    return {k: v for k, v in zip(NAMES, (y, *results), strict=True) if v is not None}


def in_torch(function: Any, arrays: dict[str, Array], sample: Sample, dtype: str) -> Answers:
    """What a torch function answers, by autograd."""
    import torch

    tensors = {k: torch.tensor(v, dtype=getattr(torch, dtype), requires_grad=k != "dy") for k, v in arrays.items()}
    dy = tensors.pop("dy")
    if isinstance(function, type):
        function = as_function(function)
    y = function(tensors["x"], sample.shape, tensors.get("weight"), tensors.get("bias"), sample.eps)
    grads = torch.autograd.grad(y, list(tensors.values()), dy.to(y.dtype), allow_unused=True)
    out = {"y": y, **{f"d{k}": g for k, g in zip(tensors, grads, strict=True) if g is not None}}
    return {k: v.detach().double().numpy() for k, v in out.items()}


def as_function(module_class: Any) -> Any:
    """A module class as a function of its parameters."""
    import torch

    def function(x: Any, shape: Any, weight: Any, bias: Any, eps: float) -> Any:
        module = module_class(shape, eps, weight is not None or bias is not None, bias is not None, dtype=x.dtype)
        given = {"weight": weight, "bias": bias}
        given = {k: v for k, v in given.items() if v is not None}
        if weight is None and bias is not None:
            given["weight"] = torch.ones_like(bias)
        return torch.func.functional_call(module, given, (x,))

    return function


def answer(entry: Mutant | Correct, arrays: dict[str, Array], sample: Sample, dtype: str) -> Answers:
    """What an implementation answers."""
    if entry.framework == "numpy":
        return in_numpy(entry.forward, entry.backward, arrays, sample, dtype)
    return in_torch(entry.target() if entry.fresh else entry.target, arrays, sample, dtype)


def error(got: Answers, want: Answers, name: str) -> float:
    """Largest error over the largest exact element; infinite for a missing, misshapen or NaN result."""
    if name not in want:
        return 0.0 if name not in got else np.inf
    if name not in got or got[name].shape != want[name].shape:
        return np.inf
    if not want[name].size:
        return 0.0
    finite = np.isfinite(want[name])
    if np.any(np.isfinite(got[name]) != finite):
        return np.inf
    difference = np.abs(got[name].astype(np.float64) - want[name])[finite]
    return float(difference.max(initial=0.0) / (np.abs(want[name][finite]).max(initial=0.0) or 1.0))


def spoiled(entry: Mutant) -> tuple[str, ...]:
    """The affected outputs that a forward and a backward show."""
    return tuple(name for name in entry.affected if name in NAMES)


def test_registry_is_large_sorted_and_without_repetition() -> None:
    assert list(MUTANTS) == sorted(MUTANTS)
    assert len(MUTANTS) == len(all_mutants()) > 100
    assert len(CORRECT) == len(all_correct()) > 40
    for m in MUTANTS.values():
        assert m.bug.endswith("."), m.id
        assert all((m.dtypes, m.laws, m.affected)), m.id
        assert all("#" in thread for thread in m.threads), m.id


@pytest.mark.parametrize("id", [m.id for m in MUTANTS.values() if m.hidden])
def test_hidden_mutant_is_right_on_ordinary_input(id: str) -> None:
    mutant = MUTANTS[id]
    dtype = mutant.ordinary.dtype or mutant.dtypes[0]
    arrays = mutant.ordinary.arrays(dtype)
    got, want = (
        answer(mutant, arrays, mutant.ordinary, dtype),
        exact(arrays, mutant.ordinary.shape, mutant.ordinary.eps),
    )
    for name in spoiled(mutant):
        assert error(got, want, name) < (2e-2 if dtype in SIXTEEN else 2e-3), name


@pytest.mark.parametrize("id", [m.id for m in MUTANTS.values() if m.trigger is not None])
def test_mutant_is_wrong_on_its_trigger(id: str) -> None:
    mutant = MUTANTS[id]
    assert mutant.trigger is not None
    dtype = mutant.trigger.dtype or mutant.dtypes[0]
    assert dtype in mutant.dtypes
    arrays = mutant.trigger.arrays(dtype)
    want = exact(arrays, mutant.trigger.shape, mutant.trigger.eps)
    textbook = in_numpy(TEXTBOOK_FORWARD, TEXTBOOK_BACKWARD, arrays, mutant.trigger, dtype)
    try:
        got = answer(mutant, arrays, mutant.trigger, dtype)
    except ValueError:
        assert mutant.id.endswith("refused")
        return
    wrong = [n for n in spoiled(mutant) if error(got, want, n) > 20 * (error(textbook, want, n) + 1e-16)]
    assert wrong, {n: (error(got, want, n), error(textbook, want, n)) for n in spoiled(mutant)}
    for name in NAMES:
        if name not in mutant.affected and mutant.trigger.kind == "normal":
            assert error(got, want, name) <= 5 * error(textbook, want, name) + 1e-6, f"{name} is wrong as well"


SAMPLES = {
    "plain": Sample(),
    "n65-offset": Sample(shape=(65,), mean=3.0),
    "large-offset": Sample(shape=(17,), mean=1000.0),
    "image": Sample(batch=(2, 3), shape=(3, 4)),
    "four-dims": Sample(batch=(5,), shape=(2, 1, 3, 2)),
    "lanes": Sample(batch=(2,), shape=(1100,)),
    "many-rows": Sample(batch=(5000,), shape=(3,)),
    "one-element": Sample(shape=(1,)),
    "no-batch": Sample(batch=(), shape=(9,)),
    "no-rows": Sample(batch=(0,)),
    "no-affine": Sample(affine="none"),
    "weight-only": Sample(affine="weight"),
    "bias-only": Sample(affine="bias"),
    "weight-zero": Sample(weight="zero"),
    "constant": Sample(kind="constant", mean=1.5),
    "large-eps": Sample(eps=0.1, scale=0.1),
}


@pytest.mark.parametrize("sample", SAMPLES.values(), ids=list(SAMPLES))
@pytest.mark.parametrize("id", list(CORRECT))
def test_correct_one_is_right(id: str, sample: Sample) -> None:
    entry = CORRECT[id]
    for dtype in entry.dtypes:
        arrays = sample.arrays(dtype)
        with np.errstate(all="raise"):  # what an implementation lets escape would be a warning elsewhere
            got = answer(entry, arrays, sample, dtype)
        want = exact(arrays, sample.shape, sample.eps)
        units = 2e-13 if dtype == "float64" else 1.2e-4
        if dtype in SIXTEEN and (
            entry.framework == "torch" or entry.rounding_points or entry.backward_from == "output"
        ):
            units = 8e-2 if dtype == "bfloat16" else 1e-2
        if entry.backward_from == "output":
            units *= 10  # a small weight magnifies the rounding of y
        # A constant row has the condition number mean/sqrt(eps).
        constant = sample.kind == "constant" or sample.shape == (1,)
        condition = 1 + (3 / np.sqrt(sample.eps) if constant else abs(sample.mean) / sample.scale)
        for name in NAMES:
            assert error(got, want, name) < units * condition, (dtype, name)


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16", "float16"])
def test_same_call_gives_the_same_bits_and_leaves_its_arguments(dtype: str) -> None:
    sample = Sample(batch=(4,), shape=(40,))
    for entry in CORRECT.values():
        if dtype not in entry.dtypes:
            continue
        arrays = sample.arrays(dtype)
        before = {k: v.copy() for k, v in arrays.items()}
        first, second = (answer(entry, arrays, sample, dtype) for _ in range(2))
        assert all(np.array_equal(first[k], second[k]) for k in first), entry.id
        assert all(np.array_equal(before[k], arrays[k]) for k in arrays), entry.id


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
def test_results_have_the_working_precision(dtype: str) -> None:
    real = np.float64 if dtype == "float64" else np.float32
    sample = Sample(batch=(4,), shape=(40,))
    entries: list[Mutant | Correct] = [*CORRECT.values(), *MUTANTS.values()]
    for entry in entries:
        if entry.framework == "torch" or dtype not in entry.dtypes or entry.id == "float64-output":
            continue
        for name, value in answer(entry, sample.arrays(dtype), sample, dtype).items():
            assert value.dtype == real, (entry.id, name)


def test_in_place_mutants_change_their_arguments() -> None:
    arrays = {k: v.astype(np.float32) for k, v in Sample(mean=1.0).arrays("float32").items()}
    x, dy = arrays["x"].copy(), arrays["dy"].copy()
    forward, backward = MUTANTS["x-centred-in-place"].forward, MUTANTS["dy-overwritten"].backward
    assert forward is not None
    assert backward is not None
    _, *saved = forward(arrays["x"], (64,), arrays["weight"], arrays["bias"], 1e-5, "float32")
    assert not np.array_equal(arrays["x"], x)
    backward(arrays["dy"], x, arrays["weight"], arrays["bias"], 1e-5, (64,), tuple(saved), "float32")
    assert not np.array_equal(arrays["dy"], dy)


def test_float64_output_is_float64() -> None:
    sample = Sample()
    assert answer(MUTANTS["float64-output"], sample.arrays("float32"), sample, "float32")["y"].dtype == np.float64


def test_without_torch_those_in_numpy_remain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert {m.framework for m in all_mutants()} == {c.framework for c in all_correct()} == {"numpy"}


def test_every_numpy_mutant_has_a_trigger_or_a_test_of_its_own() -> None:
    without = {m.id for m in MUTANTS.values() if m.trigger is None and m.framework == "numpy"}
    assert without == {"x-centred-in-place", "dy-overwritten", "float64-output"}


def test_unbiased_is_nan_for_one_element() -> None:
    sample = replace(Sample(), shape=(1,))
    assert np.isnan(answer(MUTANTS["unbiased"], sample.arrays("float32"), sample, "float32")["y"]).all()


@pytest.mark.parametrize("id", ["welford", "torch-composed", "from-output", "unbiased", "module-dropout"])
def test_subject_answers(id: str) -> None:
    entry: Mutant | Correct = CORRECT[id] if id in CORRECT else MUTANTS[id]
    subject = entry.subject()
    assert subject.target.endswith(id)
    assert subject.framework == entry.framework
