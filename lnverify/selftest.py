"""Selftest: the laws on implementations that are wrong, and on unusual ones that are right.

A wrong one must be found: an error law is violated in one of its dtypes (or the warning law that it is made for).
A right one must hold: no error in any of its dtypes. The same `runner.check` that users call does it, on one block of
the grid with smaller cases, and stops at the first error of a mutant.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from lnverify.runner import check
from lnverify.score import Scored, score

T = TypeVar("T")
Progress = Callable[[int, int, str], None]
Row = tuple[str, str, tuple[str, ...], bool, str]


@dataclass
class Selftest:
    """rows: (name, 'mutant' or 'correct', laws violated, ok, note); left_out: what was not run, and why."""

    rows: list[Row] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """No wrong implementation missed, no right one accused."""
        return bool(self.rows) and all(row[3] for row in self.rows)


def examine_mutant(mutant: Any, profile: str = "quick", fail_fast: bool = True) -> Row:
    """Check one mutant in its dtypes until a law finds it, then make sure that one of those meant for it does.

    Another law often finds it first; where none of its own does, the row says so and fails.
    """
    expected = tuple(mutant.laws)
    killed: list[str] = []
    for dtype in mutant.dtypes:
        for select in (None, expected):
            report = check(
                mutant.subject(), operation=_operation(mutant), dtypes=[dtype], profile=profile, select=select,
                fail_fast=fail_fast, max_examples=10,
            )  # fmt: skip
            # a warning counts where it is what the mutant is for (rounding points, last places)
            killed += [f.law for f in report.findings if f.severity == "error" or f.law in mutant.laws]
            if any(law.startswith(expected) for law in killed):
                return mutant.id, "mutant", tuple(dict.fromkeys(killed)), True, ""
    return mutant.id, "mutant", tuple(dict.fromkeys(killed)), False, f"expected {', '.join(expected)}"


def examine_correct(correct: Any, profile: str = "selftest") -> Row:
    """Check one right implementation in all its dtypes: warnings are noted, errors are accusations."""
    errors: list[str] = []
    warnings: list[str] = []
    worst = 0.0
    for dtype in correct.dtypes:
        # those that hand derivatives to torch inherit pytorch/pytorch#79705, #196700, #175754, rightly reported;
        # the double backward of torch._weight_norm fails gradgradcheck
        ignore = NATIVE if getattr(correct, "second_order", "") == "native" else None
        report = check(correct.subject(), operation=_operation(correct), dtypes=[dtype], profile=profile, ignore=ignore)
        errors += [f"{f.law} {f.dtype}" for f in report.findings if f.severity == "error"]
        warnings += [f.law for f in report.findings if f.severity == "warning"]
        worst = max([worst, *(r.worst_ratio for r in report.results if r.law in RATIO_LAWS and r.verdict == "holds")])
    note = f"worst ratio {worst:.2f}"
    if warnings:
        note += f", warnings {' '.join(sorted(set(warnings)))}"
    return correct.id, "correct", tuple(errors), not errors, note


NATIVE = ("LN209", "LN213", "LN214", "LN215", "LN814")
RATIO_LAWS = ("LN101", "LN201", "LN202", "LN203", "LN801", "LN802")


def _operation(entry: Any) -> str:
    """What an entry computes."""
    return str(getattr(entry, "operation", "layer_norm"))


def selftest(
    progress: Progress | None = None,
    only: str = "",
    tell: Callable[[Row], None] | None = None,
    full: bool = False,
    jobs: int = 1,
) -> Selftest:
    """Run every law on every mutant and every correct implementation whose id contains `only`.

    `tell` is given each row as soon as it is known, in the order of the entries. full: the whole grid for the correct
    ones. jobs: processes that share the work; the rows are the same for every number.
    """
    outcome = Selftest()
    if importlib.util.find_spec("torch") is None:
        outcome.left_out.append("torch is not installed: the mutants and correct implementations written in torch.")
    chosen = [entry.id for entry in _entries() if only in entry.id]
    work = [(name, "selftest-full" if full else "selftest") for name in chosen]
    with _workers(jobs) as run:
        for number, row in enumerate(run(_row, work)):
            if progress is not None:
                progress(number, len(work), row[0])
            outcome.rows.append(row)
            if tell is not None:
                tell(row)
    return outcome


def scores(
    only: str = "", jobs: int = 1, progress: Progress | None = None, tell: Callable[[Scored], None] | None = None
) -> list[Scored]:
    """Score every mutant whose id contains `only`: all laws, and the two baselines (lnverify.score)."""
    layer = [entry for entry in _entries() if _operation(entry) == "layer_norm"]
    names = [entry.id for entry in layer if only in entry.id and hasattr(entry, "bug")]
    found: list[Scored] = []
    with _workers(jobs) as run:
        for number, scored in enumerate(run(_score, names)):
            if progress is not None:
                progress(number, len(names), scored.id)
            found.append(scored)
            if tell is not None:
                tell(scored)
    return found


def _score(name: str) -> Scored:
    return score(next(entry for entry in _entries() if entry.id == name))


def _entries() -> list[Any]:
    from lnverify.mutants import all_correct, all_mutants, norm_correct, norm_mutants

    return [*all_mutants(), *norm_mutants(), *all_correct(), *norm_correct()]


def _row(task: tuple[str, str]) -> Row:
    """One row, by the entry's id: entries hold functions, which do not travel between processes."""
    name, profile = task
    entry = next(entry for entry in _entries() if entry.id == name)
    return examine_mutant(entry) if hasattr(entry, "bug") else examine_correct(entry, profile)


@contextmanager
def _workers(jobs: int) -> Iterator[Callable[[Callable[[Any], T], list[Any]], Iterable[T]]]:
    """map, in this process or in several fresh ones (spawned: a fork would inherit torch's threads)."""
    if jobs <= 1:
        yield map
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn")) as pool:
        yield pool.map


def kills(law: str) -> Row:
    """Run one law alone on its mutant (lnverify.mutants.kills): (law, 'law', (mutant,), killed, note)."""
    from lnverify.mutants import all_mutants, cuda_mutants, declared_mutants, norm_mutants
    from lnverify.mutants.kills import KILLS

    name, dtype = KILLS[law]
    entries: list[Any] = [*all_mutants(), *norm_mutants(), *declared_mutants(), *cuda_mutants()]
    mutant = next((entry for entry in entries if entry.id == name), None)
    if mutant is None:
        return law, "law", (name,), True, "not run: the mutant needs torch, or a CUDA device"
    where = [getattr(mutant, "device", "cpu")]
    report = check(
        mutant.subject(), operation=_operation(mutant), dtypes=[dtype], profile="quick", select=[law], devices=where,
        max_examples=4, fail_fast=True,
    )  # fmt: skip
    ratio = max((f.worst_ratio for f in report.findings), default=0.0)
    return law, "law", (name,), bool(report.findings), f"{dtype}, worst ratio {ratio:.3g}"
