"""`lnverify replay`: judge the findings of a report again.

Without a target no code of anyone runs: the stored output bits are judged, so that whoever gets a report can
confirm it without the module. With a target, the target runs on the stored cases.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lnverify.cli.laws import laws_option, words
from lnverify.errors import TargetError, UsageError

if TYPE_CHECKING:
    from lnverify.finding import Finding, Report
    from lnverify.law import Outcome


@click.command("replay", short_help="Judge the findings of a report again.")
@click.argument("report", required=False)
@click.argument("target", required=False)
@click.option("--finding", "chosen", multiple=True, callback=words, metavar="ID", help="Only these findings.")
@laws_option
def command(report: str | None, target: str | None, chosen: tuple[str, ...] | None) -> int:
    """Judge the findings of REPORT again; with TARGET, run it on their cases.

    REPORT is a file, the id of a run that is still kept, or 'last' (the default).

    Exit status: 1 if a finding is still violated, 3 if none is but some cannot be judged, else 0.
    """
    from lnverify.finding import load_report

    reports = load_report(locate(report))
    findings = pick(reports, chosen)
    if not findings:
        click.echo(f"nothing to replay: the report on {', '.join(r.subject for r in reports)} has no findings.")
        return 0
    words_seen = []
    for finding in findings:
        word, why = verdict(finding, target)
        words_seen.append(word)
        place = f"{finding.dtype} {finding.device}"
        click.echo(f"{finding.id}  {finding.law} {finding.name}  {place}: {word}{f': {why}' if why else ''}")
    return 1 if "still violated" in words_seen else 3 if "cannot be judged" in words_seen else 0


def locate(report: str | None) -> Path:
    """The file of a report: a path, a run's id, or 'last'. Raises UsageError."""
    from lnverify import report_cache

    if report in (None, "last"):
        return report_cache.newest()
    assert report is not None
    path = Path(report)
    if path.exists():
        return path
    if kept := report_cache.find(report):
        return kept
    raise UsageError(
        f"{report!r} is neither a report file nor the id of a kept run; "
        "to run a target on the newest report, say `lnverify replay last TARGET`."
    )


def pick(reports: Sequence[Report], chosen: Sequence[str] | None) -> list[Finding]:
    """The findings with these ids, or all. Raises UsageError for an id that is not there."""
    findings = [finding for report in reports for finding in report.findings]
    if not chosen:
        return findings
    picked: list[Finding] = []
    for word in chosen:
        found = [finding for finding in findings if finding.id == word]
        if not found:
            ids = ", ".join(dict.fromkeys(finding.id for finding in findings)) or "it has none"
            raise UsageError(f"the report has no finding {word!r}: {ids}.")
        picked += [finding for finding in found if finding not in picked]
    return picked


def verdict(finding: Finding, target: str | None) -> tuple[str, str]:
    """'still violated', 'no longer violated' or 'cannot be judged', and why."""
    from lnverify.errors import FrameworkError, SignatureError
    from lnverify.replay import judge_stored, run_again

    try:
        outcome = run_again(finding, target) if target else judge_stored(finding)
    except (TargetError, FrameworkError, SignatureError):
        raise
    except UsageError as error:  # the array is not stored, the law is not loaded
        return "cannot be judged", str(error)
    return in_words(outcome, ran=bool(target))


def in_words(outcome: Outcome, *, ran: bool) -> tuple[str, str]:
    """The words for an outcome."""
    if outcome.bad:
        return "still violated", outcome.message
    if outcome.state == "holds":
        return "no longer violated", "" if ran else "the stored output is within the bound"
    if outcome.message:
        return "cannot be judged", outcome.message
    if ran:
        return "cannot be judged", f"the law is {outcome.state} here"
    return "cannot be judged", "the law compares several runs; give the target to run it again"
