"""Cells in torch: where a module keeps its parameters, how a layer is called, and what is said where that is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.errors import SignatureError, UsageError
from lnverify.floats import FloatArray
from lnverify.norms.cases import make, reduced
from lnverify.norms.cells import CellExact
from lnverify.replay import judge_stored
from lnverify.runner import check
from lnverify.subject import declare
from lnverify.target import resolve

torch = pytest.importorskip("torch")
from lnverify.mutants import torch_layers as layers  # noqa: E402 - torch is asked for first
from lnverify.mutants import torch_lstm  # noqa: E402
from lnverify.mutants import torch_states as states  # noqa: E402


def exact_gap(subject, operation: str, seed: int = 3) -> float:
    """The largest distance of any output and gradient from the exact one, in float64."""
    case = reduced(subject, make(operation, "float64", ((2, 3), (4,)), "both", 1e-5, seed=seed))
    names = ["y", *case.gradients()]
    answer = subject.run(case.request(*names))
    assert answer.refusal is None
    exact = CellExact(case)
    return max(float(np.abs(answer.arrays[n].values - exact.pair(n).hi).max()) for n in names)


@pytest.mark.parametrize("entry", layers.CORRECT, ids=lambda entry: entry.id)
def test_parameters_find_their_places_and_gradients_come_back(entry) -> None:
    assert exact_gap(entry.subject(), entry.operation) < 1e-13


def test_the_declared_order_of_gates_is_that_of_the_storage() -> None:
    def other(x, h, c, weight_ih, weight_hh, eps):
        f, i, o, g = (x @ weight_ih.T + h @ weight_hh.T).chunk(4, 1)
        c = f.sigmoid() * c + i.sigmoid() * g.tanh()
        return o.sigmoid() * torch.nn.functional.layer_norm(c, (c.shape[1],), eps=eps).tanh(), c

    right = resolve(declare(operation="ln_lstm", variant="cell_only", gates="fiog")(other))
    assert right.operation == "ln_lstm_cell_only"
    assert exact_gap(right, "ln_lstm_cell_only") < 1e-13
    wrong = resolve(declare(operation="ln_lstm", variant="cell_only")(other))
    assert exact_gap(wrong, "ln_lstm_cell_only") > 1e-2
    with pytest.raises(UsageError, match="gates=abcd does not fit ln_lstm: write the letters 'ifgo' in the order"):
        resolve(declare(operation="ln_lstm", gates="abcd")(other))


def test_a_state_may_be_a_pair_or_two_arguments_and_may_be_left_out() -> None:
    cell = next(entry for entry in layers.CORRECT if entry.id == "lstm-module").subject()
    case = make("ln_lstm", "float64", ((2, 3), (4,)), "both", 1e-5, seed=3)
    absent = case.with_arrays(h=None, c=None, dy=None, dcy=None)
    zeros = {n: FloatArray.of(np.zeros((2, 4)), "float64") for n in ("h", "c")}
    right = CellExact(case.with_arrays(**zeros)).pair("cy").hi
    assert np.abs(cell.run(absent.request("cy")).arrays["cy"].values - right).max() < 1e-14
    refused = resolve(torch_lstm.paper, operation="ln_lstm").run(absent.request("y")).refusal
    assert refused is not None


def test_a_layer_takes_steps_and_a_cell_refuses_them() -> None:
    case = make("ln_lstm", "float64", ((2, 3), (4,)), "both", 1e-5, seed=3).with_arrays(dy=None, dcy=None)
    x = FloatArray.of(np.stack([case.arrays["x"].values] * 3), "float64")
    layer, cell = (e.subject() for e in layers.CORRECT if e.id in ("lstm-layer", "lstm-module"))
    if "Layer" not in layer.target and not layer.capabilities.sequence:
        layer, cell = cell, layer
    assert layer.run(case.with_arrays(x=x).request("y")).arrays["y"].shape == (3, 2, 4)
    assert "one step at a time" in str(cell.run(case.with_arrays(x=x).request("y")).refusal)


PLACES = {ours: path.partition(".")[2] for ours, path in layers.PLACES.items()}


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({**PLACES, "weigth": "bias"}, "ln_lstm has no parameter 'weigth': choose from weight_ih, weight_hh"),
        ({n: p for n, p in PLACES.items() if n != "weight_hh"}, "nothing says where it keeps weight_hh of ln_lstm"),
        ({**PLACES, "bias": "biases"}, "has no parameter 'biases': it has bias, norm_c.bias"),
        ({n: p for n, p in PLACES.items() if n != "bias"}, "its parameter 'bias' has no place in ln_lstm"),
        ({**PLACES, "weight_ih": "of_x.weight.T"}, "and what is declared to be there has (3, 16): add .T"),
        ({**PLACES, "gain_c": ("norm_c.weight", "norm_c.bias")}, "one is expected, or one for each of the 4 gates"),
    ],
)
def test_a_place_that_does_not_fit_is_told(places, message: str) -> None:
    class Other(layers.Cell):
        pass

    with pytest.raises(SignatureError) as error:
        resolve(declare(operation="ln_lstm", parameters=places)(Other))
    assert message in str(error.value)


def test_a_numpy_cell_is_called_alike_and_has_its_limits_told() -> None:
    def step(x, state, weight_ih, weight_hh, eps):
        h, c = state
        i, f, g, o = np.split(x @ weight_ih.T + h @ weight_hh.T, 4, axis=1)
        c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
        d = c - c.mean(1, keepdims=True)
        h = np.tanh(d / np.sqrt((d * d).mean(1, keepdims=True) + eps)) / (1 + np.exp(-o))
        return h, (h, c)

    named = {"operation": "ln_lstm", "variant": "cell_only", "framework": "numpy"}
    subject = resolve(declare(**named)(step))
    case = reduced(subject, make("ln_lstm_cell_only", "float64", ((2, 3), (4,)), "both", 1e-5, seed=3))
    answer = subject.run(case.request("y", "cy"))
    for name in ("y", "cy"):
        assert np.abs(answer.arrays[name].values - CellExact(case).pair(name).hi).max() < 1e-14
    with pytest.raises(SignatureError, match="a layer over sequences is called in torch only"):
        resolve(declare(**named, sequence=True)(step))
    with pytest.raises(SignatureError, match="a separate backward of ln_lstm_cell_only is called in torch only"):
        resolve(declare(**named, backward=lambda dy, x: x)(step))


def test_a_constructor_without_sizes_is_told() -> None:
    class Fixed(torch.nn.Module):
        def __init__(self, n):
            super().__init__()

    with pytest.raises(SignatureError, match=r"the constructor parameter 'n' cannot be matched.*map=n:inputs"):
        resolve(declare(operation="ln_lstm")(Fixed))


def test_an_instance_is_taken_as_it_is() -> None:
    class Sized(layers.Cell):
        def __init__(self) -> None:
            super().__init__(3, 4)
            self.input_size, self.hidden_size = 3, 4

    subject = resolve(declare(operation="ln_lstm", parameters=PLACES)(Sized)())
    assert subject.capabilities.fixed_shape == (3, 4)
    assert exact_gap(subject, "ln_lstm") < 1e-13


def test_what_is_declared_need_not_be_asked_for_and_may_not_be_contradicted() -> None:
    report = check(layers.Cell, dtypes=["float32"], select=["LN806"], profile="score", max_examples=1)
    assert (report.operation, report.verdict) == ("ln_lstm", "holds")
    with pytest.raises(UsageError, match="declares the operation ln_lstm, not ln_gru: ask for ln_lstm"):
        check(layers.Cell, operation="ln_gru", dtypes=["float32"], profile="score")
    with pytest.raises(UsageError, match="declares the operation ln_lstm, not ln_lstm_per_gate: ask for ln_lstm"):
        check(layers.Cell, operation="ln_lstm", variant="per_gate", dtypes=["float32"], profile="score")


@pytest.mark.parametrize(
    ("name", "law"), [("kept-state", "LN805"), ("normalised-carry", "LN807"), ("over-time", "LN808")]
)
def test_a_finding_is_judged_again_from_its_stored_answers(name: str, law: str) -> None:
    entry = next(entry for entry in layers.MUTANTS if entry.id == f"lstm-{name}")
    report = check(entry.subject(), operation=entry.operation, dtypes=["float32"], select=[law], profile="selftest",
                   fail_fast=True)  # fmt: skip
    again = judge_stored(report.findings[0])
    assert again.bad
    assert again.cause == report.findings[0].cause


@pytest.mark.parametrize("name", ["lstm-layer", "gru-kernels"])
def test_the_laws_of_calls_hold_for_right_layers(name: str) -> None:
    entry = next(entry for entry in layers.CORRECT if entry.id == name)
    select = ["LN804", "LN805", "LN806", "LN807", "LN808"]
    report = check(entry.subject(), operation=entry.operation, dtypes=["float32"], select=select, profile="score",
                   max_examples=1)  # fmt: skip
    assert report.verdict == "holds", [f.message for f in report.findings]
    assert all(result.informative > 10 for result in report.results)


@pytest.mark.parametrize("name", ["lstm-packed", "lstm-masked"])
def test_layers_that_are_told_lengths_are_asked_for_them(name: str) -> None:
    entry = next(entry for entry in states.CORRECT if entry.id == name)
    report = check(entry.subject(), operation=entry.operation, dtypes=["float32"], select=["LN827"], profile="score",
                   max_examples=1)  # fmt: skip
    assert report.results[0].verdict == "holds"
    assert report.results[0].informative >= 3  # lengths that do not descend cannot be packed
    assert 0 < report.results[0].worst_ratio < 1
