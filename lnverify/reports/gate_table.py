"""The result of `lnverify gate`: one table for people; JSON, schema lnverify-gate/1; JUnit XML, a test case per row."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lnverify.gate.decision import Decision
from lnverify.gate.row import Row
from lnverify.reports.junit import clean

SCHEMA = "lnverify-gate/1"
STYLES = {"worse": "bold red", "unsure": "yellow", "better": "green", "same": "green"}
WORDS = {"regression": "bold red", "could not tell": "yellow", "passed": "green"}
COLUMNS = ("compared", "was", "now", "change", "outcome", "how surely")


def show(decision: Decision, console: Console, *, quiet: bool = False) -> None:
    """Print the table, the causes of new violations, the notes, and the verdict in the last line."""
    if not quiet:
        console.print(_table(decision.rows))
        causes: dict[str, list[str]] = {}
        for row in decision.rows:
            if row.kind == "correctness" and row.outcome == "worse" and row.change:
                causes.setdefault(row.change, []).append(row.name)
        for cause, names in causes.items():
            console.print(Text.assemble((cause, "bold"), f": {', '.join(names)}"), soft_wrap=True)
        for note in decision.notes:
            console.print(Text(note, "dim"), soft_wrap=True)
    console.print(Text.assemble((decision.verdict, WORDS[decision.verdict]), f"  {sentence(decision)}"), soft_wrap=True)


def _table(rows: Sequence[Row]) -> Table:
    """A section for each kind; only the last column may take several lines."""
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in COLUMNS:
        grid.add_column(name, overflow="fold", no_wrap=name != COLUMNS[-1])
    kind = ""
    for row in rows:
        if row.kind != kind:
            kind = row.kind
            grid.add_row(Text(kind, "bold"))
        change = "" if kind == "correctness" else row.change  # a cause, which is a sentence
        grid.add_row(f"  {row.name}", row.was, row.now, change, Text(row.outcome, STYLES[row.outcome]), row.surely)
    return grid


def sentence(decision: Decision) -> str:
    """'pkg:ln against FILE: 2 worse (32x768 float32 forward, LN101 float32), 14 the same, 31 s'."""
    parts = []
    for outcome, said in (("worse", "worse"), ("unsure", "not told"), ("better", "better"), ("same", "the same")):
        names = [row.name for row in decision.rows if row.outcome == outcome]
        if names:
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            parts.append(f"{len(names)} {said}" + (f" ({shown})" if outcome in ("worse", "unsure") else ""))
    what = ", ".join(parts) or "nothing was compared"
    return f"{decision.target} against {decision.compared_with}: {what}, {decision.seconds:.0f} s"


def text(decision: Decision) -> str:
    """JSON."""
    data = {
        "schema": SCHEMA, "target": decision.target, "compared_with": decision.compared_with,
        "verdict": decision.verdict, "exit_status": decision.exit_status, "seconds": round(decision.seconds, 3),
        "machine": dict(decision.machine), "notes": decision.notes, "rows": [row.to_json() for row in decision.rows],
    }  # fmt: skip
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def junit(decision: Decision) -> str:
    """JUnit XML: what is worse is a failure, what could not be told an error."""
    root = ET.Element("testsuites", name="lnverify gate")
    suite = ET.SubElement(root, "testsuite", name=clean(decision.target), time=f"{decision.seconds:.3f}")
    counts = {"worse": 0, "unsure": 0}
    for row in decision.rows:
        case = ET.SubElement(suite, "testcase", classname=f"lnverify.gate.{row.kind}", name=clean(row.name))
        kind = {"worse": "failure", "unsure": "error"}.get(row.outcome)
        if kind is not None:
            counts[row.outcome] += 1
            ET.SubElement(case, kind, type=row.outcome, message=clean(_message(row)))
    suite.set("tests", str(len(decision.rows)))
    suite.set("failures", str(counts["worse"]))
    suite.set("errors", str(counts["unsure"]))
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _message(row: Row) -> str:
    moved = " -> ".join(part for part in (row.was, row.now) if part)
    return "; ".join(part for part in (moved, row.change, row.surely) if part)
