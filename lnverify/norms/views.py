"""Views: the axes of a case in the order of its formula, and which of them share statistics and parameters.

A case's `normalized_shape` is the extent of the part of x that shares one mean and variance:

    operation                     x                normalized_shape      view of x          statistics   parameters
    rms_norm, ..._eps_outside     (*batch, *D)     D                     (rows, n)          over n       (n,)
    group_norm, instance_norm     (N, C, *S)       (C / groups, *S)      (N, G, C/G, S)     over C/G, S  (G, C/G)
    batch_norm                    (N, C, *S)       (N, *S)               (N, C, S)          over N, S    (C,)
    batch_norm_eval               (N, C, *S)       (N, *S)               (N, C, S)          per C        (C,)
    layer_norm_channels           (N, C, *S)       (C,)                  (N, C, S)          over C       (C,)
    weight_norm                   (N, *D)          D                     (N, n)             over n       (N,)
    cells                         (N, K)           (H,) of the state     (N, H), of y       over H       (H,)
    blocks                        (N, T, D)        (heads, D / heads)    (N T, D)           over D       (D,)

so that the number of groups is C / normalized_shape[0], and a Request needs no other names than those of layer norm.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from lnverify.case import Case
from lnverify.floats import Float64Array
from lnverify.operation import blocks, cells


@dataclass(frozen=True)
class View:
    """Extents of x in the order of its formula; the axes of the statistics and those of the parameters."""

    shape: tuple[int, ...]
    over: tuple[int, ...]
    affine: tuple[int, ...]

    @property
    def n(self) -> int:
        """Numbers that share one mean and variance."""
        return prod(self.shape[axis] for axis in self.over)

    @property
    def groups(self) -> int:
        """How many statistics there are."""
        return prod(self.shape) // self.n if self.n else 0

    @property
    def parameters(self) -> tuple[int, ...]:
        """Shape of a parameter in the formula."""
        return tuple(self.shape[axis] for axis in self.affine)

    @property
    def terms(self) -> int:
        """How many terms the gradient of one number of a parameter sums."""
        return prod(self.shape) // max(prod(self.parameters), 1)

    def spread(self, parameter: Float64Array) -> Float64Array:
        """A parameter with axes of one, so that it broadcasts against x."""
        return parameter.reshape(tuple(size if axis in self.affine else 1 for axis, size in enumerate(self.shape)))


def view(case: Case) -> View:
    """The view of a case, by its operation."""
    return view_of(case.operation, case.arrays["x"].shape, case.normalized_shape)


def view_of(operation: str, x: tuple[int, ...], normalized: tuple[int, ...]) -> View:
    """The same by shapes alone."""
    if operation in ("rms_norm", "layer_norm_eps_outside"):
        n = prod(normalized)
        return View((prod(x[: len(x) - len(normalized)]), n), (1,), (1,))
    if operation == "weight_norm":
        return View((x[0], prod(normalized)), (1,), (0,))
    if operation in cells():
        return View((x[0], normalized[0]), (1,), (1,))
    if operation in blocks():
        return View((x[0] * x[1], x[2]), (1,), (1,))
    rows, channels, positions = x[0], x[1], prod(x[2:])
    if operation in ("group_norm", "instance_norm"):
        return View((rows, channels // normalized[0], normalized[0], positions), (2, 3), (1, 2))
    return View((rows, channels, positions), (0, 2) if operation.startswith("batch_norm") else (1,), (1,))
