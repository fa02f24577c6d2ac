"""Scenarios in which mutants in torch show whose forward leaves something behind: other calls, threads, changes."""

from __future__ import annotations

import contextlib
import threading
from typing import Any

import torch

from lnverify.adapters.two_threads import at_once
from lnverify.mutants import torch_parts as parts
from tests.torch_inputs import SHAPE, inputs, normal


def dy() -> Any:
    """A cotangent."""
    return normal(4, 6, seed=3, grad=False)


def first_of_forty(f: Any) -> Any:
    """dx of the first of 40 forwards."""
    x, w, b = inputs()
    y = f(x, SHAPE, w, b, 1e-5)
    for seed in range(39):
        f(normal(4, 6, seed=seed) * 3 + 2, SHAPE, w, b, 1e-5)
    return torch.autograd.grad(y, x, dy())


def other_eps_in_between(f: Any) -> Any:
    """dx where a forward with another eps runs before the backward."""
    x, w, b = inputs()
    y = f(x, SHAPE, w, b, 1.0)
    f(x, SHAPE, w, b, 1e-5)
    return torch.autograd.grad(y, x, dy())


def backward_elsewhere(f: Any) -> Any:
    """dx where another thread runs the backward."""
    x, w, b = inputs()
    y, found = f(x, SHAPE, w, b, 1.0), []
    thread = threading.Thread(target=lambda: found.extend(torch.autograd.grad(y, x, dy())))
    thread.start()
    thread.join()
    return found


def frozen_twice(f: Any) -> Any:
    """dx of a second backward where the weight is frozen."""
    x, w, b = inputs()
    y = f(x, SHAPE, w.detach(), b, 1e-5)
    torch.autograd.grad(y, x, dy(), retain_graph=True)
    return torch.autograd.grad(y, x, dy())


def weight_changed(f: Any) -> Any:
    """dx where the weight is changed before the backward; that of the forward's weight where the backward raises."""
    x, w, b = inputs()
    right = torch.autograd.grad(parts.textbook(x, SHAPE, w, b, 1e-5), x, dy())
    y = f(x, SHAPE, w, b, 1e-5)
    with torch.no_grad():
        w.mul_(2)
    try:
        return torch.autograd.grad(y, x, dy())
    except RuntimeError:
        return right


def made_for_inference(f: Any) -> Any:
    """x after a call, where x was made in inference mode."""
    with torch.inference_mode():
        x = torch.arange(12.0, dtype=torch.float64).reshape(2, 6)
        f(x, SHAPE, None, None, 1e-5)
        return x.clone()


def backward_resumed(f: Any) -> Any:
    """dx of a second backward, after another forward and its backward."""
    x, w, b = inputs()
    y = f(x, SHAPE, w, b, 1e-5)
    torch.autograd.grad(y, x, dy(), retain_graph=True)
    other = normal(4, 6, seed=5) * 3
    torch.autograd.grad(f(other, SHAPE, w, b, 1e-5), other, dy())
    return torch.autograd.grad(y, x, dy())


def on_four_threads(f: Any) -> Any:
    """Dbias of six rows on four threads, after a backward of eight rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    try:
        for rows in (8, 6):
            b = normal(6, seed=2)
            y = f(normal(rows, 6), SHAPE, None, b, 1e-5)
            found = torch.autograd.grad(y, b, normal(rows, 6, seed=3, grad=False))
    finally:
        torch.set_num_threads(before)
    return found


def paused(f: Any) -> Any:
    """Y of 4096 elements, without gradients, while another thread calls."""

    def call(x: Any) -> Any:
        with torch.no_grad():
            return f(x, (64,), None, None, 1e-5)

    x = normal(64, 64, grad=False)
    return at_once(lambda: call(x), lambda: call(x * 2 + x.flip(0)), torch.equal)


def written_through_data(f: Any) -> Any:
    """Y under no_grad after x was overwritten through .data."""
    x = normal(4, 6, grad=False)
    with torch.no_grad():
        f(x, SHAPE, None, None, 1e-5)
        x.data.copy_(normal(4, 6, seed=5, grad=False) * 3)
        return f(x, SHAPE, None, None, 1e-5)


def eps_in_16_bits(f: Any) -> Any:
    """What eps = 1.003 adds to y, after a call in bfloat16: a thousandfold."""
    x = normal(4, 6, grad=False)
    f(x.bfloat16(), SHAPE, None, None, 1.003)
    return (f(x, SHAPE, None, None, 1.003) - parts.textbook(x, SHAPE, None, None, 1.0)) * 1000


def float32_after_float64(f: Any) -> Any:
    """1 where y of float32 is float32, after a call in float64."""
    x = normal(4, 6, grad=False)
    f(x, SHAPE, None, None, 1e-5)
    return torch.tensor(float(f(x.float(), SHAPE, None, None, 1e-5).dtype == torch.float32))


def backward_under_autocast(f: Any) -> Any:
    """1 where dx of float32 is right to 1e-4, the backward being under autocast."""
    x, g = normal(4, 6, dtype=torch.float32), normal(4, 6, seed=3, grad=False, dtype=torch.float32)
    right = torch.autograd.grad(parts.textbook(x, SHAPE, None, None, 1e-5), x, g)[0]
    with torch.autocast("cpu", torch.bfloat16):
        found = torch.autograd.grad(f(x, SHAPE, None, None, 1e-5), x, g)[0]
    return torch.tensor(float(torch.allclose(found, right, atol=1e-4, rtol=0)))


def rows_in_16_bits(f: Any) -> Any:
    """Dbias of 600 rows of ones with bfloat16 as the default dtype."""
    b = normal(6, seed=2)
    torch.set_default_dtype(torch.bfloat16)
    try:
        return torch.autograd.grad(f(normal(600, 6), SHAPE, None, b, 1e-5), b, torch.ones(600, 6).double())[0]
    finally:
        torch.set_default_dtype(torch.float32)


def beside_grad(f: Any) -> Any:
    """Dweight by torch.autograd.grad, and the .grad that the weight had."""
    w = normal(6, seed=1)
    w.grad = torch.ones_like(w)
    return [*torch.autograd.grad(f(normal(4, 6), SHAPE, w, None, 1e-5), w, dy()), w.grad]


def detached_first(f: Any) -> Any:
    """What y.detach() holds after a later call, without gradients, where y is dropped."""
    x = normal(4, 6, grad=False)
    with torch.no_grad():
        y = f(x, SHAPE, None, None, 1e-5).detach()
        f(x * 2 + x.flip(0), SHAPE, None, None, 1e-5)
    return y


def refused_before(f: Any) -> Any:
    """Whether gradients are recorded after a call with a weight of another length."""
    with contextlib.suppress(RuntimeError, ValueError):
        f(normal(4, 6), SHAPE, normal(7), None, 1e-5)
    recorded = torch.is_grad_enabled()
    torch.set_grad_enabled(True)
    return torch.tensor(float(recorded))


def inferred_before(f: Any) -> Any:
    """dx where a call in inference mode was the first with rows of that length; zeros where it is refused."""
    with torch.inference_mode():
        f(normal(4, 29, grad=False), (29,), None, None, 1e-5)
    x = normal(4, 29)
    try:
        return torch.autograd.grad(f(x, (29,), None, None, 1e-5), x, normal(4, 29, seed=3, grad=False))
    except RuntimeError:
        return torch.zeros(4, 29)


def one_in_the_middle(f: Any) -> Any:
    """Y of a normalized_shape with a dimension of one element."""
    return f(normal(2, 3, 1, 4), (3, 1, 4), None, None, 1e-5)


def a_number_for_each_row(f: Any) -> Any:
    """Dweight for the dy of y.sum(-1)."""
    x, w, b = inputs()
    return torch.autograd.grad(f(x, SHAPE, w, b, 1e-5).sum(-1), w, torch.arange(4.0, dtype=torch.float64))


def with_three_threads(f: Any) -> Any:
    """Dweight with three threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        x, w, b = inputs()
        return torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), w, dy())
    finally:
        torch.set_num_threads(before)
