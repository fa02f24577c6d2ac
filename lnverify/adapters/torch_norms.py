"""torch.nn.Module classes and instances of norms with channels (GroupNorm, InstanceNorm1d, BatchNorm2d, ...).

A class is built for the channels, groups and eps of a request; of an instance a copy is used, which takes its own
channels, groups and eps only. A module is called with the request's arrays in the place of its parameters and of its
running statistics, in evaluation mode for batch_norm_eval, else in training mode.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lnverify.adapters import require, torch_function
from lnverify.adapters.signature import our_name, parameters
from lnverify.adapters.torch_constructor import AFFINE_FLAGS, BIAS_FLAGS, WIDTHS, roles_of
from lnverify.adapters.torch_parameters import KEPT, Places, in_mode
from lnverify.errors import SignatureError
from lnverify.operation import MOMENTUM, RUNNING
from lnverify.subject import Declaration, Subject

OPERATIONS = ("group_norm", "instance_norm", "batch_norm", "batch_norm_eval")
CHANNELS, GROUPS = 8, 2  # of the module that is built to see its parameters
COUNTS = ("num_channels", "num_features", "channels")  # attributes of an instance


@dataclass(frozen=True)
class Source:
    """Where modules come from. build: (channels, groups, eps, weight, bias) -> module; probe: one of them.

    modes: forms of weight and bias; eps: the only one, None where it can be set; momentum: it is MOMENTUM;
    fixed: the only channels and groups.
    """

    build: Callable[..., Any]
    probe: Any
    modes: tuple[str, ...]
    eps: float | None
    momentum: bool
    fixed: tuple[int, int] | None = None


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """Raises FrameworkError without torch, SignatureError for an unknown constructor or an instance that hides its
    channels."""
    require("torch")
    source = _of_class(obj, target, options) if isinstance(obj, type) else _of_instance(obj, target, options)
    evaluated = options.operation == "batch_norm_eval"
    names = _ours(source.probe.named_parameters(), ("weight", "bias"))
    buffers = _ours(source.probe.named_buffers(), RUNNING)
    if evaluated and set(buffers) != {*RUNNING}:
        raise SignatureError(f"{target} keeps no running statistics, without which {options.operation} is not defined.")

    @functools.lru_cache(KEPT)
    def built(channels: int, groups: int, eps: float, weight: bool, bias: bool, dtype: Any, device: Any) -> Any:
        return Places(source.build(channels, groups, eps, weight, bias).to(device=device, dtype=dtype))

    def run(x: Any, groups: int, eps: float, training: bool, given: Mapping[str, Any]) -> Any:
        has = given["weight"] is not None, given["bias"] is not None
        places = built(x.shape[1], groups, eps, *has, x.dtype, x.device)
        module = in_mode(places.module, training)
        unbatched = getattr(module, "_get_no_batch_dim", None)  # of InstanceNorm2d: (C, H, W)
        if unbatched is not None and x.dim() == unbatched():
            raise ValueError(f"this module takes x of {x.dim()} dimensions for one row")
        theirs = {**names, **buffers}
        return places.put({theirs[n]: v for n, v in given.items() if v is not None})(x)

    found = replace(options, affine=options.affine or source.modes, arguments=None)
    if source.eps is not None:
        found = replace(found, eps=source.eps)
    tracks = source.momentum and set(buffers) == {*RUNNING}
    call = _call(run, options.operation or "", source.eps, tracks)
    subject = torch_function.adapt(call, target, found, module=True)
    if source.fixed is None:
        return subject
    return replace(subject, capabilities=replace(subject.capabilities, fixed_shape=source.fixed))


def _call(run: Callable[..., Any], operation: str, fixed: float | None, tracks: bool) -> Callable[..., Any]:
    """The modules as one function, with parameters for what they can be given."""

    def plain(x: Any, weight: Any = None, bias: Any = None, eps: float = fixed or 0.0, training: bool = True) -> Any:
        return run(x, 1, eps, training, {"weight": weight, "bias": bias})

    def grouped(
        x: Any, num_groups: int, weight: Any = None, bias: Any = None, eps: float = fixed or 0.0, training: bool = True
    ) -> Any:
        return run(x, num_groups, eps, training, {"weight": weight, "bias": bias})

    def tracking(
        x: Any, running_mean: Any = None, running_var: Any = None, weight: Any = None, bias: Any = None,
        momentum: float = MOMENTUM, eps: float = fixed or 0.0, training: bool = True,
    ) -> Any:  # fmt: skip
        given = {"weight": weight, "bias": bias, "running_mean": running_mean, "running_var": running_var}
        return run(x, 1, eps, training, given)

    if operation == "group_norm":
        return grouped
    return tracking if operation == "batch_norm_eval" or (operation == "batch_norm" and tracks) else plain


def _ours(named: Any, allowed: tuple[str, ...]) -> dict[str, str]:
    """Their names by ours."""
    found = {our_name(name.rpartition(".")[2], allowed): name for name, _ in named}
    found.pop("", None)
    return found


def _of_class(obj: Any, target: str, options: Declaration) -> Source:
    roles = _roles(obj, target, options)
    probe = _build(obj, roles, CHANNELS, GROUPS, 1e-5, True, True)
    names = _ours(probe.named_parameters(), ("weight", "bias"))
    if "affine" not in roles:
        modes: tuple[str, ...] = (_mode(names),)
    else:
        modes = ("both", "none") if "bias" in names else ("weight", "none")
        modes = (*modes, "weight") if "bias" in names and "bias" in roles else modes
    if "eps" not in roles and options.eps is None:
        raise SignatureError(f"{target}: no constructor parameter gives eps: declare the eps that it uses, ?eps=1e-5.")

    def build(*given: Any) -> Any:
        return _build(obj, roles, *given)

    return Source(build, probe, tuple(dict.fromkeys(modes)), options.eps, "momentum" in roles)


def _mode(names: Mapping[str, str]) -> str:
    return "both" if len(names) == 2 else next(iter(names), "none")


def _of_instance(obj: Any, target: str, options: Declaration) -> Source:
    names = _ours(obj.named_parameters(), ("weight", "bias"))
    sizes = [found for name in COUNTS if isinstance(found := getattr(obj, name, None), int)]
    sizes += [tensor.numel() for name, tensor in obj.named_parameters() if name in names.values()]
    if not sizes:
        raise SignatureError(f"{target}: the channels that this module takes cannot be seen: name its class instead.")
    eps = getattr(obj, "eps", None) if options.eps is None else options.eps
    if not isinstance(eps, float):
        raise SignatureError(f"{target}: no eps can be seen: declare the eps that it uses, ?eps=1e-5.")
    groups = getattr(obj, "num_groups", sizes[0] if options.operation == "instance_norm" else 1)
    fixed = (sizes[0], groups)
    module = copy.deepcopy(obj)
    momentum = getattr(module, "momentum", None) is not None
    if momentum:
        module.momentum = MOMENTUM

    def build(channels: int, asked: int, *_: Any) -> Any:
        if channels != fixed[0] or (options.operation == "group_norm" and asked != groups):
            raise ValueError(f"this module takes {fixed[0]} channels in {groups} groups, not {channels} in {asked}")
        return copy.deepcopy(module)

    return Source(build, module, (_mode(names),), eps, momentum, fixed)


def _roles(obj: Any, target: str, options: Declaration) -> dict[str, str]:
    """Constructor parameters by role: channels, num_groups, eps, momentum, affine, bias."""
    flags = {**dict.fromkeys(WIDTHS, "channels"), **dict.fromkeys(AFFINE_FLAGS, "affine")}
    flags.update(dict.fromkeys(BIAS_FLAGS, "bias"))

    def role_of(p: inspect.Parameter) -> str:
        declared = (options.arguments or {}).get(p.name, "")
        return declared or our_name(p.name, ("num_groups", "eps", "momentum")) or flags.get(p.name, "")

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
    values = {
        "channels": channels, "num_groups": groups, "eps": eps, "momentum": MOMENTUM, "affine": weight or bias,
        "bias": bias,
    }  # fmt: skip
    return obj(**{theirs: values[role] for role, theirs in roles.items()})
