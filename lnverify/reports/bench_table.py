"""The result of `lnverify bench`: a table for people, and JSON, schema lnverify-bench/1."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from lnverify.timing.interval import Ratio
from lnverify.timing.summary import Summary

SCHEMA = "lnverify-bench/1"
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def seconds_text(seconds: float | None) -> str:
    """'24.1 us', with three figures."""
    if seconds is None:
        return ""
    size, unit = next((entry for entry in UNITS if seconds >= entry[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def ratio_text(ratio: Ratio | None) -> str:
    """'1.003 [0.996, 1.011]'."""
    return f"{ratio.median:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]" if ratio else ""


def show(target: str, against: str, rows: Sequence[Summary], console: Console) -> None:
    """Print the table of one target."""
    console.print(Text.assemble((target, "bold"), f" against {against}"), soft_wrap=True)
    grid = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for name in ("path", "clock", "time", "ratio [97.5 % bounds]", "of copy", "of clone", "GB/s"):
        grid.add_column(name, justify="left" if name in ("path", "clock") else "right", no_wrap=True)
    for row in rows:
        if row.seconds is None:
            continue
        shares = (_share(row.limits.get(name)) for name in ("copy", "clone"))
        grid.add_row(row.path.name, row.clock, seconds_text(row.seconds), ratio_text(row.ratio), *shares,
                     f"{row.path.bytes / row.seconds / 1e9:.1f}")  # fmt: skip
    console.print(grid)
    for row in rows:
        if row.why:
            word = "not timed" if row.seconds is None else "wrong"
            console.print(Text.assemble((f"{word}  ", "yellow"), f"{row.path.name}: {row.why}"), soft_wrap=True)
        if row.impossible:
            said = "faster than a copy of its bytes: the copy was disturbed, or not all bytes are touched"
            console.print(Text.assemble(("above 1  ", "yellow"), f"{row.path.name}: {said}"), soft_wrap=True)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def text(machine: Mapping[str, Any], results: Mapping[str, Sequence[Summary]], against: str) -> str:
    """JSON of all targets."""
    data = {
        "schema": SCHEMA, "machine": dict(machine), "against": against,
        "targets": [{"target": name, "paths": [row.to_json() for row in rows]} for name, rows in results.items()],
    }  # fmt: skip
    return json.dumps(data, indent=1, allow_nan=False) + "\n"
