"""Part: one dtype on one device of a run, from the plan to plain results; parts may run in processes of their own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lnverify.crashes import Watch
from lnverify.examination import EndDtype, Examination, Progress, StopExamination
from lnverify.finding import Finding, Result
from lnverify.host import Host, Limits, isolated
from lnverify.law import select_laws
from lnverify.law_files import LOADED, load_file
from lnverify.norm_examination import NormExamination
from lnverify.norms.support import find_support as find_norm_support
from lnverify.operation import derived
from lnverify.profiles import profile as find_profile
from lnverify.subject import Subject
from lnverify.support import Support, find_support
from lnverify.target import resolve
from lnverify.yardstick import Stopwatch


@dataclass(frozen=True)
class Plan:
    """What a run is to do; the same for every part. deadline: in time.monotonic(), None for none."""

    target: Any
    operation: str = "layer_norm"
    profile: str = "quick"
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    seed: int = 0
    max_examples: int | None = None
    fail_fast: bool = False
    deadline: float | None = None
    isolate: bool = False
    limits: Limits = field(default_factory=Limits)
    huge: bool = False


@dataclass
class Part:
    """What became of one dtype on one device, as plain data."""

    dtype: str
    device: str
    findings: list[Finding] = field(default_factory=list)
    results: list[Result] = field(default_factory=list)
    coverage: dict[str, set[Any]] = field(default_factory=dict)
    vacuous: dict[str, int] = field(default_factory=dict)
    pair_ratio: dict[str, float] = field(default_factory=dict)
    slow: set[str] = field(default_factory=set)
    not_supported: tuple[str, ...] = ()
    backward: str = ""
    examples: int = 0
    stages: dict[str, float] = field(default_factory=dict)
    stopped: str = ""


@contextmanager
def examined(plan: Plan, device: str) -> Iterator[Subject]:
    """The plan's subject, in this process or, isolated, in one of its own that ends with the block.

    Raises what `resolve` raises.
    """
    if isinstance(plan.target, Subject):
        yield plan.target
    elif not plan.isolate:
        yield resolve(plan.target, operation=plan.operation, device=device)
    else:
        host = Host(plan.target, plan.operation, device, plan.limits)
        try:
            yield host.subject()
        finally:
            host.close()


def examine(plan: Plan, subject: Subject, device: str, dtype: str, progress: Progress | None = None) -> Part:
    """Examine one dtype on one device."""
    part = Part(dtype, device)
    host = isolated(subject)
    watch = Watch(host)
    stopwatch = Stopwatch()
    other = plan.operation in derived()
    support: Support | str
    started = time.perf_counter()
    if other:
        support = find_norm_support(subject, plan.operation, dtype, device)
    else:
        support = find_support(subject, dtype, device)
    stopwatch.timed("subject", started)
    if isinstance(support, str):
        part.not_supported = (support,)
        part.findings = watch.findings(dtype, device, subject.capabilities)
        part.results = watch.results([], dtype, device)
        return part
    if host is not None:
        host.predict(support.predicted)
    chosen = (law for law in select_laws(plan.select, plan.ignore) if law.covers(plan.operation))
    laws = [replace(law, operation=plan.operation) for law in chosen]
    given = (
        support, laws, find_profile(plan.profile), plan.seed, stopwatch, watch, plan.max_examples, plan.fail_fast,
        plan.deadline, progress, plan.huge,
    )  # fmt: skip
    exam = NormExamination(*given, operation=plan.operation) if other else Examination(*given)
    try:
        exam.run()
    except EndDtype as end:
        part.slow.add(str(end))
    except (StopExamination, KeyboardInterrupt) as stop:
        part.stopped = str(stop) or "interrupted"
    part.findings, part.results = exam.findings(), exam.results()
    part.coverage, part.examples, part.backward = exam.coverage, exam.examples, support.backward
    part.pair_ratio = {name: round(value, 4) for name, value in exam.pair_ratio.items()}
    part.vacuous = {law: tally.vacuous for law, tally in exam.tallies.items()}
    part.slow |= exam.slow
    part.not_supported = support.refused
    part.stages = stopwatch.seconds
    return part


def examine_alone(plan: Plan, device: str, dtype: str, law_files: tuple[str, ...]) -> Part:
    """The same in a fresh process, which makes a subject of its own."""
    for path in law_files:
        if path not in LOADED:
            load_file(Path(path))
    with examined(plan, device) as subject:
        return examine(plan, subject, device, dtype)
