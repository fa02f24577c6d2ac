"""Examined: the laws' verdicts and worst ratios of one side, from a fresh process.

`python -m lnverify.gate.examined ORDER RESULT` is that process: in it an earlier commit's code can be examined by the
same laws, and a subject that dies takes nothing with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import ceil, log2
from pathlib import Path
from typing import Any

from lnverify.finding import Report, report_from_json
from lnverify.gate.settings import Settings
from lnverify.profiles import profile
from lnverify.timing import beside
from lnverify.timing.process import Lost, call, serve

TIMEOUT = 3600.0


@dataclass(frozen=True)
class Examined:
    """verdicts: (law, dtype) -> 'holds', 'violated', ...; of severity error only. causes: of what is violated.

    ratios: (law, dtype) -> worst error over bound. pair: (dtype, output) -> worst error over the bound that pairwise
    summation attains. expected: what is violated and known (lnverify.toml). lost: how the process ended, if it told
    nothing.
    """

    verdicts: Mapping[tuple[str, str], str] = field(default_factory=dict)
    causes: Mapping[tuple[str, str], str] = field(default_factory=dict)
    ratios: Mapping[tuple[str, str], float] = field(default_factory=dict)
    pair: Mapping[tuple[str, str], float] = field(default_factory=dict)
    expected: frozenset[tuple[str, str]] = frozenset()
    version: str = ""
    lost: str = ""


def examine(settings: Settings, base: Path | None = None, root: Path | None = None) -> Report | str:
    """The report of one side; how its process ended, where it told nothing. Raises what `resolve` raises.

    base, root: the folder in which an earlier commit lies unpacked, and its repository; else the working tree.
    """
    order = {"settings": settings.to_json(), "base": str(base or ""), "root": str(root or "")}
    environment = {**os.environ, "OMP_NUM_THREADS": str(settings.threads)}
    try:
        return report_from_json(call("lnverify.gate.examined", order, environment, TIMEOUT))
    except Lost as lost:
        return str(lost)


def of_report(report: Report | str) -> Examined:
    """What a gate compares of a report."""
    if isinstance(report, str):
        return Examined(lost=report)
    errors = [r for r in report.results if r.severity == "error"]
    bad = [f for f in report.findings if f.severity == "error"]
    known = {(f.law, f.dtype) for f in bad if f.expected} - {(f.law, f.dtype) for f in bad if not f.expected}
    pairs = report.coverage.get("pair_ratio", {})
    return Examined(
        {(r.law, r.dtype): r.verdict for r in errors}, {(f.law, f.dtype): f.cause for f in bad},
        {(r.law, r.dtype): r.worst_ratio for r in report.results},
        {(dtype, output): float(value) for dtype, found in pairs.items() for output, value in found.items()},
        frozenset(known), str(report.environment.get("lnverify", "")),
    )  # fmt: skip


def least(name: str) -> float:
    """The pair ratio below which no two algorithms can be told apart: 1 / (ceil(log2 N) + 1) for the largest N.

    The bound of pairwise summation is ceil(log2 N) + 1 rounding errors of the sum (lnverify.bounds, tier `pair`); an
    algorithm that rounds its sum once, and is exact otherwise, has a ratio of up to one of these.
    """
    return 1.0 / (ceil(log2(profile(name).cap)) + 1)


def _check(order: Mapping[str, Any]) -> dict[str, Any]:
    """In the process: examine, on the threads that the settings ask for."""
    from lnverify.runner import check
    from lnverify.target import resolve

    settings = Settings.from_json(order["settings"])
    if order["base"]:
        subject = beside.resolve_from(
            Path(order["base"]), Path(order["root"]), settings.target, "layer_norm", settings.device
        )
    else:
        subject = resolve(settings.target, device=settings.device)
    able = tuple(dtype for dtype in subject.capabilities.dtypes if dtype in settings.dtypes)
    declared = replace(subject.capabilities, threads=(settings.threads,), dtypes=able)
    report = check(
        replace(subject, capabilities=declared), dtypes=settings.dtypes, devices=(settings.device,),
        profile=settings.profile, select=settings.select, seed=settings.seed,
    )  # fmt: skip
    return report.to_json()


if __name__ == "__main__":
    serve(_check)
