"""Subject: an implementation under test, and what it declares about itself.

A subject answers Requests and says what it can do (Capabilities). Adapters in `lnverify/adapters/` make
subjects: by the target's prefix ('onnx:model.onnx'), else by what the object is. Frameworks are imported
inside their adapter only, when a target asks for them.

Declarations are made in code by the decorator `lnverify.subject` (here `declare`), or as keys of a target
(lnverify.target).
"""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, TypeVar

from lnverify.errors import UsageError
from lnverify.floats import canonical_dtype
from lnverify.operation import operation as operation_named
from lnverify.protocol import Request, Response

T = TypeVar("T")
MASKS = ("added", "allowed", "blocked", "causal")
ATTRIBUTE = "__lnverify_subject__"  # where the decorator leaves the declaration


@dataclass(frozen=True)
class Capabilities:
    """What a subject can do, and what it declares about itself.

    dtypes: those that it may be asked for, in the order in which they are examined.
    outputs: subset of y, mean, rstd, dx, dweight, dbias, ty, d2x, ... that it can produce at all; refined by
    the warm-up.
    eps: a fixed eps that cannot be set, else None. max_dims: largest number of normalised dimensions, None
    for any. fixed_shape: the only normalized_shape that it accepts (a module instance), None for any; of
    a cell (inputs, units), of a block (heads, units of a head, hidden units), or (heads, hidden units by units) where
    only these are fixed, 0 for any.
    affine: which of 'both', 'weight', 'bias', 'none' it accepts; refined by the warm-up.
    compute: format of the statistics by dtype name, where declared ('float32' for 16 bits by default).
    backward_from: 'input', or 'output' where the backward rebuilds xhat from y.
    output_dtype: 'input' (dtype of x), or a dtype name.
    batch_invariant, deterministic: declared, then judged in bits.
    eps_dtype: the format that it stores eps in (ONNX: float32); the oracle then gets eps rounded to it.
    threads: thread counts to run with, (1, 2) by default. parameter_dtype: anything but 'input' says that 16-bit x
    with float32 parameters is not to be asked. parameters: those gains and shifts of a cell that it has, None for all;
    sequence: it takes several steps at once; gates: their declared order. mask: how a block is given one
    (Declaration.mask), '' where it takes none.
    """

    dtypes: tuple[str, ...] = ("float64", "float32", "bfloat16", "float16")
    devices: tuple[str, ...] = ("cpu",)
    outputs: tuple[str, ...] = ("y",)
    eps: float | None = None
    eps_dtype: str = "float64"
    max_dims: int | None = None
    affine: tuple[str, ...] = ("both", "weight", "bias", "none")
    compute: Mapping[str, str] = field(default_factory=dict)
    backward_from: str = "input"
    output_dtype: str = "input"
    batch_invariant: bool = False
    deterministic: bool = False
    parameter_dtype: str = "input"
    threads: tuple[int, ...] = ()
    module: bool = False
    fixed_shape: tuple[int, ...] | None = None
    parameters: tuple[str, ...] | None = None
    sequence: bool = False
    gates: str = ""
    mask: str = ""

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Capabilities:
        """From plain data, as dataclasses.asdict and JSON leave it; what is not known is left out."""
        known = {f.name for f in fields(cls)}
        plain: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in data.items() if k in known}
        return cls(**plain)


@dataclass(frozen=True, eq=False)
class Subject:
    """An implementation under test.

    target: the string that names it (shown in reports). run: answers one Request; it never raises for what
    the subject does: a subject's exception comes back as a refusal. module: for module subjects, a factory
    `(normalized_shape, eps, elementwise_affine, bias, dtype, device) -> framework module`, used by the module
    laws. call_text: source lines of a standalone script that calls it and leaves the result in `y`, with
    {x}, {weight}, {bias}, {eps}, {normalized_shape} to fill in by str.format; '' where there is none.
    bare: for what can be timed, `(request, 'forward' | 'backward' | 'both') -> call`: the subject's own code as one
    call without arguments, on fresh memory that holds the request's arrays, with nothing of lnverify around it.
    operation: what it was resolved for or declares; '' where nobody says.
    """

    target: str
    capabilities: Capabilities
    run: Callable[[Request], Response]
    framework: str = "numpy"
    versions: Mapping[str, str] = field(default_factory=dict)
    module: Callable[..., Any] | None = None
    call_text: str = ""
    bare: Callable[[Request, str], Callable[[], Any]] | None = None
    operation: str = ""


@dataclass(frozen=True)
class Declaration:
    """What the author of an implementation, or a target's query, says about it; None where nothing is said.

    framework: 'torch' or 'numpy', where it cannot be seen from the code. eps: a fixed eps. compute: format of
    the statistics, one name for every dtype or a mapping by dtype. backward: a separate backward function, or
    its name in the same file. arguments: their parameter names to ours ({'g1': 'weight'}; in a target
    `map=g1:weight`). returns: names of what the forward returns, ('y', 'mean', 'rstd') to expose the
    statistics. module: the callable builds a module. variant: which of the operation's; gates: their letters in the
    order in which they are stacked; parameters: where a module keeps those of a cell
    (lnverify.adapters.torch_cell_storage); sequence: it takes all steps at once, with batch_first those of a row
    after each other. heads: the number that a block has always; mask: what it takes for one, 'added' (0 and -inf,
    which is what is given where nothing is said), 'allowed' or 'blocked' (a bool, true where a position may be
    attended to or may not); 'causal' where it takes none and each position attends to those up to itself. The other
    fields: see Capabilities. extra: options of one adapter only, as text.
    """

    name: str | None = None
    operation: str | None = None
    framework: str | None = None
    dtypes: tuple[str, ...] | None = None
    devices: tuple[str, ...] | None = None
    eps: float | None = None
    eps_dtype: str | None = None
    max_dims: int | None = None
    affine: tuple[str, ...] | None = None
    compute: str | Mapping[str, str] | None = None
    backward: str | Callable[..., Any] | None = None
    backward_from: str | None = None
    output_dtype: str | None = None
    batch_invariant: bool | None = None
    deterministic: bool | None = None
    parameter_dtype: str | None = None
    threads: tuple[int, ...] | None = None
    arguments: Mapping[str, str] | None = None
    returns: tuple[str, ...] | None = None
    module: bool | None = None
    variant: str | None = None
    gates: str | None = None
    parameters: Mapping[str, str | tuple[str, ...]] | None = None
    sequence: bool | None = None
    batch_first: bool | None = None
    heads: int | None = None
    mask: str | None = None
    extra: Mapping[str, str] = field(default_factory=dict)

    def over(self, other: Declaration) -> Declaration:
        """Complete this declaration by the other one, where this one says nothing."""
        said = {f.name: v for f in fields(self) if (v := getattr(self, f.name)) is not None}
        return replace(other, **said)

    def capabilities(self, **found: Any) -> Capabilities:
        """Capabilities that an adapter found, overruled by what is declared."""
        own = {"compute", "outputs", "module", "fixed_shape", "parameters"}
        names = {f.name for f in fields(Capabilities)} - own
        said = {name: v for name in names if (v := getattr(self, name, None)) is not None}
        merged = Capabilities(**{**found, **said})
        if self.compute is None:
            return merged
        compute = self.compute if isinstance(self.compute, Mapping) else dict.fromkeys(merged.dtypes, self.compute)
        return replace(merged, compute=dict(compute))


def _listed(value: Any) -> tuple[str, ...]:
    parts = value.split(",") if isinstance(value, str) else value
    return tuple(str(part).strip() for part in parts)


def _truth(value: Any) -> bool:
    if str(value).lower() in ("true", "1", "yes", ""):
        return True
    if str(value).lower() in ("false", "0", "no"):
        return False
    raise ValueError("true or false is expected")


def _pairs(value: Any) -> dict[str, str]:
    """'a:b,c:d', or a mapping."""
    if isinstance(value, Mapping):
        return {str(k): str(v) for k, v in value.items()}
    pairs = [part.split(":") for part in _listed(value)]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError("pairs like theirs:ours, separated by commas, are expected")
    return {theirs.strip(): ours.strip() for theirs, ours in pairs}


def _places(value: Any) -> dict[str, str | tuple[str, ...]]:
    """{our name: their place, or one for each gate}; as text 'ours:theirs,ours:i+f+g+o'."""
    if isinstance(value, Mapping):
        return {str(k): v if isinstance(v, str) else tuple(map(str, v)) for k, v in value.items()}
    return {ours: theirs if "+" not in theirs else tuple(theirs.split("+")) for ours, theirs in _pairs(value).items()}


def _compute(value: Any) -> str | dict[str, str]:
    if isinstance(value, str) and ":" not in value:
        return canonical_dtype(value)
    return {canonical_dtype(k): canonical_dtype(v) for k, v in _pairs(value).items()}


def _one_of(*allowed: str) -> Callable[[Any], tuple[str, ...]]:
    def parse(value: Any) -> tuple[str, ...]:
        if unknown := [item for item in _listed(value) if item not in allowed]:
            raise ValueError(f"{unknown[0]!r} is not one of {', '.join(allowed)}")
        return _listed(value)

    return parse


def _dtype_or_input(value: Any) -> str:
    return "input" if value == "input" else canonical_dtype(str(value))


def _number(lowest: float, whole: bool = False) -> Callable[[Any], Any]:
    def parse(value: Any) -> Any:
        number = int(value) if whole else float(value)
        if not lowest <= number < float("inf"):
            raise ValueError(f"a {'whole ' if whole else ''}number from {lowest:g} up is expected")
        return number

    return parse


PARSERS: dict[str, Callable[[Any], Any]] = {
    "name": str,
    "operation": lambda v: operation_named(str(v)).name,
    "framework": str,
    "dtypes": lambda v: tuple(canonical_dtype(name) for name in _listed(v)),
    "devices": _listed,
    "eps": _number(0.0),
    "eps_dtype": lambda v: canonical_dtype(str(v)),
    "max_dims": _number(1, whole=True),
    "affine": _one_of("both", "weight", "bias", "none"),
    "compute": _compute,
    "backward": lambda v: v,
    "backward_from": lambda v: _one_of("input", "output")(v)[0],
    "output_dtype": _dtype_or_input,
    "batch_invariant": _truth,
    "deterministic": _truth,
    "parameter_dtype": _dtype_or_input,
    "threads": lambda v: tuple(_number(1, whole=True)(n) for n in (_listed(v) if isinstance(v, str) else v)),
    "arguments": _pairs,
    "returns": _listed,
    "module": _truth,
    "variant": str,
    "gates": lambda v: str(v).lower(),
    "parameters": _places,
    "sequence": _truth,
    "batch_first": _truth,
    "heads": _number(1, whole=True),
    "mask": lambda v: _one_of(*MASKS)(v)[0],
}


def declaration(said: Mapping[str, Any]) -> Declaration:
    """A Declaration from plain values or text; keys that it does not know go to `extra`.

    Raises UsageError for a value that cannot be read.
    """
    known: dict[str, Any] = {}
    extra: dict[str, str] = {}
    for key, value in said.items():
        key = "arguments" if key == "map" else key
        if key not in PARSERS:
            extra[key] = str(value)
        elif value is not None:
            try:
                known[key] = PARSERS[key](value)
            except (ValueError, TypeError) as error:
                raise UsageError(f"the option {key}={value} cannot be read: {error}.") from None
    return Declaration(**known, extra=extra)


def declare(
    obj: T | None = None,
    /,
    *,
    name: str | None = None,
    operation: str | None = None,
    framework: str | None = None,
    dtypes: tuple[str, ...] | str | None = None,
    devices: tuple[str, ...] | str | None = None,
    eps: float | None = None,
    eps_dtype: str | None = None,
    max_dims: int | None = None,
    affine: tuple[str, ...] | str | None = None,
    compute: str | Mapping[str, str] | None = None,
    backward: str | Callable[..., Any] | None = None,
    backward_from: str = "input",
    output_dtype: str = "input",
    batch_invariant: bool = False,
    deterministic: bool = False,
    parameter_dtype: str | None = None,
    threads: tuple[int, ...] | None = None,
    arguments: Mapping[str, str] | None = None,
    returns: tuple[str, ...] = ("y",),
    module: bool = False,
    variant: str | None = None,
    gates: str | None = None,
    parameters: Mapping[str, str | tuple[str, ...]] | None = None,
    sequence: bool | None = None,
    batch_first: bool | None = None,
    heads: int | None = None,
    mask: str | None = None,
) -> Any:
    """Decorator `lnverify.subject`: say about a function or class what lnverify cannot see from its code.

    The object is returned unchanged but for one attribute. See Declaration for the arguments. Raises
    UsageError for a value that is not allowed. Without an operation it is the one that a run asks for.

        @lnverify.subject(dtypes=("float32", "bfloat16"), eps=1e-6, arguments={"g1": "weight"})
        def fused(x, g1): ...
    """
    said = {key: value for key, value in locals().items() if key != "obj"}
    found = declaration(said)

    def attach(target: T) -> T:
        setattr(target, ATTRIBUTE, found)
        return target

    return attach if obj is None else attach(obj)


def declared(obj: Any) -> Declaration:
    """What the decorator said about an object or, for an instance, about its class. Never inherited."""
    for place in (obj, type(obj)):
        found = getattr(place, "__dict__", {}).get(ATTRIBUTE)
        if isinstance(found, Declaration):
            return found
    return Declaration()


class _CallableModule(types.ModuleType):
    """`lnverify.subject` is this module wherever it was imported before: called, it is the decorator."""

    __call__ = staticmethod(declare)


sys.modules[__name__].__class__ = _CallableModule
