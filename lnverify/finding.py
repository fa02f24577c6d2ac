"""Result, Finding and Report: what became of a run, as plain data with a schema version.

A Result is one law x dtype x device, also where it holds. A Finding is a result that a person must look at:
cause, smallest case, worst case. Verdicts and exit status: a report is 'violated' iff there is a finding of
severity error (with strict: any finding), crashes included; 'inconclusive' only if an applicable error law
stayed below its minimum of informative examples; else 'holds'. Exit status 0 holds, 1 violated, 3 inconclusive.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lnverify.errors import UsageError

SCHEMA = "lnverify-report/1"
NO_BACKWARD = "the backward is refused on an ordinary input in every dtype"
EXIT_STATUS = {"holds": 0, "violated": 1, "inconclusive": 3}


@dataclass(frozen=True)
class Result:
    """One law x dtype x device. verdict: holds, violated, crashed, inapplicable or inconclusive.

    worst_ratio: largest error over bound that was seen; examples: cases looked at; informative: cases that
    could have shown a fault; reason: why it is inapplicable or inconclusive.
    """

    law: str
    name: str
    severity: str
    dtype: str
    device: str
    verdict: str
    worst_ratio: float = 0.0
    examples: int = 0
    informative: int = 0
    reason: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "law": self.law, "name": self.name, "severity": self.severity, "dtype": self.dtype,
            "device": self.device, "verdict": self.verdict, "worst_ratio": _number(self.worst_ratio),
            "examples": self.examples, "informative": self.informative, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True)
class Observation:
    """One case of a finding: the case, what was returned, what is right, and the limit, at the worst element.

    case: Case.to_json() of the case to show; outputs: named arrays as FloatArray.to_json(), what the subject
    returned for it. base: the case that the law was given where it made `case` from another one, else None.
    transcript: every request of the law and its answer, in order, as (SHA-256 of the request, Response as
    data), so that the law can judge again without the subject; empty where it would be too large. said: what the
    subject warned and printed meanwhile, line by line.
    """

    case: Mapping[str, Any]
    outputs: Mapping[str, Any]
    message: str
    ratio: float
    output: str = ""
    index: tuple[int, ...] = ()
    expected: float | None = None
    got: float | None = None
    bound: float | None = None
    base: Mapping[str, Any] | None = None
    transcript: tuple[Mapping[str, Any], ...] = ()
    said: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "case": dict(self.case), "base": None if self.base is None else dict(self.base),
            "transcript": [dict(t) for t in self.transcript],
            "outputs": dict(self.outputs), "message": self.message,
            "ratio": _number(self.ratio), "output": self.output, "index": list(self.index),
            "expected": _number(self.expected), "got": _number(self.got), "bound": _number(self.bound),
            "said": list(self.said),
        }  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A violated or crashed law in one dtype on one device.

    capabilities: the subject's Capabilities as plain data, so that laws can judge the stored answers again.
    expected: the reason why the project expects it (lnverify.expectations), '' where it does not.
    """

    law: str
    name: str
    severity: str
    operation: str
    dtype: str
    device: str
    verdict: str
    cause: str
    message: str
    worst_ratio: float
    smallest: Observation
    worst: Observation
    capabilities: Mapping[str, Any] = field(default_factory=dict)
    expected: str = ""

    @property
    def id(self) -> str:
        """Short stable hash of law, dtype, device, output and cause."""
        key = "|".join((self.law, self.operation, self.dtype, self.device, self.smallest.output, self.cause))
        return hashlib.sha256(key.encode()).hexdigest()[:8]

    @property
    def group(self) -> str:
        """Findings with equal groups have one cause and are shown together."""
        return f"{self.severity}|{self.cause}"

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "id": self.id, "law": self.law, "name": self.name, "severity": self.severity,
            "operation": self.operation, "dtype": self.dtype, "device": self.device, "verdict": self.verdict,
            "cause": self.cause, "message": self.message, "worst_ratio": _number(self.worst_ratio),
            "smallest_case": self.smallest.to_json(), "worst_case": self.worst.to_json(),
            "outputs": dict(self.smallest.outputs), "expected": _number(self.smallest.expected),
            "bound": _number(self.smallest.bound), "capabilities": dict(self.capabilities),
            "expected_because": self.expected,
        }  # fmt: skip


@dataclass
class Report:
    """All results and findings of a run on one subject, with coverage, environment and versions.

    coverage: what was informative: {"N": [...], "rows": [...], "affine": [...], "requires_grad": [...],
    "dtypes": [...], "not_supported": [...], "not_examined": [...], "vacuous": {law: count}}.
    stopped: '' or why the run ended early ('interrupted', 'fail-fast', 'time limit').
    """

    subject: str
    operation: str = "layer_norm"
    profile: str = "quick"
    seed: int = 0
    strict: bool = False
    results: list[Result] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    coverage: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    examples: int = 0
    stopped: str = ""
    stages: dict[str, float] = field(default_factory=dict)  # seconds by stage: subject, oracle, bound, loading, rest
    stale: tuple[str, ...] = ()  # expected findings that no longer occur, a sentence each

    @property
    def verdict(self) -> str:
        """'violated', 'inconclusive' or 'holds'."""
        new = [f for f in self.findings if not f.expected]
        if self.stale or any(f.severity == "error" or (self.strict and f.severity == "warning") for f in new):
            return "violated"
        if any(r.verdict == "inconclusive" and r.severity == "error" for r in self.results):
            return "inconclusive"
        # A subject that answered nothing, or a run that ended at once, has shown nothing.
        return "holds" if any(r.verdict == "holds" for r in self.results) else "inconclusive"

    @property
    def exit_status(self) -> int:
        """0 holds, 1 violated, 3 inconclusive."""
        return EXIT_STATUS[self.verdict]

    def to_json(self) -> dict[str, Any]:
        """The report as plain data, schema lnverify-report/1."""
        return {
            "schema": SCHEMA,
            "lnverify": self.environment.get("lnverify", ""),
            "subject": self.subject,
            "operation": self.operation,
            "profile": self.profile,
            "seed": self.seed,
            "strict": self.strict,
            "verdict": self.verdict,
            "stopped": self.stopped,
            "stale": list(self.stale),
            "seconds": round(self.seconds, 3),
            "examples": self.examples,
            "environment": self.environment,
            "coverage": self.coverage,
            "stages": {k: round(v, 4) for k, v in self.stages.items()},
            "results": [r.to_json() for r in self.results],
            "findings": [f.to_json() for f in self.findings],
        }


def _number(value: float | None) -> float | str | None:
    """JSON has no infinity and no NaN: they are written as text."""
    if value is None:
        return None
    value = float(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    return value


def _float(value: Any) -> float | None:
    return None if value is None else float(value)


def _observation(data: Mapping[str, Any]) -> Observation:
    return Observation(
        case=data["case"], outputs=data["outputs"], message=data["message"], ratio=float(data["ratio"]),
        output=data["output"], index=tuple(data["index"]), expected=_float(data["expected"]),
        got=_float(data["got"]), bound=_float(data["bound"]), base=data["base"],
        transcript=tuple(data["transcript"]), said=tuple(data.get("said", ())),
    )  # fmt: skip


def finding_from_json(data: Mapping[str, Any]) -> Finding:
    """Inverse of Finding.to_json. Raises KeyError, TypeError or ValueError for what is none."""
    return Finding(
        law=data["law"], name=data["name"], severity=data["severity"], operation=data["operation"],
        dtype=data["dtype"], device=data["device"], verdict=data["verdict"], cause=data["cause"],
        message=data["message"], worst_ratio=float(data["worst_ratio"]),
        smallest=_observation(data["smallest_case"]), worst=_observation(data["worst_case"]),
        capabilities=data["capabilities"], expected=data.get("expected_because", ""),
    )  # fmt: skip


def report_from_json(data: Any) -> Report:
    """Inverse of Report.to_json. Raises UsageError if the data is not such a report."""
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        found = data.get("schema") if isinstance(data, dict) else type(data).__name__
        raise UsageError(f"this is not a report of lnverify: its schema is {found!r}, {SCHEMA!r} is expected.")
    try:
        results = [Result(**{**r, "worst_ratio": float(r["worst_ratio"])}) for r in data["results"]]
        findings = [finding_from_json(f) for f in data["findings"]]
        return Report(
            subject=data["subject"], operation=data["operation"], profile=data["profile"], seed=data["seed"],
            strict=data["strict"], results=results, findings=findings, coverage=data["coverage"],
            environment=data["environment"], seconds=data["seconds"], examples=data["examples"],
            stopped=data["stopped"], stages=data["stages"], stale=tuple(data.get("stale", ())),
        )  # fmt: skip
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the report is damaged: {type(error).__name__} at {error}.") from None


def load_report(path: Path) -> list[Report]:
    """Read one or several reports from a file. Raises UsageError if it cannot be read or is none."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read the report {str(path)!r}: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise UsageError(f"{str(path)!r} is not a report of lnverify: it is not JSON.") from None
    return [report_from_json(item) for item in (data if isinstance(data, list) else [data])]
