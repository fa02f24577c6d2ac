"""Transforms of a torch subject: forward over forward, reverse over forward, forward over reverse, the third
derivative, vmap, and gradients through returned statistics.

Every transform is one wanted output of a request ('vmap': y and the first gradients, as they are without it;
'vmap_last': the same with the batch of x in its last dimension; 'vmap_parameters': y of every row of x under a
batch of parameters; 'vmap_of_x_bias' and so on: the same as 'vmap' of all rows at once, a sample among others that have
another x and bias, and the weight of all; 'vmap_second': as 'vmap_of_x', with the batch in the second dimension).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations
from typing import Any

from lnverify.adapters.calling import split

# What vmap may have a batch of, the rest being the same for all samples; 'vmap' gives everything a batch.
BATCHED = tuple(chosen for count in (1, 2) for chosen in combinations(("x", "weight", "bias"), count))
OF = {"vmap_of_" + "_".join(chosen): chosen for chosen in BATCHED}
TRANSFORMS = (
    "tty", "rty", "fdx", "d3x", "vmap", "vmap_last", "vmap_parameters", "vmap_samples", "vmap_second", "statistics_dx",
    *OF,
)  # fmt: skip
Tensors = Mapping[str, Any]
Call = Callable[[Tensors], Any]


def transformed(run: Any, name: str, leaves: Tensors, call: Call) -> None:
    """Give the output of one transform. run: the request in progress (torch_call); raises what torch raises."""
    run.state.phase = {
        "tty": "nested jvp",
        "rty": "gradient of the jvp",
        "fdx": "jvp of dx",
        "d3x": "third derivative",
    }.get(name, name)
    transforms: dict[str, Callable[[Any, Tensors, Call], None]] = {
        "tty": _nested, "rty": _of_jvp, "fdx": _of_vjp, "d3x": _third, "vmap": _vmap,
        "vmap_last": partial(_vmap, last=True), "vmap_parameters": _vmap_parameters, "vmap_samples": _vmap_samples,
        "vmap_second": partial(_vmap_of, ("x",), place=1), "statistics_dx": _of_statistics,
        **{name: partial(_vmap_of, chosen) for name, chosen in OF.items()},
    }  # fmt: skip
    transforms[name](run, leaves, call)


def _of_x(run: Any, leaves: Tensors, call: Call) -> tuple[Callable[[Any], Any], Any]:
    """y as a function of x alone, and x."""
    others = {name: leaf.detach() for name, leaf in leaves.items()}

    def function(x: Any) -> Any:
        return run.first(call({**others, "x": x}))

    return function, others["x"]


def _nested(run: Any, leaves: Tensors, call: Call) -> None:
    """The jvp along tx, differentiated along sx."""
    import torch

    function, x = _of_x(run, leaves, call)
    tx, sx = run.fresh("tx"), run.fresh("sx")

    def tangent(x: Any) -> Any:
        return torch.func.jvp(function, (x,), (tx,))[1]

    run.give("tty", torch.func.jvp(tangent, (x,), (sx,))[1])


def _of_jvp(run: Any, leaves: Tensors, call: Call) -> None:
    """The gradient of <dy, jvp along tx> for x."""
    import torch

    function, x = _of_x(run, leaves, call)
    tx, dy = run.fresh("tx"), run.fresh("dy")
    _, pull = torch.func.vjp(lambda x: torch.func.jvp(function, (x,), (tx,))[1], x)
    run.give("rty", pull(dy)[0])


def _of_vjp(run: Any, leaves: Tensors, call: Call) -> None:
    """The jvp of dx along tx, tweight and tbias, those that are present."""
    import torch

    values = {name: leaf.detach() for name, leaf in leaves.items()}
    names = [name for name in values if f"t{name}" in run.request.arrays]
    dy = run.fresh("dy")

    def dx(*given: Any) -> Any:
        moved = {**values, **dict(zip(names, given, strict=True))}
        x = moved.pop("x")
        return torch.func.vjp(lambda x: run.first(call({"x": x, **moved})), x)[1](dy)[0]

    tangents = tuple(run.fresh(f"t{name}").reshape(values[name].shape) for name in names)
    found = torch.func.jvp(dx, tuple(values[name] for name in names), tangents)[1]
    if _scripted(run.first(call(leaves)).grad_fn):
        raise NotImplementedError("what torch.jit.script compiled loses tangents in its backward")
    run.give("fdx", found)


def _scripted(node: Any) -> bool:
    """Whether the graph of a result has a part that torch.jit.script compiled.

    In torch 2.13 the tangent of such a part's backward is wrong, whatever the part computes.
    """
    seen, left = set(), [node]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        if "DifferentiableGraph" in node.name():
            return True
        seen.add(node)
        left += [following for following, _ in node.next_functions]
    return False


def _third(run: Any, leaves: Tensors, call: Call) -> None:
    """The gradient for x of <d2x, wx>, d2x that of <dx, vx> + <dweight, vweight> + <dbias, vbias>."""
    import torch

    y = run.first(call(leaves))
    inputs = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    first = torch.autograd.grad(y, list(inputs.values()), run.fresh("dy"), create_graph=True, allow_unused=True)
    chosen = [
        (grad, run.fresh(f"v{name}").reshape(grad.shape))
        for name, grad in zip(inputs, first, strict=True)
        if grad is not None and grad.requires_grad
    ]
    second = torch.autograd.grad([g for g, _ in chosen], leaves["x"], [v for _, v in chosen], create_graph=True)
    run.give("d3x", torch.autograd.grad(second[0], leaves["x"], run.fresh("wx"))[0])


def _of_statistics(run: Any, leaves: Tensors, call: Call) -> None:
    """The gradient of x for the cotangents dmean and drstd of what is returned beside y, y being unused."""
    import torch

    _, _, named = split(call(leaves), run.returns)
    chosen = [(named[name], run.fresh(f"d{name}")) for name in ("mean", "rstd") if f"d{name}" in run.request.arrays]
    cotangents = [v.reshape(statistic.shape).to(statistic.dtype) for statistic, v in chosen]
    (found,) = torch.autograd.grad([statistic for statistic, _ in chosen], leaves["x"], cotangents, allow_unused=True)
    run.give("statistics_dx", torch.zeros_like(leaves["x"]) if found is None else found)


def _vmap_parameters(run: Any, leaves: Tensors, call: Call) -> None:
    """y of every sample of x, each under the parameters of the next one: those of sample r are times 2^(r mod 4).

    All samples see all of x, which has no batch of its own; y is divided by the power again. Not a number where y has
    not the shape (samples, *x.shape).
    """
    import torch

    x = leaves["x"].detach()
    scale = torch.exp2(torch.arange(x.shape[0], device=x.device) % 4).to(x.dtype)
    parameters = {name: leaf.detach() for name, leaf in leaves.items() if name != "x"}
    batched = [torch.stack([t * s.to(t.dtype) for s in scale]) for t in parameters.values()]

    def one(*values: Any) -> Any:
        return run.first(call({"x": x, **dict(zip(parameters, values, strict=True))}))

    y = torch.func.vmap(one)(*batched)
    if y.shape != (x.shape[0], *x.shape):
        run.give("y", torch.full_like(x, torch.nan))
        return
    rows = torch.arange(x.shape[0], device=x.device)
    following = (rows + 1) % x.shape[0]
    run.give("y", y[following, rows] / scale[following].reshape(-1, *[1] * (x.dim() - 1)))


def _vmap_of(chosen: tuple[str, ...], run: Any, leaves: Tensors, call: Call, place: int = 0) -> None:
    """y and the first gradients of the chosen arguments for the second of three samples, the others having other values
    of these. place: the dimension of their batch."""
    import torch

    values = {name: leaf.detach() for name, leaf in leaves.items()}
    batches = [torch.stack([values[name] * -2 + 1, values[name], values[name] * 0.5 - 2], place) for name in chosen]

    def one(*given: Any) -> Any:
        return run.first(call({**values, **dict(zip(chosen, given, strict=True))}))

    def pulled(dy: Any, *given: Any) -> Any:
        return torch.func.vjp(one, *given)[1](dy)

    y = torch.func.vmap(one, in_dims=place)(*batches)
    run.give("y", y[1] if y.shape == (3, *values["x"].shape) else y)
    wanted = [name for name in chosen if f"d{name}" in run.request.wanted]
    if wanted:
        dy = run.fresh("dy")
        pull = torch.func.vmap(pulled, in_dims=(0, *(place for _ in batches)))
        grads = dict(zip(chosen, pull(torch.stack([dy * 2, dy, dy * 3]), *batches), strict=True))
        for name in wanted:
            run.give(f"d{name}", grads[name][1])


def _vmap_samples(run: Any, leaves: Tensors, call: Call) -> None:
    """First gradients of each sample under parameters that all share; those of the parameters are then summed."""
    import torch

    values = {name: leaf.detach() for name, leaf in leaves.items()}
    parameters = [values[name] for name in values if name != "x"]

    def pulled(x: Any, dy: Any) -> Any:
        def one(*given: Any) -> Any:
            return run.first(call(dict(zip(values, given, strict=True))))

        return torch.func.vjp(one, x, *parameters)[1](dy)

    grads = torch.func.vmap(pulled)(values["x"], run.fresh("dy"))
    for name, grad in zip(values, grads, strict=True):
        if f"d{name}" in run.request.wanted:
            run.give(f"d{name}", grad if name == "x" else grad.sum(0))


def _vmap(run: Any, leaves: Tensors, call: Call, last: bool = False) -> None:
    """y and the first gradients by vmap over the first dimension of x, with parameters of its own for each sample.

    Sample r gets weight and bias times 2^(r mod 4), dy over it: a power of two is exact, so that what comes back is
    what one call gives, after y is divided and dweight and dbias are multiplied by it and summed.
    """
    import torch

    x = leaves["x"].detach()
    scale = torch.exp2(torch.arange(x.shape[0], device=x.device) % 4).to(x.dtype)
    parameters = {name: leaf.detach() for name, leaf in leaves.items() if name != "x"}
    batched = {name: torch.stack([t * s.to(t.dtype) for s in scale]) for name, t in parameters.items()}
    names = ["x", *parameters]
    if "weight" not in parameters:  # nothing scales y then, and a bias alone stays as it is
        batched = {name: torch.stack([t] * x.shape[0]) for name, t in parameters.items()}
        scale = torch.ones_like(scale)

    def one(*values: Any) -> Any:
        return run.first(call(dict(zip(names, values, strict=True))))

    def column(t: Any) -> Any:
        return scale.to(t.dtype).reshape(-1, *[1] * (t.dim() - 1))

    given = (x.movedim(0, -1) if last else x, *batched.values())
    places = (x.dim() - 1 if last else 0, *(0 for _ in batched))
    y = torch.func.vmap(one, in_dims=places)(*given)
    run.give("y", y / column(y) if y.shape == x.shape else y)
    wanted = [name for name in names if f"d{name}" in run.request.wanted]
    if not wanted or y.shape != x.shape:
        return

    def pulled(dy: Any, *values: Any) -> Any:
        return torch.func.vjp(one, *values)[1](dy)

    dy = run.fresh("dy")
    grads = torch.func.vmap(pulled, in_dims=(0, *places))(dy / column(dy), *given)
    for name, grad in zip(names, grads, strict=True):
        if name in wanted:
            found = grad if name == "x" else (grad * column(grad)).sum(0)
            run.give(f"d{name}", found.to(leaves[name].dtype))
