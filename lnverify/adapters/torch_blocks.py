"""Transformer blocks in torch: modules, built by name for the units, heads and hidden units of a case.

As with cells (lnverify.adapters.torch_cells) the parameters are computed from the arguments of the operation and put in
their places for the call. A constructor is called with what it takes of the units, the heads, the hidden units, eps,
batch_first, a dropout of zero, and norm_first and activation as the variant has them. torch.nn.TransformerEncoderLayer
needs no declaration.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from lnverify.adapters import require
from lnverify.adapters.block_calls import HEADS, calling, mask_kind
from lnverify.adapters.calling import first_line, quiet
from lnverify.adapters.signature import fixed_eps, match, our_name, parameters
from lnverify.adapters.torch_call import Tensors, answer, outputs, scalars
from lnverify.adapters.torch_cell_storage import Storage
from lnverify.adapters.torch_cells import eps_of
from lnverify.adapters.torch_constructor import WIDTHS, roles_of
from lnverify.adapters.torch_parameters import KEPT, Places, in_mode
from lnverify.block import MASK, extents
from lnverify.errors import SignatureError
from lnverify.operation import Operation, operation
from lnverify.protocol import Request, Response
from lnverify.subject import Declaration, Subject

FRAMEWORK = "torch"
PROBE = (2, 3, 8)  # heads, units of a head and hidden units of the module that is built to see its parameters
HIDDEN = (
    "dim_feedforward", "d_ff", "ffn_dim", "mlp_dim", "d_inner", "intermediate_size", "ffn_hidden", "hidden", "dff",
    "feedforward_dim", "d_hidden", "n_inner", "inner_dim", "ff_dim",
)  # fmt: skip
DROPOUTS = ("dropout", "drop", "attn_dropout", "resid_dropout", "attention_dropout", "ffn_dropout", "dropout_rate",
            "dropout_p", "drop_rate", "p_dropout")  # fmt: skip
UNITS = tuple(name for name in WIDTHS if name not in HIDDEN and name != "hidden_dim")
ENCODER_LAYER = {
    **{f"weight_{part}": "self_attn.in_proj_weight" for part in "qkv"},
    **{f"bias_{part}": "self_attn.in_proj_bias" for part in "qkv"},
    "weight_o": "self_attn.out_proj.weight", "bias_o": "self_attn.out_proj.bias", "weight_1": "linear1.weight",
    "bias_1": "linear1.bias", "weight_2": "linear2.weight", "bias_2": "linear2.bias", "gain_1": "norm1.weight",
    "shift_1": "norm1.bias", "gain_2": "norm2.weight", "shift_2": "norm2.bias",
}  # fmt: skip


def adapt(obj: Any, target: str, options: Declaration) -> Subject:
    """The subject of a module class or instance.

    Raises FrameworkError without torch, and SignatureError where a class cannot be built or a parameter has no place.
    """
    torch = require("torch")
    known = operation(str(options.operation))
    if options.parameters is None and _is_encoder_layer(torch, obj):
        options = replace(options, parameters=ENCODER_LAYER)
    make, found = _instance(obj, target) if isinstance(obj, torch.nn.Module) else _class(obj, target, known, options)
    sizes = found["sizes"] or (options.heads or PROBE[0], *PROBE[1:])
    with quiet():
        probe = make(*sizes, 1e-5)
    sizes, fixed = _hidden(probe, target, sizes, found, options)
    storage = Storage(known, probe, target, options, extents((1, 1, sizes[0] * sizes[1]), sizes[:2], sizes[2]))
    allowed = [p for p in parameters(getattr(probe, "_orig_mod", probe).forward) or () if p.name != "self"]
    signature = match(allowed, f"{target}.forward", None, ("x", "eps", MASK))
    eps = None if found["eps"] else fixed_eps(False, eps_of(probe) if options.eps is None else options.eps, target)
    masked = mask_kind(signature.has(MASK), options, target)

    @functools.lru_cache(KEPT)
    def built(sizes: tuple[int, ...], eps: float, dtype: str, device: str) -> Any:
        return Places(make(*sizes, eps).to(device=device, dtype=getattr(torch, dtype)))

    def run(request: Request) -> Response:
        sizes = (*request.normalized_shape, request.arrays["weight_1"].shape[0])
        try:
            with quiet():
                places = built(sizes, request.eps, request.arrays["x"].dtype, request.device)
                in_mode(places.module, request.train)
        except Exception as error:  # a shape that an instance does not have, say
            return Response(refusal=first_line(error))

        def zero(path: str) -> Any:
            return torch.zeros_like(places.first[path], requires_grad=False)

        def bind(request: Request, tensors: Tensors) -> tuple[dict[str, Any], Callable[[Tensors], Any]]:
            def called(values: Tensors) -> Any:
                placed = storage.placed({n: values[n] for n in storage.names})
                placed |= {path: zero(path) for path in storage.zeros if path in places.first}
                module = places.put(placed)
                given = {name: value for name, value in values.items() if name in ("x", MASK)}
                return signature.call(module, {**scalars(request), **given})

            return dict(tensors), bound(called, request, masked, options)

        return answer(request, bind, module=True)

    return Subject(
        target=target,
        capabilities=options.capabilities(
            devices=("cpu", "cuda") if torch.cuda.is_available() else ("cpu",),
            outputs=outputs(("x", *storage.names), ("y",), False), eps=eps, module=True, affine=("both",), max_dims=1,
            fixed_shape=fixed, mask=masked,
            parameters=tuple(n for n in (*known.gains, *known.shifts) if n in storage.names),
        ),
        run=run,
        framework=FRAMEWORK,
        versions={"torch": torch.__version__, "numpy": np.__version__},
    )  # fmt: skip


def bound(call: Callable[[Tensors], Any], request: Request, masked: str, options: Declaration) -> Any:
    """The call with heads and mask as tensors, and the axes of x in the declared order."""
    import torch

    def mask_of(values: Any) -> Any:
        mask = torch.from_numpy(values).to(request.device)
        return mask if mask.dtype == torch.bool else mask.to(getattr(torch, request.arrays["x"].dtype))

    return calling(call, request, masked, options, mask_of, lambda tensor: tensor.transpose(0, 1))


def _is_encoder_layer(torch: Any, obj: Any) -> bool:
    layer = torch.nn.TransformerEncoderLayer
    return isinstance(obj, layer) or (isinstance(obj, type) and issubclass(obj, layer))


def _class(
    obj: Any, target: str, known: Operation, options: Declaration
) -> tuple[Callable[..., Any], dict[str, Any]]:  # fmt: skip
    """What builds a module of so many heads, units of a head and hidden units."""
    assert known.block is not None
    names = {
        **dict.fromkeys(HIDDEN, "hidden"), **dict.fromkeys(UNITS, "units"), **dict.fromkeys(DROPOUTS, "dropout"),
        "norm_first": "norm_first", "activation": "activation", "batch_first": "batch_first",
    }  # fmt: skip

    def role_of(p: inspect.Parameter) -> str:
        declared = (options.arguments or {}).get(p.name, "")
        return declared or names.get(p.name, "") or our_name(p.name, ("eps", HEADS))

    found = parameters(obj) or ()
    roles = roles_of(found, role_of, target, "units (or heads, hidden, eps, dropout)")
    more = {p.name: 0.0 for p in found if role_of(p) == "dropout" and isinstance(p.default, float)}
    if "units" not in roles:
        raise SignatureError(
            f"{target}: no constructor parameter gives the units ({', '.join(UNITS)}): declare it, ?map=theirs:units."
        )
    if HEADS not in roles and options.heads is None:
        raise SignatureError(
            f"{target}: no constructor parameter gives the number of heads: declare it, ?map=theirs:heads, or declare "
            "how many it has, ?heads=1."
        )

    def make(heads: int, units: int, hidden: int, eps: float) -> Any:
        values = {
            "units": heads * units, HEADS: heads, "hidden": hidden, "eps": eps, "dropout": 0.0,
            "norm_first": known.block is not None and known.block.pre, "batch_first": options.batch_first is not False,
            "activation": "gelu" if known.block is not None and known.block.gelu else "relu",
        }  # fmt: skip
        return obj(**{**more, **{theirs: values[role] for role, theirs in roles.items()}})

    free = {"heads": HEADS in roles, "hidden": "hidden" in roles}
    return make, {"eps": "eps" in roles, "sizes": None, **free}


def _instance(obj: Any, target: str) -> tuple[Callable[..., Any], dict[str, Any]]:
    """A module as it is."""
    heads = {
        int(value)
        for part in obj.modules()
        for name in ("nhead", "num_heads", "n_heads", "n_head", "heads")
        if isinstance(value := getattr(part, name, None), int)
    }
    widths = [p.normalized_shape[0] for p in obj.modules() if isinstance(getattr(p, "normalized_shape", None), tuple)]
    if len(heads) != 1 or not widths:
        raise SignatureError(f"{target}: the heads and units of this module cannot be seen: name its class instead.")
    count = heads.pop()
    sizes = (count, widths[0] // count, 0)

    def make(heads: int, units: int, hidden: int, eps: float) -> Any:
        if (heads, units) != sizes[:2]:
            raise ValueError(f"this module has {sizes[0]} heads of {sizes[1]} units, not {heads} of {units}")
        return obj

    return make, {"eps": False, "sizes": sizes, "heads": False, "hidden": False}


def _hidden(
    probe: Any, target: str, sizes: tuple[int, ...], found: dict[str, Any], options: Declaration
) -> tuple[tuple[int, ...], tuple[int, ...] | None]:
    """The sizes of the probe with the hidden units that it has, and Capabilities.fixed_shape."""
    if found["hidden"]:
        return sizes, None if found["heads"] else (sizes[0], 0)
    place = (options.parameters or {}).get("bias_1") or (options.parameters or {}).get("weight_1") or ""
    path = place if isinstance(place, str) else place[0]
    try:
        shape = probe.get_parameter(path.removesuffix(".T")).shape
    except AttributeError:
        raise SignatureError(f"{target}: nothing says where it keeps weight_1: declare its parameters.") from None
    hidden, units = int(shape[1] if path.endswith(".T") else shape[0]), sizes[0] * sizes[1]
    if found["sizes"]:
        return (*sizes[:2], hidden), (*sizes[:2], hidden)
    if hidden % units:
        raise SignatureError(f"{target}: {hidden} hidden units are no multiple of {units} units: ?map=theirs:hidden.")
    return (*sizes[:2], hidden), (0 if found["heads"] else sizes[0], hidden // units)
