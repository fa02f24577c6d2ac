"""What a run examined, what it left out, and how near to pairwise summation it came: plain lines for every format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from lnverify.finding import Report


def lines(report: Report) -> list[str]:
    """At most two lines: what was examined, and what was not."""
    coverage = report.coverage
    seen = [_range_text("N", coverage.get("N", [])), _range_text("rows", coverage.get("rows", []))]
    for name, word in (("affine", "affine"), ("requires_grad", "requires_grad")):
        if coverage.get(name):
            found = [_plain(v) for v in coverage[name]]
            seen.append(f"{word} {', '.join(found)}" if len(found) <= 4 else f"{len(found)} ways of {word}")
    examined = "; ".join(s for s in seen if s)
    left = []
    if coverage.get("not_supported"):
        left.append(f"not supported: {', '.join(_plain(v) for v in coverage['not_supported'])}")
    left += _not_examined(coverage.get("not_examined", []))
    if vacuous := coverage.get("vacuous"):
        total = sum(vacuous.values())
        top = ", ".join(f"{law} {n:,}" for law, n in Counter(vacuous).most_common(3))
        more = f", {len(vacuous) - 3} more laws" if len(vacuous) > 3 else ""
        left.append(f"vacuous: {total:,} ({top}{more})")
    return [line for line in (examined, "; ".join(left)) if line]


def _not_examined(entries: list[str]) -> list[str]:
    """Cases that were left out: of those with one dtype and one reason the first, and how many more there are."""
    alike: dict[tuple[str, str], list[str]] = {}
    for entry in entries:
        dtype, colon, rest = entry.partition(": ")
        case, _, reason = rest.rpartition(" (")
        alike.setdefault((dtype, reason) if colon and case else (entry, ""), []).append(case)
    return [
        "not examined: " + _plain(dtype if not reason else f"{dtype} {cases[0]} ({reason}")
        + (f" and {len(cases) - 1} more" if len(cases) > 1 else "")
        for (dtype, reason), cases in alike.items()
    ]  # fmt: skip


def quality(report: Report) -> str:
    """The largest error over the bound of pairwise summation, by dtype and output; '' where it was not measured."""
    parts = [
        f"{dtype} " + ", ".join(f"{output} {ratio:.2g}" for output, ratio in ratios.items())
        for dtype, ratios in report.coverage.get("pair_ratio", {}).items()
    ]
    return f"error over the bound of pairwise sums (no verdict): {'; '.join(parts)}" if parts else ""


def _range_text(name: str, values: Sequence[Any]) -> str:
    if not values:
        return ""
    if len(values) <= 6:
        return f"{name} {', '.join(map(str, values))}"
    return f"{name} {min(values):,} to {max(values):,} ({len(set(values))} sizes)"


def _plain(value: Any) -> str:
    """Coverage entries are words, or lists of argument names; an empty list is 'none'."""
    return (value if isinstance(value, str) else "+".join(map(str, value))) or "none"
