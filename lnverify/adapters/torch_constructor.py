"""How a torch.nn.Module class is constructed by name, and which of its parameters are weight and bias."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lnverify.adapters.signature import EMPTY, SYNONYMS, our_name, parameters
from lnverify.errors import SignatureError

SHAPES = SYNONYMS["normalized_shape"]
WIDTHS = (
    "hidden_size", "dim", "d_model", "features", "num_features", "size", "hidden_dim", "embed_dim",
    "embedding_dim", "n_embd", "ndim", "n_features", "channels", "num_channels", "num_hiddens", "n_hidden", "units",
    "nf", "nx", "in_features", "in_channels", "width", "normalized_dim",
)  # fmt: skip
AFFINE_FLAGS = ("elementwise_affine", "affine")
BIAS_FLAGS = ("bias", "use_bias", "with_bias")


@dataclass(frozen=True)
class Constructor:
    """How to call a constructor. shape: its parameter for the shape; width: it wants an int."""

    build: Callable[..., Any]
    shape: str
    width: bool
    eps: str = ""
    affine: str = ""
    bias: str = ""

    def __call__(self, normalized_shape: tuple[int, ...], eps: float, weight: bool, bias: bool) -> Any:
        """A module of that shape; flags that the constructor does not take are left out."""
        given: dict[str, Any] = {self.shape: normalized_shape[0] if self.width else _shape(normalized_shape)}
        if self.eps:
            given[self.eps] = eps
        if self.affine:
            given[self.affine] = weight or bias
        if self.bias:
            given[self.bias] = bias
        return self.build(**given)


def _shape(normalized_shape: tuple[int, ...]) -> Any:
    """A torch.Size: a tuple, and what code asks for that knows torch's own shapes only."""
    from torch import Size

    return Size(normalized_shape)


def roles_of(
    found: Iterable[inspect.Parameter], role_of: Callable[[inspect.Parameter], str], target: str, declarable: str
) -> dict[str, str]:
    """Names of a constructor's parameters by their roles, the first one of each. role_of: '' for none.

    declarable: the roles that ?map= can give. Raises SignatureError for a parameter that is required and has no role.
    """
    roles: dict[str, str] = {}
    for p in found:
        role = role_of(p)
        if role and role not in roles:
            roles[role] = p.name
        elif p.default is EMPTY and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise SignatureError(
                f"{target}: the constructor parameter {p.name!r} cannot be matched: give it a default, or declare "
                f"what it is, ?map={p.name}:{declarable}."
            )
    return roles


def constructor(build: Callable[..., Any], target: str, arguments: Mapping[str, str]) -> Constructor:
    """Match a constructor's parameters. Raises SignatureError for one that is required and unknown."""
    found = {p.name: p for p in _constructor_parameters(build)}

    def role_of(p: inspect.Parameter) -> str:
        role = arguments.get(p.name) or _role(p.name)
        no_flag = p.default is not EMPTY and not isinstance(p.default, bool)
        return "" if role == "bias" and no_flag else role

    roles = roles_of(found.values(), role_of, target, "normalized_shape (or eps, elementwise_affine, bias)")
    if "normalized_shape" not in roles:
        raise SignatureError(
            f"{target}: no constructor parameter gives the shape ({', '.join((*SHAPES, *WIDTHS))}): "
            f"declare it, ?map=theirs:normalized_shape."
        )
    shape = roles["normalized_shape"]
    return Constructor(
        build,
        shape,
        # A name that is not known for a shape is a width: whoever wants a tuple says so in the name.
        shape not in SHAPES or found[shape].annotation in (int, "int"),
        roles.get("eps", ""),
        roles.get("elementwise_affine", ""),
        roles.get("bias", ""),
    )


def _role(name: str) -> str:
    if name in SHAPES or name in WIDTHS:
        return "normalized_shape"
    if name in AFFINE_FLAGS:
        return "elementwise_affine"
    return "bias" if name in BIAS_FLAGS else our_name(name, ("eps",))


def _constructor_parameters(build: Callable[..., Any]) -> list[inspect.Parameter]:
    """Named parameters; a class that passes **kwargs on is followed to the class that takes them."""
    if not isinstance(build, type):
        return [p for p in parameters(build) or () if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    found: dict[str, inspect.Parameter] = {}
    for cls in build.__mro__:
        if "__init__" not in vars(cls):
            continue
        own = list(inspect.signature(vars(cls)["__init__"]).parameters.values())[1:]
        for p in own:
            if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
                found.setdefault(p.name, p)
        if not any(p.kind is p.VAR_KEYWORD for p in own):
            break
    return list(found.values())


def find_parameters(module: Any, shape: tuple[int, ...] | None, arguments: Mapping[str, str]) -> dict[str, str]:
    """Names of the registered parameters that are weight and bias, by ours.

    shape: the normalized_shape; None where it is not known. Raises SignatureError for two alike.
    """
    found: dict[str, str] = {}
    for name, parameter in module.named_parameters():
        ours = arguments.get(name) or our_name(name.rpartition(".")[2], ("weight", "bias"))
        sizes = [n for n in parameter.shape if n != 1]
        if ours not in ("weight", "bias") or (shape is not None and sizes != [n for n in shape if n != 1]):
            continue
        if ours in found:
            raise SignatureError(
                f"two parameters look like {ours!r}, {found[ours]!r} and {name!r}: declare one, ?map={name}:{ours}."
            )
        found[ours] = name
    return found
