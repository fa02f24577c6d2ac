"""Baseline: what a gate compares with, as a JSON file, schema lnverify-baseline/1.

It holds verdicts, accuracy and ratios, which travel from machine to machine, and seconds, which do not: those are shown
on the machine whose fingerprint it bears, and decide nothing anywhere.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lnverify.errors import UsageError
from lnverify.gate.examined import Examined
from lnverify.gate.settings import Settings
from lnverify.gate.speed import Before
from lnverify.timing.summary import Summary

SCHEMA = "lnverify-baseline/1"
VERDICTS = ("holds", "violated", "crashed", "inapplicable", "inconclusive")


@dataclass(frozen=True)
class Baseline:
    """One side of a gate. speed: by the name of the hot path. machine: lnverify.timing.machine.describe."""

    settings: Settings
    examined: Examined
    speed: Mapping[str, Before]
    seconds: Mapping[str, float | None]
    machine: Mapping[str, Any]


def text(settings: Settings, examined: Examined, timed: Sequence[Summary], machine: Mapping[str, Any]) -> str:
    """The file."""
    laws: dict[str, dict[str, dict[str, Any]]] = {}
    for (law, dtype), verdict in sorted(examined.verdicts.items()):
        found = laws.setdefault(law, {}).setdefault(dtype, {"verdict": verdict, "worst_ratio": None, "cause": ""})
        ratio = examined.ratios.get((law, dtype))
        found["worst_ratio"] = ratio if ratio is not None and ratio < float("inf") else None
        found["cause"] = examined.causes.get((law, dtype), "")
    pair: dict[str, dict[str, float]] = {}
    for (dtype, output), value in sorted(examined.pair.items()):
        pair.setdefault(dtype, {})[output] = value
    data = {
        "schema": SCHEMA, "lnverify": examined.version, "settings": settings.to_json(), "machine": dict(machine),
        "laws": laws, "pair_ratio": pair, "speed": [row.to_json() for row in timed],
    }  # fmt: skip
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def load(path: Path) -> Baseline:
    """Read one. Raises UsageError, which says what is wrong with the file and what to do."""
    remedy = "make it anew with `lnverify gate TARGET --baseline FILE --update`"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"there is no baseline {str(path)!r}: {remedy}.") from None
    except OSError as error:
        raise UsageError(f"cannot read the baseline {str(path)!r}: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise UsageError(f"{str(path)!r} is no baseline, for it is not JSON: {remedy}.") from None
    found = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if found != SCHEMA:
        raise UsageError(f"{str(path)!r} is no baseline: its schema is {found!r}, {SCHEMA!r} is expected: {remedy}.")
    try:
        return _baseline(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        said = f"{type(error).__name__} at {error}"
        raise UsageError(f"the baseline {str(path)!r} is damaged ({said}): {remedy}.") from None


def _baseline(data: Mapping[str, Any]) -> Baseline:
    laws = {(law, dtype): entry for law, found in data["laws"].items() for dtype, entry in found.items()}
    verdicts = {key: str(entry["verdict"]) for key, entry in laws.items()}
    if unknown := [verdict for verdict in verdicts.values() if verdict not in VERDICTS]:
        raise ValueError(f"the verdict {unknown[0]!r}")
    examined = Examined(
        verdicts, {key: str(entry["cause"]) for key, entry in laws.items() if entry["cause"]},
        {key: float(entry["worst_ratio"]) for key, entry in laws.items() if entry["worst_ratio"] is not None},
        {(dtype, name): float(v) for dtype, found in data["pair_ratio"].items() for name, v in found.items()},
        version=str(data["lnverify"]),
    )  # fmt: skip
    return Baseline(
        Settings.from_json(data["settings"]), examined,
        {str(row["name"]): Before.from_json(row) for row in data["speed"]},
        {str(row["name"]): row["seconds"] for row in data["speed"]}, dict(data["machine"]),
    )  # fmt: skip
