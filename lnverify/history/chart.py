"""Chart: one series over the commits, as SVG that stands in a page. Colours come from the page's style.

The unit of all lengths is a CSS pixel at a width of WIDTH; the picture scales with the column that it stands in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import floor, log, log10

from lnverify.history.changes import FACTOR, Change
from lnverify.history.sample import Point, Series
from lnverify.history.wording import ratio, value_text

WIDTH, HEIGHT = 360, 150
LEFT, RIGHT, TOP, BOTTOM = 44, 8, 16, 20
NICE = (1, 2, 5, 10)
TICKS = 3  # at least so many steps between the ends of the axis
DECADE = 5.0  # a largest over a smallest ratio from which on ticks are 1, 2, 5, 10, ...
LEAST_ROOM = (FACTOR**0.5, 1.004)  # above and below a flat line: of errors, so that what is no jump looks like none
STRIP = 14  # height of a row of verdicts


@dataclass(frozen=True)
class Frame:
    """Where a commit and a ratio stand. commits: ids in the order of time, each a column; low, high: of the axis."""

    commits: dict[str, int]
    low: float = 1.0
    high: float = 2.0

    def x(self, point: Point) -> float:
        """The middle of the commit's column."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (self.commits[point.commit.id] + 0.5) / len(self.commits)

    def y(self, value: float) -> float:
        """From the top; the axis is logarithmic, for a half is as far from one as two is."""
        share = log(value / self.low) / log(self.high / self.low)
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - min(max(share, 0.0), 1.0))


def frame(pieces: Sequence[Series], commits: dict[str, int]) -> Frame:
    """A frame that holds every ratio, and the intervals as far as twice beyond the ratios."""
    values = [p.value for s in pieces for p in s.points if p.value is not None]
    low, high = min(values), max(values)
    ends = [e for s in pieces for p in s.points for e in (p.low, p.high) if e is not None]
    low = max(min([low, *ends]), low / 2)
    high = min(max([high, *ends]), high * 2)
    room = max((high / low) ** 0.08, LEAST_ROOM[pieces[0].key.metric == "time"])
    return Frame(commits, low / room, high * room)


def ticks(low: float, high: float) -> list[float]:
    """Round numbers within an axis: a few equal steps, or over a wide range 1, 2, 5, 10, ..."""
    if high / low > DECADE:
        exponents = range(floor(log10(low)), floor(log10(high)) + 1)
        found = [m * 10.0**e for e in exponents for m in NICE[:3] if low <= m * 10.0**e <= high]
        return found if len(found) <= 7 else [t for t in found if f"{t:e}".startswith("1.0")]
    rough = (high - low) / TICKS
    unit = 10.0 ** floor(log10(rough))
    step = max((n * unit for n in NICE if n * unit <= rough), default=unit)
    first = floor(low / step) + 1
    return [n * step for n in range(first, first + 20) if n * step <= high]


def chart(pieces: Sequence[Series], commits: dict[str, int], changes: Sequence[Change]) -> str:
    """The ratios, their intervals, the level between two changes, and a line with the commit at each change.

    pieces: the same name and metric in one setting after another, each a line of its own.
    """
    at = frame(pieces, commits)
    label = f"{pieces[0].key.name}: {ratio(_value(pieces[-1].points[-1]))} at the last of {len(commits)} commits"
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(label, quote=True)}">',
        *_axes(at, [p for s in pieces for p in s.points]),
    ]
    for piece in pieces:
        own = [c for c in changes if c.key == piece.key]
        parts += [*_band(at, piece), *_levels(at, piece, own), *_points(at, piece)]
    for change in changes:
        parts += _mark(at, change)
    return "".join([*parts, "</svg>"])


def strip(series: Series, commits: dict[str, int]) -> str:
    """The verdicts of a law as a row of fields, a column for each commit."""
    at = Frame(commits)
    width = (WIDTH - LEFT - RIGHT) / len(commits)
    fields = "".join(
        f'<rect class="{point.verdict}" x="{at.x(point) - width / 2:.1f}" y="0" width="{max(width - 1, 1):.1f}" '
        f'height="{STRIP}"><title>{_title(point)}</title></rect>'
        for point in series.points
    )
    label = escape(f"{series.key.name}: {series.points[-1].verdict} at the last commit", quote=True)
    return f'<svg viewBox="0 0 {WIDTH} {STRIP}" role="img" aria-label="{label}">{fields}</svg>'


def _axes(at: Frame, points: Sequence[Point]) -> list[str]:
    parts = []
    for tick in ticks(at.low, at.high):
        y = at.y(tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" x="{LEFT - 4}" y="{y + 3.5:.1f}" text-anchor="end">{ratio(tick)}</text>')
    ends = min(points, key=lambda p: p.commit.time), max(points, key=lambda p: p.commit.time)
    for point, x, anchor in ((ends[0], LEFT, "start"), (ends[1], WIDTH - RIGHT, "end")):
        parts.append(
            f'<text class="tick" x="{x}" y="{HEIGHT - 5}" text-anchor="{anchor}">{point.commit.short[:7]}</text>'
        )
    return parts


def _band(at: Frame, piece: Series) -> list[str]:
    """The intervals as an area."""
    whole = [(at.x(p), p.low, p.high) for p in piece.points if p.low is not None and p.high is not None]
    over = [f"{x:.1f},{at.y(high):.1f}" for x, _, high in whole]
    under = [f"{x:.1f},{at.y(low):.1f}" for x, low, _ in whole]
    return [f'<polygon class="band" points="{" ".join([*over, *reversed(under)])}"/>'] if over else []


def _levels(at: Frame, piece: Series, changes: Sequence[Change]) -> list[str]:
    """A line at the mean between two changes."""
    parts, start = [], 0
    places = {p.commit.id: n for n, p in enumerate(piece.points)}
    for n, change in enumerate([*changes, None]):
        end = places[change.at.commit.id] if change is not None else len(piece.points)
        level = change.old if change is not None else changes[n - 1].new if changes else None
        if level is not None and level > 0:
            ends = at.x(piece.points[start]), at.x(piece.points[end - 1])
            y = f"{at.y(level):.1f}"
            parts.append(f'<line class="level" x1="{ends[0]:.1f}" x2="{ends[1]:.1f}" y1="{y}" y2="{y}"/>')
        start = end
    return parts


def _points(at: Frame, piece: Series) -> list[str]:
    spots = [(at.x(p), at.y(_value(p)), p) for p in piece.points]
    line = f'<polyline class="line" points="{" ".join(f"{x:.1f},{y:.1f}" for x, y, _ in spots)}"/>'
    return [
        line,
        *(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.2"><title>{_title(p)}</title></circle>' for x, y, p in spots),
    ]


def _mark(at: Frame, change: Change) -> list[str]:
    """A line between the last commit before the change and the first after it."""
    x = (at.x(change.before) + at.x(change.at)) / 2
    kind = "worse" if change.worse else "better"
    anchor = "start" if x < WIDTH / 2 else "end"
    return [
        f'<line class="mark {kind}" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 2}" y2="{HEIGHT - BOTTOM}"/>',
        f'<text class="label {kind}" x="{x:.1f}" y="11" text-anchor="{anchor}">'
        f"{'▲' if change.worse else '▼'} {change.at.commit.short[:7]}</text>",
    ]


def _title(point: Point) -> str:
    interval = "" if point.low is None or point.high is None else f" ({ratio(point.low)} to {ratio(point.high)})"
    return escape(f"{point.commit.short} {point.commit.title}: {value_text(point)}{interval}")


def _value(point: Point) -> float:
    """The ratio of a point of any metric but the verdict."""
    assert point.value is not None
    return point.value
