"""Runner: what is to be examined, dtype by dtype on each device, and the report of it all."""

from __future__ import annotations

import multiprocessing
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from typing import Any

from lnverify import environment
from lnverify.allocator import keep_freed_memory
from lnverify.crashes import CAUSES
from lnverify.diagnosis import EPS_LEFT_OUT
from lnverify.errors import UsageError
from lnverify.examination import Progress
from lnverify.finding import NO_BACKWARD, Finding, Report, Result
from lnverify.floats import canonical_dtype
from lnverify.host import Limits
from lnverify.law import select_laws
from lnverify.law_files import LOADED
from lnverify.operation import operation as find_operation
from lnverify.part import Part, Plan, examine, examine_alone, examined
from lnverify.profiles import profile as find_profile
from lnverify.subject import Subject
from lnverify.support import require_dtypes
from lnverify.tally import generic

DEFAULT_TARGET = "torch.nn.functional.layer_norm"


def check(
    target: Any = DEFAULT_TARGET,
    *,
    operation: str | None = None,
    variant: str | None = None,
    dtypes: Iterable[str] | None = None,
    devices: Iterable[str] | None = None,
    profile: str = "quick",
    select: Iterable[str] | None = None,
    ignore: Iterable[str] | None = None,
    strict: bool = False,
    fail_fast: bool = False,
    seed: int = 0,
    max_examples: int | None = None,
    time_limit: float | None = None,
    isolate: bool = False,
    limits: Limits | None = None,
    jobs: int = 1,
    huge: bool = False,
    progress: Progress | None = None,
) -> Report:
    """Check an implementation and report what holds and what does not.

    target: a target string, a callable, a module class or instance, or a Subject. operation: what it computes, by
    default what it declares, else layer_norm; variant: which one of several (ln_lstm: per_gate). dtypes: names, default
    all that the subject supports. devices: default ('cpu',). profile: quick, ci or deep. select, ignore: law ids,
    prefixes or names. strict: warnings count as violations. fail_fast: stop at the first error. seed: of what
    Hypothesis draws (the grid is fixed). max_examples: Hypothesis examples per strategy. time_limit: seconds.
    isolate: run the subject in a process of its own (lnverify.host), within `limits`, so that its death is a finding
    and not the end; a callable then needs cloudpickle. jobs: processes that share the dtypes (target strings only);
    the findings are the same for every number. huge: also batches beyond 2^31 and 2^32 elements (lnverify.huge).
    Raises UsageError, TargetError, FrameworkError or SignatureError for what the caller can mend.
    """
    started = time.monotonic()
    said = operation is not None or variant is not None
    asked = find_operation(operation or "layer_norm", variant).name if said else None
    find_profile(profile)
    wanted = tuple(canonical_dtype(d) for d in dtypes) if dtypes is not None else None
    selected, ignored = _names(select), _names(ignore)
    if asked is not None:
        _require_laws(asked, selected, ignored)
    places = tuple(devices) if devices is not None else ("cpu",)
    plan = Plan(
        target, asked or "layer_norm", profile, selected, ignored, seed, max_examples, fail_fast,
        None if time_limit is None else started + time_limit, isolate, limits or Limits(), huge,
    )  # fmt: skip
    if not str(seed).isdigit():
        raise UsageError(f"the seed {seed!r} is no whole number from 0.")
    for name, value in (("max_examples", max_examples), ("time_limit", time_limit)):
        if value is not None and value <= 0:
            raise UsageError(f"{name}={value} is not above 0.")
    if jobs > 1 and not isinstance(target, str):
        raise UsageError("jobs=2 or more wants a target string, for a callable does not travel: give jobs=1.")
    parts: list[Part] = []
    stopped = ""
    with examined(plan, places[0]) as subject:
        loaded = time.monotonic() - started
        plan = replace(plan, operation=agreed(subject, operation, variant))
        _require_laws(plan.operation, selected, ignored)
        report = Report(
            subject.target, plan.operation, profile, seed, strict, environment=environment.describe(subject)
        )
        work = [(device, dtype) for device in places for dtype in require_dtypes(subject, wanted)]
        try:
            for part in _parts(plan, subject, work, jobs, progress):
                parts.append(part)
                stopped = stopped or part.stopped
                if stopped:
                    break
        except KeyboardInterrupt:
            stopped = "interrupted"
    report.stopped = stopped
    _merge(report, parts)
    report.seconds = time.monotonic() - started
    report.stages["loading"] = loaded
    report.stages["rest"] = max(report.seconds - sum(report.stages.values()), 0.0)
    return report


def agreed(subject: Subject, operation: str | None, variant: str | None = None) -> str:
    """The operation of a run. A family without a variant leaves the variant to what the subject declares.

    Raises UsageError where the subject declares another operation than is asked for.
    """
    asked = find_operation(operation or "layer_norm", variant) if operation or variant else None
    declared = find_operation(subject.operation or (asked.name if asked else "layer_norm"))
    open_variant = variant is None and operation == declared.family
    if asked is not None and asked.name != declared.name and not open_variant:
        said = f"{subject.target} declares the operation {declared.name}, not {asked.name}"
        raise UsageError(f"{said}: ask for {declared.name}.")
    return declared.name


def _require_laws(operation: str, selected: tuple[str, ...] | None, ignored: tuple[str, ...] | None) -> None:
    if not any(law.covers(operation) for law in select_laws(selected, ignored)):
        own = ", ".join(law.id for law in select_laws() if law.covers(operation))
        raise UsageError(f"no selected law says anything of {operation}: its laws are {_range(own)}.")


def _range(ids: str) -> str:
    """'LN101 to LN716' for many, else all."""
    names = ids.split(", ")
    return ids if len(names) < 5 else f"{names[0]} to {names[-1]}"


def _parts(
    plan: Plan, subject: Subject, work: list[tuple[str, str]], jobs: int, progress: Progress | None
) -> Iterator[Part]:
    """One part for each dtype and device, in their order; by several processes where jobs is above 1."""
    if jobs <= 1 or len(work) <= 1:
        for device, dtype in work:
            yield examine(plan, subject, device, dtype, progress)
        return
    with ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), keep_freed_memory) as pool:
        tasks = [pool.submit(examine_alone, plan, device, dtype, tuple(LOADED)) for device, dtype in work]
        try:
            for number, (task, (_, dtype)) in enumerate(zip(tasks, work, strict=True)):
                if progress is not None:
                    progress(number, len(work), dtype)
                yield task.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def _merge(report: Report, parts: list[Part]) -> None:
    """What the parts found, into the report."""
    coverage: dict[str, set[Any]] = {}
    vacuous: Counter[str] = Counter()
    stages: Counter[str] = Counter()
    for part in parts:
        report.findings += part.findings
        report.results += part.results
        report.examples += part.examples
        vacuous.update(part.vacuous)
        stages.update(part.stages)
        for key, values in part.coverage.items():
            coverage.setdefault(key, set()).update(values)
    backwards = [part.backward for part in parts if part.examples]
    if backwards and all(backwards):
        report.results = [_undecided(result, backwards[0]) for result in report.results]
    report.findings = sort_findings(gather(report.findings))
    report.stages = dict(stages)
    report.coverage = {key: sorted(values) for key, values in sorted(coverage.items())}
    report.coverage |= {
        "not_supported": _merged([sentence for part in parts for sentence in part.not_supported]),
        "not_examined": sorted({shape for part in parts for shape in part.slow}),
        "vacuous": {law: count for law, count in sorted(vacuous.items()) if count},
        "pair_ratio": {part.dtype: part.pair_ratio for part in parts if part.pair_ratio},
    }


def _undecided(result: Result, refusal: str) -> Result:
    """LN204 of a subject whose backward raises in every dtype: nothing is known of its gradients."""
    if result.law != "LN204" or result.verdict != "inapplicable":
        return result
    return replace(result, verdict="inconclusive", reason=f"{NO_BACKWARD} ({refusal})")


FORWARD = ("LN101", "LN104", "LN105", "LN106", "LN801")
ROWS = ("LN601", "LN605")


def gather(findings: list[Finding]) -> list[Finding]:
    """Give consequences the cause that they follow from, dtype by dtype.

    Where y is wrong, moments, invariances and gradients whose own laws name no mechanism follow from it. The
    leading cause is a mechanism that explains y, else rows that mix, else that y is wrong.
    """
    leading: dict[str, str] = {}
    for dtype in {f.dtype for f in findings}:
        errors = [f for f in findings if f.dtype == dtype and f.severity == "error"]
        forward = [f.cause for f in errors if f.law in FORWARD]
        rows = [f.cause for f in errors if f.law in ROWS]
        named = [c for c in forward if not generic(c)] or (rows if forward else []) or forward
        if named:
            leading[dtype] = named[0]

    def cause(f: Finding) -> str:
        first = leading.get(f.dtype, "")
        follows = generic(f.cause) or f.law.startswith(("LN3", "LN4", *ROWS))
        # where the forward has no eps, the gradient of that has none
        follows = follows or (f.cause == EPS_LEFT_OUT and first.startswith("eps "))
        return first if f.severity == "error" and first and follows else f.cause

    return [replace(f, cause=cause(f)) for f in findings]


def sort_findings(findings: list[Finding]) -> list[Finding]:
    """Errors first, of these crashes of the process; then by law and dtype."""
    order = {"error": 0, "warning": 1, "info": 2}
    return sorted(findings, key=lambda f: (order[f.severity], not f.cause.startswith(CAUSES), f.law, f.dtype, f.cause))


def _names(given: Iterable[str] | str | None) -> tuple[str, ...] | None:
    if given is None:
        return None
    parts = given.split(",") if isinstance(given, str) else [p for item in given for p in item.split(",")]
    return tuple(p.strip() for p in parts if p.strip())


def _merged(sentences: list[str]) -> list[str]:
    """'float32: x' and 'bfloat16: x' as 'float32, bfloat16: x'."""
    by_text: dict[str, list[str]] = {}
    for sentence in sentences:
        head, colon, rest = sentence.partition(": ")
        by_text.setdefault(rest if colon else sentence, []).append(head)
    return [
        f"{', '.join(dict.fromkeys(heads))}: {text}" if text not in heads else text for text, heads in by_text.items()
    ]
