"""Functions that take and return torch tensors: fn(x, normalized_shape, weight, bias, eps), matched by name.

Also torch operators (torch.ops.aten.native_layer_norm) and torch.autograd.Function classes, which are called
by their `apply`.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.adapters import block_calls, cell_calls, require, torch_bare, torch_blocks, torch_cells
from lnverify.adapters.destinations import BACKWARD, FORWARD, destinations, results
from lnverify.adapters.locate import companion, source_of
from lnverify.adapters.signature import (
    Signature,
    affine_modes,
    forward_names,
    match,
    match_pair,
    operation_eps,
    parameters,
    preset_eps,
)
from lnverify.adapters.torch_call import Tensors, answer, outputs, scalars, writing
from lnverify.adapters.torch_tensors import to_tensor
from lnverify.block import MASK
from lnverify.errors import SignatureError
from lnverify.operation import operation
from lnverify.protocol import Request, Response
from lnverify.subject import Declaration, Subject

FRAMEWORK = "torch"
GENERIC = True


def claims(obj: object) -> bool:
    """Any callable that is no class, and every torch.autograd.Function."""
    return (callable(obj) and not isinstance(obj, type)) or _autograd_function(obj) is not None


def adapt(obj: Any, target: str, options: Declaration, module: bool = False) -> Subject:
    """module: the function calls a module that holds what it is given.

    Raises FrameworkError without torch and SignatureError where parameters cannot be matched.
    """
    torch = require("torch")
    function, found, by_position = _callee(obj)
    backward = None
    allowed = forward_names(options.operation or "layer_norm", found)
    if options.backward is None:
        signature = match(found, target, options.arguments, allowed, by_position=by_position)
    else:
        other = companion(options.backward, obj, target)
        signature, matched = match_pair(found, parameters(other), target, options.arguments, allowed)
        backward = (other, matched)
    known = operation(options.operation or "layer_norm")
    fixed = operation_eps(known, signature, preset_eps(obj) if options.eps is None else options.eps, target)
    returns = results(signature, options.returns)
    if getattr(obj, "__name__", "").startswith("native_layer_norm") and len(returns) == 1:
        returns = ("y", "mean", "rstd")
    apart = bool(known.cell or known.block)
    names = known.arguments
    taken = tuple(name for name in names if signature.has(name) or (name in known.states and signature.has("state")))
    if known.cell is not None:
        if backward is not None and (len(known.outputs) > 1 or options.gates):
            raise SignatureError(f"{target}: a separate backward of {known.name} cannot be called: declare none.")
        cell_calls.order(known, options)
        returns = torch_cells.returns(known)
    limits: dict[str, Any] = {}
    if known.block is not None:
        if backward is not None:
            raise SignatureError(f"{target}: a separate backward of {known.name} cannot be called: declare none.")
        masked = block_calls.mask_kind(signature.has(MASK), options, target)
        limits = {"fixed_shape": block_calls.fixed_heads(signature, options, target), "mask": masked}

    def run(request: Request) -> Response:
        for name in names:
            if name in request.arrays and name not in taken:
                return Response(refusal=f"TypeError: {target} has no parameter for {name}")
        overrun: list[str] = []

        def bind(request: Request, tensors: Tensors) -> tuple[dict[str, Any], Callable[[Tensors], Any]]:
            fixed_values = scalars(request)
            if known.cell is not None and backward is None:
                fixed_values |= torch_cells.lengths(request, signature)
                return dict(tensors), torch_cells.function_call(function, signature, known, options, fixed_values)
            if known.block is not None:
                plain = functools.partial(_called, function, signature, fixed_values)
                return dict(tensors), torch_blocks.bound(plain, request, masked, options)
            call = writing(request, signature, FORWARD, overrun).call
            return dict(tensors), lambda leaves: call(function, {**fixed_values, **leaves})

        own = backward and (backward[0], writing(request, backward[1], BACKWARD, overrun))
        response = answer(request, bind, returns, own, module)
        return replace(response, changed=(*response.changed, *overrun)) if overrun else response

    def bare(request: Request, what: str) -> Callable[[], Any]:
        return torch_bare.bare(
            request, what, lambda asked, tensors: _bare_forward(function, signature, asked, tensors), returns,
            backward and (lambda asked, values: bound_writing(*backward, asked, values, BACKWARD)),
        )  # fmt: skip

    return Subject(
        target=target,
        capabilities=options.capabilities(
            devices=devices(torch),
            outputs=(
                *outputs(taken, returns, backward is not None, bool(signature.wants), known.outputs),
                *(returns[1:] if known.cell is not None else ()),
                *(("lengths",) if signature.has("lengths") else ()),
                *(("running",) if known.tracked and all(map(signature.has, (*known.tracked, "momentum"))) else ()),
            ),
            eps=fixed,
            max_dims=signature.max_dims,
            affine=affine_modes(bool({*known.gains} & {*taken}), bool({*known.shifts} & {*taken})),
            parameters=tuple(n for n in taken if n in (*known.gains, *known.shifts)) if apart else None,
            **limits,
        ),
        run=run,
        framework=FRAMEWORK,
        versions={"torch": torch.__version__, "numpy": np.__version__},
        call_text=call_text(obj, signature, len(returns)),
        bare=bare,
    )


def _called(function: Callable[..., Any], signature: Signature, fixed: Tensors, values: Tensors) -> Any:
    return signature.call(function, {**fixed, **values})


def _bare_forward(
    function: Callable[..., Any], signature: Signature, request: Request, tensors: Tensors
) -> tuple[Tensors, Callable[[], Any]]:
    return tensors, bound_writing(function, signature, request, {**scalars(request), **tensors}, FORWARD)


def bound_writing(
    function: Callable[..., Any], signature: Signature, request: Request, values: Tensors, names: tuple[str, ...]
) -> Callable[[], Any]:
    """The call to be made later; what it writes into is made once, and is what it gives back if it returns None."""
    made = {
        name: to_tensor(destination.inner, destination.dtype).to(request.device)
        for name, destination in destinations(signature, request, names).items()
    }
    call = signature.bound(function, {**values, **made})
    if not made:
        return call

    def written() -> Any:
        returned = call()
        return made if returned is None else returned

    return written


def devices(torch: Any) -> tuple[str, ...]:
    """Devices that this torch can use here."""
    return ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)


def call_text(obj: Any, signature: Signature, results: int) -> str:
    """Source lines that import and call the function, see Subject.call_text; '' if it has no place."""
    lines, expression = source_of(obj)
    if not expression:
        return ""
    places = {name: f"{{{name}}}" for name in ("x", "weight", "bias", "eps", "normalized_shape")}
    if signature.has("axis"):
        places["axis"] = "tuple(range(-len({normalized_shape}), 0))"
    if _autograd_function(obj) is not None and isinstance(obj, type):
        expression += ".apply"
    return f"{lines}\ny = {signature.text(expression, places)}" + ("[0]" if results > 1 else "")


def _autograd_function(obj: object) -> Any:
    """The torch.autograd.Function class that the object is, or whose `apply` it is."""
    torch = sys.modules.get("torch")
    owner = getattr(obj, "__self__", None) if getattr(obj, "__name__", "") == "apply" else obj
    if torch is not None and isinstance(owner, type) and issubclass(owner, torch.autograd.Function):
        return owner
    return None


def _callee(obj: Any) -> tuple[Callable[..., Any], list[inspect.Parameter] | None, bool]:
    """What to call, its parameters, and whether it takes them by position only."""
    owner = _autograd_function(obj)
    if owner is None:
        # A packet of torch operator overloads has no schema of its own.
        packet = hasattr(obj, "overloads") and hasattr(obj, "default")
        return obj, parameters(obj.default if packet else obj), False
    torch = sys.modules["torch"]
    found = list(inspect.signature(owner.forward).parameters.values())
    if owner.setup_context is torch.autograd.Function.setup_context:
        found = found[1:]  # ctx
    return owner.apply, found, True
