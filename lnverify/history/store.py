"""Store: one SQLite file. Adding is one transaction: all of it, or nothing.

The file keeps its rollback journal instead of a write-ahead log: both survive a crash, and only the former leaves one
file to copy, to cache or to commit. Writers wait for each other (PATIENCE); a crash in mid-write is rolled back by
whoever opens the file next.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from lnverify.errors import UsageError
from lnverify.history.reading import Reading
from lnverify.history.sample import Commit, Key, Point, Series

VERSION = 1
PATIENCE = 60.0  # seconds that a writer waits for another
TABLES = """
CREATE TABLE "commit" (id TEXT PRIMARY KEY, time INTEGER NOT NULL, title TEXT NOT NULL);
CREATE TABLE machine (fingerprint TEXT PRIMARY KEY, facts TEXT NOT NULL);
CREATE TABLE sample (
    "commit" TEXT NOT NULL REFERENCES "commit" (id), machine TEXT NOT NULL REFERENCES machine (fingerprint),
    subject TEXT NOT NULL, name TEXT NOT NULL, metric TEXT NOT NULL, setting TEXT NOT NULL,
    value REAL, low REAL, high REAL, verdict TEXT NOT NULL,
    PRIMARY KEY ("commit", machine, subject, name, metric, setting)
) WITHOUT ROWID;
"""
COLUMNS = '"commit", machine, subject, name, metric, setting, value, low, high, verdict'
KEYS = 'WHERE "commit" = ? AND machine = ? AND subject = ? AND name = ? AND metric = ? AND setting = ?'
ORDERED = """
SELECT subject, name, metric, setting, machine, "commit".id, time, title, value, low, high, verdict
FROM sample JOIN "commit" ON "commit".id = sample."commit"
ORDER BY subject, name, metric, setting, machine, time, "commit".rowid
"""


@dataclass(frozen=True)
class Added:
    """How many samples are new, were there with the same numbers, and were there with others (and are kept)."""

    new: int = 0
    same: int = 0
    kept: int = 0


def add(path: Path, commit: Commit, readings: Sequence[Reading], *, replace: bool = False) -> Added:
    """Keep the samples of a commit; the file is made where there is none.

    A sample that is there already stays, so that adding twice changes nothing; replace: the new one takes its place.
    Raises UsageError where the file is no history, or cannot be written.
    """
    with _opened(path) as base:
        base.execute("BEGIN IMMEDIATE")
        _prepare(path, base)
        # The title may come later: a commit that was told by its hash and date has none.
        base.execute(
            "INSERT INTO \"commit\" VALUES (?, ?, ?) ON CONFLICT DO UPDATE SET title = excluded.title WHERE title = ''",
            (commit.id, commit.time, commit.title),
        )
        counts = {"new": 0, "same": 0, "kept": 0}
        for reading in readings:
            described = json.dumps(reading.described, sort_keys=True)
            base.execute("INSERT OR IGNORE INTO machine VALUES (?, ?)", (reading.machine, described))
            for sample in reading.samples:
                key = sample.key
                place = (commit.id, key.machine, key.subject, key.name, key.metric, key.setting)
                numbers = (sample.value, sample.low, sample.high, sample.verdict)
                before = base.execute(f"SELECT value, low, high, verdict FROM sample {KEYS}", place).fetchone()
                if before is None or (replace and before != numbers):
                    base.execute(f"REPLACE INTO sample ({COLUMNS}) VALUES (?{', ?' * 9})", (*place, *numbers))
                    counts["new"] += 1
                else:
                    counts["same" if before == numbers else "kept"] += 1
        base.execute("COMMIT")
    return Added(**counts)


def load(path: Path) -> list[Series]:
    """Every series, its commits in the order of their times. Raises UsageError where the file is no history."""
    with _reading(path) as base:
        rows = base.execute(ORDERED).fetchall()
    return [
        Series(Key(*columns), tuple(Point(Commit(*row[5:8]), *row[8:]) for row in group))
        for columns, group in groupby(rows, key=lambda row: row[:5])
    ]


def machines(path: Path) -> dict[str, dict[str, Any]]:
    """The facts of every machine by fingerprint. Raises UsageError where the file is no history."""
    with _reading(path) as base:
        return {name: json.loads(text) for name, text in base.execute("SELECT * FROM machine ORDER BY fingerprint")}


@contextmanager
def _reading(path: Path) -> Iterator[sqlite3.Connection]:
    """A history that is there."""
    if not path.is_file():
        raise UsageError(f"there is no history {str(path)!r}: `lnverify history add REPORT.json` begins one.")
    with _opened(path) as base:
        if base.execute("PRAGMA user_version").fetchone()[0] != VERSION:
            raise UsageError(_other(path))
        yield base


@contextmanager
def _opened(path: Path) -> Iterator[sqlite3.Connection]:
    """The file, without transactions that begin by themselves; errors of SQLite as sentences."""
    try:
        with closing(sqlite3.connect(path, timeout=PATIENCE, isolation_level=None)) as base:
            base.execute("PRAGMA foreign_keys = ON")
            base.execute("PRAGMA synchronous = FULL")
            yield base
    except sqlite3.OperationalError as error:
        raise UsageError(f"the history {str(path)!r} cannot be opened or written: {error}.") from None
    except sqlite3.DatabaseError:
        raise UsageError(_other(path)) from None


def _prepare(path: Path, base: sqlite3.Connection) -> None:
    """Make the tables of a new file, within the caller's transaction; refuse the file of someone else."""
    version = base.execute("PRAGMA user_version").fetchone()[0]
    if version == VERSION:
        return
    if version or base.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
        raise UsageError(_other(path))
    for statement in TABLES.split(";"):
        base.execute(statement)
    base.execute(f"PRAGMA user_version = {VERSION}")


def _other(path: Path) -> str:
    return f"{str(path)!r} is no history that this version of lnverify reads: give another --db FILE."
