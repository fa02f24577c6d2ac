"""Page: a history as one HTML file that needs no network, no script and no wide screen.

Speed stands beside accuracy, dtype by dtype; on a phone below it. What never changed is a line and no picture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from lnverify.history.changes import Change, Search
from lnverify.history.chart import chart, strip
from lnverify.history.machine import in_words
from lnverify.history.sample import METRICS, Commit, Key, Series
from lnverify.history.wording import by_commit, kind, value_text, what
from lnverify.reports.wording import by_dtype, count

STYLE = """
:root { color-scheme: light dark; --ink: #1c2126; --soft: #66707a; --line: #d5dae0; --card: #f6f7f9; --main: #1f5fa8;
  --worse: #b3261e; --better: #1d7a3a; --open: #b98500; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7ea; --soft: #9aa4ae; --line: #3a4149; --card: #1c2126;
  --main: #7db4f0; --worse: #ff8a80; --better: #7bd694; --open: #e8c35a; } }
* { box-sizing: border-box; }
body { font: 16px/1.45 system-ui, sans-serif; color: var(--ink); margin: 0 auto; padding: 12px 16px; max-width: 1100px;
  overflow-wrap: anywhere; }
h1 { font-size: 1.4rem; } h2 { font-size: 1.15rem; margin-top: 2.2em; border-bottom: 2px solid var(--line); }
h3 { font-size: 1rem; } p, li, figcaption, summary { max-width: 75ch; }
.soft { color: var(--soft); } .worse { color: var(--worse); } .better { color: var(--better); }
.beside { display: grid; gap: 4px 20px; grid-template-columns: 1fr 1fr; align-items: start; }
.beside > div { min-width: 0; }
figure { margin: 0 0 12px; padding: 6px; background: var(--card); border-radius: 6px; }
figcaption { font-size: .85rem; } svg { display: block; width: 100%; height: auto; }
ul { padding-left: 1.2em; margin-top: 0; } .commit { margin-bottom: 0; } code { font-family: ui-monospace, monospace; }
table { border-collapse: collapse; font-size: .85rem; } td { padding: 1px 12px 1px 0; vertical-align: top; }
.grid { stroke: var(--line); } .tick { fill: var(--soft); font-size: 10px; }
.band { fill: var(--main); opacity: .15; } .line { fill: none; stroke: var(--main); opacity: .45; }
circle { fill: var(--main); } .level { stroke: var(--ink); stroke-width: 1.6; }
.mark { stroke-width: 1.4; stroke-dasharray: 4 3; } .mark.worse { stroke: var(--worse); }
.mark.better { stroke: var(--better); } .label { font-size: 10px; font-weight: 600; }
.label.worse { fill: var(--worse); } .label.better { fill: var(--better); }
rect.holds { fill: var(--better); } rect.violated, rect.crashed { fill: var(--worse); }
rect.inconclusive { fill: var(--open); } rect.inapplicable { fill: var(--line); }
@media (max-width: 700px) { .beside { grid-template-columns: 1fr; } }
"""


def page_text(series: Sequence[Series], found: Search, machines: Mapping[str, Mapping[str, Any]]) -> str:
    """The HTML. series: those to show; found: their changes; machines: facts by fingerprint."""
    commits = _by_time(series)
    worse = sum(change.worse for change in found.changes)
    parts = [
        "<!doctype html>", '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>lnverify history</title><style>{STYLE}</style></head><body>",
        "<h1>lnverify history</h1>",
        f"<p>{_span(commits)}; <b class='{'worse' if worse else 'better'}'>{worse} for the worse</b>, "
        f"{len(found.changes) - worse} for the better.</p>",
        *_changes(found),
    ]  # fmt: skip
    groups: dict[tuple[str, str], list[Series]] = {}
    for entry in series:
        groups.setdefault((entry.key.subject, entry.key.machine), []).append(entry)
    for (subject, machine), entries in groups.items():
        parts.append(f"<section><h2>{escape(subject)}</h2>")
        parts.append(f'<p class="soft">machine {machine}: {escape(in_words(machines[machine]))}</p>')
        settings = dict.fromkeys(entry.key.setting for entry in sorted(entries, key=_begins))
        parts.append(f"<details><summary>{count(len(settings), 'setting')}</summary><ul class='soft'>")
        parts += [f"<li>{escape(setting)}</li>" for setting in settings]
        parts.append("</ul></details>")
        parts += _section(entries, found.changes)
        parts.append("</section>")
    parts.append(
        '<footer class="soft"><p>Points are ratios, areas their intervals, lines the level between two changes; '
        f"all axes are logarithmic, and up is worse. {_meanings(series)} A dashed line stands before the first commit "
        "of another level.</p></footer></body></html>"
    )
    return "\n".join(parts) + "\n"


def _by_time(series: Iterable[Series]) -> list[Commit]:
    """All commits, oldest first."""
    known = {point.commit.id: point.commit for entry in series for point in entry.points}
    return sorted(known.values(), key=lambda commit: commit.time)


def _begins(series: Series) -> int:
    return series.points[0].commit.time


def _span(commits: Sequence[Commit]) -> str:
    if not commits:
        return "No commit yet"
    days = [datetime.fromtimestamp(commit.time, UTC).date().isoformat() for commit in (commits[0], commits[-1])]
    return f"{count(len(commits), 'commit')}, {days[0]} to {days[1]}"


def _meanings(series: Sequence[Series]) -> str:
    used = {entry.key.metric for entry in series}
    return "".join(f"<i>{name}</i>: {escape(text)}. " for name, text in METRICS.items() if name in used)


def _changes(found: Search) -> list[str]:
    """The newest change first; too short series are said to be so."""
    parts = []
    if found.changes:
        parts.append("<h3>Where it changed, newest first</h3>")
        for group in reversed(by_commit(found.changes)):
            at, before = group[0].at.commit, group[0].before.commit
            parts.append(f"<p class='commit'>{_commit(at)} <span class='soft'>after {before.short}</span></p><ul>")
            for change in group:
                tone = "worse" if change.worse else "better"
                said = f"<b class='{tone}'>{kind(change)}</b> {escape(change.key.text)}: {escape(what(change))}"
                parts.append(f"<li>{said}</li>")
            parts.append("</ul>")
    if found.short:
        parts.append(
            f'<p class="soft">{found.short} of {found.timed} series of times have too few commits to tell.</p>'
        )
    return parts


def _commit(commit: Commit) -> str:
    return f"<code>{commit.short}</code> {escape(commit.title)}"


def _section(entries: Sequence[Series], changes: Sequence[Change]) -> list[str]:
    """One subject on one machine: speed beside accuracy for each dtype, then what never changed."""
    columns = {commit.id: place for place, commit in enumerate(_by_time(entries))}
    moved = {change.key for change in changes}
    pieces: dict[tuple[str, str], list[Series]] = {}
    for entry in sorted(entries, key=_begins):
        pieces.setdefault((entry.key.name, entry.key.metric), []).append(entry)
    still: list[list[Series]] = []
    speed: dict[str, list[str]] = {}
    accuracy: dict[str, list[str]] = {}
    for (_, metric), group in pieces.items():
        if metric not in ("time", "pair") and not any(piece.key in moved for piece in group):
            still.append(group)
            continue
        side = speed if metric == "time" else accuracy
        side.setdefault(_dtype(group[0].key), []).append(_figure(group, columns, changes))
    parts = []
    for dtype in by_dtype([*speed, *accuracy]):
        parts.append(f"<h3>{escape(dtype)}</h3><div class='beside'>")
        for name, side in (("speed", speed), ("accuracy", accuracy)):
            shown = "".join(side.get(dtype, [f'<p class="soft">nothing on {name} yet</p>']))
            parts.append(f"<div class='{name}'>{shown}</div>")
        parts.append("</div>")
    if still:
        parts.append(f"<details><summary>{len(still)} that never changed</summary><table>")
        for group in still:
            last = group[-1].points[-1]
            cells = (group[0].key.name, group[0].key.metric, value_text(last))
            parts.append(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>")
        parts.append("</table></details>")
    return parts


def _dtype(key: Key) -> str:
    """'float32' of 'LN101 forward-accuracy [float32, cpu]'."""
    return key.name.rpartition("[")[2].rstrip("]").partition(",")[0]


def _figure(group: Sequence[Series], columns: dict[str, int], changes: Sequence[Change]) -> str:
    """One name and metric: a chart, or a strip for each setting of a verdict."""
    own = [change for change in changes if any(change.key == piece.key for piece in group)]
    key, last = group[0].key, group[-1].points[-1]
    if key.metric == "verdict":
        picture = "".join(strip(piece, columns) for piece in group)
    else:
        picture = chart(group, columns, own)
    several = f" <span class='soft'>({count(len(group), 'setting')}, a line each)</span>" if len(group) > 1 else ""
    said = "".join(
        f"<br><span class='{'worse' if change.worse else 'better'}'>{kind(change)}</span> "
        f"at {_commit(change.at.commit)}: {escape(what(change))}"
        for change in own
    )
    return (
        f"<figure><figcaption><b>{escape(key.name)}</b> {escape(METRICS[key.metric])}: {escape(value_text(last))}"
        f"{several}</figcaption>{picture}"
        f"<figcaption>{said.removeprefix('<br>')}</figcaption></figure>"
    )
