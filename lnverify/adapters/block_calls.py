"""What calls of transformer blocks have in common in every framework: heads, masks, positions before sequences.

A callable gets x of (sequences, positions, units), or of (positions, sequences, units) where `batch_first=False` is
declared, the parameters that it names, `heads` where it has a parameter for their number, and `mask` of (positions,
positions) where it has one, in the form that is declared: 'added' (0 and -inf, in the dtype of x), 'allowed' or
'blocked' (bool). A callable with no parameter for heads declares how many it has; one with no parameter for a mask
has none, or a causal one that it makes itself, which it declares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lnverify.adapters.signature import Signature
from lnverify.block import MASK
from lnverify.errors import SignatureError
from lnverify.floats import FloatArray
from lnverify.protocol import Request
from lnverify.subject import Declaration

HEADS = "heads"


def fixed_heads(signature: Signature, options: Declaration, target: str) -> tuple[int, ...] | None:
    """Capabilities.fixed_shape of a function. Raises SignatureError where nothing says how many heads it has."""
    if signature.has(HEADS):
        return None
    if options.heads is None:
        raise SignatureError(
            f"{target} has no parameter for the number of heads (heads, num_heads, nhead): declare how many it has, "
            "?heads=1 or @lnverify.subject(heads=1)."
        )
    return options.heads, 0


def mask_kind(has_mask: bool, options: Declaration, target: str) -> str:
    """Capabilities.mask. Raises SignatureError for a form of a mask that there is no parameter for."""
    if has_mask:
        return options.mask or "added"
    if options.mask not in (None, "causal"):
        raise SignatureError(
            f"{target} has no parameter for a mask (mask, attn_mask, src_mask), and mask={options.mask} is declared: "
            "leave it out, or declare mask=causal if it makes its own."
        )
    return options.mask or ""


def mask_values(array: FloatArray, kind: str) -> Any:
    """A mask in the declared form, as a NumPy array of bool or float64."""
    allowed = array.values > 0
    if kind == "added":
        return np.where(allowed, 0.0, -np.inf)
    return allowed if kind == "allowed" else ~allowed


def calling(
    call: Callable[[Mapping[str, Any]], Any], request: Request, kind: str, options: Declaration,
    mask_of: Callable[[Any], Any], turn: Callable[[Any], Any],
) -> Callable[[Mapping[str, Any]], Any]:  # fmt: skip
    """A call by arguments of the operation. mask_of: an array of the framework; turn: its first two axes changed."""
    values: dict[str, Any] = {HEADS: request.normalized_shape[0]}
    if MASK in request.arrays and kind in ("added", "allowed", "blocked"):
        values[MASK] = mask_of(mask_values(request.arrays[MASK], kind))

    def run(leaves: Mapping[str, Any]) -> Any:
        if options.batch_first is not False:
            return call({**values, **leaves})
        returned = call({**values, **leaves, "x": turn(leaves["x"])})
        first = returned[0] if isinstance(returned, tuple | list) else returned
        return turn(first)

    return run
