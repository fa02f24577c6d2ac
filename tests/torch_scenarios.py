"""Scenarios in which mutants in torch show: values, first gradients, memory, state, shapes, modules."""

from __future__ import annotations

import copy
import threading
import warnings
from typing import Any

import numpy as np
import torch
from torch.nn.utils import prune

from lnverify.adapters.torch_tensors import hold
from lnverify.floats import FloatArray
from lnverify.mutants import torch_parts as parts
from tests.torch_inputs import SHAPE, inputs, normal


def gradients(f: Any, names: tuple[int, ...] = (0, 1, 2), weight: bool = True, rows: int = 4) -> list[Any]:
    """Gradients for the chosen arguments; the others need none."""
    given = [normal(rows, 6), normal(6, seed=1) if weight else None, normal(6, seed=2)]
    for i, tensor in enumerate(given):
        if tensor is not None:
            tensor.requires_grad_(i in names)
    y = f(given[0], SHAPE, given[1], given[2], 1e-5)
    return list(torch.autograd.grad(y, [given[i] for i in names], normal(rows, 6, seed=3, grad=False)))


def expanded_dy(f: Any) -> Any:
    """dx for the dy of y.sum(): one number with strides 0."""
    x, w, b = inputs()
    return torch.autograd.grad(f(x, SHAPE, w, b, 1e-5).sum(), x)


def permuted(f: Any) -> Any:
    """Y of a transposed x."""
    return f(normal(6, 4).detach().t(), SHAPE, None, None, 1e-5)


def in_float32(f: Any) -> Any:
    """x after a call on float32."""
    x, w, b = inputs(dtype=torch.float32)
    f(x, SHAPE, w, b, 1e-5)
    return x


def dy_after(f: Any) -> Any:
    """dy after a backward."""
    x, w, b = inputs()
    dy = normal(4, 6, seed=3, grad=False)
    torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), x, dy)
    return dy


def twice(f: Any) -> Any:
    """The gradients of the second of two equal calls."""
    gradients(f)
    return gradients(f)


def same_memory(f: Any) -> Any:
    """Y after x was overwritten, as a data loader does."""
    x = normal(4, 6, grad=False)
    f(x, SHAPE, None, None, 1e-5)
    x.copy_(normal(4, 6, seed=5, grad=False))
    return f(x, SHAPE, None, None, 1e-5)


def new_weight(f: Any) -> Any:
    """Y with a second weight."""
    x, w, _ = inputs(grad=False)
    f(x, SHAPE, w, None, 1e-5)
    return f(x, SHAPE, w + 1, None, 1e-5)


def without_gradients(f: Any) -> Any:
    """Y under no_grad."""
    with torch.no_grad():
        return f(*inputs()[:1], SHAPE, None, None, 1e-5)


def dtype_kept(f: Any, weight_dtype: Any) -> Any:
    """1 where y of bfloat16 x is bfloat16."""
    x, w = normal(4, 6, dtype=torch.bfloat16), normal(6, dtype=weight_dtype)
    return torch.tensor(float(f(x, SHAPE, w, None, 1e-5).dtype == torch.bfloat16))


def flat_refused(f: Any) -> Any:
    """1 where the gradient of a two-dimensional weight can be had."""
    w = normal(2, 3)
    try:
        torch.autograd.grad(f(normal(100, 2, 3), (2, 3), w, None, 1e-5).sum(), w)
    except RuntimeError:
        return torch.tensor(0.0)
    return torch.tensor(1.0)


def no_gradient(f: Any) -> Any:
    """1 where x gets a gradient."""
    x, w, b = inputs()
    f(x, SHAPE, w, b, 1e-5).sum().backward()
    return torch.tensor(float(x.grad is not None))


def weight_gradient_exists(f: Any) -> Any:
    """1 where the weight gets a gradient."""
    x, w, b = inputs()
    f(x, SHAPE, w, b, 1e-5).sum().backward()
    return torch.tensor(float(w.grad is not None))


def sliced(f: Any) -> Any:
    """Y of a part of a larger batch: the rows do not lie at one distance."""
    return f(normal(2, 5, 6, grad=False)[:, :3], SHAPE, None, None, 1e-5)


def expanded_x(f: Any) -> Any:
    """dx where every row of x is the same memory."""
    x, (_, w, b) = normal(1, 6, grad=False).expand(4, 6).requires_grad_(), inputs()
    return torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), x, normal(4, 6, seed=3, grad=False))


def middle_of_dy(f: Any) -> Any:
    """Gradients for a dy that is a part of a larger one in its second dimension."""
    x, w, b = normal(2, 3, 4, 6), normal(6, seed=1), normal(6, seed=2)
    dy = normal(2, 3, 7, 6, seed=3, grad=False)[:, :, :4]
    return torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), (x, w, b), dy)


def transposed_rest(f: Any) -> Any:
    """Y of the transposed rest of a batch, without gradients."""
    with torch.no_grad():
        return f(normal(4, 6, 3, grad=False)[2:].mT, (6,), None, None, 1e-5)


def part_of_a_weight(f: Any) -> Any:
    """Y with a weight that is a part of a larger matrix."""
    return f(normal(4, 2, 3, grad=False), (2, 3), normal(2, 5, seed=1, grad=False)[:, :3], None, 1e-5)


def padded(f: Any) -> Any:
    """Y of the first columns of a wider matrix."""
    return f(normal(4, 9, grad=False)[:, :6], SHAPE, None, None, 1e-5)


def x_without_gradients(f: Any) -> Any:
    """x after a call under no_grad."""
    x = normal(4, 6, grad=False)
    with torch.no_grad():
        f(x, SHAPE, None, None, 1e-5)
    return x


def trained_in_place(f: Any) -> Any:
    """Y under no_grad after the weight was changed where it lies."""
    x, w, _ = inputs(grad=False)
    with torch.no_grad():
        f(x, SHAPE, w, None, 1e-5)
        w.add_(1)
        return f(x, SHAPE, w, None, 1e-5)


def weights_one_after_the_other(f: Any) -> Any:
    """Y under no_grad of two weights, of which the second lies where the first one lay."""
    x, memory, ys = normal(4, 6, grad=False), np.ones(SHAPE), []
    with torch.no_grad():
        for scale in (1.0, 2.0):
            memory[:] = scale
            ys.append(f(x, SHAPE, torch.from_numpy(memory), None, 1e-5))
    return ys


def first_of_two(f: Any) -> Any:
    """The y of the first of two calls under no_grad."""
    x = normal(4, 6, grad=False)
    with torch.no_grad():
        y = f(x, SHAPE, None, None, 1e-5)
        f(x * 2 + x.flip(0), SHAPE, None, None, 1e-5)
    return y


def interleaved(f: Any) -> Any:
    """dx where another forward runs before the backward."""
    x, w, b = inputs()
    y = f(x, SHAPE, w, b, 1e-5)
    f(normal(4, 6, seed=5) * 3, SHAPE, w, b, 1e-5)
    return torch.autograd.grad(y, x, normal(4, 6, seed=3, grad=False))


def backward_again(f: Any) -> Any:
    """Dweight of a second backward."""
    x, w, b = inputs()
    y, dy = f(x, SHAPE, w, b, 1e-5), normal(4, 6, seed=3, grad=False)
    torch.autograd.grad(y, w, dy, retain_graph=True)
    return torch.autograd.grad(y, w, dy)


def changed_in_between(f: Any) -> Any:
    """dx where x is changed between forward and backward; that of the forward's x where the backward raises."""
    x, w, b = inputs()
    dy = normal(4, 6, seed=3, grad=False)
    right = torch.autograd.grad(parts.textbook(x, SHAPE, w, b, 1e-5), x, dy)
    y = f(x, SHAPE, w, b, 1e-5)
    with torch.no_grad():
        x.mul_(2)
    try:
        return torch.autograd.grad(y, x, dy)
    except RuntimeError:
        return right


def in_two_threads(f: Any) -> Any:
    """Y while another thread calls."""
    x = normal(4, 6, grad=False)
    other = threading.Thread(target=lambda: [f(x * 2 + 3, SHAPE, None, None, 1e-5) for _ in range(200)])
    other.start()
    found = [f(x, SHAPE, None, None, 1e-5) for _ in range(20)]
    other.join()
    right = parts.textbook(x, SHAPE, None, None, 1e-5)
    return max(found, key=lambda y: float((y - right).abs().max()))


def of_31_calls(f: Any) -> Any:
    """Y of the 31st call."""
    return [f(*inputs(grad=False)[:1], SHAPE, None, None, 1e-5) for _ in range(31)][-1]


def after_16_bits(f: Any) -> Any:
    """Y after a call on the same numbers in bfloat16."""
    x = normal(4, 6, grad=False)
    f(x.bfloat16(), SHAPE, None, None, 1e-5)
    return f(x, SHAPE, None, None, 1e-5)


def with_deterministic_algorithms(f: Any) -> Any:
    """Y for an eps of its own, under deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    try:
        return f(normal(4, 6, grad=False), SHAPE, None, None, 0.5)
    finally:
        torch.use_deterministic_algorithms(False)


def later_start(f: Any) -> Any:
    """Y and dx of slices that start at element 2."""
    x, dy = normal(30, grad=False)[2:26].view(4, 6).requires_grad_(), normal(30, seed=3, grad=False)[2:26].view(4, 6)
    y = f(x, SHAPE, None, None, 1e-5)
    return [y, *torch.autograd.grad(y, x, dy)]


def bias_afterwards(f: Any) -> Any:
    """The bias after y was changed, without gradients and with N = 1."""
    b = normal(1, grad=False)
    with torch.no_grad():
        f(normal(1, 1, grad=False), (1,), None, b, 1e-5).add_(1)
    return b


def output_changed(f: Any) -> Any:
    """dx where y is changed before the backward; that of the forward's y where the backward raises."""
    x, w, b = inputs()
    dy = normal(4, 6, seed=3, grad=False)
    right = torch.autograd.grad(parts.textbook(x, SHAPE, w, b, 1e-5), x, dy)
    y = f(x, SHAPE, w, b, 1e-5)
    y.detach().mul_(2)
    try:
        return torch.autograd.grad(y, x, dy)
    except RuntimeError:
        return right


def rows_far_apart(f: Any) -> Any:
    """Y of two rows that lie 2^31 elements apart, in memory of which only two pages exist."""
    x = hold(FloatArray.of(normal(2, 6, grad=False).numpy(), "float64"), "far", "cpu").tensor
    return f(x, SHAPE, None, None, 1e-5)


def gradient_read_later(f: Any) -> Any:
    """Dweight of the first of two backwards."""
    x, w, b = inputs()
    first = torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), w, normal(4, 6, seed=3, grad=False))[0]
    torch.autograd.grad(f(x, SHAPE, w, b, 1e-5), w, normal(4, 6, seed=4, grad=False))
    return first


def under_autocast(f: Any) -> Any:
    """Y of float32 under autocast."""
    with torch.autocast("cpu", torch.bfloat16):
        return f(normal(4, 6, grad=False, dtype=torch.float32) + 30, SHAPE, None, None, 1e-5)


def subnormal_afterwards(f: Any) -> Any:
    """A subnormal number times one, after a call, scaled up."""
    f(*inputs()[:1], SHAPE, None, None, 1e-5)
    found = torch.tensor(2.0**-1060, dtype=torch.float64) * 1.0
    torch.set_flush_denormal(False)
    return found * 2.0**1000 * 2.0**60


def longer_weight(f: Any) -> Any:
    """1 where a weight that is too long is refused."""
    try:
        f(normal(4, 6, grad=False), SHAPE, normal(7, seed=1, grad=False), None, 1e-5)
    except RuntimeError:
        return torch.tensor(1.0)
    return torch.tensor(0.0)


def far_down(f: Any) -> Any:
    """The last of 65537 rows."""
    return f(normal(65537, 2, grad=False), (2,), None, None, 1e-5)[-1]


def very_far_down(f: Any) -> Any:
    """The last of 262145 rows."""
    return f(normal(262145, 2, grad=False), (2,), None, None, 1e-5)[-1]


def gradients_of_very_many(f: Any) -> Any:
    """Gradients of the parameters of 2^20 + 3 rows."""
    x, w, b = normal((1 << 20) + 3, 2, grad=False), normal(2, seed=1), normal(2, seed=2)
    dy = torch.zeros_like(x)
    dy[-3:] = 1.0
    return torch.autograd.grad(f(x, (2,), w, b, 1e-5), (w, b), dy)


def long_sequence(f: Any) -> Any:
    """The last position of a sequence of 65536."""
    return f(normal(1, 65536, 2, grad=False), (2,), None, None, 1e-5)[:, -1]


def long_row(f: Any) -> Any:
    """The last numbers of a long row, whose last element lies far off."""
    x = torch.arange(262145.0, dtype=torch.float64) % 8
    x[-1] = 100.0
    return f(x[None], (262145,), None, None, 1e-5)[:, -4:]


def no_elements(f: Any) -> Any:
    """How many numbers y of empty rows has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.tensor(float(f(torch.zeros(2, 0), (0,), None, None, 1e-5).numel()))


def state_names(cls: Any) -> Any:
    """Names in the state dict."""
    return sorted(cls(6).state_dict())


def copied_weight(cls: Any) -> Any:
    """The weight of a module whose deep copy was changed."""
    module = cls(6)
    copy.deepcopy(module).weight = torch.nn.Parameter(torch.full((6,), 7.0))
    return module.weight.tolist()


def with_a_new_bias(cls: Any) -> Any:
    """Y of a constant row with a bias that was assigned."""
    module = cls(6)
    module.bias = torch.nn.Parameter(torch.full((6,), 7.0))
    return module(torch.ones(6)).tolist()


def reset_and_written(cls: Any) -> Any:
    """Y of a constant row after a reset, where the bias of before is then filled with sevens."""
    module = cls(6)
    before = module.bias
    getattr(module, "reset_parameters", list)()
    before.data.fill_(7.0)
    return module(torch.ones(6)).tolist()


def with_a_pruned_bias(cls: Any) -> Any:
    """Y of a constant row with a bias of sevens that was pruned by a mask of ones."""
    module = cls(6)
    module.bias.data.fill_(7.0)
    prune.custom_from_mask(module, "bias", torch.ones(6))
    return module(torch.ones(6)).tolist()


def trained_then_evaluated(cls: Any) -> Any:
    """Y in eval mode after a training call on other data and a change of the weight."""
    module = cls(6, dtype=torch.float64)
    module(normal(4, 6) + 3)
    module.eval()
    with torch.no_grad():
        module.weight.copy_(normal(6, seed=1))
    return module(normal(4, 6, seed=5)).detach().numpy().round(9).tolist()
