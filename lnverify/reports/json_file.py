"""Report files: JSON text of one or several reports, and writing aside then renaming.

A reader never sees half a file: text goes to a neighbour of the same folder, which then takes the name.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from lnverify.errors import UsageError
from lnverify.finding import Report


def text(reports: Sequence[Report]) -> str:
    """One report as an object, several as a list; JSON without NaN and infinities."""
    data = [report.to_json() for report in reports]
    return json.dumps(data[0] if len(data) == 1 else data, indent=1, allow_nan=False) + "\n"


def check_writable(path: Path) -> None:
    """Find out before a run that a report cannot be written. Raises UsageError."""
    if path.is_dir():
        raise UsageError(f"cannot write {str(path)!r}: it is a folder; give the name of a file.")
    try:
        if path.exists() and not path.is_file():  # /dev/stdout, a named pipe
            return
        if path.exists() and not os.access(path, os.W_OK):
            raise PermissionError(13, "Permission denied")
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".lnverify-")
        os.close(handle)
        os.unlink(name)
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}.") from None


def write(path: Path, content: str) -> None:
    """Write aside, then rename; a device or pipe is written directly. Raises UsageError if it cannot."""
    try:
        if path.exists() and not path.is_file():
            path.write_text(content, encoding="utf-8")
            return
        path = path.resolve()  # a link keeps being a link
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".lnverify-")
        try:
            with open(handle, "w", encoding="utf-8") as file:
                file.write(content)
            os.chmod(name, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~_umask())
            os.replace(name, path)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise
    except OSError as error:
        raise UsageError(f"cannot write {str(path)!r}: {error.strerror}.") from None


def _umask() -> int:
    """The process's file mode mask: mkstemp makes files private, an ordinary report is not."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
