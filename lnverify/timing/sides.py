"""Sides: the calls that one round times, on memory of their own: candidate, baseline, and copies of as many bytes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from lnverify.adapters.calling import first_line
from lnverify.case import Case
from lnverify.errors import UsageError
from lnverify.subject import Subject
from lnverify.timing.paths import HotPath

Call = Callable[[], Any]


class Refused(Exception):  # noqa: N818 - no error of ours: a subject's answer
    """A subject raised where it was to be timed; the text says what."""


def bare_module(framework: str) -> Any:
    """The file of the framework's bare calls and copies; NumPy's for a framework that has none."""
    name = framework if framework in ("torch", "numpy") else "numpy"
    return importlib.import_module(f"lnverify.adapters.{name}_bare")


def bare(subject: Subject, case: Case, what: str) -> Call:
    """What of a subject is timed, tried once. Raises UsageError where there is nothing, Refused with what it raised."""
    if subject.bare is None:
        raise UsageError(f"{subject.target} cannot be timed: only torch and NumPy code in this process can.")
    try:
        call = subject.bare(case.request("y", *case.gradients()), what)
        call()
    except Exception as error:  # whatever the subject raises
        raise Refused(first_line(error)) from error
    return call


def make(
    path: HotPath, candidate: Subject, baseline: Subject | None, case: Case, limits: bool = True
) -> Mapping[str, Call]:
    """All sides of a path, on fresh memory. limits: with the copies. Raises what `bare` does."""
    sides = {"candidate": bare(candidate, case, path.what)}
    if baseline is not None:
        try:
            sides["baseline"] = bare(baseline, case, path.what)
        except Refused as refusal:
            raise Refused(f"the baseline, {baseline.target}, raises {refusal}") from refusal
    if limits:
        sides["copy"], sides["clone"] = bare_module(candidate.framework).copies(path.copied, path.dtype, path.device)
    return sides
