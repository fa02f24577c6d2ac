"""Each mutant in torch is wrong in the scenario that its bug needs, where the right code is right."""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable
from typing import Any

import pytest

from lnverify.mutants import Mutant, all_mutants

torch = pytest.importorskip("torch")
parts = pytest.importorskip("lnverify.mutants.torch_parts")

MUTANTS = {m.id: m for m in all_mutants() if m.framework == "torch"}
DERIVABLE = parts.hand_written(recompute=True)
SHAPE = (6,)


@pytest.fixture(autouse=True)
def subnormal_numbers() -> Any:
    """One mutant switches their flushing on, for the whole process: it is switched off after every test."""
    yield
    torch.set_flush_denormal(False)


def normal(*shape: int, seed: int = 0, grad: bool = True, dtype: Any = torch.float64) -> Any:
    """Normal numbers."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_(grad)


def inputs(**kwargs: Any) -> tuple[Any, Any, Any]:
    """x, weight and bias, leaves."""
    return normal(4, 6, **kwargs), normal(6, seed=1, **kwargs), normal(6, seed=2, **kwargs)


def gradients(f: Any, names: tuple[int, ...] = (0, 1, 2), weight: bool = True, rows: int = 4) -> list[Any]:
    """Gradients for the chosen arguments; the others need none."""
    given = [normal(rows, 6), normal(6, seed=1) if weight else None, normal(6, seed=2)]
    for i, tensor in enumerate(given):
        if tensor is not None:
            tensor.requires_grad_(i in names)
    y = f(given[0], SHAPE, given[1], given[2], 1e-5)
    return list(torch.autograd.grad(y, [given[i] for i in names], normal(rows, 6, seed=3, grad=False)))


def second_order(f: Any, wanted: str, weight: bool = True) -> Any:
    """The gradient of a random combination of the first gradients for x, dy or the weight."""
    x, w, b = inputs()
    dy = normal(4, 6, seed=3)
    leaves = {"x": x, **({"weight": w} if weight else {}), "bias": b}
    y = f(x, SHAPE, w if weight else None, b, 1e-5)
    first = torch.autograd.grad(y, list(leaves.values()), dy, create_graph=True)
    total = sum((g * normal(*g.shape, seed=9, grad=False)).sum() for g in first)
    return torch.autograd.grad(total, {**leaves, "dy": dy}[wanted])


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


def tangent(f: Any) -> Any:
    """The derivative along (tx, tweight, tbias)."""
    given = inputs(grad=False)
    along = [normal(*t.shape, seed=7 + i, grad=False) + 1 for i, t in enumerate(given)]
    forward_ad = torch.autograd.forward_ad
    # torch compiles its own forward rules with torch.jit.script, which it deprecates.
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore", DeprecationWarning)
        x, w, b = (forward_ad.make_dual(t, v) for t, v in zip(given, along, strict=True))
        return forward_ad.unpack_dual(f(x, SHAPE, w, b, 1e-5)).tangent


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


def second_tangent(f: Any) -> Any:
    """The second derivative of y along one direction, forward mode over forward mode."""
    x, t = normal(4, 6, grad=False), normal(4, 6, seed=7, grad=False)

    def jvp(x: Any) -> Any:
        return torch.func.jvp(lambda x: f(x, SHAPE, None, None, 1e-5), (x,), (t,))[1]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(jvp, (x,), (t,))[1]


def third_order(f: Any) -> Any:
    """The third derivative of one output by one input."""
    x = normal(4, 6)
    g = f(x, SHAPE, None, None, 1e-5)[0, 0]
    for _ in range(3):
        g = torch.autograd.grad(g, x, create_graph=True)[0][0, 0]
    return g


def own_parameters(f: Any) -> Any:
    """Y where each sample has a weight of its own."""
    x, w, _ = inputs(grad=False)
    weights = torch.stack([w * k for k in range(1, 5)])
    return torch.func.vmap(lambda x, w: f(x, SHAPE, w, None, 1e-5))(x, weights)


def weights_alone(f: Any) -> Any:
    """Y of one x with several weights."""
    x, w, _ = inputs(grad=False)
    return torch.func.vmap(lambda w: f(x, SHAPE, w, None, 1e-5))(torch.stack([w, w * 2, w * 3]))


def batch_last(f: Any) -> Any:
    """Y where the batch is the last dimension of x."""
    x = normal(6, 6, 6, grad=False)
    return torch.func.vmap(lambda x: f(x, SHAPE, None, None, 1e-5), in_dims=2)(x)


def weight_tangent(f: Any) -> Any:
    """The derivative along the weight alone."""
    x, w, b = inputs(grad=False)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(lambda w: f(x, SHAPE, w, b, 1e-5), (w,), (normal(6, seed=8, grad=False),))[1]


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


def weight_and_gradient(f: Any) -> Any:
    """The derivative of dx along the weight, forward over reverse."""
    x, w, b = inputs(grad=False)
    dy, t = normal(4, 6, seed=3, grad=False), normal(6, seed=8, grad=False)

    def dx(w: Any) -> Any:
        return torch.func.vjp(lambda x: f(x, SHAPE, w, b, 1e-5), x)[1](dy)[0]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return torch.func.jvp(dx, (w,), (t,))[1]


def per_sample(f: Any) -> Any:
    """Dweight of each sample, the weight being the same for all."""
    x, w, b = inputs(grad=False)

    def dweight(x: Any, dy: Any) -> Any:
        return torch.func.vjp(lambda w: f(x[None], SHAPE, w, b, 1e-5), w)[1](dy[None])[0]

    return torch.func.vmap(dweight)(x, normal(4, 6, seed=3, grad=False))


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


def no_elements(f: Any) -> Any:
    """How many numbers y of empty rows has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        return torch.tensor(float(f(torch.zeros(2, 0), (0,), None, None, 1e-5).numel()))


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "dweight-needs-dx": lambda f: gradients(f, (1, 2)),
    "dx-needs-dweight": lambda f: gradients(f, (0, 2)),
    "dweight-not-returned": weight_gradient_exists,
    "dy-strides-ignored": expanded_dy,
    "x-strides-ignored": permuted,
    "dy-overwritten-torch": dy_after,
    "x-centred-in-place-torch": in_float32,
    "output-promoted": lambda f: dtype_kept(f, torch.float32),
    "output-wide": lambda f: dtype_kept(f, torch.bfloat16),
    "no-backward": no_gradient,
    "flat-parameter-gradient-torch": flat_refused,
    "scratch-accumulates": twice,
    "cached-by-address": same_memory,
    "first-weight-kept": new_weight,
    "inference-path-unbiased": without_gradients,
    "row-stride-guessed": sliced,
    "row-stride-assumed": padded,
    "no-grad-in-place": x_without_gradients,
    "weight-by-identity": trained_in_place,
    "one-output-buffer": first_of_two,
    "statistics-of-last-forward": interleaved,
    "second-backward-accumulates": backward_again,
    "kept-as-attributes": changed_in_between,
    "shared-scratch": in_two_threads,
    "wrong-at-times": of_31_calls,
    "second-derivative-off": second_tangent,
    "third-derivative-off": third_order,
    "vmap-first-parameters": own_parameters,
    "parameters-resized": longer_weight,
    "empty-rows-padded": no_elements,
    "rows-lost-in-torch": far_down,
    "create-graph-path": lambda f: second_order(f, "x"),
    "double-backward-constants": lambda f: second_order(f, "x"),
    "double-backward-bias-lost": lambda f: second_order(f, "dy", weight=False),
    "double-backward-weight-lost": lambda f: second_order(f, "x"),
    "jvp-wants-x": weight_tangent,
    "one-gradient-buffer": gradient_read_later,
    "sums-by-products": under_autocast,
    "subnormals-flushed-for-all": subnormal_afterwards,
    "tangent-lost-in-backward": weight_and_gradient,
    "vmap-samples-as-rows": per_sample,
    "vmap-parameters-alone": weights_alone,
    "vmap-other-dimension": batch_last,
    "start-rounded-down": later_start,
    "dy-start-rounded-down": later_start,
    "bias-for-one-element": bias_afterwards,
    "y-kept-as-attribute": output_changed,
    "jvp-without-mean": tangent,
    "jvp-without-parameters": tangent,
}


def state_names(cls: Any) -> Any:
    """Names in the state dict."""
    return sorted(cls(6).state_dict())


def copied_weight(cls: Any) -> Any:
    """The weight of a module whose deep copy was changed."""
    module = cls(6)
    copy.deepcopy(module).weight = torch.nn.Parameter(torch.full((6,), 7.0))
    return module.weight.tolist()


def trained_then_evaluated(cls: Any) -> Any:
    """Y in eval mode after a training call on other data and a change of the weight."""
    module = cls(6, dtype=torch.float64)
    module(normal(4, 6) + 3)
    module.eval()
    with torch.no_grad():
        module.weight.copy_(normal(6, seed=1))
    return module(normal(4, 6, seed=5)).detach().numpy().round(9).tolist()


CLASSES: dict[str, Callable[[Any], Any]] = {
    "module-eps-not-forwarded": lambda c: c(6, eps=0.5)(torch.arange(6.0)).tolist(),
    "module-weight-zero": lambda c: c(6).weight.tolist(),
    "module-bias-one": lambda c: c(6).bias.tolist(),
    "module-bias-always": lambda c: c(6, bias=False).bias is None,
    "module-affine-always": lambda c: c(6, elementwise_affine=False).weight is None,
    "module-stays-wide": lambda c: c(6).to(torch.bfloat16)(torch.ones(2, 6, dtype=torch.bfloat16)).dtype,
    "module-state-without-bias": state_names,
    "module-shared-copies": copied_weight,
    "module-stale-weight": trained_then_evaluated,
    "module-last-statistics": trained_then_evaluated,
    "module-running-mean": trained_then_evaluated,
}


# What a written autograd function cannot do: forward mode, vmap, a third derivative.
COMPOSED = (
    "jvp-without-mean", "jvp-without-parameters", "jvp-wants-x", "second-derivative-off", "third-derivative-off",
    "tangent-lost-in-backward", "vmap-first-parameters", "vmap-parameters-alone", "vmap-other-dimension",
    "vmap-samples-as-rows",
)  # fmt: skip


def test_every_torch_mutant_has_a_scenario() -> None:
    assert set(MUTANTS) == {*FUNCTIONS, *CLASSES, "module-dropout"}


@pytest.mark.parametrize("id", list(FUNCTIONS))
def test_function_is_wrong_in_its_scenario(id: str) -> None:
    def values(f: Any) -> Any:
        out = FUNCTIONS[id](f)
        out = out if isinstance(out, list | tuple) else [out]
        return [t.detach().double() for t in out]

    mutant: Mutant = MUTANTS[id]
    got = values(mutant.target() if mutant.fresh else mutant.target)
    textbook, derivable = values(parts.textbook), values(parts.textbook if id in COMPOSED else DERIVABLE)
    assert all(torch.allclose(a, b, rtol=1e-9) for a, b in zip(textbook, derivable, strict=True))
    assert any(not torch.allclose(a, b, rtol=1e-3, atol=1e-3) for a, b in zip(got, textbook, strict=True))


@pytest.mark.parametrize("id", list(CLASSES))
def test_module_is_wrong_in_its_scenario(id: str) -> None:
    assert CLASSES[id](MUTANTS[id].target) != CLASSES[id](parts.Module)


def test_dropout_is_on_in_train_mode_only() -> None:
    torch.manual_seed(0)
    module, x = MUTANTS["module-dropout"].target(64), torch.arange(64.0)
    assert not torch.equal(module(x), module(x))
    assert torch.equal(module.eval()(x), module(x))
