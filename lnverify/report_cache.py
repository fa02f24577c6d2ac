"""Every run keeps its report: a folder of the last 50 runs, newest by name.

A run has a short id, so that `lnverify replay 3f9c1a` needs no path. Place: $LNVERIFY_CACHE, else
$XDG_CACHE_HOME/lnverify, else the platform's cache folder. A cache that cannot be written stops nobody.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from lnverify.errors import UsageError
from lnverify.finding import Report
from lnverify.reports import json_file

KEPT = 50


def folder() -> Path:
    """The folder of the kept reports; it need not exist. Raises UsageError where there is no home folder."""
    if own := os.environ.get("LNVERIFY_CACHE"):
        return Path(own) / "reports"
    xdg = os.environ.get("XDG_CACHE_HOME", "")
    if xdg and Path(xdg).is_absolute():  # the XDG specification has relative paths ignored
        return Path(xdg) / "lnverify" / "reports"
    try:
        home = Path.home()
    except RuntimeError:
        raise UsageError("there is no home folder for the report cache: set LNVERIFY_CACHE to a folder.") from None
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local") / "lnverify" / "Cache" / "reports"
    base = home / "Library" / "Caches" if sys.platform == "darwin" else home / ".cache"
    return base / "lnverify" / "reports"


@dataclass(frozen=True)
class Run:
    """The place of one run's report. `id` is what `lnverify replay` takes."""

    id: str
    path: Path

    def store(self, reports: Sequence[Report]) -> None:
        """Write the reports so far, drop the oldest runs. Raises UsageError if that cannot be done."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"cannot write {str(self.path.parent)!r}: {error.strerror}.") from None
        json_file.write(self.path, json_file.text(reports))
        for old in _kept(self.path.parent)[KEPT:]:
            with contextlib.suppress(OSError):
                old.unlink()


def new_run() -> Run:
    """A fresh id and file name; nothing is written yet."""
    run_id = secrets.token_hex(3)
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%f")
    return Run(run_id, folder() / f"{stamp}-{run_id}.json")


def _kept(place: Path) -> list[Path]:
    """Report files, newest first: names begin with the time in UTC."""
    try:
        return sorted((p for p in place.glob("2*-*.json") if p.is_file()), reverse=True)
    except OSError:
        return []


def newest() -> Path:
    """The report of the last run. Raises UsageError if there is none."""
    kept = _kept(folder())
    if not kept:
        raise UsageError(f"no report is kept in {str(folder())!r}: run `lnverify check` first, or name a report file.")
    return kept[0]


def find(run_id: str) -> Path | None:
    """The report of the run with this id, or None."""
    return next((p for p in _kept(folder()) if p.stem.rpartition("-")[2] == run_id), None)
