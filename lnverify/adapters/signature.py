"""Match the parameters of a callable to our names, by name.

Rule of this file: a parameter is matched because of what it is called, never because of where it stands; what
cannot be matched and has no default is an error that says how to declare it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lnverify.block import MASK
from lnverify.errors import SignatureError
from lnverify.operation import MOMENTUM, RUNNING, Operation
from lnverify.operation import operation as find_operation
from lnverify.protocol import Request

SYNONYMS: dict[str, tuple[str, ...]] = {
    "x": ("x", "input", "hidden_states", "features", "inp", "a", "inputs", "tensor", "data", "src", "v"),
    "weight": ("weight", "gamma", "scale", "g", "w", "a_2", "weights"),
    "bias": ("bias", "beta", "offset", "b", "shift", "b_2"),
    "eps": (
        "eps",
        "epsilon",
        "variance_epsilon",
        "layer_norm_eps",
        "layernorm_epsilon",
        "layer_norm_epsilon",
        "norm_eps",
    ),
    "normalized_shape": ("normalized_shape", "norm_shape"),
    "axis": ("axis", "dim", "axes", "dims"),
    "dtype": ("dtype",),
    "heads": ("heads", "num_heads", "n_heads", "n_head", "nhead", "num_attention_heads"),
    "mask": ("mask", "attn_mask", "src_mask", "attention_mask"),
    "num_groups": ("num_groups", "groups", "n_groups"),
    "training": ("training", "train", "use_batch_stats"),
    "running_mean": ("running_mean", "moving_mean"),
    "running_var": ("running_var", "running_variance", "moving_var", "moving_variance"),
    "h": ("h", "hx", "hidden", "state", "h_prev"),
    "c": ("c", "cx", "cell", "c_prev"),
    "state": ("state", "hx", "hidden", "states", "hc"),
    "lengths": ("lengths", "seq_lengths", "sequence_lengths", "input_lengths", "x_lengths", "seq_lens", "lens"),
    "weight_ih": ("weight_ih", "w_ih", "w_x", "wx"),
    "weight_hh": ("weight_hh", "w_hh", "w_h", "wh"),
    "dy": ("dy", "grad_output", "grad_out", "dout", "grad_y", "grad"),
    "y": ("y", "out", "output"),
    "mean": ("mean", "mu"),
    "rstd": ("rstd", "invstd", "inv_std", "rsigma"),
    "saved": ("saved", "saved_tensors", "cache", "residuals"),
    "dx": ("dx", "grad_input", "grad_x", "dinput", "dinp"),
    "dweight": ("dweight", "grad_weight", "dgamma", "dscale", "dw"),
    "dbias": ("dbias", "grad_bias", "dbeta", "doffset", "db"),
}
FORWARD = ("x", "weight", "bias", "eps", "normalized_shape", "axis", "dtype")
BACKWARD = ("dy", *FORWARD, "y", "mean", "rstd", "saved")
# What a norm other than layer norm may be asked for besides; in training running statistics are None as a rule.
OWN: dict[str, tuple[str, ...]] = {
    "group_norm": ("num_groups", "training"),
    "instance_norm": ("training",),
    "batch_norm": ("training", "momentum", *RUNNING),
    "batch_norm_eval": ("training", *RUNNING),
}
# torch's C functions have no signature that Python could inspect.
BUILTINS: dict[str, str] = {
    "torch.layer_norm": "input, normalized_shape, weight=None, bias=None, eps=1e-05",
    "torch.native_layer_norm": "input, normalized_shape, weight, bias, eps",
    "torch._weight_norm": "v, g, dim=0",
}
DESTINATIONS = ("y", "mean", "rstd", "dx", "dweight", "dbias")  # what a callable may write its results into
EMPTY = inspect.Parameter.empty


@dataclass(frozen=True)
class Parameter:
    """One parameter of theirs with our name for it ('' if it stays at its default)."""

    theirs: str
    ours: str
    positional: bool
    default: Any


@dataclass(frozen=True)
class Signature:
    """Matched parameters, in their order. max_dims: 1 where only one dimension can be normalised."""

    parameters: tuple[Parameter, ...]
    max_dims: int | None

    def has(self, ours: str) -> bool:
        """Whether a parameter was matched to our name."""
        return any(p.ours == ours for p in self.parameters)

    def requires(self, ours: str) -> bool:
        """Whether it cannot be called without the parameter of our name."""
        return any(p.ours == ours and p.default is EMPTY for p in self.parameters)

    @property
    def wants(self) -> tuple[str, ...]:
        """Destinations that it cannot be called without."""
        return tuple(p.ours for p in self.parameters if p.ours in DESTINATIONS and p.default is EMPTY)

    def call(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Any:
        """Call the function with our values; an absent one stays at its default, or is None without one."""
        return self.bound(function, values)()

    def bound(self, function: Callable[..., Any], values: Mapping[str, Any]) -> Callable[[], Any]:
        """That call, to be made later and again, with nothing left to match."""
        positional: list[Any] = []
        keywords: dict[str, Any] = {}
        for parameter in self.parameters:
            value = values.get(parameter.ours)
            if parameter.positional:
                positional.append(parameter.default if value is None and parameter.default is not EMPTY else value)
            elif value is not None or parameter.default is EMPTY:
                keywords[parameter.theirs] = value
        return functools.partial(function, *positional, **keywords)

    def text(self, function: str, values: Mapping[str, str]) -> str:
        """Source text of that call; `values` are the texts to put in."""
        given = [
            values[p.ours] if p.positional else f"{p.theirs}={values[p.ours]}"
            for p in self.parameters
            if p.ours in values
        ]
        return f"{function}({', '.join(given)})"


def forward_names(operation: str, found: list[inspect.Parameter] | None) -> tuple[str, ...]:
    """Our names that a forward of an operation may have."""
    known = find_operation(operation)
    if known.block is not None:
        return ("x", "eps", "heads", MASK, *known.parameters)
    if operation == "weight_norm":
        return ("x", "weight")
    return (*FORWARD, *OWN.get(operation, ())) if known.cell is None else cell_names(known, found)


def cell_names(
    known: Operation, found: list[inspect.Parameter] | None, without: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Those of a cell: its arguments and eps; `state` in the place of (h, c) where it has no parameter for c alone."""
    apart = len(known.states) == 1 or any(our_name(p.name, ("c",)) for p in found or ())
    states = known.states if apart else ("state",)
    return ("x", "eps", *states, *(name for name in known.parameters if name not in without), "lengths")


def own_values(request: Request) -> dict[str, Any]:
    """Values of the names in OWN: the number of groups follows from the channels that share a mean."""
    if request.operation == "group_norm":
        channels = request.arrays["x"].shape[1]
        return {"num_groups": channels // request.normalized_shape[0], "training": request.train}
    if request.operation == "batch_norm":
        return {"training": True, "momentum": MOMENTUM}
    return {"training": request.train and request.operation != "batch_norm_eval"} if request.operation in OWN else {}


def axis(normalized_shape: tuple[int, ...]) -> int | tuple[int, ...]:
    """The normalised dimensions as negative numbers: an int for one, else a tuple."""
    dims = len(normalized_shape)
    return -1 if dims == 1 else tuple(range(-dims, 0))


def parameters(function: Any) -> list[inspect.Parameter] | None:
    """The parameters of a callable, or None where nothing can be inspected."""
    schema = getattr(function, "_schema", None) or getattr(function, "schema", None)
    if schema is not None and hasattr(schema, "arguments"):  # a torch operator, a scripted function
        return [
            inspect.Parameter(
                a.name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=a.default_value if a.has_default_value() else EMPTY,
            )
            for a in schema.arguments
        ]
    name = f"{getattr(function, '__module__', '')}.{getattr(function, '__name__', '')}"
    if name in BUILTINS and not hasattr(function, "__code__"):
        namespace: dict[str, Any] = {}
        exec(f"def known({BUILTINS[name]}): ...", namespace)
        function = namespace["known"]
    # What a partial has set stays set, though its signature still shows it.
    preset = function.keywords if isinstance(function, functools.partial) else {}
    try:
        return [p for p in inspect.signature(function).parameters.values() if p.name not in preset]
    except (ValueError, TypeError):
        return None


def preset_eps(function: Any) -> float | None:
    """The eps that a functools.partial has set, else None."""
    preset = function.keywords if isinstance(function, functools.partial) else {}
    found = [value for name, value in preset.items() if our_name(name, ("eps",))]
    return float(found[0]) if found else None


def our_name(theirs: str, allowed: Iterable[str]) -> str:
    """Our name for a parameter name of theirs, '' if it is no synonym of an allowed one."""
    allowed = tuple(allowed)
    if theirs in allowed:
        return theirs
    for spelling in (theirs, theirs.lower(), theirs.lower().strip("_")):
        for ours in allowed:
            if spelling in SYNONYMS.get(ours, (ours,)):
                return ours
    return ""


def _declare_hint(theirs: str, allowed: tuple[str, ...]) -> str:
    ours = "weight" if "weight" in allowed else allowed[0]
    return f"?map={theirs}:{ours} or @lnverify.subject(arguments={{{theirs!r}: {ours!r}}})"


def match(
    found: list[inspect.Parameter] | None,
    label: str,
    arguments: Mapping[str, str] | None = None,
    allowed: tuple[str, ...] = FORWARD,
    by_position: bool = False,
) -> Signature:
    """Match parameters to our names; `arguments` declares {theirs: ours}.

    by_position: the callable takes no keywords. Raises SignatureError for a required parameter that cannot
    be matched, for a declared name that does not exist, and where nothing matches the first allowed name.
    """
    arguments = dict(arguments or {})
    allowed = (*allowed, *_destinations(found, arguments, allowed))
    for theirs, ours in arguments.items():
        if ours not in allowed:
            raise SignatureError(f"{label}: {theirs!r} is mapped to {ours!r}, which is none of {', '.join(allowed)}.")
    if found is None and not arguments:
        raise SignatureError(
            f"{label} shows no parameter names: wrap it in a function fn(x, normalized_shape, weight, bias, eps)."
        )
    matched: list[Parameter] = []
    one_dim = not arguments.keys() & {"normalized_shape", "axis"}
    any_keyword = found is None
    for p in found or ():
        if p.kind is p.VAR_KEYWORD:
            any_keyword = True
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            continue
        ours = arguments.pop(p.name, "") or our_name(p.name, allowed)
        if any(m.ours == ours for m in matched) and ours:
            if p.default is EMPTY:
                raise SignatureError(
                    f"{label}: two parameters look like {ours!r}, the second is {p.name!r}: "
                    f"declare what it is, {_declare_hint(p.name, allowed)}."
                )
            ours = ""
        positional = p.kind is p.POSITIONAL_ONLY or by_position
        if not ours and p.default is EMPTY:
            names = "; ".join(f"{o}: {', '.join(SYNONYMS.get(o, (o,)))}" for o in allowed)
            raise SignatureError(
                f"{label}: the parameter {p.name!r} cannot be matched: rename it to one of ({names}), "
                f"give it a default, or declare it, {_declare_hint(p.name, allowed)}."
            )
        if ours or positional:
            matched.append(Parameter(p.name, ours, positional, p.default))
        if ours in ("normalized_shape", "axis"):
            one_dim = p.annotation in (int, "int")
    for theirs, ours in arguments.items():
        if not any_keyword:
            names = ", ".join(p.name for p in found or ())
            raise SignatureError(f"{label} has no parameter {theirs!r}, which is mapped to {ours!r}: it has {names}.")
        matched.append(Parameter(theirs, ours, False, EMPTY))
    first = allowed[0]
    if not any(m.ours == first for m in matched):
        raise SignatureError(
            f"{label} has no parameter for {first!r} ({', '.join(SYNONYMS[first])}): declare it, "
            f"?map=theirs:{first} or @lnverify.subject(arguments={{'theirs': {first!r}}})."
        )
    return Signature(tuple(matched), 1 if one_dim else None)


def _destinations(
    found: list[inspect.Parameter] | None, arguments: Mapping[str, str], allowed: tuple[str, ...]
) -> tuple[str, ...]:
    """Names of results that a callable may write into: where it cannot be called without y (or, a backward, dx).

    A forward that takes a mean and returns y is no such thing: it wants to be told the mean.
    """
    first, results = ("dx", DESTINATIONS[3:]) if "dy" in allowed else ("y", DESTINATIONS[:3])
    if "normalized_shape" not in allowed or "weight" not in allowed:
        return ()  # of a module
    required = (p for p in found or () if p.default is EMPTY)
    if any((arguments.get(p.name) or our_name(p.name, (first,))) == first for p in required):
        return results
    return ()


def match_pair(
    forward: list[inspect.Parameter] | None,
    backward: list[inspect.Parameter] | None,
    label: str,
    arguments: Mapping[str, str] | None,
    allowed: tuple[str, ...] = FORWARD,
) -> tuple[Signature, Signature]:
    """Match a forward and its separate backward; a declared name goes to whichever of the two has it.

    allowed: what the forward may take (forward_names); the backward may take the same beside names of its own.

    Raises SignatureError as `match` does.
    """
    declared = dict(arguments or {})
    names = {p.name for p in backward or ()}
    here = {p.name for p in forward or ()}
    to_forward = {k: v for k, v in declared.items() if k in here or k not in names}
    to_backward = {k: v for k, v in declared.items() if k in names}
    return (
        match(forward, label, to_forward, allowed),
        match(
            backward,
            f"the backward of {label}",
            to_backward,
            (*BACKWARD, *(name for name in allowed if name not in BACKWARD)),
        ),
    )


def fixed_eps(signature_has_eps: bool, declared: float | None, label: str) -> float | None:
    """The fixed eps of a callable, None if it can be set. Raises SignatureError if it is neither."""
    if declared is None and not signature_has_eps:
        raise SignatureError(
            f"{label} has no parameter for eps ({', '.join(SYNONYMS['eps'])}): declare the eps that it uses, "
            "?eps=1e-6 or @lnverify.subject(eps=1e-6)."
        )
    return declared


def operation_eps(known: Operation, signature: Signature, declared: float | None, label: str) -> float | None:
    """The same for an operation, 0 where it knows no eps. Raises SignatureError for data that it does not take too."""
    if missing := [name for name in known.data if not signature.has(name)]:
        raise SignatureError(
            f"{label} has no parameter for {missing[0]!r}, without which there is no {known.name}: declare it, "
            f"?map=theirs:{missing[0]}."
        )
    return fixed_eps(signature.has("eps"), declared, label) if "eps" in known.scalars else 0.0


def affine_modes(has_weight: bool, has_bias: bool) -> tuple[str, ...]:
    """Which combinations of weight and bias a signature can take."""
    modes = {"both": (True, True), "weight": (True, False), "bias": (False, True), "none": (False, False)}
    return tuple(m for m, (w, b) in modes.items() if (has_weight or not w) and (has_bias or not b))
