"""Case: one concrete input of an operation, to and from JSON bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any

from lnverify.floats import Float64Array, FloatArray
from lnverify.operation import operation
from lnverify.protocol import Request

STORED_IN_FULL = 4096  # elements; larger arrays are stored as SHA-256 and rebuilt from the recipe


@dataclass(frozen=True, eq=False)
class Case:
    """One input: arrays with their bits, eps, layouts and modes. See Request for the names and shapes.

    recipe: plain data that rebuilds the arrays (strategies.build), or None for an element-wise case.
    label: one line for people, for example 'N=257, rows=33, mean/std=1e4'.
    """

    operation: str
    dtype: str
    normalized_shape: tuple[int, ...]
    arrays: Mapping[str, FloatArray]
    eps: float
    requires_grad: tuple[str, ...] = ("x", "weight", "bias")
    layouts: Mapping[str, str] = field(default_factory=dict)
    train: bool = True
    grad_mode: str = "enabled"
    create_graph: bool = False
    device: str = "cpu"
    threads: int | None = None
    module_action: str = ""
    history: str = ""
    repeat: int = 0
    label: str = ""
    recipe: Mapping[str, Any] | None = None

    @property
    def n(self) -> int:
        """Number of elements that share one mean and variance."""
        return prod(self.normalized_shape)

    @cached_property
    def rows(self) -> int:
        """Number of rows, each with statistics of its own."""
        shape = self.arrays["x"].shape
        return prod(shape[: len(shape) - len(self.normalized_shape)])

    @property
    def affine(self) -> str:
        """Which parameters are present: 'both', 'weight' (gains), 'bias' (shifts) or 'none'."""
        known = operation(self.operation)
        kinds = {"weight": known.gains, "bias": known.shifts}
        present = [kind for kind, names in kinds.items() if any(map(self.has, names))]
        return "both" if len(present) == 2 else (*present, "none")[0]

    @property
    def size(self) -> int:
        """Elements of x."""
        return self.arrays["x"].size

    def has(self, name: str) -> bool:
        """Whether the array is present."""
        return name in self.arrays

    def matrix(self, name: str) -> Float64Array:
        """An array of x's shape as exact float64 values of shape (rows, n)."""
        return self.arrays[name].values.reshape(self.rows, self.n)

    def vector(self, name: str) -> Float64Array:
        """A parameter as exact float64 values of shape (n,)."""
        return self.arrays[name].values.reshape(self.n)

    def with_arrays(self, **arrays: FloatArray | None) -> Case:
        """A copy with some arrays replaced, or removed where None; it has no recipe."""
        merged = {**self.arrays, **{k: v for k, v in arrays.items() if v is not None}}
        for name, value in arrays.items():
            if value is None:
                merged.pop(name, None)
        return replace(self, arrays=merged, recipe=None)

    def forward_alone(self, **arrays: FloatArray | None) -> Case:
        """The case without cotangents, with some arrays replaced, or removed where None."""
        return self.with_arrays(**dict.fromkeys(operation(self.operation).cotangents), **arrays)

    def request(self, *wanted: str) -> Request:
        """The request for the wanted outputs."""
        present = tuple(name for name in self.requires_grad if name in self.arrays)
        return Request(
            operation=self.operation,
            arrays=self.arrays,
            normalized_shape=self.normalized_shape,
            eps=self.eps,
            wanted=wanted,
            requires_grad=present,
            layouts=self.layouts,
            train=self.train,
            grad_mode=self.grad_mode,
            create_graph=self.create_graph,
            device=self.device,
            threads=self.threads,
            module_action=self.module_action,
            history=self.history,
            repeat=self.repeat,
        )

    def gradients(self) -> tuple[str, ...]:
        """Names of the gradients that this case asks for: d<argument> for what is present and requires grad."""
        return tuple(
            f"d{a}" for a in operation(self.operation).arguments if a in self.arrays and a in self.requires_grad
        )

    def to_json(self) -> dict[str, Any]:
        """Plain data; arrays over STORED_IN_FULL elements keep only their SHA-256 (the recipe rebuilds them)."""
        limit = STORED_IN_FULL if self.recipe is not None else None
        return {
            "operation": self.operation,
            "dtype": self.dtype,
            "normalized_shape": list(self.normalized_shape),
            "arrays": {name: array.to_json(limit) for name, array in sorted(self.arrays.items())},
            "eps": self.eps.hex(),
            "requires_grad": list(self.requires_grad),
            "layouts": dict(sorted(self.layouts.items())),
            "train": self.train,
            "grad_mode": self.grad_mode,
            "create_graph": self.create_graph,
            "device": self.device,
            "threads": self.threads,
            "module_action": self.module_action,
            "history": self.history,
            "repeat": self.repeat,
            "label": self.label,
            "recipe": None if self.recipe is None else dict(self.recipe),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Case:
        """Inverse of to_json for arrays stored in full; strategies.restore also rebuilds recipes."""
        return cls(
            operation=data["operation"],
            dtype=data["dtype"],
            normalized_shape=tuple(data["normalized_shape"]),
            arrays={name: FloatArray.from_json(a) for name, a in data["arrays"].items()},
            eps=float.fromhex(data["eps"]),
            requires_grad=tuple(data["requires_grad"]),
            layouts=dict(data["layouts"]),
            train=data["train"],
            grad_mode=data["grad_mode"],
            create_graph=data["create_graph"],
            device=data["device"],
            threads=data["threads"],
            module_action=data["module_action"],
            history=data.get("history", ""),
            repeat=data.get("repeat", 0),
            label=data["label"],
            recipe=data["recipe"],
        )


def single(case: Case, row: int) -> Case:
    """One row as a batch of one."""
    arrays = {k: v for k, v in case.arrays.items() if k in ("weight", "bias")}
    for name in ("x", "dy"):
        if case.has(name):
            bits = case.arrays[name].bits.reshape(case.rows, case.n)[row]
            arrays[name] = FloatArray(case.arrays[name].dtype, bits.reshape(1, *case.normalized_shape).copy())
    layouts = {k: v for k, v in case.layouts.items() if k not in ("x", "dy")}
    return replace(case, arrays=arrays, layouts=layouts, recipe=None)
