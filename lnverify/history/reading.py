"""Reading: what `lnverify check --json` and `lnverify bench --json` wrote, as samples."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from lnverify.errors import UsageError
from lnverify.finding import SCHEMA, Report, report_from_json
from lnverify.history.machine import facts, fingerprint, software
from lnverify.history.sample import Key, Sample

BENCH = "lnverify-bench/1"
PARTS = {"both": "forward+backward"}  # what a bench file calls otherwise


@dataclass(frozen=True)
class Reading:
    """Samples of one subject. machine: fingerprint, described: the facts that it is made of."""

    machine: str
    described: Mapping[str, Any]
    samples: tuple[Sample, ...]


def read(path: Path) -> list[Reading]:
    """The readings of a file, one for each report in it.

    Raises UsageError where it cannot be read, is of another schema or damaged, and for a report that ended early:
    what it did not come to see would look like a gain in accuracy.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {str(path)!r}: {error.strerror}.") from None
    except (UnicodeDecodeError, json.JSONDecodeError):
        raise UsageError(f"{str(path)!r} is no report of lnverify: it is not JSON.") from None
    readings = []
    for item in data if isinstance(data, list) else [data]:
        schema = item.get("schema") if isinstance(item, dict) else type(item).__name__
        if schema == SCHEMA:
            report = report_from_json(item)
            if report.stopped:
                raise UsageError(f"the report {str(path)!r} ended early ({report.stopped}): add one of a whole run.")
            described = facts(report.environment)
            readings.append(_reading(described, list(_of_report(report, fingerprint(described)))))
        elif schema == BENCH:
            readings += _of_bench(path, item)
        else:
            raise UsageError(f"the schema of {str(path)!r} is {schema!r}: {SCHEMA!r} or {BENCH!r} is expected.")
    return readings


def _reading(described: Mapping[str, Any], samples: list[Sample]) -> Reading:
    return Reading(fingerprint(described), described, tuple(samples))


def _of_report(report: Report, machine: str) -> Iterator[Sample]:
    """For each law its verdict and its worst ratio; for each output its ratio to the bound of pairwise sums.

    An expected finding counts as one: the history says what the subject does, not what its project accepts. Ratios of
    0 and of infinity have no logarithm: the verdict says what they would.
    """
    version = report.environment.get("lnverify", "")
    setting = f"{report.profile}, seed {report.seed}, lnverify {version}, {software(report.environment)}"

    def key(name: str, metric: str) -> Key:
        operation = "" if report.operation == "layer_norm" else f"{report.operation}: "
        return Key(report.subject, f"{operation}{name}", metric, setting, machine)

    for result in report.results:
        name = f"{result.law} {result.name} [{result.dtype}, {result.device}]"
        yield Sample(key(name, "verdict"), verdict=result.verdict)
        if 0 < result.worst_ratio < float("inf") and result.verdict != "inapplicable":
            yield Sample(key(name, "error"), result.worst_ratio)
    for dtype, ratios in report.coverage.get("pair_ratio", {}).items():
        for output, ratio in ratios.items():
            if ratio > 0:
                yield Sample(key(f"{output} [{dtype}]", "pair"), float(ratio))


def _of_bench(path: Path, data: Mapping[str, Any]) -> Iterator[Reading]:
    """For each target, and each of its paths that was timed and right, the ratio to the baseline's time."""
    try:
        machine = data["machine"]
        described = facts(machine)
        for target in data["targets"]:
            samples = []
            for row in target["paths"]:
                if row["ratio"] is None or row["why"]:
                    continue
                key = Key(
                    str(target["target"]), _path_name(row), "time", _bench_setting(data, row), fingerprint(described)
                )
                value, low, high = (_number(row["ratio"][end]) for end in ("median", "low", "high"))
                if value is None:
                    raise ValueError(f"the ratio of {key.name}, which is not a number above 0")
                samples.append(Sample(key, value, low, high))
            yield _reading(described, samples)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{str(path)!r} is damaged: {type(error).__name__} at {error}.") from None


def _path_name(row: Mapping[str, Any]) -> str:
    """'forward 32x768 [float32, cpu]'."""
    shape = "x".join(str(int(size)) for size in row["shape"])
    return f"{PARTS.get(row['what'], row['what'])} {shape} [{row['dtype']}, {row['device']}]"


def _bench_setting(data: Mapping[str, Any], row: Mapping[str, Any]) -> str:
    """What a time depends on beside the code: baseline, threads, clock, pins of malloc, versions."""
    machine = data["machine"]
    words = [f"against {data['against']}", f"{machine.get('threads', 1)} threads", f"{row['clock']} clock"]
    words += [f"{name}={value}" for name, value in machine.get("malloc", {}).items() if value]
    return ", ".join([*words, software(machine)])


def _number(value: float | None) -> float | None:
    """A ratio above 0; None where it is none, as the bound of an interval that too few pairs have."""
    return float(value) if value is not None and value > 0 and isfinite(value) else None
