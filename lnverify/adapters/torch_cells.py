"""Recurrent cells in torch: how a function, a module or a layer over sequences is given a state and gives it back.

A cell takes x of (rows, inputs), a layer (declared by `sequence`) x of (steps, rows, inputs), or with `batch_first` of
(rows, steps, inputs). The state is one argument, h or (h, c), or one argument each; where a request has no state the
argument stays at its default. Results may be nested in any way: y; (y, h); (h, c); (y, (h, c)). They come out as y, cy
where the cell has a c, and `hy`, the h that the next step gets.

A module's parameters are computed from the arguments of the operation (lnverify.adapters.torch_cell_storage) and put in
their places for the call, so that autograd carries every gradient back to the arguments.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lnverify.adapters import require
from lnverify.adapters.calling import first_line, quiet
from lnverify.adapters.cell_calls import arguments, order, results
from lnverify.adapters.signature import Signature, cell_names, fixed_eps, match, our_name, parameters
from lnverify.adapters.torch_call import Tensors, answer, outputs, scalars
from lnverify.adapters.torch_cell_storage import Storage
from lnverify.adapters.torch_constructor import roles_of
from lnverify.adapters.torch_parameters import KEPT, Places, in_mode
from lnverify.errors import SignatureError
from lnverify.operation import Operation, operation
from lnverify.protocol import Request, Response
from lnverify.subject import Declaration, Subject

FRAMEWORK = "torch"
INPUTS = ("input_size", "inputs", "input_dim", "in_features", "n_in", "input_sz", "in_dim", "d_in")
UNITS = ("hidden_size", "units", "hidden_dim", "num_units", "n_hidden", "hidden_sz", "state_size", "d_hidden", "hidden")
PROBE = (3, 4)  # inputs and units of the module that is built to see its parameters
Values = Mapping[str, Any]


def stepping(call: Callable[[Values], Any], known: Operation, options: Declaration) -> Callable[[Tensors], Any]:
    """A call by arguments of the operation, in the conventions of whoever is called; its results as (y, cy, hy)."""
    wanted = order(known, options)

    def run(leaves: Tensors) -> Any:
        x = leaves["x"]
        several = x.dim() == 3
        if several and not options.sequence:
            raise TypeError("a cell takes one step at a time")
        values = arguments(known, leaves, wanted)
        if options.sequence:
            x = x if several else x[None]
            values["x"] = x.transpose(0, 1) if options.batch_first else x
        found, count = results(known, call(values)), len(known.outputs)
        y, states = found[0], found[-count:]
        if options.sequence and len(found) > count:
            y = y.transpose(0, 1) if options.batch_first else y
            y = y if several else y[0]
            states = [state[0] if state.dim() == 3 and state.shape[0] == 1 else state for state in states]
        return (y, *states[1:], states[0])

    return run


def lengths(request: Request, signature: Signature) -> dict[str, Any]:
    """The lengths of the rows; full ones where none are given and the layer cannot be called without."""
    import torch

    given, x = request.arrays.get("lengths"), request.arrays["x"]
    if given is not None:
        return {"lengths": torch.tensor(given.values, dtype=torch.int64)}
    steps, rows = x.shape[:2] if len(x.shape) == 3 else (1, x.shape[0])
    return {"lengths": torch.full((rows,), steps)} if signature.requires("lengths") else {}


def returns(known: Operation) -> tuple[str, ...]:
    """Names of what `stepping` returns."""
    return (*known.outputs, "hy")


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """The subject of a module class or instance.

    Raises FrameworkError without torch, SignatureError where a class cannot be built or a parameter has no place, and
    UsageError for a wrong order of gates.
    """
    torch = require("torch")
    known = operation(str(options.operation))
    order(known, options)
    make, found = _instance(obj, target, options) if isinstance(obj, torch.nn.Module) else _class(obj, target, options)
    inputs, units = found["fixed_shape"] or PROBE
    with quiet():
        probe = make(inputs, units, 1e-5)
    assert known.cell is not None
    storage = Storage(known, probe, target, options, known.cell.extents(1, inputs, units))
    allowed = [p for p in parameters(getattr(probe, "_orig_mod", probe).forward) or () if p.name != "self"]
    signature = match(allowed, f"{target}.forward", None, cell_names(known, allowed, without=known.parameters))
    eps = None if found["eps"] else fixed_eps(False, eps_of(probe) if options.eps is None else options.eps, target)

    @functools.lru_cache(KEPT)
    def built(inputs: int, units: int, eps: float, dtype: str, device: str) -> Any:
        return Places(make(inputs, units, eps).to(device=device, dtype=getattr(torch, dtype)))

    def run(request: Request) -> Response:
        x = request.arrays["x"]
        try:
            places = built(x.shape[-1], request.normalized_shape[0], request.eps, x.dtype, request.device)
            in_mode(places.module, request.train)
        except Exception as error:  # a shape that an instance does not have, say
            return Response(refusal=first_line(error))

        def zero(path: str) -> Any:
            return torch.zeros_like(places.first[path], requires_grad=False)

        def bind(request: Request, tensors: Tensors) -> tuple[dict[str, Any], Callable[[Tensors], Any]]:
            def call(leaves: Tensors) -> Any:
                placed = storage.placed(leaves) | {path: zero(path) for path in storage.zeros}
                module = places.put(placed)
                fixed = {**scalars(request), **lengths(request, signature)}
                return stepping(lambda v: signature.call(module, {**fixed, **v}), known, options)(leaves)

            return dict(tensors), call

        return answer(request, bind, returns(known), module=True)

    return Subject(
        target=target,
        capabilities=options.capabilities(
            devices=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
            outputs=(*outputs(("x", *known.states, *storage.names), returns(known), False,
                              differentiated=known.outputs), *returns(known)[1:],
                     *(("lengths",) if signature.has("lengths") else ())),
            eps=eps, module=True, affine=("both",), max_dims=1, fixed_shape=found["fixed_shape"],
            parameters=tuple(n for n in (*known.gains, *known.shifts) if n in storage.names),
        ),
        run=run,
        framework=FRAMEWORK,
        versions={"torch": torch.__version__, "numpy": np.__version__},
    )  # fmt: skip


def _class(obj: Any, target: str, options: Declaration) -> tuple[Callable[..., Any], dict[str, Any]]:
    """What builds a module of so many inputs and units."""
    sizes = {**dict.fromkeys(INPUTS, "inputs"), **dict.fromkeys(UNITS, "units")}

    def role_of(p: inspect.Parameter) -> str:
        return (options.arguments or {}).get(p.name, "") or sizes.get(p.name) or our_name(p.name, ("eps",))

    roles = roles_of(parameters(obj) or (), role_of, target, "inputs (or units, eps)")
    for role, names in (("inputs", INPUTS), ("units", UNITS)):
        if role not in roles:
            raise SignatureError(
                f"{target}: no constructor parameter gives the {role} ({', '.join(names)}): declare it, "
                f"?map=theirs:{role}."
            )

    def make(inputs: int, units: int, eps: float) -> Any:
        values = {"inputs": inputs, "units": units, "eps": eps}
        return obj(**{theirs: values[role] for role, theirs in roles.items()})

    return make, {"eps": "eps" in roles, "fixed_shape": None}


def _instance(obj: Any, target: str, options: Declaration) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A module as it is, of its own inputs and units."""
    sizes = [next((getattr(obj, n) for n in names if isinstance(getattr(obj, n, None), int)), 0) for names in
             (INPUTS, UNITS)]  # fmt: skip
    if not all(sizes):
        raise SignatureError(f"{target}: the inputs and units of this module cannot be seen: name its class instead.")

    def make(inputs: int, units: int, eps: float) -> Any:
        if [inputs, units] != sizes:
            raise ValueError(f"this module has {sizes[0]} inputs and {sizes[1]} units, not {inputs} and {units}")
        return obj

    return make, {"eps": False, "fixed_shape": tuple(sizes)}


def eps_of(module: Any) -> float | None:
    """The eps that all parts of a module show, None where they show none or several."""
    seen = {float(part.eps) for part in module.modules() if isinstance(getattr(part, "eps", None), float)}
    return seen.pop() if len(seen) == 1 else None


def function_call(
    function: Callable[..., Any], signature: Signature, known: Operation, options: Declaration, fixed: Values
) -> Callable[[Tensors], Any]:
    """The same for a function that takes the parameters as arguments."""
    return stepping(lambda values: signature.call(function, {**fixed, **values}), known, options)
