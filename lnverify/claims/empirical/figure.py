"""The curves of an experiment as SVG: the same bytes for the same numbers, without a date."""

from __future__ import annotations

import io
from typing import Any

from lnverify.claims.empirical.effect import Curve, Outcome, Panel

COLUMNS = 3
STYLE = {
    "svg.fonttype": "none",  # text stays text: small, and found by a search
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "path.simplify": True,
}


def svg(name: str, outcome: Outcome) -> str:
    """All panels of an experiment, in rows of three. name: salts the ids in the file, in the place of a random one."""
    import matplotlib
    from matplotlib.figure import Figure

    columns = min(COLUMNS, len(outcome.panels))
    rows = -(-len(outcome.panels) // columns)
    with matplotlib.rc_context({**STYLE, "svg.hashsalt": name}):
        figure = Figure(figsize=(3.2 * columns, 2.5 * rows), layout="constrained")
        grid = figure.subplots(rows, columns, squeeze=False)
        for place, axes in enumerate(grid.flat):
            if place < len(outcome.panels):
                _draw(axes, outcome.panels[place])
            else:
                axes.set_axis_off()
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()) + "\n"


def _draw(axes: Any, panel: Panel) -> None:
    for number, curve in enumerate(panel.curves):
        _line(axes, curve, f"C{number}", marked=len(curve.x) < 20)
    axes.set_title(panel.title, fontsize=9)
    axes.set_xlabel(panel.x)
    axes.set_ylabel(panel.y)
    axes.legend(fontsize=7)
    for axis in panel.log:
        getattr(axes, f"set_{axis}scale")("log")
    if "x" in panel.log and len(panel.curves[0].x) < 8:
        x = panel.curves[0].x
        axes.set_xticks(x, labels=[f"{value:g}" if value >= 1 else f"1/{1 / value:g}" for value in x])
        axes.minorticks_off()


def _line(axes: Any, curve: Curve, color: str, *, marked: bool) -> None:
    """The median of the seeds, and a band from the least to the largest."""
    marker = "o" if marked else ""
    axes.plot(curve.x, curve.y, color=color, label=curve.label, linewidth=1.2, marker=marker, markersize=3)
    axes.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
