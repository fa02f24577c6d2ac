"""Exports: the ratios of a history as the files that `asv publish` and Apache Otava read.

Both are fed with ratios alone, on which lower is better; verdicts are no numbers, and stay here. JSON is YAML too, so
that neither file needs a library to be written.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

from lnverify.errors import UsageError
from lnverify.history.machine import in_words
from lnverify.history.sample import METRICS, Key, Series
from lnverify.reports import json_file

COLUMN = "ratio"


def slug(*words: str) -> str:
    """A name without what file systems and shells take for something else, told apart by a checksum at its end."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", " ".join(words)).strip("-")
    return f"{text}-{crc32(repr(words).encode()):08x}"


def write_asv(folder: Path, series: Sequence[Series], machines: Mapping[str, Mapping[str, Any]], repo: Path) -> str:
    """Write asv.conf.json and results/ (asv's formats 1 and 2); the command that makes pages of them.

    repo: the repository in which asv looks the commits up. A file of results for each machine, setting and commit; the
    setting is a parameter of its environment, so that asv draws settings apart too. Raises UsageError.
    """
    results: dict[tuple[str, str, str], dict[str, Any]] = {}
    benchmarks: dict[str, Any] = {"version": 2}
    for entry in series:
        key = entry.key
        name = slug(key.subject, key.name, key.metric)
        benchmarks[name] = {
            "name": name, "pretty_name": f"{key.text}: {key.metric}", "code": METRICS[key.metric], "type": "track",
            "unit": COLUMN, "version": "1", "param_names": [], "params": [], "timeout": 60.0,
        }  # fmt: skip
        for point in entry.points:
            place = key.machine, key.setting, point.commit.id
            here = results.setdefault(place, _asv_results(key, point.commit.id, point.commit.time))
            bounds = (None, None) if point.low is None else ([point.low], [point.high])
            here["results"][name] = [[point.value], [], "1", *bounds]
    _write(folder / "asv.conf.json", {
        "version": 1, "project": "lnverify history", "repo": str(repo), "branches": ["HEAD"], "pythons": [],
        "results_dir": "results", "html_dir": "html", "hash_length": 10,
    })  # fmt: skip
    _write(folder / "results" / "benchmarks.json", benchmarks)
    for machine in {place[0] for place in results}:
        known = {"version": 1, "machine": machine, "cpu": in_words(machines[machine])}
        _write(folder / "results" / machine / "machine.json", known)
    for (machine, _, commit), data in results.items():
        _write(folder / "results" / machine / f"{commit[:10]}-{data['env_name']}.json", data)
    return f"written: {folder}; in that folder run: asv publish"


def _asv_results(key: Key, commit: str, seconds: int) -> dict[str, Any]:
    """An empty file of results. Dates are milliseconds since 1970."""
    return {
        "version": 2, "commit_hash": commit, "date": seconds * 1000, "python": "", "requirements": {},
        "env_name": slug(key.setting), "env_vars": {}, "params": {"machine": key.machine, "setting": key.setting},
        "result_columns": ["result", "params", "version", "stats_ci_99_a", "stats_ci_99_b"], "results": {},
        "durations": {},
    }  # fmt: skip


def write_otava(folder: Path, series: Sequence[Series]) -> str:
    """Write otava.yaml and a table for each series; the command that searches them. Raises UsageError.

    A test for each series, for a table must have every number of every commit. Otava's direction -1: lower is better.
    """
    tests: dict[str, Any] = {}
    for entry in series:
        key = entry.key
        name = slug(key.subject, key.name, key.metric, key.machine, key.setting)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(["time", "commit", COLUMN])
        for point in entry.points:
            when = datetime.fromtimestamp(point.commit.time, UTC).isoformat()
            writer.writerow([when, point.commit.id, repr(point.value)])
        _written(folder / f"{name}.csv", table.getvalue())
        tests[name] = {
            "type": "csv", "file": f"{name}.csv", "time_column": "time", "attributes": ["commit"],
            "metrics": {COLUMN: {"column": COLUMN, "direction": -1}},
        }  # fmt: skip
    _write(folder / "otava.yaml", {"tests": tests, "test_groups": {"all": list(tests)}})
    return f"written: {folder}; in that folder run: otava analyze all --config-file otava.yaml"


def _write(path: Path, data: Any) -> None:
    _written(path, json.dumps(data, indent=1, allow_nan=False) + "\n")


def _written(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"cannot write {str(path.parent)!r}: {error.strerror}.") from None
    json_file.write(path, text)
