"""Functions that take and return NumPy arrays: fn(x, normalized_shape, weight, bias, eps), matched by name.

float64 and float32 are native. bfloat16 and float16 only where declared, by this contract: storage 16 bits,
computing in float32. The function receives float32 arrays that hold 16-bit values, and what it returns is
rounded once to the 16-bit format (statistics stay float32); a parameter named `dtype` receives the name of
the storage format. Gradients come from a separate backward only.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lnverify.adapters import cell_calls, numpy_bare
from lnverify.adapters.calling import Attempt, attempt, named_gradients, refuse_within, saved_values, split
from lnverify.adapters.destinations import BACKWARD, FORWARD, Destination, Writing, results
from lnverify.adapters.layouts import Placed, place
from lnverify.adapters.locate import companion, source_of
from lnverify.adapters.numpy_bare import scalars
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
from lnverify.adapters.two_threads import at_once
from lnverify.errors import SignatureError
from lnverify.floats import FORMATS, FloatArray
from lnverify.operation import Operation, operation
from lnverify.protocol import CROWD, VIEWS, Request, Response, later
from lnverify.subject import Declaration, Subject

FRAMEWORK = "numpy"
GENERIC = True
NATIVE = {"float64": np.float64, "float32": np.float32}
NAMES = {np.dtype(np.float64): "float64", np.dtype(np.float32): "float32", np.dtype(np.float16): "float16"}


def claims(obj: object) -> bool:
    """Any callable that is no class."""
    return callable(obj) and not isinstance(obj, type)


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """Raises SignatureError where parameters cannot be matched."""
    backward = None
    allowed = forward_names(options.operation or "layer_norm", parameters(obj))
    if options.backward is None:
        signature = match(parameters(obj), target, options.arguments, allowed)
    else:
        other = companion(options.backward, obj, target)
        signature, matched = match_pair(parameters(obj), parameters(other), target, options.arguments, allowed)
        backward = (other, matched)
    known = operation(options.operation or "layer_norm")
    if known.block is not None:
        raise SignatureError(f"{target}: {known.name} is called in torch only: write it in torch.")
    fixed = operation_eps(known, signature, preset_eps(obj) if options.eps is None else options.eps, target)
    returns = results(signature, options.returns)
    names = known.arguments
    taken = tuple(name for name in names if signature.has(name) or (name in known.states and signature.has("state")))
    function = obj
    if known.cell is not None:
        returns, function = known.outputs, _cell(obj, known)
        if options.sequence or (backward is not None and (len(known.outputs) > 1 or options.gates)):
            what = "a layer over sequences" if options.sequence else f"a separate backward of {known.name}"
            raise SignatureError(f"{target}: {what} is called in torch only: write it in torch, or declare none.")
    gates = cell_calls.order(known, options)
    output_dtype = options.output_dtype or "input"
    gradients = tuple(f"d{name}" for name in names) if backward else ()

    def run(request: Request) -> Response:
        for name in names:
            if name in request.arrays and name not in taken:
                return Response(refusal=f"TypeError: {target} has no parameter for {name}")
        held = {
            name: hold(request.arrays[name], request.layouts.get(name, "contiguous"))
            for name in (*names, *known.beside, "dy")
            if name in request.arrays and not (name == "dy" and request.layouts.get(name) == "output")
        }
        return attempt(
            lambda state: _run(state, request, held, function, signature, returns, backward, output_dtype, gates)
        )

    def bare(request: Request, what: str) -> Callable[[], Any]:
        held = {n: hold(request.arrays[n], "contiguous").array for n in (*names, "dy") if n in request.arrays}
        return numpy_bare.bare(request, what, held, (obj, signature), returns, backward)

    return Subject(
        target=target,
        capabilities=options.capabilities(
            dtypes=("float64", "float32"),
            outputs=("y", *(n for n in returns if n in ("mean", "rstd", *known.outputs[1:])), *gradients),
            max_dims=signature.max_dims,
            affine=affine_modes(bool({*known.gains} & {*taken}), bool({*known.shifts} & {*taken})),
            parameters=None if known.cell is None else tuple(n for n in taken if n in (*known.gains, *known.shifts)),
            eps=fixed,
        ),
        run=run,
        framework=FRAMEWORK,
        versions={"numpy": np.__version__},
        call_text=_call_text(obj, signature, len(returns)),
        bare=bare,
    )


def _cell(function: Callable[..., Any], known: Operation) -> Callable[..., Any]:
    """A cell whose results are no longer nested: y, and c where it has one."""

    def flat(*args: Any, **kwargs: Any) -> tuple[Any, ...]:
        found = cell_calls.results(known, function(*args, **kwargs))
        return (found[0], *found[len(found) - len(known.outputs) + 1 :])

    return flat


@dataclass(frozen=True, eq=False)
class Held:
    """An array that the subject is given, with a copy of its whole buffer."""

    array: npt.NDArray[Any]
    placed: Placed
    pristine: npt.NDArray[Any]


def hold(array: FloatArray, layout: str) -> Held:
    """The array in that layout; 16-bit values come as float32."""
    if array.dtype not in NATIVE:
        array = FloatArray("float32", array.values.astype(np.float32).view(np.uint32))
    placed = place(array, layout)
    return Held(placed.view.view(NATIVE[array.dtype]), placed, placed.buffer.copy())


def _other(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Other numbers in an array of the same shape: another mean, spread and order."""
    ordinary = np.clip(np.nan_to_num(array[..., ::-1], nan=1.0, posinf=1.0, neginf=1.0), -8, 8)
    return (ordinary * -0.5 + 3).astype(array.dtype)


@contextlib.contextmanager
def overwritten(held: dict[str, Held]) -> Iterator[None]:
    """Other numbers in the memory of the arrays while it lasts; their own afterwards."""
    for h in held.values():
        h.array[...] = _other(h.array)
    try:
        yield
    finally:
        for h in held.values():
            h.placed.buffer[...] = h.pristine


def view_alone(returned: Any, returns: tuple[str, ...]) -> Any:
    """What a function returned, with a view of y in its place."""
    if isinstance(returned, Mapping):
        return {**returned, "y": returned["y"][...]}
    if not isinstance(returned, tuple | list):
        return returned[...]
    place = returns.index("y") if "y" in returns else 0
    return (*returned[:place], returned[place][...], *returned[place + 1 :])


def to_array(value: Any, name: str, storage: str) -> FloatArray:
    """What a function returned, as bits; rounded once where the storage format has 16 bits."""
    if not isinstance(value, np.ndarray | np.floating):
        raise TypeError(f"{name} is a {type(value).__name__}, a NumPy array is expected")
    value = np.asarray(value)
    if value.dtype not in NAMES:
        raise TypeError(f"{name} has dtype {value.dtype}, one of float64, float32, float16 is expected")
    dtype = NAMES[value.dtype]
    if storage not in NATIVE and dtype in NATIVE:
        return FloatArray.of(value.astype(np.float64), storage)
    return FloatArray(dtype, np.array(value, order="C", copy=True).view(FORMATS[dtype].bits))


def _writing(state: Attempt, request: Request, signature: Signature, names: tuple[str, ...]) -> Writing:
    """Calls that also give what is written into; 16-bit results are float32, like 16-bit arguments."""

    def give(made: Destination) -> tuple[npt.NDArray[Any], Callable[[], None]]:
        return made.inner.view(NATIVE[made.dtype]), lambda: None

    given_as = lambda dtype: dtype if dtype in NATIVE else "float32"  # noqa: E731
    return Writing(signature, request, names, give, state.changed, given_as)


def _called(
    request: Request,
    held: dict[str, Held],
    call: Callable[[dict[str, Any]], Any],
    values: dict[str, Any],
    returns: tuple[str, ...],
) -> Any:
    """What the function returns, with the history that the request asks for."""
    refuse_within(request.history)
    other = {**values, "x": _other(values["x"])}
    if request.history == "overwritten":
        with overwritten(held):
            call(values)
    if request.history in ("lower", "higher"):
        dtype = np.float16 if request.history == "lower" else np.float64
        cast = {k: v.astype(dtype) if isinstance(v, np.ndarray) else v for k, v in values.items()}
        with contextlib.suppress(Exception):  # whether it takes them does not matter
            call(cast)
    if request.history == "threads":
        return at_once(
            lambda: call(values),
            lambda: call(other),
            lambda one, two: np.array_equal(split(one, returns)[0], split(two, returns)[0], equal_nan=True),
        )
    returned = call(values)
    if request.history in VIEWS:
        returned = view_alone(returned, returns)
        beside = [call(other) for _ in range(later(values["x"].size))]
        del beside
    for _ in range({"followed": 1, "crowded": CROWD}.get(request.history, 0)):
        call(other)
    return returned


def _run(
    state: Attempt,
    request: Request,
    held: dict[str, Held],
    function: Callable[..., Any],
    signature: Signature,
    returns: tuple[str, ...],
    backward: tuple[Callable[..., Any], Signature] | None,
    output_dtype: str,
    gates: str,
) -> None:
    if request.repeat:
        raise TypeError("rows are repeated for torch subjects only")
    storage = request.arrays["x"].dtype
    asked = {f"d{n}" for n in request.requires_grad if n in request.arrays} & set(request.wanted)

    def give(name: str, value: Any) -> None:
        # Statistics, and an output declared to be wider, are no 16-bit storage: they stay what they are.
        kept = {"y": output_dtype, "mean": "float32", "rstd": "float32"}.get(name, "input")
        argument = request.arrays.get(name[1:])  # a gradient is stored as its argument is
        stored = argument.dtype if name in asked and argument is not None else storage
        state.arrays[name] = to_array(value, name, stored if kept == "input" else kept)
        if any(np.may_share_memory(value, h.placed.buffer) for h in held.values()):
            state.aliases.append(name)

    known = operation(request.operation)
    given_arrays = {name: h.array for name, h in held.items() if name not in known.cotangents}
    values: dict[str, Any] = cell_calls.arguments(known, given_arrays, gates)
    values |= scalars(request)
    forward = _writing(state, request, signature, FORWARD)

    def call(given: dict[str, Any]) -> Any:
        return forward.call(function, given)

    returned = _called(request, held, call, values, returns)
    y, extra, named = split(returned, returns)
    for name, value in {**named, "y": y}.items():
        if name in request.wanted:
            give(name, value)
    if backward is not None and asked:
        state.phase = "backward"
        own = request.layouts.get("dy") == "output"
        if own:
            state.arrays["dy"] = to_array(y, "dy", storage)
        # What is stored is what goes on: y in 16 bits has been rounded before it becomes dy.
        rounded = own and storage not in NATIVE
        dy = state.arrays["dy"].values.astype(np.float32) if rounded else y if own else held["dy"].array
        before = np.array(dy, copy=True)
        given = {**values, **saved_values(extra, named), "y": y, "dy": dy}
        writing = _writing(state, request, backward[1], BACKWARD)
        if request.history in ("repeated", "resumed"):
            writing.call(backward[0], given)
        if request.history == "resumed":
            other = {**values, "x": _other(values["x"])}
            for again in [call(other) for _ in range(later(values["x"].size))]:
                y2, extra2, named2 = split(again, returns)
                writing.call(backward[0], {**other, **saved_values(extra2, named2), "y": y2, "dy": _other(dy)})
        found = writing.call(backward[0], given)
        if request.history == "followed":
            writing.call(backward[0], {**given, "dy": _other(dy)})
        arguments = operation(request.operation).arguments
        present = tuple(name for name in arguments if name in request.arrays)
        for name, value in named_gradients(found, arguments, present).items():
            if name in asked:
                give(name, value)
        if own and before.tobytes() != dy.tobytes():
            state.changed.append("dy")
    # Bits, since NaN differs from itself.
    state.changed.extend(n for n, h in held.items() if not np.array_equal(h.placed.buffer, h.pristine))


def _call_text(obj: Any, signature: Signature, results: int) -> str:
    """Source lines that import the function and call it."""
    lines, expression = source_of(obj)
    if not expression:
        return ""
    places = {name: f"{{{name}}}" for name in ("x", "weight", "bias", "eps", "normalized_shape")}
    places["axis"] = "tuple(range(-len({normalized_shape}), 0))"
    places["dtype"] = "str({x}.dtype)"
    return f"{lines}\ny = {signature.text(expression, places)}" + ("[0]" if results > 1 else "")
