"""torch.nn.Module classes and instances: built per shape and eps, their parameters set from the request.

A class is constructed with whatever of shape, eps, affine and bias its constructor takes by name. An instance
is a prototype: it is copied, and works at its own shape and eps only. A module is built once per shape, eps,
dtype and device and then kept, as a user keeps it, so that state carried from call to call can be seen.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from lnverify.adapters import require, torch_bare, torch_blocks, torch_cells, torch_norms
from lnverify.adapters.calling import first_line, quiet
from lnverify.adapters.locate import source_of
from lnverify.adapters.signature import SYNONYMS, Signature, fixed_eps, match, our_name, parameters
from lnverify.adapters.torch_call import Tensors, answer, outputs, scalars
from lnverify.adapters.torch_constructor import Constructor, constructor, find_parameters
from lnverify.adapters.torch_function import devices
from lnverify.adapters.torch_module_actions import acted, holders
from lnverify.adapters.torch_parameters import KEPT, called_with, in_mode, write
from lnverify.adapters.torch_tensors import to_array
from lnverify.errors import SignatureError
from lnverify.floats import FloatArray
from lnverify.operation import blocks, cells, operation
from lnverify.protocol import Request, Response
from lnverify.subject import Declaration, Subject

FRAMEWORK = "torch"
MODES = {"both": (True, True), "weight": (True, False), "bias": (False, True), "none": (False, False)}
PROBE = (8,)


def claims(obj: object) -> bool:
    """A torch.nn.Module, class or instance."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    module: type = torch.nn.Module
    return isinstance(obj, module) or (isinstance(obj, type) and issubclass(obj, module))


@dataclass
class Kept:
    """A module with its parameters by our names."""

    module: Any
    forward: Signature
    parameters: Mapping[str, tuple[str, Any]] = field(default_factory=dict)
    acted: bool = False


def _initial(module: Any) -> dict[str, FloatArray]:
    """What a new module starts with, as `initial_weight` and `initial_bias`."""
    found = {our_name(name.rpartition(".")[2], ("weight", "bias")): t for name, t in holders(module).items()}
    return {f"initial_{ours}": to_array(tensor, ours) for ours, tensor in found.items()}


def forward_signature(module: Any, target: str) -> Signature:
    """The parameters of `forward`. Raises SignatureError for a required one that is not x."""
    inner = getattr(module, "_orig_mod", module)  # what torch.compile wraps; its own forward takes anything
    found = [p for p in parameters(inner.forward) or () if p.name != "self"]
    return match(found, f"{target}.forward", None, ("x", "eps", "normalized_shape", "axis"))


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """Raises FrameworkError without torch and SignatureError where a class cannot be built by name."""
    torch = require("torch")
    if options.operation in torch_norms.OPERATIONS:
        return torch_norms.adapt(obj, target, options)
    if options.operation in cells():
        return torch_cells.adapt(obj, target, options)
    if options.operation in blocks():
        return torch_blocks.adapt(obj, target, options)
    arguments = options.arguments or {}
    if isinstance(obj, torch.nn.Module):
        make, found = _prototype(obj, target, options)
    else:
        make, found = _class(obj, target, options)
    names = operation(options.operation or "layer_norm").arguments
    taken = tuple(n for n in names if n == "x" or any(m in ("both", n) for m in found["affine"]))

    def factory(
        normalized_shape: tuple[int, ...],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        dtype: str = "float32",
        device: str = "cpu",
    ) -> Any:
        """A new module."""
        module = make(tuple(normalized_shape), eps, elementwise_affine, elementwise_affine and bias)
        return module.to(device=device, dtype=getattr(torch, dtype))

    def act(request: Request) -> Kept:
        """A module of its own for a request with an action."""
        module = acted(torch, make, request, lambda m: find_parameters(m, request.normalized_shape, arguments))
        registered = dict(module.named_parameters())
        computed = request.module_action in ("parametrized", "pruned")  # such a parameter is no leaf
        own = {} if computed else find_parameters(module, request.normalized_shape, arguments)
        by_ours = {ours: (name, registered[name]) for ours, name in own.items() if ours in request.arrays}
        return Kept(module, forward_signature(module, target), by_ours, acted=True)

    def get(request: Request) -> Kept:
        if request.module_action:
            return act(request)
        weight, bias = "weight" in request.arrays, "bias" in request.arrays
        dtype = request.arrays["weight" if weight else "bias" if bias else "x"].dtype
        return built(request.normalized_shape, request.eps, weight, bias, dtype, request.device)

    @functools.lru_cache(KEPT)
    def built(shape: tuple[int, ...], eps: float, weight: bool, bias: bool, dtype: str, device: str) -> Kept:
        module = make(shape, eps, weight, bias).to(device=device, dtype=getattr(torch, dtype))
        names_by_ours = find_parameters(module, shape, arguments)
        if set(names_by_ours) != {n for n, present in (("weight", weight), ("bias", bias)) if present}:
            has = ", ".join(names_by_ours) or "no parameters"
            raise TypeError(f"{target} cannot be built with these parameters, it has {has}")
        registered = dict(module.named_parameters())
        by_ours = {ours: (name, registered[name]) for ours, name in names_by_ours.items()}
        return Kept(module, forward_signature(module, target), by_ours)

    def run(request: Request) -> Response:
        try:
            with quiet():
                entry = get(request)
        except Exception as error:  # the constructor is the subject's code as well
            return Response(refusal=first_line(error), phase="forward")

        def bind(asked: Request, tensors: Tensors) -> tuple[dict[str, Any], Callable[[Tensors], Any]]:
            return _bind(torch, entry if asked is request else get(asked), asked, tensors)

        response = answer(request, bind, options.returns or ("y",))
        if request.module_action.startswith("initial") and response.refusal is None:
            return replace(response, arrays={**response.arrays, **_initial(entry.module)})
        return response

    def bare(request: Request, what: str) -> Callable[[], Any]:
        entry = get(request)

        def bound(asked: Request, tensors: Tensors) -> tuple[dict[str, Any], Callable[[], Any]]:
            leaves, _ = _bind(torch, entry, asked, tensors)
            values = {**scalars(asked), "x": leaves["x"]}
            return leaves, entry.forward.bound(entry.module, values)

        return torch_bare.bare(request, what, bound, options.returns or ("y",))

    return Subject(
        target=target,
        capabilities=options.capabilities(
            devices=devices(torch),
            outputs=outputs(taken, options.returns or ("y",), False),
            module=True,
            **found,
        ),
        run=run,
        framework=FRAMEWORK,
        versions={"torch": torch.__version__, "numpy": np.__version__},
        module=factory,
        call_text=_call_text(obj, make, arguments) if isinstance(make, Constructor) else "",
        bare=bare,
    )


def _bind(
    torch: Any, entry: Kept, request: Request, tensors: Tensors
) -> tuple[dict[str, Any], Callable[[Tensors], Any]]:
    """Put the request's arrays into the module's parameters, which become the leaves."""
    module = in_mode(entry.module, request.train)
    leaves: dict[str, Any] = {"x": tensors["x"]}
    for ours, (_, parameter) in entry.parameters.items():
        tensor = tensors[ours].detach()
        if entry.acted:  # what the module holds after its action is what is examined
            parameter.requires_grad_(ours in request.requires_grad)
            leaves[ours] = parameter
            continue
        write(parameter, tensor)
        parameter.requires_grad_(ours in request.requires_grad)
        leaves[ours] = parameter
    alone = len(entry.forward.parameters) == 1
    fixed = {} if alone else scalars(request)

    def call(given: Tensors) -> Any:
        if all(given[ours] is parameter for ours, (_, parameter) in entry.parameters.items()):
            return module(given["x"]) if alone else entry.forward.call(module, {**fixed, "x": given["x"]})
        # Dual numbers cannot be written into a Parameter.
        replaced = {name: given[ours] for ours, (name, _) in entry.parameters.items()}
        changed = called_with(module, replaced)
        return changed(given["x"]) if alone else entry.forward.call(changed, {**fixed, "x": given["x"]})

    return leaves, call


def _class(obj: Any, target: str, options: Declaration) -> tuple[Any, dict[str, Any]]:
    """The constructor and what it can do, tried out on a small shape."""
    arguments = options.arguments or {}
    make = constructor(obj, target, arguments)
    modes: dict[str, Any] = {}
    failures: list[str] = []
    for mode, (weight, bias) in MODES.items():
        try:
            with quiet():
                module = make(PROBE, 1e-5, weight, bias)
        except Exception as error:  # tried only to see which modes exist
            failures.append(first_line(error))
            continue
        has = find_parameters(module, PROBE, arguments)
        if set(has) == {n for n, present in (("weight", weight), ("bias", bias)) if present}:
            modes[mode] = module
    if not modes:
        why = failures[0] if failures else "none of its parameters looks like a weight or a bias"
        raise SignatureError(f"{target} cannot be built as {make.shape}={PROBE[0] if make.width else PROBE}: {why}.")
    probe = next(iter(modes.values()))
    forward_signature(probe, target)
    eps = None if make.eps else fixed_eps(False, _eps_of(probe) if options.eps is None else options.eps, target)
    return make, {"affine": tuple(modes), "eps": eps, "max_dims": 1 if make.width else None}


def _prototype(obj: Any, target: str, options: Declaration) -> tuple[Any, dict[str, Any]]:
    """A maker of copies of a module instance; it refuses any other shape."""
    names = find_parameters(obj, None, options.arguments or {})
    registered = dict(obj.named_parameters())
    own = getattr(obj, "normalized_shape", None)
    if own is None and names:
        own = tuple(n for n in registered[next(iter(names.values()))].shape if n != 1)
    if own is None:
        raise SignatureError(f"{target}: the shape that this module normalises cannot be seen: name its class instead.")
    shape = (own,) if isinstance(own, int) else tuple(int(n) for n in own)
    eps = fixed_eps(False, _eps_of(obj) if options.eps is None else options.eps, target)
    forward_signature(obj, target)

    def make(normalized_shape: tuple[int, ...], eps: float, weight: bool, bias: bool) -> Any:
        if normalized_shape != shape:
            raise ValueError(f"this module normalises the shape {shape}, not {normalized_shape}")
        return copy.deepcopy(obj)

    mode = next(m for m, (w, b) in MODES.items() if w == ("weight" in names) and b == ("bias" in names))
    return make, {"affine": (mode,), "eps": eps, "max_dims": len(shape), "fixed_shape": shape}


def _eps_of(module: Any) -> float | None:
    """The eps that a built module shows, itself or in the only part that has one."""
    seen = {
        float(value)
        for part in module.modules()
        for name in SYNONYMS["eps"]
        if isinstance(value := getattr(part, name, None), float)
    }
    return seen.pop() if len(seen) == 1 else None


def _call_text(obj: Any, make: Constructor, arguments: Mapping[str, str]) -> str:
    """Source lines that build the module, set its parameters and call it."""
    lines, expression = source_of(obj)
    if not expression:
        return ""
    given = [f"{make.shape}={{normalized_shape}}" + ("[0]" if make.width else "")]
    given += [f"{make.eps}={{eps}}"] if make.eps else []
    given += [f"{make.affine}={{weight}} is not None"] if make.affine else []
    given += [f"{make.bias}={{bias}} is not None"] if make.bias else []
    probe = make(PROBE, 1e-5, True, True)
    code = [lines, f"module = {expression}({', '.join(given)}).to({{x}}.dtype)"]
    for ours, name in find_parameters(probe, PROBE, arguments).items():
        code.append(f"if {{{ours}}} is not None:\n    module.{name}.data = {{{ours}}}")
    return "\n".join([*code, "y = module({x})"])
