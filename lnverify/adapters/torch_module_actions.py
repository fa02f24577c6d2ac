"""What a module goes through before it runs: round trips, parameters that are replaced, and a new module as it is.

See Request.module_action. Each action starts from a module of its own, so that nothing is left behind in the
ones that are kept.
"""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable, Mapping
from typing import Any

from lnverify.adapters.signature import our_name
from lnverify.protocol import Request

Make = Callable[[tuple[int, ...], float, bool, bool], Any]
GARBAGE = 7.0  # written over the original after a deep copy
REPLACING = ("assigned", "parametrized", "pruned")


def holders(module: Any) -> dict[str, Any]:
    """Every tensor that looks like weight or bias, parameter, buffer or plain attribute, by its own name."""
    found: dict[str, Any] = {}
    for name, tensor in (*module.named_parameters(), *module.named_buffers()):
        if our_name(name.rpartition(".")[2], ("weight", "bias")):
            found[name] = tensor
    return found


def acted(torch: Any, make: Make, request: Request, names: Callable[[Any], Mapping[str, str]]) -> Any:
    """The module of the request after its action, with the request's parameters where it has any.

    make: a Constructor, or what copies an instance. names: maps a module to {ours: registered name}. Raises what the
    module raises, RuntimeError where a round trip loses a tensor, and TypeError where there is no new module to see.
    """
    action, _, flag = request.module_action.partition(":")
    weight, bias = "weight" in request.arrays, "bias" in request.arrays
    if action == "initial":
        needed = {"": "shape", "no_affine": "affine", "no_bias": "bias"}[flag]
        if not getattr(make, needed, ""):  # an instance is not new, and a class without the flag has no such form
            raise TypeError(f"there is no constructor parameter for {flag or 'a new module'}")
        module = make(request.normalized_shape, request.eps, flag != "no_affine", not flag)
        return module.to(device=request.device, dtype=getattr(torch, request.arrays["x"].dtype))
    dtype = getattr(torch, request.arrays["weight" if weight else "bias" if bias else "x"].dtype)

    def fresh() -> Any:
        return make(request.normalized_shape, request.eps, weight, bias)

    module = fresh().to(device=request.device, dtype=torch.float64 if action == "to" else dtype)
    registered = dict(module.named_parameters())
    values: dict[str, Any] = {}
    for ours, name in names(module).items():
        if ours in request.arrays:
            like = registered[name]
            given = torch.tensor(request.arrays[ours].values, dtype=like.dtype, device=request.device)
            values[name] = given.reshape(like.shape)
    if action == "reset":
        return _reset(module, registered, values)
    if action in REPLACING:
        return _replaced(torch, action, module, values)
    for name, tensor in values.items():
        registered[name].data = tensor
    if action == "to":
        return module.to(dtype)
    if action == "pickle":
        return pickle.loads(pickle.dumps(module))
    if action == "deepcopy":
        copied = copy.deepcopy(module)
        for parameter in module.parameters():
            parameter.data.fill_(GARBAGE)
        return copied
    state = module.state_dict()
    whole = make(request.normalized_shape, request.eps, True, True)  # a bias that is no parameter shows only here
    lost = [name for name in holders(whole) if name not in whole.state_dict()]
    if lost:
        raise RuntimeError(f"state_dict() does not hold {', '.join(lost)}")
    other = fresh().to(device=request.device, dtype=dtype)
    other.load_state_dict(state)
    return other


def _reset(module: Any, registered: Mapping[str, Any], values: Mapping[str, Any]) -> Any:
    """The module after reset_parameters(), and after the values were written into the parameters that it had before, as
    an optimiser writes them that was made before. Raises TypeError where it has no such method."""
    if not callable(getattr(module, "reset_parameters", None)):
        raise TypeError("it has no reset_parameters()")
    for parameter in registered.values():
        parameter.data.fill_(GARBAGE)
    module.reset_parameters()
    for name, tensor in values.items():
        registered[name].data.copy_(tensor)
    return module


def _replaced(torch: Any, action: str, module: Any, values: Mapping[str, Any]) -> Any:
    """The module after other tensors took the place of its parameters, which hold garbage till then.

    values: the parameters due, by registered name. 'assigned': new Parameters. 'parametrized': what
    torch.nn.utils.parametrize computes, minus what it keeps. 'pruned': what torch.nn.utils.prune computes, by a mask of
    ones. Raises what torch raises where the module does not admit it.
    """
    from torch.nn.utils import parametrize, prune

    class Negated(torch.nn.Module):
        def forward(self, kept: Any) -> Any:
            return -kept

    registered = dict(module.named_parameters())
    for name in values:
        registered[name].data.fill_(GARBAGE)
    for name, tensor in values.items():
        path, _, own = name.rpartition(".")
        owner = module.get_submodule(path)
        if action == "assigned":
            setattr(owner, own, torch.nn.Parameter(tensor))
        elif action == "parametrized":
            parametrize.register_parametrization(owner, own, Negated())
            getattr(owner.parametrizations, own).original.data = -tensor
        else:
            prune.custom_from_mask(owner, own, torch.ones_like(tensor))
            getattr(owner, f"{own}_orig").data = tensor
    return module
