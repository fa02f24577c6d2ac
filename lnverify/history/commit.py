"""Commit: which one was measured, asked of git or told by the user."""

from __future__ import annotations

import re
import subprocess
from datetime import datetime
from pathlib import Path

from lnverify.errors import UsageError
from lnverify.history.sample import Commit


def commit_of(
    folder: Path, revision: str | None = None, date: str | None = None, besides: Path | None = None
) -> Commit:
    """The commit that git knows by `revision`, or, without one, the commit of a clean working tree.

    besides: a file that may have changes, the history itself, which a project may keep under git. date: in the form of
    ISO 8601; with it git is not asked, and the revision is taken as it is. Raises UsageError where git knows no such
    commit, where the tree has changes that no commit has, and for a date that is none.
    """
    if date is not None:
        if revision is None or not re.fullmatch(r"[0-9a-f]{7,64}", revision):
            raise UsageError(f"--date goes with --commit and a hash of 7 to 64 digits, not with {revision or 'none'}.")
        return Commit(revision, _seconds(date))
    if revision is None and _changed(folder, besides):
        raise UsageError(
            "the working tree has changes that are in no commit: commit them, or name the measured commit by --commit."
        )
    shown = _git(folder, "show", "--no-patch", "--format=%H%x00%ct%x00%s", f"{revision or 'HEAD'}^{{commit}}", "--")
    found, seconds, title = shown.strip("\n").split("\0")
    return Commit(found, int(seconds), title)


def _changed(folder: Path, besides: Path | None) -> bool:
    """Whether files that git knows differ from the commit's."""
    places = [":/"]
    if besides is not None and besides.resolve().is_relative_to(top := repository(folder).resolve()):
        places.append(f":(top,exclude,literal){besides.resolve().relative_to(top).as_posix()}")
    return bool(_git(folder, "status", "--porcelain", "--untracked-files=no", "--", *places).strip())


def repository(folder: Path) -> Path:
    """The top of the working tree that a folder lies in. Raises UsageError where it lies in none."""
    return Path(_git(folder, "rev-parse", "--show-toplevel").strip())


def _git(folder: Path, *words: str) -> str:
    """What git prints. Raises UsageError with its first line of complaint."""
    try:
        done = subprocess.run(["git", *words], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        raise UsageError("git is not to be found: install it, or give --commit HASH with --date.") from None
    if done.returncode:
        said = (done.stderr.strip().splitlines() or ["no reason"])[0].removeprefix("fatal: ").rstrip(".")
        if said.startswith("bad revision"):
            raise UsageError(f"this repository has no such commit ({said}): name one by --commit, or fetch it first.")
        raise UsageError(f"git does not answer ({said}): go into the repository, or give --commit HASH with --date.")
    return done.stdout


def _seconds(date: str) -> int:
    try:
        when = datetime.fromisoformat(date)
    except ValueError:
        raise UsageError(f"--date {date!r} is no date: write 2026-03-14T15:09:26+00:00.") from None
    if when.tzinfo is None:
        raise UsageError(f"--date {date!r} has no time zone: write {date}+00:00 for UTC.")
    return int(when.timestamp())
