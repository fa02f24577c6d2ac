"""Expected findings: which findings a project knows, which of those no longer occur, and the file that says so.

Whether an expected finding still occurs is decided by its stored case, run again, not by the luck of the search; an
entry without a case is stale where the search found nothing of its kind.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from lnverify.config import FILE, Config, Expected
from lnverify.errors import LnverifyError, UsageError
from lnverify.finding import Finding, Report, finding_from_json
from lnverify.law import select_laws
from lnverify.replay import run_again
from lnverify.reports import json_file

CASES = "lnverify-cases"


def known(config: Config) -> None:
    """Raises UsageError for an entry whose law is none."""
    for entry in config.expected:
        try:
            select_laws((entry.law,))
        except UsageError as error:
            raise UsageError(f"an [[expected]] entry of {config.path and config.path.name!r}: {error}") from None


def matches(entry: Expected, finding: Finding) -> bool:
    """Whether a finding is the expected one."""
    return finding.law.startswith(entry.law) and entry.dtype in ("", finding.dtype)


def apply(report: Report, config: Config, target: str, whole: bool) -> None:
    """Mark the expected findings of a report, and where the run was whole, note the entries that are stale.

    whole: every law and dtype of the config was examined to the end, on its devices.
    """
    entries = [entry for entry in config.expected if entry.target in ("", target)]
    known = {f.id: entry for f in report.findings for entry in entries if matches(entry, f)}
    report.findings = [replace(f, expected=_reason(known[f.id]) if f.id in known else "") for f in report.findings]
    if whole:
        report.stale = tuple(sentence for entry in entries if (sentence := _stale(entry, report, target)) is not None)


def _reason(entry: Expected) -> str:
    return f"{entry.reason} ({entry.link})" if entry.link else entry.reason


def _stale(entry: Expected, report: Report, target: str) -> str | None:
    """Why an entry is stale, or None."""
    if entry.case is None:
        found = any(matches(entry, f) for f in report.findings)
        return None if found else f"{entry.text} matched no finding: take it out."
    try:
        outcome = run_again(_stored(entry.case), target)
    except LnverifyError as error:
        return f"{entry.text} cannot be judged again: {error}"
    return None if outcome.bad else f"{entry.text} no longer occurs on its stored case: take it out."


def _stored(path: Path) -> Finding:
    try:
        return finding_from_json(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"the case {str(path)!r} cannot be read ({type(error).__name__}).") from None


def write(folder: Path, report: Report, profile: str) -> Path:
    """Write lnverify.toml and the cases for the errors of a report, for the user to edit.

    Raises UsageError where the file is there already.
    """
    path = folder / FILE
    if path.exists():
        raise UsageError(f"{FILE} is there already: edit it, or move it away before --write-expected.")
    cases = folder / CASES
    errors = [f for f in report.findings if f.severity == "error"]
    dtypes = ", ".join(_quoted(dtype) for dtype in dict.fromkeys(result.dtype for result in report.results))
    lines = [f"target = {_quoted(report.subject)}", f"dtypes = [{dtypes}]", f"profile = {_quoted(profile)}", ""]
    if errors:
        cases.mkdir(exist_ok=True)
    for finding in errors:
        stored = cases / f"{finding.id}.json"
        json_file.write(stored, json.dumps(finding.to_json(), indent=1, allow_nan=False) + "\n")
        lines += ["[[expected]]", f"law = {_quoted(finding.law)}", f"dtype = {_quoted(finding.dtype)}",
                  f"reason = {_quoted(finding.cause)}", 'link = ""', f"case = {_quoted(f'{CASES}/{stored.name}')}",
                  ""]  # fmt: skip
    json_file.write(path, "\n".join(lines))
    return path


def _quoted(text: Any) -> str:
    return json.dumps(str(text), ensure_ascii=False)
