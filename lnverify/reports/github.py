"""GitHub Actions: one annotation per cause (GitHub shows ten per step), and a summary in Markdown.

Commands are '::error title=...::message', where %, line ends, and in properties ':' and ',' are escaped.
"""

from __future__ import annotations

from collections.abc import Sequence

from lnverify.finding import Finding, Report
from lnverify.reports import coverage, wording
from lnverify.reports.snippet import snippet

LEVELS = {"error": "error", "warning": "warning", "info": "notice"}


def workflow_commands(report: Report) -> list[str]:
    """Workflow commands: findings by cause, then what is undecided."""
    lines = []
    for group in wording.group_findings(report.findings):
        lead = group[0]
        level = "error" if report.strict and lead.severity == "warning" else LEVELS[lead.severity]
        message = f"{report.subject}: {lead.message or lead.cause}"
        lines.append(_command(level, f"{_laws(group)} {lead.cause or lead.name}", message, report.subject))
    for sentence, command in wording.inconclusive(report):
        lines.append(_command("warning", "lnverify: undecided", f"{sentence} Resolve: {command}", report.subject))
    return lines


def summary(report: Report, source: str = "") -> str:
    """Markdown for $GITHUB_STEP_SUMMARY: the verdict, a table of the findings, their scripts."""
    parts = [f"### lnverify: {wording.verdict_sentence(report)}", ""]
    groups = wording.group_findings(report.findings)
    if groups:
        parts += ["| | laws | dtypes | what | error/bound |", "|---|---|---|---|---|"]
        for group in groups:
            ratio = wording.ratio_text(max(f.worst_ratio for f in group))
            dtypes = ", ".join(wording.by_dtype(f.dtype for f in group))
            message = _cell(group[0].message or group[0].cause)
            parts.append(f"| {group[0].severity} | {_laws(group)} | {dtypes} | {message} | {ratio} |")
        parts.append("")
    for group in groups:
        script = snippet(group[0], report.subject, report.environment)
        if script:
            parts += [f"**{group[0].cause or group[0].name}**", "", "```python", script.rstrip(), "```", ""]
        if source:
            parts += [f"`{wording.command('replay', source, '--finding', group[0].id)}`", ""]
    for sentence, command in wording.inconclusive(report):
        parts += [f"Undecided: {sentence} `{command}`", ""]
    parts += [*coverage.lines(report), ""]
    return "\n".join(parts)


def _laws(group: Sequence[Finding]) -> str:
    return ", ".join(wording.in_order(f.law for f in group))


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


def _command(level: str, title: str, message: str, target: str) -> str:
    place = target.partition("?")[0].rpartition(":")[0]
    file = f"file={_property(place.removeprefix('./'))}," if place.endswith(".py") else ""
    return f"::{level} {file}title={_property(title)}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")
