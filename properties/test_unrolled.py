"""The unrolled derivation: gradients through time agree with autograd, and right rounding stays within the bound."""

from __future__ import annotations

import numpy as np
import pytest

from lnverify.case import Case
from lnverify.floats import FORMATS, FloatArray
from lnverify.norms.cases import make
from lnverify.norms.unrolled import EPS, GAIN, Unrolled, contracting
from lnverify.operation import operation
from lnverify.recipes import normal

torch = pytest.importorskip("torch")
CELLS = ("ln_rnn", "ln_lstm", "ln_lstm_carry_normalised", "ln_gru_z_keeps")


def sequence(name: str, dtype: str, steps: int = 5) -> Case:
    case = contracting(make(name, dtype, ((2, 3), (4,)), "both", 1e-3, seed=3))
    last = {n: FloatArray.of(normal(9, (2, 4)), dtype) for n in operation(name).cotangents[1:]}
    return case.with_arrays(
        x=FloatArray.of(normal(7, (steps, 2, 3)), dtype), dy=FloatArray.of(normal(8, (steps, 2, 4)), dtype), **last
    )


def step(name: str, values: dict[str, torch.Tensor], eps: float) -> tuple[torch.Tensor, ...]:
    """The cell as its paper writes it, gates in the order of the operation."""

    def norm(a: torch.Tensor, gain: str, shift: str) -> torch.Tensor:
        d = a - a.mean(1, keepdim=True)
        return d / torch.sqrt((d * d).mean(1, keepdim=True) + eps) * values[gain] + values[shift]

    of_x, of_h = values["x"] @ values["weight_ih"].T, values["h"] @ values["weight_hh"].T
    if name == "ln_rnn":
        return (torch.tanh(norm(of_x + of_h, "weight", "bias")),)
    gates = norm(of_h, "gain_h", "shift_h") + norm(of_x, "gain_x", "shift_x")
    if name.startswith("ln_gru"):
        r, z = torch.sigmoid(gates).chunk(2, 1)
        new = norm(values["x"] @ values["weight_in"].T, "gain_in", "shift_in")
        new = torch.tanh(new + r * norm(values["h"] @ values["weight_hn"].T, "gain_hn", "shift_hn"))
        return (z * values["h"] + (1 - z) * new,)
    i, f, g, o = (gates + values["bias"]).chunk(4, 1)
    c = torch.sigmoid(f) * values["c"] + torch.sigmoid(i) * torch.tanh(g)
    read = norm(c, "gain_c", "shift_c")
    return torch.sigmoid(o) * torch.tanh(read), read if name.endswith("carry_normalised") else c


def gradients(case: Case, dtype: torch.dtype) -> dict[str, np.ndarray]:
    """By autograd, over all steps."""
    known = operation(case.operation)
    leaves = {name: torch.tensor(case.arrays[name].values, dtype=dtype).requires_grad_() for name in known.arguments}
    states = {name: leaves[name] for name in known.states}
    loss = torch.zeros((), dtype=dtype)
    for number, x in enumerate(leaves["x"]):
        found = step(case.operation, {**leaves, **states, "x": x}, case.eps)
        states = dict(zip(known.states, found, strict=True))
        loss = loss + (found[0] * torch.tensor(case.arrays["dy"].values[number], dtype=dtype)).sum()
    for name, last in zip(known.cotangents[1:], found[1:], strict=True):
        loss = loss + (last * torch.tensor(case.arrays[name].values, dtype=dtype)).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {f"d{name}": grad.double().numpy() for name, grad in zip(leaves, grads, strict=True)}


@pytest.mark.parametrize("name", CELLS)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_gradients_through_time_agree_with_autograd(name: str, dtype: str) -> None:
    case = sequence(name, dtype)
    unrolled = Unrolled(case, FORMATS[dtype])
    for gradient, value in gradients(case, torch.float64).items():
        exact = unrolled.pair(gradient).hi
        assert np.abs(exact - value).max() <= 1e-13 * max(1.0, np.abs(value).max())


@pytest.mark.parametrize("name", CELLS)
def test_float32_stays_within_a_bound_that_says_something(name: str) -> None:
    case = sequence(name, "float32", 20)
    unrolled = Unrolled(case, FORMATS["float32"])
    for gradient, value in gradients(case, torch.float32).items():
        exact, bound = unrolled.pair(gradient).hi, unrolled.bound(gradient)
        assert (np.abs(value - exact) / bound).max() < 1
        assert bound.max() < 0.1 * np.abs(exact).max()


def test_what_was_truncated_is_beyond_the_bound() -> None:
    case = sequence("ln_rnn", "float32", 20)
    dy = case.arrays["dy"].values.copy()
    dy[8:] = 0  # as if the steps from the ninth on handed nothing back
    cut = case.with_arrays(dy=FloatArray.of(dy, "float32"))
    unrolled = Unrolled(case, FORMATS["float32"])
    apart = np.abs(gradients(cut, torch.float64)["dx"][7] - unrolled.pair("dx").hi[7])
    assert (apart / unrolled.bound("dx")[7]).max() > 100


def test_a_contracting_case_has_small_gains_and_a_large_eps() -> None:
    case = sequence("ln_lstm", "float32")
    assert case.eps == EPS
    assert max(float(np.abs(case.arrays[name].values).max()) for name in operation("ln_lstm").gains) <= GAIN
