"""Law: a named claim about every implementation of an operation, and the registry of laws.

A law is a decorated function in a file of `lnverify/laws/`:

    @law("LN101", name="forward-accuracy", severity="error", source="Higham, ch. 4", needs=("y",))
    def forward_accuracy(evaluation):
        '''Claim: ... Bound: ...'''
        return evaluation.judge("y")

It gets an Evaluation (a case with the subject's answer, the exact result and the bounds), may ask the same
subject about transformed cases (`evaluation.again(case)`), and returns an Outcome. A law never sees an adapter.
Third parties register laws with the same decorator, by the entry point `lnverify.laws` or `--laws FILE`.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import pkgutil
import sys
import types
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from lnverify.errors import UsageError
from lnverify.operation import blocks, cells, derived, norms

if TYPE_CHECKING:
    from lnverify.case import Case

SEVERITIES = ("error", "warning", "info")
STATES = ("holds", "violated", "crashed", "inapplicable", "vacuous")
FAMILIES = {
    "LN1": "accuracy",
    "LN2": "gradients",
    "LN3": "invariance",
    "LN4": "moments",
    "LN5": "special values and range",
    "LN6": "layout, dtype, batching",
    "LN7": "determinism, purity, modules",
    "LN8": "other norms, recurrent cells, blocks",
    "LN9": "transformer blocks",
}


@dataclass(frozen=True)
class Outcome:
    """What one law says of one case.

    state: one of STATES. 'vacuous': the bound admits everything here, so that the case informs nobody.
    ratio: distance to the rounding cell over the bound before rounding; above 1 is a violation.
    message: a sentence with numbers; cause: a short phrase, equal for findings with the same cause.
    expected, got, bound: the worst element, as text fit to print (hex and decimal).
    """

    state: str
    ratio: float = 0.0
    output: str = ""
    index: tuple[int, ...] = ()
    message: str = ""
    cause: str = ""
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    case: Case | None = None  # where it is not the case that the law was given

    @property
    def bad(self) -> bool:
        """Violated or crashed."""
        return self.state in ("violated", "crashed")

    @property
    def informative(self) -> bool:
        """Whether this case could have shown a fault."""
        return self.state in ("holds", "violated", "crashed")


HOLDS = Outcome("holds")
INAPPLICABLE = Outcome("inapplicable")
VACUOUS = Outcome("vacuous")


def first_bad(outcomes: Iterable[Outcome]) -> Outcome:
    """The first violation, else the last outcome that informs, else one that is vacuous."""
    best = INAPPLICABLE
    for outcome in outcomes:
        if outcome.bad:
            return outcome
        if outcome.informative or (outcome.state == "vacuous" and not best.informative):
            best = outcome
    return best


Check = Callable[[Any], Outcome]


@dataclass(frozen=True)
class Law:
    """A claim with its severity, source and check.

    needs: outputs that the subject must be able to produce ('y', 'dx', 'ty', 'd2x', 'module', ...), or what it must
    declare ('deterministic', 'batch_invariant'); where it does not, the law is inapplicable.
    limit: cases per dtype in profile quick that this law looks at (laws that run the subject several times
    look at fewer); None for all. max_elements: larger cases are left out.
    dtypes: those that can inform the law; None for all.
    minimum: informative examples without which the law is inconclusive (error laws).
    """

    id: str
    name: str
    severity: str
    operation: str
    source: str
    check: Check
    needs: tuple[str, ...] = ("y",)
    limit: int | None = None
    max_elements: int = 1 << 22
    dtypes: tuple[str, ...] | None = None
    minimum: int = 1
    once: bool = False  # looks at one ordinary case only (module laws)
    runs: int = 1  # how many plain requests one check is worth, for what shrinking may spend

    def covers(self, operation: str) -> bool:
        """Whether it says something of an operation; 'derived' are norms other than layer norm, cells and blocks."""
        groups = {"derived": derived, "norms": norms, "cells": cells, "blocks": blocks}
        several = groups.get(self.operation)
        return operation in several() if several else self.operation == operation

    @property
    def claim(self) -> str:
        """First paragraph of the check's docstring."""
        return " ".join((self.check.__doc__ or "").strip().split("\n\n")[0].split())

    @property
    def explanation(self) -> str:
        """The check's whole docstring."""
        import inspect

        return inspect.cleandoc(self.check.__doc__ or "")

    @property
    def family(self) -> str:
        """Family name, by the first digit of the id."""
        return FAMILIES.get(self.id[:3], "other")


REGISTRY: dict[str, Law] = {}


def law(
    id: str,
    *,
    name: str,
    severity: str,
    source: str,
    operation: str = "layer_norm",
    needs: tuple[str, ...] = ("y",),
    limit: int | None = None,
    max_elements: int = 1 << 22,
    dtypes: tuple[str, ...] | None = None,
    minimum: int = 1,
    once: bool = False,
    runs: int = 1,
) -> Callable[[Check], Check]:
    """Register a law. Raises UsageError where the id is taken, the severity unknown or the source empty."""

    def register(check: Check) -> Check:
        if id in REGISTRY and REGISTRY[id].check.__module__ != check.__module__:
            raise UsageError(f"law id {id!r} is taken by {REGISTRY[id].name!r}: choose another id.")
        if severity not in SEVERITIES:
            raise UsageError(f"law {id}: severity {severity!r} is not one of {', '.join(SEVERITIES)}.")
        if not source.strip() or not (check.__doc__ or "").strip():
            raise UsageError(f"law {id}: give a source and a docstring that states the claim and its bound.")
        REGISTRY[id] = Law(
            id, name, severity, operation, source, check, needs, limit, max_elements, dtypes, minimum, once, runs
        )
        return check

    return register


def load_laws() -> dict[str, Law]:
    """Import every built-in family file and every installed `lnverify.laws` entry point; laws by id, sorted."""
    package = importlib.import_module("lnverify.laws")
    for module in pkgutil.iter_modules(package.__path__, "lnverify.laws."):
        importlib.import_module(module.name)
    for entry in importlib.metadata.entry_points(group="lnverify.laws"):
        try:
            entry.load()
        except Exception as error:  # a broken plug-in is reported and breaks nothing
            warnings.warn(f"laws of {entry.name!r} ({entry.value}) were not loaded: {error}", stacklevel=2)
    return dict(sorted(REGISTRY.items()))


def select_laws(select: tuple[str, ...] | None = None, ignore: tuple[str, ...] | None = None) -> list[Law]:
    """Laws whose id starts with (or whose name equals) one of `select` and none of `ignore`.

    Raises UsageError for a selector that matches no law.
    """
    laws = load_laws()

    def matching(selector: str) -> set[str]:
        found = {i for i, entry in laws.items() if i.startswith(selector.upper()) or entry.name == selector}
        if not found:
            raise UsageError(f"no law matches {selector!r}: `lnverify laws` lists the ids, LN101 to {max(laws)}.")
        return found

    chosen = set(laws) if not select else set().union(*(matching(s) for s in select))
    for selector in ignore or ():
        chosen -= matching(selector)
    return [laws[i] for i in sorted(chosen)]


class _CallableModule(types.ModuleType):
    """`lnverify.law` is this module, and the decorator too: `@lnverify.law("XY101", ...)`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """See `law`."""
        return law(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
