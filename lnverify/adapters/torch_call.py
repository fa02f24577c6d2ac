"""Answer a Request with torch: forward, gradients, jvp, double backward; used by every torch adapter.

Rules of this file: gradients come back in the dtype and shape that torch gave them, never cast; a gradient
that is None is absent; whatever the subject raises is a refusal with the phase in which it was raised.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any

from lnverify.adapters.calling import Attempt, attempt, named_gradients, refuse_within, saved_values, split
from lnverify.adapters.destinations import Destination, Writing
from lnverify.adapters.signature import Signature, axis, own_values
from lnverify.adapters.torch_history import (
    crowd,
    in_other_precision,
    later_calls,
    on_a_stream,
    other_eps,
    others,
    overwritten,
    surrounded,
    view_alone,
    while_others_call,
    without_gradients,
)
from lnverify.adapters.torch_parameters import APART, staying
from lnverify.adapters.torch_repeated import repeated
from lnverify.adapters.torch_settings import grad_mode_kept, restored, running_on, settings
from lnverify.adapters.torch_tensors import Held, hold, to_array, to_bits, to_tensor
from lnverify.adapters.torch_transforms import TRANSFORMS, transformed
from lnverify.adapters.two_threads import elsewhere
from lnverify.operation import operation
from lnverify.protocol import VIEWS, Request, Response, later

Tensors = Mapping[str, Any]
# Given the request and its tensors: the leaves to differentiate by, and the forward as a function of leaves.
Bind = Callable[[Request, Tensors], tuple[dict[str, Any], Callable[[Tensors], Any]]]


def outputs(
    arguments: tuple[str, ...], returns: tuple[str, ...], separate_backward: bool, written: bool = False,
    differentiated: tuple[str, ...] = ("y",),
) -> tuple[str, ...]:  # fmt: skip
    """What a torch subject with these arguments can be asked for. written: into tensors that it is given, which
    autograd does not follow. differentiated: the outputs of the operation, which have tangents and cotangents."""
    if written and not separate_backward:
        return ("y", *(n for n in returns if n in ("mean", "rstd")))
    first = (*(n for n in returns if n in ("mean", "rstd")), *(f"d{name}" for name in arguments))
    if separate_backward:
        return ("y", *first)
    transforms = [t for t in TRANSFORMS if t != "statistics_dx" or {"mean", "rstd"} & {*returns}]
    tangents, twice = ([form + name for name in differentiated] for form in ("t", "d2d"))
    return ("y", *first, *tangents, *(f"d2{name}" for name in arguments), *twice, *transforms)


def scalars(request: Request) -> dict[str, Any]:
    """The values that are no arrays, by our names."""
    return {
        "eps": request.eps,
        "normalized_shape": request.normalized_shape,
        "axis": axis(request.normalized_shape),
        "dtype": request.arrays["x"].dtype,
        **own_values(request),
    }


def answer(
    request: Request,
    bind: Bind,
    returns: tuple[str, ...] = ("y",),
    backward: tuple[Callable[..., Any], Signature | Writing] | None = None,
    module: bool = False,
) -> Response:
    """Run the subject once per forward that the wanted outputs need.

    module: the parameters are those of a module, which stay where they are. What a function is given comes and goes,
    and other tensors lie there afterwards.
    """
    with running_on(request.threads):
        return _answer(request, bind, returns, backward, module)


def _answer(
    request: Request,
    bind: Bind,
    returns: tuple[str, ...],
    backward: tuple[Callable[..., Any], Signature | Writing] | None,
    module: bool,
) -> Response:
    import torch

    known = operation(request.operation)
    arguments = tuple(n for n in known.arguments if n in request.arrays)
    held = {
        name: hold(request.arrays[name], request.layouts.get(name, "contiguous"), request.device)
        for name in (*arguments, *known.beside, *known.cotangents)
        if name in request.arrays and not (name == "dy" and request.layouts.get(name) == "output")
    }
    if request.grad_mode == "inference" and not request.requires_grad:
        with torch.inference_mode():  # made there, x is a tensor that keeps no version
            held["x"] = hold(request.arrays["x"], request.layouts.get("x", "contiguous"), request.device)
    tensors = {name: held[name].tensor for name in (*arguments, *known.beside) if name in held}
    for name in known.parameters if module else ():
        if name in tensors:
            APART.add(tensors[name])

    def body(state: Attempt) -> None:
        run = _Run(request, state, arguments, held, returns)
        if backward is not None and not request.repeat:
            run.with_backward(*bind(request, tensors), *backward)
            return
        for name in arguments:
            if name in request.requires_grad:
                tensors[name].requires_grad_()
        leaves, call = bind(request, tensors)
        run.with_other_eps = lambda: bind(replace(request, eps=other_eps(request.eps)), tensors)[1]
        transform = next((name for name in TRANSFORMS if name in request.wanted), None)
        tangents = {f"t{name}" for name in known.outputs}
        if request.repeat:
            repeated(run, leaves, call)
        elif transform is not None:
            transformed(run, transform, leaves, call)
        elif not tangents >= set(request.wanted):
            run.with_autograd(leaves, call)
        if tangents & set(request.wanted):
            run.jvp(leaves, call)
        run.look_for_changes()

    before = settings()
    response = attempt(body)
    changed = restored(before)
    return replace(response, changed=(*response.changed, *changed)) if changed else response


def writing(request: Request, signature: Signature, names: tuple[str, ...], overrun: list[str]) -> Writing:
    """Calls that also give the tensors that a subject writes into."""

    def give(made: Destination) -> tuple[Any, Callable[[], None]]:
        storage = to_tensor(made.buffer, made.dtype).to(request.device)
        inner = storage[made.band : storage.numel() - made.band].view(made.shape)

        def back() -> None:
            if request.device != "cpu":  # there the tensor lies over the buffer itself
                made.buffer[...] = to_bits(storage)

        return inner, back

    return Writing(signature, request, names, give, overrun)


class _Run:
    """One request in progress."""

    def __init__(
        self,
        request: Request,
        state: Attempt,
        arguments: tuple[str, ...],
        held: Mapping[str, Held],
        returns: tuple[str, ...],
    ) -> None:
        self.request = request
        self.state = state
        self.arguments = arguments
        self.held = held
        self.returns = returns
        self.storages = {h.tensor.untyped_storage().data_ptr() for h in held.values()} - {0}
        self.own_dy: tuple[Any, Any] | None = None
        self.with_other_eps: Callable[[], Callable[[Tensors], Any]] | None = None

    def look_for_changes(self) -> None:
        """Name the arguments whose bits the subject changed."""
        self.state.changed.extend(name for name, held in self.held.items() if held.changed())
        if self.own_dy is not None and not to_array(self.own_dy[0], "dy").same_bits(self.own_dy[1]):
            self.state.changed.append("dy")

    def give(self, name: str, tensor: Any) -> None:
        """Put a result into the response."""
        self.state.arrays[name] = to_array(tensor, name)
        if tensor.untyped_storage().data_ptr() in self.storages:
            self.state.aliases.append(name)

    def forward(self, leaves: Tensors, call: Callable[[Tensors], Any]) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
        """Call the subject and give what is wanted of its direct results."""
        import torch

        modes = {"enabled": torch.enable_grad, "no_grad": torch.no_grad, "inference": torch.inference_mode}
        self.state.phase = "forward"
        history = self.request.history
        mode, kept = modes[self.request.grad_mode], grad_mode_kept(self.state.changed)
        with mode(), kept, surrounded(history, self.request.device):
            if history in ("overwritten", "unversioned"):
                with overwritten(leaves, versioned=history == "overwritten"):
                    call(leaves)
            if history in ("lower", "higher"):
                in_other_precision(history, leaves, call)
            if history == "threads":
                returned = while_others_call(leaves, without_gradients(call), self.first)
            else:
                with staying() if history == "overwritten" else nullcontext():
                    returned = on_a_stream(leaves, call) if history == "stream" else call(leaves)
            y, extra, named = split(returned, self.returns)
            if history == "followed":
                call(others(leaves))
            if history in VIEWS:
                shape = y.shape
                y = returned = view_alone(history, y)
                named.pop("y", None)
                later_calls(leaves, call)
                y = y.view(shape)
            if history == "crowded":
                crowd(leaves, call, self.with_other_eps)
        # Before the backward, which might write into what the forward returned.
        for name, value in {**named, "y": y}.items():
            if name in self.request.wanted:
                self.give(name, value)
        for name in operation(self.request.operation).tracked:
            if name in self.request.wanted and name in self.held:
                self.give(name, self.held[name].tensor)
        if not isinstance(y, torch.Tensor):
            raise TypeError(f"y is a {type(y).__name__}, a tensor is expected")
        return y, extra, named

    def first(self, returned: Any) -> Any:
        """y of what the subject returned."""
        return split(returned, self.returns)[0]

    def cotangent(self, y: Any) -> Any:
        """The tensor dy; the subject's own output where the request says so."""
        if self.request.layouts.get("dy") != "output":
            return self.held["dy"].tensor
        dy = y.detach()
        self.own_dy = (dy, to_array(dy, "dy"))
        self.state.arrays["dy"] = self.own_dy[1]
        return dy

    def with_autograd(self, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
        """Forward, first gradients and gradients of the gradients by autograd."""
        import torch

        request, wanted = self.request, set(self.request.wanted)
        if request.history == "threads" and request.requires_grad and "dy" in self.held:
            self.while_others_differentiate(leaves, call)
            return
        y, _, named = self.forward(leaves, call)
        y = named.get("hy", y) if request.history == "state" else y
        names = [n for n in self.arguments if n in request.requires_grad]
        known = operation(request.operation)
        second = bool(wanted & {f"d2{n}" for n in (*known.cotangents, *names)})
        more = [n for n in known.outputs[1:] if named[n].requires_grad]
        if not (second or wanted & {f"d{n}" for n in names}) or not (y.requires_grad or more):
            return
        self.state.phase = "backward"
        if more:  # a cell's c beside its h: the cotangents of both come back together
            ys = {**({"y": y} if y.requires_grad else {}), **{n: named[n] for n in more}}
            self.several({n: found for n, found in ys.items() if f"d{n}" in self.held}, names, leaves, second)
            return
        dy = self.cotangent(y)
        if second:
            dy.requires_grad_()
        inputs = [leaves[n] for n in names]
        if self.request.history == "output":
            with torch.no_grad():
                y.mul_(-0.5).add_(3.0)
        again = self.request.history in ("repeated", "resumed")
        graph = request.create_graph or second
        with torch.enable_grad(), self.around_backward(leaves), self.beside_gradients(names, inputs):
            if again:
                torch.autograd.grad(y, inputs, dy, allow_unused=True, retain_graph=True)
            if self.request.history == "resumed":
                self.later_backwards(leaves, call, names, dy)
            grads = self.gradients(y, inputs, dy, create_graph=graph)
        if self.request.history == "followed" and not second:
            self.later_backwards(leaves, call, names, dy, 1)
        for name, grad in zip(names, grads, strict=True):
            if grad is not None and f"d{name}" in wanted:
                self.give(f"d{name}", self.as_asked(grad, name, leaves))
        if second:
            self.twice(dict(zip(names, grads, strict=True)), {**{n: leaves[n] for n in names}, "dy": dy})

    def while_others_differentiate(self, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
        """Forward and first gradients while another thread makes both on other numbers."""
        import torch

        names, dy = [n for n in self.arguments if n in self.request.requires_grad], self.held["dy"].tensor

        def both(given: Tensors) -> list[Any]:
            with torch.enable_grad():
                y = self.first(call(given))
                return [y.detach(), *torch.autograd.grad(y, [given[n] for n in names], dy, allow_unused=True)]

        for name, tensor in zip(["y", *(f"d{n}" for n in names)], while_others_call(leaves, both), strict=True):
            if tensor is not None and name in self.request.wanted:
                self.give(name, self.as_asked(tensor, name[1:], leaves) if name != "y" else tensor)

    def around_backward(self, leaves: Tensors) -> AbstractContextManager[None]:
        """What the history says of the backward."""
        if self.request.history.startswith("changed"):
            alone = self.request.history.partition("_")[2]
            return overwritten({alone: leaves[alone]} if alone else leaves)
        return surrounded(self.request.history, self.request.device)

    @contextmanager
    def beside_gradients(self, names: list[str], inputs: list[Any]) -> Iterator[None]:
        """Each input has a `.grad` already, where the history says so; it must still be there afterwards."""
        import torch

        if self.request.history != "accumulating":
            yield
            return
        for leaf in inputs:
            leaf.grad = torch.full_like(leaf, 3.0)
        yield
        for name, leaf in zip(names, inputs, strict=True):
            if leaf.grad is None or not bool((leaf.grad == 3.0).all()):
                self.state.changed.append(f"the .grad of {name}")
            leaf.grad = None

    def gradients(self, ys: Any, inputs: list[Any], dys: Any, create_graph: bool = False) -> Any:
        """What autograd gives, None for what it does not reach; in another thread where the history says so."""
        into = self.request.history == "into_grad"
        back = functools.partial(_gradients, ys, inputs, dys, create_graph, into)
        return elsewhere(back) if self.request.history == "handed" else back()

    def several(self, ys: Tensors, names: list[str], leaves: Tensors, second: bool) -> None:
        """Gradients of several outputs at once, and those of these gradients."""
        inputs, dys = {n: leaves[n] for n in names}, {f"d{n}": self.held[f"d{n}"].tensor for n in ys}
        for dy in dys.values() if second else ():
            dy.requires_grad_()
        grads = self.gradients(list(ys.values()), list(inputs.values()), list(dys.values()), create_graph=second)
        for name, grad in zip(names, grads, strict=True):
            if grad is not None and f"d{name}" in self.request.wanted:
                self.give(f"d{name}", self.as_asked(grad, name, leaves))
        if second:
            self.twice(dict(zip(names, grads, strict=True)), {**inputs, **dys})

    def later_backwards(
        self, leaves: Tensors, call: Callable[[Tensors], Any], names: list[str], dy: Any, count: int = 0
    ) -> None:
        """Forwards on other numbers, and then their backwards."""
        import torch

        with torch.enable_grad():
            given = [others(leaves) for _ in range(count or later(leaves["x"].numel()))]
            ys = [self.first(call(other)) for other in given]
            for other, y in zip(given, ys, strict=True):
                torch.autograd.grad(y, [other[n] for n in names], dy.detach() * 5, allow_unused=True)

    def as_asked(self, grad: Any, name: str, leaves: Tensors) -> Any:
        """A gradient of a parameter that the subject keeps in a shape of its own, (1, N) say, in ours."""
        asked = self.request.arrays[name].shape
        return grad.reshape(asked) if grad.shape == leaves[name].shape != asked else grad

    def twice(self, grads: Tensors, inputs: Tensors) -> None:
        """Gradients of the first gradients, with the cotangents vx, vweight, vbias, by arguments and cotangents."""
        import torch

        self.state.phase = "double backward"
        chosen = [
            (grad, self.fresh(f"v{name}").reshape(grad.shape))
            for name, grad in grads.items()
            if grad is not None and grad.requires_grad and f"v{name}" in self.request.arrays
        ]
        if not chosen:
            return
        first, cotangents = [grad for grad, _ in chosen], [v for _, v in chosen]
        with torch.enable_grad():
            if any(_holds(grad.grad_fn, "Error") for grad in first):
                torch.autograd.backward(first, cotangents)  # raises, with torch's own words
            found = torch.autograd.grad(first, list(inputs.values()), cotangents, allow_unused=True)
        for name, grad in zip(inputs, found, strict=True):
            if grad is not None and f"d2{name}" in self.request.wanted:
                own = name in self.arguments
                self.give(f"d2{name}", self.as_asked(grad, name, inputs) if own else grad)

    def fresh(self, name: str) -> Any:
        """A tensor of a request array that is only passed on to torch itself, dy say."""
        layout = self.request.layouts.get(name, "contiguous")
        return hold(self.request.arrays[name], layout, self.request.device).tensor

    def jvp(self, leaves: Tensors, call: Callable[[Tensors], Any]) -> None:
        """Forward mode: the tangent of y, and of a cell's new c, for the tangents that are present."""
        from torch.autograd import forward_ad

        self.state.phase = "jvp"
        with forward_ad.dual_level():
            duals = {name: leaf.detach() for name, leaf in leaves.items()}
            for name in self.arguments:
                if f"t{name}" in self.request.arrays:
                    tangent = self.fresh(f"t{name}").reshape(duals[name].shape)
                    duals[name] = forward_ad.make_dual(duals[name], tangent)
            y, _, named = split(call(duals), self.returns)
            for name in operation(self.request.operation).outputs:
                found = forward_ad.unpack_dual(y if name == "y" else named[name])
                if name in self.request.wanted and name not in self.state.arrays:
                    self.give(name, found.primal)
                if found.tangent is not None and f"t{name}" in self.request.wanted:
                    self.give(f"t{name}", found.tangent)

    def with_backward(
        self,
        leaves: Tensors,
        call: Callable[[Tensors], Any],
        function: Callable[..., Any],
        signature: Signature | Writing,
    ) -> None:
        """Forward, then a backward function of the subject's own."""
        refuse_within(self.request.history)
        y, extra, named = self.forward(leaves, call)
        asked = [f"d{n}" for n in self.arguments if n in self.request.requires_grad]
        if set(asked) & set(self.request.wanted):
            self.state.phase = "backward"
            values = {**scalars(self.request), **leaves, **saved_values(extra, named), "y": y}
            values["dy"] = self.cotangent(y)
            if self.request.history in ("repeated", "resumed"):
                signature.call(function, values)
            if self.request.history == "resumed":
                self.later_pairs(leaves, call, values, function, signature)
            returned = signature.call(function, values)
            everything = operation(self.request.operation).arguments
            for name, grad in named_gradients(returned, everything, self.arguments).items():
                if name in asked and name in self.request.wanted:
                    self.give(name, grad)
        self.look_for_changes()

    def later_pairs(
        self, leaves: Tensors, call: Callable[[Tensors], Any], values: Tensors, function: Callable[..., Any],
        signature: Signature | Writing,
    ) -> None:  # fmt: skip
        """Forwards on other numbers, and then a backward function of the subject's own for each."""
        for returned in later_calls(leaves, call):
            y, extra, named = split(returned, self.returns)
            signature.call(function, {**values, **others(leaves), **saved_values(extra, named), "y": y})


def _gradients(ys: Any, inputs: list[Any], dys: Any, create_graph: bool, into: bool) -> Any:
    """Gradients of one output or several by leaves.

    into: by backward(), which adds them to `.grad`, zeros here. A re-entrant checkpoint (torch.utils.checkpoint with
    use_reentrant=True) knows backward() only.
    """
    import torch

    outputs = ys if isinstance(ys, list) else [ys]
    if not into and not any(_holds(y.grad_fn, "CheckpointFunctionBackward") for y in outputs):
        return torch.autograd.grad(ys, inputs, dys, allow_unused=True, create_graph=create_graph)
    kept = [leaf.grad for leaf in inputs]
    for leaf in inputs:
        leaf.grad = torch.zeros_like(leaf) if into else None
    torch.autograd.backward(ys, dys, create_graph=create_graph)
    found = [leaf.grad for leaf in inputs]
    for leaf, grad in zip(inputs, kept, strict=True):
        leaf.grad = grad
    return found


def _holds(node: Any, ending: str) -> bool:
    """Whether the graph behind a gradient holds a node whose name ends so.

    "Error" is torch's node for what `once_differentiable` leaves. It has lost its inputs, so that autograd.grad, asked
    for given inputs, goes round it and says None; only backward() would meet it.
    """
    seen, waiting = set(), [node]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if node.name().endswith(ending):
            return True
        waiting.extend(before for before, _ in node.next_functions)
    return False
