"""torch.nn.Module classes of norms with channels (GroupNorm, InstanceNorm1d, BatchNorm2d, ...), as functions.

A module is built for the channels, groups and eps of a request, in training mode, and called with the request's arrays
in the place of its parameters (torch.func.functional_call). Running statistics are kept by the module and not examined.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from lnverify.adapters import require, torch_function
from lnverify.adapters.signature import our_name, parameters
from lnverify.adapters.torch_constructor import AFFINE_FLAGS, BIAS_FLAGS, WIDTHS, roles_of
from lnverify.errors import SignatureError
from lnverify.subject import Declaration, Subject

OPERATIONS = ("group_norm", "instance_norm", "batch_norm")
KEPT = 64  # modules; the oldest is dropped
CHANNELS, GROUPS = 8, 2  # of the module that is built to see its parameters


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """Raises FrameworkError without torch and SignatureError for an instance or an unknown constructor."""
    torch = require("torch")
    if not isinstance(obj, type):
        raise SignatureError(f"{target}: an instance has one number of channels only: name its class instead.")
    roles = _roles(obj, target, options)
    probe = _build(obj, roles, CHANNELS, GROUPS, 1e-5, True, True)
    names = {our_name(name.rpartition(".")[2], ("weight", "bias")): name for name, _ in probe.named_parameters()}
    names.pop("", None)
    if "affine" not in roles:
        modes: tuple[str, ...] = ("both",) if len(names) == 2 else ("none",) if not names else tuple(names)
    else:
        modes = ("both", "none") if "bias" in names else ("weight", "none")
        modes = (*modes, "weight") if "bias" in names and "bias" in roles else modes
    kept: dict[Any, Any] = {}

    def built(x: Any, groups: int, eps: float, weight: bool, bias: bool) -> Any:
        key = (x.shape[1], groups, eps, weight, bias, x.dtype, str(x.device))
        if key not in kept:
            while len(kept) >= KEPT:
                del kept[next(iter(kept))]
            kept[key] = _build(obj, roles, x.shape[1], groups, eps, weight, bias).to(device=x.device, dtype=x.dtype)
            kept[key].train()
        return kept[key]

    def run(x: Any, groups: int, weight: Any, bias: Any, eps: float) -> Any:
        module = built(x, groups, eps, weight is not None, bias is not None)
        given = {names[ours]: value for ours, value in (("weight", weight), ("bias", bias)) if value is not None}
        return torch.func.functional_call(module, given, (x,))

    call: Callable[..., Any]
    if options.operation == "group_norm":

        def call(x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
            return run(x, num_groups, weight, bias, eps)

    else:

        def call(x: Any, weight: Any = None, bias: Any = None, eps: float = 1e-5) -> Any:
            return run(x, 1, weight, bias, eps)

    found = replace(options, affine=options.affine or tuple(dict.fromkeys(modes)), arguments=None)
    if "eps" not in roles and options.eps is None:
        raise SignatureError(f"{target}: no constructor parameter gives eps: declare the eps that it uses, ?eps=1e-5.")
    return torch_function.adapt(call, target, found)


def _roles(obj: Any, target: str, options: Declaration) -> dict[str, str]:
    """Constructor parameters by role: channels, num_groups, eps, affine, bias."""
    flags = {**dict.fromkeys(WIDTHS, "channels"), **dict.fromkeys(AFFINE_FLAGS, "affine")}
    flags.update(dict.fromkeys(BIAS_FLAGS, "bias"))

    def role_of(p: inspect.Parameter) -> str:
        declared = (options.arguments or {}).get(p.name, "")
        return declared or our_name(p.name, ("num_groups", "eps")) or flags.get(p.name, "")

    roles = roles_of(parameters(obj) or (), role_of, target, "channels (or num_groups, eps, affine, bias)")
    if "channels" not in roles:
        raise SignatureError(
            f"{target}: no constructor parameter gives the channels ({', '.join(WIDTHS)}): declare it, "
            "?map=theirs:channels."
        )
    return roles


def _build(
    obj: Any, roles: dict[str, str], channels: int, groups: int, eps: float, weight: bool, bias: bool
) -> Any:  # fmt: skip
    values = {"channels": channels, "num_groups": groups, "eps": eps, "affine": weight or bias, "bias": bias}
    return obj(**{theirs: values[role] for role, theirs in roles.items()})
