"""The nouns of the ledger and its registry: Document, Claim, and how a claim is registered and run.

A claim is a decorated function in a file of this folder:

    @claim("X05", "Section 2", "The entries of dx sum to 0.", "true", proofs=("gradient-sum",))
    def gradient_sum(normalize=layer_norm):
        '''Why it holds, and what the evidence computes.'''
        yield equal("sum of dx", ..., 0)

It yields Readings, each of which must hold for the evidence to agree with the verdict: for a claim that is
false, they are counterexamples and what is right instead. Its parameters are the formulas that it looks at, so that
a test can hand it a wrong one and see it fail. `listed` registers a claim for which nothing can run here.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from lnverify.claims.balls import precision
from lnverify.claims.reading import Reading
from lnverify.errors import InternalError, UsageError

VERDICTS = ("true", "conditional", "false", "empirical", "out of reach")
TOPICS = (
    "definition", "contrast", "invariance", "backward", "cells", "depth", "norms", "geometry", "training", "cost",
    "figures",
)  # fmt: skip
PROVE = "python reference/prove_claims.py"


@dataclass(frozen=True)
class Document:
    """Where claims were read."""

    letter: str
    name: str
    what: str


DOCUMENTS = (
    Document("A", "the English summary", "An English summary of the paper in twelve numbered sections, with formulas "
             "for recurrent cells, invariances and geometry, and without results."),
    Document("B", "the French note", "A French reading note on the paper (key ideas, method, results, limits), with "
             "code-like formulas for cells, Transformers and CNNs, a backward formula, and figures of results."),
    Document("P", "the paper", "Ba, Kiros and Hinton, Layer Normalization, arXiv:1607.06450, 2016, with its "
             "supplement and the code of its authors."),
    Document("X", "beside them", "What neither document says and a reader of them needs."),
)  # fmt: skip


Check = Callable[..., Iterator[Reading]]


@dataclass(frozen=True)
class Claim:
    """A statement with its verdict. reason: the condition, or what is right instead; check: evidence that runs.

    proofs: theorems of reference/, by name; laws: ids of laws that hold implementations to it;
    without: why nothing runs, where there is no check.
    """

    id: str
    place: str
    statement: str
    verdict: str
    reason: str
    topic: str
    check: Check | None
    proofs: tuple[str, ...] = ()
    laws: tuple[str, ...] = ()
    without: str = ""

    @property
    def document(self) -> Document:
        """The document that says so."""
        return next(d for d in DOCUMENTS if d.letter == self.id[0])

    @property
    def argument(self) -> str:
        """What the evidence computes, and why that decides: the docstring of the check."""
        return inspect.cleandoc(self.check.__doc__ or "") if self.check else ""

    def readings(self) -> list[Reading]:
        """Run the evidence; empty where there is none that runs."""
        if self.check is None:
            return []
        with precision():
            return list(self.check())


REGISTRY: dict[str, Claim] = {}


def _register(entry: Claim) -> None:
    if entry.id in REGISTRY and REGISTRY[entry.id].topic != entry.topic:
        raise InternalError(f"two claims have the id {entry.id}.")
    if entry.verdict not in VERDICTS or not entry.statement or entry.id[0] not in "ABPX":
        raise InternalError(f"claim {entry.id}: the verdict {entry.verdict!r}, the statement or the id is no good.")
    REGISTRY[entry.id] = entry


def claim(
    id: str,
    place: str,
    statement: str,
    verdict: str,
    reason: str = "",
    *,
    proofs: tuple[str, ...] = (),
    laws: tuple[str, ...] = (),
) -> Callable[[Check], Check]:
    """Register a claim with the decorated function as its evidence."""

    def register(check: Check) -> Check:
        if not (check.__doc__ or "").strip():
            raise InternalError(f"claim {id}: the evidence has no docstring that says why it decides.")
        topic = check.__module__.rpartition(".")[2]
        _register(Claim(id, place, statement, verdict, reason, topic, check, proofs, laws))
        return check

    return register


def listed(topic: str, id: str, place: str, statement: str, verdict: str, reason: str, *, without: str) -> None:
    """Register a claim for which nothing runs here; `without` says why."""
    _register(Claim(id, place, statement, verdict, reason, topic, None, without=without))


def load_claims() -> dict[str, Claim]:
    """Every claim by id, in the order of topics and then of ids."""
    for topic in TOPICS:
        importlib.import_module(f"lnverify.claims.{topic}")
    ordered = sorted(REGISTRY.values(), key=lambda c: (TOPICS.index(c.topic), c.id))
    return {entry.id: entry for entry in ordered}


def select_claims(words: tuple[str, ...] = ()) -> list[Claim]:
    """The claims named by ids, or by how ids begin (A, B8); all without a name.

    Raises UsageError for a name that fits no claim.
    """
    known = load_claims()
    chosen: dict[str, Claim] = {}
    for word in words:
        found = {i: entry for i, entry in known.items() if i.startswith(word.upper())}
        if not found or not word:
            ids = ", ".join(f"{min(group)} to {max(group)}" for group in _groups(known))
            raise UsageError(f"there is no claim {word!r}: `lnverify claims` lists the ids, {ids}.")
        chosen |= found
    return [entry for i, entry in known.items() if i in chosen] if words else list(known.values())


def _groups(known: dict[str, Claim]) -> Iterator[list[str]]:
    for document in DOCUMENTS:
        if ids := [i for i in known if i[0] == document.letter]:
            yield ids
