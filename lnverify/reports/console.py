"""The report on a terminal: what a person reads in ten seconds, then what they need for a bug report.

Order: header; one line per family of laws, with rows for what does not hold; findings, one block per cause;
what is undecided, and the command that decides it; coverage; the verdict, last, where the eye rests. Colour
says nothing that a word does not say too (NO_COLOR, and pipes, get the words alone).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from lnverify.finding import Finding, Observation, Report, Result
from lnverify.reports import coverage, wording
from lnverify.reports.snippet import size_text, snippet

UNNAMED = "y is wrong"  # the cause where no wrong formula is known that gives what was returned
IDENTIFIED = ("ln_", "transformer_block")  # operations of which `lnverify identify` may know the formula
WIDTH = 100  # where there is no terminal that has one
STYLES = {
    "holds": "green",
    "violated": "bold red",
    "crashed": "bold red",
    "error": "bold red",
    "warning": "yellow",
    "inconclusive": "yellow",
    "info": "cyan",
    "not applicable": "dim",
    "inapplicable": "dim",
}


def make_console(file: IO[str] | None = None, *, stderr: bool = False) -> Console:
    """A console without markup, emoji or highlighting: messages hold brackets and colons of their own."""
    file = file or (sys.stderr if stderr else sys.stdout)
    fixed = None if file.isatty() or "COLUMNS" in os.environ else WIDTH
    return Console(file=file, markup=False, emoji=False, highlight=False, width=fixed)


def show(report: Report, console: Console, *, source: str = "", verbose: bool = False, quiet: bool = False) -> None:
    """Print a report. source: what `lnverify replay` takes for it (run id or path), '' if it is not kept."""
    if quiet:
        _verdict(report, console)
        return
    _header(report, console)
    if verbose:
        _full_table(report.results, console)
    else:
        _families(report.results, console)
    groups = wording.group_findings(report.findings)
    for place, group in enumerate(groups, 1):
        console.print()
        _finding(place, group, report, source, console)
    if expected := wording.expected_lines(report):
        console.print()
        for line in expected:
            _prose(Text(line), console, indent=0)
    for sentence, command in wording.inconclusive(report):
        console.print()
        _prose(Text.assemble(("undecided  ", STYLES["inconclusive"]), sentence), console, indent=0)
        _verbatim(f"    {command}", console)
    console.print()
    for line in coverage.lines(report):
        _prose(Text(line, "dim"), console, indent=0)
    if verbose and (quality := coverage.quality(report)):
        _prose(Text(quality, "dim"), console, indent=0)
    if verbose and report.stages:
        spent = ", ".join(f"{name} {seconds:.2f} s" for name, seconds in report.stages.items())
        _prose(Text(f"time: {spent}", "dim"), console, indent=0)
    if report.findings and source:
        again = wording.command("replay", source, report.subject)
        _prose(Text.assemble(("after a fix, run the findings again: ", "dim"), again), console, indent=0)
    _verdict(report, console)


def _prose(text: Text, console: Console, *, indent: int) -> None:
    """Text that wraps, without the trailing blanks that rich pads with."""
    for line in text.wrap(console, console.width - indent):
        line.rstrip()
        console.print(Text(" " * indent) + line, soft_wrap=True)


def _verbatim(text: str, console: Console, style: str = "") -> None:
    """A line to copy: never wrapped, never cut."""
    console.print(Text(text, style), soft_wrap=True)


def _header(report: Report, console: Console) -> None:
    environment = report.environment
    version = str(environment.get("lnverify", ""))
    title = Text.assemble((f"lnverify {version}".strip(), "bold"), "  ", report.subject)
    facts = [f"{report.operation}, profile {report.profile}, seed {report.seed}"]
    if report.strict:
        facts.append("strict")
    console.print(title, soft_wrap=True)
    for line in (", ".join(facts), wording.environment_text(environment)):
        if line:
            _prose(Text(line, "dim"), console, indent=0)
    console.print()


def _families(results: Iterable[Result], console: Console) -> None:
    """One line per family; beneath it a row for each law that does not hold."""
    table = Table.grid(padding=(0, 2))
    for _ in range(3):
        table.add_column(no_wrap=True)
    table.add_column()
    for (code, name), members in wording.families(results).items():
        word = wording.status(members)
        table.add_row(code, name, Text(word, STYLES[word]), _family_facts(members))
        for row in _rows(members):
            table.add_row("", *row)
    console.print(table)


def _family_facts(members: Sequence[Result]) -> Text:
    laws = {r.law for r in members if r.verdict not in ("inapplicable",)}
    if not laws:
        reasons = wording.in_order(r.reason for r in members if r.reason)
        return Text("; ".join(reasons[:2]), "dim")
    held = [r for r in members if r.verdict == "holds"]
    worst = max(held, key=lambda r: r.worst_ratio, default=None)
    text = wording.count(len(laws), "law")
    if worst is not None and worst.worst_ratio > 0:
        text += f", at most {worst.worst_ratio:.2g} of the bound" + (
            " where it holds" if len(held) < len([r for r in members if r.verdict != "inapplicable"]) else ""
        )
    return Text(text, "dim")


def _rows(members: Sequence[Result]) -> list[tuple[Text, Text, str]]:
    """Law, verdict, dtypes with their worst ratio: one row per law, verdict and device."""
    grouped: dict[tuple[str, str, str], list[Result]] = {}
    for result in members:
        if result.verdict in (*wording.BAD, "inconclusive"):
            grouped.setdefault((result.law, result.verdict, result.device), []).append(result)
    devices = {r.device for r in members}
    rows = []
    for (law, verdict, device), results in grouped.items():
        first = results[0]
        word = first.severity if verdict == "violated" and first.severity != "error" else verdict
        ratios = {r.dtype: wording.ratio_text(r.worst_ratio) if verdict == "violated" else "" for r in results}
        facts = ", ".join(f"{d} {ratios[d]}".strip() for d in wording.by_dtype(ratios))
        place = f" on {device}" if len(devices) > 1 or device != "cpu" else ""
        rows.append((Text(f"{law} {first.name}"), Text(word, STYLES.get(word, "")), facts + place))
    return rows


def _full_table(results: Iterable[Result], console: Console) -> None:
    """Every law in every dtype (-v); the reason stands where a law that was not examined has no numbers."""
    rows = [("law", "name", "dtype", "device", "verdict", "error/bound", "informative/examples")]
    for members in wording.families(results).values():
        for r in members:
            word = r.severity if r.verdict == "violated" and r.severity != "error" else r.verdict
            ratio = f"{r.worst_ratio:.3g}" if r.verdict in ("holds", "violated") else ""
            seen = f"{r.informative:,}/{r.examples:,}" if r.examples else ""
            facts = "  ".join(filter(None, (f"{ratio:>11}" if seen else "", seen, r.reason)))
            rows.append((r.law, r.name, r.dtype, r.device, word, facts, ""))
    widths = [max(len(row[column]) for row in rows) for column in range(5)]
    for place, row in enumerate(rows):
        cells = [f"{text:<{width}}  " for text, width in zip(row, widths, strict=False)]
        facts = "  ".join(filter(None, row[5:]))
        if not place:
            _verbatim("".join(cells) + facts, console, "dim")
            continue
        verdict = (cells[4], STYLES.get(row[4], ""))
        console.print(Text.assemble("".join(cells[:4]), verdict, (facts, "dim")), soft_wrap=True)


def _finding(place: int, group: Sequence[Finding], report: Report, source: str, console: Console) -> None:
    """One cause: a sentence, the numbers of the smallest and the worst case, inputs, replay line, snippet."""
    lead, script = _lead(group, report)
    worst = max(group, key=lambda f: f.worst_ratio)
    word = lead.verdict if lead.verdict == "crashed" else lead.severity
    title = Text.assemble((f"{place}. {word}", STYLES.get(word, "")), "  ", (lead.cause or lead.name, "bold"))
    console.print(title)
    laws = dict.fromkeys(f"{f.law} {f.name}" for f in sorted(group, key=lambda f: f.law))
    places = ", ".join(wording.by_dtype(f.dtype for f in group))
    devices = ", ".join(wording.in_order(f.device for f in group))
    _prose(Text(f"{', '.join(laws)}; {places} on {devices}", "dim"), console, indent=3)
    _prose(Text(lead.message or lead.smallest.message), console, indent=3)
    console.print()
    _numbers(lead, worst, console)
    for label, finding, seen in (("smallest", lead, lead.smallest), ("worst", worst, worst.worst)):
        if label == "worst" and dict(seen.case) == dict(lead.smallest.case):
            continue
        kind = "" if len(group) == 1 else f"{finding.law} {finding.dtype}, "
        _prose(Text(f"{label} case: {kind}{wording.case_text(seen)}"), console, indent=3)
        if label == "smallest":
            _inputs(seen, console)
    for line in lead.smallest.said:
        _prose(Text(f"it said: {line}", "dim"), console, indent=3)
    console.print()
    if source:
        _verbatim(f"   {wording.command('replay', source, '--finding', lead.id)}", console, "cyan")
    if lead.cause == UNNAMED and report.operation.startswith(IDENTIFIED):
        asked = wording.command("identify", "--operation", report.operation, report.subject)
        _verbatim(f"   {asked}", console, "cyan")
    if script is None:
        _prose(
            Text(f"no standalone script: {size_text(lead)}; the line above replays it", "dim"),
            console,
            indent=3,
        )
        return
    console.print()
    for line in script.splitlines():  # at the margin, so that it can be copied as it stands
        _verbatim(line, console)


def _lead(group: Sequence[Finding], report: Report) -> tuple[Finding, str | None]:
    """The finding that stands for its group: the smallest case whose script prints the number that the finding
    says, else the smallest that has a script, else the smallest.
    """
    scripts = [(finding, snippet(finding, report.subject, report.environment)) for finding in group]
    return min(scripts, key=lambda pair: (pair[1] is None, "# got " not in (pair[1] or "")))


def _numbers(lead: Finding, worst: Finding, console: Console) -> None:
    """Expected, got, bound and error over bound of the smallest and the worst case."""
    rows = [("smallest", lead, lead.smallest)]
    if worst is not lead or worst.worst.to_json() != lead.smallest.to_json():
        rows.append(("worst", worst, worst.worst))
    shown = [(label, f, o) for label, f, o in rows if o.expected is not None or o.got is not None]
    if not shown:
        return
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim", pad_edge=False)
    for name in ("", "", "expected", "got", "bound", "error/bound"):
        table.add_column(name, no_wrap=True, justify="right" if name == "error/bound" else "left")
    for label, finding, seen in shown:
        name = wording.place(finding, seen)
        decimals = [wording.number(seen.expected), wording.number(seen.got)]
        bound, ratio = wording.bound_text(seen.bound), wording.ratio_text(seen.ratio)
        table.add_row(label, name, decimals[0], Text(decimals[1], "bold"), bound, ratio)
        if label == "smallest":
            exact = [wording.behind(t, v) for t, v in zip(decimals, (seen.expected, seen.got), strict=True)]
            if any(exact):  # where nine digits may hide the difference
                table.add_row("", "", *(Text(t, "dim") for t in exact), "", "")
    console.print(Padding(table, (0, 0, 0, 3)))
    console.print()


def _inputs(seen: Observation, console: Console) -> None:
    arrays: Mapping[str, Any] = seen.case["arrays"]
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name in wording.relevant(seen):
        for place, line in enumerate(wording.array_lines(arrays[name])):
            table.add_row("" if place else name, Text(line, "dim" if place else ""))
    console.print(Padding(table, (0, 0, 0, 5)))


def _verdict(report: Report, console: Console) -> None:
    """The last line."""
    sentence = wording.verdict_sentence(report)
    word, _, rest = sentence.partition(" ")
    console.print(Text.assemble((word, STYLES[report.verdict]), " ", rest), soft_wrap=True)
