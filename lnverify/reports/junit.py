"""JUnit XML: one test case per law, dtype and device, so that a CI server lists what holds and what does not.

A violated or crashed error is a failure (with --strict a warning too); an inconclusive error law is an error,
for the run does not pass; what is inapplicable is skipped, with its reason. Warnings go to system-out.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from lnverify.finding import Finding, Report, Result
from lnverify.reports import wording

# Characters that XML 1.0 cannot hold: a subject's message may have any.
FORBIDDEN = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def text(reports: Sequence[Report]) -> str:
    """The XML document, a test suite per report."""
    root = ET.Element("testsuites", name="lnverify")
    for report in reports:
        root.append(_suite(report))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(report: Report) -> ET.Element:
    suite = ET.Element("testsuite", name=clean(report.subject), time=f"{report.seconds:.3f}")
    findings: dict[tuple[str, str, str], list[Finding]] = {}
    for finding in report.findings:
        findings.setdefault((finding.law, finding.dtype, finding.device), []).append(finding)
    tally = {"failure": 0, "error": 0, "skipped": 0}
    properties = ET.SubElement(suite, "properties")
    for name, value in (("seed", report.seed), ("profile", report.profile), ("verdict", report.verdict)):
        ET.SubElement(properties, "property", name=name, value=str(value))
    for result in report.results:
        case = _case(result, findings.get((result.law, result.dtype, result.device), []), report.strict)
        for kind in tally:
            tally[kind] += case.find(kind) is not None
        suite.append(case)
    suite.set("tests", str(len(report.results)))
    suite.set("failures", str(tally["failure"]))
    suite.set("errors", str(tally["error"]))
    suite.set("skipped", str(tally["skipped"]))
    return suite


def _case(result: Result, findings: Sequence[Finding], strict: bool) -> ET.Element:
    name = f"{result.law} {result.name} [{result.dtype}, {result.device}]"
    family = re.sub(r"\W+", "-", wording.family(result.law)[1])
    case = ET.Element("testcase", classname=f"lnverify.{family}", name=clean(name))
    message = "\n".join(f"{f.message} (finding {f.id})" for f in findings) or result.reason or result.verdict
    fails = result.severity == "error" or (strict and result.severity == "warning")
    if result.verdict in wording.BAD and fails:
        failure = ET.SubElement(case, "failure", type=result.verdict, message=clean(message))
        failure.text = clean("\n\n".join(wording.details(f) for f in findings))
    elif result.verdict in wording.BAD:
        ET.SubElement(case, "system-out").text = clean(f"{result.severity}: {message}")
    elif result.verdict == "inconclusive" and result.severity == "error":
        ET.SubElement(case, "error", type="inconclusive", message=clean(message))
    elif result.verdict in ("inapplicable", "inconclusive"):
        ET.SubElement(case, "skipped", message=clean(message))
    return case


def clean(text: str) -> str:
    """The text without what XML cannot hold."""
    return FORBIDDEN.sub("?", text)
