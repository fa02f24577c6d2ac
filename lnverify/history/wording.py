"""The words and numbers of a history, the same on the terminal and on the page."""

from __future__ import annotations

from collections.abc import Sequence

from lnverify.history.changes import Change
from lnverify.history.sample import Point
from lnverify.reports.wording import count

VERBS = {"time": ("slower", "faster"), "verdict": ("worse", "better")}
LESS_ACCURATE = ("less accurate", "more accurate")


def ratio(value: float) -> str:
    """A ratio to three digits behind the first: '1.052', '0.0312'."""
    return f"{value:.4g}"


def value_text(point: Point) -> str:
    """The verdict, or the ratio."""
    return point.verdict if point.value is None else ratio(point.value)


def kind(change: Change) -> str:
    """'slower', 'more accurate', 'worse'."""
    return VERBS.get(change.key.metric, LESS_ACCURATE)[not change.worse]


def what(change: Change) -> str:
    """'1.001 to 1.052, 5.1 % more, p = 0.0005', '0.31 to 3.2, 10 times', 'holds to violated'."""
    if change.old is None or change.new is None:
        return f"{change.was} to {change.now}"
    moved = f"{ratio(change.old)} to {ratio(change.new)}"
    factor = change.new / change.old
    if change.key.metric == "time":
        percent = 100 * (factor - 1)
        return f"{moved}, {abs(percent):.1f} % {'more' if percent > 0 else 'less'}, p = {change.p:.2g}"
    return f"{moved}, {f'{factor:.3g} times' if factor > 1 else f'divided by {1 / factor:.3g}'}"


def by_commit(changes: Sequence[Change]) -> list[list[Change]]:
    """The changes between the same two commits on one machine together."""
    groups: dict[tuple[str, str, str], list[Change]] = {}
    for change in changes:
        place = (change.at.commit.id, change.before.commit.id, change.key.machine)
        groups.setdefault(place, []).append(change)
    return list(groups.values())


def change_lines(changes: Sequence[Change]) -> list[str]:
    """For each commit a heading, with the last one that was measured before it, and a line for what moved there."""
    lines: list[str] = []
    for group in by_commit(changes):
        at, before, machine = group[0].at.commit, group[0].before.commit, group[0].key.machine
        lines.append(f"{at.short}  {at.title or '(no title)'}  (after {before.short}; machine {machine})")
        lines += [f"  {kind(c)}  {c.key.text}: {what(c)}; {count(c.commits, 'commit')}" for c in group]
    return lines
